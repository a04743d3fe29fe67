"""
SHELL: the outboxes of a node: for each, a log of entries under `data/outbox/<zone>`.

The state of an outbox (see `edge.routing.stored_outbox`) is in a table. The log has the entries
alone: raw PUBLISH packets and their publishers. For entries that were sent before, the batch has
the stream and the first sequence as a mark. Each run of such sequences is one batch. A will has a
batch of its own, with its id as a mark.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import attrs

from txbroker.delegation.zone_snapshot import MarkKey, mark_of_will, will_of_mark
from txbroker.edge.routing.stored_outbox import (
    DrainState,
    OutboxChunk,
    OutboxEntry,
    OutboxLog,
    OutboxState,
)
from txbroker.journal.store.journal_parts import BATCH_BYTES, BATCH_RECORDS, zone_folder
from txbroker.journal.store.record_format import Marks, decode_records, encode_records, read_marks
from txbroker.model.errors import StoreError
from txbroker.mqtt.session.inbound_publish import OriginId
from txbroker.mqtt.wire.message import Message, WillId
from txbroker.storage.committer import Committer
from txbroker.storage.lived_time import LivedTime, RecordAges
from txbroker.storage.log import SegmentLog
from txbroker.storage.recovery import OnTrimmed
from txbroker.storage.tables import LogTables
from txbroker.v1 import state_pb2

FOLDER = "outbox"
"""The folder below `data`."""

SEGMENT_BYTES = 4 * 1024 * 1024
"""Size of a segment; an outbox frees its disk space in whole segments."""

READ_ENTRIES = 512
"""Entries read at once, at most; and about `BATCH_BYTES`."""


class OutboxEntryLog:
    """
    The entries of one outbox (`OutboxLog`).

    `clock`: of the ages of messages; None: they do not age.
    """

    def __init__(
        self,
        log: SegmentLog,
        committer: Committer,
        now: Callable[[], int],
        clock: LivedTime | None = None,
    ) -> None:
        self._ages = None if clock is None else RecordAges(clock, log.next - 1)
        self.on_durable: Callable[[], None] = lambda: None
        self.log = log
        self.durable = log.next - 1
        self._committer = committer
        self._now = now
        self._gathered: deque[OutboxEntry] = deque()
        self._held: dict[int, int] = {}
        self._groups: deque[int] = deque()
        committer.add(log)

    @property
    def next(self) -> int:
        """The number that the next entry gets."""
        return self.log.next + len(self._gathered)

    def append(self, message: Message, origin: OriginId | None, *, holds: int = 0) -> int:
        """
        Append an entry; return its number. The entry waits, with all after it, for `holds` calls of
        `release`.
        """
        number = self.next
        self._gathered.append(OutboxEntry(number, message, origin))
        if self._ages is not None:
            self._ages.note(number)
        if holds:
            self._held[number] = holds
        else:
            self._committer.before_write(self._stage)
        return number

    def release(self, number: int) -> None:
        """Release one hold of the entry: one of the writes that it waited for is durable."""
        self._held[number] -= 1
        if not self._held[number]:
            del self._held[number]
            self._committer.before_write(self._stage)

    def read(self, after: int) -> OutboxChunk:
        """Return the next durable entries above `after`; raises `CorruptLog`."""
        entries: list[OutboxEntry] = []
        through, room = after, BATCH_BYTES
        for batch in self.log.batches(after):
            last = min(batch.last, self.durable)
            skip = max(0, after + 1 - batch.first)
            limit = min(READ_ENTRIES - len(entries), last - batch.first + 1 - skip)
            if limit <= 0 or room <= 0:
                break
            origin, will = _what_marks_say(read_marks(batch.body)[0])
            for record in decode_records(batch, skip, limit):
                sent = origin and (origin[0], origin[1] + record.offset - batch.first)
                message = attrs.evolve(record.message, will=will) if will else record.message
                if message.expiry is not None and self._ages is not None:
                    # The owner gets an expired message with an interval of 0: the entry is its.
                    message = message.aged(self._ages.age(record.offset, batch.time))
                entries.append(OutboxEntry(record.offset, message, sent))
                room -= message.size
            through = batch.first + skip + limit - 1
            if through < last:
                break
        else:
            # Behind the last batch is a hole at most, which a repair has left. A drain that did not
            # pass it would keep all that comes later.
            through = max(through, self.durable)
        return OutboxChunk(entries, through)

    def trim(self, through: int) -> None:
        """Free entries up to this number."""
        self.log.trim(through)

    def discard(self) -> None:
        """Leave the group commit: the outbox is about to be deleted."""
        self._committer.remove(self.log)
        self.log.discard()

    # -- internal

    def _stage(self) -> None:
        """Stage all entries before the first one that is held."""
        until = next(iter(self._held), None)
        while self._gathered and self._gathered[0].number != until:
            self._stage_batch(until)
        if self.log.staged:
            self._committer.touch(self.log)
            self._groups.append(self.log.next - 1)
            self._committer.when_durable(self._on_durable)

    def _stage_batch(self, until: int | None) -> None:
        first = self._gathered[0]
        following, will = first.origin, first.message.will
        messages: list[Message] = []
        size = 0
        while (
            self._gathered
            and self._gathered[0].number != until
            and self._gathered[0].origin == following
            and not (messages and (will or self._gathered[0].message.will))
            and len(messages) < BATCH_RECORDS
            and size < BATCH_BYTES
        ):
            message = self._gathered.popleft().message
            messages.append(message)
            size += message.size
            if following is not None:
                following = following[0], following[1] + 1
        marks = {} if first.origin is None else dict([first.origin])
        if will is not None:
            marks[mark_of_will(will)] = 1
        self.log.append(encode_records(messages, marks), len(messages), time=self._now())

    def _on_durable(self) -> None:
        self.durable = self._groups.popleft()
        self.on_durable()


def _what_marks_say(marks: Marks) -> tuple[OriginId | None, WillId | None]:
    """Return the origin id of a batch's first entry, and the id of the will if it is one."""
    origin, will = None, None
    for key, sequence in marks:
        will = will or will_of_mark(key)
        if will_of_mark(key) is None:
            origin = key, sequence
    return origin, will


class _Name(NamedTuple):
    incarnation: int
    stream: int
    zone: str


class OutboxFiles:
    """The outboxes of a node (`OutboxStore`)."""

    def __init__(
        self,
        data: Path,
        committer: Committer,
        tables: LogTables,
        on_trimmed: OnTrimmed,
        *,
        now: Callable[[], int],
        clock: LivedTime | None = None,
    ) -> None:
        """`data`: see `SegmentLog`; `now` in UTC microseconds; `clock`: see `OutboxEntryLog`."""
        self._clock = clock
        self._folder = data / FOLDER
        self._committer = committer
        self._table = tables.table("outboxes")
        self._on_trimmed = on_trimmed
        self._data = data
        self._now = now
        self._logs: dict[_Name, OutboxEntryLog] = {}

    @property
    def size(self) -> int:
        """Bytes of all outboxes on the disk."""
        return sum(log.log.size for log in self._logs.values())

    def logs(self) -> list[SegmentLog]:
        """Return the logs of all outboxes."""
        return [log.log for log in self._logs.values()]

    def load(self) -> list[tuple[OutboxState, OutboxLog]]:
        """Load the outboxes after a start, the oldest first; raises `StoreError`."""
        states = [_decode(value) for _, value in self._table.items()]
        states.sort(key=_name)
        known = {self._path(state) for state in states}
        for path in self._folder.glob("*/*"):
            if path not in known:
                _remove(path)  # the outbox was dropped, or none of its publishes was acknowledged
        return [(state, self._open(state)) for state in states]

    def create(self, state: OutboxState) -> OutboxLog | None:
        """Create an outbox; return None if the disk does not allow it now."""
        try:
            log = self._open(state)
        except StoreError:
            return None
        self.save(state)
        return log

    def save(self, state: OutboxState) -> None:
        """Save the state with the next commit."""
        self._table.put(_key(state), _encode(state))

    def drop(self, state: OutboxState, done: Callable[[], None]) -> None:
        """Delete the outbox; `done` is called when a crash can no longer restore it."""

        def forget() -> None:
            shutil.rmtree(self._path(state), ignore_errors=True)
            done()

        self._logs.pop(_name(state)).discard()
        self._table.delete(_key(state))
        self._committer.when_durable(forget)

    def when_durable(self, action: Callable[[], None]) -> None:
        """Run `action` when all that was saved so far is durable."""
        self._committer.when_durable(action)

    def close(self) -> None:
        """Close all logs; the caller writes and syncs them before (`Committer.close`)."""
        for log in self._logs.values():
            log.log.close()

    # -- internal

    def _open(self, state: OutboxState) -> OutboxEntryLog:
        log = SegmentLog(
            self._path(state),
            segment_bytes=SEGMENT_BYTES,
            on_trimmed=self._on_trimmed,
            data=self._data,
        )
        entries = OutboxEntryLog(log, self._committer, self._now, self._clock)
        found = self._logs[_name(state)] = entries
        return found

    def _path(self, state: OutboxState) -> Path:
        return self._folder / zone_folder(state.zone) / f"{state.incarnation}-{state.stream}"


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise StoreError(f"{folder}: cannot be deleted: {error.strerror}") from error


def _name(state: OutboxState) -> _Name:
    return _Name(state.incarnation, state.stream, state.zone)


def _key(state: OutboxState) -> bytes:
    return f"{state.incarnation} {state.stream} {state.zone}".encode()


def _encode(state: OutboxState) -> bytes:
    stored = state_pb2.StoredOutbox(
        zone=state.zone,
        incarnation=state.incarnation,
        stream=state.stream,
        origins=[_mark(key) for key in state.origins],
    )
    for drain in state.drains:
        kept = stored.drains.add(zone=drain.apex, taken=drain.taken)
        kept.doubts.extend(_mark(key) for key in drain.doubts)
    return stored.SerializeToString()


def _decode(value: bytes) -> OutboxState:
    stored = state_pb2.StoredOutbox.FromString(value)
    return OutboxState(
        zone=stored.zone,
        incarnation=stored.incarnation,
        stream=stored.stream,
        drains=tuple(
            DrainState(
                apex=kept.zone,
                taken=kept.taken,
                doubts=tuple(_mark_key(mark) for mark in kept.doubts),
            )
            for kept in stored.drains
        ),
        origins=tuple(_mark_key(mark) for mark in stored.origins),
    )


def _mark(key: MarkKey) -> state_pb2.StoredMark:
    edge, incarnation, zone, stream = key
    return state_pb2.StoredMark(edge=edge, incarnation=incarnation, zone=zone, stream=stream)


def _mark_key(mark: state_pb2.StoredMark) -> MarkKey:
    return mark.edge, mark.incarnation, mark.zone, mark.stream
