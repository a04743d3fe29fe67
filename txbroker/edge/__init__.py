"""The role for connected clients: their sessions, and the way to the owners of topics."""
