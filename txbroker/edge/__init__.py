"""The edge's role: clients' sessions, and the way from them to the owners of zones. Pure."""
