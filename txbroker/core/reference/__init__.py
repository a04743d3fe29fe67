"""The core in Python: the readable reference, and the fallback where compilation failed."""
