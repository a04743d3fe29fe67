"""
Which zones an edge wants what from.

The edge's interest is counted: one entry for each distinct filter, however many clients have it,
and only 0 to 1 and 1 to 0 travel. Where it travels is worked out from the zone map, again whenever
the map changes; where a zone is not known or not connected, the want waits in its route and counts
as pending.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from txbroker.edge.route import Route, State
from txbroker.edge.subscribing import Subscribing
from txbroker.edge.zonemap import ZoneMap
from txbroker.message import Message
from txbroker.place import Place
from txbroker.topics import is_within, may_match_within


class Interests:
    """The subscribing half of an edge; `wake` brings a route on that has something to do."""

    def __init__(
        self,
        zones: ZoneMap,
        wake: Callable[[Route], None],
        on_confirmed: Callable[[Subscribing, str], None],
    ) -> None:
        self._zones = zones
        self._wake = wake
        self._on_confirmed = on_confirmed
        self._counts: dict[str, int] = {}
        self._pending: dict[Subscribing, None] = {}
        self._of: dict[object, dict[Subscribing, None]] = {}
        self._request = count(1)
        self._ask_own_zone: Callable[[str], tuple[Place, list[Message]] | None] | None = None

    # from the node

    def wire(self, ask_own_zone: Callable[[str], tuple[Place, list[Message]] | None]) -> None:
        """
        What asks the zone of this node, where that can answer at once: from which place on a filter
        is served, and its retained messages. None: it cannot.
        """
        self._ask_own_zone = ask_own_zone

    # from sessions

    def add(self, topic_filter: str) -> None:
        """One more subscription has the filter."""
        self._counts[topic_filter] = self._counts.get(topic_filter, 0) + 1

    def remove(self, topic_filter: str) -> None:
        """One less; the last one withdraws the filter everywhere."""
        self._counts[topic_filter] -= 1
        if self._counts[topic_filter]:
            return
        del self._counts[topic_filter]
        for route in self._zones:
            if topic_filter in route.filters:
                route.filters.discard(topic_filter)
                if route.port is not None:
                    route.port.remove_interest(topic_filter)

    def ask_now(self, topic_filter: str) -> tuple[Place, list[Message]] | None:
        """The answer of all zones that a filter touches: of this node's own, if it is that one."""
        if self._ask_own_zone is None:
            return None
        cover = self._zones.cover(topic_filter)
        if len(cover) > 1 or not cover[0].is_local:
            return None
        answer = self._ask_own_zone(topic_filter)
        if answer is not None:
            cover[0].filters.add(topic_filter)
        return answer

    def begin(self, subscribing: Subscribing) -> None:
        """Ask every zone that the filters touch."""
        self._pending[subscribing] = None
        self._of.setdefault(subscribing.session, {})[subscribing] = None
        zoned = sorted(subscribing.zoned)
        asked = [
            (topic_filter, route)
            for topic_filter in zoned
            for route in self._zones.cover(topic_filter)
            if subscribing.concerns(topic_filter, route.apex)
        ]
        for topic_filter, route in asked:
            subscribing.await_zone(topic_filter, route.apex)
        for topic_filter, route in asked:
            self._ask(subscribing, topic_filter, route)
        self._settle(subscribing)

    def cancel(self, subscribing: Subscribing) -> None:
        """The session is gone."""
        if self._pending.pop(subscribing, self) is self:
            return
        of_session = self._of[subscribing.session]
        del of_session[subscribing]
        if not of_session:
            del self._of[subscribing.session]

    def of(self, session: object) -> list[Subscribing]:
        """What is on its way for a session."""
        return list(self._of.get(session, ()))

    # from owners

    def on_answer(self, route: Route, request: int, offset: int, retained: list[Message]) -> None:
        """A zone confirmed an interest; what lies behind `offset` is its."""
        known = route.requests.pop(request, None)
        if known is None:
            return
        topic_filter, subscribing = known
        if subscribing not in self._pending:
            return  # its session has ended
        late = subscribing.acknowledge is None
        if (topic_filter, route.apex) in subscribing.open:
            since = route.since(topic_filter)
            subscribing.answer(topic_filter, Place(route.part, offset), retained, since)
            if late:
                self._on_confirmed(subscribing, topic_filter)
        self._settle(subscribing)

    def on_online(self, route: Route) -> None:
        """The owner is connected and has our filters: ask for what is still open."""
        route.requests.clear()
        self.refresh()
        for subscribing in list(self._pending):
            for topic_filter, apex in sorted(subscribing.open):
                if apex == route.apex:
                    self._ask(subscribing, topic_filter, route)

    def on_cut(self, route: Route, below: Route) -> None:
        """
        The owner's stream told of a cut: the child inherited what the owner had of our interest.

        What the owner had answered counts as answered by the child as well; it keeps our
        deliveries until we claim them.
        """
        # Also without a filter there now: the owner may have inherited one that we gave up since.
        if below.apex not in below.claims:  # a cut may be told again
            below.claim(below.apex)
        route.withdraw_claims(below.apex)
        for subscribing in self._pending:
            for topic_filter, apex in list(subscribing.answered):
                if apex == route.apex and may_match_within(topic_filter, below.apex):
                    subscribing.answered.add((topic_filter, below.apex))

    def on_gone(self, route: Route, above: Route) -> None:
        """The zone went back to `above`, which inherited our interest."""
        above.claim(route.apex, is_read=route.is_over)
        for subscribing in self._pending:
            for topic_filter, apex in sorted(subscribing.open):
                if apex == route.apex:
                    subscribing.drop_zone(topic_filter, apex)
                    subscribing.answered.discard((topic_filter, above.apex))

    def refresh(self) -> None:
        """The map changed: move every filter to where it belongs now."""
        wanted: dict[Route, set[str]] = {}
        for topic_filter in self._counts:
            for route in self._zones.cover(topic_filter):
                wanted.setdefault(route, set()).add(topic_filter)
        dim = [r.apex for r in self._zones if r.cuts is None]
        for route in self._zones:
            filters = wanted.get(route, set())
            if any(apex != route.apex and is_within(route.apex, apex) for apex in dim):
                # What is above is not known (any more): keep what we have until it is.
                filters |= {f for f in route.filters if f in self._counts}
            self._apply(route, filters)
        for subscribing in list(self._pending):
            self._refresh_open(subscribing)

    def touches(self, apex: str) -> bool:
        """Whether any session here wants something of the zone."""
        return any(may_match_within(topic_filter, apex) for topic_filter in self._counts)

    # from operators

    def pending_by_zone(self) -> dict[str, int]:
        """How many filters wait for which zone."""
        return {
            route.apex: len(route.filters)
            for route in self._zones
            if route.filters and route.state is not State.ONLINE
        }

    # internal

    def _ask(self, subscribing: Subscribing, topic_filter: str, route: Route) -> None:
        if not route.filters and route.port is None:
            route.position = None  # nobody missed what passed since
        route.filters.add(topic_filter)
        if route.port is None:
            self._wake(route)
            return
        request = next(self._request)
        route.requests[request] = (topic_filter, subscribing)
        route.port.add_interest(topic_filter, request, retained=not subscribing.is_moved)

    def _apply(self, route: Route, filters: set[str]) -> None:
        if filters == route.filters and not route.has_news:
            return
        route.filters = filters
        if route.port is not None:
            route.has_news = False
            route.port.sync(sorted(filters), sorted(route.sayable_claims))
        elif filters:
            self._wake(route)
        else:
            route.position = None

    def _refresh_open(self, subscribing: Subscribing) -> None:
        for topic_filter in sorted(subscribing.zoned & subscribing.subscriptions.keys()):
            cover = self._zones.cover(topic_filter)
            apexes = {route.apex for route in cover}
            for open_filter, apex in sorted(subscribing.open):
                if open_filter == topic_filter and apex not in apexes:
                    subscribing.drop_zone(topic_filter, apex)
            if subscribing.is_resumed:
                self._drop_unknown(subscribing, topic_filter, apexes)
            for route in cover:
                pair = (topic_filter, route.apex)
                is_told = pair in subscribing.open or pair in subscribing.answered
                if not is_told and subscribing.concerns(topic_filter, route.apex):
                    subscribing.await_zone(topic_filter, route.apex)
                    self._ask(subscribing, topic_filter, route)
        self._settle(subscribing)

    def _drop_unknown(self, subscribing: Subscribing, topic_filter: str, cover: set[str]) -> None:
        """Zones that were pending and that there are no more."""
        for apex in sorted(subscribing.subscriptions[topic_filter].pending - cover):
            above = self._zones.enclosing(apex)
            if self._zones.get(apex) is None and above.cuts is not None:
                subscribing.drop_zone(topic_filter, apex)

    def _settle(self, subscribing: Subscribing) -> None:
        if subscribing.is_done:
            self.cancel(subscribing)
            subscribing.finish()
