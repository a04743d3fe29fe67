"""SHELL: files and folders as a log uses them."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from txbroker.model.errors import StoreError
from txbroker.model.publish_run import Octets
from txbroker.runtime.descriptors import open_kept

_MAX_BUFFERS = 1024  # that one pwritev takes (IOV_MAX)
_FIRST_STEP = 64 * 1024
_LARGEST_STEP = 4 * 1024 * 1024
_SHARE = 16  # of what a file holds, what is taken ahead beyond the first step
_SHARE_OF_FREE = 16

SHORT = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""
Errors that pass by themselves: no room on the disk, no descriptor, no memory.

A log that needs a new segment while clients hold all descriptors has no broken disk.
"""


class DiskFull(StoreError):
    """The file system, or the user's quota, has no room for what is to be written."""


_DONT_CACHE = 0x80
"""
RWF_DONTCACHE (Linux 6.14): the system writes it out soon, and keeps no copy in memory after that.
Pages that are used again and again cost a tenth of fresh ones.
"""


class OpenFile:
    """
    An open file, closed when nobody uses it any more.

    Reading, syncing in a thread and deleting go on side by side: nobody else knows when it can be
    closed.
    """

    __slots__ = ("fd",)

    def __init__(self, path: Path, flags: int) -> None:
        self.fd = open_kept(path, flags)

    def sync(self) -> None:
        """Make its contents durable."""
        os.fdatasync(self.fd)

    def __del__(self) -> None:
        try:
            os.close(self.fd)
        except AttributeError:
            pass  # it was never opened


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    file = OpenFile(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(file.fd)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, durably, where they are missing."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


class LogTail:
    """
    The file that a log is appended to, with some space taken ahead: a sync is faster where the
    file need not grow.
    """

    def __init__(self, path: Path, *, is_new: bool, step: int) -> None:
        """Open or make it; `step` is the most that is taken ahead at a time, in bytes."""
        self.file = OpenFile(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if is_new else 0))
        self._step = max(4096, min(_LARGEST_STEP, step))
        self._allocated = os.fstat(self.file.fd).st_size
        self._unread = _DONT_CACHE

    def write(
        self, buffers: Sequence[Octets], position: int, limit: int, *, is_unread: bool = False
    ) -> None:
        """
        Write at `position`; raises `OSError`, and then any part of it may be there.

        Space is taken ahead up to `limit`. `is_unread`: nobody is about to read it.
        """
        end = position + sum(map(len, buffers))
        if end > self._allocated:
            self._allocate(end, limit)
        try:
            write_all(self.file.fd, buffers, position, self._unread if is_unread else 0)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP or not is_unread:
                raise
            self._unread = 0
            write_all(self.file.fd, buffers, position)

    def truncate(self, end: int) -> None:
        """Give back what is behind `end`."""
        os.ftruncate(self.file.fd, end)
        self._allocated = end

    def _allocate(self, end: int, limit: int) -> None:
        step = min(_FIRST_STEP, self._step)
        # Small logs stay small, and what is kept free on a short disk is not taken ahead.
        most = min(self._step, end // _SHARE, _free(self.file.fd) // _SHARE_OF_FREE)
        while step * 2 <= most:
            step *= 2
        target = max(min(end - end % step + step, limit), end)
        try:
            os.posix_fallocate(self.file.fd, self._allocated, target - self._allocated)
        except OSError:
            target = end  # unsupported, or full: that the write itself will tell
        self._allocated = target


def _free(fd: int) -> int:
    found = os.fstatvfs(fd)
    return found.f_bavail * found.f_frsize


def write_all(fd: int, buffers: Sequence[Octets], position: int, flags: int = 0) -> None:
    """Write buffers one after the other; with one call, where there are not very many."""
    for start in range(0, len(buffers), _MAX_BUFFERS):
        some = buffers[start : start + _MAX_BUFFERS]
        wanted = sum(map(len, some))
        done = os.pwritev(fd, some, position, flags)
        if done < wanted:
            rest = memoryview(b"".join(some))
            while done < wanted:
                done += os.pwrite(fd, rest[done:], position + done)
        position += wanted
