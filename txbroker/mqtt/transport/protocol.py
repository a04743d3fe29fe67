"""
SHELL: an MQTT client's TCP connection on Twisted.

`MqttProtocol` reads packets, writes once a turn, and applies back-pressure to the session. The
other decisions are elsewhere:

- `connection_lifetime`: how the connection begins and ends, and its keep-alive;
- `connection_rules`: which packet is legal;
- the edge and `session`: the effect of a packet;
- `read_pause`: for how long a client is not read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import attrs
from twisted.internet.interfaces import IAddress, IProtocol, IPushProducer
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure
from zope.interface import implementer

from txbroker.core import QUEUE_HIGH_MARK, Flows
from txbroker.model.publish_run import Octets
from txbroker.model.share_name import GROUP_PREFIX
from txbroker.mqtt.session.connection_rules import (
    judge,
    judge_beginning,
    judge_length,
    level_of,
)
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.transport.connack import MOST_RECEIVED, accepted, keep_alive_of, refused
from txbroker.mqtt.transport.connection_lifetime import ConnectionLifetime, describe
from txbroker.mqtt.transport.publish_answers import (
    NO_ROOM,
    NO_TEXT,
    has_illegal_payload,
    refusal,
)
from txbroker.mqtt.transport.read_pause import ReadPause
from txbroker.mqtt.transport.service import MqttService
from txbroker.mqtt.transport.subscribe_packets import (
    is_large,
    process_large,
    subscribe,
    unsubscribe,
)
from txbroker.mqtt.transport.topic_aliases import TopicAliases
from txbroker.mqtt.transport.unread_answers import UnreadAnswers
from txbroker.mqtt.wire.encoder import encode, encode_answer
from txbroker.mqtt.wire.packets import (
    FOREVER,
    LEVEL_4,
    LEVEL_5,
    Auth,
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
from txbroker.mqtt.wire.properties import Properties
from txbroker.mqtt.wire.reason_codes import ReasonCode
from txbroker.mqtt.wire.return_codes import ConnackCode, ProtocolViolation
from txbroker.runtime.fair_shares import Newcomer
from txbroker.runtime.sockets.accepted import has_left
from txbroker.runtime.structured_log import get_logger, log_limited

log = get_logger()

QUEUE_LOW_MARK = 250
"""Messages behind a client's window at which publishers, which wait for a short time, resume."""

PACE = 512 * 1024
"""Bytes that a fast client reads in a tenth of a second; in messages, `QUEUE_LOW_MARK`."""

FULL = 1024 * 1024
"""
Bytes of unread output from which back-pressure begins; less if all outputs together are large.

From this size on, publishers wait for a client on trial. A client that does not read its answers is
not read from this size on.
"""

_ACCEPTED: Final = [encode(Connack(present, ConnackCode.ACCEPTED)) for present in (False, True)]

MOST_ASKED = 128
"""Filters of a client that wait for zones; below this number the client is read again."""

HALF = 4_096
"""Bytes of an incomplete packet; smaller ones are not counted."""

LOGGED_BYTES = 32
"""Bytes of an illegal packet that the log shows."""


@implementer(IProtocol, IPushProducer)
class MqttProtocol(ConnectionLifetime):
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
        self._cancel_deadline()
        self.packet_writer.connection = (
            None  # a cycle of references would wait for the garbage collector
        )
        self._service.flush_queue.end()

    def pauseProducing(self) -> None:
        self._is_clogged = True
        self._service.backpressure.raise_(self, self._unread, pace=PACE)

    def resumeProducing(self) -> None:
        self._is_clogged = False
        self.packet_writer.is_shut = False
        self._service.backpressure.lower(self)
        self.flush()
        if self._session is not None:
            self._session.sender.pump()
        self._pause_if_unread()
        self._service.flush_queue.end()

    def stopProducing(self) -> None:
        self._is_clogged = True

    # from the session (Sink)

    def flush(self) -> None:
        """
        Write the gathered output, at the end of a turn or when the output is large.

        The call also counts the packet writer's events. Publishers wait if the output does not
        shrink.
        """
        packet_writer, session = self.packet_writer, self._session
        if not self._is_clogged:
            if packet_writer.size and self._is_open:
                self._push()
        else:
            self._pause_if_unread()
            if self._service.backpressure.is_slow(self):
                packet_writer.is_shut = True
            elif self._is_filled():
                self._service.backpressure.hurry(self)
        if session is not None:
            session.sender.poll_packet_writer()
            self._delay_publishers()

    def _pause_if_unread(self) -> None:
        """
        Stop reading a client that does not read its answers, so that its packets stay in the
        kernel.
        """
        if self._is_clogged and self._is_open:
            if self._deaf is None and self._is_filled():
                self._deaf = UnreadAnswers(
                    self._service.clock,
                    self._client_id,
                    left=self._unread,
                    give_up=self._give_up,
                )
                self._regulate()
        elif self._deaf is not None:
            self._deaf.end()
            self._deaf = None
            self._regulate()
            self.on_input()

    def _is_filled(self) -> bool:
        return self.packet_writer.size > self._service.router.room(FULL)

    def _unread(self) -> int:
        """
        Return the bytes that the client's end has not taken; a falling number if that is unknown.
        """
        unread = getattr(self.transport, "unread", None)
        return -int(1e6 * self._service.clock.seconds()) if unread is None else unread()

    def _delay_publishers(self) -> None:
        """Delay publishers for a short time if the client's queue is long."""
        waiting, backpressure = self.packet_writer.waiting, self._service.backpressure
        if waiting > QUEUE_HIGH_MARK:
            self.packet_writer.is_behind = True
            backpressure.raise_(
                self.packet_writer, lambda: self.packet_writer.waiting, pace=QUEUE_LOW_MARK
            )
        elif self.packet_writer.is_behind and waiting < QUEUE_LOW_MARK:
            self.packet_writer.is_behind = False
            backpressure.lower(self.packet_writer)

    def on_input(self) -> None:
        """Process arrived packets, as far as permitted now; the caller ends the turn."""
        if not self._is_working:
            self._service.shares.serve(self)

    # from Shares

    @property
    def newcomer(self) -> Newcomer | None:
        """Return the connection itself before CONNECT, None after."""
        return None if self._client_id else self

    def drop_if_gone(self) -> bool:
        """
        Drop the connection if its client has closed it; return True if so.

        A client that waits for no CONNACK was never here, and its will is not published.
        """
        has_left = getattr(self.transport, "has_left", None)
        if has_left is None or not has_left():
            return False
        self._service.counters.add("clients.gone")
        self._leave(will=False)
        self._abort()
        return True

    def host(self) -> str:
        """Return the client's host."""
        return getattr(self.transport.getPeer(), "host", "")

    def work(self) -> bool:
        """Process arrived packets until the share is used up; return True if some are left."""
        is_over = False
        self._is_working = True
        try:
            # A client may send further packets before CONNACK (3.1.4): these wait for its session.
            while self._may_work() and not is_over:
                if not self._step():
                    break
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
        has_more = is_over and self._may_work()
        self._regulate()
        return has_more

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
        else:
            service.halves.forget(self)

    def _may_gather(self, session: Session) -> bool:
        """True if publishes of QoS 1 and 2 need no single check."""
        service = self._service
        is_counted = self._level >= LEVEL_5 and service.receive_maximum < MOST_RECEIVED
        return (
            session.may_gather
            and not is_counted
            and not service.watermark.is_short
            and not service.successions.may_block(self._client_id)
        )

    def _publish_gathered(self, session: Session) -> None:
        packet_reader = self._packet_reader
        if packet_reader.has_landed:
            session.sender.send_queued()
            self._delay_publishers()
        if not session.clean and packet_reader.pubacks:
            session.sender.on_pubacks(packet_reader.pubacks)
        if packet_reader.qos0 is not None:
            self._service.edge.clients.publish_run(packet_reader.qos0)
        if packet_reader.qos12 is not None:
            self._service.edge.clients.publish_run(packet_reader.qos12)

    def _on_connect(self, packet: Connect) -> None:
        self._level = self.packet_writer.level = packet.protocol_level
        self._limit_output(packet.properties)
        if packet.properties.authentication_method is not None:
            raise ProtocolViolation(
                "MQTT-4.12.0-1",
                "No authentication method is known here.",
                reason_code=ReasonCode.BAD_AUTHENTICATION_METHOD,
            )
        if (
            self._service.checks_utf8
            and packet.will is not None
            and has_illegal_payload(packet.will)
        ):
            raise ProtocolViolation(
                "check_utf8", NO_TEXT, reason_code=ReasonCode.PAYLOAD_FORMAT_INVALID
            )
        client_id = packet.client_id or self._service.make_client_id()  # [MQTT-3.1.3-6]
        is_assigned = not packet.client_id
        if is_assigned:
            packet = attrs.evolve(packet, client_id=client_id)
        if len(client_id) > self._service.max_client_id // 4 or client_id[0] == "$":
            self._check_client_id(client_id)
        self._client_id = client_id
        if self._service.is_leaving:
            self._turn_away()
            return
        accept = partial(self._accept, packet, is_assigned)
        connects = self._service.connects
        attempt = connects.connect(packet, accept, self._refuse, self.drop_if_gone, self.host)
        if self._session is None and self._is_open:
            self._attempt = attempt
            self._is_arriving = True
            self._regulate()

    def _check_client_id(self, client_id: str) -> None:
        most = self._service.max_client_id
        code = ConnackCode.IDENTIFIER_REJECTED
        invalid = ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        if len(client_id.encode()) > most:
            reason = f"A client id is longer than {most} bytes."
            raise ProtocolViolation("limits.client_id", reason, code, reason_code=invalid)
        if client_id.startswith(GROUP_PREFIX):
            # The client would take over the session of a group.
            reason = f"A client id does not begin with {GROUP_PREFIX}, as groups have such ids."
            raise ProtocolViolation("[MQTT-3.1.3-8]", reason, code, reason_code=invalid)

    def _accept(self, packet: Connect, is_assigned: bool, session: Session, present: bool) -> None:
        """Answer CONNACK and attach the session, which is durable if it must be."""
        if not self._is_open:
            self._service.edge.clients.miss(session)
            return
        connack = self._accepted(packet, is_assigned, session, present)
        if not connack:
            self._service.edge.clients.miss(session)
            self._refuse_small()
            return
        self._session = session
        self._attempt = None
        self._set_keep_alive(keep_alive_of(self._service, packet) or 0)
        if session.clean and session.will is None and not self._packet_reader.has_more:
            # No store and no other packet is involved: CONNACK need not wait for the other CONNECTs
            # of this turn.
            send = self.packet_writer.send_now
        else:
            send = self.packet_writer.send
        send(connack)
        if not self._service.edge.clients.attach(session, self):
            self._session = None  # another connection may have the session by now
            self._leave(will=False)
            self._abort()
            return
        self._open_packet_reader(session, session.receiver.plain if session.has_received else None)
        if not packet.clean_session and packet.expiry == 0:
            # A client that leaves out the expiry loses a session that it seems to mean to keep.
            reason = "ends at disconnect: expiry 0"
            log_limited(log.info, "session.not_kept", client_id=self._client_id, reason=reason)
        if self._is_arriving:
            self._is_arriving = False
            self._regulate()
            self.on_input()

    def _accepted(
        self, packet: Connect, is_assigned: bool, session: Session, present: bool
    ) -> bytes:
        """Return the CONNACK of an accepted client; no bytes: it accepts no packet so large."""
        if self._level < LEVEL_5:
            # MQTT 3.1 has no session present flag: its byte is reserved.
            return _ACCEPTED[present and self._level >= LEVEL_4]  # [MQTT-3.2.2-1..4]
        connack = accepted(self._service, packet, session, present=present, is_assigned=is_assigned)
        return encode_answer(connack, self.packet_writer.max_packet)

    def _open_packet_reader(self, session: Session, flows: Flows | None) -> None:
        self._packet_reader.max_packet = self._service.max_packet
        self._packet_reader.leaves_text = self._service.checks_utf8
        self._packet_reader.open(
            session, session.client_id, flows, clean=session.clean, level=self._level
        )

    def _limit_output(self, asked: Properties) -> None:
        """Note what the client can receive, before the first packet goes to it."""
        self._is_brief = asked.request_problem_information is False
        self.packet_writer.max_packet = asked.maximum_packet_size or 0
        most = self._service.topic_aliases
        self.packet_writer.alias_maximum = min(asked.topic_alias_maximum or 0, most)
        self.receive_maximum = asked.receive_maximum or MOST_RECEIVED

    def _turn_away(self) -> None:
        """Refuse CONNECT: the node retires."""
        reason, elsewhere = "the node is retired", self._service.server_reference
        if self._level < LEVEL_5:
            self._refuse(reason, True)
            return
        self._end_refused(refused(ReasonCode.USE_ANOTHER_SERVER, reason, elsewhere))

    def _refuse(self, reason: str, is_told: bool) -> None:
        """Refuse CONNECT: no session can be had."""
        if not self._is_open:
            return
        if is_told:
            log_limited(
                log.warning,
                "session.unreachable",
                kind=reason,
                client_id=self._client_id,
                reason=reason,
            )
            self._service.counters.add("clients.session_unreachable")
            if self._level >= LEVEL_5:
                connack = refused(ReasonCode.SERVER_UNAVAILABLE, reason)
            else:
                connack = Connack(False, ConnackCode.SERVER_UNAVAILABLE)
            self._end_refused(connack)
        else:
            self.close(reason, ReasonCode.SESSION_TAKEN_OVER)

    def _refuse_small(self) -> None:
        """Refuse a client whose maximum packet size has no room for its CONNACK."""
        reason = "The maximum packet size has no room for CONNACK."
        most = self.packet_writer.max_packet
        log_limited(
            log.warning,
            "client.refused",
            kind="maximum packet size",
            client_id=self._client_id,
            reason=reason,
            value=most,
        )
        self._end_refused(refused(ReasonCode.PACKET_TOO_LARGE, reason))

    def _end_refused(self, connack: Connack) -> None:
        self._send_answer(connack)
        self.flush()
        self._leave(will=False)
        self._close_politely()

    def _on_publish(self, packet: Publish) -> None:
        session = self._session
        assert session is not None
        service = self._service
        if packet.topic_alias:
            if self._aliases is None:
                self._aliases = TopicAliases(service.topic_aliases)
            packet = self._aliases.resolve(packet)
        is_new = packet.qos > 0 and not packet.dup  # where all identifiers are open, none is free
        if is_new and self._open_publishes(session) >= service.receive_maximum:
            raise _too_many()
        if service.checks_utf8 and has_illegal_payload(packet):
            self._refuse_text(packet)
        elif (
            packet.qos
            and self._hold is not None
            and self._hold.is_spent
            and self._may_refuse(session, packet)
        ):
            self._refuse_publish(packet)
        elif packet.qos and (
            service.watermark.is_short
            or service.successions.must_wait(self._client_id, packet.topic)
        ):
            # Subscribers and QoS 0 need no room on the disk, and must not be refused.
            self._made_hold().refused = packet
            self._stop_reading(session)
        else:
            self._service.edge.clients.publish(session, packet)

    def _open_publishes(self, session: Session) -> int:
        """Return how many publishes are unacknowledged; 0 below level 5."""
        if self._level < LEVEL_5 or not session.has_received:
            return 0
        return session.receiver.sent

    def _refuse_text(self, packet: Publish) -> None:
        """Refuse a publish whose payload is no text, as it says."""
        self._service.counters.add("publish.refused.payload_format")
        code = ReasonCode.PAYLOAD_FORMAT_INVALID
        if not packet.qos:
            raise ProtocolViolation("check_utf8", NO_TEXT, reason_code=code)
        self._send_refusal(packet, code, NO_TEXT)

    def _refuse_publish(self, packet: Publish) -> None:
        """Refuse a publish for which the disk has no room."""
        self._service.counters.add("publish.refused.quota")
        self._made_hold().note_refusal()
        self._send_refusal(packet, ReasonCode.QUOTA_EXCEEDED, NO_ROOM)

    def _may_refuse(self, session: Session, packet: Publish) -> bool:
        """True if a publish waits for the disk, and nothing of it can be stored yet."""
        assert packet.packet_id is not None
        return self._service.watermark.is_short and not session.receiver.is_open(packet.packet_id)

    def _send_refusal(self, packet: Publish, code: int, reason: str) -> None:
        assert packet.packet_id is not None
        self._send_answer(refusal(packet.packet_id, packet.qos, code, reason))

    def _refuse_waiting(self) -> bool:
        """
        Refuse all publishes of a client of level 5 for which there is no room; return True if any.
        """
        hold, session = self._made_hold(), self._session
        if self._level < LEVEL_5 or session is None:
            return False
        if hold.refused is not None:
            if not self._may_refuse(session, hold.refused):
                return False
            packet = hold.dequeue_refused()
            assert packet is not None
            self._refuse_publish(packet)
            return True
        flows = self._service.edge.publisher.take_back(session)
        for flow in flows:
            answer = refusal(flow.packet_id, flow.qos, ReasonCode.QUOTA_EXCEEDED, NO_ROOM)
            session.receiver.refuse(flow, partial(self._send_answer, answer))
        self._service.counters.add("publish.refused.quota", len(flows))
        if flows:
            hold.note_refusal()
        return bool(flows)

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
            if max(self._level, level_of(first_byte, body)) >= LEVEL_5:
                self._level = LEVEL_5
                self._send_answer(refused(violation.reason_code, violation.reason))
            elif violation.connack is not None:
                self.packet_writer.send(encode(Connack(False, violation.connack)))
        else:
            self._say_goodbye(violation.reason_code, violation.reason)
        self.flush()
        self._leave(will=True)
        self._close_politely()

    def _made_hold(self) -> ReadPause:
        if self._hold is None:
            self._hold = ReadPause(
                self._service,
                go_on=self._read_again,
                refuse=self._refuse_waiting,
                give_up=self._give_up,
            )
        return self._hold

    def _is_refused(self) -> bool:
        """True if what waits was refused: an earlier pause took too long, and nothing is better."""
        if self._hold is None or not self._hold.is_spent:
            return False
        return self._service.edge.congestion.is_short and self._refuse_waiting()

    def _stop_reading(self, session: Session) -> None:
        hold = self._made_hold()
        if not hold.is_on:
            hold.pause(session)
            self._regulate()

    def _read_again(self) -> None:
        hold = self._made_hold()
        self._packet_reader.heard_at = self._service.clock.seconds()
        self._regulate()
        refused = hold.dequeue_refused()
        if refused is not None:
            self._on_publish(refused)
        self.on_input()


def _too_many() -> ProtocolViolation:
    # [MQTT-3.3.4-7]
    reason = "More publishes are unacknowledged than the receive maximum allows."
    code = ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
    return ProtocolViolation("MQTT-3.3.4-7", reason, reason_code=code)


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

    def buildProtocol(self, addr: IAddress | None) -> Any:
        return MqttProtocol(self._service)

    def puts_off(self) -> bool:
        """True if a new connection would wait here: the kernel's backlog serves as well."""
        return self._service.shares.defers_newcomers

    def drops(self, descriptor: int) -> bool:
        """True if an accepted connection of a crowd is closed by its client already."""
        service = self._service
        is_gone = service.shares.is_crowded and has_left(descriptor)
        if is_gone:
            service.counters.add("clients.gone")
        return is_gone
