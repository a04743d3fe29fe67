"""
What an authority has taken and may not show yet: it waits, in order, until it is durable.

Everything whose place among the records matters waits in the same queue (answers to interests,
cuts, the marks of a Welcome), each behind the last record that was taken before it.

An entry has three states: taken, durable, settled. The authority takes an entry at the end of the
queue. The journal tells an offset up to which records are durable. The queue then gives up entries
up to that offset, from the front; the authority shows and acknowledges them. No entry is skipped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from txbroker.core import Run
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.journal.zone_journal import Record
from txbroker.model.invariant import holds, ordered
from txbroker.mqtt.wire.message import Message

Action = Callable[[], None]

Taken = tuple[int, Record | Run | Action, MarkKey | None, int]
"""
One queue entry: its offset, its content, and the origin id of a publish of another node.

The content is a record of QoS 1 or 2, a run of them without retained messages, or an action. The
origin id is that of a run's last message.
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

    def add(self, record: Record, key: MarkKey | None, sequence: int) -> None:
        """Enqueue an appended record."""
        self.last = record.offset
        self._queue.append((self.last, record, key, sequence))
        if record.message.retain:
            self._retained[record.message.topic] = record.offset

    def add_run(self, run: Run, last: int, key: MarkKey | None, sequence: int) -> None:
        """Enqueue an appended run, whose last offset is `last`."""
        self.last = last
        self._queue.append((last, run, key, sequence))

    def in_order(self, action: Action) -> None:
        """Run the action when all entries before it have settled; at once if the queue is empty."""
        if self._queue:
            # The last offset of all may be a QoS 0 record's, which the queue never reaches.
            self._queue.append((self.last, action, None, 0))
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
