"""
CONNECT: from the packet to the session, wherever that is.

Theory of operation. A client's session may be at any node, so it is found and brought here first.
The steps are those of `SessionConnect._open`, in this order:

1. An earlier connection of the client that waits for CONNACK ends [MQTT-3.1.4-2].
2. The node must have room, and a session that no CONNECT can resume ends.
3. The session is found. A clean session ends all sessions elsewhere. A kept session moves here,
   unless it is here. A node without other members asks nobody for a clean session.
4. The session is opened, in the turn in which it was found: else another node could take it.
5. A kept session, or the end of one, is made durable.
6. The keepers hear of a clean session that had others to end.

Then the caller sends CONNACK. Between any two steps the client may leave, or connect again.

Publishes that the session's earlier node has still to send go first (protocol rule 18). So a
publish to such a zone waits, too (`PublishBarrier`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from txbroker.directory.directory import Directory
from txbroker.directory.directory_ports import PendingPublishes
from txbroker.directory.effects import AwaitDurable
from txbroker.directory.session_takeover import SessionFound, TakeoverRefused
from txbroker.edge.sessions.client_sessions import ClientSessions
from txbroker.edge.sessions.connect_procedure import (
    Announce,
    ConnectingClient,
    ConnectProcedure,
    LookUp,
    OpenedSession,
    end_superseded,
)
from txbroker.edge.sessions.connect_runner import ConnectRunner
from txbroker.model.topics import is_within
from txbroker.mqtt.wire.packets import LEVEL_5, Connect
from txbroker.mqtt.wire.properties import NO_PROPERTIES
from txbroker.mqtt.wire.reason_codes import ReasonCode

IN_STORE: Final = AwaitDurable()
"""The step that each kept session has to wait for."""

GIVES_UP: Final = 1.0
"""
Seconds after which a client that sends no more counts as gone.

A client may send all its packets behind CONNECT and close the connection: these packets count.
"""


@attrs.frozen
class ConnectRefused:
    """
    No session can be had; `reason` is one line, which the client is told.

    `code` is what CONNACK says at level 5.
    """

    reason: str
    code: ReasonCode = ReasonCode.SERVER_UNAVAILABLE


class SessionConnect:
    """The connecting clients of one node; `runner` runs their procedures."""

    def __init__(
        self, clients: ClientSessions, directory: Directory, runner: ConnectRunner
    ) -> None:
        self.runner = runner
        self._clients = clients
        self._directory = directory
        self._looked_up: dict[str, ConnectingClient] = {}

    def connect(
        self, packet: Connect, client: ConnectingClient
    ) -> ConnectProcedure[OpenedSession | ConnectRefused | None]:
        """
        Find or make the client's session, for CONNACK and `ClientSessions.attach`.

        Returns None if the client is gone, or has connected again: its session is not attached.
        """
        if packet.protocol_level >= LEVEL_5 and packet.clean_session and packet.expiry != 0:
            return self._begin_anew(packet, client)
        return self._open(packet, client)

    # internal

    def _open(
        self, packet: Connect, client: ConnectingClient
    ) -> ConnectProcedure[OpenedSession | ConnectRefused | None]:
        """The steps of the module."""
        clients, directory = self._clients, self._directory
        client_id, is_clean = packet.client_id, packet.clean_session
        if client_id in self._looked_up:
            end_superseded(self._looked_up.pop(client_id))
        if why_full := clients.why_full(packet):
            return ConnectRefused(why_full, ReasonCode.QUOTA_EXCEEDED)
        clients.make_way(client_id)
        if not is_clean and packet.expiry == 0 and self._has_nothing_to_keep(client_id):
            packet, is_clean = attrs.evolve(packet, clean_session=True), True
        until: float | None = None
        try:
            if is_clean and directory.clearings.is_needed(client_id):
                until = yield from self._end_elsewhere(client_id, client)
                if until is None:
                    return None
            elif not is_clean and not directory.is_here(client_id):
                found = yield from self._bring(client_id, client)
                if not isinstance(found, SessionFound):
                    return found
            opened = clients.open(packet, client)
            if not opened.is_durable:
                yield IN_STORE
                if not clients.confirm(opened, packet):
                    return None
            if until is not None:
                is_open = _is_open(client)
                yield Announce(procedure=directory.clearings.announce(client_id, until, is_open))
        finally:
            if self._looked_up.get(client_id) is client:
                del self._looked_up[client_id]
        if not client.is_open:
            clients.miss(opened.session)
            return None
        return opened

    def _begin_anew(
        self, packet: Connect, client: ConnectingClient
    ) -> ConnectProcedure[OpenedSession | ConnectRefused | None]:
        """
        Discard the client's session wherever it is, then begin a kept one.

        The discard is that of a clean session which ends at once: there is no second way.
        """
        first = attrs.evolve(packet, will=None, properties=NO_PROPERTIES)
        discarded = yield from self._open(first, client)
        if not isinstance(discarded, OpenedSession):
            return discarded
        self._clients.miss(discarded.session)
        return (yield from self._open(attrs.evolve(packet, clean_session=False), client))

    def _has_nothing_to_keep(self, client_id: str) -> bool:
        """True if a session that ends with its connection has no other to go on from."""
        return self._directory.members.is_only and client_id not in self._clients.sessions

    def _end_elsewhere(
        self, client_id: str, client: ConnectingClient
    ) -> ConnectProcedure[float | None]:
        """
        End the client's sessions at other nodes; return until when to announce the clean one.

        None: the client is gone, or has connected elsewhere since.
        """
        self._looked_up[client_id] = client
        clearings, is_open = self._directory.clearings, _is_open(client)
        until: float | None = yield LookUp(
            make=lambda: clearings.clear(client_id, is_open), client=client, is_clean=True
        )
        if until is None:
            end_superseded(client)
        return until if client.is_open else None

    def _bring(
        self, client_id: str, client: ConnectingClient
    ) -> ConnectProcedure[SessionFound | ConnectRefused | None]:
        """Bring the client's kept session here, or let one begin here; None: the client is gone."""
        self._looked_up[client_id] = client
        directory, is_wanted = self._directory, _is_there(client, self.runner.now)
        found: SessionFound | TakeoverRefused = yield LookUp(
            make=lambda: directory.take_over(client_id, is_wanted), client=client, is_clean=False
        )
        if not client.is_open:
            if isinstance(found, SessionFound) and not found.present:
                directory.connected.ended(client_id)  # no client was told of the session
            return None
        return found if isinstance(found, SessionFound) else ConnectRefused(found.reason)


def _is_open(client: ConnectingClient) -> Callable[[], bool]:
    return lambda: client.is_open


def _is_there(client: ConnectingClient, now: Callable[[], float]) -> Callable[[], bool]:
    """
    Look at the connection, too, from `GIVES_UP` on: nothing is read from it before CONNACK.

    The client may have a clean session elsewhere since. A session that begins now would outlive it.
    """
    until = now() + GIVES_UP
    return lambda: client.is_open and (now() < until or not client.drop_if_gone())


class PublishBarrier:
    """
    Holds publishes back until earlier nodes of the session have finished theirs.

    `held` has the clients of whose publishes any may have to wait.
    """

    def __init__(self) -> None:
        self.held: dict[str, dict[str, tuple[str, ...]]] = {}
        self._waiting: dict[str, Callable[[], None]] = {}

    def set(self, client_id: str, node: str, pending_publishes: PendingPublishes) -> None:
        """
        Note that the node has still to publish to these zones; run the waiting action if none are
        left.
        """
        nodes = self.held.setdefault(client_id, {})
        nodes[node] = pending_publishes.zones
        if not pending_publishes.zones:
            del nodes[node]
        if not nodes:
            del self.held[client_id]
            action = self._waiting.pop(client_id, None)
            if action is not None:
                action()

    def end(self, client_id: str) -> None:
        """Hold nothing back any more: the session is here no more."""
        self.held.pop(client_id, None)

    def must_wait(self, client_id: str, topic: str) -> bool:
        """True if a publish of the client to this topic would overtake an earlier publish."""
        nodes = self.held.get(client_id)
        return nodes is not None and any(
            is_within(topic, zone) for zones in nodes.values() for zone in zones
        )

    def when_done(self, client_id: str, action: Callable[[], None]) -> None:
        """Run `action` when the earlier nodes have no publishes left."""
        self._waiting[client_id] = action

    def forget(self, client_id: str) -> None:
        """Drop the waiting action: its connection is gone."""
        self._waiting.pop(client_id, None)
