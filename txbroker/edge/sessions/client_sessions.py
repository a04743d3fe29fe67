"""
The sessions of an edge: which one a CONNECT gets, and when one ends.

With a connection goes its will, with a session all that it is subscribed to (`subscriptions`).
Where a publish goes is not known here: `publishing` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from functools import partial
from typing import Protocol
from weakref import WeakSet

import attrs

from txbroker.core import Router, Run
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.directory.client_wills import will_id
from txbroker.directory.entry import DirectoryWill
from txbroker.edge.routing.edge_limits import EdgeLimits
from txbroker.edge.routing.publication import Publication
from txbroker.edge.routing.publisher import Publisher, settle
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.sessions.catch_up import CatchUp
from txbroker.edge.sessions.delivery import Delivery
from txbroker.edge.sessions.ledger_writer import LedgerWriter
from txbroker.edge.sessions.session_cursors import SessionCursors
from txbroker.edge.sessions.session_store import SessionStore
from txbroker.edge.sessions.subscriptions import Subscriptions
from txbroker.model.counters import Counters
from txbroker.model.reporter import Reporter
from txbroker.model.timers import Timers
from txbroker.model.topics import is_sys
from txbroker.mqtt.session.inbound_publish import OriginId
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.session_ports import Sink
from txbroker.mqtt.wire.message import Message, WillId
from txbroker.mqtt.wire.packets import Connect, Publish, Will

TAKEN_OVER = "client id taken over"
"""Why an earlier connection of a client ends."""

WILLS = 10_000
"""Wills of clients that are gone that may wait for owners; see `ClientSessions.why_full`."""

AWAY_FOR_LONG = 60.0
"""Seconds; whoever was away for longer is written as here with the next group commit."""


class ClientPresence(Protocol):
    """Who has to know which clients are here: the client directory."""

    def connected(self, client_id: str, *, clean: bool, will: Will | None) -> DirectoryWill | None:
        """The client has its session, clean or kept; its will as it is to be published."""

    def disconnected(self, client_id: str, *, is_will_due: bool) -> DirectoryWill | None:
        """The connection is gone; the will that is to be published now."""

    def will_is_sent(self, client_id: str, testament: DirectoryWill) -> None:
        """That will is published."""

    def ended(self, client_id: str) -> None:
        """A session ended."""


@attrs.frozen(eq=False)
class _Arrival:
    """
    A connection that waits until its session is durable. `present`: its client is to be told that
    there was one before.
    """

    present: bool
    refuse: Callable[[str, bool], None]


class ClientSessions:
    """The clients of the edge `node`; the parts that it is given are the edge's."""

    def __init__(
        self,
        sessions: dict[str, Session],
        *,
        node: str,
        zones: ResolverCache,
        publisher: Publisher,
        subscriptions: Subscriptions,
        delivery: Delivery,
        positions: SessionCursors,
        router: Router,
        timers: Timers,
        counters: Counters,
        reporter: Reporter,
        keeper: SessionStore,
        backlog: CatchUp,
        recording: LedgerWriter | None,
        limits: EdgeLimits,
    ) -> None:
        """`recording` is None where the node keeps no ledger."""
        self.sessions = sessions
        self.recording = recording
        self.keeper = keeper
        self.backlog = backlog
        self._node = node
        self._zones = zones
        self._publisher = publisher
        self._subscriptions = subscriptions
        self._delivery = delivery
        self._positions = positions
        self._router = router
        self._timers = timers
        self._counters = counters
        self._reporter = reporter
        self._limits = limits
        self._arriving: dict[str, _Arrival] = {}
        self._wills_waiting = 0
        self._fills = 0
        self._told_full: WeakSet[Session] = WeakSet()
        self._presence: ClientPresence | None = None

    @property
    def received(self) -> int:
        """Publishes that came from clients."""
        return self._router.received

    # from the node

    def wire(self, presence: ClientPresence) -> None:
        """Who is told of clients that come and go."""
        self._presence = presence

    def set_limits(self, limits: EdgeLimits) -> None:
        """Other limits, from now on, for the sessions that there are as well."""
        self._limits = limits
        self.backlog.limits = limits.session
        self._subscriptions.wait = limits.suback_wait
        self._router.set_cache_limit(limits.cache)
        self._zones.limit = limits.cache
        for session in self.sessions.values():
            session.sender.set_limits(limits.session)

    def delete(self, client_id: str, *, is_moved: bool = False) -> bool:
        """
        End a session, its client's connection first; False when there is none. `is_moved`: it goes
        on at another node.
        """
        session = self.sessions.get(client_id)
        if session is None:
            return False
        if session.sink is not None:
            session.sink.close("session deleted")
        if self.sessions.get(client_id) is session:  # a clean one ended with its connection
            self._end_session(session, is_moved=is_moved)
        return True

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
        loaded = self._positions.load(self.new_session)
        for session in loaded:
            self.sessions[session.client_id] = session
            self._look_at_publishes(session, is_in_outbox)
            self._subscriptions.come(session, session.subscriptions)
        # A zone that is asked hears all filters: it would never hear of those that come later.
        for session in loaded:
            self._subscriptions.go_on(session, session.subscriptions)

    def keys_in_doubt(self) -> Iterator[MarkKey]:
        """
        The streams in which open QoS 2 publishes of durable sessions were sent.

        Even of those that are taken: after a crash here nobody might know.
        """
        for session in self.sessions.values():
            if not session.clean:
                for flow in session.open_publishes():
                    if flow.origin is not None:
                        yield flow.origin[0]

    # from the directory

    def adopt(
        self,
        session: Session,
        added: Iterable[str],
        confirmed: Set[str] = frozenset(),
        *,
        away: float = 0.0,
    ) -> None:
        """
        A session came from another node, or one that is here took in another; `added` are the
        filters that this node has not counted for it. Where those of `confirmed` begin is known by
        now, whatever zones that were asked here answer. Its client, unless it is here, has been
        `away` for some seconds. It is kept in one with what else this turn changes.
        """
        self.sessions[session.client_id] = session
        if session.sink is None and session.away_since is None:
            session.away_since = self._timers.now() - away
        filters = tuple(added)
        if self.recording is not None:
            self.recording.holds_all(session)
        self._subscriptions.come(session, filters, confirmed)
        self.keeper.save_now(session)
        self._subscriptions.go_on(session, filters)
        self._subscriptions.follow_zones(session, filters)
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

    def seconds_away(self, session: Session) -> float:
        """For how long the client has been away; 0: it is here."""
        since = session.away_since
        return 0.0 if since is None else max(self._timers.now() - since, 0.0)

    def new_session(self, client_id: str, clean: bool = False) -> Session:
        """A session that is nobody's yet."""
        return Session(client_id, clean=clean, limits=self._limits.session, watcher=self)

    # from connections

    def why_full(self, packet: Connect) -> str:
        """Why what the client asks for may not begin here, in one line; empty: it may."""
        sessions, will = self.sessions, packet.will
        if len(sessions) >= self._limits.sessions and packet.client_id not in sessions:
            return "limits.sessions: the node has no room for another session"
        if will is not None and will.qos and not self._has_room_for_will(will.topic):
            return "the node has no room for another will that waits for the zone of its topic"
        return ""

    def connect(
        self,
        packet: Connect,
        accept: Callable[[Session, bool], None],
        refuse: Callable[[str, bool], None] = lambda *_: None,
    ) -> None:
        """
        Find or make the session for a CONNECT; `accept` gets it and CONNACK's session present.

        `accept` sends CONNACK, then attaches the connection; a durable session is safe by then, or
        the end of one that a clean session replaces. A later CONNECT that comes before that has
        `refuse` called instead (see `SessionConnect.connect`): two connections accepted one behind
        the other would leave the will of the living one to the end of the other.
        """
        client_id, clean = packet.client_id, packet.clean_session
        earlier = self._arriving.pop(client_id, None)
        if earlier is not None:
            earlier.refuse(TAKEN_OVER, False)  # [MQTT-3.1.4-2]
        old = self.sessions.get(client_id)
        if old is not None and old.sink is not None:
            old.sink.close(TAKEN_OVER)  # [MQTT-3.1.4-2]
        if self._presence is not None:
            self._presence.connected(client_id, clean=clean, will=packet.will)
        old = self.sessions.get(client_id)  # a clean one has ended, if its connection had come
        ends_kept = earlier is not None  # that end may not be durable yet
        if old is not None and (clean or old.clean):
            ends_kept |= not old.clean
            self._end_session(old)  # [MQTT-3.1.2-6]
            old = None
        session = self.new_session(client_id, clean) if old is None else old
        self.sessions[client_id] = session
        if clean and not ends_kept:
            session.will = packet.will
            accept(session, False)
            return
        if old is None and not clean:
            session.away_since = self._timers.now()  # until it is attached: its client may be gone
            self.keeper.note_life(session)
            self.keeper.save_soon()
        # Of a session that the earlier one began no client has heard.
        present = old is not None and (earlier is None or earlier.present)
        arrival = self._arriving[client_id] = _Arrival(present, refuse)

        def arrived() -> None:
            if self._arriving.get(client_id) is arrival:
                del self._arriving[client_id]
                session.will = packet.will
                accept(session, present)

        self.keeper.when_durable(arrived)

    def attach(self, session: Session, connection: Sink) -> bool:
        """The client is here; False when its session has ended or moved on since `connect`."""
        if self.sessions.get(session.client_id) is not session:
            return False
        sink = session.sink
        if sink is not None:
            sink.close(TAKEN_OVER)
        away_since, session.away_since = session.away_since, None
        session.sender.attach(connection)
        for subscription in session.subscriptions.values():
            self._delivery.listen(session, subscription)
        if not session.clean:
            self._positions.arrive(session)
            self.keeper.note_life(session)
            if away_since is not None and self._timers.now() - away_since > AWAY_FOR_LONG:
                self.keeper.save_soon()  # a crash must not find it too old
        return True

    def miss(self, session: Session) -> None:
        """
        A client was gone before `accept` was called: it was never here, so its will is not due
        [MQTT-3.1.2-8]. A clean session ends with that.
        """
        if self.sessions.get(session.client_id) is not session:
            return
        self._execute(session, is_will_due=False)
        if session.clean:
            self._end_session(session)

    def disconnect(self, session: Session, connection: Sink, *, will: bool) -> None:
        """The connection is gone; `will`: without a DISCONNECT [MQTT-3.1.2-8]."""
        if session.sender.sink is not connection:
            return
        session.detach()
        self._execute(session, is_will_due=will)
        if not session.clean:
            session.away_since = self._timers.now()
            self._positions.leave(session)
        for subscription in session.subscriptions.values():
            self._delivery.ignore(session, subscription)
        if session.clean:
            self._end_session(session)

    def publish(self, session: Session, packet: Publish) -> None:
        """A client's PUBLISH."""
        self._router.received += 1
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

    def publish_run(self, run: Run) -> None:
        """Many of a client's PUBLISH packets."""
        self._router.received += run.count
        self._publisher.publish_run(run)

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

    def dropped(self, session: Session, qos: int, count: int, *, is_first: bool) -> None:
        """Messages beyond a session's limit."""
        self._counters.add("session.dropped.queue_full" if qos else "session.dropped.qos0", count)
        if qos and not session.clean:
            self.keeper.save_all(session)
        if is_first:
            limit = "session_limits" if qos else ""
            client_id = session.client_id
            self._reporter.event("session.dropping", client_id=client_id, qos=qos, limit=limit)

    def zone_of(self, topic: str) -> str:
        """The zone that a publish of the topic goes to."""
        return self._zones.find(topic).apex

    def window_is_full(self, session: Session, limit: str) -> None:
        """A client has as much unacknowledged as it may have."""
        if not session.clean:
            self._counters.add("session.window_full")
        if session not in self._told_full:
            self._told_full.add(session)
            self._reporter.event("session.window_full", client_id=session.client_id, limit=limit)

    def count_fills(self) -> None:
        """Now and then: how often the windows of clean sessions became full."""
        fills = self._router.fills
        if fills > self._fills:
            self._counters.add("session.window_full", fills - self._fills)
            self._fills = fills

    # internal

    def _look_at_publishes(
        self, session: Session, is_in_outbox: Callable[[OriginId], bool]
    ) -> None:
        for flow in list(session.open_publishes()):
            if flow.entry is not None and not flow.taken:
                flow.taken = is_in_outbox(flow.entry)
                if not flow.taken:
                    # Kept before that outbox goes: what is gone was drained, to a later start.
                    flow.entry = None
                    self.keeper.save_then(session, lambda: None)
                session.receiver.note(flow)
            flow.is_in_doubt = not flow.taken
            if flow.is_in_doubt and flow.origin is None:
                session.receiver.forget(flow)

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
            self._wills_waiting += 1
            self.publish_will(client_id, will, which, sent)

    def _has_room_for_will(self, topic: str) -> bool:
        # Nobody is left whom not to read: whoever connects and vanishes would fill the memory.
        publisher = self._publisher
        if self._wills_waiting >= WILLS and publisher.waits_for(topic):
            return False
        return publisher.has_room_for(topic)

    def _on_will_sent(self, client_id: str, testament: DirectoryWill | None) -> None:
        self._wills_waiting -= 1
        if self._presence is not None and testament is not None:
            self._presence.will_is_sent(client_id, testament)

    def _end_session(self, session: Session, *, is_moved: bool = False) -> None:
        """Forget a session and its subscriptions."""
        if self.recording is not None and not is_moved:
            self.recording.over(session)
        self._subscriptions.end(session)
        session.close()
        if not session.clean:
            self.keeper.forget(session)
        del self.sessions[session.client_id]
        if self._presence is not None and not session.clean:
            self._presence.ended(session.client_id)
