"""
Records that an authority has taken and may not show yet: each waits, in order, until it is durable.

Of a zone's parts, only this queue knows what waits for which offset. Everything whose place among
the records matters waits in the same queue: records, receipts, answers to interests, cuts, the
marks of a Welcome. Each waits behind the last record that was taken before it. A receipt names who
is to hear that a record is safe.

An entry has three states: taken, durable, settled. The authority takes an entry at the end of the
queue. The journal tells an offset up to which records are durable. The queue then gives up entries
up to that offset, from the front; the authority shows and acknowledges them. No entry is skipped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from txbroker.core import Run
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.journal.zone_journal import Record
from txbroker.model.invariant import holds, ordered
from txbroker.mqtt.wire.message import Message

Action = Callable[[], None]


class PublishSource(Protocol):
    """Whoever hands publishes to the authority: a stream on a link, or the node's own edge."""

    def on_settled(self, tickets: Sequence[Any]) -> None:
        """Acknowledge the publishes with these tickets, in order: they are durable and shown."""

    def on_void(self, tickets: Sequence[Any]) -> None:
        """Take the publishes with these tickets back: their epoch ended first."""


Receipt = tuple[PublishSource, Any]
"""
The source that is to hear that a publish is safe, and the ticket by which it knows the publish.
"""

Taken = tuple[int, Record | Run | Action | None, MarkKey | None, int, Receipt | None]
"""
A queue entry: its offset, its content, the origin id of a publish of another node, the receipt.

The content is a record of QoS 1 or 2, a run of such records without retained messages, or an
action. The content is None for a receipt alone. The origin id is that of a run's last message.
"""


class CommitQueue:
    """
    Everything up to offset `through` has settled: it is durable and was shown. `last` is the last
    record that was taken.

    Invariant: through <= offset of each entry, in its order <= last.
    """

    def __init__(self, through: int = 0) -> None:
        self.through = through
        self._queue: deque[Taken] = deque()
        self.last = through
        self._retained: dict[str, int] = {}
        self._overtaken: dict[str, int] = {}

    @property
    def is_empty(self) -> bool:
        """True if the queue has no entry."""
        return not self._queue

    def add(
        self, record: Record, key: MarkKey | None, sequence: int, receipt: Receipt | None
    ) -> None:
        """Enqueue an appended record."""
        self.last = record.offset
        self._queue.append((self.last, record, key, sequence, receipt))
        if record.message.retain:
            self._retained[record.message.topic] = record.offset

    def add_run(
        self, run: Run, last: int, key: MarkKey | None, sequence: int, receipt: Receipt | None
    ) -> None:
        """Enqueue an appended run, whose last offset is `last`."""
        self.last = last
        self._queue.append((last, run, key, sequence, receipt))

    def add_receipt(self, receipt: Receipt) -> None:
        """Enqueue a receipt for a publish that was taken before; at once if the queue is empty."""
        if self._queue:
            self._queue.append((self.last, None, None, 0, receipt))
        else:
            source, ticket = receipt
            source.on_settled((ticket,))

    def in_order(self, action: Action) -> None:
        """Run the action when all entries before it have settled; at once if the queue is empty."""
        if self._queue:
            # The last offset of all may be a QoS 0 record's, which the queue never reaches.
            self._queue.append((self.last, action, None, 0, None))
        else:
            action()

    def next(self, durable: int) -> list[Taken]:
        """
        Dequeue the next entries to settle, given that records up to `durable` are durable.

        The entries are consecutive runs, or a single record or action.
        """
        queue = self._queue
        taken: list[Taken] = []
        while queue and queue[0][0] <= durable:
            is_run = isinstance(queue[0][1], Run)
            if taken and not is_run:
                break
            taken.append(queue.popleft())
            if not is_run:
                break
        if taken:
            self.through = taken[-1][0]
        return taken

    def void(self) -> None:
        """Give all receipts back, as the epoch has ended; the queue is not used any more."""
        entries, self._queue = self._queue, deque()
        for source, tickets in by_source(entries).items():
            source.on_void(tickets)

    def check(self, durable: int) -> None:
        """State the order of what waits; records up to `durable` are durable."""
        waiting = [entry[0] for entry in self._queue]
        ordered(self, 3, "through <= waiting <= last", self.through, *waiting, self.last)
        holds(self, 3, "what is durable has settled", not waiting or waiting[0] > durable, durable)
        strange = self._overtaken.keys() - self._retained.keys()
        holds(self, 9, "only what waits is overtaken", not strange, strange)

    def overtake(self, message: Message) -> None:
        """Note that a retained message of QoS 0 is newer than the queued records of its topic."""
        if message.topic in self._retained:
            self._overtaken[message.topic] = self._retained[message.topic]

    def is_overtaken(self, record: Record) -> bool:
        """
        True if a newer retained message of QoS 0 came before this record settled; call once per
        record.
        """
        topic = record.message.topic
        is_older = record.offset <= self._overtaken.get(topic, 0)
        if record.offset == self._retained.get(topic):
            del self._retained[topic]
            self._overtaken.pop(topic, None)
        return is_older


def by_source(entries: Iterable[Taken]) -> dict[PublishSource, list[Any]]:
    """Return the tickets of the entries, in order, by the source that waits for them."""
    found: dict[PublishSource, list[Any]] = {}
    for entry in entries:
        if entry[4] is not None:
            source, ticket = entry[4]
            found.setdefault(source, []).append(ticket)
    return found
