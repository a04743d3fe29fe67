"""The zone of this same node, as its edge reaches it: no link. Pure."""
