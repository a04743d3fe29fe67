"""
SHELL: stores the number of the newest segment of a log, as one line beside the segments.

A segment names its predecessor, but no segment names its successor. Without this line a log whose
last segment is missing reads as a shorter, whole log. The log writes the line after a sync of the
segment, unsynced. So a crash may leave an older line, or none.

The line only detects a loss, and no acknowledgement rests on it. So it is written after the callers
that awaited the sync have gone on. Its rename takes up to 7 ms on a busy disk, and each of them
waited for that.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from zlib import crc32

from txbroker.runtime.descriptors import open_kept

NAME = "newest"
_FIRST = 20  # digits


def read(folder: Path) -> int:
    """
    Return the first entry of the newest segment that was durable; 0 without a valid line.

    Raises `OSError`.
    """
    try:
        data = (folder / NAME).read_bytes()
    except FileNotFoundError:
        return 0
    text = data[:_FIRST]
    if data != _line(text) or not text.isdigit():
        return 0
    return int(text)


def write(folder: Path, first: int) -> None:
    """
    Replace the line, unsynced. A missing folder and a full or broken disk leave the old line.

    The file is replaced as a whole, so a backup that has it open reads a consistent line.
    """
    fresh = folder / f"{NAME}.new"
    with contextlib.suppress(OSError):
        fd = open_kept(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(fd, _line(b"%020d" % first))
        finally:
            os.close(fd)
        fresh.replace(folder / NAME)


def _line(text: bytes) -> bytes:
    return b"%b %08x\n" % (text, crc32(text))
