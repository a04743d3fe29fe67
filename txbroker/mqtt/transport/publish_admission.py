"""
SHELL: PUBLISH: whether a client's publish is taken, waits unread, or is refused.

A publish waits while the disk is short, or while an earlier node of the session still publishes
(`ReadPause`). After a pause that took too long, a client of level 5 gets errors instead. Publishes
that need no single check go on in runs (`MqttProtocol`).
"""

from __future__ import annotations

from functools import partial

from txbroker.mqtt.session.session import Session
from txbroker.mqtt.transport.connection_output import ConnectionOutput
from txbroker.mqtt.transport.publish_answers import (
    NO_ROOM,
    NO_TEXT,
    has_illegal_payload,
    refusal,
)
from txbroker.mqtt.transport.read_pause import ReadPause
from txbroker.mqtt.transport.topic_aliases import TopicAliases
from txbroker.mqtt.wire.packets import (
    LEVEL_5,
    Publish,
)
from txbroker.mqtt.wire.reason_codes import ReasonCode
from txbroker.mqtt.wire.return_codes import ProtocolViolation


class PublishAdmission(ConnectionOutput):
    """A connection whose client publishes."""

    __slots__ = ()

    # internal: publishes

    def _on_publish(self, packet: Publish) -> None:
        session = self._session
        assert session is not None
        service = self._service
        if packet.topic_alias:
            if self._aliases is None:
                self._aliases = TopicAliases(service.limits.topic_aliases, service.alias_bytes)
            packet = self._aliases.resolve(packet)
        is_new = packet.qos > 0 and not packet.dup  # where all identifiers are open, none is free
        if is_new and self._open_publishes(session) >= service.limits.receive_maximum:
            raise _too_many()
        if service.limits.checks_utf8 and has_illegal_payload(packet):
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

    # internal: refusals

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

    def _is_refused(self) -> bool:
        """True if what waits was refused: an earlier pause took too long, and nothing is better."""
        if self._hold is None or not self._hold.is_spent:
            return False
        return self._service.edge.congestion.is_short and self._refuse_waiting()

    # internal: pauses

    def _made_hold(self) -> ReadPause:
        if self._hold is None:
            self._hold = ReadPause(
                self._service,
                go_on=self._read_again,
                refuse=self._refuse_waiting,
                give_up=self._give_up,
            )
        return self._hold

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
