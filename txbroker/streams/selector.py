"""
SHELL: waits for the connections of a node and for all else that an event loop waits for, at once.

The loop has a callback, a handle and a context for each answer of its selector. Of the node's
connections, what is ready is served before the selector answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from select import EPOLLIN, epoll
from selectors import BaseSelector, SelectorKey
from typing import Any


class Selector(BaseSelector):
    """
    In the place of the one that an event loop has, which goes on to know everything else.

    There may be several on one loop, which know each other as that.
    """

    def __init__(self, loop: Any, wait: Callable[[float | None], bool]) -> None:
        """
        `wait` waits at `epoll` for so many seconds, if not for ever, and serves what is ready but
        for `number`; it says whether that is, and raises nothing.
        """
        self.epoll = epoll()
        self._loop = loop
        self._wait = wait
        self._other: BaseSelector = loop._selector  # asyncio takes one only when it is made
        self._is_over = False
        self.number: int = loop._selector.fileno()
        self.epoll.register(self.number, EPOLLIN)
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
        return self._other.select(0) if self._wait(timeout) else []

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
