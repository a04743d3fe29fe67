"""
SHELL: the durable side of a node's zone: its journal part, and what a crash must not forget of it.

A zone that begins an epoch without having come from elsewhere goes on from its own earlier part,
with all that was known there: it was restored from a copy.

The journal is the truth. Retained messages, marks and unclaimed inheritances are kept in tables as
of one offset (the checkpoint), written now and then; after a crash the batches behind it are
replayed. What changed is written in slices, the checkpoint with the last of them: what was written
already is only newer than the one before says. Whole changes (a subtree that came in) are written
together with their checkpoint.

The authority appends records during a turn. The group commit closes a group at its end, and tells
when the group is as safe as the node promises. Then `durable` rises to the group's last offset, and
the authority settles what it covers. A checkpoint follows, never one of what did not settle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import attrs

from txbroker.authority.authority import Authority
from txbroker.authority.retained_messages import pack
from txbroker.authority.store.offset_reservation import OffsetReservation
from txbroker.data.data_directory import DataDirectory
from txbroker.delegation.zone_snapshot import EdgeInterest, MarkKey
from txbroker.journal.store.journal_parts import JournalPart
from txbroker.journal.store.retention import Retention
from txbroker.journal.zone_journal import JournalChunk, Unclaimed, ZoneState
from txbroker.model.counters import Counters
from txbroker.model.invariant import holds, ordered
from txbroker.model.log_position import JournalHolder, JournalId, LogPosition
from txbroker.model.publish_run import PublishRun
from txbroker.model.stored_value import StoredValue
from txbroker.model.topics import is_within
from txbroker.mqtt.wire.message import Message
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

_CHECKPOINT = b"checkpoint"
_ABSORBED = b"absorbed "
_TOUCHED = b"touched "


class ZoneStore:
    """
    The `ZoneJournal` of the authority of `zone` at `node`.

    Invariant: durable <= what the commit promises, and durable <= offset <= the reserved offset.
    Invariant: checkpoint <= offset, and each group's offset <= that of the next group.
    """

    def __init__(
        self,
        *,
        node: str,
        zone: str,
        data_directory: DataDirectory,
        now: Callable[[], int],
        retention: Retention,
        ceiling: OffsetReservation,
        stores_qos0: bool,
        is_short: Callable[[], bool],
        counters: Counters,
    ) -> None:
        """
        Create the store.

        `is_short`: True if the disk must accept only records that a client waits for.
        """
        self._zone = zone
        self._node = node
        self._data_directory = data_directory
        self._journals = data_directory.journals
        self._state = data_directory.tables.table("zone")
        self._retained = data_directory.tables.table(RETAINED)
        self._marks = data_directory.tables.table("marks")
        self._unclaimed = data_directory.tables.table("unclaimed")
        self._committer = data_directory.committer
        self._now = now
        self._retention = retention
        self._ceiling = ceiling
        self.stores_qos0 = stores_qos0
        self._is_short = is_short
        self._counters = counters
        self._part: JournalPart | None = None
        self._authority: Authority | None = None
        self._durable = self._begun = 0
        self._groups: deque[tuple[JournalPart | None, int]] = deque()
        self._is_asked = False
        self._time = 0  # time of the records in the next group commit
        self._checkpoint = 0
        self._saved = 0
        self._changed: set[str] = set()  # topics changed since the last checkpoint began
        self._changed_size = 0
        self._writing: set[str] | None = None  # remaining topics of the checkpoint under way
        self._when_written: list[Callable[[], None]] = []
        self._work_off: Callable[[Iterator[None]], object] = deque
        self._told_marks: dict[MarkKey, int] = {}

    def wire(self, authority: Authority) -> None:
        """Connect the authority whose state this store persists."""
        self._authority = authority
        authority.retained.keep = self._data_directory.attic.store
        authority.retained.now = self._data_directory.message_clock

    def wire_slices(self, work_off: Callable[[Iterator[None]], object]) -> None:
        """
        Set `work_off`, which does a long piece of work in steps; without it the work runs at once.
        """
        self._work_off = work_off

    # from the authority (`ZoneJournal`)

    @property
    def offset(self) -> int:
        """Return the last assigned offset."""
        return 0 if self._part is None else self._part.next - 1

    @property
    def durable(self) -> int:
        """Return the offset up to which records may be delivered and acknowledged."""
        return self._durable

    @property
    def predecessor(self) -> LogPosition | None:
        """Return the end of the part that this part continues; None: no predecessor."""
        found = None if self._part is None else self._part.predecessor
        return None if found is None else LogPosition(*found)

    def open(self, epoch: int, predecessor: LogPosition | None) -> ZoneState:
        """Begin the part of this epoch, or continue an existing one; raises `StoreError`."""
        key = JournalId(self._zone, epoch)
        own = self._own_part()
        if predecessor is None and own is not None and self._journals.get(key) is None:
            predecessor = LogPosition(own.key, own.next - 1)
        part = self._journals.create(key, predecessor)
        before = part.predecessor
        if before is not None and before[0].zone == self._zone and self._known().epoch != epoch:
            # A crash between the part's beginning and its first commit repeats this step. A zone
            # from another owner brings its interested edges along instead.
            self._retention.start_part(key)
        if not self._is_of_tables(part):
            self._clear()
        part.node = self._node
        self._part = part
        self._ceiling.open(part)
        self._durable = self._begun = part.next - 1
        self._saved = 0
        state = self._load(part)
        self._told_marks = {}
        self._save(state)
        return state

    def append(self, message: Message, key: MarkKey | None, sequence: int) -> int:
        """
        Append a record; return its offset, or 0 for a QoS 0 message that is not stored.

        `key` and `sequence` are its origin id, if any.
        """
        if not message.qos and not self._has_room_for_qos0(1, message.size):
            return 0
        assert self._part is not None
        offset = self._part.append(message, key, sequence, time=self._now())
        self._ceiling.raise_bound(offset)
        if message.qos:
            self._request_notification()
        return offset

    def append_run(self, run: PublishRun, key: MarkKey | None, sequence: int) -> int:
        """
        Append a record for each message of QoS 1 and 2; return the first of the consecutive
        offsets.

        `key` and `sequence` are the origin id of the last message, if any.
        """
        assert self._part is not None
        if not self._is_asked:
            self._request_notification()
            self._time = self._now()
        offset = self._part.append_run(run, key, sequence, time=self._time)
        self._ceiling.raise_bound(offset + run.count - 1)
        return offset

    def append_qos0(self, runs: Sequence[PublishRun]) -> int:
        """Append runs of QoS 0; return the last offset, or 0 if QoS 0 is not stored."""
        size = sum(run.size for run in runs)
        if not self._has_room_for_qos0(sum(run.count for run in runs), size):
            return 0
        assert self._part is not None
        last = self._part.append_qos0(runs, time=self._now())
        self._ceiling.raise_bound(last)
        return last

    def read(self, after: int, through: int) -> JournalChunk:
        """Return the next records of QoS 1 and 2 above `after` and up to `through`."""
        assert self._part is not None
        return self._data_directory.read(self._part, after, through, bound=through)

    def mark_retained_changed(self, topics: Iterable[str]) -> None:
        """Note that the retained messages of these topics changed."""
        assert self._authority is not None
        for topic in topics:
            self._changed.add(topic)
            self._changed_size += self._authority.retained.size_of(topic) or 0

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

    def reserve_reclaimed(self, apex: str, offset: int) -> None:
        """Reserve the records above this offset for edges that are not known here."""
        if self._part is not None:
            self._retention.reserve(apex, self._part.key, offset)

    def add_edge(self, edge: str, offset: int) -> None:
        """Note that an edge needs records from this offset on; `keep` refines the offset."""
        if self._part is not None:
            self._retention.start_edge(edge, self._part.key, offset)

    def has_room_for(self, edges: Collection[str]) -> bool:
        """True if each edge has low-water marks, or there is room for those of all the others."""
        return self._retention.has_room_for(edges)

    def has_room_to_reserve(self, apex: str) -> bool:
        """True if there is room for the reservation of a reclaimed apex: it counts as an edge."""
        return self._retention.has_room_to_reserve(apex)

    def forget_edge(self, edge: str) -> None:
        """Forget the low-water marks of the edge."""
        self._retention.forget(edge)

    def set_low_water(
        self,
        edge: str,
        places: dict[JournalId, int],
        holders: Mapping[JournalId, tuple[JournalHolder, ...]],
    ) -> None:
        """
        Store the low-water marks of an edge: its sessions need the records above these offsets.
        """
        self._retention.set_low_water(edge, places)
        self._retention.set_holders(edge, holders)

    def when_kept(self, action: Callable[[], None]) -> None:
        """Run `action` when the marks stored so far are durable."""
        self._committer.when_durable(action)

    def store_absorbed(self, apex: str, marks: dict[MarkKey, int]) -> None:
        """Store a whole absorbed subtree with its marks; durable with the next commit."""
        authority = self._authority
        assert authority is not None
        known = {topic.decode() for topic, _ in self._retained.packed()}
        fresh = set(authority.retained.topics(apex))
        for topic in fresh | {topic for topic in known if is_within(topic, apex)}:
            self._put_retained(topic, authority.retained.entry(topic))
            self._changed.discard(topic)
        for key, sequence in marks.items():
            self._marks.put(_mark_name(key), _mark_value(key, sequence))
        self._told_marks.update(marks)
        for entry in authority.unclaimed():
            if apex in entry.apexes:
                self._put_unclaimed(entry.interest.edge, entry)
                self.add_edge(entry.interest.edge, entry.apexes[apex])
        # The journal's records of the subtree up to here date from an earlier time: a replay must
        # skip them.
        self._state.put(_ABSORBED + apex.encode(), self.offset.to_bytes(8))

    # from the node

    @property
    def present(self) -> JournalId | None:
        """Return the part that is appended to."""
        return None if self._part is None else self._part.key

    @property
    def saved(self) -> int:
        """
        Return the offset of the last checkpoint that a sync has covered.

        Only records above this offset hold their retained values and marks, so retention must not
        trim them.
        """
        return self._saved

    def close(self) -> None:
        """
        Write the last checkpoint and the exact end of the offsets, as the node ends in good order.
        """
        self._work_off = deque
        self._give_up_checkpoint()
        self.checkpoint()
        if self._part is not None:
            self._ceiling.close(self._part)

    def checkpoint(self) -> None:
        """
        Write the changed state as of the last delivered offset.

        A call during an unfinished checkpoint does nothing.
        """
        if self._writing is None and self._part is not None and self._authority is not None:
            self._writing, self._changed, self._changed_size = self._changed, set(), 0
            self._work_off(self._write_checkpoint(self._writing, self._settled))

    def checkpoint_if_due(self) -> None:
        """
        Write a checkpoint if enough has changed, so that a start has little to replay. Called now
        and then.
        """
        if self._changed or self.offset - self._checkpoint > 1_000:
            self.checkpoint()

    def sync_checkpoint(self, action: Callable[[], None]) -> None:
        """
        Write a checkpoint, and run `action` when a sync has covered it and `saved` is updated.

        If the disk accepts no writes now, `action` runs at once and `saved` stays.
        """
        self._when_written.append(lambda: self._sync_checkpoint(action))
        self.checkpoint()
        if self._writing is None:
            self._notify_written()

    def check(self) -> None:
        """State how far the zone is durable; after the end of a turn."""
        part = self._part
        if part is None:
            return
        part.check()
        promised = max(self._begun, self._committer.promised(part.log))
        ordered(self, 3, "durable <= promised by the commit", self._durable, promised)
        groups = [offset for group, offset in self._groups if group is part]
        ordered(self, 3, "durable <= groups <= given", self._durable, *groups, self.offset)
        ordered(self, 3, "checkpoint <= given", self._checkpoint, self.offset)
        ordered(self, 3, "synced checkpoint <= given", self._saved, self.offset)
        holds(self, 3, "who waits is in a group", self._is_asked or self._is_all_told, self.offset)
        self._ceiling.check(part)

    # internal

    @property
    def _is_all_told(self) -> bool:
        """True if each record that is waited for is durable, or in a group."""
        last = 0 if self._authority is None else self._authority.durable_at
        return last <= max([self._durable, *(offset for _, offset in self._groups)])

    def _has_room_for_qos0(self, count: int, size: int) -> bool:
        """
        True if that many messages of QoS 0 may become records.

        QoS 0 has no back-pressure: on a short disk it would use up the reserve, and then the
        memory. A laden committer leaves it out too, so that no publish waits long behind it.
        """
        if not self.stores_qos0:
            return False
        assert self._part is not None
        if self._is_short() or self._committer.is_laden(self._part.gathered + size):
            self._counters.add("journal.left_out", count)
            return False
        return True

    def _request_notification(self) -> None:
        """Request a notification when the appended records are durable."""
        if not self._is_asked:
            self._is_asked = True
            self._committer.before_write(self._close_group)
            self._committer.when_durable(self._on_group)

    def _close_group(self) -> None:
        self._is_asked = False
        self._groups.append((self._part, self.offset))

    def _on_group(self) -> None:
        part, durable = self._groups.popleft()
        if part is not self._part:
            return  # a group of an earlier epoch: its offsets would be read as this epoch's
        self._durable = durable
        assert self._authority is not None
        self._authority.on_durable(self._durable)
        many = self.offset - self._checkpoint > CHECKPOINT_EVERY
        if many or self._changed_size > CHECKPOINT_BYTES:
            self.checkpoint()

    def _clear(self) -> None:
        for table in (self._retained, self._marks, self._unclaimed, self._state):
            for key, _ in table.packed():
                table.delete(key)

    def _own_part(self) -> JournalPart | None:
        """Return the part of the zone that the tables describe."""
        return self._journals.get(JournalId(self._zone, self._known().epoch))

    def _is_of_tables(self, part: JournalPart) -> bool:
        """True if the tables describe this part or its predecessor."""
        epoch, before = self._known().epoch, part.predecessor
        return part.key.epoch == epoch or (before is not None and before[0] == (self._zone, epoch))

    def _known(self) -> state_pb2.Checkpoint:
        """Return the last checkpoint; epoch 0 if none exists."""
        return state_pb2.Checkpoint.FromString(self._state.get(_CHECKPOINT) or b"")

    def _load(self, part: JournalPart) -> ZoneState:
        known, own = self._known(), self._own_part()
        is_own = known.epoch == part.key.epoch
        self._checkpoint = known.offset if is_own else 0
        state = self._as_saved(lambda offset: offset if is_own else 0)
        if known.epoch and not is_own:
            # The same after a crash between the part's beginning and its first commit.
            assert own is not None, "who begins a part so has the one before"
            self._replay(own, known.offset, state)
            for apex, _ in self._absorbed():
                self._state.delete(_ABSORBED + apex.encode())
        self._replay(part, self._checkpoint, state)
        return state

    def _as_saved(self, place: Callable[[int], int]) -> ZoneState:
        """Return the tables' state; `place` maps a stored offset to an offset of the part."""
        unclaimed = [_unclaimed_from(value) for _, value in self._unclaimed.items()]
        return ZoneState(
            retained=dict(self._retained.packed()),
            marks=dict(_mark(value) for _, value in self._marks.items()),
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

    def _write_checkpoint(self, changed: set[str], offset: int) -> Iterator[None]:
        """
        Write a checkpoint as of the offset, step by step, unless another checkpoint replaces it.
        """
        authority = self._authority
        assert authority is not None
        topics = size = 0
        while changed:
            topic = changed.pop()
            entry = authority.retained.entry(topic)
            self._put_retained(topic, entry)
            topics, size = topics + 1, size + (0 if entry is None else len(entry[1]))
            if topics >= STEP_TOPICS or size >= STEP_BYTES:
                topics = size = 0
                yield
                if self._writing is not changed:
                    return
        self._writing = None
        self._put_checkpoint(authority.marks, offset)
        self._notify_written()

    def _give_up_checkpoint(self) -> None:
        """Move the unwritten topics of the checkpoint under way into the next checkpoint."""
        self._changed |= self._writing or set()
        self._writing = None

    def _notify_written(self) -> None:
        actions, self._when_written = self._when_written, []
        for action in actions:
            action()

    def _sync_checkpoint(self, action: Callable[[], None]) -> None:
        epoch, offset = self._part and self._part.key.epoch, self._checkpoint

        def synced() -> None:
            if self._part is not None and self._part.key.epoch == epoch:
                self._saved = max(self._saved, offset)
            action()

        if not self._data_directory.sync_tables(synced):
            action()

    def _save(self, whole: ZoneState) -> None:
        """
        Write a checkpoint of the loaded state, in one commit with all other writes of this turn.
        """
        self._give_up_checkpoint()
        for topic in self._changed:
            name = topic.encode()
            packed = whole.retained.get(name)
            self._put_retained(topic, None if packed is None else (name, packed))
        self._changed.clear()
        self._changed_size = 0
        self._put_checkpoint(whole.marks, self.offset)
        self._notify_written()

    def _put_checkpoint(self, marks: dict[MarkKey, int], offset: int) -> None:
        """Finish a checkpoint: all changes up to the offset are in the tables."""
        assert self._part is not None
        self._save_marks(marks)
        self._checkpoint = offset
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
        return self.offset if self._authority.is_settled else self._authority.delivered

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
                self._marks.put(_mark_name(key), _mark_value(key, sequence))
        for key in told.keys() - marks.keys():
            self._marks.delete(_mark_name(key))
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
            self._unclaimed.put(name, _unclaimed_value(entry))
        elif name in self._unclaimed:
            self._unclaimed.delete(name)


def _mark_name(key: MarkKey) -> bytes:
    edge, incarnation, zone, stream = key
    return f"{edge} {incarnation} {stream} {zone}".encode()


def _mark_value(key: MarkKey, sequence: int) -> bytes:
    edge, incarnation, zone, stream = key
    mark = state_pb2.StoredMark(
        edge=edge, incarnation=incarnation, zone=zone, stream=stream, sequence=sequence
    )
    return mark.SerializeToString()


def _mark(value: bytes) -> tuple[MarkKey, int]:
    mark = state_pb2.StoredMark.FromString(value)
    return (mark.edge, mark.incarnation, mark.zone, mark.stream), mark.sequence


def _unclaimed_value(entry: Unclaimed) -> bytes:
    stored = state_pb2.StoredUnclaimed(
        edge=entry.interest.edge,
        incarnation=entry.interest.incarnation,
        filters=entry.interest.filters,
        apexes=entry.apexes,
        heard=entry.heard,
    )
    return stored.SerializeToString()


def _unclaimed_from(value: bytes) -> Unclaimed:
    stored = state_pb2.StoredUnclaimed.FromString(value)
    interest = EdgeInterest(
        edge=stored.edge, incarnation=stored.incarnation, filters=tuple(stored.filters)
    )
    return Unclaimed(interest=interest, apexes=dict(stored.apexes), heard=dict(stored.heard))
