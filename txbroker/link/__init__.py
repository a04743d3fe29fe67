"""Message links between an edge and an owner."""
