"""
SHELL: how many files the process may open, and who may open the last ones.

Connections come as long as there are descriptors: ours are paused before that, gRPC accepts until
the system refuses. A journal that cannot begin its next file then acknowledges nothing. So the
process is allowed fewer than it might have, and the store raises that limit for each file which it
would not get otherwise.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
from pathlib import Path

RESERVE = 64
SHARE = 4
"""
Files that no connection of ours takes, or this share of all where these are few. Half of them is
the store's alone.
"""

_UNBOUNDED = 1 << 30
_raising = threading.Lock()


def ceiling() -> int:
    """The number of open files at which no connection is accepted any more."""
    most = _most()
    return most - _reserve(most)


def keep_some() -> None:
    """Keep files for the store, from now on; all others are refused them."""
    most = _most()
    if most < _UNBOUNDED:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most - _reserve(most) // 2, most))


def next_descriptor(some: int) -> int:
    """The number that the next open file gets: all below are in use. `some` is an open one."""
    try:
        descriptor = os.dup(some)
    except OSError:
        return _most()  # none is left
    os.close(descriptor)
    return descriptor


def open_kept(path: Path | str, flags: int, mode: int = 0o644) -> int:
    """As `os.open`, for a file of the store; it is not inherited."""
    flags |= os.O_CLOEXEC
    try:
        return os.open(path, flags, mode)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
    with _raising:
        usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        try:
            return os.open(path, flags, mode)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (usual, most))


def _most() -> int:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNBOUNDED if most == resource.RLIM_INFINITY else most


def _reserve(most: int) -> int:
    return min(RESERVE, most // SHARE)
