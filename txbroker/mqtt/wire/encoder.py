"""
The encoder: packets to bytes; `decoder` does the inverse.

The encoder trusts its caller to send legal packets, and refuses only values that no packet can
have. At level 5, reason codes and property lists are left out where the standard allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from struct import Struct
from typing import Any, Final, TypeAlias

import attrs

from txbroker.model.errors import CallerError
from txbroker.mqtt.wire.fields import pack_sized, pack_text
from txbroker.mqtt.wire.framing import encode_length
from txbroker.mqtt.wire.packets import (
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
    Will,
)
from txbroker.mqtt.wire.properties import (
    NO_PROPERTIES,
    Properties,
    encode_properties,
    encode_property_list,
    property_list,
)

Answer: TypeAlias = Connack | Puback | Pubrec | Pubrel | Pubcomp | Suback | Unsuback | Disconnect
"""The packets with which a server explains itself."""

MAX_REMAINING_LENGTH: Final = 268_435_455
"""Largest remaining length that four bytes can encode (section 2.2.3)."""

LARGEST_PACKET: Final = MAX_REMAINING_LENGTH + 5
"""Bytes of the largest packet that MQTT's framing can express."""

_UINT16 = Struct("!H")
_ACK = Struct("!BBH")  # first byte, remaining length, packet identifier
_HEAD = _ACK  # of a short PUBLISH: first byte, remaining length, length of the topic
_CONNECT = Struct("!BBH")  # level, flags, keep-alive

pack_packet_id: Callable[[int], bytes] = _UINT16.pack
"""Encodes a packet identifier, or any length of two bytes."""


def encode(packet: Packet, level: int = 4) -> bytes:
    """
    Encode a packet; raises `CallerError` if a field is too long.

    A CONNECT tells its level itself.
    """
    if level == 5:
        encoder = _LEVEL_5_ENCODERS.get(type(packet))
        if encoder is not None:
            return encoder(packet)
    return _ENCODERS[type(packet)](packet)


def encode_answer(
    packet: Answer, most: int = 0, *, is_brief: bool = False, level: int = 5
) -> bytes:
    """
    Encode what a server answers a client that accepts packets of `most` bytes; 0: of any size.

    The encoder leaves out the reason string and the user properties that have no room
    [MQTT-3.2.2-19] [MQTT-3.2.2-20]. All kinds of answers are encoded so. Without any, a packet that
    is still too large is no bytes: it may not be sent [MQTT-3.1.2-24]. `is_brief`: the client asked
    for no problem information, so that these properties are in CONNACK and DISCONNECT alone
    [MQTT-3.1.2-29].
    """
    if level < 5:
        return encode(packet, level)
    properties = packet.properties
    if is_brief and not isinstance(packet, Connack | Disconnect):
        properties = attrs.evolve(properties, reason_string=None, user_properties=())
    while True:
        data = encode(attrs.evolve(packet, properties=properties), level)
        if not most or len(data) <= most:
            return data
        users = properties.user_properties
        if not users and properties.reason_string is None:
            return b""
        properties = attrs.evolve(
            properties, reason_string=None, user_properties=users[: len(users) // 2]
        )


def encode_publish(
    topic: str,
    payload: bytes,
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    packet_id: int | None = None,
    properties: bytes | None = None,
) -> bytes:
    """
    Encode one PUBLISH; the bytes of a QoS 0 one suit any number of clients of a level.

    `properties` are the content of the list of level 5; None: the packet has no list, as at the
    other levels.
    """
    if properties is not None:
        payload = property_list(properties) + payload
    head = publish_head(topic, len(payload), qos, retain, dup)
    if packet_id is None:
        return head + payload
    return head + pack_packet_id(packet_id) + payload


def publish_head(
    topic: str, payload_size: int, qos: int, retain: bool = False, dup: bool = False
) -> bytes:
    """
    Encode a PUBLISH up to the end of its topic.

    Above QoS 0, the packets for several clients differ only in the packet identifier, which comes
    next. So the head is shared, and each client gets `b"".join((head, pack_packet_id(packet_id),
    payload))`. At level 5, a property list precedes the payload, and `payload_size` counts it, too.
    """
    raw = topic.encode()
    first_byte = 0x30 | dup << 3 | qos << 1 | retain
    length = 2 + len(raw) + payload_size + (2 if qos else 0)
    if length < 128:
        return _HEAD.pack(first_byte, length, len(raw)) + raw
    return _header(first_byte, length) + pack_sized(raw)


def _header(first_byte: int, length: int) -> bytes:
    """Encode the fixed header of a body with `length` bytes (section 2.2)."""
    if length > MAX_REMAINING_LENGTH:
        raise CallerError(f"A packet has at most {MAX_REMAINING_LENGTH} bytes after its header.")
    return bytes((first_byte,)) + encode_length(length)


def _packet(first_byte: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return _header(first_byte, len(body)) + body


def _encode_connect(packet: Connect) -> bytes:
    is_level_5 = packet.protocol_level == 5
    flags = packet.clean_session << 1
    payload = pack_text(packet.client_id)
    if packet.will is not None:
        flags |= 0x04 | packet.will.qos << 3 | packet.will.retain << 5
        if is_level_5:
            payload += _will_properties(packet.will)
        payload += pack_text(packet.will.topic) + pack_sized(packet.will.payload)
    if packet.username is not None:
        flags |= 0x80
        payload += pack_text(packet.username)
    if packet.password is not None:
        flags |= 0x40
        payload += pack_sized(packet.password)
    head = _CONNECT.pack(packet.protocol_level, flags, packet.keep_alive)
    if is_level_5:
        head += encode_property_list(packet.properties)
    return _packet(0x10, pack_text(packet.protocol_name), head, payload)


def _will_properties(will: Will) -> bytes:
    delay = encode_properties(Properties(will_delay=will.delay)) if will.delay else b""
    return property_list(delay + will.properties)


def _encode_publish(packet: Publish) -> bytes:
    return encode_publish(
        packet.topic, packet.payload, packet.qos, packet.retain, packet.dup, packet.packet_id
    )


def _encode_subscribe(packet: Subscribe) -> bytes:
    pairs = (pack_text(topic_filter) + bytes((qos,)) for topic_filter, qos in packet.filters)
    return _packet(0x82, pack_packet_id(packet.packet_id), *pairs)


def encode_suback(packet_id: int, return_codes: Iterable[int]) -> bytes:
    """Encode a SUBACK."""
    codes = bytes(return_codes)
    if len(codes) < 126:
        return _ACK.pack(0x90, 2 + len(codes), packet_id) + codes
    return _packet(0x90, pack_packet_id(packet_id), codes)


def _encode_unsubscribe(packet: Unsubscribe) -> bytes:
    return _packet(0xA2, pack_packet_id(packet.packet_id), *map(pack_text, packet.filters))


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


# -- level 5


def _encode_level_5_connack(packet: Connack) -> bytes:
    head = bytes((packet.session_present, packet.return_code))
    return _packet(0x20, head, encode_property_list(packet.properties))


def _encode_level_5_publish(packet: Publish) -> bytes:
    properties = packet.properties
    if packet.topic_alias or packet.subscription_identifiers:
        of_this_hop = Properties(
            topic_alias=packet.topic_alias or None,
            subscription_identifiers=packet.subscription_identifiers,
        )
        properties = encode_properties(of_this_hop) + properties
    return encode_publish(
        packet.topic,
        packet.payload,
        packet.qos,
        packet.retain,
        packet.dup,
        packet.packet_id,
        properties,
    )


def _encode_level_5_ack(first_byte: int, packet: Puback | Pubrec | Pubrel | Pubcomp) -> bytes:
    if not packet.reason and packet.properties == NO_PROPERTIES:
        return _ACK.pack(first_byte, 2, packet.packet_id)
    packet_id = pack_packet_id(packet.packet_id)
    return _packet(first_byte, packet_id, _reason(packet.reason, packet.properties))


def _encode_level_5_subscribe(packet: Subscribe) -> bytes:
    pairs = (pack_text(topic_filter) + bytes((byte,)) for topic_filter, byte in packet.filters)
    properties = encode_property_list(packet.properties)
    return _packet(0x82, pack_packet_id(packet.packet_id), properties, *pairs)


def _encode_level_5_unsubscribe(packet: Unsubscribe) -> bytes:
    properties = encode_property_list(packet.properties)
    filters = map(pack_text, packet.filters)
    return _packet(0xA2, pack_packet_id(packet.packet_id), properties, *filters)


def _encode_answer(
    first_byte: int, packet_id: int, properties: Properties, codes: Iterable[int]
) -> bytes:
    """Encode a SUBACK or UNSUBACK."""
    listed = encode_property_list(properties)
    return _packet(first_byte, pack_packet_id(packet_id), listed, bytes(codes))


def _reason(reason: int, properties: Properties) -> bytes:
    """Encode a reason code and a property list, as much of them as is needed."""
    if properties != NO_PROPERTIES:
        return bytes((reason,)) + encode_property_list(properties)
    return bytes((reason,)) if reason else b""


def _encode_reason(first_byte: int, packet: Disconnect | Auth) -> bytes:
    return _packet(first_byte, _reason(packet.reason, packet.properties))


_LEVEL_5_ENCODERS: Final[dict[type, Callable[[Any], bytes]]] = {
    Connack: _encode_level_5_connack,
    Publish: _encode_level_5_publish,
    Puback: partial(_encode_level_5_ack, 0x40),
    Pubrec: partial(_encode_level_5_ack, 0x50),
    Pubrel: partial(_encode_level_5_ack, 0x62),
    Pubcomp: partial(_encode_level_5_ack, 0x70),
    Subscribe: _encode_level_5_subscribe,
    Suback: lambda packet: _encode_answer(
        0x90, packet.packet_id, packet.properties, packet.return_codes
    ),
    Unsubscribe: _encode_level_5_unsubscribe,
    Unsuback: lambda packet: _encode_answer(
        0xB0, packet.packet_id, packet.properties, packet.reasons
    ),
    Disconnect: partial(_encode_reason, 0xE0),
    Auth: partial(_encode_reason, 0xF0),
}
"""The packets that differ at level 5, besides CONNECT."""
