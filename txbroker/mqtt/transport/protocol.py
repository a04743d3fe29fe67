"""
SHELL: an MQTT client's TCP connection on Twisted.

`MqttProtocol` reads packets, and hands each to its handler. The connection's parts are its bases,
each on the one before; all attributes are the first one's:

- `connection_lifetime`: how the connection begins and ends, and its keep-alive;
- `connection_output`: what goes out, and back-pressure while the client does not read it;
- `connect_admission`: CONNECT up to CONNACK;
- `publish_admission`: which PUBLISH is taken, waits, or is refused (`read_pause`: for how long).

Which packet is legal is decided by `connection_rules`, its effect by the edge and `session`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from twisted.internet.interfaces import IAddress, IProtocol, IPushProducer
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure
from zope.interface import implementer

from txbroker.model.publish_run import Octets
from txbroker.mqtt.session.connection_rules import (
    judge,
    judge_beginning,
    judge_length,
)
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.transport.connack import MOST_RECEIVED
from txbroker.mqtt.transport.connect_admission import ConnectAdmission
from txbroker.mqtt.transport.connection_lifetime import describe
from txbroker.mqtt.transport.publish_admission import PublishAdmission
from txbroker.mqtt.transport.service import MqttService
from txbroker.mqtt.transport.subscribe_packets import (
    is_large,
    process_large,
    subscribe,
    unsubscribe,
)
from txbroker.mqtt.wire.encoder import encode
from txbroker.mqtt.wire.packets import (
    FOREVER,
    LEVEL_5,
    Auth,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from txbroker.mqtt.wire.reason_codes import ReasonCode
from txbroker.mqtt.wire.return_codes import ProtocolViolation
from txbroker.runtime.fair_shares import Newcomer
from txbroker.runtime.sockets.accepted import has_left
from txbroker.runtime.structured_log import get_logger, log_limited

log = get_logger()


MOST_ASKED = 128
"""Filters of a client that wait for zones; below this number the client is read again."""

HALF = 4_096
"""Bytes of an incomplete packet; smaller ones are not counted."""

LOGGED_BYTES = 32
"""Bytes of an illegal packet that the log shows."""


@implementer(IProtocol, IPushProducer)
class MqttProtocol(ConnectAdmission, PublishAdmission):
    """
    The connection of one client; the session's sink.

    A node has a connection for each of very many idle clients. So the class has slots, and creates
    rare parts on demand.
    """

    __slots__ = ()

    # from Twisted

    def dataReceived(self, data: Octets) -> None:
        self._packet_reader.feed(data)
        self.on_input()
        self._service.flush_queue.end()

    def connectionLost(self, reason: Failure | None = None) -> None:
        if self._is_open:
            self._leave(will=True)
        if self._service.surplus:
            self._service.surplus.pop(self, None)
        self._cancel_deadline()
        self.packet_writer.connection = (
            None  # a cycle of references would wait for the garbage collector
        )
        self._service.flush_queue.end()

    def on_input(self) -> None:
        """Process arrived packets, as far as permitted now; the caller ends the turn."""
        if not self._is_working:
            self._service.shares.serve(self)

    # from Shares

    @property
    def newcomer(self) -> Newcomer | None:
        """Return the connection itself before CONNECT, None after."""
        return None if self._client_id else self

    def work(self) -> bool:
        """Process arrived packets until the share is used up; return True if some are left."""
        is_over = False
        self._is_working = True
        try:
            # A client may send further packets before CONNACK (3.1.4): these wait for its session.
            while not is_over and self._may_work() and self._step():
                is_over = self._service.shares.is_over
        except ProtocolViolation as violation:
            self._on_violation(violation)
        finally:
            self._is_working = False
        session = self._session
        if (
            session is not None
            and session.held_size
            and self._service.edge.congestion.is_too_much(session)
            and not self._is_refused()
        ):
            self._stop_reading(session)
        may_work = self._may_work()
        if self._is_paused or not may_work:
            self._regulate()
        return is_over and may_work

    def fail(self, error: Exception) -> None:
        """Close the connection whose work raised; other connections continue."""
        log.error("stream.failed", exc_info=error)
        self._leave(will=True)
        self._abort()

    def on_late(self) -> None:
        """Stop or resume reading: the connection begins or ends its wait for a turn."""
        self._regulate()

    # internal: packets

    def _may_work(self) -> bool:
        session = self._session
        if session is not None and session.subscribing >= MOST_ASKED:
            session.when_asked = self.on_input
            return False
        if not self._is_open or self._is_arriving or self._deaf is not None:
            return False
        return self._hold is None or not self._hold.is_on

    def _step(self) -> bool:
        """Process packets up to the next single one, included; return False if none is left."""
        packet_reader, session = self._packet_reader, self._session
        if self._job is not None:
            if next(self._job, self) is self:
                self._job = None
            return True
        if session is not None and session.has_received:
            packet_reader.takes_qos12 = self._may_gather(session)
        frame = packet_reader.step()
        # Keep-alive counts whole packets, not bytes [MQTT-3.1.2-24].
        if packet_reader.has_heard and self._keep_alive:
            packet_reader.heard_at = self._service.clock.seconds()
        if session is not None:
            self._publish_gathered(session)
        if packet_reader.fault is not None:
            raise packet_reader.fault
        if packet_reader.wants_flows and session is not None and session is self._session:
            self._open_packet_reader(session, session.receiver.plain)
            return True
        if frame is None:
            self._hold_half(is_first=session is None)
            return packet_reader.has_more
        if not self._is_open:
            return False  # an earlier packet has closed the connection
        first_byte, body = frame
        if packet_reader.is_padded:
            judge_length(first_byte, body, self._level)
        if session is None:
            if self._service.unauthenticated.held:
                self._service.unauthenticated.forget(self)
        elif is_large(first_byte, body):
            answer = partial(self._answer, session)
            self._job = process_large(self._service, session, first_byte, body, answer)
            return True
        packet = judge(first_byte, body, is_first=session is None, level=self._level)
        _HANDLERS[type(packet)](self, packet)
        return packet_reader.has_more

    def _hold_half(self, *, is_first: bool) -> None:
        """Count the bytes of an incomplete last packet, or stop counting."""
        packet_reader, service = self._packet_reader, self._service
        if is_first and packet_reader.first_byte is not None:
            judge_beginning(packet_reader.first_byte)
            service.unauthenticated.hold(self, packet_reader.awaited)
        elif not is_first and packet_reader.awaited >= HALF:
            service.halves.hold(self, packet_reader.awaited)
        elif service.halves.held:
            service.halves.forget(self)

    def _may_gather(self, session: Session) -> bool:
        """True if publishes of QoS 1 and 2 need no single check."""
        service = self._service
        is_counted = self._level >= LEVEL_5 and service.limits.receive_maximum < MOST_RECEIVED
        return (
            session.may_gather
            and not is_counted
            and not service.watermark.is_short
            and self._client_id not in service.successions.held
        )

    def _publish_gathered(self, session: Session) -> None:
        packet_reader = self._packet_reader
        if packet_reader.has_landed:
            session.sender.send_queued()
            self._delay_publishers()
        if not session.clean and packet_reader.pubacks:
            session.sender.on_pubacks(packet_reader.pubacks)
        if packet_reader.qos0 is not None:
            self._service.edge.publisher.publish_run(packet_reader.qos0)
        if packet_reader.qos12 is not None:
            self._service.edge.publisher.publish_run(packet_reader.qos12)

    def _on_puback(self, packet: Puback) -> None:
        assert self._session is not None
        self._session.sender.on_pubacks((packet.packet_id,))

    def _on_pubrec(self, packet: Pubrec) -> None:
        assert self._session is not None
        if packet.reason >= ReasonCode.UNSPECIFIED_ERROR:
            self._session.sender.on_refused(packet.packet_id)
        else:
            self._session.sender.on_pubrec(packet.packet_id)

    def _on_pubrel(self, packet: Pubrel) -> None:
        assert self._session is not None
        self._session.receiver.on_pubrel(packet.packet_id)

    def _on_pubcomp(self, packet: Pubcomp) -> None:
        assert self._session is not None
        self._session.sender.on_pubcomp(packet.packet_id)

    def _on_subscribe(self, packet: Subscribe) -> None:
        session = self._session
        assert session is not None
        subscribe(self._service, session, packet, partial(self._answer, session))

    def _on_unsubscribe(self, packet: Unsubscribe) -> None:
        session = self._session
        assert session is not None
        unsubscribe(self._service, session, packet, partial(self._answer, session))

    def _answer(self, session: Session, answer: Suback | Unsuback) -> None:
        if self._session is session and not self._send_answer(answer):
            # Who answers is amid the session's subscriptions, which must not end under it.
            self._service.clock.callLater(0, self._end_unanswered)

    def _end_unanswered(self) -> None:
        if self._is_open:
            reason = "An answer is larger than the client's maximum packet size."
            self._part(ReasonCode.PACKET_TOO_LARGE, reason, will=True)
            self._service.flush_queue.end()

    def _on_pingreq(self, _: Packet) -> None:
        self.packet_writer.send(encode(Pingresp()))  # [MQTT-3.12.4-1]

    def _on_disconnect(self, packet: Disconnect) -> None:
        session, expiry = self._session, packet.properties.session_expiry
        if session is not None and expiry is not None:
            if session.expiry == 0 and expiry:
                raise ProtocolViolation(
                    "section 3.14.2.2.2",
                    "A DISCONNECT sets an expiry for a session that CONNECT gave none.",
                    reason_code=ReasonCode.PROTOCOL_ERROR,
                )
            kept = None if expiry == FOREVER else expiry
            self._service.edge.clients.set_expiry(session, kept)
        self._leave(will=packet.reason != ReasonCode.SUCCESS)  # [MQTT-3.14.4-3]
        self._close_politely()

    def _on_auth(self, _: Auth) -> None:
        raise ProtocolViolation(
            "MQTT-4.12.0-6",
            "A client sends AUTH after a CONNECT without authentication method.",
            reason_code=ReasonCode.PROTOCOL_ERROR,
        )

    def _on_violation(self, violation: ProtocolViolation) -> None:
        first_byte, body = violation.frame
        log_limited(
            log.warning,
            "client.violation",
            kind=violation.rule,
            client_id=self._client_id,
            peer=describe(self.transport.getPeer()),
            rule=violation.rule,
            reason=violation.reason,
            bytes=(bytes([first_byte]) + body[:LOGGED_BYTES]).hex(),
        )
        self._service.counters.add("clients.violations")
        if violation.rule == "limits.packet":
            self._service.counters.add("packet.over_limit")
        if self._session is None:
            self._refuse_illegal(violation)
        else:
            self._say_goodbye(violation.reason_code, violation.reason)
        self.flush()
        self._leave(will=True)
        self._close_politely()


_HANDLERS: Final[dict[type, Callable[[MqttProtocol, Any], None]]] = {
    Publish: MqttProtocol._on_publish,
    Puback: MqttProtocol._on_puback,
    Pubrec: MqttProtocol._on_pubrec,
    Pubrel: MqttProtocol._on_pubrel,
    Pubcomp: MqttProtocol._on_pubcomp,
    Subscribe: MqttProtocol._on_subscribe,
    Unsubscribe: MqttProtocol._on_unsubscribe,
    Pingreq: MqttProtocol._on_pingreq,
    Connect: MqttProtocol._on_connect,
    Disconnect: MqttProtocol._on_disconnect,
    Auth: MqttProtocol._on_auth,
}


class MqttFactory(Factory):
    """The factory of a protocol for each connection."""

    noisy = False
    asks_for_address = False

    def __init__(self, service: MqttService) -> None:
        self._service = service
        # The port asks the shares for each connection, without a function in between.
        self.puts_off = service.shares.defers_newcomers
        self.charge = service.shares.charge_newcomers

    def buildProtocol(self, addr: IAddress | None) -> Any:
        return MqttProtocol(self._service)

    def drops(self, descriptor: int) -> bool:
        """True if an accepted connection is closed by its client already."""
        is_gone = has_left(descriptor)
        if is_gone:
            self._service.counters.add("clients.gone")
        return is_gone
