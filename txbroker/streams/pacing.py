"""
PURE: when it is worth to wait a moment before looking at what is ready.

Where very many clients send a message now and then, each message wakes the node, and being woken
costs more than the message: caches are cold, and the kernel changes from one process to another
and back. Network cards have the same problem and the same remedy (adaptive interrupt moderation):
while there are many in a second, they wait for company. A few clients that send fast, or take turns
with each other, are never kept waiting: nobody else would come meanwhile.
"""

from __future__ import annotations

PAUSE = 0.0003
"""Seconds that are waited."""

RATE = 5000
"""How often connections are ready in a second: with less, nothing is waited for."""

MANY = 48
"""Different ones among those that were ready in a window; with fewer, neither."""

WINDOW = 64
"""How many times the node is woken between two looks at that."""

LONGEST = 0.05
"""Seconds after which there is a look in any case."""


class Pacing:
    """`pause` is how many seconds to wait now."""

    def __init__(self) -> None:
        self.pause = 0.0
        self._since = 0.0
        self._woken = 0
        self._count = 0
        self._seen: set[object] | None = None  # only where the rate is high

    def note(self, ready: list[tuple[int, int]], now: float) -> None:
        """The node was woken for these."""
        self._woken += 1
        self._count += len(ready)
        if self._seen is not None:
            self._seen.update(ready)
        if self._woken == WINDOW or now > self._since + LONGEST:
            self._look(now)

    def _look(self, now: float) -> None:
        if self._count < RATE * (now - self._since):
            self.pause, self._seen = 0.0, None
        else:
            self.pause = PAUSE if len(self._seen or ()) >= MANY else 0.0
            self._seen = set()
        self._since, self._woken, self._count = now, 0, 0
