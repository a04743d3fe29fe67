"""
The journal of a zone, as its authority sees it.

A record is delivered and acknowledged when it is durable (protocol rule 3). `ZoneJournal.durable`
is the durable offset, and the store calls the authority's `on_durable` when it advances. The
journal also stores the state that a crash must not forget: retained messages, marks, and edges with
unclaimed inheritances. The store decides when each is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import attrs

from txbroker.core import StoredRecords
from txbroker.delegation.zone_snapshot import EdgeInterest, MarkKey
from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.log_position import JournalHolder, JournalId, LogPosition
from txbroker.model.publish_run import PublishRun
from txbroker.model.stored_value import StoredValue
from txbroker.mqtt.wire.message import Message

MADE_BYTES = 512
"""Approximate bytes of a made record beside two copies of its packet."""


@attrs.define(slots=True, eq=False)
class Record:
    """A message with its offset in the zone's journal; offsets start at 1 in each epoch."""

    offset: int
    message: Message


class Records:
    """
    Records in order, made on demand out of `stored` and cached. An index counts records from 0.

    `age` returns the seconds since an offset was appended. A message that expires has what is left
    of its interval.
    """

    __slots__ = ("_made", "_made_size", "age", "stored")

    def __init__(self, stored: StoredRecords, age: Callable[[int], float] = lambda _: 0.0) -> None:
        self.stored = stored
        self.age = age
        self._made: dict[int, Record] = {}
        self._made_size = 0

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, place: int) -> Record:
        try:
            return self._made[place]
        except KeyError:
            return self._make(place)

    def __iter__(self) -> Iterator[Record]:
        return map(self.__getitem__, range(len(self)))

    @property
    def size(self) -> int:
        """Return the approximate bytes of stored and made records."""
        return self.stored.size + self._made_size

    def _make(self, place: int) -> Record:
        offset, topic, payload, qos, retain, client, node, properties, packet = self.stored.record(
            place
        )
        message = Message(topic, payload, qos, retain, client, None, node, packet, properties)
        if message.expiry is not None:
            # Such a message is not cached: the rest of its interval changes.
            return Record(offset, message.aged(self.age(offset)))
        record = self._made[place] = Record(offset, message)
        self._made_size += MADE_BYTES + 2 * len(packet)
        return record


@attrs.frozen(kw_only=True)
class JournalChunk:
    """
    Records in order, as far as they were read.

    - `through`: the scan covers all offsets up to this one.
    - `first`: the journal no longer has offsets below this one.
    - `last`: the journal's last offset.
    - `rest`: the most bytes of the journal above `through`.
    - `is_closed`: no record will be appended.
    - `is_named`: the records name their publishers.
    - `passages`: the epoch transitions that leave or enter the part within the scan.
    """

    records: Records
    through: int
    first: int
    last: int = 0
    rest: int = 0
    is_closed: bool = False
    is_named: bool = True
    passages: tuple[EpochTransition, ...] = ()

    def missed(self, after: int) -> int:
        """Return the number of offsets above `after` that the journal no longer has."""
        return max(self.first - 1 - after, 0)


@attrs.frozen(kw_only=True)
class Unclaimed:
    """
    An edge's unclaimed inheritances: apexes with the offset behind which each starts.

    `heard`: the same for reclaimed apexes that the edge has claimed.
    """

    interest: EdgeInterest
    apexes: dict[str, int]
    heard: dict[str, int] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class ZoneState:
    """
    A zone's state when its store was closed or its process died.

    `retained`: stored messages by topic name (see `RetainedMessages`).
    """

    retained: dict[bytes, StoredValue] = attrs.field(factory=dict)
    marks: dict[MarkKey, int] = attrs.field(factory=dict)
    unclaimed: tuple[Unclaimed, ...] = ()


class ZoneJournal(Protocol):
    """The present part of the zone's journal, and the zone's other durable state."""

    @property
    def offset(self) -> int:
        """Return the last assigned offset."""

    @property
    def durable(self) -> int:
        """Return the offset up to which records may be delivered and acknowledged."""

    @property
    def stores_qos0(self) -> bool:
        """True if messages of QoS 0 become records too."""

    @property
    def predecessor(self) -> LogPosition | None:
        """Return the end of the part that this part continues; None: no predecessor."""

    def open(self, epoch: int, predecessor: LogPosition | None) -> ZoneState:
        """Begin the part of this epoch, or continue an existing one."""

    def append(self, message: Message, key: MarkKey | None, sequence: int) -> int:
        """
        Append a record; return its offset, or 0 for a QoS 0 message that is not stored.

        `key` and `sequence` are its origin id, if any.
        """

    def append_run(self, run: PublishRun, key: MarkKey | None, sequence: int) -> int:
        """
        Append a record for each message of QoS 1 and 2; return the first of the consecutive
        offsets.

        `key` and `sequence` are the origin id of the last message, if any.
        """

    def append_qos0(self, runs: Sequence[PublishRun]) -> int:
        """Append runs of QoS 0; return the last offset, or 0 if QoS 0 is not stored."""

    def read(self, after: int, through: int) -> JournalChunk:
        """Return the next records of QoS 1 and 2 above `after` and up to `through`."""

    def mark_retained_changed(self, topics: Iterable[str]) -> None:
        """Note that the retained messages of these topics changed."""

    def touched(self) -> set[str]:
        """Return the held filters that were subscribed to, as far as that is stored."""

    def store_touched(self, filters: Iterable[str]) -> None:
        """Store that somebody has subscribed to these held filters."""

    def store_unclaimed(self, edges: Iterable[str]) -> None:
        """Store the unclaimed inheritances of these edges."""

    def store_absorbed(self, apex: str, marks: dict[MarkKey, int]) -> None:
        """
        Store a whole absorbed subtree with its marks; durable with the next group commit.

        Other records that wait for the disk do not concern the subtree.
        """

    def store_marks(self, marks: Mapping[MarkKey, int]) -> None:
        """Store marks that another node told; durable with the next group commit."""

    def reserve_reclaimed(self, apex: str, offset: int) -> None:
        """Reserve the records above this offset for edges that are not known here."""

    def add_edge(self, edge: str, offset: int) -> None:
        """Retain records from this offset on for the edge; `set_low_water` refines the offset."""

    def has_room_for(self, edges: Collection[str]) -> bool:
        """True if each edge has low-water marks, or there is room for those of all the others."""

    def has_room_to_reserve(self, apex: str) -> bool:
        """True if there is room for the reservation of a reclaimed apex: it counts as an edge."""

    def forget_edge(self, edge: str) -> None:
        """Forget the low-water marks of the edge."""

    def set_low_water(
        self,
        edge: str,
        places: dict[JournalId, int],
        holders: Mapping[JournalId, tuple[JournalHolder, ...]],
    ) -> None:
        """
        Store the low-water marks of an edge: its sessions need the records above these offsets.

        `holders` are the sessions that hold back the most records of each part.
        """

    def when_kept(self, action: Callable[[], None]) -> None:
        """Run `action` when the marks stored so far are durable."""
