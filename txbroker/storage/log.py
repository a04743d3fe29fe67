"""
SHELL: a log: numbered entries in segment files, appended at the end, dropped at the beginning.

`append` stages in memory, `write` hands everything staged to the system in one call, `sync` makes
what was written durable. Who decides when is the committer. Nothing that was written ever changes.

Measured against RocksDB, LMDB and SQLite: docs/decisions/segment-log.md.
"""

from __future__ import annotations

import os
import sys
import threading
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from txbroker.model.errors import CallerError, StoreError
from txbroker.storage import newest_segment
from txbroker.storage.files import SHORT, DiskFull, LogTail, OpenFile, make_folder
from txbroker.storage.recovery import OnTrimmed, recover
from txbroker.storage.segment import (
    BATCH_HEAD,
    SEGMENT_HEAD,
    Batch,
    CorruptLog,
    Segment,
    Whole,
    first_not_older,
    first_time,
    pack_batch,
    pack_segment,
    seek,
    segment_path,
    walk,
)

__all__ = ["Batch", "CorruptLog", "SegmentLog"]

_MAX_BATCHES = 65_536  # in one segment, so that it is scanned in a moment
_MIN_SEGMENT = 64 * 1024
_LARGE = 1024 * 1024  # a batch up to this is written as a whole, whatever is asked for
_VERIFY_STEP = 256 * 1024


class _Staged(NamedTuple):
    first: int
    entries: int
    time: int
    body: bytes


class SegmentLog:
    """
    One log in one folder. Entries are numbered from 1 on; a number is never used twice.

    `first` is the number of the first entry kept, `next` the one that the next entry gets, `synced`
    the last one known to be durable, `written` the last one that can be read, `staged` the bytes
    that are not written yet, of so many `staged_entries`, `size` the bytes in use on disk (without
    preallocated space).

    All methods are for the loop's thread but `sync`.
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
        Open or create it; raises `StoreError`, or `CorruptLog`.

        `data` is the folder that messages tell the operator to repair, `folder` if not given.
        A segment is smaller than `segment_bytes` on a small file system.
        """
        self.folder = folder
        self._data = folder if data is None else data
        try:
            make_folder(folder)
            stat = os.statvfs(folder)
            found = recover(folder, self._data, on_trimmed)
            capacity = stat.f_frsize * stat.f_blocks
            self._segment_bytes = max(_MIN_SEGMENT, min(segment_bytes, capacity // 16))
            # All logs of a node together stay below a sixteenth: few of them are large.
            self._step = capacity // 128
            self._segments = found.segments
            self._tail = self._open_tail()
        except OSError as error:
            raise StoreError(f"{folder}: cannot be opened: {error.strerror}") from error
        self._batches = 0  # in the last segment since it was opened
        self.size = sum(segment.end for segment in self._segments)
        self.next = found.next
        self.written = found.next - 1
        self.synced = found.next - 1
        self._time = found.time
        self.staged = 0
        self.staged_entries = 0
        self.is_discarded = False
        self._staged: list[_Staged] = []
        self._snapshot = threading.Lock()  # never held while the disk is waited for
        self._syncing = threading.Lock()
        self._dirty: dict[OpenFile, None] = {}
        self._dirty_folder: OpenFile | None = None
        self._newest = self._segments[-1].first if self._segments else 0
        self._told = 0  # as newest, since the log was opened
        self._failure: StoreError | None = None
        # What the batches of a write that failed say is synced. They are written again byte for
        # byte: a loss of power may leave some sectors of either, and a mix reads as damage.
        self._tried: int | None = None
        self._begun = 0  # bytes of the first staged body that are written, without its head

    @property
    def first(self) -> int:
        """Number of the first entry kept; that of the next one where there is none."""
        return self._segments[0].first if self._segments else self.written + 1

    @property
    def kept_from(self) -> int:
        """
        The number from which on nothing was trimmed: 1, though there may be a hole, or `first`.
        """
        return self.first if self._segments and self._segments[0].previous else 1

    @property
    def is_rotated(self) -> bool:
        """Whether a segment was finished that is not synced yet."""
        return len(self._dirty) > 1

    @property
    def extent(self) -> tuple[Path, int] | None:
        """The file that is appended to, and how many bytes of it are written; None: none yet."""
        return (self._segments[-1].path, self._segments[-1].end) if self._segments else None

    @property
    def time(self) -> int:
        """The time of the last batch, UTC microseconds; 0 where there is none."""
        return self._time

    # -- writing

    def append(self, body: bytes, count: int = 1, *, time: int, first: int | None = None) -> int:
        """
        Stage a batch of `count` entries; returns the number of its first entry.

        `time` in UTC microseconds. A `first` above `next` leaves a hole, for ever.
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
        Write what is staged, about `most` bytes of it; True if that is all. `is_unread`: nobody is
        about to read it.

        Raises `DiskFull`, and then what is not written stays staged as it was; another `StoreError`
        is final.
        """
        with self._writing():
            while self._staged and most > 0:
                most -= self._write_some(is_unread, most)
        return not self._staged

    def leave_out(self) -> int:
        """
        Forget what is staged; its numbers stay a hole. How many entries that are.

        For a log whose entries may be missing rather than hold up the others. Raises what `write`
        does, and then all is still staged.
        """
        if self._tail is not None:
            # A whole batch of a write that failed halfway, behind a shorter one, reads as damage.
            with self._writing():
                self._tail.truncate(self._segments[-1].end)
        count = sum(staged.entries for staged in self._staged)
        self._staged.clear()
        self.staged = self.staged_entries = self._begun = 0
        self._tried = None
        return count

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """What the system says of the disk is `DiskFull`, or final."""
        try:
            yield
        except OSError as error:
            if error.errno in SHORT:
                raise DiskFull(f"{self.folder}: {error.strerror}") from error
            self._failure = StoreError(f"{self.folder}: cannot be written: {error.strerror}")
            raise self._failure from error

    def _write_some(self, is_unread: bool, most: int) -> int:
        """Write what is staged as far as it goes into one segment; how many bytes."""
        if not self._begun and (self._tail is None or not self._has_room(self._segments[-1])):
            self._begin_segment()
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
        Write more of the body of a batch that is too large to be written at once; how many bytes.

        Its head comes last: until then there is nothing here, whatever happens.
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
        """The first batches staged, those of `notes`, are written up to `position`."""
        for first, place in notes:
            segment.note(first, place)
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
        """Whether the next batch goes into this segment; any batch goes into an empty one."""
        if segment.end == SEGMENT_HEAD:
            return True
        wanted = segment.end + BATCH_HEAD + len(self._staged[0].body)
        return wanted <= self._segment_bytes and self._batches < _MAX_BATCHES

    def _begin_segment(self) -> None:
        """Make a new segment for what is staged; the one before gives back what it has too much."""
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
            self._tail.truncate(before.end)  # it may be just the room that the new one wants
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
        Make durable what was written before the call. Runs in a thread.

        Raises `StoreError`; then nobody knows what is on the disk, and it stays so: a second
        fdatasync would succeed without having saved anything.
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
            if dirty and latest > self._told:
                self._told = latest
                newest_segment.write(self.folder, latest)

    # -- reading

    def batches(self, after: int = 0) -> Iterator[Batch]:
        """
        The written batches that hold entries above `after`, in order; raises `CorruptLog`.

        What is written or trimmed meanwhile may be left out or come.
        """
        segment = self.segment_at(after + 1)
        while segment is not None:
            for head, body in self._walk(segment, after + 1):
                count = head.entries
                if count and head.first + count > after + 1:
                    yield Batch(first=head.first, count=count, time=head.time, body=body)
            segment = self.segment_after(segment)

    def _walk(self, segment: Segment, entry: int) -> Iterator[Whole]:
        """
        The batches of a segment from not far before that of `entry` on, also those written
        meanwhile; raises `CorruptLog`.
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

    def corrupt(self, segment: Segment, following: int) -> CorruptLog:
        """What is wrong where no valid batch follows in a segment, the next entry being this."""
        return CorruptLog(segment.path, following - 1, self._data)

    def _place(self, segment: Segment) -> int | None:
        """Index of a segment; None where it was trimmed."""
        place = bisect_right(self._segments, segment.first, key=lambda one: one.first) - 1
        return place if place >= 0 and self._segments[place] is segment else None

    def segment_at(self, entry: int) -> Segment | None:
        """The one that has the entry or, where it is kept no longer, the first."""
        place = bisect_right(self._segments, entry, key=lambda one: one.first) - 1
        return self._segments[max(0, place)] if self._segments else None

    def segment_after(self, segment: Segment) -> Segment | None:
        """The next one that is kept."""
        place = bisect_right(self._segments, segment.first, key=lambda one: one.first)
        return self._segments[place] if place < len(self._segments) else None

    def offset_at(self, time: int) -> int:
        """
        The first written entry that is not older than `time`, by the time of its batch; what comes
        after the last one where all are older. Exact as long as the clock was never set back.
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
        """How many bytes there are for what is above an entry, at most."""
        place = bisect_right(self._segments, entry + 1, key=lambda one: one.first) - 1
        return sum(segment.end for segment in self._segments[max(place, 0) :])

    def excess(self, limit: int) -> int:
        """
        The last entry of the oldest segments without which there are at most `limit` bytes; 0 when
        nothing has to go. The present segment always stays.
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
        """Check the segments before the present one in small steps; raises `CorruptLog`."""
        for segment in self._segments[:-1]:
            if self._place(segment) is None:
                continue  # trimmed meanwhile
            step = 0
            for head, _ in self._walk(segment, segment.first):
                if head.end - step >= _VERIFY_STEP:
                    step = head.end
                    yield
            yield

    # -- the ends

    def trim(self, through: int) -> int:
        """Delete whole segments of entries up to `through`, never the last; returns bytes freed."""
        freed = 0
        while len(self._segments) > 1 and self._segments[1].first <= through + 1:
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
        """
        Close the log of a folder that is about to be deleted: readers take all of it for trimmed.
        """
        self.close()
        self.is_discarded = True
        self._segments.clear()
        self.size = 0

    def close(self) -> None:
        """
        Give back preallocated space. What is staged is lost: write and sync before.

        Where all is synced, a last empty batch says so: whatever is missing later is corruption.
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
            pass  # no room for it, or a broken disk: nothing is lost that was not lost before


@contextmanager
def reading(segment: Segment) -> Iterator[None]:
    """What the system says of its file is a `StoreError`."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{segment.path}: cannot be read: {error.strerror}") from error
