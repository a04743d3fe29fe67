"""A queue that rotates over sources, so that a crowd of one source delays no other source."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Rotation(Generic[K, T]):
    """
    A queue for each source; `count` is the total of all queues, and the length.

    An attribute costs a busy accept much less than a call of `len`.
    """

    def __init__(self) -> None:
        self._queues: OrderedDict[K, deque[T]] = OrderedDict()
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def add(self, source: K, one: T) -> None:
        """Enqueue an item behind all items of its source."""
        queue = self._queues.get(source)
        if queue is None:
            self._queues[source] = deque((one,))
        else:
            queue.append(one)
        self.count += 1

    def next(self) -> T:
        """
        Dequeue the first item of the source whose turn it is; that source then goes last.

        Raises `KeyError` if all queues are empty.
        """
        source, queue = self._queues.popitem(last=False)
        one = queue.popleft()
        if queue:
            self._queues[source] = queue
        self.count -= 1
        return one

    def drop_newest(self) -> T:
        """
        Remove the newest item of the source that has most of them.

        Raises `ValueError` if all queues are empty.
        """
        source = max(self._queues, key=lambda one: len(self._queues[one]))
        queue = self._queues[source]
        one = queue.pop()
        if not queue:
            del self._queues[source]
        self.count -= 1
        return one
