"""
The decoder of MQTT 5.0: the bodies that differ from those of MQTT 3.1.1.

Sections and clauses are those of the OASIS text of MQTT 5.0. `decoder` translates the violations of
the shared readers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from txbroker.model.share_name import shared_subscription
from txbroker.model.topics import TopicError
from txbroker.mqtt.wire.fields import (
    RECENT_TOPIC_BYTES,
    FieldReader,
    recent_topic_name_of,
    shown,
    topic_name_of,
    truncated,
)
from txbroker.mqtt.wire.packet_kind import PacketKind
from txbroker.mqtt.wire.packets import (
    Auth,
    Connack,
    Disconnect,
    Packet,
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
from txbroker.mqtt.wire.properties import (
    NO_PROPERTIES,
    Properties,
    read_properties,
    split_properties,
)
from txbroker.mqtt.wire.reason_codes import LEGAL_CODES, ReasonCode
from txbroker.mqtt.wire.return_codes import ProtocolViolation
from txbroker.mqtt.wire.subscription_options import NO_LOCAL, check_options

_Ack: TypeAlias = type[Puback] | type[Pubrec] | type[Pubrel] | type[Pubcomp]


def decode_publish(first_byte: int, body: bytes) -> Publish:
    """Decode a PUBLISH whose flags are legal."""
    qos = first_byte >> 1 & 3
    fields = FieldReader(body)
    raw_topic = fields.binary()
    packet_id = fields.packet_id() if qos else None
    listed = fields.property_list()
    raw, properties = b"", NO_PROPERTIES
    if listed:
        raw, properties = split_properties(listed, PacketKind.PUBLISH)
    alias = properties.topic_alias or 0
    if raw_topic:
        is_short = len(raw_topic) <= RECENT_TOPIC_BYTES
        topic = recent_topic_name_of(raw_topic) if is_short else topic_name_of(raw_topic)
    elif alias:
        topic = ""
    else:
        reason = "A PUBLISH has neither a topic nor a topic alias."
        code = ReasonCode.PROTOCOL_ERROR
        raise ProtocolViolation("section 3.3.2.1", reason, reason_code=code)
    retain, dup = first_byte & 1 != 0, first_byte & 8 != 0
    identifiers = properties.subscription_identifiers
    return Publish(topic, fields.rest(), qos, retain, dup, packet_id, raw, alias, identifiers)


def request_head(body: bytes, kind: PacketKind) -> tuple[int, Properties, int]:
    """Decode a SUBSCRIBE or UNSUBSCRIBE up to its filters; return their offset, too."""
    fields = FieldReader(body)
    packet_id = fields.packet_id()
    properties = read_properties(fields.property_list(), kind)
    if not fields:
        rule = "MQTT-3.8.3-2" if kind is PacketKind.SUBSCRIBE else "MQTT-3.10.3-2"
        # [MQTT-3.8.3-2] [MQTT-3.10.3-2]
        reason = f"{kind.subject} has no topic filter."
        raise ProtocolViolation(rule, reason, reason_code=ReasonCode.PROTOCOL_ERROR)
    return packet_id, properties, fields.offset


def subscribed_filters(body: bytes, at: int, most: int) -> tuple[list[tuple[str, int]], int]:
    """Decode at most `most` filters of a SUBSCRIBE, with their options, from `at` on."""
    fields = FieldReader(body, at)
    filters: list[tuple[str, int]] = []
    while fields and len(filters) < most:
        topic_filter, is_shared = _filter(fields)
        options = fields.byte()
        check_options(options)
        if is_shared and options & NO_LOCAL:
            # [MQTT-3.8.3-4]
            reason = "A shared subscription asks for no local messages."
            code = ReasonCode.PROTOCOL_ERROR
            raise ProtocolViolation("MQTT-3.8.3-4", reason, reason_code=code)
        filters.append((topic_filter, options))
    return filters, fields.offset


def unsubscribed_filters(body: bytes, at: int, most: int) -> tuple[list[str], int]:
    """Decode at most `most` filters of an UNSUBSCRIBE from `at` on."""
    fields = FieldReader(body, at)
    filters: list[str] = []
    while fields and len(filters) < most:
        filters.append(_filter(fields)[0])
    return filters, fields.offset


def _filter(fields: FieldReader) -> tuple[str, bool]:
    """Read a filter; return also whether it is of a shared subscription."""
    topic_filter = fields.topic_filter()
    try:
        return topic_filter, shared_subscription(topic_filter) is not None
    except TopicError as error:
        code = ReasonCode.TOPIC_FILTER_INVALID
        reason = f"Topic filter {shown(topic_filter)}: {error}"
        raise ProtocolViolation(error.rule, reason, reason_code=code) from None


def _decode_subscribe(body: bytes) -> Subscribe:
    packet_id, properties, at = request_head(body, PacketKind.SUBSCRIBE)
    filters, _ = subscribed_filters(body, at, len(body))
    return Subscribe(packet_id, tuple(filters), properties)


def _decode_unsubscribe(body: bytes) -> Unsubscribe:
    packet_id, properties, at = request_head(body, PacketKind.UNSUBSCRIBE)
    filters, _ = unsubscribed_filters(body, at, len(body))
    return Unsubscribe(packet_id, tuple(filters), properties)


def _decode_connack(body: bytes) -> Connack:
    fields = FieldReader(body)
    flags, code = fields.byte(), _checked(fields.byte(), PacketKind.CONNACK)
    if flags > 1:
        # [MQTT-3.2.2-1]
        raise ProtocolViolation("MQTT-3.2.2-1", "Reserved flags of a CONNACK are set.")
    if flags and code:
        # [MQTT-3.2.2-6]
        reason = "A CONNACK refuses the connection and has a session present."
        raise ProtocolViolation("MQTT-3.2.2-6", reason, reason_code=ReasonCode.PROTOCOL_ERROR)
    properties = read_properties(fields.property_list(), PacketKind.CONNACK)
    fields.end()
    return Connack(flags == 1, code, properties)


def _decode_ack(packet: _Ack, kind: PacketKind, body: bytes) -> Packet:
    """Decode a PUBACK, PUBREC, PUBREL or PUBCOMP."""
    fields = FieldReader(body)
    packet_id = fields.packet_id()
    reason, properties = _reason(fields, kind)
    return packet(packet_id, reason, properties)


def _decode_disconnect(body: bytes) -> Disconnect:
    return Disconnect(*_reason(FieldReader(body), PacketKind.DISCONNECT))


def _decode_auth(body: bytes) -> Auth:
    reason, properties = _reason(FieldReader(body), PacketKind.AUTH)
    if body and properties.authentication_method is None:
        message = "An AUTH names no authentication method."
        code = ReasonCode.PROTOCOL_ERROR
        raise ProtocolViolation("section 3.15.2.2.2", message, reason_code=code)
    return Auth(reason, properties)


def _reason(fields: FieldReader, kind: PacketKind) -> tuple[int, Properties]:
    """Read a reason code and a property list up to the end: both may be left out from the end."""
    if not fields:
        return ReasonCode.SUCCESS, NO_PROPERTIES
    code = _checked(fields.byte(), kind)
    if not fields:
        return code, NO_PROPERTIES
    properties = read_properties(fields.property_list(), kind)
    fields.end()
    return code, properties


def _decode_answer(packet: type[Suback] | type[Unsuback], kind: PacketKind, body: bytes) -> Packet:
    """Decode a SUBACK or UNSUBACK."""
    fields = FieldReader(body)
    packet_id = fields.packet_id()
    properties = read_properties(fields.property_list(), kind)
    codes = tuple(_checked(code, kind) for code in fields.rest())
    if not codes:
        raise truncated()
    return packet(packet_id, codes, properties)


def _checked(code: int, kind: PacketKind) -> int:
    """Return a reason code that the packet may have."""
    legal, rule = LEGAL_CODES[kind]
    if code not in legal:
        reason = f"The reason code {code:#04x} does not belong in {kind.phrase}."
        raise ProtocolViolation(rule, reason, reason_code=ReasonCode.PROTOCOL_ERROR)
    return code


DECODERS: Final[dict[int, Callable[[bytes], Packet]]] = {
    # Keys are whole first bytes, as in `decoder`: the flags are fixed [MQTT-2.1.3-1].
    0x20: _decode_connack,
    0x40: partial(_decode_ack, Puback, PacketKind.PUBACK),
    0x50: partial(_decode_ack, Pubrec, PacketKind.PUBREC),
    0x62: partial(_decode_ack, Pubrel, PacketKind.PUBREL),
    0x70: partial(_decode_ack, Pubcomp, PacketKind.PUBCOMP),
    0x82: _decode_subscribe,
    0x90: partial(_decode_answer, Suback, PacketKind.SUBACK),
    0xA2: _decode_unsubscribe,
    0xB0: partial(_decode_answer, Unsuback, PacketKind.UNSUBACK),
    0xE0: _decode_disconnect,
    0xF0: _decode_auth,
}
