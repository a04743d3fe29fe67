"""
SHELL: the life of a client's connection: its beginning, its deadlines, and its end.

`connect_admission`, `publish_admission` and `protocol` handle the packets between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from twisted.internet.address import IPv4Address, IPv6Address

from txbroker.core import HIGH_MARK
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.transport.connack import MOST_RECEIVED
from txbroker.mqtt.transport.read_pause import ReadPause
from txbroker.mqtt.transport.service import MqttService
from txbroker.mqtt.transport.topic_aliases import TopicAliases
from txbroker.mqtt.transport.unread_answers import UnreadAnswers
from txbroker.mqtt.wire.encoder import Answer, encode_answer
from txbroker.mqtt.wire.packets import LEVEL_4, LEVEL_5, Connack, Disconnect
from txbroker.mqtt.wire.properties import Properties
from txbroker.mqtt.wire.reason_codes import ReasonCode
from txbroker.runtime.deadlines import Slot
from txbroker.runtime.fair_shares import FairShare
from txbroker.runtime.net import Transport
from txbroker.runtime.structured_log import get_logger, log_limited

log = get_logger()

CLOSE_TIMEOUT = 5.0
"""Seconds in which a client must read its last packets while its connection closes."""

LARGEST_CONNECT = 5 * (2 + 65_535) + 64
"""
Bytes of a CONNECT with five fields of the largest size: the limit before the CONNECT is checked.
"""

IN_CONNACK: Final[dict[int, int]] = {
    # CONNACK has no code for these ends of a connection.
    ReasonCode.SERVER_SHUTTING_DOWN: ReasonCode.SERVER_UNAVAILABLE,
    ReasonCode.SESSION_TAKEN_OVER: ReasonCode.UNSPECIFIED_ERROR,
    ReasonCode.ADMINISTRATIVE_ACTION: ReasonCode.UNSPECIFIED_ERROR,
}

GRACE = 1.5
"""Multiple of the keep-alive in which a packet must arrive [MQTT-3.1.2-24]."""


class ConnectionLifetime:
    """
    The base of `MqttProtocol`, with all its attributes.

    `_is_open` is True until either side ends the connection.
    """

    __slots__ = (
        "_aliases",
        "_client_id",
        "_deaf",
        "_hold",
        "_packet_reader",
        "_is_arriving",
        "_is_brief",
        "_is_clogged",
        "_is_open",
        "_is_paused",
        "_is_working",
        "_job",
        "_keep_alive",
        "_level",
        "_service",
        "_session",
        "_slot",
        "packet_writer",
        "receive_maximum",
        "share",
        "transport",
    )

    transport: Transport

    def __init__(self, service: MqttService) -> None:
        self._service = service
        self.packet_writer = service.router.make_packet_writer()
        self.packet_writer.connection = self
        self._packet_reader = service.router.make_packet_reader(
            self.packet_writer, min(service.limits.packet, LARGEST_CONNECT)
        )
        self._session: Session | None = None
        self._is_open = False
        self._is_clogged = False
        self._is_working = False
        self._is_arriving = False
        self._is_brief = False
        self._is_paused = False
        self._deaf: UnreadAnswers | None = None
        self._job: Iterator[None] | None = None
        self.share: FairShare | None = None
        self._hold: ReadPause | None = None
        self._keep_alive = 0
        self._slot: Slot | None = None
        self._client_id = ""
        self._level = LEVEL_4
        self._aliases: TopicAliases | None = None
        self.receive_maximum = MOST_RECEIVED

    # from Twisted

    def makeConnection(self, transport: Transport) -> None:
        """Begin the connection (Twisted's `IProtocol`)."""
        self.transport = transport
        service = self._service
        self._is_open = True
        if not service.admit(self):
            service.add_surplus(self)
        carry = getattr(self.transport, "carry", None)
        if carry is not None:
            carry(self._packet_reader, self.packet_writer)
        else:
            self.transport.bufferSize = HIGH_MARK
            _set_no_delay(self.transport)
        self.transport.registerProducer(self, True)
        self._slot = service.deadlines.set(self, service.limits.connect_timeout)

    # from the session (Sink), and from CONNECT (ConnectingClient)

    @property
    def is_open(self) -> bool:
        """True until either side ends the connection."""
        return self._is_open

    def close(self, reason: str, code: int) -> None:
        """
        Close the connection from this side, e.g. since another connection has the client id.

        A client of level 5 is told the reason code.
        """
        log_limited(
            log.info, "client.closed", kind=reason, client_id=self._client_id, reason=reason
        )
        self._part(code, reason, will=True)

    def end(self) -> None:
        """Close the connection as the node stops: the will is discarded."""
        self._part(ReasonCode.SERVER_SHUTTING_DOWN, "the node stops", will=False)

    # from HeldBytes

    @property
    def awaited(self) -> int:
        """Return the bytes of the packet that is not complete yet."""
        return self._packet_reader.awaited

    def push_out(self) -> str:
        """
        Close this connection, which has the oldest of too many incomplete bytes; return its peer.
        """
        peer = describe(self.transport.getPeer())
        self._leave(will=True)
        self._abort()
        return peer

    # internal: life

    def on_deadline(self) -> None:
        """Act on an expired deadline (called by `Deadlines`)."""
        self._slot = None
        if not self._is_open:
            # The connection is closing, and the client does not read.
            self.transport.abortConnection()
        elif not self._client_id:
            self._no_connect()
        elif self._keep_alive:
            self._check_keep_alive()
        self._service.flush_queue.end()

    def _regulate(self) -> None:
        """Pause or resume reading; unread packets of a paused client stay in the kernel."""
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
        # A later deadline is set when the one for CONNECT expires; an earlier one must replace it
        # now.
        if seconds * GRACE < self._service.limits.connect_timeout:
            self._cancel_deadline()
        if seconds and self._slot is None:
            self._set_deadline(seconds * GRACE)

    def _check_keep_alive(self) -> None:
        # A move of the deadline for each packet would cost time; an expired deadline is set again
        # here.
        idle = self._service.clock.seconds() - self._packet_reader.heard_at
        if self._is_paused:
            idle = 0.0  # an unread PINGREQ must not end the connection (protocol rule 20)
        longest = self._keep_alive * GRACE
        if idle >= longest:
            log_limited(log.info, "client.keep_alive_timeout", client_id=self._client_id)
            reason = "no packet came within the keep-alive"
            self._part(ReasonCode.KEEP_ALIVE_TIMEOUT, reason, will=True)  # [MQTT-3.1.2-24]
        else:
            self._set_deadline(longest - idle)

    def _set_deadline(self, delay: float) -> None:
        self._slot = self._service.deadlines.set(self, delay)

    def _cancel_deadline(self) -> None:
        if self._slot is not None:
            self._service.deadlines.cancel(self, self._slot)
            self._slot = None

    def _give_up(self) -> None:
        """Close a connection that was paused for too long."""
        self._part(ReasonCode.QUOTA_EXCEEDED, "the node has no room for long", will=True)
        self._service.flush_queue.end()

    def _part(self, code: int, reason: str, *, will: bool) -> None:
        """End the connection from this side; a client of level 5 gets DISCONNECT before."""
        is_told = self._say_goodbye(code, reason)
        self._leave(will=will)
        if is_told:
            self._close_politely()
        else:
            self._abort()

    def _say_goodbye(self, code: int, reason: str) -> bool:
        """
        Send DISCONNECT to a client of level 5, or CONNACK to one that waits for it.

        Return True if sent.
        """
        if self._level < LEVEL_5 or not self._client_id or not self._is_open:
            return False
        is_sent_away = code == ReasonCode.USE_ANOTHER_SERVER
        elsewhere = self._service.server_reference if is_sent_away else ""
        properties = Properties(reason_string=reason, server_reference=elsewhere or None)
        if self._session is not None:
            return self._send_answer(Disconnect(code, properties))
        is_sent = self._send_answer(Connack(False, IN_CONNACK.get(code, code), properties))
        if is_sent:
            self._push()
        return is_sent

    def _send_answer(self, packet: Answer) -> bool:
        """Send an answer, as far as the client accepts it; return False if it is too large."""
        most, level = self.packet_writer.max_packet, self._level
        data = encode_answer(packet, most, is_brief=self._is_brief, level=level)
        if data:
            self.packet_writer.send(data)
        return len(data) > 0

    def _no_connect(self) -> None:
        peer = describe(self.transport.getPeer())
        after = self._service.limits.connect_timeout
        limit = "limits.connect_timeout"
        log_limited(log.info, "client.connect_timeout", peer=peer, limit=limit, after=after)
        self._service.counters.add("clients.no_connect")
        self._leave(will=False)
        self._abort()

    def _close_politely(self) -> None:
        # Written packets are still sent; a client that does not read must not delay the end.
        # Without waiting output, the connection ends in this turn.
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
        if self._aliases is not None:
            self._aliases.end()
        if self._deaf is not None:
            self._deaf.end()
        if service.unauthenticated.held:  # Without these two looks each end pays for two calls.
            service.unauthenticated.forget(self)
        if service.halves.held:
            service.halves.forget(self)
        self._cancel_deadline()
        service.connections.pop(self, None)
        service.backpressure.forget(self, self.packet_writer)
        self.transport.unregisterProducer()
        session, self._session = self._session, None
        if self._hold is not None:
            self._hold.forget(session)
        if session is not None:
            if self.packet_writer.size:
                self._push()
            service.edge.clients.disconnect(session, self, will=will)

    def _push(self) -> None:
        """Send the packet writer's output; a TLS transport takes it over."""
        push = getattr(self.transport, "push", None)
        if push is None:
            self.transport.write(self.packet_writer.dequeue())
        else:
            push()

    def _abort(self) -> None:
        self._is_open = False
        self.transport.abortConnection()


def _set_no_delay(transport: Transport) -> None:
    if isinstance(transport.getPeer(), IPv4Address | IPv6Address):
        transport.setTcpNoDelay(True)


def describe(address: object) -> str:
    """Return a peer's address for the log."""
    if isinstance(address, IPv4Address | IPv6Address):
        return f"{address.host}:{address.port}"
    return str(address)
