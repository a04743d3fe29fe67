"""
Results that were worked out for topics, kept as long as they are used and no longer.

Strangers name topics, as many as they like, and most of them once. A topic that came once must cost
little, and must not push out topics in use. So there are two generations. A new topic begins in the
young generation. When that is full it becomes the old one, and the topics of the old one are
forgotten. A topic of the old one that comes again is young again. So a topic in use stays while it
comes often enough: at least once in the time in which half of the limit of others come.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import getsizeof
from typing import Generic, TypeVar

V = TypeVar("V")

LONGEST = 512
"""Characters; for longer topics all is worked out each time."""

TOPIC_BYTES = 160
"""Bytes of a topic, on average; where topics take more, fewer of them are kept."""

ENTRY = 100
"""Bytes that a topic takes beside its text, in a table that has just grown."""


class TopicCache(Generic[V]):
    """
    Values, which are true, for topics: `limit` at the most, and `most_bytes` together; None: as
    much as so many topics take. `young` is to be looked at first; it is always the same table.
    `forgotten` counts how often a generation went that had something.
    """

    def __init__(
        self,
        limit: int,
        most_bytes: int | None = None,
        size_of: Callable[[V], int] = lambda value: 0,
    ) -> None:
        """`size_of` tells the bytes of a value that is no other topic's."""
        self.young: dict[str, V] = {}
        self.limit = limit
        self.forgotten = 0
        self._most_bytes = most_bytes
        self._size_of = size_of
        self._old: dict[str, V] = {}
        self._size = 0  # bytes of the young ones

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    def again(self, topic: str) -> V | None:
        """The value of a topic that is not young; the topic is, from now on. None: not known."""
        value = self._old.pop(topic, None)
        if value is not None:
            self.put(topic, value)
        return value

    def put(self, topic: str, value: V) -> None:
        """Remember the value of a topic that is not known."""
        if not self.limit or len(topic) > LONGEST:
            return
        most = self.limit * TOPIC_BYTES if self._most_bytes is None else self._most_bytes
        size = getsizeof(topic) + ENTRY + self._size_of(value)
        if self.young and (len(self.young) * 2 >= self.limit or (self._size + size) * 2 > most):
            self.forgotten += bool(self._old)
            self._old = dict(self.young)
            self.young.clear()
            self._size = 0
        if size * 2 <= most:
            self.young[topic] = value
            self._size += size

    def clear(self) -> None:
        """Forget all results: their causes have changed."""
        if self.young or self._old:
            self.young.clear()
            self._old.clear()
            self._size = 0
