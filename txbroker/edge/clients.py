"""
The clients' side of an edge: sessions, subscriptions, and who gets a message.

Which session a CONNECT gets, when a SUBACK is due, which of a session's overlapping subscriptions
counts. Where a filter or a publish goes is not known here: `interests` and `publishing` do that.
The node-local `$SYS` tree is here too, as it concerns nobody but this node's clients (rule 26).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from functools import partial
from typing import Protocol
from weakref import WeakSet

import attrs

from txbroker.authority.handover import MarkKey
from txbroker.counters import Counters
from txbroker.directory.entry import Testament
from txbroker.directory.wills import will_id
from txbroker.edge.backlog import Backlog
from txbroker.edge.interests import Interests
from txbroker.edge.keeper import Keeper
from txbroker.edge.outbox import OriginId
from txbroker.edge.positions import Positions
from txbroker.edge.publishing import Publisher, settle
from txbroker.edge.reporter import Reporter
from txbroker.edge.route import Publication
from txbroker.edge.subscribing import HELD_LIMIT, Subscribing
from txbroker.edge.zonemap import ZoneMap
from txbroker.matching.index import SubscriptionIndex
from txbroker.matching.retained import RetainedTree
from txbroker.message import Message, WillId
from txbroker.mqtt.cursor import Subscription
from txbroker.mqtt.packets import Connect, Publish, Subscribe, Will
from txbroker.mqtt.ports import Sink
from txbroker.mqtt.session import Session
from txbroker.mqtt.window import SessionLimits
from txbroker.place import Place
from txbroker.timers import Timers
from txbroker.topics import is_sys

FEDERATION = "$SYS/federation"
"""Other nodes' values, below their names (protocol rule 26)."""


class Presence(Protocol):
    """Who has to know which clients are here: the client directory."""

    def connected(self, client_id: str, *, clean: bool, will: Will | None) -> Testament | None:
        """The client has its session, clean or kept; its will as it is to be published."""

    def disconnected(self, client_id: str, *, is_will_due: bool) -> Testament | None:
        """The connection is gone; the will that is to be published now."""

    def will_is_sent(self, client_id: str, testament: Testament) -> None:
        """That will is published."""

    def ended(self, client_id: str) -> None:
        """A session ended."""


@attrs.frozen(kw_only=True)
class EdgeLimits:
    """
    Limits of an edge; sizes in bytes, times in seconds.

    `held` is in memory, `outbox` on the disk; `holds`: nothing is put there, it waits in memory.
    """

    session: SessionLimits = SessionLimits()
    held: int = 64 * 1024 * 1024
    outbox: int = 1024 * 1024 * 1024
    holds: bool = False
    cache: int = 100_000
    suback_wait: float = 2.0
    session_age: float = 7 * 86_400.0


class Clients:
    """The clients of the edge `node`; `zones`, `publisher` and `interests` are the edge's."""

    def __init__(
        self,
        sessions: dict[str, Session],
        *,
        node: str,
        zones: ZoneMap,
        publisher: Publisher,
        interests: Interests,
        positions: Positions,
        timers: Timers,
        counters: Counters,
        reporter: Reporter,
        keeper: Keeper,
        backlog: Backlog,
        limits: EdgeLimits,
    ) -> None:
        self.sessions = sessions
        self.keeper = keeper
        self.backlog = backlog
        self.sys: RetainedTree[Message] = RetainedTree()
        self.received = 0
        self.delivered = 0
        self._node = node
        self._zones = zones
        self._publisher = publisher
        self._interests = interests
        self._positions = positions
        self._timers = timers
        self._counters = counters
        self._reporter = reporter
        self._limits = limits
        self._told_full: WeakSet[Session] = WeakSet()
        self._on_federation_filter: Callable[[], object] = lambda: None
        self._presence: Presence | None = None
        self._subscribers: SubscriptionIndex[str, tuple[Session, Subscription]] = SubscriptionIndex(
            cache_limit=limits.cache
        )

    # from the node

    def wire(self, presence: Presence) -> None:
        """Who is told of clients that come and go."""
        self._presence = presence

    def when_federation_is_asked(self, action: Callable[[], object]) -> None:
        """Run `action` whenever a client subscribes to other nodes' `$SYS` values."""
        self._on_federation_filter = action

    def set_limits(self, limits: EdgeLimits) -> None:
        """Other limits, from now on, for the sessions that there are as well."""
        self._limits = limits
        self.backlog.limits = limits.session
        self._subscribers.cache_limit = limits.cache
        self._zones.limit = limits.cache
        for session in self.sessions.values():
            session.sender.set_limits(limits.session)

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

    def load(self, is_in_outbox: Callable[[OriginId], bool]) -> None:
        """
        After a start: the durable sessions are here again, their clients away.

        `is_in_outbox`: whether what was to become an entry of an outbox did.
        """
        for session in self._positions.load(self.new_session):
            self.sessions[session.client_id] = session
            self._look_at_publishes(session, is_in_outbox)
            for topic_filter in session.subscriptions:
                if not is_sys(topic_filter):
                    self._interests.add(topic_filter)
            self._go_on(session, session.subscriptions)

    def keys_in_doubt(self) -> Iterator[MarkKey]:
        """
        The streams in which open QoS 2 publishes of durable sessions were sent.

        Even of those that are taken: after a crash here nobody might know.
        """
        for session in self.sessions.values():
            if not session.clean:
                for flow in session.receiver.open():
                    if flow.origin is not None:
                        yield flow.origin[0]

    # from the directory

    def adopt(
        self, session: Session, added: Iterable[str], confirmed: Set[str] = frozenset()
    ) -> None:
        """
        A session came from another node, or one that is here took in another; `added` are the
        filters that this node has not counted for it. Where those of `confirmed` begin is known by
        now, whatever zones that were asked here answer. It is kept in one with what else this turn
        changes.
        """
        for subscribing in self._interests.of(session):
            subscribing.fresh -= confirmed
        self.sessions[session.client_id] = session
        if session.sink is None and session.away_since is None:
            session.away_since = self._timers.now()
        filters = tuple(added)
        for topic_filter in filters:
            if session.sink is not None:
                self._listen(session, session.subscriptions[topic_filter])
            if not is_sys(topic_filter):
                self._interests.add(topic_filter)
        self.keeper.save_now(session)
        self._go_on(session, filters)
        self._follow_zones(session, filters)
        if session.sink is not None:
            self._positions.arrive(session)

    def publish_will(
        self, client_id: str, will: Will, which: WillId | None, sent: Callable[[], None]
    ) -> None:
        """Publish a will; `sent` is called when its owner has it, at QoS 0 when it has left."""
        message = Message(will.topic, will.payload, will.qos, will.retain, client_id, which)
        if is_sys(will.topic):
            sent()
        elif will.qos:
            self._publisher.publish(Publication(message, done=sent))
        else:
            self._publisher.publish(Publication(message))
            sent()

    # from connections

    def connect(self, packet: Connect, accept: Callable[[Session, bool], None]) -> None:
        """
        Find or make the session for a CONNECT; `accept` gets it and CONNACK's session present.

        `accept` sends CONNACK, then attaches the connection; a durable session is safe by then.
        """
        old = self.sessions.get(packet.client_id)
        if old is not None and old.sink is not None:
            old.sink.close("client id taken over")  # [MQTT-3.1.4-2]
        if self._presence is not None:
            self._presence.connected(packet.client_id, clean=packet.clean_session, will=packet.will)
        old = self.sessions.get(packet.client_id)
        if old is not None and packet.clean_session:
            self._end_session(old)  # [MQTT-3.1.2-6]
            old = None
        session = self.new_session(packet.client_id, packet.clean_session) if old is None else old
        self.sessions[packet.client_id] = session
        session.will = packet.will
        if session.clean:
            accept(session, False)
            return
        if old is None:
            self.keeper.save_all(session)
        self.keeper.when_durable(lambda: accept(session, old is not None))

    def attach(self, session: Session, connection: Sink) -> bool:
        """The client is here; False when its session has ended or moved on since `connect`."""
        if self.sessions.get(session.client_id) is not session:
            return False
        if session.sink is not None:
            session.sink.close("client id taken over")
        session.away_since = None
        for subscription in session.subscriptions.values():
            self._listen(session, subscription)
        session.sender.attach(connection)
        self._positions.arrive(session)
        if not session.clean:
            self.keeper.save_all(session)
        return True

    def disconnect(self, session: Session, connection: Sink, *, will: bool) -> None:
        """The connection is gone; `will`: without a DISCONNECT [MQTT-3.1.2-8]."""
        if session.sink is not connection:
            return
        session.detach()
        session.away_since = self._timers.now()
        self._execute(session, is_will_due=will)
        self._positions.leave(session)
        for topic_filter in session.subscriptions:
            self._subscribers.remove(topic_filter, session.client_id)
        if session.clean:
            self._end_session(session)

    def publish(self, session: Session, packet: Publish) -> None:
        """A client's PUBLISH."""
        self.received += 1
        flow = None
        if packet.qos:
            flow = session.receiver.accept(packet)
            if flow is None:
                return
        message = Message(
            packet.topic, packet.payload, packet.qos, packet.retain, session.client_id
        )
        publication = Publication(message, session, flow)
        if is_sys(packet.topic):
            settle(publication)  # acknowledged and discarded (contract.md)
        elif flow is not None and flow.origin is not None:
            self._publisher.resend(publication, flow.origin)
        else:
            self._publisher.publish(publication)

    def subscribe(
        self, session: Session, packet: Subscribe, acknowledge: Callable[[], None]
    ) -> None:
        """A client's SUBSCRIBE; `acknowledge` sends the SUBACK when it is due."""
        granted = dict(packet.filters)
        fresh = frozenset(f for f in granted if f not in session.subscriptions)
        self._leave_earlier(session, granted)
        subscriptions = {f: self._subscription(session, f, qos) for f, qos in granted.items()}
        subscribing = self._subscribing(session, subscriptions, fresh, acknowledge)
        session.subscribing += 1
        session.on_subscriptions_changed()
        for topic_filter, subscription in subscriptions.items():
            if subscription.held is None:
                subscription.held = []
                subscription.is_fresh = topic_filter in fresh
            if is_sys(topic_filter):
                for _, message in self.sys.match(topic_filter):
                    subscribing.give(subscription, message, retain=True)
        self._ask_zones(subscribing)
        if any(f.startswith(FEDERATION + "/") for f in granted):
            self._on_federation_filter()

    def unsubscribe(
        self, session: Session, topic_filters: Iterable[str], acknowledge: Callable[[], None]
    ) -> None:
        """A client's UNSUBSCRIBE; filters that it does not have are none of its concern."""
        for topic_filter in topic_filters:
            self._leave_earlier(session, (topic_filter,))
            if topic_filter in session.subscriptions:
                self._drop_subscription(session, topic_filter)
        session.on_subscriptions_changed()
        self._commit(session, acknowledge)

    # from the edge

    def deliver(self, place: Place | None, message: Message, *, is_read: bool = False) -> None:
        """
        A message to every session that is here and wants it.

        `place` is where it lies in its zone's journal, offset 0 for QoS 0; None: `$SYS`. `is_read`:
        who gets it at QoS 1 or 2 reads it there.
        """
        apex = None if place is None else place.part.zone
        best: dict[Session, Subscription] = {}
        for _, (session, subscription) in self._subscribers.match(message.topic):
            if subscription.pending and apex in subscription.pending:
                continue
            known = best.get(session)
            if known is None or _rank(subscription) > _rank(known):
                best[session] = subscription  # [MQTT-3.3.5-1]
        for session, subscription in best.items():
            qos = min(subscription.qos, message.qos)
            if qos and place is not None:
                if not is_read:
                    self._give(session, subscription, message, qos, place)
            elif subscription.held is not None and subscription.is_fresh:
                self._hold(session, subscription, message)
            else:
                self._give_qos0(session, message, place)
        self.delivered += len(best)

    # from sessions (Watcher)

    def has_room(self, session: Session) -> None:
        """A session that is behind can take more."""
        self.backlog.wake(session)

    def save(self, session: Session, *, urgent: bool) -> None:
        """A durable session changed."""
        self.keeper.save(session, urgent=urgent)

    def save_all(self, session: Session) -> None:
        """The subscriptions of a durable session changed, or where they begin."""
        self.keeper.save_all(session)

    def save_then(self, session: Session, action: Callable[[], None]) -> None:
        """A durable session changed; run `action` when that is durable."""
        self.keeper.save_then(session, action)

    def dropped(self, session: Session, qos: int, *, is_first: bool) -> None:
        """A message beyond a session's limit."""
        self._counters.add("session.dropped.qos0" if qos == 0 else "session.dropped.queue_full")
        if qos and not session.clean:
            self.keeper.save_all(session)
        if is_first:
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

    def _look_at_publishes(
        self, session: Session, is_in_outbox: Callable[[OriginId], bool]
    ) -> None:
        for flow in list(session.receiver.open()):
            if flow.entry is not None and not flow.taken:
                flow.taken = is_in_outbox(flow.entry)
                if not flow.taken:
                    # Kept before that outbox goes: what is gone was drained, to a later start.
                    flow.entry = None
                    self.keeper.save_then(session, lambda: None)
            flow.is_in_doubt = not flow.taken
            if flow.is_in_doubt and flow.origin is None:
                session.receiver.forget(flow)

    def _give(
        self,
        session: Session,
        subscription: Subscription,
        message: Message,
        qos: int,
        place: Place,
    ) -> None:
        part, places, sender = place.part, session.places, session.sender
        cursor = places.behind.get(part)
        if cursor is not None:
            if cursor.waiting is not None:
                cursor.waiting.add(message)
            return  # it comes from the journal, in its turn
        if places.had and places.has_had(place, message.topic):
            return
        if places.ahead:
            ahead = places.ahead.get(part, 0)
            if place.offset <= ahead:
                return  # it came from the journal
            places.ahead.pop(part, None)
        is_held = subscription.held is not None and subscription.is_fresh
        if is_held or sender.is_late(part) or not sender.deliver(message, qos, place):
            places.fall_behind(place)
        elif not session.clean:
            places.taken[part] = place.offset

    def _give_qos0(self, session: Session, message: Message, place: Place | None) -> None:
        if place is None:
            session.sender.deliver_qos0(message)
        elif not self._is_past(session, place):
            session.sender.deliver_qos0_after(message, place.part)

    def _is_past(self, session: Session, place: Place) -> bool:
        """Whether the session, which moved here, had what comes now at the node before."""
        part = place.part
        cursor = session.places.behind.get(part)
        reached = session.places.ahead.get(part, 0) if cursor is None else cursor.offset
        if not reached:
            return False
        route = self._zones.get(part.zone)
        position = None if route is None else route.position
        come = place.offset or (0 if position is None else position.offset + 1)
        return come <= reached

    def _hold(self, session: Session, subscription: Subscription, message: Message) -> None:
        assert subscription.held is not None
        subscription.held.append((message, False))
        if len(subscription.held) >= HELD_LIMIT:
            self._stop_holding(session, subscription)

    def new_session(self, client_id: str, clean: bool = False) -> Session:
        """A session that is nobody's yet."""
        return Session(client_id, clean=clean, limits=self._limits.session, watcher=self)

    def _commit(self, session: Session, action: Callable[[], None]) -> None:
        """Run it when the session's subscriptions are as safe as it needs."""
        if session.clean:
            action()
        else:
            self.keeper.save_all(session)
            self.keeper.when_durable(action)

    def _go_on(self, session: Session, filters: Iterable[str]) -> None:
        """Zones that had not confirmed elsewhere, or before a restart, still have to."""
        subscriptions = session.subscriptions
        pending = {f: subscriptions[f] for f in filters if subscriptions[f].pending}
        if pending:
            subscribing = self._subscribing(session, pending, frozenset(pending), None)
            subscribing.is_resumed = True
            self._interests.begin(subscribing)

    def _follow_zones(self, session: Session, filters: Iterable[str]) -> None:
        """Of filters that came along with a session: from where on they hold at this node."""
        subscriptions = session.subscriptions
        known = {f: subscriptions[f] for f in filters if not subscriptions[f].pending}
        subscribing = self._subscribing(session, known, frozenset(), lambda: None)
        subscribing.is_moved = True
        session.subscribing += 1
        self._ask_zones(subscribing)

    def _subscribing(
        self,
        session: Session,
        subscriptions: dict[str, Subscription],
        fresh: frozenset[str],
        acknowledge: Callable[[], None] | None,
    ) -> Subscribing:
        return Subscribing(
            session=session,
            subscriptions=subscriptions,
            zoned=frozenset(f for f in subscriptions if not is_sys(f)),
            fresh=fresh,
            acknowledge=acknowledge,
            commit=lambda action: self._commit(session, action),
        )

    def _listen(self, session: Session, subscription: Subscription) -> None:
        self._subscribers.add(subscription.topic_filter, session.client_id, (session, subscription))

    def _execute(self, session: Session, *, is_will_due: bool) -> None:
        """The connection of a session is gone: so is its will, published or not."""
        client_id = session.client_id
        will, session.will = session.will, None
        testament = None
        if self._presence is not None:
            testament = self._presence.disconnected(client_id, is_will_due=is_will_due)
        if is_will_due and will is not None:
            which = None if testament is None else will_id(client_id, self._node, testament)
            sent = partial(self._on_will_sent, client_id, testament)
            self.publish_will(client_id, will, which, sent)

    def _on_will_sent(self, client_id: str, testament: Testament | None) -> None:
        if self._presence is not None and testament is not None:
            self._presence.will_is_sent(client_id, testament)

    def _end_session(self, session: Session) -> None:
        """Forget a session and its subscriptions."""
        for subscribing in self._interests.of(session):
            self._interests.cancel(subscribing)
            if subscribing.alarm is not None:
                subscribing.alarm.cancel()
        for topic_filter in list(session.subscriptions):
            self._drop_subscription(session, topic_filter)
        session.close()
        if not session.clean:
            self.keeper.forget(session)
        del self.sessions[session.client_id]
        if self._presence is not None and not session.clean:
            self._presence.ended(session.client_id)

    def _subscription(self, session: Session, topic_filter: str, qos: int) -> Subscription:
        known = session.subscriptions.get(topic_filter)
        if known is not None:
            known.qos = qos  # [MQTT-3.8.4-3]
            return known
        subscription = Subscription(topic_filter, qos)
        session.subscriptions[topic_filter] = subscription
        self._listen(session, subscription)
        if not is_sys(topic_filter):
            self._interests.add(topic_filter)
        return subscription

    def _drop_subscription(self, session: Session, topic_filter: str) -> None:
        del session.subscriptions[topic_filter]
        if session.sink is not None:
            self._subscribers.remove(topic_filter, session.client_id)
        if not is_sys(topic_filter):
            self._interests.remove(topic_filter)

    def _leave_earlier(self, session: Session, topic_filters: Iterable[str]) -> None:
        for subscribing in self._interests.of(session):
            for topic_filter in topic_filters:
                subscribing.leave(topic_filter)
            if subscribing.is_done:
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


def _rank(subscription: Subscription) -> tuple[bool, int]:
    """Of those that match, one whose SUBACK has left counts before one that waits for it."""
    return not (subscription.held is not None and subscription.is_fresh), subscription.qos
