"""
SHELL: the life of a client's connection: how it begins, its deadlines, and how it ends.

What a client says meanwhile is `protocol`'s.
"""

from __future__ import annotations

from collections.abc import Iterator

from twisted.internet.address import IPv4Address, IPv6Address

from txbroker.core import HIGH_MARK
from txbroker.edge.sessions.session_connect import ConnectAttempt
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.transport.read_pause import ReadPause
from txbroker.mqtt.transport.service import MqttService
from txbroker.mqtt.transport.unread_answers import UnreadAnswers
from txbroker.runtime.deadlines import Slot
from txbroker.runtime.fair_shares import FairShare
from txbroker.runtime.net import Transport
from txbroker.runtime.structured_log import get_logger, tell_repeated

log = get_logger()

CLOSE_TIMEOUT = 5.0
"""Seconds that a client has to read its last packets when the connection is being closed."""

LARGEST_CONNECT = 5 * (2 + 65_535) + 64
"""
Bytes of a CONNECT with five fields of the largest size: nobody holds more before it is judged.
"""

GRACE = 1.5
"""Times its keep-alive for which nothing may be heard of a client [MQTT-3.1.2-24]."""


class ConnectionLifetime:
    """
    What `MqttProtocol` is made on, with all that it keeps; see there.

    It is `_is_open` until either side ends it.
    """

    __slots__ = (
        "_attempt",
        "_client_id",
        "_deaf",
        "_hold",
        "_packet_reader",
        "_is_arriving",
        "_is_clogged",
        "_is_open",
        "_is_paused",
        "_is_working",
        "_job",
        "_keep_alive",
        "_service",
        "_session",
        "_slot",
        "packet_writer",
        "share",
        "transport",
    )

    transport: Transport

    def __init__(self, service: MqttService) -> None:
        self._service = service
        self.packet_writer = service.router.make_packet_writer()
        self.packet_writer.connection = self
        self._packet_reader = service.router.make_packet_reader(
            self.packet_writer, min(service.max_packet, LARGEST_CONNECT)
        )
        self._session: Session | None = None
        self._is_open = False
        self._is_clogged = False
        self._is_working = False
        self._is_arriving = False
        self._is_paused = False
        self._deaf: UnreadAnswers | None = None
        self._job: Iterator[None] | None = None
        self.share: FairShare | None = None
        self._attempt: ConnectAttempt | None = None
        self._hold: ReadPause | None = None
        self._keep_alive = 0
        self._slot: Slot | None = None
        self._client_id = ""

    # from Twisted

    def makeConnection(self, transport: Transport) -> None:
        """As Twisted's protocols have it."""
        self.transport = transport
        service = self._service
        self._is_open = True
        if len(service.connections) >= service.max_connections:
            service.counters.add("connections.refused")
            most = service.max_connections
            tell_repeated(log.warning, "client.refused", limit="limits.connections", value=most)
            self._abort()
            return
        service.connections[self] = None
        carry = getattr(self.transport, "carry", None)
        if carry is not None:
            carry(self._packet_reader, self.packet_writer)
        else:
            self.transport.bufferSize = HIGH_MARK
            _set_no_delay(self.transport)
        self.transport.registerProducer(self, True)
        self._set_deadline(service.connect_timeout)

    # from the session (Sink)

    def close(self, reason: str) -> None:
        """End it from this side: another connection has the client id, say."""
        log.info("client.closed", client_id=self._client_id, reason=reason)
        self._leave(will=True)
        self._abort()

    def end(self) -> None:
        """The node stops: its client's will is discarded."""
        self._leave(will=False)
        self._abort()

    # from Held

    def push_out(self) -> str:
        """The oldest of too many bytes of packets that are not whole is held for this one."""
        peer = describe(self.transport.getPeer())
        self._leave(will=True)
        self._abort()
        return peer

    # internal: life

    def on_deadline(self) -> None:
        """From `Deadlines`: it is time to look at the watch."""
        self._slot = None
        if not self._is_open:
            self.transport.abortConnection()  # it was closed politely, and does not read
        elif not self._client_id:
            self._no_connect()
        elif self._keep_alive:
            self._look_at_watch()
        self._service.turn.end()

    def _regulate(self) -> None:
        """Read what the client sends, or leave it in the kernel, as there is reason to."""
        is_late = self.share is not None and self.share.is_late
        is_held = self._hold is not None and self._hold.is_on
        is_waiting = self._is_arriving or self._deaf is not None or self._job is not None
        is_asking = self._session is not None and self._session.when_asked is not None
        is_paused = is_late or is_held or is_waiting or is_asking
        if is_paused == self._is_paused or not self._is_open:
            return
        self._is_paused = is_paused
        if is_paused:
            self.transport.pauseProducing()
        else:
            self._packet_reader.heard_at = self._service.clock.seconds()
            self.transport.resumeProducing()

    def _set_keep_alive(self, seconds: int) -> None:
        self._keep_alive = seconds
        if seconds:
            self._packet_reader.heard_at = self._service.clock.seconds()
        # That for CONNECT is met before a later one, which is set then.
        if seconds * GRACE < self._service.connect_timeout:
            self._cancel_deadline()
        if seconds and self._slot is None:
            self._set_deadline(seconds * GRACE)

    def _look_at_watch(self) -> None:
        # The deadline is not moved for each packet; it is set again when it is met.
        idle = self._service.clock.seconds() - self._packet_reader.heard_at
        if self._is_paused:
            idle = 0.0  # its PINGREQ may lie unread (protocol rule 20)
        longest = self._keep_alive * GRACE
        if idle >= longest:
            log.info("client.timeout", client_id=self._client_id)
            self._leave(will=True)  # [MQTT-3.1.2-24]
            self._abort()
        else:
            self._set_deadline(longest - idle)

    def _set_deadline(self, delay: float) -> None:
        self._slot = self._service.deadlines.set(self, delay)

    def _cancel_deadline(self) -> None:
        if self._slot is not None:
            self._service.deadlines.cancel(self, self._slot)
            self._slot = None

    def _give_up(self) -> None:
        """It was held for too long."""
        self._leave(will=True)
        self._abort()
        self._service.turn.end()

    def _no_connect(self) -> None:
        peer = describe(self.transport.getPeer())
        after = self._service.connect_timeout
        limit = "limits.connect_timeout"
        tell_repeated(log.info, "client.no_connect", peer=peer, limit=limit, after=after)
        self._service.counters.add("clients.no_connect")
        self._leave(will=False)
        self._abort()

    def _close_politely(self) -> None:
        # What was written is still sent, but a client that does not read is not waited for. If
        # nothing waits, the end comes in this turn.
        is_all_sent = self.packet_writer.descriptor >= 0
        self.transport.loseConnection()
        if not is_all_sent:
            self._set_deadline(CLOSE_TIMEOUT)

    def _leave(self, *, will: bool) -> None:
        if not self._is_open:
            return
        service = self._service
        self._is_open = False
        self._packet_reader.close()
        self._job = None
        if self._deaf is not None:
            self._deaf.end()
        service.strangers.forget(self)
        service.halves.forget(self)
        self._cancel_deadline()
        service.connections.pop(self, None)
        service.pressure.forget(self, self.packet_writer)
        if self._attempt is not None:
            self._attempt.is_wanted = False
        self.transport.unregisterProducer()
        session, self._session = self._session, None
        if self._hold is not None:
            self._hold.forget(session)
        if session is not None:
            if self.packet_writer.size:
                self._push()
            service.edge.clients.disconnect(session, self, will=will)

    def _push(self) -> None:
        """Send what is in the packet writer; TLS has no other way than to take it over."""
        push = getattr(self.transport, "push", None)
        if push is None:
            self.transport.write(self.packet_writer.take())
        else:
            push()

    def _abort(self) -> None:
        self._is_open = False
        self.transport.abortConnection()


def _set_no_delay(transport: Transport) -> None:
    if isinstance(transport.getPeer(), IPv4Address | IPv6Address):
        transport.setTcpNoDelay(True)


def describe(address: object) -> str:
    """A peer, for the log."""
    if isinstance(address, IPv4Address | IPv6Address):
        return f"{address.host}:{address.port}"
    return str(address)
