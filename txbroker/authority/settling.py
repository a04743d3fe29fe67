"""
What an authority has taken and may not show yet: it waits, in order, until it is durable.

Everything whose place among the records matters waits in the same queue (answers to interests,
cuts, the marks of a Welcome), each behind the last record that was taken before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs

from txbroker.authority.handover import MarkKey
from txbroker.authority.journal import Record
from txbroker.core import Run
from txbroker.message import Message

Action = Callable[[], None]


@attrs.frozen(slots=True, eq=False)
class Taken:
    """
    A record of QoS 1 or 2, or a run of them, none of which is to be retained. `key` and `sequence`
    are the origin id (of the last one), where it came from another node.
    """

    what: Record | Run
    key: MarkKey | None
    sequence: int


class Settling:
    """
    Everything up to offset `through` has settled: it is durable and was shown. `last` is the last
    record that was taken.
    """

    def __init__(self, through: int = 0) -> None:
        self.through = through
        self._queue: deque[tuple[int, Taken | Action]] = deque()
        self.last = through
        self._retained: dict[str, int] = {}
        self._overtaken: dict[str, int] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._queue

    def add(self, taken: Taken) -> None:
        """What was taken was appended."""
        what = taken.what
        self.last = what.last if isinstance(what, Run) else what.offset
        self._queue.append((self.last, taken))
        if isinstance(what, Record) and what.message.retain:
            self._retained[what.message.topic] = what.offset

    def in_order(self, action: Action) -> None:
        """Run it when everything that was taken before has settled."""
        if self._queue:
            # Not at the last offset of all: that may be a QoS 0 record's, which nothing waits for.
            self._queue.append((self.last, action))
        else:
            action()

    def next(self, durable: int) -> Taken | Action | None:
        """What settles next, now that records up to `durable` are."""
        if not self._queue or self._queue[0][0] > durable:
            return None
        self.through, item = self._queue.popleft()
        return item

    def overtake(self, message: Message) -> None:
        """A retained message of QoS 0 is newer than what waits on its topic."""
        if message.topic in self._retained:
            self._overtaken[message.topic] = self._retained[message.topic]

    def is_overtaken(self, record: Record) -> bool:
        """Whether a newer retained message was there before this one settled; ask once."""
        topic = record.message.topic
        is_older = record.offset <= self._overtaken.get(topic, 0)
        if record.offset == self._retained.get(topic):
            del self._retained[topic]
            self._overtaken.pop(topic, None)
        return is_older
