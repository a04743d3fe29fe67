"""
The wills of clients' connections: which is due when a connection ends, and on its way to its zone.

A will belongs to its connection, and to the session while its delay runs (`DelayedWills`). The
client directory has to know of it until its owner has accepted it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from txbroker.directory.client_wills import will_id
from txbroker.directory.entry import DirectoryWill
from txbroker.edge.routing.publication import Publication
from txbroker.edge.routing.publisher import Publisher
from txbroker.edge.sessions.delayed_wills import DelayedWills
from txbroker.model.timers import Timers
from txbroker.model.topics import is_sys
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.message import Message, WillId
from txbroker.mqtt.wire.packets import Will

WILLS = 10_000
"""Wills of disconnected clients that may wait for owners; see `ClientSessions.why_full`."""


class ClientPresence(Protocol):
    """Port to the client directory, which has to know the clients that are connected here."""

    def has_room(self, will: Will) -> bool:
        """True if a client with this will may connect."""

    def connected(self, client_id: str, *, clean: bool, will: Will | None) -> DirectoryWill | None:
        """
        Note that the client has its session, clean or kept; return its will as it is to be
        published.
        """

    def disconnected(self, client_id: str, *, is_will_due: bool) -> DirectoryWill | None:
        """Note that the connection is gone; return the will that is to be published now."""

    def will_is_sent(self, client_id: str, directory_will: DirectoryWill) -> None:
        """Note that the will is published."""

    def ended(self, client_id: str) -> None:
        """Note that a session ended."""


class ConnectionWills:
    """
    The wills of the clients of the edge `node`; `delayed` are those whose delay runs.

    `lifetime` returns the seconds that a session outlives its connection.
    """

    def __init__(
        self,
        node: str,
        publisher: Publisher,
        timers: Timers,
        lifetime: Callable[[Session], float],
    ) -> None:
        self.delayed = DelayedWills(timers)
        self._node = node
        self._publisher = publisher
        self._lifetime = lifetime
        self._waiting = 0
        self._presence: ClientPresence | None = None

    def wire(self, presence: ClientPresence) -> None:
        """Set the directory to notify when clients come and go."""
        self._presence = presence

    def has_room(self, topic: str) -> bool:
        """True if one more will of this topic may have to wait for its zone."""
        # No connection is left whose reads could be paused. Clients that connect and vanish would
        # fill the memory.
        publisher = self._publisher
        is_full = publisher.is_full or self._waiting >= WILLS
        return not (is_full and publisher.waits_for(topic))

    def on_disconnect(self, session: Session, *, is_will_due: bool) -> None:
        """Drop the will of a connection that is gone; publish it first if it is due."""
        client_id = session.client_id
        will, session.will = session.will, None
        directory_will = None
        if self._presence is not None:
            directory_will = self._presence.disconnected(client_id, is_will_due=is_will_due)
        if is_will_due and will is not None:
            self._waiting += 1
            publish = partial(self._publish_own, client_id, will, directory_will)
            delay = 0.0 if session.clean else min(will.delay, self._lifetime(session))
            if delay:
                cancelled = partial(self._on_sent, client_id, directory_will)
                self.delayed.begin(client_id, delay, publish, cancelled)
            else:
                publish()

    def publish(
        self, client_id: str, will: Will, which: WillId | None, sent: Callable[[], None]
    ) -> None:
        """
        Publish a will; call `sent` when its owner has accepted it, or at QoS 0 when the packet has
        left.
        """
        message = Message(
            will.topic,
            will.payload,
            will.qos,
            will.retain,
            client_id,
            which,
            properties=will.properties,
        )
        if is_sys(will.topic):
            sent()
        elif will.qos:
            self._publisher.publish(Publication(message, done=sent))
        else:
            self._publisher.publish(Publication(message))
            sent()

    def _publish_own(
        self, client_id: str, will: Will, directory_will: DirectoryWill | None
    ) -> None:
        which = None if directory_will is None else will_id(client_id, self._node, directory_will)
        self.publish(client_id, will, which, partial(self._on_sent, client_id, directory_will))

    def _on_sent(self, client_id: str, directory_will: DirectoryWill | None) -> None:
        self._waiting -= 1
        if self._presence is not None and directory_will is not None:
            self._presence.will_is_sent(client_id, directory_will)
