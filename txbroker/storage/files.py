"""SHELL: opens, extends, writes and syncs the files and folders of a log."""

from __future__ import annotations

import errno
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from txbroker.model.errors import StoreError
from txbroker.model.publish_run import Octets
from txbroker.runtime.descriptors import open_kept

_MAX_BUFFERS = 1024  # limit of one pwritev call (IOV_MAX)
_FIRST_STEP = 64 * 1024
_LARGEST_STEP = 4 * 1024 * 1024
_SHARE = 16  # divides a file's size: the preallocation beyond the first step
_SHARE_OF_FREE = 16

QUICK = 1.0
"""
Seconds in which a step of preallocated space is used up quickly: the next is four times as large.

Each step may delay a sync. With steps by the file's size a flood took one at each tenth sync.
"""

LASTING = 4
"""
Writes like the present one for which filled space must last; other space is not filled.

With records of 2 MB that are synced one by one, the zeros took a third of the disk's rate.
"""

_ZEROS: Final = memoryview(bytes(256 * 1024))

SHORT = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""
Transient errors: no room on the disk, no descriptor, no memory.

A log that needs a new segment while clients hold all descriptors does not have a broken disk.
"""


class DiskFull(StoreError):
    """The file system, or the user's quota, has no room for a write."""


_DONT_CACHE = 0x80
"""
RWF_DONTCACHE (Linux 6.14): the system writes the pages out soon and then drops them from memory.

Reused pages cost a tenth of fresh pages.
"""


class OpenFile:
    """
    An open file, which closes with its last reference.

    Reads, syncs in a thread and deletion overlap, so no single user knows when to close the file.
    """

    __slots__ = ("fd",)

    def __init__(self, path: Path, flags: int) -> None:
        self.fd = open_kept(path, flags)

    def sync(self) -> None:
        """Make the file's contents durable."""
        os.fdatasync(self.fd)

    def __del__(self) -> None:
        try:
            os.close(self.fd)
        except AttributeError:
            pass  # The open call failed, so no descriptor exists.


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    file = OpenFile(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(file.fd)


def make_folder(folder: Path) -> None:
    """Create `folder` and its missing parents, durably."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


class LogTail:
    """
    The file that a log appends to, with preallocated space.

    A sync is faster if the file need not grow. The space is filled with zeros. Otherwise ext4 marks
    it as written after each write to the disk, in a thread of the kernel, for which the sync waits.
    With both processors busy such a sync took 142 ms (p99), others took 22 ms.
    """

    def __init__(self, path: Path, *, is_new: bool, step: int) -> None:
        """Open or create the file; `step` is the maximum preallocation at a time, in bytes."""
        self.file = OpenFile(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if is_new else 0))
        self._step = max(4096, min(_LARGEST_STEP, step))
        self._allocated = os.fstat(self.file.fd).st_size
        self._unread = _DONT_CACHE
        self._last_step, self._stepped_at = 0, -math.inf

    def write(
        self, buffers: Sequence[Octets], position: int, limit: int, *, is_unread: bool = False
    ) -> None:
        """
        Write at `position`, and preallocate space up to `limit`.

        `is_unread`: True if no reader is about to read these bytes. Raises `OSError`; any part of
        the buffers may then be written.
        """
        size = sum(map(len, buffers))
        end = position + size
        if end > self._allocated:
            self._allocate(end, limit, fill_from=sys.maxsize if is_unread else LASTING * size)
        try:
            write_all(self.file.fd, buffers, position, self._unread if is_unread else 0)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP or not is_unread:
                raise
            self._unread = 0
            write_all(self.file.fd, buffers, position)

    def truncate(self, end: int) -> None:
        """Return the space behind `end` to the disk."""
        os.ftruncate(self.file.fd, end)
        self._allocated = end

    def _allocate(self, end: int, limit: int, *, fill_from: int) -> None:
        """Preallocate space behind `end`, and fill it if it has at least `fill_from` bytes."""
        now = time.monotonic()
        is_quick = now - self._stepped_at < QUICK
        step = min(_FIRST_STEP, self._step)
        # Small logs must stay small, and preallocation must not use the reserve of a short disk.
        most = max(end // _SHARE, 4 * self._last_step if is_quick else 0)
        most = min(self._step, most, _free(self.file.fd) // _SHARE_OF_FREE)
        while step * 2 <= most:
            step *= 2
        self._last_step, self._stepped_at = step, now
        target = max(min(end - end % step + step, limit), end)
        try:
            os.posix_fallocate(self.file.fd, self._allocated, target - self._allocated)
            if target - end >= fill_from:
                for start in range(end, target, len(_ZEROS)):
                    write_all(self.file.fd, (_ZEROS[: target - start],), start)
        except OSError:
            target = end  # Unsupported or full: a full disk makes the write itself fail.
        self._allocated = target


def _free(fd: int) -> int:
    found = os.fstatvfs(fd)
    return found.f_bavail * found.f_frsize


def write_all(fd: int, buffers: Sequence[Octets], position: int, flags: int = 0) -> None:
    """Write all buffers in order; one system call suffices for up to `_MAX_BUFFERS` buffers."""
    for start in range(0, len(buffers), _MAX_BUFFERS):
        some = buffers[start : start + _MAX_BUFFERS]
        wanted = sum(map(len, some))
        done = os.pwritev(fd, some, position, flags)
        if done < wanted:
            rest = memoryview(b"".join(some))
            while done < wanted:
                done += os.pwrite(fd, rest[done:], position + done)
        position += wanted
