"""
The sessions of an edge as the client directory moves them (its `SessionHost`).

A move carries subscriptions, open flows and cursors, not messages: those are read again from the
zones' journals, at the new node as at the old one. Where the new node has a session of that id
already (`roaming: fresh`, or one begun while a site was away), it takes in the other's: what the
other had not delivered yet is read again, from the lowest of its places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from txbroker.directory.entry import Testament
from txbroker.directory.ports import Remains
from txbroker.edge.clients import Clients
from txbroker.edge.roaming import Successions
from txbroker.edge.route import Publication, Route
from txbroker.edge.stored import decode_move, encode_move
from txbroker.edge.zonemap import ZoneMap
from txbroker.mqtt.session import Outgoing, Session

TAKEN_OVER = "client id taken over"


class Moving:
    """See the module's text."""

    def __init__(self, clients: Clients, zones: ZoneMap, successions: Successions) -> None:
        self._clients = clients
        self._zones = zones
        self._successions = successions

    def is_kept(self, client_id: str) -> bool:
        """Whether there is a session with clean session 0."""
        return self._kept(client_id) is not None

    def freeze(self, client_id: str) -> bytes | None:
        """Close the connection, stop the session, give all of its state."""
        session = self._kept(client_id)
        if session is None:
            return None
        # A session whose client is away takes nothing: it stands still.
        self.close(client_id)
        return encode_move(session)

    def thaw(self, client_id: str) -> None:
        """Nothing to do: it goes on when its client is here."""

    def adopt(self, client_id: str, state: bytes, incarnation: int) -> None:
        """Take over a session that was frozen elsewhere, or take it in."""
        moved = self._clients.new_session(client_id)
        window = decode_move(state, moved)
        known = self._kept(client_id)
        if known is None:
            moved.incarnation = incarnation
            moved.restore(window.flows, window.queue, window.publishes, window.last_id)
            self._clients.adopt(moved, moved.subscriptions)
        else:
            known.incarnation = max(known.incarnation, incarnation)
            added = moved.subscriptions.keys() - known.subscriptions.keys()
            _take_in(known, moved, [*(entry for _, entry in window.flows), *window.queue])
            self._clients.adopt(known, added)

    def discard(self, client_id: str) -> None:
        """Forget the session, and close its connection."""
        if self._kept(client_id) is not None:
            self.close(client_id)
            self._clients.delete(client_id)

    def close(self, client_id: str) -> None:
        """Close the client's connection, if there is one."""
        session = self._clients.sessions.get(client_id)
        if session is not None and session.sink is not None:
            session.sink.close(TAKEN_OVER)

    def remains(self, client_id: str) -> Remains:
        """What is still to be done here for a session that was here."""
        return Remains(
            zones=tuple(
                route.apex
                for route in self._zones
                if any(_is_of(publication, client_id) for publication in _open(route))
            )
        )

    def await_remains(self, client_id: str, node: str, remains: Remains) -> None:
        """What the earlier node has still to do goes first."""
        self._successions.set(client_id, node, remains)

    def publish_will(
        self, client_id: str, node: str, testament: Testament, sent: Callable[[], None]
    ) -> None:
        """Publish the will of a client of `node`."""
        self._clients.publish_will(client_id, testament.will)
        sent()

    def _kept(self, client_id: str) -> Session | None:
        session = self._clients.sessions.get(client_id)
        return None if session is None or session.clean else session


def _open(route: Route) -> Iterator[Publication]:
    """The publishes that its owner has not answered."""
    yield from route.waiting
    yield from route.sent
    for doubt in route.doubts:
        yield from doubt.publications


def _is_of(publication: Publication, client_id: str) -> bool:
    return publication.message.qos > 0 and publication.message.client_id == client_id


def _take_in(known: Session, other: Session, flows: list[Outgoing]) -> None:
    """
    Give a session the subscriptions and the backlog of another one of the same client.

    What `known` has taken of a zone already is not its a second time, unless `other` subscribed to
    the same filter: then it is, rather than that something is missing.
    """
    for part, cursor in other.behind.items():
        mine = known.behind.get(part)
        reached = known.taken.get(part, 0) if mine is None else mine.offset
        for topic_filter, subscription in known.subscriptions.items():
            if topic_filter not in other.subscriptions:
                start = subscription.starts.get(part, 0)
                subscription.starts[part] = max(start, reached)
        if mine is None:
            known.behind[part] = cursor
        else:
            mine.offset = min(mine.offset, cursor.offset)
    for topic_filter, subscription in other.subscriptions.items():
        mine_too = known.subscriptions.get(topic_filter)
        if mine_too is None:
            known.subscriptions[topic_filter] = subscription
        else:
            mine_too.qos = max(mine_too.qos, subscription.qos)
            for part, start in mine_too.starts.items():
                mine_too.starts[part] = min(start, subscription.starts.get(part, 0))
    for entry in flows:
        if entry.place is not None and not entry.released:
            known.fall_behind(entry.place)
        elif entry.message is not None:
            known.deliver(entry.message, entry.qos, None, retain=entry.retain)
    known.on_subscriptions_changed()
