"""SHELL: how many files the process may open, and how many of them connections may take."""

from __future__ import annotations

import os
import resource

RESERVE = 64
SHARE = 4
"""
Files that no connection takes, or this share of all where these are few: a journal that cannot
begin its next file, because strangers hold all descriptors, acknowledges nothing.
"""


def ceiling() -> int:
    """The number of open files at which no connection is accepted any more."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return 1 << 30
    return most - min(RESERVE, most // SHARE)


def next_descriptor(some: int) -> int:
    """The number that the next open file gets: all below are in use. `some` is an open one."""
    descriptor = os.dup(some)
    os.close(descriptor)
    return descriptor
