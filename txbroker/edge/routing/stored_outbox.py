"""The stored values of an outbox, and the ports to its storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import attrs

from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.mqtt.session.inbound_publish import OriginId
from txbroker.mqtt.wire.message import Message


class OutboxEntry(NamedTuple):
    """A publish in an outbox; `origin` is the id under which it was sent before, if it was."""

    number: int
    message: Message
    origin: OriginId | None


class OutboxChunk(NamedTuple):
    """Entries in order; all entries up to the number `through` were read."""

    entries: list[OutboxEntry]
    through: int


@attrs.frozen(kw_only=True)
class DrainState:
    """
    The stored state of a drain: the part of an outbox that goes to the zone `apex`.

    Entries up to `taken` are accepted, or belong to other drains. `doubts` are further streams,
    beside its own, in which an owner may have accepted its entries.
    """

    apex: str
    taken: int = 0
    doubts: tuple[MarkKey, ...] = ()


@attrs.frozen(kw_only=True)
class OutboxState:
    """
    The stored state of an outbox, without its entries.

    `incarnation`, `stream` and the `zone` for which it was made are its key. `origins` are the
    streams in which entries were sent before they entered the outbox.
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
        """Entries up to this number are durable, and can be read."""

    def append(self, message: Message, origin: OriginId | None, *, holds: int = 0) -> int:
        """
        Append an entry; return its number. The entry, with all after it, waits for `holds` calls of
        `release`.
        """

    def release(self, number: int) -> None:
        """Release one hold of the entry: one of the writes that it waited for is durable."""

    def read(self, after: int) -> OutboxChunk:
        """Return the next durable entries above `after`, some hundreds at most."""

    def trim(self, through: int) -> None:
        """Free entries up to this number."""


class OutboxStore(Protocol):
    """Stores the outboxes of a node."""

    @property
    def size(self) -> int:
        """Bytes of all outboxes on the disk."""

    def load(self) -> list[tuple[OutboxState, OutboxLog]]:
        """Load the outboxes after a start, the oldest first."""

    def create(self, state: OutboxState) -> OutboxLog | None:
        """Create an outbox; return None if the disk does not allow it now."""

    def save(self, state: OutboxState) -> None:
        """Save the state with the next commit."""

    def drop(self, state: OutboxState, done: Callable[[], None]) -> None:
        """Delete an outbox; `done` is called when a crash can no longer restore it."""

    def when_durable(self, action: Callable[[], None]) -> None:
        """Run `action` when all that was saved so far is durable."""
