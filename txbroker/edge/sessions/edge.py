"""
The edge: clients on one side, routes to owners on the other.

The shells call in (a connection, a link, the resolver) and are called through the ports `Sink`,
`OwnerPort` and `Connector`. The edge acts on what owners and the resolver say. `cuts` acts on zones
that are cut or come back; `clients` and `subscriptions` act on what clients say. Between them are
the two halves, `publishing` and `interests`. Deliveries from an owner go to this node's clients, by
`delivery`, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import chain

from txbroker.core import Run
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.edge.routing.client_backpressure import ClientBackpressure
from txbroker.edge.routing.edge_limits import EdgeLimits
from txbroker.edge.routing.edge_parts import EdgeParts
from txbroker.edge.routing.outbox_manager import OutboxManager
from txbroker.edge.routing.owner_port import OwnerPort
from txbroker.edge.routing.publication import Publication
from txbroker.edge.routing.publisher import Publisher
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.routing.route import Route
from txbroker.edge.routing.route_state import RouteState
from txbroker.edge.routing.stored_outbox import OutboxStore
from txbroker.edge.routing.zone_claims import StreamPosition
from txbroker.edge.sessions.catch_up import CatchUp
from txbroker.edge.sessions.client_sessions import ClientSessions, SessionParts
from txbroker.edge.sessions.delivery import Delivery
from txbroker.edge.sessions.interests import Interests
from txbroker.edge.sessions.journal_read_cache import ChunkReader
from txbroker.edge.sessions.ledger_writer import LedgerWriter
from txbroker.edge.sessions.low_water import LowWater
from txbroker.edge.sessions.retained_feeds import RetainedFeeds
from txbroker.edge.sessions.session_cursors import SessionCursors
from txbroker.edge.sessions.session_owner import EdgeSessionOwner
from txbroker.edge.sessions.session_store import SessionStore
from txbroker.edge.sessions.shared_subscriptions import SharedSubscriptions
from txbroker.edge.sessions.subscribe_request import SubscribeRequest
from txbroker.edge.sessions.subscriptions import Subscriptions, SubscriptionSources
from txbroker.edge.sessions.sys_tree import SysTree
from txbroker.edge.sessions.transition_log import TransitionLog
from txbroker.edge.sessions.zone_changes import ZoneChanges
from txbroker.journal.delivery_ledger import LedgerRecorder
from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.invariant import holds
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.topics import is_within
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.message import Message
from txbroker.runtime.slices import Slices

FIRST_RETRY = 0.05
RETRY = 1.0
MOST_DOUBLINGS = 10
"""
Seconds until an unanswered question is repeated: doubled each time, from the first value to the
last.
"""

ATTEMPTS = 3
"""
Failed attempts in a row after which a zone counts as unreachable.

A zone that is just changing hands answers at the second or third attempt.
"""

REFRESHED_AT_ONCE = 100
"""Cached answers that are refreshed in one second, at most."""


class Edge:
    """The edge role of a node, in one life of its process."""

    def __init__(
        self,
        parts: EdgeParts,
        *,
        session_store: SessionStore,
        reader: ChunkReader,
        outbox_store: OutboxStore,
        limits: EdgeLimits,
        ledger: LedgerRecorder | None = None,
    ) -> None:
        """`ledger` is None if the node has no delivery ledger."""
        timers, router = parts.timers, parts.router
        self.name = parts.name
        self.incarnation = parts.incarnation
        self.counters = parts.counters
        self.session_store = session_store
        self.router = router
        self._forgotten = 0
        router.set_cache_limit(limits.cache)
        self.zones = ResolverCache(router, limits.cache, self._on_cache_full)
        self.outboxes = OutboxManager(
            parts,
            self.zones,
            outbox_store,
            save_then=session_store.save_then,
            limit=limits.outbox,
        )
        self.congestion = ClientBackpressure(
            self.zones, self.outboxes, held_limit=limits.held, now=timers.now
        )
        self.publisher = Publisher(
            self.zones,
            parts,
            outboxes=self.outboxes,
            congestion=self.congestion,
            holds=limits.holds,
        )
        self.outboxes.wire(self.publisher)
        self.slices = Slices(timers.now, parts.again)
        session_store.wire_slices(partial(self.slices.start, session_store))
        self.interests = Interests(self.zones, self.publisher.wake, self._on_confirmed, self.slices)
        self.backlog = CatchUp(
            parts,
            zones=self.zones,
            reader=reader,
            limits=limits.session,
            met=lambda transitions: self.transitions.follow_read(transitions),
        )
        sessions: dict[str, Session] = {}
        self.low_water = LowWater(
            sessions,
            zones=self.zones,
            timers=timers,
            session_store=session_store,
            slices=self.slices,
            wake=self.publisher.wake,
        )
        self.cursors = SessionCursors(
            sessions,
            zones=self.zones,
            interests=self.interests,
            session_store=session_store,
            backlog=self.backlog,
            low_water=self.low_water,
        )
        self.transitions = TransitionLog(self.cursors, session_store)
        self.recording = None if ledger is None else LedgerWriter(ledger, self.cursors.followed_now)
        self.cuts = ZoneChanges(
            self.zones,
            parts.connector,
            publisher=self.publisher,
            interests=self.interests,
            cursors=self.cursors,
            transitions=self.transitions,
        )
        self.delivery = Delivery(
            self.zones, self.interests, router, now=timers.now, again=parts.again
        )
        self.sys = SysTree(self.delivery)
        self.feeds = RetainedFeeds(timers)
        self.subscriptions = Subscriptions(
            parts,
            SubscriptionSources(
                zones=self.zones,
                interests=self.interests,
                cursors=self.cursors,
                delivery=self.delivery,
                sys=self.sys,
                feeds=self.feeds,
            ),
            session_store=session_store,
            ledger_writer=self.recording,
            wait=limits.suback_wait,
        )
        self.shared = SharedSubscriptions(
            parts,
            zones=self.zones,
            wake=self.publisher.wake,
            session_store=session_store,
            slices=self.slices,
            wait=limits.suback_wait,
        )
        self._session_owner = EdgeSessionOwner(
            parts,
            zones=self.zones,
            shared=self.shared,
            session_store=session_store,
            backlog=self.backlog,
            ledger_writer=self.recording,
        )
        self.clients = ClientSessions(
            sessions,
            parts,
            SessionParts(
                publisher=self.publisher,
                subscriptions=self.subscriptions,
                shared=self.shared,
                delivery=self.delivery,
                cursors=self.cursors,
                backlog=self.backlog,
            ),
            session_store=session_store,
            owner=self._session_owner,
            limits=limits,
        )
        self._keys_of_left: Callable[[], Iterable[MarkKey]] = tuple
        self._connector = parts.connector
        self._timers = timers
        self._reporter = parts.reporter

    # from the node

    def wire(
        self,
        keys_of_left: Callable[[], Iterable[MarkKey]],
        places_of_left: Callable[[], Iterable[LogPosition]],
    ) -> None:
        """
        Set ports to the sessions that moved to other nodes.

        `keys_of_left` returns the streams of their open publishes, `places_of_left` the journal
        positions that they needed.
        """
        self._keys_of_left = keys_of_left
        self.low_water.wire(places_of_left)

    def set_limits(self, limits: EdgeLimits) -> None:
        """Apply other limits from now on, to existing sessions as well."""
        self.router.set_cache_limit(limits.cache)
        self.zones.limit = limits.cache
        self.outboxes.limit = limits.outbox
        self.clients.set_limits(limits)

    def load(self) -> None:
        """Load outboxes and sessions that the earlier process left on the disk."""
        self.outboxes.load()
        self.clients.load(self.outboxes.contains)

    def work(self) -> None:
        """Continue the work that is done in slices: outboxes, catch-up, filters."""
        self.outboxes.work()
        self.backlog.work()
        self.slices.work()
        self.delivery.work()
        self.shared.work()

    def unpublished(self) -> dict[str, int]:
        """Return, by zone, how many QoS 1/2 publishes are still on their way from here, at most."""
        found = self.publisher.waiting()
        for apex, count in self.outboxes.waiting().items():
            if count:
                found[apex] = found.get(apex, 0) + count
        return found

    def publish(self, message: Message, sent: Callable[[], None]) -> None:
        """
        Publish without a session.

        `sent` runs when the owner has accepted a QoS 1/2 message, or when an outbox has made it
        durable.
        """
        done = sent if message.qos else None
        self.publisher.publish(Publication(message, done=done))

    # from owners (links and the node's own zone)

    def keys_in_doubt(self, apex: str) -> list[MarkKey]:
        """Return the streams that the zone's owner may be asked about; it may forget all others."""
        doubts = (doubt.key for route in self.zones for doubt in route.queue.doubts)
        keys = chain(
            doubts, self.outboxes.keys(), self.clients.keys_in_doubt(), self._keys_of_left()
        )
        # Marks move with zones, up and down the tree, and no further.
        return [k for k in dict.fromkeys(keys) if is_within(k[2], apex) or is_within(apex, k[2])]

    def on_serving(self, route: Route) -> None:
        """Note that this node serves the zone from now on: a link to an earlier owner is closed."""
        if not route.is_local and route.state is not RouteState.IDLE:
            if route.port is not None:
                # The publishes that the link left unanswered are in doubt from here on, and this
                # node knows the marks.
                route.port.close("the zone is served here")
            self._connector.disconnect(route)
        route.serve()

    def on_owner(
        self,
        route: Route,
        epoch: int,
        predecessor: LogPosition | None,
        transitions: Iterable[EpochTransition] = (),
    ) -> None:
        """
        Note that the owner was found, at this epoch.

        `predecessor` is the place after which its journal continues, and `transitions` are the last
        transitions of its topics. Sessions read on from the parts that this edge followed, also if
        the edge was away in between.
        """
        part = JournalId(route.apex, epoch)
        self.cursors.resume_part(part)
        for ended in self.transitions.follow_owner(transitions):
            self.cuts.end(ended, route)
        known = route.position
        if predecessor is None and known is None and epoch > 1:
            self.cursors.on_root_lost(part)
        elif predecessor is not None and predecessor.part.zone == route.apex:
            self.transitions.on_restored(part)
        if known is not None and known.epoch < epoch:
            self.cursors.on_renewed(route, known, epoch, predecessor)
            route.begin_part(epoch)
        elif known is None and predecessor and self.cursors.is_late(predecessor, part):
            route.begin_part(epoch)
            self.cursors.on_inherited(route, predecessor)
        route.meet(epoch, predecessor)

    def on_failed(self, route: Route) -> None:
        """Count a failed attempt; several in a row make the zone unreachable."""
        if route.port is not None:
            return  # an attempt that was given up; another link is there
        if route.count_failure() < ATTEMPTS:
            return
        if route.fail(self._timers.now()):
            self._reporter.event("zone.unreachable", zone=route.apex)
        self.publisher.on_unreachable(route)
        # The address may be out of date, and every attempt would fail. The owner of the zone above
        # has the present one.
        above = self.zones.enclosing(route.apex)
        if above is not route and above.port is None and above.cut is not None:
            self._connector.resolve(above)

    def check(self) -> None:
        """State what routes, outboxes and sessions keep of the rules; after the end of a turn."""
        self.zones.check()
        self.outboxes.check()
        self.cursors.check()
        self.low_water.check()
        self.shared.check()
        waiting = self.outboxes.unsafe_size + sum(r.queue.waiting_size for r in self.zones)
        known = self.zones.backlog.size
        holds(self, 34, "bytes that wait are counted", waiting == known, waiting, known)

    def on_online(
        self,
        route: Route,
        port: OwnerPort,
        *,
        marks: dict[MarkKey, int],
        cuts: Iterable[ZoneCut],
        position: StreamPosition,
    ) -> None:
        """Resume the route: the owner is connected, has our interest, and has sent our backlog."""
        if route.connect(port, position):
            self._reporter.event("zone.reachable", zone=route.apex)
        self.cuts.replace_cuts(route, cuts, follow=route.began is not None)
        self.publisher.on_marks(route, marks)
        self.outboxes.on_online(route)
        self.interests.on_online(route)
        self.cursors.on_online(route)
        self.cuts.forget_ended(route)
        self.shared.on_online(route)

    def on_lost(self, route: Route, key: MarkKey) -> None:
        """Note that the connection to the owner broke."""
        is_ending = route.is_ending
        route.lose()
        self.shared.on_lost(route)
        self.publisher.on_lost(route, key)
        self.outboxes.on_lost(route)
        if is_ending:
            self.cuts.on_zone_end(route, is_whole=False)

    def on_message(self, route: Route, message: Message, offset: int) -> None:
        """Process a delivery, live or caught up."""
        is_read = bool(route.claims.read) and route.is_read(message.topic, offset)
        if not is_read:
            route.reach(offset)
        self.delivery.deliver(LogPosition(route.part, offset), message, is_read=is_read)

    def on_runs(self, route: Route, runs: list[Run]) -> None:
        """Process many deliveries, live or caught up; of QoS 0, or each with its offset."""
        if route.claims.read:
            for run in runs:
                for index in range(run.count):
                    self.on_message(route, run.message(index), run.offset(index))
        else:
            route.reach(runs[-1].last)
            self.delivery.deliver_runs(runs, route.part)

    def on_claimed(self, route: Route, apexes: Collection[str], done: Callable[[], None]) -> None:
        """
        Complete claims: all deliveries that waited for them have arrived; `done` runs when that is
        durable.
        """
        if route.claims.complete(apexes):
            self.cursors.wake()
            self.session_store.when_durable(partial(self._on_claimed_safely, route, apexes, done))
        else:
            done()

    # from the resolver

    def on_resolved(self, route: Route, zone: ZoneCut, cuts: Iterable[ZoneCut], ttl: float) -> None:
        """Apply a node's answer that it serves the zone, and which cuts the zone has."""
        route.end_question(is_answered=True)
        if route.port is not None:
            return  # its stream has newer cuts
        route.freshen(self._timers.now() + ttl)
        self.zones.add(zone)
        self.cuts.replace_cuts(route, cuts)
        self.cuts.forget_ended(route)
        self.publisher.redistribute(route.queue.take_waiting())
        self.interests.refresh()
        if route.is_needed:
            self._connector.connect(route)

    def on_unresolved(self, route: Route) -> None:
        """Repeat a question that got no answer; the cached answer is served stale meanwhile."""
        if route.port is not None or route.cuts is not None:
            route.end_question()
            return
        route.begin_question()  # other requests for the answer wait for the next attempt
        self.on_failed(route)
        pause = min(FIRST_RETRY * 2 ** min(route.failures, MOST_DOUBLINGS), RETRY)
        self._timers.call_later(pause, lambda: self._retry(route))

    def refresh_stale(self) -> None:
        """
        Refresh, once a second, answers whose time to live is over; they serve meanwhile (RFC 8767).
        """
        self.publisher.use_freed_room()
        self.shared.beat()
        self._count_evictions()
        self._session_owner.count_fills()
        now = self._timers.now()
        due = [route for route in self.zones if route.is_stale(now)]
        for route in due[:REFRESHED_AT_ONCE]:
            route.freshen(now + RETRY)
            self._connector.resolve(route)

    def on_lineage(self, lineage: Iterable[ZoneCut]) -> None:
        """Add the zones above this node's, root first, from which walks can start."""
        for cut in lineage:
            is_new = self.zones.get(cut.apex) is None
            route = self.zones.add(cut)
            if is_new:
                self.publisher.move_below(self.zones.enclosing(cut.apex), route)
            if route.is_needed:
                self.publisher.wake(route)
        self.zones.know_between()

    # internal

    def _on_claimed_safely(
        self, route: Route, apexes: Collection[str], done: Callable[[], None]
    ) -> None:
        done()
        if route.claims.finish(apexes):
            route.note_news()  # the apexes left and came back meanwhile
            self.interests.refresh()

    def _count_evictions(self) -> None:
        """Count the topics that the exchange's cache has evicted as well."""
        forgotten = self.router.forgotten
        if forgotten > self._forgotten:
            self._on_cache_full(forgotten - self._forgotten)
            self._forgotten = forgotten

    def _on_cache_full(self, times: int = 1) -> None:
        if not self.counters.get("cache.full"):
            self._reporter.event("cache.full", limit="limits.cache", value=self.zones.limit)
        self.counters.add("cache.full", times)

    def _on_confirmed(self, subscribing: SubscribeRequest, topic_filter: str) -> None:
        if not subscribing.session.clean:
            self.session_store.save_all(subscribing.session)  # its start must outlive a crash
        self._reporter.event(
            "interest.confirmed",
            filter=topic_filter,
            client_id=subscribing.session.client_id,
        )

    def _retry(self, route: Route) -> None:
        route.end_question()
        if self.zones.get(route.apex) is route and route.is_needed and route.port is None:
            self.publisher.wake(route)
