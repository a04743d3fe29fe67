"""
The soak: clients come and go for as long as wanted, and no node keeps what they leave behind.

`python -m tests.soak --minutes 10` or `make soak`. `visits.py` says what a client does, `rest.py`
what is measured at a node when no client is there, `__main__.py` when and within which bounds.
"""
