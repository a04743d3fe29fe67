"""What of an outbox is kept on the disk, and what keeps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import attrs

from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.mqtt.session.inbound_publish import OriginId
from txbroker.mqtt.wire.message import Message


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
