"""
SHELL: the durable side of a node's zone: its journal part, and how far the part is durable.

A zone may begin an epoch without having come from elsewhere: it was restored from a copy. Then it
goes on from its own earlier part, with everything that was known there.

The authority appends records during a turn. The part stages them as a batch, at the end of the turn
at the latest, and tells when the batch is as safe as the node promises. Then `durable` rises to the
batch's last offset, and the authority settles what it covers. A checkpoint (`ZoneCheckpoint`)
follows, never one of what did not settle.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import attrs

from txbroker.authority.authority import Authority
from txbroker.authority.store.offset_reservation import OffsetReservation
from txbroker.authority.store.zone_checkpoints import (
    CHECKPOINT_BYTES,
    CHECKPOINT_EVERY,
    ZoneCheckpoint,
)
from txbroker.data.data_directory import DataDirectory
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.journal.store.journal_parts import JournalPart
from txbroker.journal.store.retention import Retention
from txbroker.journal.zone_journal import JournalChunk, ZoneState
from txbroker.model.counters import Counters
from txbroker.model.errors import StoreError
from txbroker.model.invariant import holds, ordered
from txbroker.model.log_position import JournalHolder, JournalId, LogPosition
from txbroker.model.publish_run import PublishRun
from txbroker.mqtt.wire.message import Message
from txbroker.storage.lived_time import wall


@attrs.frozen
class RecordOrigin:
    """What each record says of its making: the node's name, and the time of day from `now`."""

    node: str
    now: Callable[[], int] = wall


@attrs.frozen(kw_only=True)
class Qos0Rule:
    """
    Whether messages of QoS 0 become records.

    `is_short`: True if the disk must accept only records that a client waits for. Messages that are
    left out for that are counted.
    """

    are_stored: bool
    is_short: Callable[[], bool]
    counters: Counters


class ZoneStore:
    """
    The `ZoneJournal` of the authority of `zone`.

    `durable` is the offset up to which records may be delivered and acknowledged.

    Invariant: durable <= what the commit promises, and durable <= offset <= the reserved offset.
    Invariant: durable <= the last batch that is awaited <= offset.
    """

    def __init__(
        self,
        zone: str,
        *,
        data_directory: DataDirectory,
        origin: RecordOrigin,
        retention: Retention,
        ceiling: OffsetReservation,
        qos0: Qos0Rule,
    ) -> None:
        self.checkpoint = ZoneCheckpoint(zone, data_directory)
        self._zone = zone
        self._origin = origin
        self._data_directory = data_directory
        self._journals = data_directory.journals
        self._committer = data_directory.committer
        self._retention = retention
        self._ceiling = ceiling
        self._qos0 = qos0
        self._part: JournalPart | None = None
        self._authority: Authority | None = None
        self.durable = self._begun = 0

    def wire(self, authority: Authority) -> None:
        """Connect the authority whose state this store persists."""
        self._authority = authority
        self.checkpoint.wire(authority)
        authority.retained.keep = self._data_directory.attic.store
        authority.retained.now = self._data_directory.message_clock

    # from the authority (`ZoneJournal`)

    @property
    def stores_qos0(self) -> bool:
        """True if messages of QoS 0 become records."""
        return self._qos0.are_stored

    @property
    def offset(self) -> int:
        """Return the last assigned offset."""
        return 0 if self._part is None else self._part.next - 1

    @property
    def predecessor(self) -> LogPosition | None:
        """Return the end of the part that this part continues; None: no predecessor."""
        found = None if self._part is None else self._part.predecessor
        return None if found is None else LogPosition(*found)

    def open(self, epoch: int, predecessor: LogPosition | None) -> ZoneState:
        """Begin the part of this epoch, or continue an existing one; raises `StoreError`."""
        key = JournalId(self._zone, epoch)
        self._require_part(key)
        known = self.checkpoint.epoch
        own = self._journals.get(JournalId(self._zone, known))
        if predecessor is None and own is not None and self._journals.get(key) is None:
            predecessor = LogPosition(own.key, own.next - 1)
        part = self._journals.create(key, predecessor)
        before = part.predecessor
        if before is not None and before[0].zone == self._zone and known != epoch:
            # A crash between the part's beginning and its first commit repeats this step. A zone
            # from another owner brings its interested edges along instead.
            self._retention.start_part(key)
        self.checkpoint.open(part)
        if self._part is not None:
            # Offsets of an earlier epoch would be read as this epoch's.
            self._part.on_durable = None
        part.node = self._origin.node
        part.on_durable = self._on_durable
        self._part = part
        self._ceiling.open(part)
        self.durable = self._begun = part.next - 1
        return self.checkpoint.load(own)

    def append(self, message: Message, key: MarkKey | None, sequence: int) -> int:
        """
        Append a record; return its offset, or 0 for a QoS 0 message that is not stored.

        `key` and `sequence` are its origin id, if any.
        """
        if not message.qos and not self._has_room_for_qos0(1, message.size):
            return 0
        assert self._part is not None
        offset = self._part.append(message, key, sequence, time=self._origin.now())
        self._reserve(offset)
        return offset

    def append_run(self, run: PublishRun, key: MarkKey | None, sequence: int) -> int:
        """
        Append a record for each message of QoS 1 and 2; return the first of the consecutive
        offsets.

        `key` and `sequence` are the origin id of the last message, if any.
        """
        assert self._part is not None
        offset = self._part.append_run(run, key, sequence, time=self._origin.now())
        self._reserve(offset + run.count - 1)
        return offset

    def append_qos0(self, runs: Sequence[PublishRun]) -> int:
        """Append runs of QoS 0; return the last offset, or 0 if QoS 0 is not stored."""
        size = sum(run.size for run in runs)
        if not self._has_room_for_qos0(sum(run.count for run in runs), size):
            return 0
        assert self._part is not None
        last = self._part.append_qos0(runs, time=self._origin.now())
        self._reserve(last)
        return last

    def read(self, after: int, through: int) -> JournalChunk:
        """Return the next records of QoS 1 and 2 above `after` and up to `through`."""
        assert self._part is not None
        return self._data_directory.read(self._part, after, through, bound=through)

    def mark_retained_changed(self, topics: Iterable[str]) -> None:
        """Note that the retained messages of these topics changed."""
        self.checkpoint.mark_retained_changed(topics)

    def touched(self) -> set[str]:
        """Return the held filters that were subscribed to."""
        return self.checkpoint.touched()

    def store_touched(self, filters: Iterable[str]) -> None:
        """Store that these held filters were subscribed to; durable with the next commit."""
        self.checkpoint.store_touched(filters)

    def store_unclaimed(self, edges: Iterable[str]) -> None:
        """Store the unclaimed inheritances of these edges; durable with the next commit."""
        self.checkpoint.store_unclaimed(edges)

    def store_absorbed(self, apex: str, marks: dict[MarkKey, int]) -> None:
        """Store a whole absorbed subtree with its marks; durable with the next commit."""
        assert self._authority is not None
        self.checkpoint.store_absorbed(apex, marks)
        for entry in self._authority.unclaimed():
            if apex in entry.apexes:
                self.add_edge(entry.interest.edge, entry.apexes[apex])

    def store_marks(self, marks: Mapping[MarkKey, int]) -> None:
        """Store marks that another node told; durable with the next commit."""
        self.checkpoint.store_marks(marks)

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

    # from the node

    @property
    def present(self) -> JournalId | None:
        """Return the part that is appended to."""
        return None if self._part is None else self._part.key

    def close(self) -> None:
        """
        Write the last checkpoint and the exact end of the offsets, as the node ends in good order.
        """
        self.checkpoint.close()
        if self._part is not None:
            self._ceiling.close(self._part)

    def check(self) -> None:
        """State how far the zone is durable; after the end of a turn."""
        part = self._part
        if part is None:
            return
        part.check()
        promised = max(self._begun, self._committer.promised(part.log))
        ordered(self, 3, "durable <= promised by the commit", self.durable, promised)
        awaited = max(self.durable, part.awaited)
        ordered(self, 3, "durable <= awaited <= given", self.durable, awaited, self.offset)
        self.checkpoint.check()
        last = 0 if self._authority is None else self._authority.durable_at
        holds(self, 3, "who waits is told", part.is_due or last <= awaited, last, awaited)
        self._ceiling.check(part)

    # internal

    def _require_part(self, key: JournalId) -> None:
        """
        End the node if the part is missing although its offsets were given; raises `StoreError`.

        A new part in its place would pass for one whose records were all trimmed.
        """
        if self._journals.get(key) is None and self._ceiling.is_of(key.epoch):
            folder = self._journals.folder_of(key)
            error = StoreError(
                f"{folder}: this folder is missing; restore it from a backup, or use another `data`"
                " folder"
            )
            self._data_directory.fail(error)
            raise error

    def _reserve(self, offset: int) -> None:
        if offset > self._ceiling.ample:
            self._ceiling.raise_bound(offset)

    def _has_room_for_qos0(self, count: int, size: int) -> bool:
        """
        True if that many messages of QoS 0 may become records.

        QoS 0 has no back-pressure: on a short disk it would use up the reserve, and then the
        memory. A laden committer leaves it out too, so that no publish waits long behind it.
        """
        if not self._qos0.are_stored:
            return False
        assert self._part is not None
        if self._qos0.is_short() or self._committer.is_laden(self._part.gathered + size):
            self._qos0.counters.add("journal.left_out", count)
            return False
        return True

    def _on_durable(self, offset: int) -> None:
        """Let the authority settle the records up to the offset; write a checkpoint if due."""
        self.durable = offset
        assert self._authority is not None
        self._authority.on_durable(offset)
        many = self.offset - self.checkpoint.offset > CHECKPOINT_EVERY
        if many or self.checkpoint.changed_size > CHECKPOINT_BYTES:
            self.checkpoint.write()
