"""A set of (filter, apex), indexed by apex: a SUBSCRIBE may have millions of pairs."""

from __future__ import annotations

from collections.abc import Iterator, Set

Pair = tuple[str, str]
"""(filter, apex)."""

_NONE: frozenset[str] = frozenset()


class FilterZonePairs:
    """A set of pairs."""

    def __init__(self) -> None:
        self._by_apex: dict[str, set[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_apex)

    def __contains__(self, pair: Pair) -> bool:
        return pair[0] in self._by_apex.get(pair[1], _NONE)

    def __iter__(self) -> Iterator[Pair]:
        return ((one, apex) for apex, filters in self._by_apex.items() for one in filters)

    def apexes(self) -> list[str]:
        """Return the apexes of all pairs, each once."""
        return list(self._by_apex)

    def of(self, apex: str) -> Set[str]:
        """Return the filters paired with an apex; callers must not change the set during a walk."""
        return self._by_apex.get(apex, _NONE)

    def add(self, pair: Pair) -> None:
        """Add a pair."""
        self._by_apex.setdefault(pair[1], set()).add(pair[0])

    def discard(self, pair: Pair) -> None:
        """Remove a pair, if present."""
        topic_filter, apex = pair
        filters = self._by_apex.get(apex)
        if filters is not None:
            filters.discard(topic_filter)
            if not filters:
                del self._by_apex[apex]

    def remove(self, topic_filters: Set[str]) -> None:
        """Remove all pairs of these filters."""
        for apex, filters in list(self._by_apex.items()):
            filters.difference_update(topic_filters)
            if not filters:
                del self._by_apex[apex]
