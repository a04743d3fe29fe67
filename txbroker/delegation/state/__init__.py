"""A node's grant and its delegations, on its disk."""
