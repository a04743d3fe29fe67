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

Wait = Callable[[float | None], bool]
"""
Waits for so many seconds, if not for ever, and serves what is ready; says whether that was also
something else of the loop. Raises nothing.
"""


class Selector(BaseSelector):
    """
    In the place of the one that an event loop has, which goes on to know everything else.

    There is one for each loop, and mostly one node; where there are several (in tests), they take
    turns. An epoll is not nested in another one for each of them: the kernel allows few levels.
    """

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._other: BaseSelector = loop._selector  # asyncio takes one only when it is made
        self._nodes: dict[int, tuple[epoll, Wait]] = {}
        self._all = epoll()
        self.number: int = loop._selector.fileno()
        loop._selector = self

    @classmethod
    def of(cls, loop: Any) -> Selector:
        """That of the loop, which is made where there is none."""
        present = loop._selector
        return present if isinstance(present, cls) else cls(loop)

    def join(self, wait: Wait) -> epoll:
        """A node waits at this epoll, where `number` stands for all else that is ready."""
        its = epoll()
        its.register(self.number, EPOLLIN)
        self._nodes[its.fileno()] = its, wait
        self._look_at_nodes()
        return its

    def leave(self, its: epoll) -> None:
        """It does no more."""
        del self._nodes[its.fileno()]
        its.close()
        self._look_at_nodes()
        if not self._nodes:
            self._all.close()
            self._loop._selector = self._other

    def _look_at_nodes(self) -> None:
        # What is watched by somebody else takes longer to wake who waits for it.
        watched, self._all = self._all, epoll()
        watched.close()
        if len(self._nodes) > 1:
            for number in self._nodes:
                self._all.register(number, EPOLLIN)

    # from the loop

    def fileno(self) -> int:
        """Of the selector for everything else."""
        return self.number

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """Wait for so many seconds, serve what is ready here, and give all else that is."""
        if len(self._nodes) == 1:
            ((_, wait),) = self._nodes.values()
            return self._other.select(0) if wait(timeout) else []
        for number, _ in self._all.poll(timeout):
            if number in self._nodes:
                self._nodes[number][1](0.0)
        return self._other.select(0)

    def close(self) -> None:
        """The loop is at its end."""
        self._all.close()
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
