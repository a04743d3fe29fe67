"""
The age of messages that wait for an edge's credit.

The queue to a slow edge has up to a window of them, for as long as its link lives. So the time of
an item that expires is noted when the item has to wait, and taken off when it leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from txbroker.core import Run
from txbroker.journal.zone_journal import Record

UNAGED = 1_000_000
"""Microseconds of waiting that count as none: what is left of an interval is rounded up."""


class QueueAges:
    """
    The moments from which items of one queue wait; `now` returns microseconds.

    `since`: by the identity of an item that the queue has; empty for most queues.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self.since: dict[int, int] = {}

    def note(self, item: Record | Run) -> None:
        """Note that the item has to wait from now on."""
        if _expires(item):
            self.since[id(item)] = self._now()

    def take(self, items: list[Record | Run]) -> list[Record | Run]:
        """Return items that leave, with what is left of the intervals."""
        return [part for item in items for part in self._aged(item)]

    def _aged(self, item: Record | Run) -> Iterable[Record | Run]:
        since = self.since.pop(id(item), None)
        waited = 0 if since is None else self._now() - since
        if waited < UNAGED:
            return (item,)
        if isinstance(item, Record):
            return (attrs.evolve(item, message=item.message.aged(waited / 1e6)),)
        places = range(item.count)
        return [Record(item.offset(n), item.message(n).aged(waited / 1e6)) for n in places]


def _expires(item: Record | Run) -> bool:
    if isinstance(item, Run):
        return item.has_properties and item.expires
    return item.message.expiry is not None
