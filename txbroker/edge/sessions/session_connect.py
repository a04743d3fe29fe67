"""
Clients that roam: CONNECT finds the client's session at any node, and brings the session here.

A kept session that is here is served at once. So is a clean session if this node is alone. For all
others the directory's procedure runs first: the session moves here, or ends at its node. The
connection waits, unread. Then the procedure accepts or refuses the attempt, or the attempt ends
with its connection.

Publishes that the session's earlier node has still to send go first (protocol rule 18). So a
publish to such a zone waits, too (`PublishBarrier`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import attrs

from txbroker.directory.directory import Directory
from txbroker.directory.directory_ports import PendingPublishes
from txbroker.directory.effects import Procedure
from txbroker.directory.session_takeover import SessionFound, TakeoverRefused
from txbroker.edge.sessions.client_sessions import TAKEN_OVER, ClientSessions
from txbroker.edge.sessions.connect_throttle import ConnectThrottle, ProcedureRunner
from txbroker.model.timers import Timers
from txbroker.model.topics import is_within
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.packets import Connect
from txbroker.mqtt.wire.properties import NO_PROPERTIES

T = TypeVar("T")


@attrs.define(slots=True, eq=False)
class ConnectAttempt:
    """
    A CONNECT from `host` whose session is looked up.

    `is_wanted` until its connection is gone; `drop_if_gone` checks the connection.
    """

    packet: Connect
    accept: Callable[[Session, bool], None]
    refuse: Callable[[str, bool], None]
    drop_if_gone: Callable[[], object]
    host: Callable[[], str]
    is_wanted: bool = True


class SessionConnect:
    """The connecting clients of one node."""

    def __init__(
        self, clients: ClientSessions, directory: Directory, runner: ProcedureRunner, timers: Timers
    ) -> None:
        self._clients = clients
        self._directory = directory
        self._runner = runner
        self._doorway = ConnectThrottle(runner, timers)
        self._attempts: dict[str, ConnectAttempt] = {}

    def connect(
        self,
        packet: Connect,
        accept: Callable[[Session, bool], None],
        refuse: Callable[[str, bool], None],
        drop_if_gone: Callable[[], object] = lambda: None,
        host: Callable[[], str] = lambda: "",
    ) -> ConnectAttempt | None:
        """
        Find or make the session; `accept` gets it and CONNACK's session present (see
        `ClientSessions`).

        `refuse` gets the reason in one line, and whether to notify the client. The client is not
        notified if its id was taken over meanwhile. For a session that has to be looked up, the
        attempt is returned. The caller ends the attempt when the client is gone. If many attempts
        wait, `drop_if_gone` is called to check the connection, and attempts from another `host` go
        first.
        """
        client_id = packet.client_id
        earlier = self._attempts.pop(client_id, None)
        if earlier is not None and earlier.is_wanted:
            earlier.is_wanted = False
            earlier.refuse(TAKEN_OVER, False)  # [MQTT-3.1.4-2]
        if why_full := self._clients.why_full(packet):
            refuse(why_full, True)
            return None
        directory = self._directory
        self._clients.make_way(client_id)
        is_clean = packet.clean_session
        if is_clean and packet.expiry != 0:
            return self._begin_anew(packet, accept, refuse, drop_if_gone, host)
        if not is_clean and directory.members.is_only and self._has_nothing_to_keep(packet):
            packet = attrs.evolve(packet, clean_session=True)
            is_clean = True
        if is_clean and directory.clearings.is_needed(client_id):
            return self._clear(ConnectAttempt(packet, accept, refuse, drop_if_gone, host))
        if is_clean or directory.is_here(client_id):
            self._clients.connect(packet, accept, refuse)
            return None
        attempt = ConnectAttempt(packet, accept, refuse, drop_if_gone, host)
        return self._run(
            attempt,
            lambda: directory.take_over(client_id, lambda: attempt.is_wanted),
            lambda outcome: self._found(attempt, outcome),
        )

    def _has_nothing_to_keep(self, packet: Connect) -> bool:
        """True if no session is here, and the new one ends with its connection."""
        return packet.expiry == 0 and packet.client_id not in self._clients.sessions

    def _begin_anew(
        self,
        packet: Connect,
        accept: Callable[[Session, bool], None],
        refuse: Callable[[str, bool], None],
        drop_if_gone: Callable[[], object],
        host: Callable[[], str],
    ) -> ConnectAttempt | None:
        """
        Discard the client's session wherever it is, then begin a kept one.

        The discard is that of a clean session which ends at once: there is no second way.
        """
        kept = attrs.evolve(packet, clean_session=False)
        first = attrs.evolve(packet, will=None, properties=NO_PROPERTIES)
        second: list[ConnectAttempt | None] = []

        def discarded(session: Session, _: bool) -> None:
            self._clients.miss(session)
            second.append(self.connect(kept, accept, refuse, drop_if_gone, host))

        attempt = self.connect(first, discarded, refuse, drop_if_gone, host)
        return second[0] if second else attempt

    def _clear(self, attempt: ConnectAttempt) -> ConnectAttempt:
        """
        End the sessions elsewhere, announce the clean session to the keepers, then send CONNACK.
        """
        client_id, clearings = attempt.packet.client_id, self._directory.clearings
        return self._run(
            attempt,
            lambda: clearings.clear(client_id, lambda: attempt.is_wanted),
            lambda until: self._cleared(attempt, until),
        )

    def _run(
        self,
        attempt: ConnectAttempt,
        make: Callable[[], Procedure[T]],
        finished: Callable[[T], object],
    ) -> ConnectAttempt:
        """Run the procedure when the attempt has its turn."""
        packet = attempt.packet
        self._attempts[packet.client_id] = attempt
        self._doorway.admit(
            make,
            finished,
            lambda: self._is_wanted(attempt),
            attempt.drop_if_gone,
            # The first CONNECT of a kept session takes longest. Clean sessions have a source of
            # their own, so that none waits for it.
            source=(attempt.host(), packet.clean_session),
        )
        return attempt

    def _is_wanted(self, attempt: ConnectAttempt) -> bool:
        """True if the connection still waits; ends the attempt otherwise."""
        if not attempt.is_wanted:
            self._end(attempt)
        return attempt.is_wanted

    def _cleared(self, attempt: ConnectAttempt, until: float | None) -> None:
        if not attempt.is_wanted:
            self._end(attempt)
        elif until is None:
            self._refuse(attempt, TAKEN_OVER, False)
        else:
            accept = partial(self._announce, attempt, until)
            self._clients.connect(attempt.packet, accept, partial(self._refuse, attempt))

    def _announce(
        self, attempt: ConnectAttempt, until: float, session: Session, present: bool
    ) -> None:
        def announced(_: None) -> None:
            self._end(attempt)
            attempt.accept(session, present)

        clearings = self._directory.clearings
        procedure = clearings.announce(attempt.packet.client_id, until, lambda: attempt.is_wanted)
        self._runner.run(procedure, announced)

    def _refuse(self, attempt: ConnectAttempt, reason: str, is_said: bool) -> None:
        self._end(attempt)
        attempt.refuse(reason, is_said)

    def _end(self, attempt: ConnectAttempt) -> None:
        client_id = attempt.packet.client_id
        if self._attempts.get(client_id) is attempt:
            del self._attempts[client_id]

    def _found(self, attempt: ConnectAttempt, outcome: SessionFound | TakeoverRefused) -> None:
        client_id = attempt.packet.client_id
        self._end(attempt)
        if not attempt.is_wanted:
            if isinstance(outcome, SessionFound) and not outcome.present:
                self._directory.connected.ended(client_id)  # no client was told of the session
        elif isinstance(outcome, TakeoverRefused):
            attempt.refuse(outcome.reason, True)
        else:
            self._clients.connect(attempt.packet, attempt.accept, attempt.refuse)


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
