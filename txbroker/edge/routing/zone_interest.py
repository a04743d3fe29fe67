"""
The filters of an edge that concern one zone: `ResolverCache.cover` from the other side.

`cover` returns the zones of a filter. Here are the filters of a zone, which its owner has to hear.
Both agree on each pair. From this side a zone costs only the filters that meet its apex, found in
their order. From the other side it would cost a walk over all zones for each filter.
"""

from __future__ import annotations

from collections.abc import Iterator

from txbroker.core.sorted_filters import SortedFilters
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.routing.route import Route
from txbroker.model.topics import literal_prefix


def wanted(zones: ResolverCache, filters: SortedFilters, route: Route) -> set[str]:
    """Return the filters whose cover has the route."""
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
    """Return the filters whose cover has the route, and that match only within an apex below it."""
    return set(_literal(zones, filters, route, apex, zones.leading_to(route)))


def _literal(
    zones: ResolverCache, filters: SortedFilters, route: Route, apex: str, leading: set[Route]
) -> Iterator[str]:
    """Yield the filters within `apex`, at or below the route's, whose cover has the route."""
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
