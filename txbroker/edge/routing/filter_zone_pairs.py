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
        self._shared: set[str] = set()

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
        self._own(pair[1]).add(pair[0])

    def discard(self, pair: Pair) -> None:
        """Remove a pair, if present."""
        topic_filter, apex = pair
        if pair in self:
            filters = self._own(apex)
            filters.discard(topic_filter)
            if not filters:
                del self._by_apex[apex]

    def share(self, apex: str, other: str) -> None:
        """
        Pair all filters of `apex` with `other`, too.

        Both apexes have one set until one of them changes: a copy for each of thousands of zones
        would take long.
        """
        filters = self._by_apex.get(apex)
        if filters and other in self._by_apex:
            self._own(other).update(filters)
        elif filters:
            self._by_apex[other] = filters
            self._shared.update((apex, other))

    def remove(self, topic_filters: Set[str]) -> None:
        """Remove all pairs of these filters."""
        for apex, filters in list(self._by_apex.items()):
            filters.difference_update(topic_filters)
            if not filters:
                del self._by_apex[apex]

    def _own(self, apex: str) -> set[str]:
        """Return the set of an apex, for a change that concerns no other apex."""
        if apex in self._shared:
            self._shared.discard(apex)
            self._by_apex[apex] = set(self._by_apex.get(apex, ()))
        return self._by_apex.setdefault(apex, set())
