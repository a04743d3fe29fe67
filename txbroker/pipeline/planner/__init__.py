"""Decides which subtrees to delegate to which host. Pure."""
