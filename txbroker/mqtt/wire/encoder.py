"""
The encoder: packets to bytes; `decoder` does the inverse.

The encoder trusts its caller to send legal packets, and refuses only values that no packet can
have. Sections are those of the OASIS text of MQTT 3.1.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct
from typing import Any, Final

from txbroker.model.errors import CallerError
from txbroker.mqtt.wire.framing import encode_length
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
)

MAX_REMAINING_LENGTH: Final = 268_435_455
"""Largest remaining length that four bytes can encode (section 2.2.3)."""

_UINT16 = Struct("!H")
_ACK = Struct("!BBH")  # first byte, remaining length, packet identifier
_HEAD = _ACK  # of a short PUBLISH: first byte, remaining length, length of the topic
_CONNECT = Struct("!BBH")  # level, flags, keep-alive

pack_packet_id: Callable[[int], bytes] = _UINT16.pack
"""Encodes a packet identifier, or any length of two bytes."""


def encode(packet: Packet) -> bytes:
    """Encode a packet; raises `CallerError` if a field is too long."""
    return _ENCODERS[type(packet)](packet)


def encode_publish(
    topic: str,
    payload: bytes,
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    packet_id: int | None = None,
) -> bytes:
    """Encode one PUBLISH; the bytes of a QoS 0 one suit any number of clients."""
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
    payload))`.
    """
    raw = topic.encode()
    first_byte = 0x30 | dup << 3 | qos << 1 | retain
    length = 2 + len(raw) + payload_size + (2 if qos else 0)
    if length < 128:
        return _HEAD.pack(first_byte, length, len(raw)) + raw
    return _header(first_byte, length) + _sized(raw)


def _header(first_byte: int, length: int) -> bytes:
    """Encode the fixed header of a body with `length` bytes (section 2.2)."""
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
    """Encode a SUBACK."""
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
