"""
The wills that a zone has taken: each is taken once, whoever sends it (protocol rule 25).

That a node is dead nobody knows for certain, so its clients' wills may be sent by several nodes,
and by itself when it is back. What was taken is a mark like those of streams: written with the
record, moved with the zone.
"""

from __future__ import annotations

from collections.abc import Iterable

from txbroker.authority.handover import MarkKey, mark_of_will, will_of_mark
from txbroker.message import WillId

LIMIT = 50_000
"""Wills that are remembered; those that are sent twice are sent at about the same time."""


class TakenWills:
    """Among the `marks` of a zone, those of wills."""

    def __init__(self, marks: dict[MarkKey, int], limit: int = LIMIT) -> None:
        self._marks = marks
        self._limit = limit
        self._open: set[MarkKey] = set()
        self._known: dict[MarkKey, None] = {}

    def load(self) -> None:
        """The zone begins: nothing is on its way to the disk."""
        self._open.clear()
        self.learn(self._marks)

    def learn(self, keys: Iterable[MarkKey]) -> None:
        """These came among the marks."""
        self._known.update((key, None) for key in keys if will_of_mark(key) is not None)

    def begin(self, will: WillId) -> bool:
        """A will came in; False where it did before, and may just not be durable yet."""
        key = mark_of_will(will)
        if key in self._marks or key in self._open:
            return False
        self._open.add(key)
        return True

    def settle(self, will: WillId) -> None:
        """It is as safe as it gets; beyond the limit the oldest is forgotten."""
        key = mark_of_will(will)
        self._open.discard(key)
        self._marks[key] = 1
        self._known[key] = None
        while len(self._known) > self._limit:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._marks.pop(oldest, None)
