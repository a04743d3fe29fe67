"""The core in Python: what it does, to be read; and what runs where it could not be compiled."""
