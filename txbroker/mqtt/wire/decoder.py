"""
The decoder: bytes to packets; `encoder` does the inverse.

`Framer` cuts a stream into frames, and `decode` turns one frame into a packet. Both check a packet
by itself; the legal order of packets is unknown here. Every byte comes from a peer that may be
hostile. So each part takes time in proportion to its input, and bytes can raise `ProtocolViolation`
alone.

A connection has the level of its CONNECT: 3, 4 or 5. `level5_decoder` has what differs at level 5.
If a rule of the standard has no number, the violation names the section. Sections and clauses here
are those of the OASIS text of MQTT 3.1.1, including its spelling of [MQTT-3-8.3-4]. A violation at
level 5 names those of MQTT 5.0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from txbroker.mqtt.wire import level5_decoder
from txbroker.mqtt.wire.connect_decoder import decode_connect
from txbroker.mqtt.wire.fields import (
    RECENT_TOPIC_BYTES,
    FieldReader,
    packet_id_of,
    recent_topic_name_of,
    topic_filter_of,
    topic_name_of,
    trailing,
    truncated,
    zero_packet_id,
)
from txbroker.mqtt.wire.framing import Framer
from txbroker.mqtt.wire.level5_clauses import names_level_5
from txbroker.mqtt.wire.packet_kind import PacketKind
from txbroker.mqtt.wire.packets import (
    Connack,
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
from txbroker.mqtt.wire.properties import NO_PROPERTIES, Properties
from txbroker.mqtt.wire.reason_codes import ReasonCode
from txbroker.mqtt.wire.return_codes import SUBACK_FAILURE, ConnackCode, ProtocolViolation

__all__ = [
    "Framer",
    "decode",
    "request_head",
    "subscribed_filters",
    "unsubscribed_filters",
]

_FIRST_FILTER: Final = 2
"""Offset of the filters in a SUBSCRIBE or an UNSUBSCRIBE: behind the packet identifier."""


def decode(first_byte: int, body: bytes, level: int = 4) -> Packet:
    """
    Decode the packet of a frame, from either end; raises `ProtocolViolation`.

    A CONNECT tells its level itself.
    """
    if level == 5 and first_byte != CONNECT:
        return _decode_level_5(first_byte, body)
    if first_byte >> 4 == 3:
        return _decode_publish(first_byte, body)
    if level == 3 and first_byte in _SENT_AGAIN:
        first_byte &= ~DUP
    known = _DECODERS.get(first_byte)
    return _decode_empty(first_byte, body, level) if known is None else known(body)


@names_level_5
def _decode_level_5(first_byte: int, body: bytes) -> Packet:
    if first_byte >> 4 == 3:
        if first_byte in _WRONG_FLAGS:
            raise _wrong_flags(first_byte)
        return level5_decoder.decode_publish(first_byte, body)
    known = level5_decoder.DECODERS.get(first_byte)
    return _decode_empty(first_byte, body, 5) if known is None else known(body)


def _decode_empty(first_byte: int, body: bytes, level: int) -> Packet:
    """Decode a packet that has no body; raises for any other."""
    empty = _EMPTY.get(first_byte)
    if empty is not None:
        if body:
            raise trailing()
        return empty
    kind = first_byte >> 4
    if kind == 0 or (kind == 15 and level < 5):
        raise ProtocolViolation("section 2.2.1", f"Packet type {kind} is reserved.")
    rule = _FLAG_RULES.get(kind, "MQTT-2.2.2-2")
    raise ProtocolViolation(rule, f"The flags of packet type {kind} are wrong.")


DUP: Final = 0x08

_SENT_AGAIN: Final = frozenset({0x62 | DUP, 0x82 | DUP, 0xA2 | DUP})
"""First bytes that MQTT 3.1 has for a PUBREL, SUBSCRIBE or UNSUBSCRIBE that is sent again."""

_WRONG_FLAGS: Final = frozenset({0x36, 0x37, 0x3E, 0x3F, 0x38, 0x39})
"""The first bytes of a PUBLISH with QoS 3, or with DUP at QoS 0."""


def _wrong_flags(first_byte: int) -> ProtocolViolation:
    """Return the violation of a PUBLISH with one of `_WRONG_FLAGS`."""
    if first_byte & 0x06 == 0x06:
        # [MQTT-3.3.1-4]
        return ProtocolViolation("MQTT-3.3.1-4", "A PUBLISH has QoS 3.")
    # [MQTT-3.3.1-2]
    return ProtocolViolation("MQTT-3.3.1-2", "A PUBLISH of QoS 0 has the DUP flag.")


_RECENT_END: Final = 2 + RECENT_TOPIC_BYTES


def _decode_publish(first_byte: int, body: bytes) -> Publish:
    if first_byte in _WRONG_FLAGS:
        raise _wrong_flags(first_byte)
    qos = first_byte >> 1 & 3
    size = len(body)
    topic_end = 2 + (body[0] << 8 | body[1]) if size > 1 else 2
    payload_start = topic_end + 2 if qos else topic_end
    if payload_start > size:
        raise truncated()
    raw = body[2:topic_end]
    topic = recent_topic_name_of(raw) if topic_end <= _RECENT_END else topic_name_of(raw)
    if not qos:
        return Publish(topic, body[payload_start:], 0, first_byte & 1 != 0)
    packet_id = body[topic_end] << 8 | body[topic_end + 1]
    if not packet_id:
        raise zero_packet_id()
    retain, dup = first_byte & 1 != 0, first_byte & 8 != 0
    return Publish(topic, body[payload_start:], qos, retain, dup, packet_id)


def _decode_ack(kind: Callable[[int], Packet], body: bytes) -> Packet:
    """Decode a PUBACK, PUBREC, PUBREL, PUBCOMP or UNSUBACK: a packet identifier alone."""
    if len(body) > 2:
        raise trailing()
    return kind(packet_id_of(body))


def _decode_connack(body: bytes) -> Connack:
    fields = FieldReader(body)
    flags, code = fields.byte(), fields.byte()
    fields.end()
    if flags > 1:
        raise ProtocolViolation("section 3.2.2.1", "Reserved flags of a CONNACK are set.")
    if code > ConnackCode.NOT_AUTHORIZED:
        raise ProtocolViolation("section 3.2.2.3", f"CONNACK return code {code} is reserved.")
    if flags and code:
        # [MQTT-3.2.2-4]
        reason = "A CONNACK refuses the connection and has a session present."
        raise ProtocolViolation("MQTT-3.2.2-4", reason)
    return Connack(flags == 1, code)


def _decode_subscribe(body: bytes) -> Subscribe:
    packet_id = packet_id_of(body)
    filters, _ = _subscribed_filters(body, _FIRST_FILTER, len(body))
    if not filters:
        # [MQTT-3.8.3-3]
        code = ReasonCode.PROTOCOL_ERROR
        reason = "A SUBSCRIBE has no topic filter."
        raise ProtocolViolation("MQTT-3.8.3-3", reason, reason_code=code)
    return Subscribe(packet_id, tuple(filters))


def _subscribed_filters(body: bytes, at: int, most: int) -> tuple[list[tuple[str, int]], int]:
    size = len(body)
    filters: list[tuple[str, int]] = []
    while at < size and len(filters) < most:
        start = at + 2
        stop = start + (body[at] << 8 | body[at + 1]) if start < size else size
        if stop >= size:
            raise truncated()
        qos = body[stop]
        if qos > 2:
            # [MQTT-3-8.3-4]
            reason = "A SUBSCRIBE asks for a QoS over 2 or sets reserved bits."
            raise ProtocolViolation("MQTT-3-8.3-4", reason)
        filters.append((topic_filter_of(body[start:stop]), qos))
        at = stop + 1
    return filters, at


def _decode_suback(body: bytes) -> Suback:
    fields = FieldReader(body)
    packet_id = fields.packet_id()
    codes = tuple(fields.rest())
    if not codes:
        raise truncated()
    if any(code > 2 and code != SUBACK_FAILURE for code in codes):
        # [MQTT-3.9.3-2]
        raise ProtocolViolation("MQTT-3.9.3-2", "A SUBACK has a reserved return code.")
    return Suback(packet_id, codes)


def _decode_unsubscribe(body: bytes) -> Unsubscribe:
    packet_id = packet_id_of(body)
    filters, _ = _unsubscribed_filters(body, _FIRST_FILTER, len(body))
    if not filters:
        # [MQTT-3.10.3-2]
        code = ReasonCode.PROTOCOL_ERROR
        reason = "An UNSUBSCRIBE has no topic filter."
        raise ProtocolViolation("MQTT-3.10.3-2", reason, reason_code=code)
    return Unsubscribe(packet_id, tuple(filters))


def _unsubscribed_filters(body: bytes, at: int, most: int) -> tuple[list[str], int]:
    fields = FieldReader(body, at)
    filters: list[str] = []
    while fields and len(filters) < most:
        filters.append(fields.topic_filter())
    return filters, fields.offset


def request_head(body: bytes, kind: PacketKind, level: int = 4) -> tuple[int, Properties, int]:
    """
    Decode a SUBSCRIBE or UNSUBSCRIBE up to its filters: packet id, properties, and their offset.
    """
    if level == 5:
        return _level_5_head(body, kind)
    return packet_id_of(body), NO_PROPERTIES, _FIRST_FILTER


def subscribed_filters(
    body: bytes, at: int, most: int, level: int = 4
) -> tuple[list[tuple[str, int]], int]:
    """
    Decode at most `most` filters of a SUBSCRIBE, with QoS or options, from `at` on; return their
    end, too.
    """
    read = _level_5_subscribed if level == 5 else _subscribed_filters
    return read(body, at, most)


def unsubscribed_filters(body: bytes, at: int, most: int, level: int = 4) -> tuple[list[str], int]:
    """Decode at most `most` filters of an UNSUBSCRIBE from `at` on; return their end, too."""
    read = _level_5_unsubscribed if level == 5 else _unsubscribed_filters
    return read(body, at, most)


_level_5_head = names_level_5(level5_decoder.request_head)
_level_5_subscribed = names_level_5(level5_decoder.subscribed_filters)
_level_5_unsubscribed = names_level_5(level5_decoder.unsubscribed_filters)

CONNECT: Final = 0x10
"""The first byte of a CONNECT, and thus of every client's connection."""

_DECODERS: Final[dict[int, Callable[[bytes], Packet]]] = {
    # Keys are whole first bytes: the flags of all types but PUBLISH are fixed [MQTT-2.2.2-1].
    CONNECT: decode_connect,
    0x20: _decode_connack,
    0x40: partial(_decode_ack, Puback),
    0x50: partial(_decode_ack, Pubrec),
    0x62: partial(_decode_ack, Pubrel),
    0x70: partial(_decode_ack, Pubcomp),
    0x82: _decode_subscribe,
    0x90: _decode_suback,
    0xA2: _decode_unsubscribe,
    0xB0: partial(_decode_ack, Unsuback),
}

_EMPTY: Final[dict[int, Packet]] = {0xC0: Pingreq(), 0xD0: Pingresp(), 0xE0: Disconnect()}

_FLAG_RULES: Final = {
    # Types for which a clause of the standard repeats [MQTT-2.2.2-2].
    6: "MQTT-3.6.1-1",
    8: "MQTT-3.8.1-1",
    10: "MQTT-3.10.1-1",
    14: "MQTT-3.14.1-1",
    15: "MQTT-3.15.1-1",
}
