"""
SHELL: a log: numbered entries in segment files, appended at the end, dropped at the beginning.

`append` stages in memory, `write` hands everything staged to the system in one call, `sync` makes
what was written durable. The committer decides when each of the three runs. Nothing that was
written ever changes.

An entry is staged, then written, then synced, then, much later, trimmed. Entries change their state
in the order of their numbers. Three numbers say how far each change has come.

Measured against RocksDB, LMDB and SQLite: docs/decisions/segment-log.md.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from txbroker.model.errors import CallerError, StoreError
from txbroker.model.invariant import holds, ordered
from txbroker.storage import newest_segment
from txbroker.storage.files import SHORT, DiskFull, LogTail, OpenFile, make_folder
from txbroker.storage.log_reader import LogReader
from txbroker.storage.recovery import OnTrimmed, recover
from txbroker.storage.segment import (
    BATCH_HEAD,
    SEGMENT_HEAD,
    Batch,
    CorruptLog,
    Segment,
    pack_batch,
    pack_segment,
    segment_path,
)

__all__ = ["Batch", "CorruptLog", "SegmentLog"]

_MAX_BATCHES = 65_536  # per segment: longer segments make the scan at start slow
_MIN_SEGMENT = 64 * 1024
_LARGE = 1024 * 1024  # a write call writes a batch up to this size whole, whatever `most` says


class _Staged(NamedTuple):
    first: int
    entries: int
    time: int
    body: bytes


class SegmentLog(LogReader):
    """
    A log in one folder. Entries are numbered from 1 on; a number is never used twice.

    `first` is the number of the first entry kept, `next` the number that the next entry gets.
    `synced` is the last entry known to be durable, `written` the last entry that can be read.
    `staged` are the bytes that are not written yet, of so many `staged_entries`.

    Invariant: synced <= written < next, and first <= written + 1.

    All methods are for the loop's thread but `sync` and `note_newest`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        segment_bytes: int = 64 * 1024 * 1024,
        on_trimmed: OnTrimmed,
        data: Path | None = None,
    ) -> None:
        """
        Open or create the log; raises `StoreError`, or `CorruptLog`.

        `data` is the folder that error messages name for `txbroker repair`; the default is
        `folder`. On a small file system segments are smaller than `segment_bytes`.
        """
        data = folder if data is None else data
        try:
            make_folder(folder)
            stat = os.statvfs(folder)
            found = recover(folder, data, on_trimmed)
            capacity = stat.f_frsize * stat.f_blocks
            self._segment_bytes = max(_MIN_SEGMENT, min(segment_bytes, capacity // 16))
            # All logs of a node must stay below a sixteenth of the disk; few logs are large.
            self._step = capacity // 128
            super().__init__(folder, data, found.segments, found.next - 1)
            self._tail = self._open_tail()
        except OSError as error:
            raise StoreError(f"{folder}: cannot be opened: {error.strerror}") from error
        self._batches = 0  # of the last segment, since the log was opened
        self.next = found.next
        self.synced = found.next - 1
        self._time = found.time
        self.staged = 0
        self.staged_entries = 0
        self.is_discarded = False
        self._staged: list[_Staged] = []
        self._snapshot = threading.Lock()  # Holding it during disk I/O would block the loop.
        self._syncing = threading.Lock()
        self._noting = threading.Lock()
        self._dirty: dict[OpenFile, None] = {}
        self._dirty_folder: OpenFile | None = None
        # The newest segment, and the newest one that is durable: a start has synced what it found.
        self._newest = self._safe = self._segments[-1].first if self._segments else 0
        self._told = 0  # the newest segment written to `newest_segment` since then
        self._failure: StoreError | None = None
        # The `synced` field of the batches of a failed write. A retry must repeat every byte. A
        # loss of power may leave sectors of both writes, and a mix reads as damage.
        self._tried: int | None = None
        self._begun = 0  # bytes of the first staged body that are written; its head is not

    @property
    def is_rotated(self) -> bool:
        """True if the log has finished a segment that is not synced yet."""
        return len(self._dirty) > 1

    @property
    def time(self) -> int:
        """Time of the last batch in UTC microseconds; 0 in an empty log."""
        return self._time

    def check(self) -> None:
        """State the order of the log's entries."""
        synced = self.synced  # first: a sync in its thread raises it, up to `written`
        ordered(self, 3, "synced <= written < next", synced, self.written, self.next - 1)
        ordered(self, 3, "first <= written + 1", self.first, self.written + 1)
        ends = [end for one in self._staged for end in (one.first, one.first + one.entries - 1)]
        ordered(self, 3, "written < staged < next", self.written, *ends, self.next - 1)
        count = sum(one.entries for one in self._staged)
        holds(self, 3, "staged entries are counted", count == self.staged_entries, count)

    # -- writing

    def append(self, body: bytes, count: int = 1, *, time: int, first: int | None = None) -> int:
        """
        Stage a batch of `count` entries; return the number of its first entry.

        `time` is in UTC microseconds. A `first` above `next` leaves a permanent hole. Raises
        `CallerError` for a `first` below `next`.
        """
        if first is None:
            first = self.next
        elif first < self.next:
            raise CallerError(f"Entry {first} of {self.folder} was given already.")
        self._staged.append(_Staged(first, count, time, body))
        self.staged += BATCH_HEAD + len(body)
        self.staged_entries += count
        self.next = first + count
        return first

    def write(self, *, is_unread: bool = False, most: int = sys.maxsize) -> bool:
        """
        Write about `most` bytes of the staged batches. Return True if nothing stays staged.

        `is_unread`: True if no reader is about to read these bytes. Raises `DiskFull`; the
        unwritten batches then stay staged unchanged. Any other `StoreError` is final.
        """
        with self._writing():
            while self._staged and most > 0:
                most -= self._write_some(is_unread, most)
        return not self._staged

    def drop_staged(self) -> int:
        """
        Drop the staged batches; return the number of dropped entries. Their numbers stay a hole.

        For a log that may miss entries rather than delay the other logs. Raises the errors of
        `write`; then everything stays staged.
        """
        if self._tail is not None:
            # A failed write may leave a whole batch behind a shorter one, which reads as damage.
            with self._writing():
                self._tail.truncate(self._segments[-1].end)
        count = sum(staged.entries for staged in self._staged)
        self._staged.clear()
        self.staged = self.staged_entries = self._begun = 0
        self._tried = None
        return count

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn an error of the system into `DiskFull`, or into a final failure of the log."""
        try:
            yield
        except OSError as error:
            if error.errno in SHORT:
                raise DiskFull(f"{self.folder}: {error.strerror}") from error
            self._failure = StoreError(f"{self.folder}: cannot be written: {error.strerror}")
            raise self._failure from error

    def _write_some(self, is_unread: bool, most: int) -> int:
        """Write staged batches into one segment; return the number of bytes written."""
        if not self._begun and (self._tail is None or not self._has_room(self._segments[-1])):
            self._create_segment()
            return 0
        assert self._tail is not None
        segment = self._segments[-1]
        position = segment.end
        if self._tried is None:
            self._tried = self.synced
        if self._begun or len(self._staged[0].body) > max(most, _LARGE):
            return self._write_more(self._tail, segment, is_unread, most)
        buffers: list[bytes] = []
        notes: list[tuple[int, int]] = []
        for first, entries, time, body in self._staged:
            end = position + BATCH_HEAD + len(body)
            if notes and end > min(self._segment_bytes, segment.end + most):
                break
            head = pack_batch(segment, position, first, entries, time, self._tried, body)
            buffers += (head, body)
            notes.append((first, position))
            position = end
        self._tail.write(buffers, segment.end, self._segment_bytes, is_unread=is_unread)
        self._tried = None
        size = position - segment.end
        self._count(self._tail, segment, notes, position)
        return size

    def _write_more(self, tail: LogTail, segment: Segment, is_unread: bool, most: int) -> int:
        """
        Write more of the body of a large batch; return the number of bytes written.

        The head follows last. Until then a crash leaves no valid batch here.
        """
        first, entries, time, body = self._staged[0]
        piece = memoryview(body)[self._begun : self._begun + most]
        at = segment.end + BATCH_HEAD + self._begun
        tail.write([piece], at, self._segment_bytes, is_unread=is_unread)
        self._begun += len(piece)
        if self._begun == len(body):
            assert self._tried is not None
            head = pack_batch(segment, segment.end, first, entries, time, self._tried, body)
            tail.write([head], segment.end, self._segment_bytes)
            self._tried, self._begun = None, 0
            self._count(tail, segment, [(first, segment.end)], segment.end + len(head) + len(body))
        return len(piece)

    def _count(
        self, tail: LogTail, segment: Segment, notes: list[tuple[int, int]], position: int
    ) -> None:
        """Count the first staged batches, those in `notes`, as written up to `position`."""
        for first, place in notes:
            segment.index_batch(first, place)
        if segment.time is None:
            segment.time = self._staged[0].time
        self._batches += len(notes)
        self.staged -= position - segment.end
        self.size += position - segment.end
        segment.end = position
        last = self._staged[len(notes) - 1]
        self._time = last.time
        self.staged_entries -= sum(staged.entries for staged in self._staged[: len(notes)])
        del self._staged[: len(notes)]
        with self._snapshot:
            self._dirty[tail.file] = None
            self.written = last.first + last.entries - 1

    def _has_room(self, segment: Segment) -> bool:
        """True if the next batch fits into `segment`; an empty segment fits any batch."""
        if segment.end == SEGMENT_HEAD:
            return True
        wanted = segment.end + BATCH_HEAD + len(self._staged[0].body)
        return wanted <= self._segment_bytes and self._batches < _MAX_BATCHES

    def _create_segment(self) -> None:
        """Create a segment for the staged batches, and truncate the previous segment."""
        before = self._segments[-1] if self._segments else None
        first = self._staged[0].first
        segment = Segment(
            path=segment_path(self.folder, first),
            first=first,
            previous=before.first if before else 0,
            follows=self.written + 1 if before else first,
            is_indexed=True,
        )
        if before is not None and self._tail is not None:
            self._tail.truncate(before.end)  # The new segment may need exactly this room.
        folder = OpenFile(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        tail = LogTail(segment.path, is_new=True, step=self._step)
        try:
            tail.write([pack_segment(segment)], 0, self._segment_bytes)
        except OSError:
            segment.path.unlink()
            raise
        with self._snapshot:
            self._dirty[tail.file] = None
            self._dirty_folder = folder
            self._newest = first
        self._segments.append(segment)
        self._tail, self._batches = tail, 0
        self.size += SEGMENT_HEAD

    def _open_tail(self) -> LogTail | None:
        if not self._segments:
            return None
        return LogTail(self._segments[-1].path, is_new=False, step=self._step)

    # -- syncing

    def sync(self) -> None:
        """
        Make durable all that was written before the call. Runs in a thread.

        Raises `StoreError`, and the failure is permanent: the state of the disk is unknown. A
        second fdatasync would succeed without having saved anything.
        """
        with self._syncing:
            if self._failure is not None:
                raise self._failure
            with self._snapshot:
                dirty, self._dirty = list(self._dirty), {}
                folder, self._dirty_folder = self._dirty_folder, None
                through, latest = self.written, self._newest
            try:
                for file in dirty:
                    file.sync()
                if folder is not None:
                    os.fsync(folder.fd)
            except OSError as error:
                self._failure = StoreError(
                    f"{self.folder}: cannot be synced: {error.strerror}; what was not acknowledged"
                    " may be lost; check the disk, then start again"
                )
                raise self._failure from error
            self.synced = max(self.synced, through)
            if dirty:
                self._safe = latest

    def note_newest(self) -> None:
        """
        Store the number of the newest synced segment, if it is new. Runs in a thread.

        For the time after the callers that awaited the sync have gone on: see `newest_segment`.
        """
        with self._noting:
            if self._safe > self._told and not self.is_discarded:
                self._told = self._safe
                newest_segment.write(self.folder, self._told)

    # -- the ends

    def trim(self, through: int) -> int:
        """
        Delete whole segments of entries up to `through`; return the bytes freed.

        The last segment always stays, as does one before a segment that no sync has covered: a loss
        of power may take the latter, and with it all numbers that were given. Raises `StoreError`.
        """
        freed, latest = 0, min(through + 1, self._safe)
        while len(self._segments) > 1 and self._segments[1].first <= latest:
            segment = self._segments[0]
            try:
                segment.path.unlink(missing_ok=True)
            except OSError as error:
                raise StoreError(f"{segment.path}: cannot be deleted: {error.strerror}") from error
            del self._segments[0]
            freed += segment.end
        self.size -= freed
        return freed

    def discard(self) -> None:
        """Close a log whose folder is about to be deleted: readers see every entry as trimmed."""
        self.close()
        with self._noting:  # The folder may be made anew, and the line is not for the new log.
            self.is_discarded = True
        self._segments.clear()
        self.size = 0

    def close(self) -> None:
        """
        Return preallocated space to the disk. Staged batches are lost: write and sync before.

        If all entries are synced, a last empty batch records this. Anything missing later is
        corruption.
        """
        tail, self._tail = self._tail, None
        if tail is None or self._failure is not None:
            return
        segment, end = self._segments[-1], self._segments[-1].end
        try:
            if self.synced == self.written and not self._staged:
                said = pack_batch(segment, end, self.next, 0, self._time, self.synced, b"")
                tail.write([said], end, self._segment_bytes)
                end += len(said)
            tail.truncate(end)
        except OSError:
            pass  # A full or broken disk loses nothing here that was durable before.
