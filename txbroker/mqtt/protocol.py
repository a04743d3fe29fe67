"""
SHELL: an MQTT client's TCP connection on Twisted.

What is here: reading, writing once a turn, keep-alive, back-pressure to the session. What is legal
decides `connection`, what becomes of it `edge` and `session`, for how long a client is not read
`hold`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import attrs
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IAddress, IProtocol, IPushProducer
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure
from zope.interface import implementer

from txbroker.core import HIGH_MARK, QUEUE_HIGH_MARK
from txbroker.deadlines import Slot
from txbroker.edge.roaming import Attempt
from txbroker.mqtt.codec import encode
from txbroker.mqtt.connection import Connection
from txbroker.mqtt.hold import Hold
from txbroker.mqtt.packets import (
    Connack,
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
from txbroker.mqtt.return_codes import ConnackCode, ProtocolViolation
from txbroker.mqtt.service import MqttService
from txbroker.mqtt.session import Session
from txbroker.net import Transport
from txbroker.telemetry import get_logger

log = get_logger()

CLOSE_TIMEOUT = 5.0
"""Seconds that a client has to read its last packets when the connection is being closed."""

GRACE = 1.5
"""Times its keep-alive for which nothing may be heard of a client [MQTT-3.1.2-24]."""

QUEUE_LOW_MARK = 250
"""Messages behind a client's window down to which publishers wait, for a short time."""

_ACCEPTED: Final = [encode(Connack(present, ConnackCode.ACCEPTED)) for present in (False, True)]

LOGGED_BYTES = 32
"""How much of an illegal packet goes into the log."""


@implementer(IProtocol, IPushProducer)
class MqttProtocol:
    """
    One client's connection; the session's sink.

    There is one for each of very many clients that do nothing: it has slots, and whatever few of
    them need is made when they do.
    """

    __slots__ = (
        "_attempt",
        "_client_id",
        "_connection",
        "_hold",
        "_inlet",
        "_is_arriving",
        "_is_clogged",
        "_is_open",
        "_is_working",
        "_keep_alive",
        "_service",
        "_session",
        "_slot",
        "outlet",
        "transport",
    )

    transport: Transport

    def __init__(self, service: MqttService) -> None:
        self._service = service
        self.outlet = service.exchange.make_outlet()
        self.outlet.connection = self
        self._inlet = service.exchange.make_inlet(self.outlet, service.max_packet)
        self._connection = Connection()
        self._session: Session | None = None
        self._is_open = False
        self._is_clogged = False
        self._is_working = False
        self._is_arriving = False
        self._attempt: Attempt | None = None
        self._hold: Hold | None = None
        self._keep_alive = 0
        self._slot: Slot | None = None
        self._client_id = ""

    # from Twisted

    def makeConnection(self, transport: Transport) -> None:
        """As Twisted's protocols have it."""
        self.transport = transport
        self.connectionMade()

    def connectionMade(self) -> None:
        service = self._service
        self._is_open = True
        if len(service.connections) >= service.max_connections:
            service.counters.add("connections.refused")
            log.warning("client.refused", limit="limits.connections", value=service.max_connections)
            self._abort()
            return
        service.connections[self] = None
        carry = getattr(self.transport, "carry", None)
        if carry is not None:
            carry(self._inlet, self.outlet)
        else:
            self.transport.bufferSize = HIGH_MARK
            _set_no_delay(self.transport)
        self.transport.registerProducer(self, True)
        self._set_deadline(service.connect_timeout)

    def dataReceived(self, data: bytes) -> None:
        self._inlet.feed(data)
        self.fed()

    def fed(self) -> None:
        """Something was read, and is in the inlet."""
        self._work()
        self._service.turn.end()

    def connectionLost(self, reason: Failure | None = None) -> None:
        self._leave(will=True)
        self._cancel_deadline()
        self._service.turn.end()

    def pauseProducing(self) -> None:
        self._is_clogged = True
        self._service.pressure.raise_(self)

    def resumeProducing(self) -> None:
        self._is_clogged = False
        self.outlet.is_shut = False
        self._service.pressure.lower(self)
        self.flush()
        if self._session is not None:
            self._session.sender.pump()
        self._service.turn.end()

    def stopProducing(self) -> None:
        self._is_clogged = True

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

    def flush(self) -> None:
        """
        The end of a turn, or much waits: write what was gathered, look at what happened at the
        outlet, and have publishers wait if it does not get less.
        """
        outlet, session = self.outlet, self._session
        if not self._is_clogged:
            if outlet.size and self._is_open:
                self.transport.write(outlet.take())
        elif self._service.pressure.is_slow(self):
            outlet.is_shut = True
        if session is not None:
            session.sender.look_at_outlet()
            self._look_at_queue()

    def _look_at_queue(self) -> None:
        """A client that is a little behind holds its publishers back, for a short time."""
        waiting, pressure = self.outlet.waiting, self._service.pressure
        if waiting > QUEUE_HIGH_MARK:
            self.outlet.is_behind = True
            pressure.raise_(self.outlet)
        elif self.outlet.is_behind and waiting < QUEUE_LOW_MARK:
            self.outlet.is_behind = False
            pressure.lower(self.outlet)

    # internal: packets

    def _work(self) -> None:
        """Take what has come, as far as it may be taken now."""
        if self._is_working:
            return
        now = self._service.clock.seconds()
        self._is_working = True
        try:
            # A client may send on before it has its CONNACK (3.1.4): that waits for its session.
            while self._is_open and not self._is_arriving and not self._is_refused:
                if not self._step(now):
                    break
        except ProtocolViolation as violation:
            self._on_violation(violation)
        self._is_working = False
        session = self._session
        if (
            session is not None
            and session.held_size
            and self._service.edge.congestion.is_too_much(session)
        ):
            self._stop_reading(session)

    @property
    def _is_refused(self) -> bool:
        return self._hold is not None and self._hold.refused is not None

    def _step(self, now: float) -> bool:
        """Take what comes up to the next single packet, and that; False: there is no more."""
        inlet, session = self._inlet, self._session
        if session is not None:
            inlet.takes_qos12 = self._may_gather(session)
        frame = inlet.step()
        if inlet.has_heard:
            self._inlet.heard_at = now  # whole packets count, not bytes [MQTT-3.1.2-24]
        if session is not None:
            self._take_gathered(session)
        if inlet.fault is not None:
            raise inlet.fault
        if frame is None:
            if session is None:
                self._connection.judge_beginning(inlet.first_byte)
            return inlet.has_more
        packet = self._connection.judge(*frame)
        if packet is not None:
            _HANDLERS[type(packet)](self, packet)
        return True

    def _may_gather(self, session: Session) -> bool:
        """Whether publishes of QoS 1 and 2 need no look at each of them."""
        service = self._service
        return (
            session.has_received
            and session.receiver.is_plain
            and not service.space.is_short
            and not service.successions.concerns(self._client_id)
        )

    def _take_gathered(self, session: Session) -> None:
        inlet = self._inlet
        if inlet.has_landed:
            session.sender.send_queued()
            self._look_at_queue()
        if inlet.pubacks:
            session.sender.on_pubacks(inlet.pubacks)
        if inlet.qos0 is not None:
            self._service.edge.clients.publish_run(inlet.qos0)
        if inlet.qos12 is not None:
            self._service.edge.clients.publish_run(inlet.qos12)

    def _on_connect(self, packet: Connect) -> None:
        client_id = packet.client_id or self._service.make_client_id()  # [MQTT-3.1.3-6]
        if not packet.client_id:
            packet = attrs.evolve(packet, client_id=client_id)
        self._client_id = client_id
        self._cancel_deadline()
        if self._service.is_leaving:
            self._refuse("the node is retired", True)
            return
        accept = partial(self._accept, packet.keep_alive)
        attempt = self._service.roaming.connect(packet, accept, self._refuse)
        if self._session is None and self._is_open:
            self._attempt = attempt
            self._is_arriving = True
            self.transport.pauseProducing()

    def _accept(self, keep_alive: int, session: Session, present: bool) -> None:
        """The session is found, and durable where it has to be."""
        if not self._is_open:
            return
        self._session = session
        self._attempt = None
        self._inlet.heard_at = self._service.clock.seconds()
        self._set_keep_alive(keep_alive)
        self.outlet.send(_ACCEPTED[present])  # [MQTT-3.2.2-1..4]
        if not self._service.edge.clients.attach(session, self):
            self._session = None  # another connection may have it by now
            self._leave(will=False)
            self._abort()
            return
        self._open_inlet(session)
        if self._is_arriving:
            self._is_arriving = False
            self.transport.resumeProducing()
        self._work()

    def _open_inlet(self, session: Session) -> None:
        flows = session.receiver.plain if session.has_received else None
        self._inlet.open(session, session.client_id, flows, clean=session.clean)

    def _refuse(self, reason: str, is_told: bool) -> None:
        """The session is not to be had."""
        if not self._is_open:
            return
        if is_told:
            log.warning("session.unreachable", client_id=self._client_id, reason=reason)
            self._service.counters.add("clients.session_unreachable")
            self.outlet.send(encode(Connack(False, ConnackCode.SERVER_UNAVAILABLE)))
            self.flush()
            self._leave(will=False)
            self._close_politely()
        else:
            self.close(reason)

    def _on_publish(self, packet: Publish) -> None:
        session = self._session
        assert session is not None
        service = self._service
        if packet.qos and (
            service.space.is_short or service.successions.has_to_wait(self._client_id, packet.topic)
        ):
            # Whoever only subscribes, and QoS 0, need no room on the disk.
            self._made_hold().refused = packet
            self._stop_reading(session)
        else:
            is_first = packet.qos and not session.has_received
            self._service.edge.clients.publish(session, packet)
            if is_first:
                self._open_inlet(session)

    def _on_puback(self, packet: Puback) -> None:
        assert self._session is not None
        self._session.sender.on_pubacks((packet.packet_id,))

    def _on_pubrec(self, packet: Pubrec) -> None:
        assert self._session is not None
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
        suback = encode(Suback(packet.packet_id, tuple(qos for _, qos in packet.filters)))

        def acknowledge() -> None:
            if session.sink is self:
                self.outlet.send(suback)  # [MQTT-3.8.4-1]

        self._service.edge.subscriptions.subscribe(session, packet, acknowledge)

    def _on_unsubscribe(self, packet: Unsubscribe) -> None:
        session = self._session
        assert session is not None

        def acknowledge() -> None:
            if session.sink is self:
                self.outlet.send(encode(Unsuback(packet.packet_id)))  # [MQTT-3.10.4-4]

        self._service.edge.subscriptions.unsubscribe(session, packet.filters, acknowledge)

    def _on_pingreq(self, _: Packet) -> None:
        self.outlet.send(encode(Pingresp()))  # [MQTT-3.12.4-1]

    def _on_disconnect(self, _: Packet) -> None:
        self._leave(will=False)  # [MQTT-3.14.4-3]
        self._close_politely()

    def _on_violation(self, violation: ProtocolViolation) -> None:
        first_byte, body = self._connection.frame
        log.warning(
            "client.violation",
            client_id=self._client_id,
            peer=_describe(self.transport.getPeer()),
            rule=violation.rule,
            reason=violation.reason,
            bytes=(bytes([first_byte]) + body[:LOGGED_BYTES]).hex(),
        )
        self._service.counters.add("clients.violations")
        if violation.rule == "limits.packet":
            self._service.counters.add("packet.over_limit")
        if violation.connack is not None and self._session is None:
            self.outlet.send(encode(Connack(False, violation.connack)))
        self.flush()
        self._leave(will=True)
        self._close_politely()

    # internal: life

    def on_deadline(self) -> None:
        """From `Deadlines`: it is time to look at the watch."""
        self._slot = None
        if not self._is_open:
            self.transport.abortConnection()  # it was closed politely, and does not read
        elif not self._client_id:
            self._no_connect()
        else:
            self._look_at_watch()
        self._service.turn.end()

    def _set_keep_alive(self, seconds: int) -> None:
        self._cancel_deadline()
        self._keep_alive = seconds
        if seconds:
            self._set_deadline(seconds * GRACE)

    def _look_at_watch(self) -> None:
        # The deadline is not moved for each packet; it is set again when it is met.
        idle = self._service.clock.seconds() - self._inlet.heard_at
        if self._hold is not None and self._hold.is_on:
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
        peer = _describe(self.transport.getPeer())
        after = self._service.connect_timeout
        log.info("client.no_connect", peer=peer, limit="limits.connect_timeout", after=after)
        self._service.counters.add("clients.no_connect")
        self._leave(will=False)
        self._abort()

    def _close_politely(self) -> None:
        # What was written is still sent, but a client that does not read is not waited for.
        self.transport.loseConnection()
        self._set_deadline(CLOSE_TIMEOUT)

    def _leave(self, *, will: bool) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._connection.close()
        self._inlet.close()
        self._cancel_deadline()
        self._service.connections.pop(self, None)
        self._service.pressure.forget(self)
        if self._attempt is not None:
            self._attempt.is_wanted = False
        self.transport.unregisterProducer()
        session, self._session = self._session, None
        if self._hold is not None:
            self._hold.forget(session)
        if session is not None:
            self._flush_before_leaving()
            self._service.pressure.forget(self.outlet)
            self._service.edge.clients.disconnect(session, self, will=will)

    def _flush_before_leaving(self) -> None:
        if self.outlet.size:
            self.transport.write(self.outlet.take())

    def _abort(self) -> None:
        self._is_open = False
        self.transport.abortConnection()

    def _made_hold(self) -> Hold:
        if self._hold is None:
            self._hold = Hold(self._service, go_on=self._read_again, give_up=self._give_up)
        return self._hold

    def _stop_reading(self, session: Session) -> None:
        hold = self._made_hold()
        if not hold.is_on:
            self.transport.pauseProducing()
            hold.begin(session)

    def _read_again(self) -> None:
        hold = self._made_hold()
        self._inlet.heard_at = self._service.clock.seconds()
        self.transport.resumeProducing()
        refused = hold.take_refused()
        if refused is not None:
            self._on_publish(refused)
        self._work()


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
}


class MqttFactory(Factory):
    """Makes a protocol for each connection."""

    noisy = False

    def __init__(self, service: MqttService) -> None:
        self._service = service

    def buildProtocol(self, addr: IAddress | None) -> Any:
        return MqttProtocol(self._service)


def _set_no_delay(transport: Transport) -> None:
    if isinstance(transport.getPeer(), IPv4Address | IPv6Address):
        transport.setTcpNoDelay(True)


def _describe(address: object) -> str:
    if isinstance(address, IPv4Address | IPv6Address):
        return f"{address.host}:{address.port}"
    return str(address)
