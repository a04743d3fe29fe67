"""
SHELL: reads a log in pieces: the loop locates a piece, a worker thread reads it.

The loop may append to the log and trim it between two pieces.
"""

from __future__ import annotations

from collections.abc import Iterator

from txbroker.storage.files import OpenFile
from txbroker.storage.log import SegmentLog
from txbroker.storage.log_reader import reading
from txbroker.storage.segment import BATCH_HEAD, Segment, Whole, seek, walk


class EntryTrimmed(Exception):
    """The log has trimmed the next entry of a cursor."""


class LogCursor:
    """
    Reads the batches of `log` from the batch of `entry` on.

    Callers alternate: `poll` on the loop, then `read` in any thread.
    """

    def __init__(self, log: SegmentLog, entry: int) -> None:
        self._log = log
        self._entry = entry
        self._following = 0
        self._segment: Segment | None = None
        self._file: OpenFile
        self._position = 0
        self._end = 0
        self._walk: Iterator[Whole] = iter(())
        self._is_walked = True

    def poll(self) -> bool:
        """
        True if `read` has something to read. The loop's thread calls this before each `read`.

        Raises `EntryTrimmed`, `CorruptLog`, `StoreError`.
        """
        if not self._is_walked:
            return True
        if self._segment is None:
            return self._start()
        segment = self._segment
        if self._position == self._end < segment.end:
            self._advance()  # The segment has grown.
            return True
        after = self._log.segment_after(segment)
        if self._log.is_discarded:
            raise EntryTrimmed
        if after is None:
            if self._position < self._end:
                raise self._log.corrupt(segment, self._following)
            return False
        if after.follows != self._following:
            if self._log.first > self._following:
                raise EntryTrimmed
            raise self._log.corrupt(segment, self._following)
        return self._enter(after, after.first)

    def read(self, size: int) -> list[Whole]:
        """
        Return the next batches, of `size` bytes or a little more. Any thread may call this.

        An empty list means the end of a segment. Raises `StoreError`.
        """
        assert self._segment is not None
        found: list[Whole] = []
        with reading(self._segment):
            for whole in self._walk:
                head = whole[0]
                self._position = head.end
                if not head.entries:
                    continue
                self._following = head.first + head.entries
                if self._following > self._entry:
                    found.append(whole)
                    size -= BATCH_HEAD + head.length
                    if size <= 0:
                        return found
        self._is_walked = True
        return found

    # internal

    def _start(self) -> bool:
        if self._entry < self._log.first_kept:
            raise EntryTrimmed
        entry = max(self._entry, self._log.first)
        segment = self._log.segment_at(entry)
        return segment is not None and self._enter(segment, entry)

    def _enter(self, segment: Segment, entry: int) -> bool:
        with reading(segment):
            self._segment, self._file = segment, segment.open()
            self._following, self._position = seek(self._file, segment, entry)
        self._advance()
        return True

    def _advance(self) -> None:
        assert self._segment is not None
        self._end = self._segment.end
        self._walk = walk(self._file, self._segment.first, self._position, self._end)
        self._is_walked = False
