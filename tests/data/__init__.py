"""
Data folders that releases wrote: each later version serves them.

`NAME.tar.xz` holds the data folders of one tree of five nodes at the version NAME, killed with
SIGKILL. `story.py` says what its clients had done; `python -m tests.data NAME` writes one.
"""
