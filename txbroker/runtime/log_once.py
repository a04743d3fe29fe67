"""CORE: remembers the last news of each name, so that repeated news are not logged again."""

from __future__ import annotations

REMEMBERED = 1_000
"""
Names remembered; beyond that the name with the oldest news is dropped, and may be logged again.
"""


class LogOnce:
    """The last news of each name; names come from other nodes."""

    def __init__(self) -> None:
        self._last: dict[str, object] = {}

    def is_news(self, name: str, news: object) -> bool:
        """True if `news` differs from the last news of `name`; remembers `news`."""
        if self._last.get(name) == news:
            return False
        self._last.pop(name, None)
        if len(self._last) >= REMEMBERED:
            del self._last[next(iter(self._last))]
        self._last[name] = news
        return True

    def forget(self, name: str) -> None:
        """Drop the news of `name`, as its fault has ended; any later news count as new."""
        self._last.pop(name, None)
