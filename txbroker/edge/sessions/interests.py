"""
The interest of an edge: which filters it has at which owners.

The interest is counted: one entry for each distinct filter, however many clients have the filter.
Owners hear only of the changes from 0 to 1 and from 1 to 0. The zone map decides which owners serve
a filter. Where a zone is unknown or not connected, the filter waits in the zone's route and counts
as pending.

A change of the map concerns the zones around and below its apex, and their filters that meet the
apex. Zones are brought up to date one by one, in slices. A *dirty* zone waits for its turn. Such a
zone is not woken, and its owner hears nothing of filters. A Hello brings the zone up first, since
an owner drops the filters that a partial interest lacks. The SUBACK of a SUBSCRIBE that was on its
way when the map changed waits until all zones are up to date (`zone_requests`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from itertools import count

from txbroker.core.sorted_filters import SortedFilters
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.routing.route import Route
from txbroker.edge.routing.zone_interest import wanted, wanted_within
from txbroker.edge.sessions.retained_feeds import Retained
from txbroker.edge.sessions.subscribe_request import SubscribeRequest
from txbroker.edge.sessions.zone_requests import ZoneRequests
from txbroker.model.log_position import LogPosition
from txbroker.mqtt.wire.message import Message
from txbroker.runtime.slices import Slices

PIECE = 16
"""Filters of an ended session that are withdrawn in one step."""

FEW = 4
"""If changed apexes times this exceed the number of filters, all filters are checked instead."""


_Found = tuple[set[str], set[str]]


class Interests:
    """
    The subscribing half of an edge; `wake` advances a route that has something to send.

    `wants_publishers`: True if any subscription here needs to know the publisher of its messages.
    """

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
        # apexes below that changed; None: the zone's own
        self._dirty: dict[Route, set[str] | None] = {}
        self._requests = ZoneRequests()
        self._on_confirmed = on_confirmed
        self._counts: dict[str, int] = {}
        self.size = 0  # characters of the filters of all subscriptions
        self._pending: dict[object, SubscribeRequest] = {}
        self._of: dict[object, dict[SubscribeRequest, None]] = {}
        self._request = count(1)
        self.wants_publishers = False
        self._ask_own_zone: Callable[[str], tuple[LogPosition, Retained] | None] | None = None

    # from the node

    def wire(self, ask_own_zone: Callable[[str], tuple[LogPosition, Retained] | None]) -> None:
        """
        Set the port that asks the zone of this node for the start and the retained messages of a
        filter.

        The port returns None if the zone cannot answer at once.
        """
        self._ask_own_zone = ask_own_zone

    # from operators

    @property
    def filters(self) -> int:
        """Number of distinct filters of the sessions here."""
        return len(self._counts)

    @property
    def awaiting_count(self) -> int:
        """Number of SUBSCRIBE packets, and of sessions that moved here, that wait for zones."""
        return len(self._pending)

    # from sessions

    def add(self, topic_filter: str) -> None:
        """Count one more subscription with the filter."""
        self.size += len(topic_filter)
        count = self._counts[topic_filter] = self._counts.get(topic_filter, 0) + 1
        if count == 1:
            self._filters.add(topic_filter)

    def remove(self, topic_filter: str) -> None:
        """Count one subscription less; the last one withdraws the filter from all owners."""
        self.size -= len(topic_filter)
        self._counts[topic_filter] -= 1
        if self._counts[topic_filter]:
            return
        del self._counts[topic_filter]
        self._filters.discard(topic_filter)
        for route in self._zones.met_by(topic_filter):
            if route.interest.drop(topic_filter) and route.port is not None:
                route.port.remove_interest(topic_filter)

    def remove_all(self, session: object, topic_filters: Iterable[str]) -> None:
        """
        Count one subscription less for each filter of an ended session, in slices.

        Until a filter's turn, its deliveries go to other sessions with the filter, or to none.
        """
        left = list(topic_filters)
        if len(left) == 1:
            self.remove(left[0])  # as short as any step of the slices, which would cost as much
        elif left:
            self._slices.start(session, self._withdraw(left))

    def answer_locally(self, topic_filter: str) -> tuple[LogPosition, Retained] | None:
        """
        Return the answer of all zones that a filter touches, if this node's zone is the only one.
        """
        self._mark_changed_routes()
        if self._ask_own_zone is None or self._dirty:
            return None
        cover = self._zones.cover(topic_filter)
        if len(cover) > 1 or not cover[0].is_local:
            return None
        answer = self._ask_own_zone(topic_filter)
        if answer is not None:
            cover[0].interest.add(topic_filter)
        return answer

    def start(self, subscribing: SubscribeRequest) -> None:
        """Ask every zone that the filters touch."""
        self.refresh()
        self._pending[subscribing] = subscribing
        self._of.setdefault(subscribing.session, {})[subscribing] = None
        zoned = sorted(subscribing.zoned)
        asked = [
            (topic_filter, route)
            for topic_filter in zoned
            for route in self._zones.cover(topic_filter)
            if subscribing.needs_zone(topic_filter, route.apex)
        ]
        for topic_filter, route in asked:
            subscribing.await_zone(topic_filter, route.apex)
        for topic_filter, route in asked:
            self._ask(subscribing, topic_filter, route)
        self.finish_if_answered(subscribing)

    def cancel(self, subscribing: SubscribeRequest) -> None:
        """Drop the request: its session is over, or its SUBACK is due."""
        if self._pending.pop(subscribing, None) is None:
            return
        self._requests.stale.pop(subscribing, None)
        of_session = self._of[subscribing.session]
        del of_session[subscribing]
        if not of_session:
            del self._of[subscribing.session]

    def finish_if_answered(self, subscribing: SubscribeRequest) -> None:
        """Finish the request, and so send its SUBACK, if no zone is awaited."""
        if subscribing not in self._requests.stale and subscribing.is_done:
            self.cancel(subscribing)
            subscribing.finish()

    def of(self, session: object) -> list[SubscribeRequest]:
        """Return the requests of a session that are on their way."""
        return list(self._of.get(session, ()))

    def is_asked(self, session: object, topic_filter: str, apex: str) -> bool:
        """
        True if the zone has still to answer from which offset on the filter holds for the session.
        """
        return any((topic_filter, apex) in one.open for one in self.of(session))

    def awaits_places(self, session: object) -> bool:
        """True if the session moved here, and a zone has still to answer how far it has come."""
        return any(one.is_moved and one.open for one in self.of(session))

    def owed_since(self, session: object, route: Route) -> int | None:
        """
        Return the offset above which a session that moved here is owed the records of the zone.

        None: the zone has answered, so the session follows its stream.
        """
        if session not in self._of:
            return None  # as of most sessions, at each disconnect for each zone
        moved = (one for one in self._of[session] if one.is_moved)
        return min(
            (route.since(one) for request in moved for one in request.open.of(route.apex)),
            default=None,
        )

    # from owners

    def on_answer(self, route: Route, request: int, offset: int, retained: Retained) -> None:
        """Apply a zone's answer: records behind `offset` belong to the subscription."""
        known = route.interest.take_request(request)
        if known is None:
            return
        topic_filter, asker = known
        subscribing = self._pending.get(asker)
        if subscribing is None:
            return  # the session has ended
        late = subscribing.acknowledge is None
        if (topic_filter, route.apex) in subscribing.open:
            since = route.since(topic_filter)
            subscribing.answer(topic_filter, LogPosition(route.part, offset), retained, since)
            if late:
                self._on_confirmed(subscribing, topic_filter)
        self.finish_if_answered(subscribing)

    def on_retained(self, route: Route, request: int, message: Message) -> None:
        """
        Deliver a retained message that precedes the answer; if the link breaks in between, it comes
        again.
        """
        known = route.interest.requests.get(request)
        subscribing = None if known is None else self._pending.get(known[1])
        if known is not None and subscribing is not None:
            subscribing.deliver_retained(known[0], message)

    def on_online(self, route: Route) -> None:
        """
        Ask the connected owner, which has this edge's filters, for all answers that are still open.
        """
        route.interest.forget_requests()
        self.update_now(route)
        pending = self._pending.values()
        self._requests.ask_again(
            route, ((one, text) for one in pending for text in sorted(one.open.of(route.apex)))
        )
        self.refresh()

    def on_cut(self, route: Route, below: Route, *, is_read: bool = False) -> None:
        """
        Claim a new zone: the owner's stream announced a cut, and the child inherited our interest.

        Filters that the owner had answered count as answered by the child as well. The child holds
        our deliveries until the claim. `is_read`: every session reads these from the journal.
        """
        # The claim goes out without a filter there, too. The child may have inherited one that this
        # edge has withdrawn since, and would hold deliveries for ever.
        if below.apex not in below.claims.apexes:  # a cut may be announced again
            below.claim(below.apex, is_read=is_read)
        route.claims.withdraw(below.apex)
        for subscribing in self._pending.values():
            subscribing.answered.share(route.apex, below.apex)

    def on_zone_end(self, route: Route, above: Route) -> None:
        """Claim the zone at `above`, to which it went back, and which inherited our interest."""
        above.claim(route.apex, is_read=route.is_over)
        for subscribing in self._pending.values():
            for topic_filter in sorted(subscribing.open.of(route.apex)):
                subscribing.drop_zone(topic_filter, route.apex)
                subscribing.answered.discard((topic_filter, above.apex))

    def refresh(self) -> None:
        """Move filters to the routes where they belong after a change of the map."""
        self._mark_changed_routes()
        if (self._dirty or self._requests.is_busy) and not self._slices.is_busy(self):
            self._slices.start(self, self._work())

    def update_now(self, route: Route) -> None:
        """
        Update the route's filters at once; the caller is about to send them.

        The caller calls `refresh` as well, before or after.
        """
        self._mark_changed_routes()
        if route.has_news:
            self._mark(route)
        if route in self._dirty:
            self._update_filters(route, is_woken=False)
        if self._requests.has_unasked:
            self.refresh()

    def touches(self, apex: str) -> bool:
        """True if any session here has a filter that may match within the zone."""
        return any(self._filters.touching(apex))

    def of_zone(self, route: Route) -> Set[str]:
        """
        Return the filters that the zone's owner serves, or has to serve; callers must not hold on
        to the set.
        """
        self.update_now(route)
        return route.interest.filters

    def filters_of(self, apex: str) -> set[str]:
        """Return all filters here that may match within the zone, or in a zone below."""
        return {one for texts in self._filters.touching(apex) for one in texts}

    # from operators

    def pending_by_zone(self) -> dict[str, int]:
        """Return the number of filters that wait for each zone that is not connected."""
        return {
            route.apex: len(route.interest.filters)
            for route in self._zones
            if route.interest.filters and route.port is None
        }

    # internal

    def _ask(self, subscribing: SubscribeRequest, topic_filter: str, route: Route) -> None:
        is_dirty = route in self._dirty
        if not route.interest.filters and route.port is None and not is_dirty:
            route.forget_position()  # no session missed the records since
        route.interest.add(topic_filter)
        if route.port is None:
            if is_dirty:
                route.note_news()  # the route is woken when it has all its filters
            else:
                self._wake(route)
            return
        if is_dirty:
            # deliveries from now on are live for stale requests, too: they await theirs first
            self._requests.update(route, {topic_filter}, set())
        request = next(self._request)
        route.interest.ask(request, topic_filter, subscribing)
        retained = subscribing.wants_retained(topic_filter)
        route.port.add_interest(topic_filter, request, retained=retained)

    def _mark_changed_routes(self) -> None:
        """Mark the routes dirty that are concerned by changes since the last call."""
        zones, changes = self._zones, self._zones.changes
        apexes = changes.dequeue()
        if apexes:
            self._requests.stale.update(dict.fromkeys(self._pending.values()))
        for apex in apexes:
            route = zones.get(apex)
            if route is not None:
                self._dirty[route] = None
            for below in zones.within(apex):
                self._dirty[below] = None
            for above in zones.above(apex):
                self._mark(above, apex)
        for route in changes.dequeue_routes():
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
        while self._dirty or self._requests.is_busy:
            if self._requests.has_unasked:
                for question in self._requests.take():
                    self._ask_joined(*question)
            elif self._dirty:
                yield from self._bring_up(next(iter(self._dirty)))
            else:
                subscribing = next(iter(self._requests.stale))
                del self._requests.stale[subscribing]
                self._drop_stale_pending(subscribing)
                self.finish_if_answered(subscribing)
            yield

    def _ask_joined(self, subscribing: SubscribeRequest, topic_filter: str, route: Route) -> None:
        """Ask a zone that has joined a request; of a new link all questions are unasked again."""
        if subscribing in self._pending and route.port is not None:
            self._ask(subscribing, topic_filter, route)

    def _bring_up(self, route: Route) -> Iterator[None]:
        """Update a dirty route; the requests that wait are updated before that, in pieces."""
        found: _Found | None = None
        if self._zones.get(route.apex) is route:
            found = now, others = self._wanted(route, self._dirty[route])
            for _ in self._requests.steps(route, now, others):
                yield
                found = None  # the map may have changed
                if self._zones.get(route.apex) is not route or route not in self._dirty:
                    break
        if route in self._dirty:
            self._update_filters(route, found)

    def _update_filters(
        self, route: Route, found: _Found | None = None, *, is_woken: bool = True
    ) -> None:
        """Update a dirty route at once; `found` is what `_wanted` returns now, if that is known."""
        apexes = self._dirty.pop(route)
        if self._zones.get(route.apex) is not route:
            return
        now, others = self._wanted(route, apexes) if found is None else found
        # An earlier piece may have awaited the zone for filters that the map has since moved.
        others |= self._requests.unasked(route) - now
        self._requests.update(route, now, others)
        if any(above.cuts is None for above in self._zones.above(route.apex)):
            # A zone above is unknown, or is no longer known. Withdrawing filters now would lose
            # deliveries if they still belong here.
            others = set()
        self._apply(route, now, others, is_woken=is_woken)

    def _wanted(self, route: Route, apexes: set[str] | None) -> _Found:
        """
        Split the filters that a change concerns: those that the route has to have, and the others.
        """
        now: set[str] = set()
        concerned: set[str] = set()
        # With fewer filters than apexes, to check all filters costs less.
        if apexes is None or len(apexes) * FEW > len(self._counts):
            now = wanted(self._zones, self._filters, route)
            return now, set(route.interest.filters - now)
        for apex in apexes:
            texts = list(self._filters.within(apex))
            if not texts:
                continue
            concerned.update(*texts)
            now |= wanted_within(self._zones, self._filters, route, apex)
        return now, concerned - now

    def _apply(self, route: Route, now: set[str], others: set[str], *, is_woken: bool) -> None:
        known = route.interest.filters
        new, gone = now - known, others & known
        if not (new or gone or route.has_news):
            return
        route.interest.change(new, gone)
        if route.port is not None:
            route.port.sync(*route.tell_news())
        elif not route.interest.filters:
            route.forget_position()
        elif is_woken:
            self._wake(route)

    def _drop_stale_pending(self, subscribing: SubscribeRequest) -> None:
        """Drop zones that were pending when an earlier process ended, and that no longer exist."""
        if not subscribing.is_resumed:
            return
        for topic_filter in sorted(subscribing.zoned & subscribing.subscriptions.keys()):
            for apex in sorted(subscribing.subscriptions[topic_filter].pending):
                cuts = self._zones.enclosing(apex).cuts
                if self._zones.get(apex) is None and cuts is not None and apex not in cuts:
                    subscribing.drop_zone(topic_filter, apex)
