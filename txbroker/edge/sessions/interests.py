"""
Which zones an edge wants what from.

The edge's interest is counted: one entry for each distinct filter, however many clients have it,
and only 0 to 1 and 1 to 0 travel. Where it travels is worked out from the zone map; where a zone is
not known or not connected, the want waits in its route and counts as pending.

A change of the map concerns the zones around and below its apex, and of their filters those that
meet it. Zones are brought up to date one by one, in slices. A zone that waits for its turn is
*dirty*: it is not woken, its owner hears nothing of filters, and a greeting brings it up first, as
an owner that is told half of an interest drops the other half. A SUBSCRIBE that was on its way when
the map changed is *stale*: its SUBACK waits until all zones are looked at, and a zone that joins
its filters is awaited before anything of it can arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from itertools import count

from txbroker.core.sorted_filters import SortedFilters
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.routing.route import Route, RouteState
from txbroker.edge.routing.zone_interest import wanted, wanted_within
from txbroker.edge.sessions.retained_feeds import Retained
from txbroker.edge.sessions.subscribe_request import SubscribeRequest
from txbroker.model.log_position import LogPosition
from txbroker.model.topics import may_match_within
from txbroker.mqtt.wire.message import Message
from txbroker.runtime.slices import Slices

PIECE = 16
"""Filters of a session that has ended that are withdrawn in one step."""

FEW = 4
"""All filters are gone through for as many changes as a fourth of their number, or more."""


class Interests:
    """The subscribing half of an edge; `wake` brings a route on that has something to do."""

    def __init__(
        self,
        zones: ResolverCache,
        wake: Callable[[Route], None],
        on_confirmed: Callable[[SubscribeRequest, str], None],
        slices: Slices,
    ) -> None:
        self._zones = zones
        self._wake = wake
        self._slices = slices
        self._filters = SortedFilters()
        self._dirty: dict[Route, set[str] | None] = {}  # apexes below that changed; None: its own
        self._stale: dict[SubscribeRequest, None] = {}
        self._on_confirmed = on_confirmed
        self._counts: dict[str, int] = {}
        self._pending: dict[object, SubscribeRequest] = {}
        self._of: dict[object, dict[SubscribeRequest, None]] = {}
        self._request = count(1)
        self._ask_own_zone: Callable[[str], tuple[LogPosition, Retained] | None] | None = None

    # from the node

    def wire(self, ask_own_zone: Callable[[str], tuple[LogPosition, Retained] | None]) -> None:
        """
        What asks the zone of this node, where that can answer at once: from which place on a filter
        is served, and its retained messages. None: it cannot.
        """
        self._ask_own_zone = ask_own_zone

    # from operators

    @property
    def filters(self) -> int:
        """How many distinct filters the sessions here have."""
        return len(self._counts)

    @property
    def asked(self) -> int:
        """How many SUBSCRIBE packets, or sessions that came, wait for zones."""
        return len(self._pending)

    # from sessions

    def add(self, topic_filter: str) -> None:
        """One more subscription has the filter."""
        count = self._counts[topic_filter] = self._counts.get(topic_filter, 0) + 1
        if count == 1:
            self._filters.add(topic_filter)

    def remove(self, topic_filter: str) -> None:
        """One less; the last one withdraws the filter everywhere."""
        self._counts[topic_filter] -= 1
        if self._counts[topic_filter]:
            return
        del self._counts[topic_filter]
        self._filters.discard(topic_filter)
        for route in self._zones.met_by(topic_filter):
            if topic_filter in route.filters:
                route.filters.discard(topic_filter)
                if route.port is not None:
                    route.port.remove_interest(topic_filter)

    def leave(self, session: object, topic_filters: Iterable[str]) -> None:
        """
        One subscription less for each of the filters, in slices: the session has ended. What still
        comes for one that waits for its turn goes to nobody, unless another session has it.
        """
        left = list(topic_filters)
        if left:
            self._slices.start(session, self._withdraw(left))

    def ask_now(self, topic_filter: str) -> tuple[LogPosition, Retained] | None:
        """The answer of all zones that a filter touches: of this node's own, if it is that one."""
        self._look()
        if self._ask_own_zone is None or self._dirty:
            return None
        cover = self._zones.cover(topic_filter)
        if len(cover) > 1 or not cover[0].is_local:
            return None
        answer = self._ask_own_zone(topic_filter)
        if answer is not None:
            cover[0].filters.add(topic_filter)
        return answer

    def begin(self, subscribing: SubscribeRequest) -> None:
        """Ask every zone that the filters touch."""
        self.refresh()
        self._pending[subscribing] = subscribing
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
        self.settle(subscribing)

    def cancel(self, subscribing: SubscribeRequest) -> None:
        """The session is gone."""
        if self._pending.pop(subscribing, None) is None:
            return
        self._stale.pop(subscribing, None)
        of_session = self._of[subscribing.session]
        del of_session[subscribing]
        if not of_session:
            del self._of[subscribing.session]

    def settle(self, subscribing: SubscribeRequest) -> None:
        """Its SUBACK is due, if no zone is waited for."""
        if subscribing not in self._stale and subscribing.is_done:
            self.cancel(subscribing)
            subscribing.finish()

    def of(self, session: object) -> list[SubscribeRequest]:
        """What is on its way for a session."""
        return list(self._of.get(session, ()))

    def is_asked(self, session: object, topic_filter: str, apex: str) -> bool:
        """True if the zone has still to say from where on the filter holds for the session."""
        return any((topic_filter, apex) in one.open for one in self.of(session))

    # from owners

    def on_answer(self, route: Route, request: int, offset: int, retained: Retained) -> None:
        """A zone confirmed an interest; what lies behind `offset` is its."""
        known = route.requests.pop(request, None)
        if known is None:
            return
        topic_filter, asker = known
        subscribing = self._pending.get(asker)
        if subscribing is None:
            return  # its session has ended
        late = subscribing.acknowledge is None
        if (topic_filter, route.apex) in subscribing.open:
            since = route.since(topic_filter)
            subscribing.answer(topic_filter, LogPosition(route.part, offset), retained, since)
            if late:
                self._on_confirmed(subscribing, topic_filter)
        self.settle(subscribing)

    def on_retained(self, route: Route, request: int, message: Message) -> None:
        """
        A message that comes with the answer, before the answer counts. Should the link break in
        between, it comes again.
        """
        known = route.requests.get(request)
        subscribing = None if known is None else self._pending.get(known[1])
        if known is not None and subscribing is not None:
            subscribing.give_retained(known[0], message)

    def on_online(self, route: Route) -> None:
        """The owner is connected and has our filters: ask for what is still open."""
        route.requests.clear()
        self.bring_up(route)
        for subscribing in list(self._pending.values()):
            for topic_filter in sorted(subscribing.open.of(route.apex)):
                self._ask(subscribing, topic_filter, route)
        self.refresh()

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
        for subscribing in self._pending.values():
            for topic_filter in subscribing.answered.of(route.apex):
                if may_match_within(topic_filter, below.apex):
                    subscribing.answered.add((topic_filter, below.apex))

    def on_gone(self, route: Route, above: Route) -> None:
        """The zone went back to `above`, which inherited our interest."""
        above.claim(route.apex, is_read=route.is_over)
        for subscribing in self._pending.values():
            for topic_filter in sorted(subscribing.open.of(route.apex)):
                subscribing.drop_zone(topic_filter, route.apex)
                subscribing.answered.discard((topic_filter, above.apex))

    def refresh(self) -> None:
        """The map changed: move the filters that this concerns to where they belong now."""
        self._look()
        if (self._dirty or self._stale) and not self._slices.is_busy(self):
            self._slices.start(self, self._work())

    def bring_up(self, route: Route) -> None:
        """
        Its filters are those that it is to have: whoever calls this is about to tell them, and
        calls `refresh` as well, before or after that.
        """
        self._look()
        if route.has_news:
            self._mark(route)
        if route in self._dirty:
            self._bring_up(route, is_woken=False)

    def touches(self, apex: str) -> bool:
        """Whether any session here wants something of the zone."""
        return any(self._filters.touching(apex))

    def of_zone(self, route: Route) -> Set[str]:
        """The filters that its owner serves, or is to serve; not to be kept."""
        self.bring_up(route)
        return route.filters

    def filters_of(self, apex: str) -> set[str]:
        """All filters here that want something of the zone, or of one below it."""
        return {one for texts in self._filters.touching(apex) for one in texts}

    # from operators

    def pending_by_zone(self) -> dict[str, int]:
        """How many filters wait for which zone."""
        return {
            route.apex: len(route.filters)
            for route in self._zones
            if route.filters and route.state is not RouteState.ONLINE
        }

    # internal

    def _ask(
        self,
        subscribing: SubscribeRequest,
        topic_filter: str,
        route: Route,
        *,
        is_woken: bool = True,
    ) -> None:
        is_dirty = route in self._dirty
        if not route.filters and route.port is None and not is_dirty:
            route.position = None  # nobody missed what passed since
        route.filters.add(topic_filter)
        if route.port is None:
            if is_dirty:
                route.has_news = True  # it is woken when all of its filters are here
            elif is_woken:
                self._wake(route)
            return
        asked = [subscribing]
        if is_dirty:  # what comes now is live to others, too, who are to be asked for first
            asked += (other for other, _ in self._join(route, {topic_filter}, set()))
        for one in asked:
            request = next(self._request)
            route.requests[request] = (topic_filter, one)
            route.port.add_interest(topic_filter, request, retained=not one.is_moved)

    def _look(self) -> None:
        """What changed since the last time makes routes dirty."""
        zones, changes = self._zones, self._zones.changes
        apexes = changes.take()
        if apexes:
            self._stale.update(dict.fromkeys(self._pending.values()))
        for apex in apexes:
            route = zones.get(apex)
            if route is not None:
                self._dirty[route] = None
            for below in zones.within(apex):
                self._dirty[below] = None
            for above in zones.above(apex):
                self._mark(above, apex)
        for route in changes.take_news():
            self._mark(route)

    def _mark(self, route: Route, *apexes: str) -> None:
        known = self._dirty.setdefault(route, set())
        if known is not None:
            known.update(apexes)

    def _withdraw(self, topic_filters: list[str]) -> Iterator[None]:
        while topic_filters:
            for topic_filter in topic_filters[-PIECE:]:
                self.remove(topic_filter)
            del topic_filters[-PIECE:]
            yield

    def _work(self) -> Iterator[None]:
        while self._dirty or self._stale:
            if self._dirty:
                self._bring_up(next(iter(self._dirty)))
            else:
                subscribing = next(iter(self._stale))
                del self._stale[subscribing]
                self._look_at_pending(subscribing)
                self.settle(subscribing)
            yield

    def _bring_up(self, route: Route, *, is_woken: bool = True) -> None:
        apexes = self._dirty.pop(route)
        if self._zones.get(route.apex) is not route:
            return
        if apexes is not None and len(apexes) * FEW > len(self._counts):
            apexes = None  # fewer filters than apexes: all of them cost less
        now, others = self._wanted(route, apexes)
        asked = self._join(route, now, others)
        if any(above.cuts is None for above in self._zones.above(route.apex)):
            # What is above is not known (any more): keep what we have until it is.
            others = set()
        self._apply(route, now, others, is_woken=is_woken)
        for subscribing, topic_filter in asked:
            self._ask(subscribing, topic_filter, route, is_woken=is_woken)

    def _wanted(self, route: Route, apexes: set[str] | None) -> tuple[set[str], set[str]]:
        """Of the filters that a change concerns those that the route is to have; the others."""
        now: set[str] = set()
        concerned: set[str] = set()
        if apexes is None:
            now = wanted(self._zones, self._filters, route)
            return now, route.filters - now
        for apex in apexes:
            texts = list(self._filters.within(apex))
            if not texts:
                continue
            concerned.update(*texts)
            now |= wanted_within(self._zones, self._filters, route, apex)
        return now, concerned - now

    def _join(
        self, route: Route, now: set[str], others: set[str]
    ) -> list[tuple[SubscribeRequest, str]]:
        """What SUBSCRIBEs on their way want of the route from now on, and do not want any more."""
        asked = []
        for subscribing in self._stale:
            for topic_filter in sorted(subscribing.open.of(route.apex) & others):
                subscribing.drop_zone(topic_filter, route.apex)
            for topic_filter in sorted(now & subscribing.zoned):
                pair = (topic_filter, route.apex)
                if (
                    topic_filter in subscribing.subscriptions
                    and pair not in subscribing.open
                    and pair not in subscribing.answered
                    and subscribing.concerns(topic_filter, route.apex)
                ):
                    subscribing.await_zone(topic_filter, route.apex)
                    asked.append((subscribing, topic_filter))
        return asked

    def _apply(self, route: Route, now: set[str], others: set[str], *, is_woken: bool) -> None:
        new, gone = now - route.filters, others & route.filters
        if not (new or gone or route.has_news):
            return
        route.filters |= new
        route.filters -= gone
        if route.port is not None:
            route.has_news = False
            route.port.sync(sorted(route.filters), sorted(route.sayable_claims))
        elif not route.filters:
            route.position = None
        elif is_woken:
            self._wake(route)

    def _look_at_pending(self, subscribing: SubscribeRequest) -> None:
        """Zones that were pending when an earlier process ended, and that there are no more."""
        if not subscribing.is_resumed:
            return
        for topic_filter in sorted(subscribing.zoned & subscribing.subscriptions.keys()):
            for apex in sorted(subscribing.subscriptions[topic_filter].pending):
                cuts = self._zones.enclosing(apex).cuts
                if self._zones.get(apex) is None and cuts is not None and apex not in cuts:
                    subscribing.drop_zone(topic_filter, apex)
