"""Filters and apexes that belong together, found by apex: a SUBSCRIBE may have millions."""

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

    def of(self, apex: str) -> Set[str]:
        """The filters that are paired with an apex; not to be changed while it is looked at."""
        return self._by_apex.get(apex, _NONE)

    def add(self, pair: Pair) -> None:
        """Put it in."""
        self._by_apex.setdefault(pair[1], set()).add(pair[0])

    def discard(self, pair: Pair) -> None:
        """Take it out, where it is in."""
        topic_filter, apex = pair
        filters = self._by_apex.get(apex)
        if filters is not None:
            filters.discard(topic_filter)
            if not filters:
                del self._by_apex[apex]

    def leave(self, topic_filters: Set[str]) -> None:
        """Take all pairs of these filters out."""
        for apex, filters in list(self._by_apex.items()):
            filters.difference_update(topic_filters)
            if not filters:
                del self._by_apex[apex]
