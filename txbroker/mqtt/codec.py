"""
Bytes to packets and back.

`Framer` cuts a stream into frames, `decode` turns one frame into a packet, `encode` and its fast
relatives turn packets into bytes. They judge a packet by itself; what a connection allows next is
not known here. Every byte comes from a peer that may be hostile, so each part takes time in
proportion to what it is given, and `ProtocolViolation` is all that bytes can raise.

Where the standard gives a rule no number, the violation names the section. Sections and clauses
are those of the OASIS text of MQTT 3.1.1, including its spelling of [MQTT-3-8.3-4].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from struct import Struct
from typing import Any, Final

from txbroker.errors import CallerError
from txbroker.mqtt.fields import (
    RECENT_TOPIC_BYTES,
    Fields,
    recent_topic_name_of,
    text_of,
    topic_filter_of,
    topic_name_of,
    trailing,
    truncated,
    zero_packet_id,
)
from txbroker.mqtt.framing import Framer, encode_length
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
    Will,
)
from txbroker.mqtt.return_codes import SUBACK_FAILURE, ConnackCode, ProtocolViolation

__all__ = [
    "Framer",
    "decode",
    "encode",
    "encode_publish",
    "encode_suback",
    "pack_packet_id",
    "publish_head",
]

MAX_REMAINING_LENGTH: Final = 268_435_455
"""Largest remaining length that four bytes can say (section 2.2.3)."""

_UINT16 = Struct("!H")
_ACK = Struct("!BBH")  # first byte, remaining length, packet identifier
_HEAD = _ACK  # of a short PUBLISH: first byte, remaining length, length of the topic
_CONNECT = Struct("!BBH")  # level, flags, keep-alive
_CONNECT_FIELDS = Struct("!BHH")  # flags, keep-alive, length of the client id

pack_packet_id: Callable[[int], bytes] = _UINT16.pack
"""A packet identifier (or any length of two bytes) as it stands on the wire."""

_PROTOCOLS: Final = {
    # As a CONNECT of each begins.
    pack_packet_id(len(name)) + name.encode() + bytes((level,)): (name, level)
    for name, level in (("MQTT", 4), ("MQIsdp", 3))
}


# -- decoding


def decode(first_byte: int, body: bytes) -> Packet:
    """The packet that a frame holds, whichever end sends it; raises `ProtocolViolation`."""
    if first_byte >> 4 == 3:
        return _decode_publish(first_byte, body)
    known = _DECODERS.get(first_byte)
    if known is not None:
        return known(body)
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


def _packet_id(body: bytes) -> int:
    """The packet identifier with which a body begins."""
    if len(body) < 2:
        raise truncated()
    packet_id = body[0] << 8 | body[1]
    if not packet_id:
        raise zero_packet_id()
    return packet_id


def _decode_ack(kind: Callable[[int], Packet], body: bytes) -> Packet:
    """PUBACK, PUBREC, PUBREL, PUBCOMP and UNSUBACK: a packet identifier and nothing else."""
    if len(body) > 2:
        raise trailing()
    return kind(_packet_id(body))


def _decode_empty(packet: Packet, body: bytes) -> Packet:
    """PINGREQ, PINGRESP and DISCONNECT."""
    if body:
        raise trailing()
    return packet


def _decode_connect(body: bytes) -> Connect:
    size = 7
    known = _PROTOCOLS.get(body[:7])
    if known is None:
        size = 9
        known = _PROTOCOLS.get(body[:9])
        if known is None:
            raise _not_spoken(Fields(body))
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
        fields = Fields(body, stop)
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


def _not_spoken(fields: Fields) -> ProtocolViolation:
    """Why a CONNECT that begins otherwise than those of `_PROTOCOLS` is refused."""
    name = fields.text()
    if name not in ("MQTT", "MQIsdp"):
        # [MQTT-3.1.2-1]
        return ProtocolViolation("MQTT-3.1.2-1", "A CONNECT names a protocol other than MQTT.")
    # [MQTT-3.1.2-2] What follows may be laid out in another way, so it is left alone.
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


def _will(flags: int, fields: Fields) -> Will:
    topic = fields.topic_name()  # [MQTT-3.1.3-10]
    payload = fields.binary()
    return Will(topic=topic, payload=payload, qos=flags >> 3 & 3, retain=flags & 0x20 != 0)


def _decode_connack(body: bytes) -> Connack:
    fields = Fields(body)
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
    size = len(body)
    packet_id = _packet_id(body)
    filters = []
    at = 2
    while at < size:
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
    if not filters:
        # [MQTT-3.8.3-3]
        raise ProtocolViolation("MQTT-3.8.3-3", "A SUBSCRIBE has no topic filter.")
    return Subscribe(packet_id, tuple(filters))


def _decode_suback(body: bytes) -> Suback:
    fields = Fields(body)
    packet_id = fields.packet_id()
    codes = tuple(fields.rest())
    if not codes:
        raise truncated()
    if any(code > 2 and code != SUBACK_FAILURE for code in codes):
        # [MQTT-3.9.3-2]
        raise ProtocolViolation("MQTT-3.9.3-2", "A SUBACK has a reserved return code.")
    return Suback(packet_id, codes)


def _decode_unsubscribe(body: bytes) -> Unsubscribe:
    fields = Fields(body)
    packet_id = fields.packet_id()
    filters = []
    while fields:
        filters.append(fields.topic_filter())
    if not filters:
        # [MQTT-3.10.3-2]
        raise ProtocolViolation("MQTT-3.10.3-2", "An UNSUBSCRIBE has no topic filter.")
    return Unsubscribe(packet_id, tuple(filters))


_DECODERS: Final[dict[int, Callable[[bytes], Packet]]] = {
    # By the whole first byte: the flags of all but PUBLISH are fixed [MQTT-2.2.2-1].
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
    0xC0: partial(_decode_empty, Pingreq()),
    0xD0: partial(_decode_empty, Pingresp()),
    0xE0: partial(_decode_empty, Disconnect()),
}

_FLAG_RULES: Final = {
    # The types for which the standard says it once more than in [MQTT-2.2.2-2].
    6: "MQTT-3.6.1-1",
    8: "MQTT-3.8.1-1",
    10: "MQTT-3.10.1-1",
    14: "MQTT-3.14.1-1",
}


# -- encoding


def encode(packet: Packet) -> bytes:
    """The bytes of a packet; raises `CallerError` where a field is too long to be said."""
    return _ENCODERS[type(packet)](packet)


def encode_publish(
    topic: str,
    payload: bytes,
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    packet_id: int | None = None,
) -> bytes:
    """The bytes of one PUBLISH. Those of QoS 0 can be sent to any number of clients."""
    head = publish_head(topic, len(payload), qos, retain, dup)
    if packet_id is None:
        return head + payload
    return head + pack_packet_id(packet_id) + payload


def publish_head(
    topic: str, payload_size: int, qos: int, retain: bool = False, dup: bool = False
) -> bytes:
    """
    A PUBLISH up to the end of its topic.

    Above QoS 0 clients differ in the packet identifier only, which comes next: the rest is made
    once and each gets `b"".join((head, pack_packet_id(packet_id), payload))`.
    """
    raw = topic.encode()
    first_byte = 0x30 | dup << 3 | qos << 1 | retain
    length = 2 + len(raw) + payload_size + (2 if qos else 0)
    if length < 128:
        return _HEAD.pack(first_byte, length, len(raw)) + raw
    return _header(first_byte, length) + _sized(raw)


def _header(first_byte: int, length: int) -> bytes:
    """The fixed header of a body of so many bytes (section 2.2)."""
    if length > MAX_REMAINING_LENGTH:
        raise CallerError(f"A packet has at most {MAX_REMAINING_LENGTH} bytes after its header.")
    return bytes((first_byte,)) + encode_length(length)


def _packet(first_byte: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return _header(first_byte, len(body)) + body


def _sized(raw: bytes) -> bytes:
    if len(raw) > 0xFFFF:
        raise CallerError("A text or binary field has at most 65,535 bytes.")
    return _UINT16.pack(len(raw)) + raw


def _text(text: str) -> bytes:
    return _sized(text.encode())


def _encode_connect(packet: Connect) -> bytes:
    flags = packet.clean_session << 1
    payload = _text(packet.client_id)
    if packet.will is not None:
        flags |= 0x04 | packet.will.qos << 3 | packet.will.retain << 5
        payload += _text(packet.will.topic) + _sized(packet.will.payload)
    if packet.username is not None:
        flags |= 0x80
        payload += _text(packet.username)
    if packet.password is not None:
        flags |= 0x40
        payload += _sized(packet.password)
    head = _CONNECT.pack(packet.protocol_level, flags, packet.keep_alive)
    return _packet(0x10, _text(packet.protocol_name), head, payload)


def _encode_publish(packet: Publish) -> bytes:
    return encode_publish(
        packet.topic, packet.payload, packet.qos, packet.retain, packet.dup, packet.packet_id
    )


def _encode_subscribe(packet: Subscribe) -> bytes:
    pairs = (_text(topic_filter) + bytes((qos,)) for topic_filter, qos in packet.filters)
    return _packet(0x82, pack_packet_id(packet.packet_id), *pairs)


def encode_suback(packet_id: int, return_codes: Iterable[int]) -> bytes:
    """The bytes of a SUBACK."""
    codes = bytes(return_codes)
    if len(codes) < 126:
        return _ACK.pack(0x90, 2 + len(codes), packet_id) + codes
    return _packet(0x90, pack_packet_id(packet_id), codes)


def _encode_unsubscribe(packet: Unsubscribe) -> bytes:
    return _packet(0xA2, pack_packet_id(packet.packet_id), *map(_text, packet.filters))


_ENCODERS: Final[dict[type, Callable[[Any], bytes]]] = {
    Connect: _encode_connect,
    Connack: lambda packet: bytes((0x20, 2, packet.session_present, packet.return_code)),
    Publish: _encode_publish,
    Puback: lambda packet: _ACK.pack(0x40, 2, packet.packet_id),
    Pubrec: lambda packet: _ACK.pack(0x50, 2, packet.packet_id),
    Pubrel: lambda packet: _ACK.pack(0x62, 2, packet.packet_id),  # [MQTT-3.6.1-1]
    Pubcomp: lambda packet: _ACK.pack(0x70, 2, packet.packet_id),
    Subscribe: _encode_subscribe,
    Suback: lambda packet: encode_suback(packet.packet_id, packet.return_codes),
    Unsubscribe: _encode_unsubscribe,
    Unsuback: lambda packet: _ACK.pack(0xB0, 2, packet.packet_id),
    Pingreq: lambda _: b"\xc0\x00",
    Pingresp: lambda _: b"\xd0\x00",
    Disconnect: lambda _: b"\xe0\x00",
}
