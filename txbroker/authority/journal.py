"""
The recent end of a zone's journal, in memory.

It serves those who fell behind a little: an edge whose link broke, and the edges of a zone that has
just changed hands. It keeps QoS 1 and 2 only (protocol rule 5 resends no QoS 0) and has two limits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import attrs

from txbroker.message import Message


@attrs.define(slots=True, eq=False)
class Record:
    """A message with its place in the zone's journal; offsets start at 1 in each epoch."""

    offset: int
    message: Message


class RecentJournal:
    """The last `messages` records or `size` bytes of them, whichever is less."""

    def __init__(self, messages: int, size: int = 64 * 1024 * 1024) -> None:
        self._records: deque[Record] = deque()
        self._limit = messages
        self._size_limit = size
        self._size = 0
        self._lost_through = 0

    def __len__(self) -> int:
        return len(self._records)

    def append(self, record: Record) -> None:
        """Add a record; the oldest ones go where a limit is passed."""
        self._records.append(record)
        self._size += record.message.size
        while len(self._records) > self._limit or self._size > self._size_limit:
            gone = self._records.popleft()
            self._size -= gone.message.size
            self._lost_through = gone.offset

    def after(self, offset: int) -> Iterator[Record]:
        """The kept records with a greater offset, oldest first."""
        return (record for record in self._records if record.offset > offset)

    def missing_after(self, offset: int) -> int:
        """How many offsets above `offset` may have held records that are no longer kept."""
        return max(self._lost_through - offset, 0)
