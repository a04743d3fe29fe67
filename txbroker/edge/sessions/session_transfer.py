"""
The sessions of an edge as the client directory moves them (its `SessionHost`).

A move carries subscriptions, open flows and cursors, but no messages. The new node reads messages
again from the zones' journals. At the old node a session is kept, frozen (`freeze`, undone by
`thaw`), released (`release`), then resolved (`resolved`).

The client sends its unacknowledged publishes again, at the new node. The old node finishes
publishes that are in flight to an owner or in an outbox. Their outcome is reported to the new node.
A QoS 2 publish moves with the origin id with which it was sent. The old node names the id's stream
in its Hello until the new node has asked. So the owner does not forget the stream's mark (protocol
rules 2 and 16).

The new node may have a session of that id already (`roaming: fresh`, or a session begun while a
site was away). Then that session takes in the moved one (see `session_merge`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.directory.client_wills import will_id
from txbroker.directory.directory_ports import DurableTable, PendingPublishes, PublishOrigin
from txbroker.directory.entry import DirectoryWill
from txbroker.edge.sessions.edge import Edge
from txbroker.edge.sessions.session_connect import PublishBarrier
from txbroker.edge.sessions.session_format import decode_move, encode_move
from txbroker.edge.sessions.session_merge import merge_into
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
    See the module's text.

    `left` is the table for publishes of sessions that left, `left_places` for the journal records
    that they needed.
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
        edge.session_store.wire(lambda session: self._left.mark_changed(session.client_id))

    # from the node

    def load(self, is_in_outbox: Callable[[OriginId], bool]) -> None:
        """Load after a start, before anything is sent; see `TransferredPublishes`."""
        self._left.load(is_in_outbox)

    # from the directory: here

    def clean(self) -> list[str]:
        """Return the ids of the clean sessions that are here."""
        return [client_id for client_id, s in self._clients.sessions.items() if s.clean]

    def may_keep(self, client_id: str, beside: int) -> bool:
        """True if the session is here, or there is room for it beside so many that arrive."""
        return self._clients.may_keep(client_id, beside)

    def is_kept(self, client_id: str) -> bool:
        """True if there is a session with clean session 0."""
        return self._session(client_id) is not None

    def idle(self, client_id: str) -> float:
        """Return the seconds for which the client of a kept session has been away."""
        session = self._session(client_id)
        return 0.0 if session is None else self._clients.seconds_away(session)

    def close(self, client_id: str) -> None:
        """Close the client's connection, and one that waits to be accepted."""
        self._clients.close(client_id)

    def discard(self, client_id: str, *, is_moved: bool) -> None:
        """Discard the session, and close its connection; `is_moved`: another node has it."""
        self._given.pop(client_id, None)
        if self._session(client_id) is not None:
            self.close(client_id)
            self._clients.delete(client_id, is_moved=is_moved)

    # from the directory: on the way to another node

    def is_quiet(self, client_id: str) -> bool:
        """True if no publish of the client is about to become an outbox entry."""
        session = self._session(client_id)
        return session is None or all(flow.entry is None for flow in _untaken(session))

    def freeze(self, client_id: str) -> bytes | None:
        """Close the connection, stop the session, and return its whole state."""
        self._clients.expire(client_id)
        session = self._session(client_id)
        if session is None:
            return None
        # A session whose client is away accepts no packet, so its state stays as returned.
        self.close(client_id)
        if session.is_over:
            return None  # it ended with its connection
        self._edge.publisher.withdraw(session)
        # The node that gets this state does not hear how these publishes end, so this node notes
        # it.
        self._given[client_id] = {
            flow.origin: flow for flow in _untaken(session) if flow.origin is not None
        }
        return encode_move(session)

    def thaw(self, client_id: str) -> None:
        """Resume the session when its client connects: the move was cancelled."""
        self._given.pop(client_id, None)

    def release(self, client_id: str, token: bytes) -> None:
        """
        Hand the session over; its cursors stay needed until the owners confirm the new node's
        marks.
        """
        flows = self._given.pop(client_id, {})
        session = self._session(client_id)
        if session is not None:
            self._left.store(client_id, flows)
            places = self._left_places.store(client_id, token, session.needs())
            self._edge.low_water.lower(places)
            self.discard(client_id, is_moved=True)

    def pending_publishes(self, client_id: str) -> PendingPublishes:
        """
        Return the publishes of a session that left which this node has still to finish, or has
        finished.
        """
        return PendingPublishes(
            zones=tuple(self._open_zones(client_id)),
            taken=tuple(PublishOrigin.of(origin) for origin in self._left.accepted_ids(client_id)),
        )

    def resolved(self, client_id: str, token: bytes) -> None:
        """Forget a move: the new node knows each publish's end, and has its marks confirmed."""
        self._left.forget(client_id)
        self._left_places.forget(token)

    def moves(self) -> Iterable[tuple[bytes, str]]:
        """Return token and client id of each move from here that is not resolved."""
        return self._left_places.moves()

    @property
    def unfinished_count(self) -> int:
        """Number of moves from here of which cursors or publishes are still stored."""
        return len(self._left_places) + len(self._left)

    def places(self) -> Iterator[LogPosition]:
        """
        Return the positions that sessions which left needed, and new nodes have not had confirmed.

        The topics of a part may have gone on in another part since. The new node may not know that.
        """
        return self._edge.transitions.reached_from(self._left_places.places())

    def keys(self) -> Iterator[MarkKey]:
        """Return the streams that owners may still be asked about."""
        return self._left.keys()

    # from the directory: on the way here

    def adopt(self, client_id: str, state: bytes, incarnation: int, away: float = 0.0) -> None:
        """Take over a session that was frozen at another node, or merge it into the one here."""
        moved = self._clients.new_session(client_id)
        window = decode_move(state, moved)
        for flow in window.publishes:
            flow.is_in_doubt = not flow.taken
        known = self._session(client_id)
        if known is None:
            moved.incarnation = incarnation
            moved.restore(window.flows, window.held, window.publishes, window.last_id)
            self._edge.transitions.follow(moved)
            _read_set_aside(moved)
            self._clients.adopt(moved, moved.subscriptions, away=away)
        else:
            known.incarnation = max(known.incarnation, incarnation)
            # The session here went through transitions of which the other one's node had not heard.
            # Merged behind these, it would skip what the zone has taken since.
            self._edge.transitions.follow(moved)
            moved.is_over = True  # otherwise its rows could be written over those of the session
            for session in (known, moved):
                _read_set_aside(session)
            added = moved.subscriptions.keys() - known.subscriptions.keys()
            waiting = [*(entry for _, entry in window.flows), *window.held]
            confirmed = merge_into(known, moved, waiting)
            known.receiver.merge_flows(window.publishes)
            self._clients.adopt(known, added, confirmed)
        session = self._clients.sessions[client_id]
        self._edge.low_water.lower(session.needs())

    def await_remains(self, client_id: str, node: str, pending_publishes: PendingPublishes) -> None:
        """Apply the earlier node's report: its pending publishes go first."""
        session = self._session(client_id)
        if session is not None and pending_publishes.taken:
            taken = {sent_as.origin for sent_as in pending_publishes.taken}
            for flow in _untaken(session):
                if flow.origin in taken:
                    flow.is_in_doubt = False
                    session.receiver.on_accepted(flow)
            # The report is saved first: the earlier node may discard it once this node asks no
            # more.
            self._edge.session_store.save_soon()
        self._successions.set(client_id, node, pending_publishes)

    def forget_remains(self, client_id: str) -> None:
        """Hold back no publish for an earlier node: the session is here no more."""
        self._successions.end(client_id)

    def is_resolved(self, client_id: str, node: str) -> bool:
        """
        True if the earlier node may forget the move.

        Then no publish that `node` sent is in doubt here, and the owners keep the session's records
        for this node.
        """
        # An outbox entry of any session may carry an origin of that node. The outbox asks the owner
        # about such an entry before it sends.
        keys = self._edge.outboxes.keys()
        if any(edge == node for edge, *_ in keys):
            return False
        session = self._session(client_id)
        if session is None:
            return True
        is_open = any(_is_from(flow, node) for flow in _untaken(session))
        # A zone that has not answered may have a part of which only the earlier node has a place.
        is_open = is_open or self._edge.interests.awaits_places(session)
        return not is_open and self._edge.low_water.is_kept(session.needs())

    # from the directory: wills

    def publish_will(
        self, client_id: str, node: str, directory_will: DirectoryWill, sent: Callable[[], None]
    ) -> None:
        """Publish the will of a client of `node`."""
        which = will_id(client_id, node, directory_will)
        self._clients.wills.publish(client_id, directory_will.will, which, sent)

    def forget_will(self, client_id: str) -> None:
        """Drop the will of a client that is connected here: another node has published it."""
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


def _read_set_aside(session: Session) -> None:
    """
    Begin cursors in the parts that the session has set aside: they may be readable here.

    Live deliveries would pass the records in between, and come again with these later.
    """
    for part in tuple(session.cut_off):
        session.places.resume(part, is_kept=True)


def _untaken(session: Session) -> Iterator[InboundPublish]:
    return (flow for flow in session.open_publishes() if not flow.taken)


def _is_from(flow: InboundPublish, node: str) -> bool:
    return flow.origin is not None and flow.origin[0][0] == node
