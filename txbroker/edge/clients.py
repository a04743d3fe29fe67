"""
The clients' side of an edge: sessions, subscriptions, and who gets a message.

Which session a CONNECT gets, when a SUBACK is due, which of a session's overlapping subscriptions
counts. Where a filter or a publish goes is not known here: `interests` and `publishing` do that.
The node-local `$SYS` tree is here too, as it concerns nobody but this node's clients (rule 26).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol
from weakref import WeakSet

import attrs

from txbroker.counters import Counters
from txbroker.edge.interests import Interests
from txbroker.edge.publishing import Publisher, settle
from txbroker.edge.route import Publication
from txbroker.edge.subscribing import HELD_LIMIT, Subscribing
from txbroker.edge.zonemap import ZoneMap
from txbroker.matching.index import SubscriptionIndex
from txbroker.matching.retained import RetainedTree
from txbroker.message import Message
from txbroker.mqtt.packets import Connect, Publish, Subscribe
from txbroker.mqtt.session import Session, SessionLimits, Sink, Subscription
from txbroker.pressure import Pressure
from txbroker.timers import Timers
from txbroker.topics import is_sys

FEDERATION = "$SYS/federation"
"""Other nodes' values, below their names (protocol rule 26)."""


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


class Clients:
    """The clients of one edge; `zones`, `publisher` and `interests` are the edge's."""

    def __init__(
        self,
        *,
        zones: ZoneMap,
        publisher: Publisher,
        interests: Interests,
        timers: Timers,
        counters: Counters,
        reporter: Reporter,
        pressure: Pressure,
        limits: EdgeLimits,
    ) -> None:
        self.sessions: dict[str, Session] = {}
        self.sys: RetainedTree[Message] = RetainedTree()
        self.received = 0
        self.delivered = 0
        self._zones = zones
        self._publisher = publisher
        self._interests = interests
        self._timers = timers
        self._counters = counters
        self._reporter = reporter
        self._pressure = pressure
        self._limits = limits
        self._told_full: WeakSet[Session] = WeakSet()
        self._on_federation_filter: Callable[[], object] = lambda: None
        self._subscribers: SubscriptionIndex[str, tuple[Session, Subscription]] = SubscriptionIndex(
            cache_limit=limits.cache
        )

    # from the node

    def when_federation_is_asked(self, action: Callable[[], object]) -> None:
        """Run `action` whenever a client subscribes to other nodes' `$SYS` values."""
        self._on_federation_filter = action

    def set_limits(self, limits: EdgeLimits) -> None:
        """Other limits, from now on, for the sessions that there are as well."""
        self._limits = limits
        self._subscribers.cache_limit = limits.cache
        self._zones.limit = limits.cache
        for session in self.sessions.values():
            session.set_limits(limits.session)

    def delete(self, client_id: str) -> bool:
        """End a session, its client's connection first; False when there is none."""
        session = self.sessions.get(client_id)
        if session is None:
            return False
        if session.sink is not None:
            session.sink.close("session deleted")
        if self.sessions.get(client_id) is session:  # a clean one ended with its connection
            self._end_session(session)
        return True

    def set_sys(self, topic: str, payload: str | None) -> None:
        """Publish a `$SYS` value here, retained; None clears it."""
        known = self.sys.get(topic)
        data = b"" if payload is None else payload.encode()
        if payload is None:
            self.sys.remove(topic)
        elif known is None or known.payload != data:
            self.sys.set(topic, Message(topic, data, 0, True))
        if known is None or known.payload != data:
            self.deliver(None, Message(topic, data, 0, True))

    def federation_filters(self) -> list[str]:
        """The filters of sessions that ask for other nodes' `$SYS` values."""
        return [f for f in self._subscribers.filters() if f.startswith(FEDERATION + "/")]

    def expire_sessions(self) -> None:
        """Now and then: forget the sessions whose client has been away for too long."""
        before = self._timers.now() - self._limits.session_age
        for session in list(self.sessions.values()):
            if session.away_since is not None and session.away_since < before:
                self._reporter.event(
                    "session.expired", client_id=session.client_id, limit="session_limits.age"
                )
                self._counters.add("session.expired")
                self._end_session(session)

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
            self._end_session(old)  # [MQTT-3.1.2-6]
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
            self._publish_message(
                Message(
                    testament.topic,
                    testament.payload,
                    testament.qos,
                    testament.retain,
                    session.client_id,
                )
            )
        if session.clean:
            self._end_session(session)

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
        self._publisher.publish(publication)

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

    # from the edge

    def deliver(self, apex: str | None, message: Message) -> None:
        """A message from the owner of `apex` (None: `$SYS`) to every session that wants it."""
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

    # from sessions (Watcher)

    def queue_is_long(self, session: Session) -> None:
        """A client does not keep up."""
        self._pressure.raise_(session)

    def queue_is_short(self, session: Session) -> None:
        """It caught up."""
        self._pressure.lower(session)

    def dropped(self, session: Session, qos: int) -> None:
        """A message beyond a session's limit."""
        self._counters.add("session.dropped.qos0" if qos == 0 else "session.dropped.queue_full")
        if session.dropped == 1:
            limit = "session_limits" if qos else ""
            client_id = session.client_id
            self._reporter.event("session.dropping", client_id=client_id, qos=qos, limit=limit)

    def window_is_full(self, session: Session, limit: str) -> None:
        """A client has as much unacknowledged as it may have."""
        self._counters.add("session.window_full")
        if session not in self._told_full:
            self._told_full.add(session)
            self._reporter.event("session.window_full", client_id=session.client_id, limit=limit)

    # internal

    def _publish_message(self, message: Message) -> None:
        """Publish for nobody who waits for an acknowledgement: a will."""
        if not is_sys(message.topic):
            self._publisher.publish(Publication(message))

    def _end_session(self, session: Session) -> None:
        """Forget a session and its subscriptions."""
        for subscribing in self._interests.of(session):
            self._interests.cancel(subscribing)
            if subscribing.alarm is not None:
                subscribing.alarm.cancel()
        for topic_filter in list(session.subscriptions):
            self._drop_subscription(session, topic_filter)
        session.close()
        del self.sessions[session.client_id]

    def _subscription(self, session: Session, topic_filter: str, qos: int) -> Subscription:
        known = session.subscriptions.get(topic_filter)
        if known is not None:
            known.qos = qos  # [MQTT-3.8.4-3]
            return known
        subscription = Subscription(topic_filter, qos)
        session.subscriptions[topic_filter] = subscription
        self._subscribers.add(topic_filter, session.client_id, (session, subscription))
        if not is_sys(topic_filter):
            self._interests.add(topic_filter)
        return subscription

    def _drop_subscription(self, session: Session, topic_filter: str) -> None:
        del session.subscriptions[topic_filter]
        self._subscribers.remove(topic_filter, session.client_id)
        if not is_sys(topic_filter):
            self._interests.remove(topic_filter)

    def _leave_earlier(self, session: Session, topic_filters: Iterable[str]) -> None:
        for subscribing in self._interests.of(session):
            for topic_filter in topic_filters:
                subscribing.leave(topic_filter)
            if not subscribing.open:
                self._interests.cancel(subscribing)
                subscribing.finish()

    def _ask_zones(self, subscribing: Subscribing) -> None:
        self._interests.begin(subscribing)
        if subscribing.acknowledge is None:
            return
        if self._is_worth_waiting(subscribing):
            subscribing.alarm = self._timers.call_later(
                self._limits.suback_wait, lambda: self._give_up_waiting(subscribing)
            )
        else:
            self._give_up_waiting(subscribing)

    def _stop_holding(self, session: Session, subscription: Subscription) -> None:
        for subscribing in self._interests.of(session):
            if subscribing.subscriptions.get(subscription.topic_filter) is subscription:
                subscribing.finish()

    def _is_worth_waiting(self, subscribing: Subscribing) -> bool:
        # Zones that have been unreachable for as long as one would wait are not waited for again.
        since = self._timers.now() - self._limits.suback_wait
        for _, apex in subscribing.open:
            route = self._zones.get(apex)
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
