"""Named counters of dropped, refused and broken things, by reason."""

from __future__ import annotations


class Counters:
    """A count for each dotted name, such as `publish.dropped.unreachable`."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, name: str, count: int = 1) -> None:
        """Add to a counter, which starts at 0."""
        self._counts[name] = self._counts.get(name, 0) + count

    def get(self, name: str) -> int:
        """Return the count; 0 for an unknown name."""
        return self._counts.get(name, 0)

    def snapshot(self) -> dict[str, int]:
        """Return all counts so far."""
        return dict(self._counts)
