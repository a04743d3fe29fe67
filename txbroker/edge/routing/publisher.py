"""
From a client's publish to the owner of its topic, in order, once.

Publishes of one client to one zone reach the owner in the order of their arrival. Each publish
waits, is sent, is in doubt after a broken link, or goes to an outbox (see `PublishQueue`). A
publish may come back after a refusal, a broken link or a move of its zone. Then it goes to the
front of the queue where it belongs now, before all later ones (protocol rule 13).

Publishes for a new cut are held until the earlier owner has answered all in flight below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from txbroker.core import Run
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.edge.routing.client_backpressure import ClientBackpressure
from txbroker.edge.routing.edge_parts import EdgeParts
from txbroker.edge.routing.held_publishes import HeldPublishes
from txbroker.edge.routing.outbox_manager import OutboxManager
from txbroker.edge.routing.owner_port import OwnerPort
from txbroker.edge.routing.publication import InDoubt, Item, Publication, unfold
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.routing.route import Route
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.session.inbound_publish import InboundPublish, OriginId
from txbroker.mqtt.session.session import Session

QOS0_WAITING = 1024 * 1024
"""Bytes of QoS 0 that may wait for one zone's link; the excess is dropped and counted."""


class Publisher:
    """The publishing half of an edge."""

    def __init__(
        self,
        zones: ResolverCache,
        parts: EdgeParts,
        *,
        outboxes: OutboxManager,
        congestion: ClientBackpressure,
        holds: bool,
    ) -> None:
        """
        `holds`: unsent publishes wait in memory for their owner, unacknowledged, and use no outbox.
        """
        self._zones = zones
        self._connector = parts.connector
        self._counters = parts.counters
        self._outboxes = outboxes
        self._congestion = congestion
        self._holds = holds
        self._now = parts.timers.now
        self._held = HeldPublishes()
        self._pass_on: Callable[[Run], bool] | None = None

    # from the node

    def wire(self, pass_on: Callable[[Run], bool]) -> None:
        """
        Set the port that passes a run of this node's own zone straight there, or to its clients.

        The port returns False if the run has to go through all steps.
        """
        self._pass_on = pass_on

    # from clients

    @property
    def is_full(self) -> bool:
        """True if as many publishes wait in memory as may."""
        return self._congestion.is_over

    def waits_for(self, topic: str) -> bool:
        """True if a publish waits in memory for the topic's owner."""
        return bool(self._zones.find(topic).queue.waiting)

    def publish(self, publication: Publication) -> None:
        """Send a publish to its owner, or queue it where it has to wait."""
        if publication.message.properties:
            publication.begin(self._now())
        route = self._zones.find(publication.message.topic)
        queue = route.queue
        if publication.message.qos and self._must_queue(route, publication):
            return
        if (queue.is_clear or not queue.is_queued) and route.send(publication):
            return
        if self._pass(route, publication):
            return
        if self._may_wait(route, publication):
            self._wait(route, publication)
            self.wake(route)

    def publish_run(self, run: Run) -> None:
        """Publish many packets of one client, in order."""
        self._zones.router.received += run.count
        if run.has_properties and run.expires:
            run.came = self._now()
        for route, part in self._zones.router.split(run):
            if not (route.is_local and self._pass_on is not None and self._pass_on(part)):
                self._publish_part(route, part)

    def _publish_part(self, route: Route, run: Run) -> None:
        queue = route.queue
        is_clear = queue.is_clear and not self._is_behind(route, run)
        if is_clear and route.send(run):
            if not queue.is_clear and queue.waiting:
                self.wake(route)
        elif route.port is None or queue.is_late or self._is_behind(route, run):
            for publication in unfold((run,)):
                self.publish(publication)
        elif not self._pass(route, run):
            self._wait(route, run)
            self.flush(route)

    def _is_behind(self, route: Route, run: Run) -> bool:
        """True if a run of QoS 1 or 2 may have to wait behind entries of an outbox."""
        return bool(run.qos and self._outboxes.outboxes) and not self._outboxes.is_idle(route)

    def resend(self, publication: Publication, origin: OriginId) -> None:
        """Resend a client's publish that an earlier process sent as `origin`; it is in doubt."""
        route = self._zones.find(publication.message.topic)
        key, sequence = origin
        doubt = InDoubt(key=key, first=sequence, publications=(publication,), is_repeat=True)
        self._doubt(route, [doubt])

    def withdraw(self, session: Session) -> None:
        """Discard a session's unsent, unacknowledged publishes; the client sends them again."""
        for flow in self.take_back(session):
            session.receiver.forget(flow)

    def take_back(self, session: Session) -> list[InboundPublish]:
        """Take a session's unsent publishes out; no owner and no outbox has any of them."""
        return [
            publication.flow
            for route in self._zones
            for publication in route.queue.withdraw(session)
            if publication.flow is not None
        ]

    def zones_of(self, client_id: str) -> list[str]:
        """
        Return the zones for which the client's QoS 1/2 publishes wait here, or await an answer.
        """
        return [
            route.apex
            for route in self._zones
            if any(item.client_id == client_id and item.qos for item in route.queue.all())
        ]

    def waiting(self) -> dict[str, int]:
        """Return, by zone, how many QoS 1/2 publishes wait in memory, or await an answer."""
        found = {r.apex: sum(item.count for item in r.queue.all() if item.qos) for r in self._zones}
        return {apex: count for apex, count in found.items() if count}

    def use_freed_room(self) -> None:
        """Use freed room: store publishes in outboxes, and resume paused clients."""
        congestion = self._congestion
        if congestion.is_full and not self._outboxes.is_full:
            congestion.is_full = False
            for route in self._zones:
                if route.is_away and (route.queue.waiting or route.queue.doubts):
                    self._store_waiting(route)
        if congestion.paused:
            congestion.resume_clients()

    # from the owners

    def on_accepted(self, route: Route, sequence: int) -> None:
        """Acknowledge publishes: the owner has accepted all up to this sequence."""
        self.acknowledge(route.queue.take_sent_through(sequence))
        self._release_held(route)
        self.flush(route)

    def acknowledge(self, items: Iterable[Item]) -> None:
        """Acknowledge items to their clients, in order: owners have accepted all of them."""
        runs: list[Run] = []
        for item in items:
            if not isinstance(item, Publication):
                runs.append(item)
                continue
            self._settle_runs(runs)
            runs = []
            item.settle()
        self._settle_runs(runs)

    def on_refused(self, route: Route, sequence: int, cut: ZoneCut | None) -> None:
        """
        Requeue publishes from this sequence on: the owner refuses all until a restart.

        `cut` may name the zone that the refused topic belongs to.
        """
        queue = route.queue
        self.acknowledge(queue.take_sent_through(sequence - 1))
        returned = [*queue.take_sent(), *queue.take_waiting()]
        if route.port is not None:
            route.port.restart(queue.first_sequence, returned)
        if cut is not None:
            below = self._zones.add(cut)
            self._held.hold(route, {below.apex: below})
        self.redistribute(returned)
        self._release_held(route)

    def on_lost(self, route: Route, key: MarkKey) -> None:
        """Put sent publishes in doubt: the link broke, and the owner's mark is unknown."""
        route.queue.doubt_sent(key)

    def on_marks(self, route: Route, marks: dict[MarkKey, int]) -> None:
        """Settle doubts: the connected owner has told the marks of their streams."""
        route.queue.begin_stream()
        self._settle_doubts(route, marks)

    def _settle_doubts(self, route: Route, marks: dict[MarkKey, int]) -> None:
        queue = route.queue
        accepted, again = queue.settle_doubts(marks)
        for publication in accepted:
            publication.settle()
        if queue.doubts:
            self.request_marks(route)
        self.redistribute([*again, *queue.take_waiting()])
        self._release_held(route)

    def request_marks(self, route: Route) -> None:
        """Ask the owner for the marks of the streams in doubt."""
        port = route.port
        if port is not None:
            keys = [doubt.key for doubt in route.queue.doubts]
            port.request_marks(keys, partial(self._on_answer, route, port))

    def _on_answer(self, route: Route, port: OwnerPort, marks: dict[MarkKey, int]) -> None:
        if route.port is port:
            self._settle_doubts(route, marks)

    # from the edge: zones and cuts that changed

    def move_below(self, route: Route, *found: Route) -> None:
        """
        Move publishes to new zones below `route`, behind those already in flight.

        Publishes for a subtree wait until the old owner has answered each one in flight (rule 13).
        The old owner refuses publishes that arrive after its fence. Refused publishes go first.
        """
        below = {one.apex: one for one in found if one is not route}
        if not below:
            return
        # Only the present owner of the topics knows the marks of a stream to an earlier owner.
        # Elsewhere the doubt would never be settled.
        for doubt in [d for d in route.queue.doubts if d.key[2] != route.apex]:
            home = doubt.home(below)
            if home is not None:
                route.queue.drop_doubt(doubt)
                self._doubt(below[home], [doubt])
        self._held.hold(route, below)
        self.redistribute(route.queue.take_waiting())

    def redistribute(self, publications: list[Publication]) -> None:
        """
        Requeue publishes, in their order, at the front of the routes where they belong now.

        Withdrawn publishes are discarded.
        """
        groups: dict[Route, list[Publication]] = {}
        for publication in publications:
            if publication.is_withdrawn:
                continue
            route = self._zones.find(publication.message.topic)
            groups.setdefault(route, []).append(publication)
        for route, group in groups.items():
            route.queue.wait_first(group)
        self._outboxes.refresh()
        for route, group in groups.items():
            self._queue_behind_outboxes(route, group)
            if route.is_away:
                self.on_unreachable(route)
            self.wake(route)

    def wake(self, route: Route) -> None:
        """Advance the route by one step: send, connect, or resolve."""
        if route.port is not None:
            self.flush(route)
        elif route.is_local or route.cut is None:
            self.on_unreachable(route)
        elif route.cuts is None:
            self._connector.resolve(route)
        else:
            self._connector.connect(route)

    def flush(self, route: Route) -> None:
        """Send waiting publishes as far as credit allows; none may pass a publish in doubt."""
        if not route.queue.is_clear:
            route.queue.look_at_drains()
            route.send_waiting(self._now())
        self.use_freed_room()

    def on_unreachable(self, route: Route) -> None:
        """Drop waiting QoS 0, and store other publishes in an outbox: the owner is unreachable."""
        route.fail()
        dropped = route.queue.drop_waiting_qos0()
        if dropped:
            self._counters.add("publish.dropped.unreachable", dropped)
        self._store_waiting(route)

    # from the outboxes (Host)

    def on_safe(self, publication: Publication) -> None:
        """Acknowledge a publish that is durable in an outbox."""
        publication.settle()
        self.use_freed_room()

    def on_drained(self, route: Route) -> None:
        """Send publishes that waited behind the outboxes."""
        route.queue.pass_drains()
        self.flush(route)

    def on_cut_told(self, route: Route, cut: ZoneCut) -> None:
        """Add a cut that an owner gave with a refusal, and move publishes below it."""
        self.move_below(route, self._zones.add(cut))

    # internal

    def _settle_runs(self, runs: list[Run]) -> None:
        for run, packet_ids in self._zones.router.answer(runs):
            run.session.receiver.on_others_taken(run, packet_ids)

    def _doubt(self, route: Route, doubts: list[InDoubt]) -> None:
        route.queue.add_doubts(doubts)
        if route.port is not None:
            self.request_marks(route)
        elif route.is_away:
            self.on_unreachable(route)
        else:
            self.wake(route)

    def _must_queue(self, route: Route, publication: Publication) -> bool:
        """
        True if the publish went to an outbox, or waits for one; none may pass a waiting publish.
        """
        queue = route.queue
        if not queue.is_clear and queue.is_queued:
            self._queue_behind_outboxes(route, (publication,))
            return False
        outboxes = self._outboxes
        if route.is_away:
            return self._store(route, publication)
        if not outboxes.holds(route, publication):
            return False
        # A drain at its end gets no more entries: the publish waits for the last answers instead.
        # Otherwise the client would never publish live again.
        if outboxes.is_at_end(route) or not self._store(route, publication):
            queue.go_behind()
            queue.wait(publication)
        return True

    def _store(
        self, route: Route, publication: Publication, origin: OriginId | None = None
    ) -> bool:
        if self._holds:
            return False
        publication.age(self._now())
        outboxes = self._outboxes
        is_put = outboxes.has_room(route) and outboxes.store(route, publication, origin)
        self._congestion.is_full = not is_put
        return is_put

    def _store_waiting(self, route: Route) -> None:
        """Store publishes in doubt, then waiting ones, in an outbox, as far as there is room."""
        queue = route.queue
        if queue.is_held:
            return
        for doubt in list(queue.doubts):
            for index, publication in enumerate(doubt.publications):
                if doubt.is_repeat and publication.is_withdrawn:
                    continue  # this node never sent it
                if not self._store(route, publication, (doubt.key, doubt.first + index)):
                    queue.shorten_doubt(index)
                    return
            queue.shorten_doubt(len(doubt.publications))
        self._outboxes.end_doubts(route)
        for publication in queue.unfold_waiting():
            if not self._store(route, publication):
                break
            queue.next_waiting()
        self._release_held(route)

    def _pass(self, route: Route, item: Item) -> bool:
        """Send an item before those of other clients that wait; False if it has to wait, too."""
        session = item.session
        is_first = session is not None and not session.held_size and not route.queue.is_late
        return is_first and route.send(item, passes=True)

    def _wait(self, route: Route, item: Item) -> None:
        if not route.queue.waiting:
            self._congestion.await_owner(route)
        route.queue.wait(item)

    def _may_wait(self, route: Route, publication: Publication) -> bool:
        if publication.message.qos:
            return True
        if route.is_away:
            self._counters.add("publish.dropped.unreachable")
            self.wake(route)
            return False
        is_much = route.port is None and route.queue.qos0_size > QOS0_WAITING
        if is_much and not self._congestion.has_hope(route):
            self._counters.add("publish.dropped.connecting")
            return False
        return True

    def _queue_behind_outboxes(self, route: Route, waiting: Iterable[Publication]) -> None:
        """
        Queue the route behind its outboxes if these have earlier publishes of the same clients.
        """
        if any(p.message.qos and self._outboxes.holds(route, p) for p in waiting):
            route.queue.go_behind()

    def _release_held(self, route: Route) -> None:
        if not self._held.by_holder:
            return
        for below in self._held.release(route):
            # Unanswered publishes may have left their doubt for an outbox. Publishes below go
            # behind these.
            self._queue_behind_outboxes(below, below.queue.unfold_waiting())
            self.wake(below)

    def forget(self, route: Route, heir: Route) -> None:
        """
        Release the publishes that a removed route held; they wait for the doubts that `heir` took
        over.
        """
        for below in self._held.forget(route, heir):
            self.wake(below)
