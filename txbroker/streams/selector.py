"""
SHELL: waits for the connections of a node and for all else that an event loop waits for, at once.

The loop has a callback, a handle and a context for each answer of its selector. Of the node's
connections, what is ready is served before the selector answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from select import EPOLLIN, epoll
from selectors import BaseSelector, SelectorKey
from time import monotonic, sleep
from typing import Any

from txbroker.streams.pacing import Pacing

BATCH = 128
"""How many connections are served before timers and everything else have their turn."""


class Selector(BaseSelector):
    """
    In the place of the one that an event loop has, which goes on to know everything else.

    There may be several on one loop, which know each other as that.
    """

    def __init__(self, loop: Any, serve: Callable[[list[tuple[int, int]]], None]) -> None:
        """`serve` gets what `epoll` has found; it raises nothing."""
        self.epoll = epoll()
        self._loop = loop
        self._serve = serve
        self._other: BaseSelector = loop._selector  # asyncio takes one only when it is made
        self._number: int = loop._selector.fileno()
        self._is_over = False
        self._pacing = Pacing()
        self.epoll.register(self._number, EPOLLIN)
        loop._selector = self

    def leave(self) -> None:
        """The loop waits for nothing of this any more."""
        self._is_over = True
        top = self._loop._selector
        while isinstance(top, Selector) and top._is_over:
            top.epoll.close()
            top = self._loop._selector = top._other

    # from the loop

    def fileno(self) -> int:
        """Readable when something is ready."""
        return self.epoll.fileno()

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """Wait for so many seconds, serve what is ready here, and give all else that is."""
        pause = self._pacing.pause
        if pause and (timeout is None or timeout > pause):
            sleep(pause)
        ready = self.epoll.poll(timeout, BATCH)
        if not ready:
            return []
        self._pacing.note(ready, monotonic())
        others = [pair for pair in ready if pair[0] != self._number]
        if others:
            self._serve(others)
        return [] if len(others) == len(ready) else self._other.select(0)

    def close(self) -> None:
        """The loop is at its end."""
        self.epoll.close()
        self._other.close()

    def register(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        """Something else is to be waited for."""
        return self._other.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> SelectorKey:
        """It is not any more."""
        return self._other.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        """It is, in another way."""
        return self._other.modify(fileobj, events, data)

    def get_key(self, fileobj: Any) -> SelectorKey:
        """Of something else."""
        return self._other.get_key(fileobj)

    def get_map(self) -> Mapping[Any, SelectorKey]:
        """All else."""
        return self._other.get_map()
