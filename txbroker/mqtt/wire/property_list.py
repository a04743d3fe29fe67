"""
The property list of a PUBLISH as bytes: encoded, cut out and checked, never decoded.

A PUBLISH has one of two forms. The *wire form* is that of a client's socket. Only the client's
level tells whether a list stands before the payload. The *stored form* is that of links and stores.
A packet with a list has the packet type 15 in place of 3. A list may be empty in both.

*Plain* lists have only properties that travel with a message unchanged. Others are left to the
decoder. Sections and clauses are those of the OASIS text of MQTT 5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from txbroker.model.topics import TopicError, validate_topic_name
from txbroker.mqtt.wire.framing import encode_length
from txbroker.mqtt.wire.return_codes import ProtocolViolation

LISTED: Final = 0xC0
"""Bits that make a first byte with packet type 3 one with packet type 15, and back."""

LISTED_LEVEL: Final = 5
"""Level from which on a PUBLISH has a property list on the wire."""

MOST_PROPERTIES: Final = 1_000
"""
Properties of a packet of a client: more are refused.

A packet of 16 MiB has room for three million. To decode these takes the node five seconds.
"""

PAYLOAD_FORMAT: Final = 0x01
USER_PROPERTY: Final = 0x26


def is_stored_publish(first_byte: int) -> bool:
    """True if the first byte of a packet in the stored form is that of a PUBLISH."""
    return first_byte >> 4 in (3, 15)


def property_list(properties: bytes) -> bytes:
    """Return the list of these properties: their length, and the properties."""
    return encode_length(len(properties)) + properties


def list_at(data: bytes | bytearray, at: int, end: int) -> tuple[int, int] | None:
    """
    Return start and end of the properties of a plain list that begins at `at`.

    None: no such list ends at `end` or before. The list itself ends where its properties end.
    """
    size = shift = 0
    start = at
    while True:
        if start >= end or shift > 21:
            return None
        byte = data[start]
        size |= (byte & 127) << shift
        shift += 7
        start += 1
        if byte < 128:
            break
    is_shortest = byte or shift == 7  # [MQTT-1.5.5-1]
    if not is_shortest or start + size > end or not are_plain(bytes(data[start : start + size])):
        return None
    return start, start + size


def read_list(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """
    Return the properties of the list that begins at `at`, and where it ends.

    Raises `ProtocolViolation` if no plain list does.
    """
    found = list_at(data, at, end)
    if found is None:
        raise ProtocolViolation("section 3.3.2.3", "A stored PUBLISH has no plain property list.")
    return data[slice(*found)], found[1]


def cut_list(first_byte: int, body: bytes) -> tuple[int, bytes, bytes]:
    """
    Return first byte and body of a stored PUBLISH without its list, and the properties.

    Raises `ProtocolViolation` if the list is not plain. All else is left to the decoder.
    """
    if first_byte & LISTED != LISTED:
        return first_byte, body, b""
    at = 2 + int.from_bytes(body[:2]) + (2 if first_byte & 0x06 else 0)
    properties, payload = read_list(body, at, len(body))
    return first_byte & ~LISTED, body[:at] + body[payload:], properties


def parts_of(properties: bytes) -> Iterator[tuple[int, int]]:
    """Yield position and identifier of each property of a plain list."""
    at = 0
    while at < len(properties):
        identifier = properties[at]
        yield at, identifier
        size_of = _SIZES.get(identifier)
        size = None if size_of is None else size_of(properties, at + 1)
        if size is None:
            return  # only a list that was not checked has others
        at += 1 + size


def is_text(properties: bytes) -> bool:
    """True if the payload format indicator of a plain list says that the payload is UTF-8."""
    return any(name == PAYLOAD_FORMAT and properties[at + 1] for at, name in parts_of(properties))


def are_many(properties: bytes) -> bool:
    """True if a plain list has more properties than a packet of a client may have."""
    if len(properties) <= MOST_PROPERTIES:
        return False
    return sum(1 for _ in parts_of(properties)) > MOST_PROPERTIES


def are_plain(properties: bytes) -> bool:
    """True if the properties are those that travel with a message, and legal."""
    at = 0
    known: set[int] = set()
    while at < len(properties):
        identifier = properties[at]
        size_of = _SIZES.get(identifier)
        if size_of is None or identifier in known:
            return False
        if identifier != USER_PROPERTY:
            known.add(identifier)
        size = size_of(properties, at + 1)
        if size is None:
            return False
        at += 1 + size
    return True


def _flag(properties: bytes, at: int) -> int | None:
    """Return the size of a legal payload format indicator (section 3.3.2.3.2)."""
    return 1 if properties[at : at + 1] in (b"\0", b"\1") else None


def _four_bytes(properties: bytes, at: int) -> int | None:
    return 4 if at + 4 <= len(properties) else None


def _binary(properties: bytes, at: int) -> int | None:
    """Return the size of a field that follows its length; None: it ends too early."""
    size = 2 + int.from_bytes(properties[at : at + 2])
    return size if at + size <= len(properties) else None


def _text(properties: bytes, at: int) -> int | None:
    """Return the size of a text; None: it is no UTF-8, or has NUL [MQTT-1.5.4-2]."""
    size = _binary(properties, at)
    if size is None:
        return None
    raw = properties[at + 2 : at + size]
    try:
        raw.decode()
    except UnicodeDecodeError:
        return None
    return None if b"\0" in raw else size


def _topic(properties: bytes, at: int) -> int | None:
    """Return the size of a topic name without wildcards [MQTT-3.3.2-14]."""
    size = _text(properties, at)
    if size is None:
        return None
    try:
        validate_topic_name(properties[at + 2 : at + size].decode())
    except TopicError:
        return None
    return size


def _pair(properties: bytes, at: int) -> int | None:
    """Return the size of a name and a value."""
    name = _text(properties, at)
    value = None if name is None else _text(properties, at + name)
    return None if name is None or value is None else name + value


_SIZES: Final[dict[int, Callable[[bytes, int], int | None]]] = {
    PAYLOAD_FORMAT: _flag,
    0x02: _four_bytes,  # message expiry interval
    0x03: _text,  # content type
    0x08: _topic,  # response topic
    0x09: _binary,  # correlation data
    USER_PROPERTY: _pair,
}
