"""The holder of each client's session; moves, discards, wills of nodes that died. Pure."""
