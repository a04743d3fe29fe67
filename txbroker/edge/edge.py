"""
The edge: clients on one side, routes to owners on the other.

The shells call in (a connection, a link, the resolver) and are called through the ports `Sink`,
`OwnerPort` and `Connector`. What owners and the resolver say is acted on here, what clients say in
`clients`; between them are the two halves, `publishing` and `interests`. A delivery that comes from
an owner goes to this node's clients and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import chain

from txbroker.authority.handover import MarkKey
from txbroker.counters import Counters
from txbroker.delegation.cut import Cut
from txbroker.delegation.passage import Passage
from txbroker.edge.backlog import Backlog
from txbroker.edge.chunks import Reader
from txbroker.edge.clients import Clients
from txbroker.edge.congestion import Congestion
from txbroker.edge.delivery import Delivery
from txbroker.edge.interests import Interests
from txbroker.edge.keeper import Keeper
from txbroker.edge.limits import EdgeLimits
from txbroker.edge.outbox import OutboxStore
from txbroker.edge.outboxes import Outboxes
from txbroker.edge.passages import Passages
from txbroker.edge.positions import Positions
from txbroker.edge.publishing import Connector, Publisher
from txbroker.edge.reporter import Reporter
from txbroker.edge.route import OwnerPort, Position, Route, State
from txbroker.edge.subscribing import Subscribing
from txbroker.edge.subscriptions import Subscriptions
from txbroker.edge.systree import SysTree
from txbroker.edge.zonemap import ZoneMap
from txbroker.message import Message
from txbroker.mqtt.session import Session
from txbroker.place import PartKey, Place
from txbroker.timers import Timers
from txbroker.topics import is_within

FIRST_RETRY = 0.05
RETRY = 1.0
MOST_DOUBLINGS = 10
"""Seconds until a question that got no answer is asked again: doubled from the first on."""

ATTEMPTS = 3
"""Attempts in a row that fail before a zone counts as unreachable; a zone that is just changing
hands answers to the second or third."""

REFRESHED_AT_ONCE = 100
"""Answers asked for again in one second, at the most."""


class Edge:
    """The edge role of the node `name`, in the life `incarnation` of its process."""

    def __init__(
        self,
        *,
        name: str,
        incarnation: int,
        connector: Connector,
        timers: Timers,
        counters: Counters,
        reporter: Reporter,
        keeper: Keeper,
        reader: Reader,
        outbox_store: OutboxStore,
        again: Callable[[], None],
        limits: EdgeLimits,
    ) -> None:
        """`again` has `work` called in another turn."""
        self.name = name
        self.incarnation = incarnation
        self.counters = counters
        self.keeper = keeper
        self.zones = ZoneMap(limits.cache, self._on_cache_full)
        self.outboxes = Outboxes(
            edge=name,
            incarnation=incarnation,
            zones=self.zones,
            store=outbox_store,
            save_then=keeper.save_then,
            counters=counters,
            reporter=reporter,
            again=again,
            limit=limits.outbox,
        )
        self.congestion = Congestion(
            self.zones, self.outboxes, held_limit=limits.held, now=timers.now
        )
        self.publisher = Publisher(
            self.zones,
            connector,
            counters,
            outboxes=self.outboxes,
            congestion=self.congestion,
            holds=limits.holds,
        )
        self.outboxes.wire(self.publisher)
        self.interests = Interests(self.zones, self.publisher.wake, self._on_confirmed)
        self.backlog = Backlog(
            zones=self.zones,
            reader=reader,
            timers=timers,
            counters=counters,
            limits=limits.session,
            again=again,
            met=lambda passages: self.passages.meet(passages),
        )
        sessions: dict[str, Session] = {}
        self.positions = Positions(
            sessions, zones=self.zones, timers=timers, keeper=keeper, backlog=self.backlog
        )
        self.passages = Passages(self.positions, keeper)
        self.delivery = Delivery(self.zones, self.interests, cache_limit=limits.cache)
        self.sys = SysTree(self.delivery)
        self.subscriptions = Subscriptions(
            zones=self.zones,
            interests=self.interests,
            delivery=self.delivery,
            sys=self.sys,
            keeper=keeper,
            timers=timers,
            reporter=reporter,
            wait=limits.suback_wait,
        )
        self.clients = Clients(
            sessions,
            node=name,
            zones=self.zones,
            publisher=self.publisher,
            subscriptions=self.subscriptions,
            delivery=self.delivery,
            positions=self.positions,
            timers=timers,
            counters=counters,
            reporter=reporter,
            keeper=keeper,
            backlog=self.backlog,
            limits=limits,
        )
        self._keys_of_left: Callable[[], Iterable[MarkKey]] = tuple
        self._connector = connector
        self._timers = timers
        self._reporter = reporter

    # from the node

    def wire(self, keys_of_left: Callable[[], Iterable[MarkKey]]) -> None:
        """The streams in which sessions that went to other nodes have open publishes."""
        self._keys_of_left = keys_of_left

    def load(self) -> None:
        """After a start: what the earlier process left on the disk is here again."""
        self.outboxes.load()
        self.clients.load(self.outboxes.contains)

    def work(self) -> None:
        """Go on with what is done in turns, beside the rest."""
        self.outboxes.work()
        self.backlog.work()

    def unpublished(self) -> dict[str, int]:
        """By zone: how many QoS 1/2 publishes are still on their way from here, at the most."""
        found = self.publisher.waiting()
        for apex, count in self.outboxes.waiting().items():
            if count:
                found[apex] = found.get(apex, 0) + count
        return found

    # from owners (links and the node's own zone)

    def keys_in_doubt(self, apex: str) -> list[MarkKey]:
        """The streams that the owner of a zone may be asked about; it may forget the others."""
        doubts = (doubt.key for route in self.zones for doubt in route.doubts)
        keys = chain(
            doubts, self.outboxes.keys(), self.clients.keys_in_doubt(), self._keys_of_left()
        )
        # Marks go along with zones, up and down the tree, and nowhere else.
        return [k for k in dict.fromkeys(keys) if is_within(k[2], apex) or is_within(apex, k[2])]

    def on_connecting(self, route: Route) -> None:
        """An attempt begins."""
        if route.state is not State.UNREACHABLE:
            route.state = State.CONNECTING

    def on_owner(
        self,
        route: Route,
        epoch: int,
        predecessor: Place | None,
        passages: Iterable[Passage] = (),
    ) -> None:
        """
        The owner is found, at this epoch; `predecessor` is where its journal goes on from, and
        `passages` are the last ones of its topics.

        What this edge followed before it follows on from there, also when it was away meanwhile.
        """
        for ended in self.passages.learn(passages):
            self._end(ended, route)
        known, part = route.position, PartKey(route.apex, epoch)
        if known is not None and known.epoch < epoch:
            self.positions.on_renewed(route, known, epoch, predecessor)
            route.position = Position(epoch=epoch, offset=0)
        elif known is None and predecessor and self.positions.is_late(predecessor, part):
            route.position = Position(epoch=epoch, offset=0)
            self.positions.on_inherited(route, predecessor)
        route.began = route.position

    def on_failed(self, route: Route) -> None:
        """An attempt came to nothing; several in a row make the zone unreachable."""
        route.failures += 1
        if route.failures < ATTEMPTS:
            return
        if route.unreachable_since is None:
            route.unreachable_since = self._timers.now()
            self._reporter.event("zone.unreachable", zone=route.apex)
        self.publisher.on_unreachable(route)
        # The address may be out of date: the zone above knows better.
        above = self.zones.enclosing(route.apex)
        if above is not route and above.port is None and above.cut is not None:
            self._connector.resolve(above)

    def on_online(
        self,
        route: Route,
        port: OwnerPort,
        *,
        marks: dict[MarkKey, int],
        cuts: Iterable[Cut],
        position: Position,
    ) -> None:
        """The owner is connected, has our interest, and our backlog has arrived."""
        route.port = port
        route.state = State.ONLINE
        route.failures = 0
        route.position = position
        if route.unreachable_since is not None:
            route.unreachable_since = None
            self._reporter.event("zone.reachable", zone=route.apex)
        self._learn_cuts(route, cuts, follow=route.began is not None)
        self.publisher.on_marks(route, marks)
        self.outboxes.on_online(route)
        self.interests.on_online(route)
        self.positions.on_online(route)
        self._forget_ended(route)

    def on_lost(self, route: Route, key: MarkKey) -> None:
        """The connection to the owner broke."""
        route.port = None
        route.state = State.CONNECTING
        self.publisher.on_lost(route, key)
        self.outboxes.on_lost(route)
        if route.is_ending:
            self.on_gone(route, is_whole=False)

    def on_message(self, route: Route, message: Message, offset: int) -> None:
        """A live or caught-up delivery."""
        is_read = bool(route.read) and route.is_read(message.topic, offset)
        if not is_read:
            self.on_reached(route, offset)
        self.delivery.deliver(Place(route.part, offset), message, is_read=is_read)

    def on_reached(self, route: Route, offset: int) -> None:
        """Up to this offset the owner has nothing for us that has not arrived."""
        position = route.position
        if position is not None and offset > position.offset:
            route.position = Position(epoch=position.epoch, offset=offset)

    def on_claimed(self, route: Route, apexes: Collection[str], done: Callable[[], None]) -> None:
        """All that waited for these claims has come; `done` is called when that is safe."""
        is_read = not route.read.isdisjoint(apexes)
        route.complete_claims(apexes)
        if is_read:
            self.positions.wake()
            self.keeper.when_durable(done)
        else:
            done()

    def on_cut(self, route: Route, cut: Cut) -> None:
        """The owner's stream says: this apex is another node's from here on."""
        cuts = {a: c for a, c in (route.cuts or {}).items() if not a.startswith(cut.apex + "/")}
        cuts[cut.apex] = cut
        route.cuts = cuts
        self.passages.went(PartKey(cut.apex, cut.epoch), is_return=False)
        below = self.zones.add(cut)
        self.interests.on_cut(route, below)
        self._follow(route, below)
        self.publisher.hold_below(route, below)
        self.interests.refresh()

    def on_cut_ended(self, route: Route, apex: str, epoch: int, offset: int | None = None) -> None:
        """
        The owner's stream says: that child gave its zone back.

        `offset`: after which the subtree is this zone's again, where that was some time ago.
        """
        here = 0 if route.position is None else route.position.offset
        self._came_back(route, apex, epoch, here if offset is None else offset)

    def on_reclaimed(self, route: Route, apex: str, epoch: int, after: Position) -> None:
        """
        The owner's stream says: that child's zone was taken from it, and goes on in this one behind
        that position. What of it the child alone has is cut off.
        """
        below = self.zones.get(apex)
        if below is None or below.epoch <= epoch:
            route.reclaimed[apex] = after
        self._came_back(route, apex, epoch, after.offset)

    def on_gone(self, route: Route, *, is_whole: bool) -> None:
        """
        The owner does not serve the zone any more: back to the nearest zone above it.

        `is_whole`: its stream said so itself, after all that it had.
        """
        if self.zones.get(route.apex) is not route:
            return
        self._connector.disconnect(route)
        above = self.zones.enclosing(route.apex)
        self.zones.remove(route)
        route.port = None
        route.state = State.IDLE
        if above is not route:
            again = self._granted_again(route, above)
            self.interests.on_gone(route, above)
            self.positions.on_ended(route, above, is_whole=is_whole)
            if again is not None:
                below = self.zones.add(again)
                below.claim(route.apex)
                self._follow(above, below)
            elif above.cuts is not None:
                above.cuts.pop(route.apex, None)
                # What was delegated below stands, also before the heir has said so: else the
                # interest there would be withdrawn for a moment.
                above.cuts = {**(route.cuts or {}), **above.cuts}
            above.doubts.extend(route.doubts)
            route.doubts = []
            if above.doubts:
                self.publisher.ask(above)
            if above.port is None and above.cut is not None:
                self._connector.resolve(above)
        returned = [*route.sent, *route.take_waiting()]
        route.sent.clear()
        route.filters = set()
        self.publisher.redistribute(returned)
        self.publisher.forget(route, above)
        self.interests.refresh()

    # from the resolver

    def on_resolved(self, route: Route, zone: Cut, cuts: Iterable[Cut], ttl: float) -> None:
        """The node answered that it serves the zone, and which cuts the zone has."""
        route.resolving = False
        route.failures = 0
        if route.port is not None:
            return  # its stream knows better
        route.fresh_until = self._timers.now() + ttl
        self.zones.add(zone)
        self._learn_cuts(route, cuts)
        self._forget_ended(route)
        self.publisher.redistribute(route.take_waiting())
        self.interests.refresh()
        if route.is_needed:
            self._connector.connect(route)

    def on_unresolved(self, route: Route) -> None:
        """The node did not answer; what is known is served stale, and the question repeated."""
        route.resolving = False
        if route.port is not None or route.cuts is not None:
            return
        route.resolving = True  # whoever needs the answer meanwhile waits for the next attempt
        self.on_failed(route)
        pause = min(FIRST_RETRY * 2 ** min(route.failures, MOST_DOUBLINGS), RETRY)
        self._timers.call_later(pause, lambda: self._retry(route))

    def refresh_stale(self) -> None:
        """
        Once a second: ask again what has outlived its time; it is used meanwhile (serve stale,
        RFC 8767).
        """
        self.publisher.look_again()
        now = self._timers.now()
        due = [
            r
            for r in self.zones
            if r.cuts is not None and r.port is None and r.fresh_until < now and not r.resolving
        ]
        for route in due[:REFRESHED_AT_ONCE]:
            route.fresh_until = now + RETRY
            self._connector.resolve(route)

    def on_lineage(self, lineage: Iterable[Cut]) -> None:
        """Where walks can start: the zones above this node's, root first."""
        for cut in lineage:
            is_new = self.zones.get(cut.apex) is None
            route = self.zones.add(cut)
            if is_new:
                self.publisher.hold_below(self.zones.enclosing(cut.apex), route)
            if route.is_needed:
                self.publisher.wake(route)

    # internal

    def _came_back(self, route: Route, apex: str, epoch: int, offset: int) -> None:
        """
        A zone is that of `route` again: every session reads on there, behind that offset.

        What its earlier node still has for this edge is read as well, and not listened to: that
        stream may be dead, and what comes now waits for the claim meanwhile.
        """
        below = self.zones.get(apex)
        if route.cuts is not None:
            route.cuts.pop(apex, None)
        if below is not None and below.epoch > epoch:
            return
        if below is not None and below.is_local:
            below.is_ending = True  # it says so itself, at once
            return
        self.passages.came_back(PartKey(apex, epoch), Place(route.part, offset))
        if below is None:
            route.claim(apex, is_read=True)
            self.interests.refresh()
            return
        if below.port is None:
            below.over = epoch
            self.on_gone(below, is_whole=False)
        else:
            self._end(PartKey(apex, epoch), route)

    def _end(self, part: PartKey, teller: Route) -> None:
        """The part is over, and read to its end: its stream is not needed any more."""
        route = self.zones.get(part.zone)
        if route is None or route is teller or route.epoch > part.epoch or route.is_local:
            return
        route.over = part.epoch
        if route.port is not None:
            route.is_ending = True
            route.port.close("the zone went back to the node above")

    def _on_cache_full(self) -> None:
        if not self.counters.get("cache.full"):
            self._reporter.event("cache.full", limit="limits.cache", value=self.zones.limit)
        self.counters.add("cache.full")

    def _on_confirmed(self, subscribing: Subscribing, topic_filter: str) -> None:
        if not subscribing.session.clean:
            self.keeper.save_all(subscribing.session)  # where it begins must outlive a crash
        self._reporter.event(
            "interest.confirmed",
            filter=topic_filter,
            client_id=subscribing.session.client_id,
        )

    def _granted_again(self, route: Route, above: Route) -> Cut | None:
        # The stream from above may be ahead of the zone's own, which says what ended by now.
        known = (above.cuts or {}).get(route.apex)
        ended = route.position.epoch if route.position is not None else route.epoch
        return known if known is not None and known.epoch > ended else None

    def _follow(self, route: Route, below: Route) -> None:
        """What was followed in one zone is followed in the one that was cut from it."""
        position = below.position
        if route.position is None or (position is not None and position.epoch >= below.epoch):
            return
        if below.port is not None:
            return  # that is the stream of an earlier epoch, which has not ended yet
        if not self.interests.touches(below.apex):
            return
        if position is not None:
            here = Place(route.part, route.position.offset)
            self.positions.on_renewed(below, position, below.epoch, here)
        below.position = Position(epoch=below.epoch, offset=0)
        self.positions.on_cut(route, below)

    def _learn_cuts(self, route: Route, cuts: Iterable[Cut], *, follow: bool = False) -> None:
        before = route.cuts or {}
        route.cuts = {cut.apex: cut for cut in cuts}
        for cut in route.cuts.values():
            below = self.zones.add(cut)
            known = before.get(cut.apex)
            if known is None or known.epoch != cut.epoch:
                self.interests.on_cut(route, below)
                if follow:
                    self.passages.went(PartKey(cut.apex, cut.epoch), is_return=False)
                    self._follow(route, below)
                self.publisher.hold_below(route, below)

    def _forget_ended(self, route: Route) -> None:
        """Zones below that the owner's cuts do not lead to any more, and whose nodes are away."""
        cuts = route.cuts or {}
        for below in self.zones.within(route.apex):
            is_here = below.port is not None or below.is_local
            if not is_here and not any(is_within(below.apex, apex) for apex in cuts):
                self.on_gone(below, is_whole=False)

    def _retry(self, route: Route) -> None:
        route.resolving = False
        if self.zones.get(route.apex) is route and route.is_needed and route.port is None:
            self.publisher.wake(route)
