"""
SHELL: files that are replaced as a whole, so that a crash leaves the old or the new one.

Write beside it, fdatasync, rename, fsync of the folder, which is open by then. `Frames` is the form
of those that hold more than a few kilobytes: a magic, then protobuf messages, each behind its
length and CRC-32, and an empty one at the end.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from txbroker.model.errors import StoreError
from txbroker.runtime.descriptors import open_kept
from txbroker.storage.files import SHORT, DiskFull, OpenFile, sync_folder

MAGIC = b"txbroker"
_HEAD = struct.Struct(">II")


class FileInDoubt(StoreError):
    """The new file has its name, and a start may find the old one all the same."""


def replace(path: Path, data: Iterable[bytes]) -> None:
    """
    Make the file hold these bytes, durably.

    Raises `StoreError`, `DiskFull` where there is no room; then the old file holds, unless it is
    `FileInDoubt`.
    """
    fresh = path.with_suffix(".new")
    try:
        folder = OpenFile(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        with open(fresh, "wb", opener=open_kept) as file:
            for part in data:
                file.write(part)
            file.flush()
            os.fdatasync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)  # A part of it would keep room from others.
        kind = DiskFull if error.errno in SHORT else StoreError
        raise kind(f"{path}: cannot be written: {error.strerror}") from error
    try:
        os.fsync(folder.fd)
    except OSError as error:
        raise FileInDoubt(f"{path}: not known whether it was written: {error.strerror}") from error


def remove(path: Path) -> None:
    """Make the file be gone; raises `StoreError`."""
    try:
        path.unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise StoreError(f"{path}: cannot be removed: {error.strerror}") from error


def to_frames(messages: Iterable[bytes]) -> Iterator[bytes]:
    """The file that holds these messages."""
    yield MAGIC
    for message in messages:
        yield _HEAD.pack(len(message), zlib.crc32(message))
        yield message
    yield _HEAD.pack(0, 0)


def from_frames(path: Path) -> list[bytes] | None:
    """The messages of a file; None where there is no file. Raises `StoreError`."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    if not data.startswith(MAGIC):
        raise StoreError(f"{path}: not a file of txbroker's; restore it from a backup")
    found: list[bytes] = []
    position = len(MAGIC)
    while position + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, position)
        position += _HEAD.size
        if not length and not checksum:
            return found
        message = data[position : position + length]
        if zlib.crc32(message) != checksum:
            break
        found.append(message)
        position += length
    raise StoreError(f"{path}: damaged at byte {position}; restore it from a backup")
