"""Which subtrees to delegate to which host. Pure."""
