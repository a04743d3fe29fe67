"""
The edge: sessions on one side, routes to owners on the other.

The shells call in (a connection, a link, the resolver) and are called through the ports `Sink`,
`OwnerPort` and `Connector`; everything in between is decided here and in the two halves, publishing
and interests. A delivery that comes from an owner goes to this node's sessions and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import attrs

from txbroker.authority.handover import MarkKey
from txbroker.counters import Counters
from txbroker.delegation.cut import Cut
from txbroker.edge.interests import Interests
from txbroker.edge.publishing import Connector, Publisher, settle
from txbroker.edge.route import OwnerPort, Position, Publication, Route, State
from txbroker.edge.subscribing import HELD_LIMIT, Subscribing
from txbroker.edge.zonemap import ZoneMap
from txbroker.matching.index import SubscriptionIndex
from txbroker.matching.retained import RetainedTree
from txbroker.message import Message
from txbroker.mqtt.packets import Connect, Publish, Subscribe
from txbroker.mqtt.session import Session, SessionLimits, Sink, Subscription
from txbroker.pressure import Pressure
from txbroker.timers import Timers

SYS = "$SYS"
FEDERATION = "$SYS/federation"
"""Other nodes' values, below their names (protocol rule 26)."""

FIRST_RETRY = 0.05
RETRY = 1.0
"""Seconds until a question that got no answer is asked again: doubled from the first on."""

ATTEMPTS = 3
"""Attempts in a row that fail before a zone counts as unreachable; a zone that is just changing
hands answers to the second or third."""

REFRESHED_AT_ONCE = 100
"""Answers asked for again in one second, at the most."""


class Reporter(Protocol):
    """Who is told of what an operator may want to know; the shell logs it."""

    def event(self, name: str, **fields: object) -> None:
        """One fact with its constant name."""


@attrs.frozen(kw_only=True)
class EdgeLimits:
    """Limits of an edge; sizes in bytes, times in seconds."""

    session: SessionLimits = SessionLimits()
    held: int = 64 * 1024 * 1024
    cache: int = 100_000
    suback_wait: float = 2.0
    session_age: float = 7 * 86_400.0


def is_sys(topic: str) -> bool:
    """Whether a topic or filter is of the node-local `$SYS` tree (protocol rule 26)."""
    return topic == SYS or topic.startswith("$SYS/")


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
        pressure: Pressure,
        limits: EdgeLimits,
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self.counters = counters
        self.zones = ZoneMap(limits.cache)
        self.publisher = Publisher(
            self.zones, connector, counters, held_limit=limits.held, now=timers.now
        )
        self.interests = Interests(self.zones, self.publisher.wake, self._on_confirmed)
        self.sessions: dict[str, Session] = {}
        self.sys: RetainedTree[Message] = RetainedTree()
        self.received = 0
        self.delivered = 0
        self._connector = connector
        self._timers = timers
        self._reporter = reporter
        self._pressure = pressure
        self._limits = limits
        self._on_federation_filter: Callable[[], object] = lambda: None
        self._subscribers: SubscriptionIndex[str, tuple[Session, Subscription]] = SubscriptionIndex(
            cache_limit=limits.cache
        )

    def when_federation_is_asked(self, action: Callable[[], object]) -> None:
        """Run `action` whenever a client subscribes to other nodes' `$SYS` values."""
        self._on_federation_filter = action

    # from connections

    def connect(self, packet: Connect) -> tuple[Session, bool]:
        """
        Find or make the session for a CONNECT; the flag is CONNACK's session present.

        The caller sends CONNACK, then attaches the connection to the session.
        """
        old = self.sessions.get(packet.client_id)
        if old is not None and old.sink is not None:
            old.sink.close("client id taken over")  # [MQTT-3.1.4-2]
        old = self.sessions.get(packet.client_id)
        if old is not None and packet.clean_session:
            self.end_session(old)  # [MQTT-3.1.2-6]
            old = None
        if old is None:
            session = Session(
                packet.client_id,
                clean=packet.clean_session,
                limits=self._limits.session,
                watcher=self,
            )
            self.sessions[packet.client_id] = session
        else:
            session = old
        session.will = packet.will
        session.away_since = None
        return session, old is not None

    def disconnect(self, session: Session, connection: Sink, *, will: bool) -> None:
        """The connection is gone; `will`: without a DISCONNECT [MQTT-3.1.2-8]."""
        if session.sink is not connection:
            return
        session.detach()
        session.away_since = self._timers.now()
        testament, session.will = session.will, None
        if will and testament is not None:
            self.publish_message(
                Message(
                    testament.topic,
                    testament.payload,
                    testament.qos,
                    testament.retain,
                    session.client_id,
                )
            )
        if session.clean:
            self.end_session(session)

    def expire_sessions(self) -> None:
        """Now and then: forget the sessions whose client has been away for too long."""
        before = self._timers.now() - self._limits.session_age
        for session in list(self.sessions.values()):
            if session.away_since is not None and session.away_since < before:
                self._reporter.event("session.expired", client_id=session.client_id)
                self.counters.add("session.expired")
                self.end_session(session)

    def end_session(self, session: Session) -> None:
        """Forget a session and its subscriptions."""
        for subscribing in self.interests.of(session):
            self.interests.cancel(subscribing)
            if subscribing.alarm is not None:
                subscribing.alarm.cancel()
        for topic_filter in list(session.subscriptions):
            self._drop_subscription(session, topic_filter)
        session.close()
        del self.sessions[session.client_id]

    def publish(self, session: Session, packet: Publish) -> None:
        """A client's PUBLISH."""
        self.received += 1
        flow = None
        if packet.qos:
            flow = session.accept(packet)
            if flow is None:
                return
        message = Message(
            packet.topic, packet.payload, packet.qos, packet.retain, session.client_id
        )
        publication = Publication(message, session, flow)
        if is_sys(packet.topic):
            settle(publication)  # acknowledged and discarded (contract.md)
            return
        self.publisher.publish(publication)

    def publish_message(self, message: Message) -> None:
        """Publish for nobody who waits for an acknowledgement: a will."""
        if not is_sys(message.topic):
            self.publisher.publish(Publication(message))

    def subscribe(
        self, session: Session, packet: Subscribe, acknowledge: Callable[[], None]
    ) -> None:
        """A client's SUBSCRIBE; `acknowledge` sends the SUBACK when it is due."""
        granted = dict(packet.filters)
        fresh = frozenset(f for f in granted if f not in session.subscriptions)
        self._leave_earlier(session, granted)
        subscriptions = {f: self._subscription(session, f, qos) for f, qos in granted.items()}
        subscribing = Subscribing(
            session=session,
            subscriptions=subscriptions,
            zoned=frozenset(f for f in granted if not is_sys(f)),
            fresh=fresh,
            acknowledge=acknowledge,
        )
        for topic_filter, subscription in subscriptions.items():
            if subscription.held is None:
                subscription.held = []
            if is_sys(topic_filter):
                for _, message in self.sys.match(topic_filter):
                    subscribing.give(subscription, message, retain=True)
        self._ask_zones(subscribing)
        if any(f.startswith(FEDERATION + "/") for f in granted):
            self._on_federation_filter()

    def unsubscribe(self, session: Session, topic_filters: Iterable[str]) -> None:
        """A client's UNSUBSCRIBE; filters that it does not have are none of its concern."""
        for topic_filter in topic_filters:
            self._leave_earlier(session, (topic_filter,))
            if topic_filter in session.subscriptions:
                self._drop_subscription(session, topic_filter)

    def set_sys(self, topic: str, payload: str | None) -> None:
        """Publish a `$SYS` value here, retained; None clears it."""
        known = self.sys.get(topic)
        data = b"" if payload is None else payload.encode()
        if payload is None:
            self.sys.remove(topic)
        elif known is None or known.payload != data:
            self.sys.set(topic, Message(topic, data, 0, True))
        if known is None or known.payload != data:
            self._give_to_subscribers(None, Message(topic, data, 0, True))

    def federation_filters(self) -> list[str]:
        """The filters of sessions that ask for other nodes' `$SYS` values."""
        return [f for f in self._subscribers.filters() if f.startswith(FEDERATION + "/")]

    # from owners (links and the node's own zone)

    def on_connecting(self, route: Route) -> None:
        """An attempt begins."""
        if route.state is not State.UNREACHABLE:
            route.state = State.CONNECTING

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
        self._learn_cuts(route, cuts)
        self.publisher.on_marks(route, marks)
        self.interests.on_online(route)

    def on_lost(self, route: Route, key: MarkKey) -> None:
        """The connection to the owner broke."""
        route.port = None
        route.state = State.CONNECTING
        self.publisher.on_lost(route, key)
        if route.is_ending:
            self.on_gone(route)

    def on_message(self, route: Route, message: Message, offset: int) -> None:
        """A live or caught-up delivery."""
        position = route.position
        if position is not None and offset > position.offset:
            route.position = Position(
                owner_incarnation=position.owner_incarnation, epoch=position.epoch, offset=offset
            )
        self._give_to_subscribers(route.apex, message)

    def on_cut(self, route: Route, cut: Cut) -> None:
        """The owner's stream says: this apex is another node's from here on."""
        cuts = {a: c for a, c in (route.cuts or {}).items() if not a.startswith(cut.apex + "/")}
        cuts[cut.apex] = cut
        route.cuts = cuts
        below = self.zones.add(cut)
        self.interests.on_cut(route, below)
        self.publisher.hold_below(route, below)
        self.interests.refresh()

    def on_cut_ended(self, route: Route, apex: str, epoch: int) -> None:
        """The owner's stream says: that child gave its zone back."""
        below = self.zones.get(apex)
        if route.cuts is not None:
            route.cuts.pop(apex, None)
        if below is None:
            self.interests.claim(route, apex)
            self.interests.refresh()
        elif below.epoch > epoch:
            return
        elif below.port is None:
            self.on_gone(below)
        else:
            below.is_ending = True  # its own stream says so too, after its last deliveries

    def on_gone(self, route: Route) -> None:
        """The owner does not serve the zone any more: back to the nearest zone above it."""
        if self.zones.get(route.apex) is not route:
            return
        self._connector.disconnect(route)
        above = self.zones.enclosing(route.apex)
        self.zones.remove(route)
        route.port = None
        route.state = State.IDLE
        if above is not route:
            again = self._granted_again(route, above)
            if again is not None:
                self.interests.claim(self.zones.add(again), route.apex)
            elif above.cuts is not None:
                above.cuts.pop(route.apex, None)
            self.interests.on_gone(route, above)
            above.doubts.extend(route.doubts)
            route.doubts = []
            if above.doubts and above.port is not None:
                above.port.close("publishes in doubt after a zone went back")
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
        self.publisher.redistribute(route.take_waiting())
        self.interests.refresh()
        if route.is_needed:
            self._connector.connect(route)

    def on_unresolved(self, route: Route) -> None:
        """The node did not answer; what is known is served stale, and the question repeated."""
        route.resolving = False
        if route.port is not None or route.cuts is not None:
            return
        self.on_failed(route)
        pause = min(FIRST_RETRY * 2**route.failures, RETRY)
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

    # from sessions (Watcher)

    def queue_is_long(self, session: Session) -> None:
        """A client does not keep up."""
        self._pressure.raise_(session)

    def queue_is_short(self, session: Session) -> None:
        """It caught up."""
        self._pressure.lower(session)

    def dropped(self, session: Session, qos: int) -> None:
        """A message beyond a session's limit."""
        self.counters.add("session.dropped.qos0" if qos == 0 else "session.dropped.queue_full")
        if session.dropped == 1:
            self._reporter.event("session.dropping", client_id=session.client_id, qos=qos)

    # internal

    def _give_to_subscribers(self, apex: str | None, message: Message) -> None:
        best: dict[Session, int] = {}
        for _, (session, subscription) in self._subscribers.match(message.topic):
            if subscription.pending and apex in subscription.pending:
                continue
            if subscription.held is not None:
                subscription.held.append((message, False))
                if len(subscription.held) >= HELD_LIMIT:
                    self._stop_holding(session, subscription)
            elif subscription.qos >= best.get(session, 0):
                best[session] = subscription.qos  # [MQTT-3.3.5-1]
        for session, granted in best.items():
            session.deliver(message, granted if granted < message.qos else message.qos)
        self.delivered += len(best)

    def _subscription(self, session: Session, topic_filter: str, qos: int) -> Subscription:
        known = session.subscriptions.get(topic_filter)
        if known is not None:
            known.qos = qos  # [MQTT-3.8.4-3]
            return known
        subscription = Subscription(topic_filter, qos)
        session.subscriptions[topic_filter] = subscription
        self._subscribers.add(topic_filter, session.client_id, (session, subscription))
        if not is_sys(topic_filter):
            self.interests.add(topic_filter)
        return subscription

    def _drop_subscription(self, session: Session, topic_filter: str) -> None:
        del session.subscriptions[topic_filter]
        self._subscribers.remove(topic_filter, session.client_id)
        if not is_sys(topic_filter):
            self.interests.remove(topic_filter)

    def _leave_earlier(self, session: Session, topic_filters: Iterable[str]) -> None:
        for subscribing in self.interests.of(session):
            for topic_filter in topic_filters:
                subscribing.leave(topic_filter)
            if not subscribing.open:
                self.interests.cancel(subscribing)
                subscribing.finish()

    def _ask_zones(self, subscribing: Subscribing) -> None:
        self.interests.begin(subscribing)
        if subscribing.acknowledge is None:
            return
        if self._is_worth_waiting(subscribing):
            subscribing.alarm = self._timers.call_later(
                self._limits.suback_wait, lambda: self._give_up_waiting(subscribing)
            )
        else:
            self._give_up_waiting(subscribing)

    def _stop_holding(self, session: Session, subscription: Subscription) -> None:
        for subscribing in self.interests.of(session):
            if subscribing.subscriptions.get(subscription.topic_filter) is subscription:
                subscribing.finish()

    def _is_worth_waiting(self, subscribing: Subscribing) -> bool:
        # Zones that have been unreachable for as long as one would wait are not waited for again.
        since = self._timers.now() - self._limits.suback_wait
        for _, apex in subscribing.open:
            route = self.zones.get(apex)
            lost = route.unreachable_since if route is not None else None
            if lost is None or lost > since:
                return True
        return False

    def _give_up_waiting(self, subscribing: Subscribing) -> None:
        subscribing.alarm = None
        for topic_filter, apex in sorted(subscribing.open):
            self._reporter.event(
                "interest.pending",
                filter=topic_filter,
                zone=apex,
                client_id=subscribing.session.client_id,
            )
        subscribing.finish()

    def _on_confirmed(self, subscribing: Subscribing, topic_filter: str) -> None:
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

    def _learn_cuts(self, route: Route, cuts: Iterable[Cut]) -> None:
        before = route.cuts or {}
        route.cuts = {cut.apex: cut for cut in cuts}
        for cut in route.cuts.values():
            below = self.zones.add(cut)
            known = before.get(cut.apex)
            if known is None or known.epoch != cut.epoch:
                self.interests.on_cut(route, below)
                self.publisher.hold_below(route, below)

    def _retry(self, route: Route) -> None:
        if self.zones.get(route.apex) is route and route.is_needed and route.port is None:
            self.publisher.wake(route)
