"""
SHELL: limits the open files of the process, and reserves the last ones for the store.

Connections arrive as long as there are descriptors. The node pauses its own accepts in time, but
gRPC accepts until the system refuses. A journal that then cannot open its next file acknowledges
nothing. So the process lowers its own limit, and the store raises the limit for each file that
needs it.
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
Files that no connection of the node takes: `RESERVE`, or a `SHARE`-th of all where these are few.

Half of them are the store's alone.
"""

LEAST = 64
"""The fewest open files with which a node starts: gRPC crashes the process below some 30."""

_UNBOUNDED = 1 << 30
_raising = threading.Lock()


def ceiling() -> int:
    """Return the number of open files at which the node accepts no connection."""
    most = _most()
    return most - _reserve(most)


def are_too_few() -> bool:
    """True if the process may open fewer than `LEAST` files."""
    return _most() < LEAST


def reserve_files() -> None:
    """Reserve files for the store from now on; every other open beyond the limit fails."""
    most = _most()
    if most < _UNBOUNDED:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most - _reserve(most) // 2, most))


def next_descriptor(some: int) -> int:
    """Return the number of the next open file: all lower ones are in use. `some` is open."""
    try:
        descriptor = os.dup(some)
    except OSError:
        return _most()  # No descriptor is free.
    os.close(descriptor)
    return descriptor


def open_kept(path: Path | str, flags: int, mode: int = 0o644) -> int:
    """Open a file of the store, as `os.open` does; child processes do not inherit it."""
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
