"""A client's TCP connection on Twisted."""
