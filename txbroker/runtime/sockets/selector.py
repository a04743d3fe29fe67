"""
SHELL: waits in one call for the connections of a node and for everything else of the event loop.

The event loop spends a callback, a handle and a context on each event of its selector. So this
selector serves the node's ready connections before it returns the loop's own events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from select import EPOLLIN, epoll
from selectors import BaseSelector, SelectorKey
from typing import Any

Wait = Callable[[float | None], bool]
"""
Callback that waits for up to so many seconds (None: forever) and serves ready connections.

Returns True if another event of the loop is also ready. Raises nothing.
"""


class Selector(BaseSelector):
    """
    Replaces the selector of an event loop; the replaced one still watches everything else.

    Each loop has one, and usually one node. Several nodes in one loop (in tests) take turns. Nested
    epolls for each node would exceed the few levels that the kernel allows.
    """

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._other: BaseSelector = loop._selector  # asyncio accepts a selector only at creation
        self._nodes: dict[int, tuple[epoll, Wait]] = {}
        self._all = epoll()
        self.number: int = loop._selector.fileno()
        loop._selector = self

    @classmethod
    def of(cls, loop: Any) -> Selector:
        """Return the loop's `Selector`; install one if missing."""
        present = loop._selector
        return present if isinstance(present, cls) else cls(loop)

    def join(self, wait: Wait) -> epoll:
        """Return an epoll for a node, in which `number` stands for all other events of the loop."""
        its = epoll()
        its.register(self.number, EPOLLIN)
        self._nodes[its.fileno()] = its, wait
        self._poll_nodes()
        return its

    def remove(self, its: epoll) -> None:
        """Remove the epoll of a node; the last one restores the loop's selector."""
        del self._nodes[its.fileno()]
        its.close()
        self._poll_nodes()
        if not self._nodes:
            self._all.close()
            self._loop._selector = self._other

    def _poll_nodes(self) -> None:
        # With a single node, a second epoll around the node's own would slow each wake-up.
        watched, self._all = self._all, epoll()
        watched.close()
        if len(self._nodes) > 1:
            for number in self._nodes:
                self._all.register(number, EPOLLIN)

    # from the loop

    def fileno(self) -> int:
        """Return the descriptor of the selector for everything else."""
        return self.number

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """Wait up to `timeout` seconds, serve ready connections, and return all other events."""
        if len(self._nodes) == 1:
            ((_, wait),) = self._nodes.values()
            return self._other.select(0) if wait(timeout) else []
        for number, _ in self._all.poll(timeout):
            if number in self._nodes:
                self._nodes[number][1](0.0)
        return self._other.select(0)

    def close(self) -> None:
        """Close both selectors at the end of the loop."""
        self._all.close()
        self._other.close()

    def register(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        """Register an object of the loop with the replaced selector."""
        return self._other.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> SelectorKey:
        """Unregister an object of the loop from the replaced selector."""
        return self._other.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        """Change the events of an object of the loop in the replaced selector."""
        return self._other.modify(fileobj, events, data)

    def get_key(self, fileobj: Any) -> SelectorKey:
        """Return the key of an object of the loop."""
        return self._other.get_key(fileobj)

    def get_map(self) -> Mapping[Any, SelectorKey]:
        """Return the map of the replaced selector."""
        return self._other.get_map()
