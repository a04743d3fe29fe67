"""Which node holds a client's session; moves, discards, wills of nodes that died. Pure."""
