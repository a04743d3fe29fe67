"""
SHELL: the journals of a node: one part for each (zone, epoch), a log of published messages.

The appends of a turn are gathered into one batch. A batch has the raw PUBLISH packets, their
publishers and nodes, and the duplicate marks (protocol rules 1 and 3). The mark of an edge's stream
is the highest sequence in the batch. So a record and its mark are written at once, or not at all.
QoS 0 that is not retained, for which nobody waits, is gathered for longer.

A record is gathered, then part of a staged batch, then written and synced as the log says. A record
gets its offset when it is gathered. Offsets of a part follow one another; a start may leave a hole.
A batch with a record that a client waits for is *awaited*: the part tells when it is durable.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote

import attrs

from txbroker.core import StoredRecords
from txbroker.delegation.zone_snapshot import MarkKey, mark_of_will
from txbroker.journal.store import part_folders
from txbroker.journal.store.part_meta import PartMeta, load, save
from txbroker.journal.store.record_format import (
    MOST_RECORDS,
    Piece,
    decode_records,
    encode_records,
    read_marks,
)
from txbroker.journal.zone_journal import Record, Records
from txbroker.model.errors import CallerError, StoreError
from txbroker.model.invariant import holds, ordered
from txbroker.model.log_position import JournalId
from txbroker.model.publish_run import MOST, PublishRun
from txbroker.mqtt.wire.message import Message
from txbroker.storage.committer import Committer
from txbroker.storage.files import make_folder, sync_folder
from txbroker.storage.lived_time import LivedTime, RecordAges
from txbroker.storage.log import SegmentLog
from txbroker.storage.recovery import OnTrimmed

BATCH_BYTES = 256 * 1024
BATCH_RECORDS = MOST_RECORDS
"""
The most bytes and records of a batch, which also ends with its turn. A run is never split, so a
batch may exceed `BATCH_BYTES` by a run less one byte.
"""

LAST = (1 << 63) - 1
"""The upper bound of all offsets."""

_LONGEST_NAME = 200


@attrs.frozen(kw_only=True)
class StoredChunk:
    """
    Records read at once: what was asked for above `after` (of `JournalPart.read`) up to `through`.

    `earliest` is the offset of the first record kept at all.
    """

    records: Records
    through: int
    earliest: int


@attrs.frozen(kw_only=True)
class Marks:
    """Of the batch with the offsets `first` to `last`: the highest sequence of each stream."""

    first: int
    last: int
    marks: tuple[tuple[MarkKey, int], ...]
    has_retained: bool


class JournalPart:
    """
    The journal of one zone at one epoch.

    `predecessor` is the part before it and the last offset of that which counts. `node` is the edge
    of what is appended and names none. `on_durable` hears of the last offset of each awaited batch
    when it is durable; `awaited` is the last one that was staged. `is_due`: the gathered batch is
    awaited.

    Invariant: log.next <= offset of the first gathered record. No mark waits without a record.
    """

    def __init__(
        self,
        key: JournalId,
        log: SegmentLog,
        committer: Committer,
        meta: PartMeta,
        clock: LivedTime | None,
    ) -> None:
        """Create the part; only `Journals` does. `clock` None: its messages do not age."""
        self.key = key
        self.log = log
        self._committer = committer
        self._meta = meta
        self.node = ""
        self._first = 0
        self._gathered: list[Piece] = []
        self._count = 0
        self._marks: dict[MarkKey, int] = {}
        self._bytes = 0
        self.on_durable: Callable[[int], None] | None = None
        self.awaited = 0
        self.is_due = False
        self._time = 0
        self._ages = None if clock is None else RecordAges(clock, log.next - 1)
        committer.add(log)

    @property
    def predecessor(self) -> tuple[JournalId, int] | None:
        """Return the part before this one and that part's last offset."""
        return self._meta.predecessor

    @property
    def next(self) -> int:
        """Return the offset of the next message."""
        if self._gathered:
            return self._first + self._count
        return max(self._first, self.log.next)

    @property
    def gathered(self) -> int:
        """Return the gathered bytes that are not staged in the log yet."""
        return self._bytes

    @property
    def is_synced(self) -> bool:
        """True if all appended records are safe from a crash of the machine."""
        return not self._gathered and self.log.synced == self.log.next - 1

    def append(
        self, message: Message, origin_key: MarkKey | None, sequence: int, *, time: int
    ) -> int:
        """
        Stage a message; return its offset. `time` in UTC microseconds.

        `origin_key` and `sequence` are the origin id of a QoS 1/2 message, None and 0 for others.
        """
        offset = self._gather(message, 1, message.size, time)
        if origin_key is not None:
            self._marks[origin_key] = sequence
        if message.will is not None:
            self._marks[mark_of_will(message.will)] = 1
        if message.qos or message.retain or message.will is not None:
            self._end_with_turn()
        return offset

    def append_run(
        self, run: PublishRun, origin_key: MarkKey | None, last_sequence: int, *, time: int
    ) -> int:
        """
        Stage all messages of a run of QoS 1 or 2; return the first of the consecutive offsets.

        `origin_key` and `last_sequence` are the origin id of the last message; None and 0: no
        origin id. The cost does not depend on the number of messages.
        """
        offset = self._gather_run(run, time)
        if origin_key is not None:
            self._marks[origin_key] = last_sequence
        self._end_with_turn()
        return offset

    def append_qos0(self, runs: Sequence[PublishRun], *, time: int) -> int:
        """Stage all messages of one or more runs of QoS 0; return the offset of the last."""
        for run in runs:
            self._gather_run(run, time)
        return self._first + self._count - 1

    def skip_to(self, offset: int) -> None:
        """
        Assign `offset` or a later offset to the next message; skipped offsets stay empty for ever.
        """
        self._stage()
        self._first = max(self._first, offset)

    def read(
        self,
        after: int,
        limit: int = 512,
        size: int = 2 * BATCH_BYTES,
        *,
        through: int = LAST,
        bound: int = 0,
        least: int = 0,
    ) -> StoredChunk:
        """
        Read the written records above the offset `after` up to `through`.

        The records have the QoS `least` or a higher one. At most `limit` records are read, and
        packets of slightly more than `size` bytes. A hole is skipped in one step, up to the offset
        `bound`. Damage or a restored copy may have left a hole of billions. Raises `CorruptLog`.
        """
        hole = bound
        stored = StoredRecords(after, through, most=limit, room=size, least=least)
        times: list[tuple[int, int]] = []
        for batch in self.log.batches(after):
            times.append((batch.last, batch.time))
            hole = min(hole, batch.first - 1)
            if not stored.add(batch.first, batch.body, batch.count):
                break
        else:
            hole = bound  # behind the last record nothing up to the bound was written
        looked = max(stored.through, hole)
        records = Records(stored, partial(self._age, times))
        return StoredChunk(records=records, through=looked, earliest=self.log.first)

    def _age(self, times: list[tuple[int, int]], offset: int) -> float:
        """Return the seconds since a record was appended; `times`: each batch's end and time."""
        if self._ages is None:
            return 0.0
        _, time = times[min(bisect_left(times, (offset, 0)), len(times) - 1)]
        return self._ages.age(offset, time)

    def origins(self, after: int = 0) -> Iterator[Marks]:
        """Yield the marks of the batches with offsets above `after`; raises `CorruptLog`."""
        for batch in self.log.batches(after):
            marks, has_retained = read_marks(batch.body)
            yield Marks(first=batch.first, last=batch.last, marks=marks, has_retained=has_retained)

    def retained(self, after: int = 0) -> Iterator[tuple[Record, int]]:
        """
        Yield the records above `after` that have RETAIN set, and when each was appended.

        The time is in UTC microseconds. Raises `CorruptLog`.
        """
        for batch in self.log.batches(after):
            if read_marks(batch.body)[1]:
                for record in decode_records(batch, max(0, after + 1 - batch.first)):
                    if record.message.retain:
                        yield record, batch.time

    def discard(self) -> None:
        """Discard all unwritten records, for a part that will be deleted."""
        self._gathered.clear()
        self._committer.remove(self.log)
        self.log.discard()

    def check(self) -> None:
        """State where the gathered records lie, and what the part goes on from."""
        self.log.check()
        if self._gathered:
            ordered(self, 3, "log.next <= first gathered", self.log.next, self._first)
            ordered(self, 3, "a batch has records", 1, self._count, BATCH_RECORDS)
        else:
            idle = not (self._count or self._bytes or self._marks)
            holds(self, 1, "a mark is in the batch of its record", idle, self.key, self._marks)
        before = None if self.predecessor is None else self.predecessor[0]
        is_later = before is None or before.zone != self.key.zone or before.epoch < self.key.epoch
        holds(self, 7, "a part goes on from an earlier epoch", is_later, self.key, before)

    # -- internal

    def _gather_run(self, run: PublishRun, time: int) -> int:
        if not 0 < run.count <= MOST:
            raise CallerError(f"A run has 1 to {MOST} messages, not {run.count}.")
        return self._gather(run, run.count, run.size, time)

    def _gather(self, piece: Piece, count: int, size: int, time: int) -> int:
        """
        Add a piece to the gathered batch or to a new one; return the offset of its first message.
        """
        if self._bytes >= BATCH_BYTES or self._count + count > BATCH_RECORDS:
            self._stage()
        if not self._gathered:
            self._first = max(self._first, self.log.next)
            self._time = time
            # No client waits for QoS 0: a batch of QoS 0 alone may gather many turns.
            self._committer.before_later_write(self._stage)
        offset = self._first + self._count
        self._gathered.append(piece)
        self._count += count
        if self._ages is not None:
            self._ages.note(offset + count - 1)
        self._bytes += size
        return offset

    def _end_with_turn(self) -> None:
        if not self.is_due:
            self.is_due = True
            self._committer.before_write(self._stage)

    def _stage(self) -> None:
        """Append the gathered batch to the log."""
        is_awaited, self.is_due = self.is_due, False
        if self._gathered:
            body = encode_records(self._gathered, self._marks, self.node)
            self.log.append(body, self._count, time=self._time, first=self._first)
            self._first += self._count
            self._count = 0
            self._gathered.clear()
            self._marks.clear()
            self._bytes = 0
            self._committer.touch(self.log)
            if is_awaited:
                self.awaited = self._first - 1
                self._committer.when_durable(partial(self._tell, self.awaited))

    def _tell(self, offset: int) -> None:
        if self.on_durable is not None:
            self.on_durable(offset)


class Journals:
    """All parts that a node keeps, under one folder."""

    def __init__(
        self,
        folder: Path,
        committer: Committer,
        on_trimmed: OnTrimmed,
        *,
        segment_bytes: int,
        data: Path | None = None,
        clock: LivedTime | None = None,
    ) -> None:
        """
        Open all existing parts; raises `StoreError`.

        `segment_bytes`, `data`: see `SegmentLog`. `clock`: of the ages of messages, if any.
        """
        self._clock = clock
        self._folder = folder
        self._committer = committer
        self._on_trimmed = on_trimmed
        self._segment_bytes = segment_bytes
        self._data = folder if data is None else data
        self.parts: dict[JournalId, JournalPart] = {}
        try:
            make_folder(folder)
            part_folders.sweep(folder)
            for path in part_folders.list_folders(folder):
                meta = load(path, self._data)
                if meta is not None:
                    self._part(path, meta)
        except OSError as error:
            raise StoreError(f"{folder}: cannot be opened: {error.strerror}") from error

    def create(self, key: JournalId, predecessor: tuple[JournalId, int] | None) -> JournalPart:
        """
        Create a part durably, or return the existing one; raises `StoreError`.

        `predecessor`: see `JournalPart`.
        """
        found = self.parts.get(key)
        if found is not None:
            return found
        folder = self.folder_of(key)
        meta = PartMeta(key=key, predecessor=predecessor)
        try:
            make_folder(folder)
        except OSError as error:
            raise StoreError(f"{folder}: cannot be made: {error.strerror}") from error
        save(folder, meta)
        return self._part(folder, meta)

    def adopt(self, folder: Path) -> None:
        """
        Move a part from another folder of the same disk here, durably; raises `StoreError`.

        An existing part of the same key has the same records and stays.
        """
        meta = load(folder, self._data)
        if meta is None:
            raise StoreError(f"{folder}: holds no part of a journal")
        target = self.folder_of(meta.key)
        try:
            if meta.key in self.parts:
                part_folders.delete(folder)
                return
            make_folder(target.parent)
            folder.rename(target)
            sync_folder(target.parent)
        except OSError as error:
            raise StoreError(f"{target}: cannot be taken in: {error.strerror}") from error
        self._part(target, meta)

    def get(self, key: JournalId) -> JournalPart | None:
        """Return the part, if this node has it."""
        return self.parts.get(key)

    def folder_of(self, key: JournalId) -> Path:
        """Return the folder of a part, whether the node has it or not."""
        return part_folder(self._folder, key)

    def drop(self, key: JournalId) -> None:
        """
        Delete a part with all its records; raises `StoreError`.

        A part whose folder cannot be set aside stays: the next start would bring it back.
        """
        folder = self.parts[key].log.folder
        try:
            gone = part_folders.set_aside(folder)
            self.parts.pop(key).discard()
            part_folders.clear(gone)
        except OSError as error:
            raise StoreError(f"{folder}: cannot be deleted: {error.strerror}") from error

    def close(self) -> None:
        """Close all logs; the caller writes and syncs them before (`Committer.close`)."""
        for part in self.parts.values():
            part.log.close()

    # -- internal

    def _part(self, folder: Path, meta: PartMeta) -> JournalPart:
        log = SegmentLog(
            folder, segment_bytes=self._segment_bytes, on_trimmed=self._on_trimmed, data=self._data
        )
        part = self.parts[meta.key] = JournalPart(meta.key, log, self._committer, meta, self._clock)
        return part


def part_folder(journals: Path, key: JournalId) -> Path:
    """Return the folder of a part below the folder of all parts."""
    return journals / zone_folder(key.zone) / str(key.epoch)


def zone_folder(zone: str) -> str:
    """Return the folder name of a zone's parts; `part.json` in the folder names the zone itself."""
    if not zone:
        return "%2E"
    name = quote(zone, safe="")
    if not name.strip("."):
        return name.replace(".", "%2e")
    if len(name) > _LONGEST_NAME:
        return f"{name[:_LONGEST_NAME]}%{hashlib.sha256(zone.encode()).hexdigest()}"[-255:]
    return name
