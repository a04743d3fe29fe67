"""
The sessions of an edge's clients: which session a CONNECT gets, and when a session ends.

A session is attached (its client is connected), away, or ended. CONNECT finds or makes a session,
and CONNACK waits until a kept session is durable. `attach` makes its subscriptions live.
`disconnect` leaves a kept session away and ends a clean one, or one without expiry. `delete` and
`expire_sessions` end sessions as well. The will belongs to the connection (`ConnectionWills`), the
subscriptions (`Subscriptions`) belong to the session. The `Publisher` alone decides where a publish
goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set

import attrs

from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.edge.routing.edge_limits import EdgeLimits
from txbroker.edge.routing.edge_parts import EdgeParts
from txbroker.edge.routing.publication import Publication
from txbroker.edge.routing.publisher import Publisher
from txbroker.edge.sessions.catch_up import CatchUp
from txbroker.edge.sessions.connect_procedure import (
    TAKEN_OVER,
    ConnectingClient,
    OpenedSession,
    end_superseded,
)
from txbroker.edge.sessions.connection_wills import ClientPresence, ConnectionWills
from txbroker.edge.sessions.delivery import Delivery
from txbroker.edge.sessions.session_cursors import SessionCursors
from txbroker.edge.sessions.session_owner import EdgeSessionOwner
from txbroker.edge.sessions.session_store import SessionStore
from txbroker.edge.sessions.shared_subscriptions import SharedSubscriptions
from txbroker.edge.sessions.subscriptions import Subscriptions
from txbroker.model.topics import is_sys
from txbroker.mqtt.session.inbound_publish import OriginId
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.session_ports import Sink
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import Connect, Publish
from txbroker.mqtt.wire.reason_codes import ReasonCode

AWAY_FOR_LONG = 60.0
"""Seconds; the session of a client that was away for longer is saved with the next group commit."""


@attrs.frozen(kw_only=True)
class SessionParts:
    """The parts of an edge that serve its clients' sessions."""

    publisher: Publisher
    subscriptions: Subscriptions
    shared: SharedSubscriptions
    delivery: Delivery
    cursors: SessionCursors
    backlog: CatchUp


class ClientSessions:
    """The clients of an edge; all parts are those of that edge."""

    def __init__(
        self,
        sessions: dict[str, Session],
        parts: EdgeParts,
        served_by: SessionParts,
        *,
        session_store: SessionStore,
        owner: EdgeSessionOwner,
        limits: EdgeLimits,
    ) -> None:
        self.sessions = sessions
        self.session_store = session_store
        self.backlog = served_by.backlog
        self.wills = ConnectionWills(parts.name, served_by.publisher, parts.timers, self.lifetime)
        self._owner = owner
        self._publisher = served_by.publisher
        self._subscriptions = served_by.subscriptions
        self._shared = served_by.shared
        self._delivery = served_by.delivery
        self._cursors = served_by.cursors
        self._router = parts.router
        self._timers = parts.timers
        self._counters = parts.counters
        self._reporter = parts.reporter
        self._limits = limits
        self._opened: dict[str, OpenedSession] = {}
        self._presence: ClientPresence | None = None

    @property
    def received(self) -> int:
        """Publishes received from clients."""
        return self._router.received

    # from the node

    def wire(self, presence: ClientPresence) -> None:
        """Set the directory to notify when clients come and go."""
        self.wills.wire(presence)
        self._presence = presence

    def set_limits(self, limits: EdgeLimits) -> None:
        """Apply other limits from now on, to existing sessions as well."""
        self._limits = limits
        self.backlog.limits = limits.session
        self._subscriptions.wait = self._shared.wait = limits.suback_wait
        for session in self.sessions.values():
            session.sender.set_limits(limits.session)

    def close(
        self,
        client_id: str,
        reason: str = TAKEN_OVER,
        code: ReasonCode = ReasonCode.SESSION_TAKEN_OVER,
    ) -> None:
        """
        Close the client's connection, and refuse a connection that waits to be accepted.

        Accepted on a session that moves, a connection would lose what its client does there. On a
        clean session that another one replaced, a connection would stay open beside the client's.
        """
        session = self.sessions.get(client_id)
        opened = self._opened.pop(client_id, None)
        if opened is not None:
            end_superseded(opened.client, reason)
        if session is None:
            return
        if session.sink is not None:
            session.sink.close(reason, code)
        elif session.clean or opened is not None:
            self.miss(session)

    def delete(self, client_id: str, *, is_moved: bool = False) -> bool:
        """
        End a session, its client's connection first; return False if there is no such session.

        `is_moved`: the session goes on at another node.
        """
        session = self.sessions.get(client_id)
        if session is None:
            return False
        self.close(client_id, "session deleted", ReasonCode.ADMINISTRATIVE_ACTION)
        if self.sessions.get(client_id) is session:  # a clean session ended with its connection
            self._end_session(session, is_moved=is_moved)
        return True

    def expire_sessions(self) -> None:
        """Expire the sessions whose client has been away for too long; called now and then."""
        for session in list(self.sessions.values()):
            self._expire(session)

    def expire(self, client_id: str) -> None:
        """Expire the client's session if its client has been away for too long."""
        session = self.sessions.get(client_id)
        if session is not None:
            self._expire(session)

    def make_way(self, client_id: str) -> None:
        """End a session that no CONNECT of its client can resume: expired, or without expiry."""
        session = self.sessions.get(client_id)
        if session is None or session.clean:
            return
        if session.sink is None:
            self._expire(session)
        elif session.expiry == 0:
            session.sink.close(TAKEN_OVER, ReasonCode.SESSION_TAKEN_OVER)

    def lifetime(self, session: Session) -> float:
        """Return the seconds that the session outlives its connection."""
        age = self._limits.session_age
        return age if session.expiry is None else min(session.expiry, age)

    def load(self, is_in_outbox: Callable[[OriginId], bool]) -> None:
        """
        Load the durable sessions after a start, with their clients away.

        `is_in_outbox` is True if a publish became its outbox entry, and the entry is not lost.
        """
        loaded = self._cursors.load(self.new_session)
        for session in loaded:
            self.sessions[session.client_id] = session
            self._check_publishes(session, is_in_outbox)
            self._subscriptions.adopt(session, session.subscriptions)
        # A zone that is asked hears all filters at once. Filters counted after that would never
        # reach its owner.
        for session in loaded:
            self._subscriptions.resume(session, session.subscriptions)
            self._shared.adopt(session)

    def keys_in_doubt(self) -> Iterator[MarkKey]:
        """
        Return the streams in which open QoS 2 publishes of durable sessions were sent.

        Streams of publishes that the owner has taken count, too. After a crash here the node might
        have lost that answer.
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
        Add a session that came from another node, or that is here and merged with another session.

        `added` are the filters that this node has not counted for the session. For filters in
        `confirmed` the start is known by now, whatever the zones asked here answer. The client has
        been `away` for some seconds unless it is connected. The session is persisted in one batch
        with all else that this turn changes.
        """
        self.sessions[session.client_id] = session
        if session.sink is None and session.away_since is None:
            session.away_since = self._timers.now() - away
        filters = tuple(added)
        if self._owner.recording is not None:
            self._owner.recording.record_subscriptions(session)
        self._subscriptions.adopt(session, filters, confirmed)
        self.session_store.save_now(session)
        # Otherwise a filter that was pending, and begins with its zone's answer, would set the
        # session's place there beyond the records that are due for the others.
        self._subscriptions.follow_zones(session, filters)
        self._subscriptions.resume(session, filters)
        if session.sink is not None:
            self._cursors.on_connect(session)
        self._shared.adopt(session)

    def seconds_away(self, session: Session) -> float:
        """Return the seconds for which the client has been away; 0: the client is connected."""
        since = session.away_since
        return 0.0 if since is None else max(self._timers.now() - since, 0.0)

    def new_session(self, client_id: str, clean: bool = False) -> Session:
        """Make a session that belongs to no client yet."""
        return Session(client_id, clean=clean, limits=self._limits.session, watcher=self._owner)

    def may_keep(self, client_id: str, beside: int = 0) -> bool:
        """True if the client has a session here, or there is room for one beside so many others."""
        return client_id in self.sessions or len(self.sessions) + beside < self._limits.sessions

    # from connections

    def why_full(self, packet: Connect) -> str:
        """Return in one line why the client's request may not begin here; empty: it may."""
        will = packet.will
        if not self.may_keep(packet.client_id):
            return "limits.sessions: the node has no room for another session"
        if will is not None and will.qos and not self.wills.has_room(will.topic):
            return "the node has no room for another will that waits for the zone of its topic"
        if will is not None and self._presence is not None and not self._presence.has_room(will):
            return "the node has no room for another large will"
        return ""

    def open(self, packet: Connect, client: ConnectingClient) -> OpenedSession:
        """
        Find or make the session for a CONNECT of a client whose session is at no other node.

        Unless the session is durable, the caller waits for the store, then calls `confirm`. So a
        kept session is durable before CONNACK, and so is the end of one that a clean session
        replaces. A later CONNECT before that closes `client`. If both got CONNACK, the end of the
        earlier connection would drop or publish the will of the later one.
        """
        client_id, expiry = packet.client_id, packet.expiry
        clean = packet.clean_session and expiry == 0
        earlier = self._opened.pop(client_id, None)
        if earlier is not None:
            end_superseded(earlier.client)
        old = self.sessions.get(client_id)
        if old is not None and old.sink is not None:
            old.sink.close(TAKEN_OVER, ReasonCode.SESSION_TAKEN_OVER)  # [MQTT-3.1.4-2]
        if not clean:
            self.wills.delayed.cancel(client_id)  # [MQTT-3.1.3-9]
        if self._presence is not None:
            self._presence.connected(client_id, clean=clean, will=packet.will)
        # a clean session has ended if its connection was attached
        old = self.sessions.get(client_id)
        ends_kept = earlier is not None  # that end may not be durable yet
        if old is not None and (clean or old.clean):
            ends_kept |= not old.clean
            self._end_session(old)  # [MQTT-3.1.2-6]
            old = None
        session = self.new_session(client_id, clean) if old is None else old
        self.sessions[client_id] = session
        session.level, session.expiry = packet.protocol_level, expiry
        if clean and not ends_kept:
            session.will = packet.will
            return OpenedSession(session, False, True, client)
        if old is None and not clean:
            session.away_since = self._timers.now()  # until `attach`: the client may be gone
            self.session_store.mark_seen(session)
            self.session_store.save_soon()
        elif old is not None and expiry is not None:
            self.session_store.save_all(session)  # a crash must not leave it with an earlier expiry
        # No client has been told of a session that the earlier CONNECT began, so it is not present.
        present = old is not None and (earlier is None or earlier.present)
        opened = self._opened[client_id] = OpenedSession(session, present, False, client)
        return opened

    def confirm(self, opened: OpenedSession, packet: Connect) -> bool:
        """Note that the session is durable; return False if a later CONNECT has replaced it."""
        if self._opened.get(packet.client_id) is not opened:
            return False
        del self._opened[packet.client_id]
        opened.session.will = packet.will
        return True

    def attach(self, session: Session, connection: Sink) -> bool:
        """Attach the connection; return False if the session has ended or moved since `open`."""
        if self.sessions.get(session.client_id) is not session:
            return False
        sender = session.sender
        if sender.sink is not None:
            sender.sink.close(TAKEN_OVER, ReasonCode.SESSION_TAKEN_OVER)
        away_since, session.away_since = session.away_since, None
        sender.attach(connection)
        for subscription in session.subscriptions.values():
            self._delivery.listen(session, subscription)
        if not session.clean:
            self._cursors.on_connect(session)
            self.session_store.mark_seen(session)
            if away_since is not None and self._timers.now() - away_since > AWAY_FOR_LONG:
                # else after a crash the session seems away for too long, and expires
                self.session_store.save_soon()
        if session.shared:
            self._shared.follow(session)
        return True

    def miss(self, session: Session) -> None:
        """
        Note that a client was gone before its CONNACK; a clean session ends.

        The client was never connected, so its will is not due [MQTT-3.1.2-8].
        """
        if self.sessions.get(session.client_id) is not session:
            return
        self.wills.on_disconnect(session, is_will_due=False)
        if session.clean:
            self._end_session(session)

    def disconnect(self, session: Session, connection: Sink, *, will: bool) -> None:
        """Detach the connection, which is gone; `will`: without a DISCONNECT [MQTT-3.1.2-8]."""
        if session.sender.sink is not connection:
            return
        self._shared.reclaim(session)
        session.detach()
        self._shared.follow(session)
        self.wills.on_disconnect(session, is_will_due=will)
        if not session.clean:
            session.away_since = self._timers.now()
            self._cursors.on_disconnect(session)
        for subscription in session.subscriptions.values():
            self._delivery.ignore(session, subscription)
        if session.clean or session.expiry == 0:
            self._end_session(session)

    def set_expiry(self, session: Session, expiry: int | None) -> None:
        """Set another expiry, as DISCONNECT asks (MQTT 5.0, section 3.14.2.2.2)."""
        session.expiry = expiry
        if not session.clean:
            self.session_store.save_all(session)

    def publish(self, session: Session, packet: Publish) -> None:
        """Accept a client's PUBLISH."""
        self._router.received += 1
        flow = None
        if packet.qos:
            flow = session.receiver.accept(packet)
            if flow is None:
                return
        message = Message(
            packet.topic,
            packet.payload,
            packet.qos,
            packet.retain,
            session.client_id,
            properties=packet.properties,
        )
        publication = Publication(message, session, flow)
        if is_sys(packet.topic):
            publication.settle()  # acknowledged and discarded (contract.md)
        elif flow is not None and flow.origin is not None:
            self._publisher.resend(publication, flow.origin)
        else:
            self._publisher.publish(publication)

    # internal

    def _expire(self, session: Session) -> None:
        if session.client_id in self._opened:
            return  # else the client would be told of a session that has ended
        since = session.away_since
        if since is None or self._timers.now() - since < self.lifetime(session):
            return
        is_own = session.expiry is not None and session.expiry < self._limits.session_age
        limit = "session expiry" if is_own else "session_limits.age"
        self._reporter.event("session.expired", client_id=session.client_id, limit=limit)
        self._counters.add("session.expired")
        self._end_session(session)

    def _check_publishes(self, session: Session, is_in_outbox: Callable[[OriginId], bool]) -> None:
        for flow in list(session.open_publishes()):
            if flow.entry is not None and not flow.taken:
                flow.taken = is_in_outbox(flow.entry)
                if not flow.taken:
                    # The session is saved before that outbox is removed. To a later start, an entry
                    # without an outbox is a drained one.
                    flow.entry = None
                    self.session_store.save_then(session, lambda: None)
                session.receiver.mark_changed(flow)
            flow.is_in_doubt = not flow.taken
            if flow.is_in_doubt and flow.origin is None:
                session.receiver.forget(flow)

    def _end_session(self, session: Session, *, is_moved: bool = False) -> None:
        """Discard a session and its subscriptions."""
        if self._owner.recording is not None and not is_moved:
            self._owner.recording.record_end(session)
        if is_moved:
            self.wills.delayed.cancel(session.client_id)  # its client has connected elsewhere
        else:
            self.wills.delayed.publish_now(session.client_id)  # [MQTT-3.1.2-8]
        self._subscriptions.end(session)
        self._shared.end(session, is_moved=is_moved)
        session.close()
        if not session.clean:
            self.session_store.forget(session)
        del self.sessions[session.client_id]
        if self._presence is not None and not session.clean:
            self._presence.ended(session.client_id)
