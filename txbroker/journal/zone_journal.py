"""
The journal of a zone, as its authority sees it.

A record is delivered and acknowledged when it is durable (protocol rule 3): `ZoneJournal.durable`
says how far that is, and the store calls the authority's `on_durable` when it has moved. What a
crash must not forget beside the records (the retained messages, the marks, edges that have not
claimed what they inherited) is told here, too; the store decides when it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
"""What a record that was made takes beside two copies of its packet, about."""


@attrs.define(slots=True, eq=False)
class Record:
    """A message with its place in the zone's journal; offsets start at 1 in each epoch."""

    offset: int
    message: Message


class Records:
    """
    Records in order, of which `stored` has what is stored: one is made when somebody wants it, and
    then kept for the next one who does. A place is the index of a record.
    """

    __slots__ = ("_made", "_made_size", "stored")

    def __init__(self, stored: StoredRecords) -> None:
        self.stored = stored
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
        """Bytes that all this takes, about."""
        return self.stored.size + self._made_size

    def _make(self, place: int) -> Record:
        offset, topic, payload, qos, retain, client, node, packet = self.stored.record(place)
        message = Message(topic, payload, qos, retain, client, None, node, packet)
        record = self._made[place] = Record(offset, message)
        self._made_size += MADE_BYTES + 2 * len(packet)
        return record


@attrs.frozen(kw_only=True)
class JournalChunk:
    """
    Records in order, as far as they were kept: everything up to offset `through` was looked at, and
    offsets below `first` are kept no longer. The journal goes on to offset `last`, and takes `rest`
    bytes at most above `through`. `is_closed`: nothing will be added to it. `passages` are
    those that leave or enter the part within what was looked at.
    """

    records: Records
    through: int
    first: int
    last: int = 0
    rest: int = 0
    is_closed: bool = False
    passages: tuple[EpochTransition, ...] = ()

    def missed(self, after: int) -> int:
        """Offsets above `after` that a reader from there on does not get any more."""
        return max(self.first - 1 - after, 0)


@attrs.frozen(kw_only=True)
class Unclaimed:
    """
    What an edge inherited and has not claimed: apex and the offset it starts behind. `heard`: the
    same of apexes that were reclaimed, and that it has claimed.
    """

    interest: EdgeInterest
    apexes: dict[str, int]
    heard: dict[str, int] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class ZoneState:
    """
    What a zone was when its store was closed or its process died; `retained`: packed messages by
    the names of their topics (see `retained`).
    """

    retained: dict[bytes, StoredValue] = attrs.field(factory=dict)
    marks: dict[MarkKey, int] = attrs.field(factory=dict)
    unclaimed: tuple[Unclaimed, ...] = ()


class ZoneJournal(Protocol):
    """The present part of the zone's journal, and what is kept with it."""

    @property
    def offset(self) -> int:
        """The last offset that was given to a record."""

    @property
    def durable(self) -> int:
        """Records up to this offset may be delivered and acknowledged."""

    @property
    def keeps_qos0(self) -> bool:
        """Whether messages of QoS 0 become records, too."""

    @property
    def predecessor(self) -> LogPosition | None:
        """Where the part goes on from: the end of another one; None: nowhere."""

    def open(self, epoch: int, predecessor: LogPosition | None) -> ZoneState:
        """Begin the part of this epoch, or go on with it where it exists."""

    def append(self, message: Message, key: MarkKey | None, sequence: int) -> int:
        """Add a record; its offset. `key` and `sequence` are its origin id, where it has one."""

    def append_run(self, run: PublishRun, key: MarkKey | None, sequence: int) -> int:
        """
        Add a record for each message of QoS 1 and 2; the offset of the first, which the others'
        follow. `key` and `sequence` are the origin id of the last one, where it has one.
        """

    def append_qos0(self, runs: Sequence[PublishRun]) -> int:
        """The same for runs of QoS 0; the last offset, or 0 where they are not kept."""

    def read(self, after: int, through: int) -> JournalChunk:
        """The next records of QoS 1 and 2 above `after`, none above `through`."""

    def note_retained(self, topics: Iterable[str]) -> None:
        """The retained messages of these topics changed."""

    def note_unclaimed(self, edges: Iterable[str]) -> None:
        """What these edges have not claimed changed."""

    def note_absorbed(self, apex: str, marks: dict[MarkKey, int]) -> None:
        """
        A subtree came in as a whole, with these marks; it is durable with the next group commit.

        Whatever else waits for the disk meanwhile: none of it is about the subtree.
        """

    def note_reclaimed(self, apex: str, offset: int) -> None:
        """Edges that are not known here may need what lies above this offset."""

    def note_edge(self, edge: str, offset: int) -> None:
        """An edge takes part from this offset on; `keep` says more."""

    def has_room_for(self, edge: str) -> bool:
        """True if marks of the edge are kept, or there is room for those of another one."""

    def forget_edge(self, edge: str) -> None:
        """Nothing is kept for the edge any more."""

    def keep(
        self,
        edge: str,
        places: dict[JournalId, int],
        holders: Mapping[JournalId, tuple[JournalHolder, ...]],
    ) -> None:
        """
        The low-water marks of an edge: what its sessions need lies above these offsets. `holders`
        are the sessions that hold back most of each part.
        """

    def when_kept(self, action: Callable[[], None]) -> None:
        """Run `action` when the marks that were told so far are durable."""
