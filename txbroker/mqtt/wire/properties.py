"""
The properties of MQTT 5.0 (section 2.2.2), and the one table of them. Pure.

A property list is its length and its content; *raw* is the content. A violation names the numbered
clause, or the section of the property in its packet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs

from txbroker.mqtt.wire.fields import FieldReader, pack_sized, pack_text
from txbroker.mqtt.wire.framing import encode_length
from txbroker.mqtt.wire.level5_clauses import names_level_5
from txbroker.mqtt.wire.packet_kind import PacketKind
from txbroker.mqtt.wire.property_list import MOST_PROPERTIES
from txbroker.mqtt.wire.reason_codes import ReasonCode
from txbroker.mqtt.wire.return_codes import ProtocolViolation


@attrs.frozen(kw_only=True)
class Properties:
    """The properties of one packet; None: the property is absent."""

    payload_format: int | None = None
    message_expiry: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()
    session_expiry: int | None = None
    assigned_client_id: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: bool | None = None
    will_delay: int | None = None
    request_response_information: bool | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: bool | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    maximum_packet_size: int | None = None
    wildcard_available: bool | None = None
    subscription_identifiers_available: bool | None = None
    shared_available: bool | None = None


NO_PROPERTIES: Final = Properties()


@attrs.frozen
class _Type:
    """A data type of a property's value (section 1.5)."""

    read: Callable[[FieldReader], Any]
    write: Callable[[Any], bytes]


_BYTE = _Type(FieldReader.byte, lambda value: bytes((value,)))
_FLAG = _Type(FieldReader.byte, lambda value: bytes((value,)))  # a byte that is 0 or 1
_UINT16 = _Type(FieldReader.uint16, lambda value: value.to_bytes(2))
_UINT32 = _Type(FieldReader.uint32, lambda value: value.to_bytes(4))
_VARINT = _Type(FieldReader.varint, encode_length)
_TEXT = _Type(FieldReader.text, pack_text)
_BINARY = _Type(FieldReader.binary, pack_sized)
_PAIR = _Type(FieldReader.pair, lambda pair: pack_text(pair[0]) + pack_text(pair[1]))


@attrs.frozen
class Property:
    """
    A row of the table: the packets that may have the property, and its section in each.

    `least` and `most` are the range of a number; the packets in `many` may repeat the property.
    """

    identifier: int
    name: str
    type: _Type
    sections: dict[PacketKind, str]
    least: int = 0
    most: int | None = None
    many: frozenset[PacketKind] = frozenset()


_WILL, _CONNECT, _CONNACK, _PUBLISH = (PacketKind(kind) for kind in range(4))
_SUBSCRIBE, _DISCONNECT, _AUTH = PacketKind.SUBSCRIBE, PacketKind.DISCONNECT, PacketKind.AUTH

_REASON_STRING: Final = {
    _CONNACK: "3.2.2.3.9",
    PacketKind.PUBACK: "3.4.2.2.2",
    PacketKind.PUBREC: "3.5.2.2.2",
    PacketKind.PUBREL: "3.6.2.2.2",
    PacketKind.PUBCOMP: "3.7.2.2.2",
    PacketKind.SUBACK: "3.9.2.1.2",
    PacketKind.UNSUBACK: "3.11.2.1.2",
    _DISCONNECT: "3.14.2.2.3",
    _AUTH: "3.15.2.2.4",
}

_USER_PROPERTY: Final = {
    _WILL: "3.1.3.2.8",
    _CONNECT: "3.1.2.11.8",
    _CONNACK: "3.2.2.3.10",
    _PUBLISH: "3.3.2.3.7",
    PacketKind.PUBACK: "3.4.2.2.3",
    PacketKind.PUBREC: "3.5.2.2.3",
    PacketKind.PUBREL: "3.6.2.2.3",
    PacketKind.PUBCOMP: "3.7.2.2.3",
    _SUBSCRIBE: "3.8.2.1.3",
    PacketKind.SUBACK: "3.9.2.1.3",
    PacketKind.UNSUBSCRIBE: "3.10.2.1.2",
    PacketKind.UNSUBACK: "3.11.2.1.3",
    _DISCONNECT: "3.14.2.2.4",
    _AUTH: "3.15.2.2.5",
}

TABLE: Final = (
    Property(0x01, "payload_format", _BYTE, {_WILL: "3.1.3.2.3", _PUBLISH: "3.3.2.3.2"}, most=1),
    Property(0x02, "message_expiry", _UINT32, {_WILL: "3.1.3.2.4", _PUBLISH: "3.3.2.3.3"}),
    Property(0x03, "content_type", _TEXT, {_WILL: "3.1.3.2.5", _PUBLISH: "3.3.2.3.9"}),
    Property(0x08, "response_topic", _TEXT, {_WILL: "3.1.3.2.6", _PUBLISH: "3.3.2.3.5"}),
    Property(0x09, "correlation_data", _BINARY, {_WILL: "3.1.3.2.7", _PUBLISH: "3.3.2.3.6"}),
    Property(
        0x0B,
        "subscription_identifiers",
        _VARINT,
        {_PUBLISH: "3.3.2.3.8", _SUBSCRIBE: "3.8.2.1.2"},
        least=1,
        many=frozenset({_PUBLISH}),
    ),
    Property(
        0x11,
        "session_expiry",
        _UINT32,
        {_CONNECT: "3.1.2.11.2", _CONNACK: "3.2.2.3.2", _DISCONNECT: "3.14.2.2.2"},
    ),
    Property(0x12, "assigned_client_id", _TEXT, {_CONNACK: "3.2.2.3.7"}),
    Property(0x13, "server_keep_alive", _UINT16, {_CONNACK: "3.2.2.3.14"}),
    Property(
        0x15,
        "authentication_method",
        _TEXT,
        {_CONNECT: "3.1.2.11.9", _CONNACK: "3.2.2.3.17", _AUTH: "3.15.2.2.2"},
    ),
    Property(
        0x16,
        "authentication_data",
        _BINARY,
        {_CONNECT: "3.1.2.11.10", _CONNACK: "3.2.2.3.18", _AUTH: "3.15.2.2.3"},
    ),
    Property(0x17, "request_problem_information", _FLAG, {_CONNECT: "3.1.2.11.7"}, most=1),
    Property(0x18, "will_delay", _UINT32, {_WILL: "3.1.3.2.2"}),
    Property(0x19, "request_response_information", _FLAG, {_CONNECT: "3.1.2.11.6"}, most=1),
    Property(0x1A, "response_information", _TEXT, {_CONNACK: "3.2.2.3.15"}),
    Property(0x1C, "server_reference", _TEXT, {_CONNACK: "3.2.2.3.16", _DISCONNECT: "3.14.2.2.5"}),
    Property(0x1F, "reason_string", _TEXT, _REASON_STRING),
    Property(
        0x21,
        "receive_maximum",
        _UINT16,
        {_CONNECT: "3.1.2.11.3", _CONNACK: "3.2.2.3.3"},
        least=1,
    ),
    Property(0x22, "topic_alias_maximum", _UINT16, {_CONNECT: "3.1.2.11.5", _CONNACK: "3.2.2.3.8"}),
    Property(0x23, "topic_alias", _UINT16, {_PUBLISH: "3.3.2.3.4"}, least=1),
    Property(0x24, "maximum_qos", _BYTE, {_CONNACK: "3.2.2.3.4"}, most=1),
    Property(0x25, "retain_available", _FLAG, {_CONNACK: "3.2.2.3.5"}, most=1),
    Property(0x26, "user_properties", _PAIR, _USER_PROPERTY, many=frozenset(_USER_PROPERTY)),
    Property(
        0x27,
        "maximum_packet_size",
        _UINT32,
        {_CONNECT: "3.1.2.11.4", _CONNACK: "3.2.2.3.6"},
        least=1,
    ),
    Property(0x28, "wildcard_available", _FLAG, {_CONNACK: "3.2.2.3.11"}, most=1),
    Property(0x29, "subscription_identifiers_available", _FLAG, {_CONNACK: "3.2.2.3.12"}, most=1),
    Property(0x2A, "shared_available", _FLAG, {_CONNACK: "3.2.2.3.13"}, most=1),
)
"""Each property once, in the order of identifiers, which is the order in which they are encoded."""

_BY_IDENTIFIER: Final = {row.identifier: row for row in TABLE}

_MAXIMUM_PACKET_SIZE: Final = 0x27

_OF_ONE_HOP: Final = frozenset({"subscription_identifiers", "topic_alias", "will_delay"})
"""Properties of a message that end here: they are of a connection, or of the server."""


def decode_properties(raw: bytes, packet_kind: PacketKind) -> Properties:
    """Decode the content of a property list; raises `ProtocolViolation`."""
    return read_properties(FieldReader(raw), packet_kind)


@names_level_5
def read_properties(fields: FieldReader, packet_kind: PacketKind) -> Properties:
    """Read the content of a property list; raises `ProtocolViolation`."""
    return _collect(list(_walk(fields, packet_kind)), packet_kind) if fields else NO_PROPERTIES


@names_level_5
def split_properties(fields: FieldReader, packet_kind: PacketKind) -> tuple[bytes, Properties]:
    """
    Read the list of a PUBLISH or a will; return the content that the message carries on, too.

    The properties that it does not carry are topic alias, subscription identifiers and will delay.
    """
    if not fields:
        return b"", NO_PROPERTIES
    start = fields.offset
    found = list(_walk(fields, packet_kind))
    if any(row.name in _OF_ONE_HOP for row, _, _ in found):
        carried = b"".join(span for row, _, span in found if row.name not in _OF_ONE_HOP)
    else:
        carried = fields.since(start)
    return carried, _collect(found, packet_kind)


def packet_limit(raw: bytes) -> int | None:
    """
    Return the maximum packet size in the list of an illegal CONNECT; 0: the list has none.

    None: the list cannot be read, and may have one.
    """
    fields, least, start = FieldReader(raw), 0, 0
    try:
        while fields:
            start = fields.offset
            row = _BY_IDENTIFIER[fields.varint()]
            value = row.type.read(fields)
            if row.identifier == _MAXIMUM_PACKET_SIZE and value:
                least = min(least or value, value)
    except (KeyError, ProtocolViolation):
        # Properties behind an unknown or malformed one cannot be told apart.
        if not least and may_limit(raw[start:]):
            return None
    return least


def may_limit(raw: bytes) -> bool:
    """True if a list that cannot be read may have a maximum packet size."""
    return _MAXIMUM_PACKET_SIZE in raw


def encode_properties(properties: Properties) -> bytes:
    """Encode the content of a property list."""
    if properties is NO_PROPERTIES:
        return b""
    parts = []
    for row in TABLE:
        value = getattr(properties, row.name)
        if value is None:
            continue
        for each in value if isinstance(value, tuple) else (value,):
            parts.append(bytes((row.identifier,)) + row.type.write(each))
    return b"".join(parts)


def encode_property_list(properties: Properties) -> bytes:
    """Encode a property list, its length included [MQTT-2.2.2-1]."""
    return property_list(encode_properties(properties))


def property_list(raw: bytes) -> bytes:
    """Return the property list with a content: its length comes first."""
    return encode_length(len(raw)) + raw if raw else b"\0"


def _walk(fields: FieldReader, kind: PacketKind) -> Iterator[tuple[Property, Any, bytes]]:
    """Yield the properties of a list in their order: row, checked value, and bytes of each."""
    left = MOST_PROPERTIES
    while fields:
        left -= 1
        if left < 0:
            reason = f"{kind.subject} has more than {MOST_PROPERTIES} properties."
            code = ReasonCode.QUOTA_EXCEEDED
            raise ProtocolViolation("section 4.13.2", reason, reason_code=code)
        start = fields.offset
        identifier = fields.varint()
        row = _BY_IDENTIFIER.get(identifier)
        if row is None or kind not in row.sections:
            reason = f"Property {identifier:#04x} does not belong in {kind.phrase}."
            raise ProtocolViolation("section 2.2.2.2", reason)
        value = row.type.read(fields)
        _check(row, value, kind)
        yield row, value, fields.since(start)


def _check(row: Property, value: Any, kind: PacketKind) -> None:
    """Raise `ProtocolViolation` for a value that its type, but not its property, can have."""
    if isinstance(value, int):
        if value < row.least or row.most is not None and value > row.most:
            raise _out_of_range(row, value, kind)
    elif row.name == "response_topic":
        if not value:
            # [MQTT-4.7.3-1]
            raise _protocol_error("MQTT-4.7.3-1", "A response topic is empty.")
        if "+" in value or "#" in value:
            # [MQTT-3.3.2-14]
            raise _protocol_error("MQTT-3.3.2-14", "A response topic contains a wildcard.")


def _out_of_range(row: Property, value: int, kind: PacketKind) -> ProtocolViolation:
    reason = f"The value {value} is illegal for {_words(row)} in {kind.phrase}."
    if row.name == "topic_alias":
        # [MQTT-3.3.2-8]
        code = ReasonCode.TOPIC_ALIAS_INVALID
        return ProtocolViolation("MQTT-3.3.2-8", reason, reason_code=code)
    return _error(row, kind, reason)


def _collect(found: list[tuple[Property, Any, bytes]], kind: PacketKind) -> Properties:
    """Return the properties of a list; raises `ProtocolViolation` for a repeated one."""
    values: dict[str, Any] = {}
    for row, value, _ in found:
        if row.type in (_PAIR, _VARINT):
            values.setdefault(row.name, []).append(value)
            is_repeated = len(values[row.name]) > 1 and kind not in row.many
        else:
            is_repeated = row.name in values
            values[row.name] = value != 0 if row.type is _FLAG else value
        if is_repeated:
            raise _error(row, kind, f"{kind.subject} has {_words(row)} twice.")
    for name in ("subscription_identifiers", "user_properties"):
        if name in values:
            values[name] = tuple(values[name])
    if "authentication_data" in values and "authentication_method" not in values:
        row = _BY_IDENTIFIER[0x16]
        raise _error(row, kind, f"{kind.subject} has authentication data without a method.")
    return Properties(**values)


def _error(row: Property, kind: PacketKind, reason: str) -> ProtocolViolation:
    return _protocol_error(f"section {row.sections[kind]}", reason)


def _protocol_error(rule: str, reason: str) -> ProtocolViolation:
    return ProtocolViolation(rule, reason, reason_code=ReasonCode.PROTOCOL_ERROR)


def _words(row: Property) -> str:
    return row.name.replace("_", " ")
