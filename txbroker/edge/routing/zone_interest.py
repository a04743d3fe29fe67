"""
What an edge wants of one zone: `ResolverCache.cover`, asked from the other side.

`cover` tells the zones of a filter; here are the filters of a zone, which is what an owner is told.
Both say the same of each pair. Asked this way a zone costs the filters that meet its apex, found in
their order, and not a walk over all zones for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from txbroker.core.sorted_filters import SortedFilters
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.routing.route import Route
from txbroker.model.topics import literal_prefix


def wanted(zones: ResolverCache, filters: SortedFilters, route: Route) -> set[str]:
    """Those of the filters whose cover has the route."""
    leading = zones.leading_to(route)
    levels = route.apex.split("/")

    def is_led_here(depth: int) -> bool:
        return zones.first("/".join(levels[:depth])) in leading

    found: set[str] = set()
    for texts in filters.wild(route.apex, is_led_here):
        found.update(texts)
    found.update(_literal(zones, filters, route, route.apex, leading))
    return found


def wanted_within(
    zones: ResolverCache, filters: SortedFilters, route: Route, apex: str
) -> set[str]:
    """The same, of filters that match nothing but what is within an apex below the route's."""
    return set(_literal(zones, filters, route, apex, zones.leading_to(route)))


def _literal(
    zones: ResolverCache, filters: SortedFilters, route: Route, apex: str, leading: set[Route]
) -> Iterator[str]:
    """Of filters within the apex, at or below the route's own."""
    cuts = route.cuts
    is_alone = not cuts and not zones.has_below(route.apex)
    is_first = zones.first(route.apex) in leading
    for texts in filters.within(apex):
        if is_alone:
            if is_first:
                yield from texts
            continue
        for text in texts:
            prefix = literal_prefix(text)
            if (not cuts or cuts.above(prefix) is None) and zones.first(prefix) in leading:
                yield text
