"""SHELL: which run of the machine this is."""

from __future__ import annotations

import functools
from pathlib import Path


@functools.cache
def boot_id() -> str:
    """The same until the machine starts again; empty: not known, as without /proc."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
