"""
SHELL: places long, rarely read values in a file instead of memory.

The file has no name and ends with the process; the log holds the durable values. A value occupies
its place while a reference exists. Then the disk regains the room at once, and the next value of
about that size reuses the place.

A value is checked when it is read. Otherwise a damaged one is delivered, and the next cleaning of
the tables makes it durable.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

from txbroker.model.errors import StoreError
from txbroker.model.stored_value import StoredValue
from txbroker.runtime.structured_log import get_logger, log_limited

log = get_logger()

RETAINED = "retained"
"""Name of the table whose values may be long."""

LONG = 4096
"""Size in bytes from which on a value goes to the file: a block of most disks."""

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_libc = ctypes.CDLL(None)


class ValueFile:
    """
    The file of long values of one data folder, created at its first use.

    `on_failed` hears of a value that cannot be read: the node must end.
    """

    def __init__(
        self, folder: Path, on_failed: Callable[[StoreError], None] = lambda _: None
    ) -> None:
        self.held = 0
        self._folder = folder
        self._on_failed = on_failed
        self._file = -1
        self._end = 0
        self._free: defaultdict[int, list[int]] = defaultdict(list)  # by size

    def store(self, value: StoredValue) -> StoredValue:
        """Place a long value in the file; return the value itself if short or the disk is full."""
        if not isinstance(value, bytes) or len(value) < LONG:
            return value
        size = _room_for(len(value))
        free = self._free[size]
        at = free.pop() if free else self._end
        try:
            if self._file < 0:
                with tempfile.TemporaryFile(dir=self._folder) as made:
                    self._file = os.dup(made.fileno())
            done = os.pwrite(self._file, value, at)
            while done < len(value):
                done += os.pwrite(self._file, memoryview(value)[done:], at + done)
        except OSError as error:
            log_limited(
                log.warning, "retained.in_memory", folder=str(self._folder), why=error.strerror
            )
            if at < self._end:
                free.append(at)
            return value
        self._end = max(self._end, at + size)
        self.held += size
        return _Kept(self, at, len(value), crc32(value))

    def read(self, at: int, length: int, check: int) -> bytes:
        """Read a value with the checksum `check`; raises `StoreError` if the disk fails."""
        if self._file < 0:
            raise StoreError(f"{self._folder}: the file of long values is closed")
        try:
            found = os.pread(self._file, length, at)
        except OSError as error:
            raise self._fail(f"cannot be read: {error.strerror}") from error
        if crc32(found) != check:
            raise self._fail("is not there any more; the log has it: start again")
        return found

    def _fail(self, what: str) -> StoreError:
        error = StoreError(f"{self._folder}: a retained message {what}")
        self._on_failed(error)
        return error

    def close(self) -> None:
        """Close the file at the end of the node; its values are lost."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def free(self, at: int, length: int) -> None:
        """Free the place of a value without references."""
        if self._file < 0:
            return
        size = _room_for(length)
        self.held -= size
        if not self.held:  # An empty file needs no list of holes: truncate it.
            self._free.clear()
            self._end = 0
            os.ftruncate(self._file, 0)
            return
        self._free[size].append(at)
        _libc.fallocate(  # Without support in the file system, the place is at least reused.
            self._file,
            _KEEP_SIZE | _PUNCH_HOLE,
            ctypes.c_int64(at),
            ctypes.c_int64(size),
        )


class _Kept:
    """A value whose bytes are in the file."""

    __slots__ = ("_at", "_attic", "_check", "_length")

    def __init__(self, attic: ValueFile, at: int, length: int, check: int) -> None:
        self._attic = attic
        self._at = at
        self._length = length
        self._check = check

    def __len__(self) -> int:
        return self._length

    def __bytes__(self) -> bytes:
        return self._attic.read(self._at, self._length, self._check)

    def __del__(self) -> None:
        self._attic.free(self._at, self._length)


def _room_for(length: int) -> int:
    """Return `length` rounded up to whole blocks: few sizes, at most an eighth more."""
    step = max(LONG, 1 << max(length - 1, 1).bit_length() - 4)
    return -(-length // step) * step
