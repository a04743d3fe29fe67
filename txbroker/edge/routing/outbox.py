"""
An outbox: publishes that were acknowledged to their clients and wait for an owner.

Its entries are numbered and never change; an entry's number is its sequence in the stream that the
outbox is (protocol rule 1). What of it goes to which owner are its drains: one for the zone that it
was made for, one more for each deeper zone that turns out to have topics in it. An entry belongs to
the deepest drain that covers its topic. So nothing is ever moved or numbered anew, however often
the tree changes under it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import attrs

from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.model.topics import is_within
from txbroker.mqtt.session.inbound_publish import OriginId
from txbroker.mqtt.wire.message import Message

if TYPE_CHECKING:
    from txbroker.edge.routing.outbox_drain import OutboxDrain

REMEMBERED = 100_000
"""Clients, and topics, of which an outbox knows the last entry; beyond that, any may have one."""


class OutboxEntry(NamedTuple):
    """A publish in an outbox; `origin` where it was sent before it came there."""

    number: int
    message: Message
    origin: OriginId | None


class OutboxChunk(NamedTuple):
    """Entries in order; all up to the number `through` were looked at."""

    entries: list[OutboxEntry]
    through: int


@attrs.frozen(kw_only=True)
class DrainState:
    """
    What of an outbox goes to the zone `apex`, as it is stored.

    Entries up to `taken` are no concern of it any more. `doubts` are streams in which its entries
    may have been taken, beside its own.
    """

    apex: str
    taken: int = 0
    doubts: tuple[MarkKey, ...] = ()


@attrs.frozen(kw_only=True)
class OutboxState:
    """
    An outbox as it is stored, without its entries.

    `incarnation` and `stream` name it, with the `zone` that it was made for; `origins` are the
    streams in which entries were sent before they came there.
    """

    zone: str
    incarnation: int
    stream: int
    drains: tuple[DrainState, ...]
    origins: tuple[MarkKey, ...] = ()


class OutboxLog(Protocol):
    """The entries of one outbox, on the disk."""

    on_durable: Callable[[], None]
    """Called when `durable` has grown."""

    @property
    def next(self) -> int:
        """The number that the next entry gets."""

    @property
    def durable(self) -> int:
        """Entries up to this number are safe, and can be read."""

    def append(self, message: Message, origin: OriginId | None, *, holds: int = 0) -> int:
        """Add an entry; its number. It, and all after it, wait for so many calls of `release`."""

    def release(self, number: int) -> None:
        """Something that the entry waited for is durable."""

    def read(self, after: int) -> OutboxChunk:
        """The next durable entries above `after`, some hundreds at the most."""

    def trim(self, through: int) -> None:
        """Entries up to this number are needed no longer."""


class OutboxStore(Protocol):
    """Keeps the outboxes of a node."""

    @property
    def size(self) -> int:
        """Bytes that all of them take."""

    def load(self) -> list[tuple[OutboxState, OutboxLog]]:
        """Those that are there after a start, the oldest first."""

    def make(self, state: OutboxState) -> OutboxLog | None:
        """A new one; None where the disk does not allow it now."""

    def save(self, state: OutboxState) -> None:
        """Keep its state with the next commit."""

    def drop(self, state: OutboxState, done: Callable[[], None]) -> None:
        """Delete it; `done` is called when it will not come back after a crash."""

    def when_durable(self, action: Callable[[], None]) -> None:
        """Run `action` when all that was saved so far is durable."""


class Outbox:
    """One outbox; `is_open` while entries are added, `is_restored` when an earlier process did."""

    def __init__(self, key: MarkKey, log: OutboxLog, *, is_restored: bool) -> None:
        self.key = key
        self.log = log
        self.is_open = not is_restored
        self.is_dirty = False
        self.origins: dict[MarkKey, None] = {}
        self.drains: list[OutboxDrain] = []
        # Who has an entry, and on which topic, is not kept: after a restart anybody may.
        self._clients = _Lasts(self.last)
        self._topics = _Lasts(self.last)

    @property
    def zone(self) -> str:
        """The zone that it was made for."""
        return self.key[2]

    @property
    def last(self) -> int:
        """The number of its last entry."""
        return self.log.next - 1

    @property
    def age(self) -> tuple[int, int]:
        """Grows from one outbox to the next one that was made."""
        return self.key[1], self.key[3]

    @property
    def is_empty(self) -> bool:
        """Whether all that is in it was taken."""
        return not any(drain.is_busy for drain in self.drains)

    def note(self, message: Message, number: int) -> None:
        """An entry was added."""
        self._clients.set(message.client_id, number)
        self._topics.set(message.topic, number)

    def may_hold(self, client_id: str, after: int) -> bool:
        """Whether there may be an entry of the client above this number."""
        return self._clients.get(client_id) > after

    def may_concern(self, apex: str, after: int) -> bool:
        """Whether there may be an entry above this number with a topic within the apex."""
        return self._topics.floor > after or any(
            number > after and is_within(topic, apex) for topic, number in self._topics.items()
        )

    def drain_at(self, apex: str) -> OutboxDrain | None:
        """The drain for this zone."""
        return next((drain for drain in self.drains if drain.apex == apex), None)

    def drain_of(self, topic: str) -> OutboxDrain:
        """The drain that entries on a topic belong to, those that are not taken."""
        if len(self.drains) == 1:
            return self.drains[0]
        covering = [drain for drain in self.drains if is_within(topic, drain.apex)]
        return max(covering, key=lambda drain: len(drain.apex))

    def children(self, drain: OutboxDrain) -> list[OutboxDrain]:
        """The drains that were split off this one and do not know yet what it left them."""
        return [other for other in self.drains if drain.key in other.doubts]

    def keys(self) -> Iterable[MarkKey]:
        """Every stream that an owner may be asked about for it."""
        yield from self.origins
        for drain in self.drains:
            yield drain.key
            yield from drain.doubts

    def trim(self) -> None:
        """Give back what all drains have behind them."""
        self.log.trim(min(drain.taken if drain.is_busy else self.last for drain in self.drains))

    @property
    def state(self) -> OutboxState:
        """As it is to be stored now."""
        _, incarnation, zone, stream = self.key
        return OutboxState(
            zone=zone,
            incarnation=incarnation,
            stream=stream,
            drains=tuple(drain.state for drain in self.drains),
            origins=tuple(self.origins),
        )


class _Lasts:
    """The last entry for each of some names; for those that are not known it is `floor`."""

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self._lasts: dict[str, int] = {}

    def set(self, name: str, number: int) -> None:
        if len(self._lasts) >= REMEMBERED and name not in self._lasts:
            self.floor = max(self._lasts.values())
            self._lasts.clear()
        self._lasts[name] = number

    def get(self, name: str) -> int:
        return self._lasts.get(name, self.floor)

    def items(self) -> Iterable[tuple[str, int]]:
        return self._lasts.items()
