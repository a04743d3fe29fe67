"""
The decoder: bytes to packets; `encoder` does the inverse.

`Framer` cuts a stream into frames, and `decode` turns one frame into a packet. Both check a packet
by itself; the legal order of packets is unknown here. Every byte comes from a peer that may be
hostile. So each part takes time in proportion to its input, and bytes can raise `ProtocolViolation`
alone.

If a rule of the standard has no number, the violation names the section. Sections and clauses are
those of the OASIS text of MQTT 3.1.1, including its spelling of [MQTT-3-8.3-4].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Final

from txbroker.mqtt.wire.fields import (
    RECENT_TOPIC_BYTES,
    FieldReader,
    recent_topic_name_of,
    text_of,
    topic_filter_of,
    topic_name_of,
    trailing,
    truncated,
    zero_packet_id,
)
from txbroker.mqtt.wire.framing import Framer
from txbroker.mqtt.wire.packets import (
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
    Will,
)
from txbroker.mqtt.wire.return_codes import SUBACK_FAILURE, ConnackCode, ProtocolViolation

__all__ = [
    "FIRST_FILTER",
    "Framer",
    "decode",
    "packet_id_of",
    "subscribed_filters",
    "unsubscribed_filters",
]

FIRST_FILTER: Final = 2
"""Offset of the filters in a SUBSCRIBE or an UNSUBSCRIBE: behind the packet identifier."""

_CONNECT_FIELDS = Struct("!BHH")  # flags, keep-alive, length of the client id

_PROTOCOLS: Final = {
    # Keys are the first bytes of a CONNECT of each protocol.
    len(name).to_bytes(2) + name.encode() + bytes((level,)): (name, level)
    for name, level in (("MQTT", 4), ("MQIsdp", 3))
}


def decode(first_byte: int, body: bytes) -> Packet:
    """Decode the packet of a frame, from either end; raises `ProtocolViolation`."""
    if first_byte >> 4 == 3:
        return _decode_publish(first_byte, body)
    known = _DECODERS.get(first_byte)
    if known is not None:
        return known(body)
    empty = _EMPTY.get(first_byte)
    if empty is not None:
        if body:
            raise trailing()
        return empty
    kind = first_byte >> 4
    if kind in (0, 15):
        raise ProtocolViolation("section 2.2.1", f"Packet type {kind} is reserved.")
    rule = _FLAG_RULES.get(kind, "MQTT-2.2.2-2")
    raise ProtocolViolation(rule, f"The flags of packet type {kind} are wrong.")


def _decode_publish(first_byte: int, body: bytes) -> Publish:
    qos = first_byte >> 1 & 3
    dup = first_byte & 8 != 0
    if qos == 3:
        # [MQTT-3.3.1-4]
        raise ProtocolViolation("MQTT-3.3.1-4", "A PUBLISH has QoS 3.")
    if dup and not qos:
        # [MQTT-3.3.1-2]
        raise ProtocolViolation("MQTT-3.3.1-2", "A PUBLISH of QoS 0 has the DUP flag.")
    size = len(body)
    topic_end = 2 + (body[0] << 8 | body[1]) if size > 1 else 2
    payload_start = topic_end + 2 if qos else topic_end
    if payload_start > size:
        raise truncated()
    raw = body[2:topic_end]
    topic = recent_topic_name_of(raw) if len(raw) <= RECENT_TOPIC_BYTES else topic_name_of(raw)
    if not qos:
        return Publish(topic, body[payload_start:], 0, first_byte & 1 != 0)
    packet_id = body[topic_end] << 8 | body[topic_end + 1]
    if not packet_id:
        raise zero_packet_id()
    return Publish(topic, body[payload_start:], qos, first_byte & 1 != 0, dup, packet_id)


def packet_id_of(body: bytes) -> int:
    """Return the packet identifier at the beginning of a body."""
    if len(body) < 2:
        raise truncated()
    packet_id = body[0] << 8 | body[1]
    if not packet_id:
        raise zero_packet_id()
    return packet_id


def _decode_ack(kind: Callable[[int], Packet], body: bytes) -> Packet:
    """Decode a PUBACK, PUBREC, PUBREL, PUBCOMP or UNSUBACK: a packet identifier alone."""
    if len(body) > 2:
        raise trailing()
    return kind(packet_id_of(body))


def _decode_connect(body: bytes) -> Connect:
    size = 7
    known = _PROTOCOLS.get(body[:7])
    if known is None:
        size = 9
        known = _PROTOCOLS.get(body[:9])
        if known is None:
            raise _not_spoken(FieldReader(body))
    name, level = known
    if len(body) < size + 5:
        raise truncated()
    flags, keep_alive, id_size = _CONNECT_FIELDS.unpack_from(body, size)
    start = size + 5
    stop = start + id_size
    will = username = password = None
    if flags & ~0x02:
        # [MQTT-3.1.2-9] [MQTT-3.1.2-19] [MQTT-3.1.2-21]
        _check_connect_flags(flags)
        fields = FieldReader(body, stop)
        will = _will(flags, fields) if flags & 0x04 else None
        username = fields.text() if flags & 0x80 else None
        password = fields.binary() if flags & 0x40 else None
        fields.end()
    elif stop != len(body):
        raise truncated() if stop > len(body) else trailing()
    return Connect(
        client_id=text_of(body[start:stop]),
        clean_session=flags & 0x02 != 0,
        keep_alive=keep_alive,
        will=will,
        username=username,
        password=password,
        protocol_name=name,
        protocol_level=level,
    )


def _not_spoken(fields: FieldReader) -> ProtocolViolation:
    """Return the violation of a CONNECT with a protocol outside `_PROTOCOLS`."""
    name = fields.text()
    if name not in ("MQTT", "MQIsdp"):
        # [MQTT-3.1.2-1]
        return ProtocolViolation("MQTT-3.1.2-1", "A CONNECT names a protocol other than MQTT.")
    # [MQTT-3.1.2-2] Later fields of another protocol level may have another layout: they are not
    # read.
    reason = f"Protocol level {fields.byte()} of {name} is not spoken here."
    code = ConnackCode.UNACCEPTABLE_PROTOCOL_VERSION
    return ProtocolViolation("MQTT-3.1.2-2", reason, code)


def _check_connect_flags(flags: int) -> None:
    if flags & 0x01:
        # [MQTT-3.1.2-3]
        raise ProtocolViolation("MQTT-3.1.2-3", "The reserved flag of a CONNECT is set.")
    if flags & 0x04:
        if flags & 0x18 == 0x18:
            # [MQTT-3.1.2-14]
            raise ProtocolViolation("MQTT-3.1.2-14", "A will has QoS 3.")
    elif flags & 0x18:
        # [MQTT-3.1.2-13]
        raise ProtocolViolation("MQTT-3.1.2-13", "A CONNECT without a will has a will QoS.")
    elif flags & 0x20:
        # [MQTT-3.1.2-15]
        raise ProtocolViolation("MQTT-3.1.2-15", "A CONNECT without a will retains it.")
    if flags & 0xC0 == 0x40:
        # [MQTT-3.1.2-22]
        raise ProtocolViolation("MQTT-3.1.2-22", "A CONNECT has a password but no user name.")


def _will(flags: int, fields: FieldReader) -> Will:
    topic = fields.topic_name()  # [MQTT-3.1.3-10]
    payload = fields.binary()
    return Will(topic=topic, payload=payload, qos=flags >> 3 & 3, retain=flags & 0x20 != 0)


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
    filters, _ = subscribed_filters(body, FIRST_FILTER, len(body))
    if not filters:
        # [MQTT-3.8.3-3]
        raise ProtocolViolation("MQTT-3.8.3-3", "A SUBSCRIBE has no topic filter.")
    return Subscribe(packet_id, tuple(filters))


def subscribed_filters(body: bytes, at: int, most: int) -> tuple[list[tuple[str, int]], int]:
    """
    Decode at most `most` filters of a SUBSCRIBE, with their QoS, from `at` on; return their end,
    too.
    """
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
    filters, _ = unsubscribed_filters(body, FIRST_FILTER, len(body))
    if not filters:
        # [MQTT-3.10.3-2]
        raise ProtocolViolation("MQTT-3.10.3-2", "An UNSUBSCRIBE has no topic filter.")
    return Unsubscribe(packet_id, tuple(filters))


def unsubscribed_filters(body: bytes, at: int, most: int) -> tuple[list[str], int]:
    """Decode at most `most` filters of an UNSUBSCRIBE from `at` on; return their end, too."""
    fields = FieldReader(body, at)
    filters: list[str] = []
    while fields and len(filters) < most:
        filters.append(fields.topic_filter())
    return filters, fields.offset


_DECODERS: Final[dict[int, Callable[[bytes], Packet]]] = {
    # Keys are whole first bytes: the flags of all types but PUBLISH are fixed [MQTT-2.2.2-1].
    0x10: _decode_connect,
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
}
