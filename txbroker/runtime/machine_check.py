"""
SHELL: checks what a node needs of its machine; a missing feature stops the start with one line.

A node maps no file of its folder into memory, and preallocates space only where the file system
can. So the check covers neither.
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
"""Errors of a file system without a feature; a full or broken disk raises other errors."""


def missing(
    *,
    platform: str = sys.platform,
    bits: int = sys.maxsize.bit_length() + 1,
    byte_order: str = sys.byteorder,
) -> str | None:
    """Return what this machine or its Python lacks, with the remedy; None if nothing."""
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
    """Return the time by a clock that counts during sleep, and across processes of one boot."""
    boot = boot_id()
    if not boot:
        return UNKNOWN
    return MachineTime(boot, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000)


def lock_folder(lock: IO[str], folder: Path) -> None:
    """Lock the folder against other processes; raises `StoreError`."""
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
    Raise `StoreError` if the file system cannot make a file, or a folder's names, durable.

    The next write reports any other fault of the disk.
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
