"""
What an edge knows of the tree of zones: the resolver's cache.

One `Route` per known apex. An owner's answer names *all* cuts of its zone, so one answer tells the
owner of every topic in it; a topic never seen before costs a look-up here, not a question. What is
known is used until something better is known (serve stale, RFC 8767): a wrong entry costs a refusal
and another step, never a wrong write, since the owner checks every publish.

Two views, on purpose. `find` (publishes) uses every cut that anybody told. `cover` (subscriptions)
uses `Route.cuts`, which for a connected owner only its own delivery stream changes: an edge that
learns of a cut by another way must not take the child's records before the parent's last ones
(protocol rule 13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count

from txbroker.core import Exchange, Run
from txbroker.delegation.cut import Cut
from txbroker.edge.route import Backlog, Route
from txbroker.topics import (
    deepest_enclosing,
    is_filter_within,
    is_sys,
    is_within,
    literal_prefix,
    may_match_within,
)
from txbroker.turn import run_all

Known = tuple[Cut, tuple[Cut, ...] | None]
"""A zone, and all its cuts where they are known."""

LONGEST_REMEMBERED = 512
"""Longer topics are looked up each time, so that they cannot fill the memory."""


class ZoneMap:
    """The known routes; the root zone's is always there, though nobody may know its address."""

    def __init__(
        self,
        exchange: Exchange,
        limit: int = 100_000,
        on_full: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_full` is called each time that something is forgotten to make room."""
        self._exchange = exchange
        self._on_full = on_full
        self.backlog = Backlog()
        self._routes: dict[str, Route] = {"": Route("", None, self.backlog)}
        exchange.routes.set("", self._routes[""])
        self._longest = 0
        self._by_topic: dict[str, Route] = {}
        self.limit = limit
        self._streams = count(1)
        self._on_change: list[Callable[[str], None]] = []

    def next_stream(self) -> int:
        """A number for a stream of publishes, never given before in this process."""
        return next(self._streams)

    def when_changed(self, action: Callable[[str], None]) -> None:
        """Run `action` with the apex, each time that a zone is new here or forgotten."""
        self._on_change.append(action)

    def __iter__(self) -> Iterator[Route]:
        return iter(list(self._routes.values()))

    def get(self, apex: str) -> Route | None:
        """The route of exactly this apex."""
        return self._routes.get(apex)

    def find(self, topic: str) -> Route:
        """The route of the deepest known zone that covers the topic."""
        route = self._by_topic.get(topic)
        if route is None:
            apex = deepest_enclosing(topic, self._routes, longest=self._longest)
            route = self._routes[apex or ""]
            if len(self._by_topic) >= self.limit:
                self._by_topic.clear()
                self._on_full()
            if len(topic) <= LONGEST_REMEMBERED:
                self._by_topic[topic] = route
        return route

    def split(self, run: Run) -> list[tuple[Route, Run]]:
        """What of a run goes to which of the routes, in order."""
        return self._exchange.split(run)

    def answer(self, runs: list[Run]) -> list[tuple[Run, list[int]]]:
        """Runs are safe: their clients are told; the packet ids that are theirs no longer."""
        return self._exchange.answer(runs)

    def enclosing(self, apex: str) -> Route:
        """The route of the deepest known zone strictly above the apex; the root's for the root."""
        above = apex.rpartition("/")[0]
        return self._routes[deepest_enclosing(above, self._routes, longest=self._longest) or ""]

    def add(self, cut: Cut) -> Route:
        """Know a cut; an older epoch than the known one changes nothing."""
        route = self._routes.get(cut.apex)
        if route is None:
            self._make_room()
            route = Route(cut.apex, cut, self.backlog)
            self._routes[cut.apex] = route
            self._exchange.routes.set(cut.apex, route)
            self._longest = max(self._longest, len(cut.apex))
            self._changed(cut.apex)
        elif route.cut is None or cut.epoch >= route.cut.epoch:
            route.cut = cut
        return route

    def remove(self, route: Route) -> None:
        """Forget a zone; the root's route stays, without an address."""
        if route.apex:
            self._routes.pop(route.apex, None)
            self._exchange.routes.remove(route.apex)
        else:
            route.cut = None
        self._changed(route.apex)

    def within(self, apex: str) -> list[Route]:
        """The routes strictly below an apex."""
        return [r for r in self._routes.values() if r.apex != apex and is_within(r.apex, apex)]

    def cover(self, topic_filter: str) -> list[Route]:
        """
        The routes whose zones the filter touches, as far as known.

        A route whose cuts are not known counts, and stands for whatever is below it.
        """
        if len(self._routes) == 1 and not self._routes[""].cuts:
            return [self._routes[""]]
        prefix = literal_prefix(topic_filter)
        top = deepest_enclosing(prefix, self._routes, longest=self._longest) or ""
        found: list[Route] = []
        if topic_filter.startswith("$"):
            return [self._routes[""]]
        self._visit(self._routes[self._trusted(top)], topic_filter, found)
        return found

    def may_concern(self, topic_filter: str, apex: str) -> bool:
        """
        Whether the zone has something for the filter: it counts, or one does that stands for it.
        """
        return (
            not is_sys(topic_filter)
            and may_match_within(topic_filter, apex)
            and any(
                route.apex == apex or (route.cuts is None and is_within(apex, route.apex))
                for route in self.cover(topic_filter)
            )
        )

    def _changed(self, apex: str) -> None:
        self._by_topic.clear()
        run_all(partial(action, apex) for action in self._on_change)

    def known(self) -> tuple[Known, ...]:
        """Every zone whose owner is known, for the next start."""
        return tuple(
            (route.cut, None if route.cuts is None else tuple(route.cuts.values()))
            for route in self._routes.values()
            if route.cut is not None and not route.is_local
        )

    def restore(self, known: Iterable[Known]) -> None:
        """
        What was known when the node stopped: used until something better is known, and asked for
        again at once.

        Nothing of an earlier owner of a zone is on its way to this process, and nobody will tell it
        of the cut as of a new one: an owner that still waits for our claim gets it (rule 13).
        """
        for cut, cuts in known:
            route = self.add(cut)
            if cut.apex:
                route.claim(cut.apex)
            if route.cuts is None and route.cut is cut and cuts is not None:
                route.cuts = {below.apex: below for below in cuts}

    def _make_room(self) -> None:
        # The least that the limit has to guarantee; a zone that is forgotten is asked for again.
        if len(self._routes) >= self.limit:
            for route in self._routes.values():
                if route.apex and route.port is None and not route.is_needed:
                    self.remove(route)
                    self._on_full()
                    return

    def _trusted(self, apex: str) -> str:
        # Start at the deepest zone that the chain of `cuts` above it really leads to, or that
        # stands right below one whose cuts are not known.
        while apex:
            above = self.enclosing(apex)
            if above.cuts is None or apex in above.cuts:
                return apex
            apex = above.apex
        return apex

    def _visit(self, route: Route, topic_filter: str, found: list[Route]) -> None:
        if route.cuts is None:
            found.append(route)
            return
        if not any(is_filter_within(topic_filter, apex) for apex in route.cuts):
            found.append(route)
        for apex, cut in route.cuts.items():
            if may_match_within(topic_filter, apex):
                self._visit(self._routes.get(apex) or self.add(cut), topic_filter, found)
