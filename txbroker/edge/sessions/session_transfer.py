"""
The sessions of an edge as the client directory moves them (its `SessionHost`).

A move carries subscriptions, open flows and cursors, not messages: those are read again from the
zones' journals, at the new node as at the old one. What the client published and was not
acknowledged it sends again, there; what is on its way to an owner or in the outbox is finished
here, and the new node is told of it. Of QoS 2 the id goes along that it was sent with, and this
node keeps the owner from forgetting that id until the new one has asked (protocol rules 2 and 16).

Where the new node has a session of that id already (`roaming: fresh`, or one begun while a site was
away), it takes in the other one (see `merging`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.directory.client_wills import will_id
from txbroker.directory.directory_ports import DurableTable, PendingPublishes, PublishOrigin
from txbroker.directory.entry import DirectoryWill
from txbroker.edge.sessions.client_sessions import TAKEN_OVER
from txbroker.edge.sessions.edge import Edge
from txbroker.edge.sessions.session_connect import PublishBarrier
from txbroker.edge.sessions.session_format import decode_move, encode_move
from txbroker.edge.sessions.session_merge import take_in
from txbroker.edge.sessions.transferred_publishes import (
    Flows,
    TransferredCursors,
    TransferredPublishes,
)
from txbroker.model.log_position import LogPosition
from txbroker.mqtt.session.inbound_publish import InboundPublish, OriginId
from txbroker.mqtt.session.session import Session


class SessionTransfer:
    """
    See the module's text; `left` keeps the publishes of sessions that left, `left_places` what they
    needed of journals.
    """

    def __init__(
        self, edge: Edge, successions: PublishBarrier, left: DurableTable, left_places: DurableTable
    ) -> None:
        self._edge = edge
        self._clients = edge.clients
        self._successions = successions
        self._left = TransferredPublishes(left)
        self._left_places = TransferredCursors(left_places)
        self._given: dict[str, Flows] = {}
        edge.keeper.wire(lambda session: self._left.note(session.client_id))

    # from the node

    def load(self, is_in_outbox: Callable[[OriginId], bool]) -> None:
        """After a start, before anything is sent; see `TransferredPublishes`."""
        self._left.load(is_in_outbox)

    # from the directory: here

    def clean(self) -> list[str]:
        """The ids of the clean sessions that are here."""
        return [client_id for client_id, s in self._clients.sessions.items() if s.clean]

    def is_kept(self, client_id: str) -> bool:
        """Whether there is a session with clean session 0."""
        return self._session(client_id) is not None

    def idle(self, client_id: str) -> float:
        """Seconds for which the client of a kept session has been away."""
        session = self._session(client_id)
        return 0.0 if session is None else self._clients.seconds_away(session)

    def close(self, client_id: str) -> None:
        """Close the client's connection, if there is one."""
        session = self._clients.sessions.get(client_id)
        if session is not None and session.sink is not None:
            session.sink.close(TAKEN_OVER)

    def discard(self, client_id: str, *, is_moved: bool) -> None:
        """Forget the session, and close its connection; `is_moved`: it is another node's."""
        self._given.pop(client_id, None)
        if self._session(client_id) is not None:
            self.close(client_id)
            self._clients.delete(client_id, is_moved=is_moved)

    # from the directory: on the way to another node

    def is_quiet(self, client_id: str) -> bool:
        """Whether no publish of the client is just becoming an entry of an outbox."""
        session = self._session(client_id)
        return session is None or all(flow.entry is None for flow in _untaken(session))

    def freeze(self, client_id: str) -> bytes | None:
        """Close the connection, stop the session, give all of its state."""
        session = self._session(client_id)
        if session is None:
            return None
        # A session whose client is away takes nothing: it stands still.
        self.close(client_id)
        self._edge.publisher.withdraw(session)
        # What becomes of one from here on, whoever gets this state does not know.
        self._given[client_id] = {
            flow.origin: flow for flow in _untaken(session) if flow.origin is not None
        }
        return encode_move(session)

    def thaw(self, client_id: str) -> None:
        """It goes on when its client is here."""
        self._given.pop(client_id, None)

    def release(self, client_id: str, token: bytes) -> None:
        """It is another node's now; its places are kept until that has had them confirmed."""
        flows = self._given.pop(client_id, {})
        session = self._session(client_id)
        if session is not None:
            self._left.leave(client_id, flows)
            places = self._left_places.leave(client_id, token, session.needs())
            self._edge.low_water.lower(places)
            self.discard(client_id, is_moved=True)

    def remains(self, client_id: str) -> PendingPublishes:
        """What is still to be done here for a session that was here."""
        return PendingPublishes(
            zones=tuple(self._open_zones(client_id)),
            taken=tuple(PublishOrigin.of(origin) for origin in self._left.taken(client_id)),
        )

    def resolved(self, client_id: str, token: bytes) -> None:
        """Its new node knows what became of every publish, and has its places confirmed."""
        self._left.forget(client_id)
        self._left_places.forget(token)

    def moves(self) -> Iterable[tuple[bytes, str]]:
        """The moves from here that are not resolved: token and client id."""
        return self._left_places.moves()

    @property
    def left(self) -> int:
        """Moves from here of which something is kept: places in journals, or publishes."""
        return len(self._left_places) + len(self._left)

    def places(self) -> Iterator[LogPosition]:
        """What sessions needed that left, and that their new nodes have not had confirmed."""
        return self._left_places.places()

    def keys(self) -> Iterator[MarkKey]:
        """The streams that owners may still be asked about."""
        return self._left.keys()

    # from the directory: on the way here

    def adopt(self, client_id: str, state: bytes, incarnation: int, away: float = 0.0) -> None:
        """Take over a session that was frozen elsewhere, or take it in."""
        moved = self._clients.new_session(client_id)
        window = decode_move(state, moved)
        for flow in window.publishes:
            flow.is_in_doubt = not flow.taken
        known = self._session(client_id)
        if known is None:
            moved.incarnation = incarnation
            moved.restore(window.flows, window.held, window.publishes, window.last_id)
            self._edge.passages.follow(moved)
            self._clients.adopt(moved, moved.subscriptions, away=away)
        else:
            known.incarnation = max(known.incarnation, incarnation)
            added = moved.subscriptions.keys() - known.subscriptions.keys()
            waiting = [*(entry for _, entry in window.flows), *window.held]
            confirmed = take_in(known, moved, waiting)
            known.receiver.take_in(window.publishes)
            self._clients.adopt(known, added, confirmed)
        session = self._clients.sessions[client_id]
        self._edge.low_water.lower(session.needs())

    def await_remains(self, client_id: str, node: str, remains: PendingPublishes) -> None:
        """What the earlier node has still to do goes first."""
        session = self._session(client_id)
        if session is not None and remains.taken:
            taken = {sent_as.origin for sent_as in remains.taken}
            for flow in _untaken(session):
                if flow.origin in taken:
                    flow.is_in_doubt = False
                    session.receiver.on_taken(flow)
            # The earlier node may forget it once it is told that nobody has to ask.
            self._edge.keeper.save_soon()
        self._successions.set(client_id, node, remains)

    def is_resolved(self, client_id: str, node: str) -> bool:
        """
        Whether nobody here has to ask what became of a publish that `node` sent, and the owners
        keep for this node what the session waits for.
        """
        # An outbox asks before it sends what was sent there before, whosever that is.
        keys = self._edge.outboxes.keys()
        if any(edge == node for edge, *_ in keys):
            return False
        session = self._session(client_id)
        if session is None:
            return True
        is_open = any(_is_from(flow, node) for flow in _untaken(session))
        return not is_open and self._edge.low_water.is_kept(session.needs())

    # from the directory: wills

    def publish_will(
        self, client_id: str, node: str, testament: DirectoryWill, sent: Callable[[], None]
    ) -> None:
        """Publish the will of a client of `node`."""
        which = will_id(client_id, node, testament)
        self._clients.publish_will(client_id, testament.will, which, sent)

    def forget_will(self, client_id: str) -> None:
        """Another node has published the will of the client that is here."""
        session = self._clients.sessions.get(client_id)
        if session is not None:
            session.will = None

    # internal

    def _session(self, client_id: str) -> Session | None:
        session = self._clients.sessions.get(client_id)
        return None if session is None or session.clean else session

    def _open_zones(self, client_id: str) -> Iterable[str]:
        found = dict.fromkeys(self._edge.publisher.zones_of(client_id))
        found.update(dict.fromkeys(self._edge.outboxes.zones_of(client_id)))
        return found


def _untaken(session: Session) -> Iterator[InboundPublish]:
    return (flow for flow in session.open_publishes() if not flow.taken)


def _is_from(flow: InboundPublish, node: str) -> bool:
    return flow.origin is not None and flow.origin[0][0] == node
