"""CORE: what was said of others once, so that it is not said each time that they ask."""

from __future__ import annotations

REMEMBERED = 1_000
"""Names; beyond that the one whose news are oldest is forgotten, and may be told of again."""


class LogOnce:
    """The last news of each name; names come from other nodes."""

    def __init__(self) -> None:
        self._last: dict[str, object] = {}

    def is_news(self, name: str, news: object) -> bool:
        """True if this was not the last that was told of that name; now it is."""
        if self._last.get(name) == news:
            return False
        self._last.pop(name, None)
        if len(self._last) >= REMEMBERED:
            del self._last[next(iter(self._last))]
        self._last[name] = news
        return True

    def forget(self, name: str) -> None:
        """All is well with it; what comes next is news."""
        self._last.pop(name, None)
