"""
The resolver's cache: what an edge knows of the tree of zones.

The cache has a `Route` per known apex. An owner's answer names *all* cuts of its zone, so one
answer tells the owner of every topic in it. A topic never seen before costs a look-up here, not a
question. An entry is used until a better one is known (serve stale, RFC 8767). A wrong entry costs
a refusal and another step, never a wrong write, since the owner checks every publish.

Two views, on purpose. `find` (publishes) uses every cut that anybody told. `cover` (subscriptions)
uses `Route.cuts`, which for a connected owner only its own delivery stream changes. An edge that
learns of a cut by another way must not take the child's records before the parent's last ones
(protocol rule 13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count

from txbroker.core import Router
from txbroker.core.sorted_filters import SortedApexes
from txbroker.edge.routing.cut_map import CutChanges
from txbroker.edge.routing.publish_queue import WaitingBytes
from txbroker.edge.routing.route import Route
from txbroker.model.invariant import holds
from txbroker.model.topics import (
    is_sys,
    literal_prefix,
    may_match_within,
)
from txbroker.model.zone_cut import ZoneCut
from txbroker.runtime.flush_queue import run_all

Known = tuple[ZoneCut, tuple[ZoneCut, ...] | None]
"""A zone, and all its cuts if they are known."""


class ResolverCache:
    """The known routes; the root zone's is always there, though nobody may know its address."""

    def __init__(
        self,
        router: Router,
        limit: int = 100_000,
        on_full: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_full` is called each time that a zone is evicted to make room."""
        self.router = router
        self._on_full = on_full
        self.backlog = WaitingBytes()
        self.changes = CutChanges[Route]()
        self._routes: dict[str, Route] = {"": Route("", None, self.backlog, self.changes)}
        self._apexes = SortedApexes()  # of all routes except the root's
        router.routes.set("", self._routes[""])
        self.limit = limit
        self._streams = count(1)
        self._on_change: list[Callable[[str], None]] = []

    def next_stream(self) -> int:
        """Return a number for a publish stream that this process has not used before."""
        return next(self._streams)

    def when_changed(self, action: Callable[[str], None]) -> None:
        """Run `action` with the apex each time that a zone is added or removed."""
        self._on_change.append(action)

    def __iter__(self) -> Iterator[Route]:
        return iter(list(self._routes.values()))

    def get(self, apex: str) -> Route | None:
        """Return the route of exactly this apex."""
        return self._routes.get(apex)

    def epoch_of(self, apex: str) -> int:
        """Return the last epoch at which the zone was known to be served; 0: none is known."""
        route = self._routes.get(apex)
        if route is None:
            return 0
        return max(route.epoch, 0 if route.position is None else route.position.epoch)

    def check(self) -> None:
        """State that each zone has one route, and what that keeps."""
        for apex, route in self._routes.items():
            holds(self, 14, "a route is known by its apex", route.apex == apex, apex, route.apex)
            route.check()

    def find(self, topic: str) -> Route:
        """Return the route of the deepest known zone that covers the topic."""
        found: Route = self.router.routes.find(topic)
        return found

    def enclosing(self, apex: str) -> Route:
        """
        Return the route of the deepest known zone strictly above the apex; the root's for the root.
        """
        return self.find(apex.rpartition("/")[0])

    def add(self, cut: ZoneCut) -> Route:
        """Add a cut; a cut of an older epoch than the known one changes nothing."""
        route = self._routes.get(cut.apex)
        if route is None:
            self._make_room()
            route = Route(cut.apex, cut, self.backlog, self.changes)
            self._routes[cut.apex] = route
            if cut.apex:
                self._apexes.add(cut.apex)
            self.router.routes.set(cut.apex, route)
            self._changed(cut.apex)
        else:
            route.learn_cut(cut)
        return route

    def remove(self, route: Route) -> None:
        """Remove a zone; the root's route stays, without an address."""
        if route.apex:
            self._routes.pop(route.apex, None)
            self._apexes.discard(route.apex)
            self.router.routes.remove(route.apex)
        else:
            route.learn_cut(None)
        self._changed(route.apex)

    def within(self, apex: str) -> list[Route]:
        """Return the routes strictly below an apex."""
        found = self._apexes.within(apex)
        return [self._routes[known] for texts in found for known in texts if known != apex]

    def has_below(self, apex: str) -> bool:
        """True if a route is strictly below an apex."""
        return self._apexes.has(apex + "/" if apex else "")

    def above(self, apex: str) -> Iterator[Route]:
        """Yield the routes strictly above an apex, the deepest first."""
        while apex:
            route = self.enclosing(apex)
            yield route
            apex = route.apex

    def cover(self, topic_filter: str) -> list[Route]:
        """
        Return the routes whose zones the filter touches, as far as known.

        A route whose cuts are unknown counts, and stands for all zones below it.
        """
        if topic_filter.startswith("$") or (len(self._routes) == 1 and not self._routes[""].cuts):
            return [self._routes[""]]
        found: list[Route] = []
        prefix = literal_prefix(topic_filter)
        self._visit(self.first(prefix), topic_filter, prefix, found)
        return found

    def met_by(self, topic_filter: str) -> list[Route]:
        """Return the routes of all known zones within which the filter may match."""
        if len(self._routes) == 1:
            return [self._routes[""]]
        return [self._routes[""], *map(self._routes.__getitem__, self._apexes.met_by(topic_filter))]

    def first(self, prefix: str) -> Route:
        """
        Return the route at which the walk for filters with this literal prefix begins.

        The route is that of the deepest trusted zone around the prefix. Cuts of the zone above lead
        there, or are unknown.
        """
        route = self.find(prefix)
        while not self.is_trusted(route):
            route = self.enclosing(route.apex)
        return route

    def is_trusted(self, route: Route) -> bool:
        """True if the zone above delegates this one, or if its cuts are unknown."""
        if not route.apex:
            return True
        cuts = self.enclosing(route.apex).cuts
        return cuts is None or route.apex in cuts

    def leads_to(self, apex: str) -> bool:
        """True if cuts lead from the root to this known zone, as far as cuts are known."""
        route = self._routes.get(apex)
        return route is not None and all(map(self.is_trusted, (route, *self.above(apex))))

    def leading_to(self, route: Route) -> set[Route]:
        """
        Return the routes from which cuts lead, one after another, to this route, and this route.
        """
        found = {route}
        for above in self.above(route.apex):
            if above.cuts and any(one.apex in above.cuts for one in found):
                found.add(above)
        return found

    def may_concern(self, topic_filter: str, apex: str) -> bool:
        """True if the zone, or a zone that stands for it, is covered by the filter."""
        if is_sys(topic_filter) or not may_match_within(topic_filter, apex):
            return False
        route = self._routes.get(apex)
        if route is not None and self.is_covered(topic_filter, route):
            return True
        return any(
            above.cuts is None and self.is_covered(topic_filter, above)
            for above in self.above(apex)
        )

    def is_covered(self, topic_filter: str, route: Route) -> bool:
        """True if the route is in the filter's `cover`."""
        if topic_filter.startswith("$"):
            return not route.apex
        if not may_match_within(topic_filter, route.apex):
            return False
        prefix = literal_prefix(topic_filter)
        is_elsewhere = route.cuts is not None and route.cuts.above(prefix) is not None
        return not is_elsewhere and self.first(prefix) in self.leading_to(route)

    def _changed(self, apex: str) -> None:
        self.changes.mark_changed(apex)
        run_all(partial(action, apex) for action in self._on_change)

    def known(self) -> tuple[Known, ...]:
        """Return every zone whose owner is known, to be saved for the next start."""
        return tuple(
            (route.cut, None if route.cuts is None else tuple(route.cuts.values()))
            for route in self._routes.values()
            if route.cut is not None and not route.is_local
        )

    def restore(self, known: Iterable[Known]) -> None:
        """
        Add the zones that were known when the node stopped; they serve stale until refreshed, at
        once.

        No delivery of an earlier owner can still come to this process, and no stream announces
        these cuts as new. So each zone is claimed: an owner that still waits for our claim gets it
        (rule 13).
        """
        for cut, cuts in known:
            route = self.add(cut)
            if cut.apex:
                route.claim(cut.apex)
            if route.cuts is None and route.cut is cut and cuts is not None:
                route.learn_cuts({below.apex: below for below in cuts})

    def know_between(self) -> None:
        """
        Add unknown zones that lie between known ones, by the cuts above.

        After a start this node's own zone is such a zone, while it waits for its grant. Without it
        the edge would have no interest in the zones below. Sessions would then skip the records
        that the owners accept meanwhile.
        """
        for route in self:
            cuts = self.enclosing(route.apex).cuts
            apex = None if cuts is None else cuts.above(route.apex)
            if cuts is not None and apex is not None and apex not in self._routes:
                self.add(cuts[apex])

    def _make_room(self) -> None:
        # Eviction guarantees the limit and no more: an evicted zone has to be resolved again.
        if len(self._routes) >= self.limit:
            for route in self._routes.values():
                if route.apex and route.port is None and not route.is_needed:
                    self.remove(route)
                    self._on_full()
                    return

    def _visit(self, route: Route, topic_filter: str, prefix: str, found: list[Route]) -> None:
        cuts = route.cuts
        if cuts is None:
            found.append(route)
            return
        if cuts.above(prefix) is None:
            found.append(route)
        for apex in cuts.met_by(topic_filter):
            below = self._routes.get(apex) or self.add(cuts[apex])
            self._visit(below, topic_filter, prefix, found)
