"""Outboxes in memory (`OutboxStore`): durable when the test's group commit says so."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.keeping import CommitRecorder
from txbroker.edge.routing.stored_outbox import OutboxChunk, OutboxEntry, OutboxState
from txbroker.mqtt.session.inbound_publish import OriginId
from txbroker.mqtt.wire.message import Message

CHUNK = 5
"""Entries in one chunk, so that a test sees several."""


class MemoryLog:
    """The entries of one outbox (`OutboxLog`)."""

    def __init__(self, commit: CommitRecorder, entries: list[OutboxEntry]) -> None:
        self.on_durable: Callable[[], None] = lambda: None
        self.entries = entries
        self.durable = len(entries)
        self.trimmed = 0
        self._commit = commit
        self._written = len(entries)
        self._holds: dict[int, int] = {}

    @property
    def next(self) -> int:
        return len(self.entries) + 1

    def append(self, message: Message, origin: OriginId | None, *, holds: int = 0) -> int:
        number = self.next
        self.entries.append(OutboxEntry(number, message, origin))
        if holds:
            self._holds[number] = holds
        else:
            self._commit.before_write(self._write)
        return number

    def release(self, number: int) -> None:
        self._holds[number] -= 1
        if not self._holds[number]:
            del self._holds[number]
            self._commit.before_write(self._write)

    def read(self, after: int) -> OutboxChunk:
        through = max(after, min(after + CHUNK, self.durable))
        return OutboxChunk(self.entries[after:through], through)

    def trim(self, through: int) -> None:
        self.trimmed = max(self.trimmed, through)

    def _write(self) -> None:
        through = min(self._holds, default=self.next) - 1
        if through > self._written:
            self._written = through
            self._commit.when_durable(lambda: self._on_durable(through))

    def _on_durable(self, through: int) -> None:
        self.durable = through
        self.on_durable()


class MemoryOutboxes:
    """
    The outboxes of a node; what is in `full` cannot be made now.

    `states` are as last saved, durable or not; a message counts for 100 bytes.
    """

    def __init__(self, commit: CommitRecorder) -> None:
        self.commit = commit
        self.states: dict[tuple[int, int, str], OutboxState] = {}
        self.logs: dict[tuple[int, int, str], MemoryLog] = {}
        self.full = False

    @property
    def size(self) -> int:
        return sum(100 * (log.durable - log.trimmed) for log in self.logs.values())

    def load(self) -> list[tuple[OutboxState, MemoryLog]]:
        return [(self.states[name], self.logs[name]) for name in sorted(self.states)]

    def create(self, state: OutboxState) -> MemoryLog | None:
        if self.full:
            return None
        self.save(state)
        log = self.logs[_name(state)] = MemoryLog(self.commit, [])
        return log

    def save(self, state: OutboxState) -> None:
        self.states[_name(state)] = state

    def drop(self, state: OutboxState, done: Callable[[], None]) -> None:
        del self.states[_name(state)], self.logs[_name(state)]
        self.commit.when_durable(done)

    def when_durable(self, action: Callable[[], None]) -> None:
        self.commit.when_durable(action)


def _name(state: OutboxState) -> tuple[int, int, str]:
    return state.incarnation, state.stream, state.zone
