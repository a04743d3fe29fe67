"""
SHELL: outboxes whose entries lie in a journal of this node, beside those with files of their own.

The number of an entry is its offset, and the stream names the journal's part. A (zone, epoch,
offset) is never given twice. So the owner recognises what it has taken, whatever dies meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from txbroker.edge.routing.stored_outbox import (
    OutboxChunk,
    OutboxEntry,
    OutboxLog,
    OutboxState,
    OutboxStore,
)
from txbroker.mqtt.session.inbound_publish import OriginId
from txbroker.mqtt.wire.message import Message

READS = 4
"""Reads in one turn that find no entry; others have their turn before the next ones."""

ReadRecords = Callable[[int], tuple[list[tuple[int, Message]], int]]
"""Return the next entries above an offset, and the offset up to which they are complete."""


class JournalEntries:
    """
    The entries of one outbox (`OutboxLog`), up to the offset `through`; none is added.

    `save` makes durable up to which offset owners have them, `end` that they have all.
    """

    def __init__(
        self,
        through: int,
        read: ReadRecords,
        save: Callable[[int], None],
        end: Callable[[Callable[[], None]], object],
    ) -> None:
        self.on_durable: Callable[[], None] = lambda: None
        self.durable = through
        self.end = end
        self._read = read
        self._save = save
        self._taken = 0
        self._reads = 0

    @property
    def next(self) -> int:
        """The number behind the last entry."""
        return self.durable + 1

    def append(self, message: Message, origin: OriginId | None, *, holds: int = 0) -> int:
        """Refuse an entry: the outbox is closed from its beginning."""
        raise AssertionError("an outbox in a journal takes no entries")

    def release(self, number: int) -> None:
        """Refuse as `append` does."""
        raise AssertionError("an outbox in a journal takes no entries")

    def read(self, after: int) -> OutboxChunk:
        """Return the next entries above `after`; none for this turn when others have to work."""
        if self._reads >= READS:
            asyncio.get_running_loop().call_soon(self._go_on)
            return OutboxChunk([], after)
        found, through = self._read(after)
        self._reads = 0 if found else self._reads + 1
        return OutboxChunk([OutboxEntry(offset, one, None) for offset, one in found], through)

    def trim(self, through: int) -> None:
        """Note that owners have the entries up to this number."""
        self._taken = through

    def save(self) -> None:
        """Make durable how far owners have the entries."""
        self._save(self._taken)

    def _go_on(self) -> None:
        self._reads = 0
        self.on_durable()


class JournalOutboxes:
    """All outboxes of a node (`OutboxStore`): those of `files`, and those in journals."""

    def __init__(self, files: OutboxStore) -> None:
        self._files = files
        self._entries: dict[tuple[str, int, int], JournalEntries] = {}

    def add(self, state: OutboxState, entries: JournalEntries) -> None:
        """Add an outbox in a journal."""
        self._entries[_name(state)] = entries

    @property
    def size(self) -> int:
        """Bytes of all outboxes that have files."""
        return self._files.size

    def load(self) -> list[tuple[OutboxState, OutboxLog]]:
        """Load the outboxes that have files; the others are added."""
        return self._files.load()

    def create(self, state: OutboxState) -> OutboxLog | None:
        """Create an outbox with files; return None if the disk does not allow it now."""
        return self._files.create(state)

    def save(self, state: OutboxState) -> None:
        """Save the state of an outbox."""
        entries = self._entries.get(_name(state))
        if entries is None:
            self._files.save(state)
        else:
            entries.save()

    def drop(self, state: OutboxState, done: Callable[[], None]) -> None:
        """Forget an outbox; `done` is called when a crash can no longer restore it."""
        entries = self._entries.pop(_name(state), None)
        if entries is None:
            self._files.drop(state, done)
        else:
            entries.end(done)

    def when_durable(self, action: Callable[[], None]) -> None:
        """Run `action` when all that was saved so far is durable."""
        self._files.when_durable(action)


def _name(state: OutboxState) -> tuple[str, int, int]:
    return state.zone, state.incarnation, state.stream
