"""
SHELL: what a node needs of its machine; where that is missing, the start says so in one line.

A node maps no file of its folder into memory, and takes space ahead only where the file system can.
So neither is asked for here.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from txbroker.model.errors import StoreError
from txbroker.model.machine_time import UNKNOWN, MachineTime
from txbroker.runtime.boot import boot_id

_CANNOT = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENODEV})
"""So a file system answers what it cannot do; a disk that is full or broken answers otherwise."""


def missing(
    *,
    platform: str = sys.platform,
    bits: int = sys.maxsize.bit_length() + 1,
    byte_order: str = sys.byteorder,
) -> str | None:
    """What this machine or its Python lacks, with the remedy; None: nothing."""
    if platform != "linux":
        return f"txbroker runs on Linux (epoll), this is {platform}: use a machine with Linux"
    if bits < 64:
        return (
            f"this Python is a {bits}-bit one, txbroker needs 64 bits: install a 64-bit system"
            " and its Python"
        )
    if byte_order != "little":
        return (
            f"this processor is {byte_order}-endian, txbroker needs a little-endian one:"
            " use x86-64 or 64-bit ARM"
        )
    return None


def moment() -> MachineTime:
    """Now, by a clock that goes on while the machine sleeps, and from one process to the next."""
    boot = boot_id()
    if not boot:
        return UNKNOWN
    return MachineTime(boot, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000)


def take_lock(lock: IO[str], folder: Path) -> None:
    """Keep other processes out of the folder; raises `StoreError`."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StoreError(
            f"{folder}: in use by another process; stop that one, or set another `data`"
        ) from error
    except OSError as error:
        raise _unfit(folder, "locks no files (flock)", error) from error


def check_disk(lock: IO[str], folder: Path) -> None:
    """
    Raises `StoreError` where the file system cannot make a file, or the names in a folder, durable.

    What else is wrong with the disk, whoever writes next is told.
    """
    _try(lambda: os.fdatasync(lock.fileno()), folder, "makes no file durable (fdatasync)")
    names = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _try(lambda: os.fsync(names), folder, "makes no names in a folder durable (fsync)")
    finally:
        os.close(names)


def _try(action: Callable[[], None], folder: Path, what: str) -> None:
    try:
        action()
    except OSError as error:
        if error.errno in _CANNOT:
            raise _unfit(folder, what, error) from error


def _unfit(folder: Path, what: str, error: OSError) -> StoreError:
    return StoreError(
        f"{folder}: its file system {what}: {error.strerror}; set `data` to a folder on a local"
        " disk, on ext4 for example"
    )
