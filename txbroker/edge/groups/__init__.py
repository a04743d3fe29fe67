"""Shared subscriptions: the groups, their members at each edge, and who lends to them. Pure."""
