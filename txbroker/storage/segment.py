"""
SHELL: defines the format of a log's segment file, reads it, and finds positions in it.

A segment is `<first entry, 20 digits>.log`: a header, then batches, then perhaps preallocated
zeros. All numbers are little-endian.

    header   magic, format, crc32 of the rest, first entry, first entry of the segment before,
             number that followed the last entry of the segment before
    batch    magic, crc32 of the rest of this head, crc32 of the body, length of the body, first
             entry, count, time (UTC microseconds), last entry known to be synced when this batch
             was written, body

The head's checksum starts from a number derived from the batch's position. So the reader never
mistakes published bytes of a log, or old bytes at another position, for a batch.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple
from zlib import crc32

import attrs

from txbroker.model.errors import StoreError
from txbroker.storage.files import OpenFile

FORMAT = 2
"""Version of the files and of the records in them; another version is refused."""

BLOCK = 320 * 1024
"""Bytes read at a time."""

INDEX_STEP = 16 * 1024
"""Approximate distance in bytes between two positions in the index of a segment."""

_WINDOW = 64 * 1024  # bytes per step of a search

_SEGMENT = Struct("<8sII")
_SEGMENT_REST = Struct("<QQQ")
_SEGMENT_MAGIC = b"TXBROKER"
SEGMENT_HEAD = _SEGMENT.size + _SEGMENT_REST.size

_BATCH = Struct("<4sIIIQIqQ")
_BATCH_REST = Struct("<IIQIqQ")
_MAGIC = b"\xabTxB"
_PREFIX = 8  # magic and checksum of the head
BATCH_HEAD = _BATCH.size


class CorruptLog(StoreError):
    """A log fails its check at an entry that was, or may have been, durable."""

    def __init__(self, file: Path, last_good: int, data: Path, *, problem: str = "") -> None:
        """`data` is the folder to name for `txbroker repair`."""
        self.file = file
        self.last_good = last_good
        what = problem or f"checksum of the entry after {last_good} does not match"
        super().__init__(
            f"{file}: {what} (last good entry {last_good}); restore the folder from a backup, or"
            f" cut the log off there with: txbroker repair {data}"
        )


@attrs.frozen(kw_only=True)
class Batch:
    """`count` entries that were appended at once, from `first` on; `time` in UTC microseconds."""

    first: int
    count: int
    time: int
    body: bytes

    @property
    def last(self) -> int:
        """Number of the batch's last entry."""
        return self.first + self.count - 1


class BatchHead(NamedTuple):
    """
    The head of a batch of `entries` entries at `position` of a segment.

    `length` is the size of the body in bytes, and `time` is in UTC microseconds. `synced` is the
    last entry known to be synced at the write of the batch.
    """

    position: int
    length: int
    first: int
    entries: int
    time: int
    synced: int
    body_check: int

    @property
    def end(self) -> int:
        """Position of the next batch."""
        return self.position + BATCH_HEAD + self.length


@attrs.define(eq=False, kw_only=True)
class Segment:
    """
    A segment file, as far as it was read.

    The module docstring defines `previous` and `follows`. `end` is the position behind the last
    batch; before a scan, `end` is the size of the file. `index` maps entries to positions of
    batches. `is_indexed`: True if two neighbours in `index` have little more than one batch between
    them.
    """

    path: Path
    first: int
    previous: int
    follows: int
    end: int = SEGMENT_HEAD
    index: tuple[array[int], array[int]] = attrs.field(init=False)
    time: int | None = None
    is_indexed: bool = False

    def __attrs_post_init__(self) -> None:
        self.index = (array("Q", [self.first]), array("Q", [SEGMENT_HEAD]))

    def index_batch(self, entry: int, position: int) -> None:
        """Index the batch at `position`, which begins with `entry`, if the last one is far."""
        entries, positions = self.index
        if position >= positions[-1] + INDEX_STEP:
            entries.append(entry)
            positions.append(position)

    def open(self) -> OpenFile:
        """Open the file for reading."""
        return OpenFile(self.path, os.O_RDONLY)


def segment_path(folder: Path, first: int) -> Path:
    """Return the path of the segment that begins with entry `first`."""
    return folder / f"{first:020}.log"


def pack_segment(segment: Segment) -> bytes:
    """Encode the header of `segment`."""
    rest = _SEGMENT_REST.pack(segment.first, segment.previous, segment.follows)
    return _SEGMENT.pack(_SEGMENT_MAGIC, FORMAT, crc32(rest, FORMAT)) + rest


def read_segment(path: Path, size: int) -> Segment | None:
    """
    Read the header of a file of `size` bytes; return None if the header fails its check.

    Raises `StoreError` if another version, or another file name, was in use at its write.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.pread(fd, SEGMENT_HEAD, 0)
    finally:
        os.close(fd)
    if len(data) < SEGMENT_HEAD:
        return None
    magic, version, check = _SEGMENT.unpack_from(data)
    if magic != _SEGMENT_MAGIC:
        return None
    if version > FORMAT:
        raise StoreError(
            f"{path}: format {version} is newer than this version's {FORMAT}; start the newer"
            " txbroker, or use another `data` folder"
        )
    rest = data[_SEGMENT.size :]
    first, previous, follows = _SEGMENT_REST.unpack(rest)
    if crc32(rest, version) != check:
        return None
    if version < FORMAT:
        raise StoreError(
            f"{path}: format {version} is older than this version's {FORMAT}; start the older"
            " txbroker, or use another `data` folder"
        )
    if path != segment_path(path.parent, first):
        raise StoreError(
            f"{path}: was {first:020}.log when it was written; give it that name again"
        )
    return Segment(path=path, first=first, previous=previous, follows=follows, end=size)


def _seed(first: int, position: int) -> int:
    """Return the start value for the checksum of a batch's head."""
    return (first * 0x9E3779B1 + position) & 0xFFFFFFFF


def pack_batch(
    segment: Segment, position: int, first: int, count: int, time: int, synced: int, body: bytes
) -> bytes:
    """Encode the head of a batch for `position` of `segment`."""
    rest = _BATCH_REST.pack(crc32(body), len(body), first, count, time, synced)
    check = crc32(rest, _seed(segment.first, position))
    return b"%b%b%b" % (_MAGIC, check.to_bytes(4, "little"), rest)


def _head_at(block: bytes, at: int, segment: int, position: int, end: int) -> BatchHead | None:
    """Decode the head at `block[at:]`, at `position` of the segment that begins with `segment`."""
    magic, check, body_check, length, first, count, time, synced = _BATCH.unpack_from(block, at)
    if magic != _MAGIC or position + BATCH_HEAD + length > end:
        return None
    if crc32(block[at + _PREFIX : at + BATCH_HEAD], _seed(segment, position)) != check:
        return None
    return BatchHead(position, length, first, count, time, synced, body_check)


def is_cut_short(file: OpenFile, segment: int, position: int, end: int) -> bool:
    """True if the batch at `position` extends beyond `end`, the end of the file."""
    block = os.pread(file.fd, BATCH_HEAD, position)
    if len(block) < BATCH_HEAD:
        return True
    head = _head_at(block, 0, segment, position, position + (1 << 40))
    return head is not None and head.end > end


Whole = tuple[BatchHead, bytes]
"""A batch with its body."""


def walk(file: OpenFile, segment: int, position: int, end: int) -> Iterator[Whole]:
    """Return valid batches from `position` on, up to `end` or the first invalid position."""
    block, base = b"", position
    while True:
        at = position - base
        if len(block) - at < BATCH_HEAD:
            block = os.pread(file.fd, min(BLOCK, end - position), position)
            base, at = position, 0
            if len(block) < BATCH_HEAD:
                return
        head = _head_at(block, at, segment, position, end)
        if head is None:
            return
        whole = BATCH_HEAD + head.length
        if len(block) - at < whole:
            block = os.pread(file.fd, min(max(BLOCK, whole), end - position), position)
            base, at = position, 0
            if len(block) < whole:
                return
        body = block[at + BATCH_HEAD : at + whole]
        if crc32(body) != head.body_check:
            return
        yield head, body
        position += whole


def find_head(
    file: OpenFile, segment: int, position: int, end: int, limit: int
) -> BatchHead | None:
    """Return the first batch head in `position` to `limit`, or None; bodies are unchecked."""
    base = position
    while base < limit:
        block = os.pread(file.fd, min(_WINDOW, end - base), base)
        if len(block) < BATCH_HEAD:
            return None
        at = block.find(_MAGIC)
        while 0 <= at <= len(block) - BATCH_HEAD and base + at < limit:
            head = _head_at(block, at, segment, base + at, end)
            if head is not None:
                return head
            at = block.find(_MAGIC, at + 1)
        base += len(block) - BATCH_HEAD + 1
    return None


def find_valid(file: OpenFile, segment: int, position: int, end: int) -> Iterator[Whole]:
    """Return all valid batches from `position` on, and skip any bytes between them."""
    while True:
        head = find_head(file, segment, position, end, end)
        if head is None:
            return
        position = head.position + 1
        for found in walk(file, segment, head.position, end):
            yield found
            position = found[0].end


def _bisect(
    file: OpenFile, segment: Segment, low: int, high: int, is_before: Callable[[BatchHead], bool]
) -> int:
    """
    Return a batch's position between `low` and `high`, near the last batch that `is_before`.

    `low` and `high` are positions of batches. The search adds the batches that it reads to the
    index.
    """
    entries, positions = segment.index
    while high - low > 2 * INDEX_STEP:
        middle = (low + high) // 2
        head = find_head(file, segment.first, middle, segment.end, high)
        if head is None:
            high = middle
            continue
        place = bisect_right(positions, head.position)
        if positions[place - 1] != head.position:
            positions.insert(place, head.position)
            entries.insert(place, head.first)
        if is_before(head):
            low = head.position
        else:
            high = middle
    return low


def seek(file: OpenFile, segment: Segment, entry: int) -> tuple[int, int]:
    """Return first entry and position of a batch at, or a little before, that of `entry`."""
    entries, positions = segment.index
    place = max(1, bisect_right(entries, entry))
    if not segment.is_indexed:
        high = positions[place] if place < len(positions) else segment.end
        low = positions[place - 1]
        position = _bisect(file, segment, low, high, lambda head: head.first <= entry)
        place = bisect_right(positions, position)
    return entries[place - 1], positions[place - 1]


def first_not_older(file: OpenFile, segment: Segment, time: int) -> int | None:
    """Return the first entry whose batch is not older than `time`; None if all are older."""
    low = _bisect(file, segment, SEGMENT_HEAD, segment.end, lambda head: head.time < time)
    for head, _ in walk(file, segment.first, low, segment.end):
        if head.time >= time and head.entries:
            return head.first
    return None


def first_time(segment: Segment) -> int | None:
    """Return the time of the segment's first batch, or None; the segment caches it."""
    if segment.time is None:
        head = find_head(segment.open(), segment.first, SEGMENT_HEAD, segment.end, SEGMENT_HEAD + 1)
        segment.time = None if head is None else head.time
    return segment.time
