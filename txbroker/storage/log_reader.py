"""
SHELL: reads a log: its segments in order, found by entry or by time, walked and verified.

`SegmentLog` adds how it is written. A segment may grow or be trimmed while a reader walks it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from txbroker.model.errors import StoreError
from txbroker.storage.segment import (
    Batch,
    CorruptLog,
    Segment,
    Whole,
    first_not_older,
    first_time,
    seek,
    walk,
)

_VERIFY_STEP = 256 * 1024


class LogReader:
    """
    The written batches of the log in `folder`; errors name `data` for `txbroker repair`.

    `written` is the last entry that can be read, `size` the bytes in use on disk (without
    preallocated space).
    """

    def __init__(self, folder: Path, data: Path, segments: list[Segment], written: int) -> None:
        self.folder = folder
        self._data = data
        self._segments = segments
        self.size = sum(segment.end for segment in segments)
        self.written = written

    @property
    def first(self) -> int:
        """Number of the first retained entry; number of the next entry in an empty log."""
        return self._segments[0].first if self._segments else self.written + 1

    @property
    def first_kept(self) -> int:
        """
        Number from which on the log has trimmed nothing: `first`, or 1 where nothing was trimmed.

        The range may contain a hole.
        """
        return self.first if self._segments and self._segments[0].previous else 1

    @property
    def extent(self) -> tuple[Path, int] | None:
        """File that the log appends to, and its written bytes; None before the first segment."""
        return (self._segments[-1].path, self._segments[-1].end) if self._segments else None

    def batches(self, after: int = 0) -> Iterator[Batch]:
        """
        Return the written batches that hold entries above `after`, in order.

        Batches that are written or trimmed during the iteration may appear or not. Raises
        `CorruptLog`.
        """
        segment = self.segment_at(after + 1)
        while segment is not None:
            for head, body in self._walk(segment, after + 1):
                count = head.entries
                if count and head.first + count > after + 1:
                    yield Batch(first=head.first, count=count, time=head.time, body=body)
            segment = self.segment_after(segment)

    def segment_at(self, entry: int) -> Segment | None:
        """Return the segment that holds `entry`; the first segment where `entry` is trimmed."""
        place = bisect_right(self._segments, entry, key=lambda one: one.first) - 1
        return self._segments[max(0, place)] if self._segments else None

    def segment_after(self, segment: Segment) -> Segment | None:
        """Return the next segment of the log, or None."""
        place = bisect_right(self._segments, segment.first, key=lambda one: one.first)
        return self._segments[place] if place < len(self._segments) else None

    def offset_at(self, time: int) -> int:
        """
        Return the first written entry that is not older than `time`, by the time of its batch.

        Where all entries are older, the result is the number after the last one. The result is
        exact unless the clock was set back.
        """
        low, high = 0, len(self._segments)
        while low < high:
            middle = (low + high) // 2
            with reading(self._segments[middle]):
                begun = first_time(self._segments[middle])
            if begun is None or begun >= time:
                high = middle
            else:
                low = middle + 1
        for segment in self._segments[max(0, low - 1) : low + 1]:
            with reading(segment):
                entry = first_not_older(segment.open(), segment, time)
            if entry is not None:
                return entry
        return self.written + 1

    def size_above(self, entry: int) -> int:
        """Return an upper bound of the bytes that the entries above `entry` occupy."""
        place = bisect_right(self._segments, entry + 1, key=lambda one: one.first) - 1
        return sum(segment.end for segment in self._segments[max(place, 0) :])

    def excess(self, limit: int) -> int:
        """
        Return the last entry to trim so that at most `limit` bytes remain; 0 to trim nothing.

        Only whole segments count, and the present segment always stays.
        """
        over = self.size - limit
        last = 0
        for segment, after in pairwise(self._segments):
            if over <= 0:
                break
            over -= segment.end
            last = after.first - 1
        return last

    def verify(self) -> Iterator[None]:
        """Check all segments but the present one in small steps; raises `CorruptLog`."""
        for segment in self._segments[:-1]:
            if self._place(segment) is None:
                continue  # The log trimmed this segment between two steps.
            step = 0
            for head, _ in self._walk(segment, segment.first):
                if head.end - step >= _VERIFY_STEP:
                    step = head.end
                    yield
            yield

    def corrupt(self, segment: Segment, following: int) -> CorruptLog:
        """Return the error for a segment without a valid batch for entry `following`."""
        return CorruptLog(segment.path, following - 1, self._data)

    def _walk(self, segment: Segment, entry: int) -> Iterator[Whole]:
        """
        Return the batches of a segment from a little before that of `entry` on.

        Batches written during the iteration follow. Raises `CorruptLog`.
        """
        if self._place(segment) is None:
            return
        with reading(segment):
            file = segment.open()
            following, position = seek(file, segment, entry)
            while True:
                end = segment.end
                for whole in walk(file, segment.first, position, end):
                    following = whole[0].first + whole[0].entries
                    position = whole[0].end
                    yield whole
                if position < end or end == segment.end:
                    break
        after = self.segment_after(segment)
        is_whole = position == end if after is None else after.follows == following
        if not is_whole and self._place(segment) is not None:
            raise self.corrupt(segment, following)

    def _place(self, segment: Segment) -> int | None:
        """Return the index of a segment; None for a trimmed segment."""
        place = bisect_right(self._segments, segment.first, key=lambda one: one.first) - 1
        return place if place >= 0 and self._segments[place] is segment else None


@contextmanager
def reading(segment: Segment) -> Iterator[None]:
    """Turn an error of the system into a `StoreError` that names the segment's file."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{segment.path}: cannot be read: {error.strerror}") from error
