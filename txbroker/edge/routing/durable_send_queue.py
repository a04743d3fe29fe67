"""
A send queue in which some items wait until their sessions are durable.

The session's row has the origin id of a QoS 2 publish before the publish is sent (protocol rule
16). Otherwise no node could tell, after a crash, whether the owner has accepted it. Later items
wait behind it, at most for the time of a commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from txbroker.mqtt.session.session import Session

_Item = TypeVar("_Item")


class DurableSendQueue(Generic[_Item]):
    """A queue in front of `give`; `waiting` counts its items, all of which wait for the disk."""

    def __init__(
        self,
        save_then: Callable[[Session, Callable[[], None]], None],
        give: Callable[[_Item], None],
    ) -> None:
        """`save_then` runs an action when a session is durable."""
        self._save_then = save_then
        self._give = give
        self._waiting: deque[_Waiting[_Item]] = deque()
        self.waiting = 0

    def send(self, item: _Item, kept: Iterable[Session]) -> None:
        """Send the item when these sessions are durable, and behind all items sent before."""
        sessions = dict.fromkeys(kept)
        if not sessions and not self._waiting:
            self._give(item)
            return
        waiting = _Waiting(item, len(sessions))
        self._waiting.append(waiting)
        self.waiting += 1
        for session in sessions:
            self._save_then(session, lambda: self._on_saved(waiting))

    def close(self) -> list[_Item]:
        """Send nothing more; return the items that were left."""
        waiting, self._waiting = self._waiting, deque()
        self.waiting = 0
        return [one.item for one in waiting]

    def _on_saved(self, saved: _Waiting[_Item]) -> None:
        saved.missing -= 1
        while self._waiting and not self._waiting[0].missing:
            self.waiting -= 1
            self._give(self._waiting.popleft().item)


class _Waiting(Generic[_Item]):
    """An item, and the number of sessions that it waits for."""

    def __init__(self, item: _Item, missing: int) -> None:
        self.item = item
        self.missing = missing
