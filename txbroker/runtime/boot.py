"""SHELL: identifies the current boot of the machine."""

from __future__ import annotations

import functools
from pathlib import Path


@functools.cache
def boot_id() -> str:
    """Return an id that changes when the machine boots; "" if unknown, as without /proc."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
