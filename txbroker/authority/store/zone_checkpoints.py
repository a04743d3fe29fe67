"""
SHELL: the durable state of a zone that no crash may take: its checkpoint, and the batches behind
it.

The journal is the truth. Tables keep retained messages, marks and unclaimed inheritances as of one
offset (the checkpoint), and are written now and then. After a crash the batches behind the
checkpoint are replayed. Changes are written in slices, the checkpoint with the last slice. A row
from an earlier slice is only newer than the checkpoint before says. Whole changes (a subtree that
came in) are written together with their checkpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

import attrs

from txbroker.authority.authority import Authority
from txbroker.authority.retained_messages import pack
from txbroker.authority.store.zone_rows import (
    mark_from,
    mark_name,
    mark_value,
    unclaimed_from,
    unclaimed_value,
)
from txbroker.data.data_directory import DataDirectory
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.journal.store.journal_parts import JournalPart
from txbroker.journal.zone_journal import Unclaimed, ZoneState
from txbroker.model.invariant import ordered
from txbroker.model.stored_value import StoredValue
from txbroker.model.topics import is_within
from txbroker.storage.value_file import RETAINED
from txbroker.v1 import state_pb2

CHECKPOINT_EVERY = 50_000
"""
Records behind the checkpoint after which the next one is due; a start may have to replay them.
"""

CHECKPOINT_BYTES = 16 * 1024 * 1024
"""Bytes of changed retained messages after which a checkpoint is due."""

STEP_TOPICS = 256

STEP_BYTES = 64 * 1024
"""
The most topics, and bytes of their messages, that one step of a checkpoint writes. In one step, a
second's flood of retained messages delayed all other work by a tenth of the next second.
"""

PART_BYTES = 256 * 1024
"""
Bytes of retained messages that a checkpoint writes before each sync that others wait for.

A flood of messages of 65 KB made each sync one of many MiB of tables, for which all QoS 1 waited.
"""

_CHECKPOINT = b"checkpoint"

_ABSORBED = b"absorbed "

_TOUCHED = b"touched "


class ZoneCheckpoint:
    """
    The tables of the zone `zone`, and when they are written.

    `offset` is that of the last checkpoint, `saved` that of the last one which a sync has covered;
    `changed_size` are the bytes of retained messages that changed since.
    Only records above `saved` hold their retained values and marks: retention must not trim them.

    Invariant: offset and saved <= the last offset of the part.
    """

    def __init__(self, zone: str, data_directory: DataDirectory) -> None:
        self.offset = 0
        self.saved = 0
        self.changed_size = 0
        self._zone = zone
        self._data_directory = data_directory
        self._state = data_directory.tables.table("zone")
        self._retained = data_directory.tables.table(RETAINED)
        self._marks = data_directory.tables.table("marks")
        self._unclaimed = data_directory.tables.table("unclaimed")
        self._part: JournalPart | None = None
        self._authority: Authority | None = None
        self._changed: set[str] = set()  # topics changed since the last checkpoint began
        self._writing: set[str] | None = None  # remaining topics of the checkpoint under way
        self._when_written: list[Callable[[], None]] = []
        self._work_off: Callable[[Iterator[None]], object] = deque
        self._told_marks: dict[MarkKey, int] = {}

    def wire(self, authority: Authority) -> None:
        """Connect the authority whose state the tables keep."""
        self._authority = authority

    def wire_slices(self, work_off: Callable[[Iterator[None]], object]) -> None:
        """
        Set `work_off`, which does a long piece of work in steps; without it the work runs at once.
        """
        self._work_off = work_off

    # from the store

    @property
    def epoch(self) -> int:
        """Return the epoch of the last checkpoint; 0 if none exists."""
        return self._known().epoch

    def open(self, part: JournalPart) -> None:
        """Keep the state of this part; that of another zone's part is deleted."""
        self._part = part
        epoch, before = self.epoch, part.predecessor
        is_of_predecessor = before is not None and before[0] == (self._zone, epoch)
        if part.key.epoch != epoch and not is_of_predecessor:
            for table in (self._retained, self._marks, self._unclaimed, self._state):
                for key, _ in table.packed():
                    table.delete(key)

    def load(self, own: JournalPart | None) -> ZoneState:
        """
        Return the state as of the part's end, and write a checkpoint of it.

        `own` is the part that the tables describe.
        """
        part = self._part
        assert part is not None
        known = self._known()
        is_own = known.epoch == part.key.epoch
        self.saved = 0
        self.offset = known.offset if is_own else 0
        state = self._as_saved(lambda offset: offset if is_own else 0)
        if known.epoch and not is_own:
            # The batches behind the checkpoint are also replayed after a crash between the part's
            # beginning and its first commit.
            assert own is not None, "who begins a part so has the one before"
            self._replay(own, known.offset, state)
            for apex, _ in self._absorbed():
                self._state.delete(_ABSORBED + apex.encode())
        self._replay(part, self.offset, state)
        self._told_marks = {}
        self._save(state)
        return state

    def mark_retained_changed(self, topics: Iterable[str]) -> None:
        """Note that the retained messages of these topics changed."""
        assert self._authority is not None
        for topic in topics:
            self._changed.add(topic)
            self.changed_size += self._authority.retained.size_of(topic) or 0

    def touched(self) -> set[str]:
        """Return the held filters that were subscribed to."""
        names = (name for name, _ in self._state.items() if name.startswith(_TOUCHED))
        return {name.removeprefix(_TOUCHED).decode() for name in names}

    def store_touched(self, filters: Iterable[str]) -> None:
        """Store that these held filters were subscribed to; durable with the next commit."""
        for topic_filter in filters:
            self._state.put(_TOUCHED + topic_filter.encode(), b"1")

    def store_unclaimed(self, edges: Iterable[str]) -> None:
        """Store the unclaimed inheritances of these edges; durable with the next commit."""
        assert self._authority is not None
        unclaimed = {entry.interest.edge: entry for entry in self._authority.unclaimed()}
        for edge in edges:
            self._put_unclaimed(edge, unclaimed.get(edge))

    def store_absorbed(self, apex: str, marks: dict[MarkKey, int]) -> None:
        """Store a whole absorbed subtree with its marks; durable with the next commit."""
        authority = self._authority
        assert authority is not None
        known = {topic.decode() for topic, _ in self._retained.packed()}
        fresh = set(authority.retained.topics(apex))
        for topic in fresh | {topic for topic in known if is_within(topic, apex)}:
            self._put_retained(topic, authority.retained.entry(topic))
            self._changed.discard(topic)
        self.store_marks(marks)
        for entry in authority.unclaimed():
            if apex in entry.apexes:
                self._put_unclaimed(entry.interest.edge, entry)
        # The journal's records of the subtree up to here date from an earlier time: a replay must
        # skip them.
        self._state.put(_ABSORBED + apex.encode(), self._given.to_bytes(8))

    def store_marks(self, marks: Mapping[MarkKey, int]) -> None:
        """Store marks that another node told; durable with the next commit."""
        for key, sequence in marks.items():
            self._marks.put(mark_name(key), mark_value(key, sequence))
        self._told_marks.update(marks)

    def close(self) -> None:
        """Write the last checkpoint in one go."""
        self._work_off = deque
        self._give_up()
        self.write()

    # from the node

    def write(self) -> None:
        """
        Write the changed state as of the last delivered offset.

        A call during an unfinished checkpoint does nothing.
        """
        if self._writing is None and self._part is not None and self._authority is not None:
            self._writing, self._changed, self.changed_size = self._changed, set(), 0
            self._work_off(self._write(self._writing, self._settled))

    def write_if_due(self) -> None:
        """
        Write a checkpoint if enough has changed, so that a start has little to replay. Called now
        and then.
        """
        if self._changed or self._given - self.offset > 1_000:
            self.write()

    def sync(self, action: Callable[[], None]) -> None:
        """
        Write a checkpoint, and run `action` when a sync has covered it and `saved` is updated.

        If the disk accepts no writes now, `action` runs at once and `saved` stays.
        """
        self._when_written.append(lambda: self._sync(action))
        self.write()
        if self._writing is None:
            self._notify_written()

    def check(self) -> None:
        """State that no checkpoint is ahead of the part's records."""
        ordered(self, 3, "checkpoint <= given", self.offset, self._given)
        ordered(self, 3, "synced checkpoint <= given", self.saved, self._given)

    # internal

    @property
    def _given(self) -> int:
        return 0 if self._part is None else self._part.next - 1

    def _known(self) -> state_pb2.Checkpoint:
        """Return the last checkpoint; epoch 0 if none exists."""
        return state_pb2.Checkpoint.FromString(self._state.get(_CHECKPOINT) or b"")

    def _as_saved(self, place: Callable[[int], int]) -> ZoneState:
        """Return the tables' state; `place` maps a stored offset to an offset of the part."""
        unclaimed = [unclaimed_from(value) for _, value in self._unclaimed.items()]
        return ZoneState(
            retained=dict(self._retained.packed()),
            marks=dict(mark_from(value) for _, value in self._marks.items()),
            unclaimed=tuple(
                attrs.evolve(
                    entry,
                    apexes={apex: place(offset) for apex, offset in entry.apexes.items()},
                    heard={apex: place(offset) for apex, offset in entry.heard.items()},
                )
                for entry in unclaimed
            ),
        )

    def _replay(self, part: JournalPart, after: int, state: ZoneState) -> None:
        """Add the retained values and marks of the part's records above the offset."""
        for batch in part.origins(after):
            state.marks.update(batch.marks)
        absorbed = self._absorbed()
        for record, time in part.retained(after):
            message = record.message
            if any(record.offset <= at and is_within(message.topic, a) for a, at in absorbed):
                continue
            self._changed.add(message.topic)
            name = message.topic.encode()
            if message.payload:
                state.retained[name] = pack(message, self._data_directory.message_clock.at(time))
            else:
                state.retained.pop(name, None)

    def _write(self, changed: set[str], offset: int) -> Iterator[None]:
        """
        Write a checkpoint as of the offset, step by step, unless another checkpoint replaces it.
        """
        authority = self._authority
        assert authority is not None
        topics = size = part = 0
        while changed:
            topic = changed.pop()
            entry = authority.retained.entry(topic)
            self._put_retained(topic, entry)
            topics, size = topics + 1, size + (0 if entry is None else len(entry[1]))
            if topics >= STEP_TOPICS or size >= STEP_BYTES:
                part += size
                topics = size = 0
                if part >= PART_BYTES:
                    part = 0
                    if self._yields(changed, offset):
                        return
                yield
                if self._writing is not changed:
                    return
        self._writing = None
        self._put_checkpoint(authority.marks, offset)
        self._notify_written()

    def _yields(self, changed: set[str], offset: int) -> bool:
        """True if the checkpoint goes on by itself after a sync that others wait for."""

        def go_on() -> None:
            if self._writing is changed:
                self._work_off(self._write(changed, offset))

        is_sliced = self._work_off is not deque  # else it runs at once: the node may be ending
        return is_sliced and self._data_directory.committer.yield_to_waiters(go_on)

    def _give_up(self) -> None:
        """Move the unwritten topics of the checkpoint under way into the next checkpoint."""
        self._changed |= self._writing or set()
        self._writing = None

    def _notify_written(self) -> None:
        actions, self._when_written = self._when_written, []
        for action in actions:
            action()

    def _sync(self, action: Callable[[], None]) -> None:
        epoch, offset = self._part and self._part.key.epoch, self.offset

        def synced() -> None:
            if self._part is not None and self._part.key.epoch == epoch:
                self.saved = max(self.saved, offset)
            action()

        if not self._data_directory.sync_tables(synced):
            action()

    def _save(self, whole: ZoneState) -> None:
        """
        Write a checkpoint of the loaded state, in one commit with all other writes of this turn.
        """
        self._give_up()
        for topic in self._changed:
            name = topic.encode()
            packed = whole.retained.get(name)
            self._put_retained(topic, None if packed is None else (name, packed))
        self._changed.clear()
        self.changed_size = 0
        self._put_checkpoint(whole.marks, self._given)
        self._notify_written()

    def _put_checkpoint(self, marks: dict[MarkKey, int], offset: int) -> None:
        """Finish a checkpoint: all changes up to the offset are in the tables."""
        assert self._part is not None
        self._save_marks(marks)
        self.offset = offset
        for apex, absorbed in self._absorbed():
            if absorbed <= offset:
                self._state.delete(_ABSORBED + apex.encode())
        point = state_pb2.Checkpoint(epoch=self._part.key.epoch, offset=offset)
        self._state.put(_CHECKPOINT, point.SerializeToString())

    @property
    def _settled(self) -> int:
        """
        Return the offset up to which the authority's state is complete; it may include later
        records.
        """
        assert self._authority is not None
        return self._given if self._authority.is_settled else self._authority.delivered

    def _absorbed(self) -> list[tuple[str, int]]:
        """Return the subtrees absorbed behind the checkpoint, with the offset at that time."""
        return [
            (name.removeprefix(_ABSORBED).decode(), int.from_bytes(value))
            for name, value in self._state.items()
            if name.startswith(_ABSORBED)
        ]

    def _save_marks(self, marks: dict[MarkKey, int]) -> None:
        told = self._told_marks
        for key, sequence in marks.items():
            if told.get(key) != sequence:
                self._marks.put(mark_name(key), mark_value(key, sequence))
        for key in told.keys() - marks.keys():
            self._marks.delete(mark_name(key))
        self._told_marks = dict(marks)

    def _put_retained(self, topic: str, entry: tuple[bytes, StoredValue] | None) -> None:
        """
        Store or delete a topic's retained message; name and value are shared with the authority to
        save memory.
        """
        if entry is None:
            self._retained.delete(topic.encode())
        else:
            self._retained.put(*entry)

    def _put_unclaimed(self, edge: str, entry: Unclaimed | None) -> None:
        name = edge.encode()
        if entry is not None:
            self._unclaimed.put(name, unclaimed_value(entry))
        elif name in self._unclaimed:
            self._unclaimed.delete(name)
