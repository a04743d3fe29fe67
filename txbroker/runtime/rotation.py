"""Who waits for a turn, by source: sources take turns, so that a crowd of one delays no other."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Rotation(Generic[K, T]):
    """A queue for each source; its length counts those who wait in all of them."""

    def __init__(self) -> None:
        self._queues: OrderedDict[K, deque[T]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, source: K, one: T) -> None:
        """It waits behind all of its source."""
        self._queues.setdefault(source, deque()).append(one)
        self._count += 1

    def next(self) -> T:
        """
        Take out the first one of the source whose turn it is; the other sources come next.

        Raises `KeyError` where nobody waits.
        """
        source, queue = self._queues.popitem(last=False)
        one = queue.popleft()
        if queue:
            self._queues[source] = queue
        self._count -= 1
        return one
