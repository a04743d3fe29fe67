"""Named counters: what was dropped, refused, broken, and why."""

from __future__ import annotations


class Counters:
    """A count for each dotted name, such as `publish.dropped.unreachable`."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, name: str, count: int = 1) -> None:
        """Add to a counter; it starts at 0."""
        self._counts[name] = self._counts.get(name, 0) + count

    def get(self, name: str) -> int:
        """The count; 0 when nothing was added."""
        return self._counts.get(name, 0)

    def snapshot(self) -> dict[str, int]:
        """All counts so far."""
        return dict(self._counts)
