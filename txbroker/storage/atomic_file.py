"""
SHELL: replaces files as a whole, so that a crash leaves the old file or the new one.

A replacement writes a file beside the old one, calls fdatasync, renames, and calls fsync on the
folder. The folder's descriptor is open before the write begins. `to_frames` and `from_frames`
define the form of files above a few kilobytes: a magic, then protobuf messages. A length and a
CRC-32 precede each message, and an empty message ends the file.
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
    """The rename succeeded, but its sync failed: a restart may find either the old or new file."""


def replace(path: Path, data: Iterable[bytes]) -> None:
    """
    Replace the content of the file with `data`, durably.

    Raises `StoreError`, or `DiskFull` if the disk has no room; the old file then stays. Raises
    `FileInDoubt` if either file may be found after a restart.
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
            fresh.unlink(missing_ok=True)  # A partial file would occupy room on a full disk.
        kind = DiskFull if error.errno in SHORT else StoreError
        raise kind(f"{path}: cannot be written: {error.strerror}") from error
    try:
        os.fsync(folder.fd)
    except OSError as error:
        raise FileInDoubt(f"{path}: not known whether it was written: {error.strerror}") from error


def remove(path: Path) -> None:
    """Remove the file durably; raises `StoreError`."""
    try:
        path.unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise StoreError(f"{path}: cannot be removed: {error.strerror}") from error


def to_frames(messages: Iterable[bytes]) -> Iterator[bytes]:
    """Return the content of a file that holds these messages."""
    yield MAGIC
    for message in messages:
        yield _HEAD.pack(len(message), zlib.crc32(message))
        yield message
    yield _HEAD.pack(0, 0)


def from_frames(path: Path) -> list[bytes] | None:
    """Return the messages of a file, or None if the file is missing. Raises `StoreError`."""
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
