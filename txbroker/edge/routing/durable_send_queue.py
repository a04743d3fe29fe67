"""
What leaves an edge in order, where some of it has to wait for the disk first.

The id that a client's QoS 2 publish is sent with is kept with its session before it is sent
(protocol rule 16): otherwise nobody could say, after a crash, whether the owner has it. What comes
later waits behind it, for no longer than a commit takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from txbroker.mqtt.session.session import Session

_Item = TypeVar("_Item")


class DurableSendQueue(Generic[_Item]):
    """A queue to `give`; empty whenever nothing waits for the disk."""

    def __init__(
        self,
        save_then: Callable[[Session, Callable[[], None]], None],
        give: Callable[[_Item], None],
    ) -> None:
        """`save_then` runs an action when a session is durable."""
        self._save_then = save_then
        self._give = give
        self._waiting: deque[_Waiting[_Item]] = deque()

    @property
    def waiting(self) -> int:
        """How many items wait."""
        return len(self._waiting)

    def send(self, item: _Item, kept: Iterable[Session]) -> None:
        """Give it when these sessions are durable, and after all that was sent before."""
        sessions = dict.fromkeys(kept)
        if not sessions and not self._waiting:
            self._give(item)
            return
        waiting = _Waiting(item, len(sessions))
        self._waiting.append(waiting)
        for session in sessions:
            self._save_then(session, lambda: self._on_saved(waiting))

    def close(self) -> list[_Item]:
        """Give nothing any more; returns what was left."""
        waiting, self._waiting = self._waiting, deque()
        return [one.item for one in waiting]

    def _on_saved(self, saved: _Waiting[_Item]) -> None:
        saved.missing -= 1
        while self._waiting and not self._waiting[0].missing:
            self._give(self._waiting.popleft().item)


class _Waiting(Generic[_Item]):
    """An item, and how many sessions it waits for."""

    def __init__(self, item: _Item, missing: int) -> None:
        self.item = item
        self.missing = missing
