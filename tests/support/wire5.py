"""
MQTT 5.0 packets as tests spell them, legal or not, and what a server may send.

Nothing of txbroker is imported, so that a mistake in the broker's codec cannot hide itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from .wire import (
    CONNACK,
    CONNECT,
    DISCONNECT,
    NAMES,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    Packet,
    length,
    packet,
    string,
)

AUTH = 15

Value = int | bytes | str | tuple[str, str]
Properties = list[tuple[int, Value]]
"""Pairs of identifier and value, in their order."""

PAYLOAD_FORMAT, MESSAGE_EXPIRY, CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION_DATA = 1, 2, 3, 8, 9
SUBSCRIPTION_ID, SESSION_EXPIRY, ASSIGNED_ID, SERVER_KEEP_ALIVE = 11, 17, 18, 19
AUTH_METHOD, AUTH_DATA, PROBLEM_INFO, WILL_DELAY, RESPONSE_INFO_WANTED = 21, 22, 23, 24, 25
RESPONSE_INFO, SERVER_REFERENCE, REASON_STRING, RECEIVE_MAXIMUM, ALIAS_MAXIMUM = 26, 28, 31, 33, 34
ALIAS, MAXIMUM_QOS, RETAIN_AVAILABLE, USER_PROPERTY, MAXIMUM_PACKET = 35, 36, 37, 38, 39
WILDCARD_AVAILABLE, SUBSCRIPTION_ID_AVAILABLE, SHARED_AVAILABLE = 40, 41, 42

# Section 2.2.2.2: the type of each property, and the packets from a server that may carry it.
TYPES = {
    PAYLOAD_FORMAT: "byte",
    MESSAGE_EXPIRY: "four",
    CONTENT_TYPE: "text",
    RESPONSE_TOPIC: "text",
    CORRELATION_DATA: "binary",
    SUBSCRIPTION_ID: "variable",
    SESSION_EXPIRY: "four",
    ASSIGNED_ID: "text",
    SERVER_KEEP_ALIVE: "two",
    AUTH_METHOD: "text",
    AUTH_DATA: "binary",
    PROBLEM_INFO: "byte",
    WILL_DELAY: "four",
    RESPONSE_INFO_WANTED: "byte",
    RESPONSE_INFO: "text",
    SERVER_REFERENCE: "text",
    REASON_STRING: "text",
    RECEIVE_MAXIMUM: "two",
    ALIAS_MAXIMUM: "two",
    ALIAS: "two",
    MAXIMUM_QOS: "byte",
    RETAIN_AVAILABLE: "byte",
    USER_PROPERTY: "pair",
    MAXIMUM_PACKET: "four",
    WILDCARD_AVAILABLE: "byte",
    SUBSCRIPTION_ID_AVAILABLE: "byte",
    SHARED_AVAILABLE: "byte",
}
_EXPLAINED = {REASON_STRING, USER_PROPERTY}
FROM_SERVER = {
    CONNACK: _EXPLAINED
    | {SESSION_EXPIRY, ASSIGNED_ID, SERVER_KEEP_ALIVE, AUTH_METHOD, AUTH_DATA, RESPONSE_INFO}
    | {SERVER_REFERENCE, RECEIVE_MAXIMUM, ALIAS_MAXIMUM, MAXIMUM_QOS, RETAIN_AVAILABLE}
    | {MAXIMUM_PACKET, WILDCARD_AVAILABLE, SUBSCRIPTION_ID_AVAILABLE, SHARED_AVAILABLE},
    PUBLISH: {PAYLOAD_FORMAT, MESSAGE_EXPIRY, CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION_DATA}
    | {SUBSCRIPTION_ID, ALIAS, USER_PROPERTY},
    PUBACK: _EXPLAINED,
    PUBREC: _EXPLAINED,
    PUBREL: _EXPLAINED,
    PUBCOMP: _EXPLAINED,
    SUBACK: _EXPLAINED,
    UNSUBACK: _EXPLAINED,
    DISCONNECT: _EXPLAINED | {SERVER_REFERENCE},
    AUTH: _EXPLAINED | {AUTH_METHOD, AUTH_DATA},
}
CODES = {
    CONNACK: {0, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F},
    PUBACK: {0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    PUBREC: {0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    PUBREL: {0, 0x92},
    PUBCOMP: {0, 0x92},
    SUBACK: {0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2},
    UNSUBACK: {0, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91},
    DISCONNECT: {0, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, *range(0x8B, 0x8F), 0x8F, 0x90}
    | {*range(0x93, 0xA3)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """A PUBLISH from the server, taken apart. `packet_id` is 0 at QoS 0."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int
    properties: Properties


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Any other packet from the server; `codes` are its reason codes, `present` CONNACK's flag."""

    kind: int
    packet_id: int = 0
    codes: tuple[int, ...] = ()
    present: bool = False
    properties: Properties = field(default_factory=list)

    @property
    def code(self) -> int:
        """The only reason code."""
        (code,) = self.codes
        return code

    def __getitem__(self, identifier: int) -> Value:
        return first(self.properties, identifier)

    def __contains__(self, identifier: int) -> bool:
        return any(name == identifier for name, _ in self.properties)


@dataclass(frozen=True, slots=True, kw_only=True)
class Will:
    """The will of a CONNECT."""

    topic: str | bytes
    payload: bytes = b"gone"
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default_factory=list)


def first(properties: Iterable[tuple[int, Value]], identifier: int) -> Value:
    """The value of the first property with this identifier; raises `KeyError`."""
    for name, value in properties:
        if name == identifier:
            return value
    raise KeyError(identifier)


# the encoder: it can spell illegal packets too


def value_of(kind: str, value: Value) -> bytes:
    """A property's value in its type."""
    if kind == "pair":
        assert isinstance(value, tuple)
        return string(value[0]) + string(value[1])
    if kind in ("text", "binary"):
        assert isinstance(value, str | bytes)
        return string(value)
    assert isinstance(value, int)
    if kind == "variable":
        return length(value)
    return value.to_bytes({"byte": 1, "two": 2, "four": 4}[kind], "big")


def properties_of(properties: Properties | bytes) -> bytes:
    """A property list behind its length; bytes are a list as it is."""
    if isinstance(properties, list):
        parts = (length(name) + value_of(TYPES[name], value) for name, value in properties)
        properties = b"".join(parts)
    return length(len(properties)) + properties


def connect(
    client_id: str | bytes = "",
    *,
    clean: bool = True,
    expiry: int | None = None,
    keep_alive: int = 0,
    will: Will | None = None,
    username: str | bytes | None = None,
    password: bytes | None = None,
    properties: Properties | bytes = b"",
    name: str | bytes = "MQTT",
    level: int = 5,
    set_flags: int = 0,
    clear_flags: int = 0,
    tail: bytes = b"",
) -> bytes:
    """A CONNECT. The flags follow the fields; `set_flags`, `clear_flags` and `tail` spoil them."""
    flags = 0x02 if clean else 0
    if expiry is not None:
        assert isinstance(properties, list) or not properties
        properties = [*(properties or []), (SESSION_EXPIRY, expiry)]
    payload = string(client_id)
    if will is not None:
        flags |= 0x04 | will.qos << 3 | (0x20 if will.retain else 0)
        payload += properties_of(will.properties) + string(will.topic) + string(will.payload)
    if username is not None:
        flags |= 0x80
        payload += string(username)
    if password is not None:
        flags |= 0x40
        payload += string(password)
    flags = (flags | set_flags) & ~clear_flags
    head = string(name) + struct.pack("!BBH", level, flags, keep_alive) + properties_of(properties)
    return packet(CONNECT, 0, head + payload + tail)


def publish(
    topic: str | bytes,
    payload: bytes = b"",
    *,
    qos: int = 0,
    packet_id: int = 0,
    retain: bool = False,
    dup: bool = False,
    properties: Properties | bytes = b"",
) -> bytes:
    """A PUBLISH; the packet identifier goes in where `qos` is not 0."""
    flags = dup << 3 | qos << 1 | retain
    middle = struct.pack("!H", packet_id) if qos else b""
    return packet(PUBLISH, flags, string(topic) + middle + properties_of(properties) + payload)


def ack(
    kind: int, packet_id: int, code: int | None = None, properties: Properties | bytes | None = None
) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP with its right flags, as short as its arguments let."""
    body = struct.pack("!H", packet_id)
    if code is not None:
        body += bytes([code])
    if properties is not None:
        body += properties_of(properties)
    return packet(kind, 2 if kind == PUBREL else 0, body)


def subscribe(
    packet_id: int,
    *filters: tuple[str | bytes, int],
    properties: Properties | bytes = b"",
) -> bytes:
    """A SUBSCRIBE for (filter, options byte) pairs."""
    body = b"".join(string(text) + bytes([options]) for text, options in filters)
    head = struct.pack("!H", packet_id) + properties_of(properties)
    return packet(SUBSCRIBE, 2, head + body)


def unsubscribe(
    packet_id: int, *filters: str | bytes, properties: Properties | bytes = b""
) -> bytes:
    """An UNSUBSCRIBE."""
    head = struct.pack("!H", packet_id) + properties_of(properties)
    return packet(UNSUBSCRIBE, 2, head + b"".join(map(string, filters)))


def disconnect(code: int | None = None, properties: Properties | bytes | None = None) -> bytes:
    """A DISCONNECT, as short as its arguments let."""
    body = b"" if code is None else bytes([code])
    if properties is not None:
        body += properties_of(properties)
    return packet(DISCONNECT, 0, body)


def auth(code: int, properties: Properties | bytes = b"") -> bytes:
    """An AUTH."""
    return packet(AUTH, 0, bytes([code]) + properties_of(properties))


# the parser: strict


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        found = self.data[self.at : self.at + size]
        assert len(found) == size, f"a field is cut: {self.data.hex()}"
        self.at += size
        return found

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def variable(self) -> int:
        value, shift = 0, 0
        while True:
            byte = self.number(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                assert not shift or byte, "a length is longer than it has to be"
                return value
            shift += 7
            assert shift < 28, "a length has more than four bytes"

    def binary(self) -> bytes:
        return self.take(self.number(2))

    def text(self) -> str:
        text = self.binary().decode("utf-8")
        assert "\0" not in text
        return text

    def properties(self, kind: int) -> Properties:
        end = self.variable() + self.at
        assert end <= len(self.data), "a property list is longer than its packet"
        found: Properties = []
        while self.at < end:
            name = self.variable()
            assert name in FROM_SERVER[kind], f"property {name} in {name_of(kind)}"
            is_new = all(name != known for known, _ in found)
            assert is_new or name in (USER_PROPERTY, SUBSCRIPTION_ID), f"property {name} twice"
            found.append((name, self._value(TYPES[name])))
        assert self.at == end, "a property list ends within a property"
        return found

    def _value(self, kind: str) -> Value:
        if kind == "pair":
            return self.text(), self.text()
        if kind == "text":
            return self.text()
        if kind == "binary":
            return self.binary()
        if kind == "variable":
            value = self.variable()
            assert value, "a subscription identifier is 0"
            return value
        return self.number({"byte": 1, "two": 2, "four": 4}[kind])


def name_of(kind: int) -> str:
    """The name of a packet type."""
    return "AUTH" if kind == AUTH else NAMES[kind]


def parse(raw: Packet) -> Publish | Answer:
    """Take a packet apart; fails the test on anything that a server must not send."""
    kind, reader = raw.kind, _Reader(raw.body)
    if kind == PUBLISH:
        return _publish(raw, reader)
    assert raw.flags == (2 if kind == PUBREL else 0), f"wrong flags: {raw}"
    if kind == PINGRESP:
        assert not raw.body
        return Answer(kind=kind)
    if kind == CONNACK:
        flags, code = reader.number(1), reader.number(1)
        assert flags <= 1 and not (flags and code), f"wrong flags: {raw}"
        found = Answer(
            kind=kind, present=flags == 1, codes=(code,), properties=reader.properties(kind)
        )
    elif kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
        packet_id = reader.number(2)
        code = reader.number(1) if reader.at < len(raw.body) else 0
        properties = reader.properties(kind) if reader.at < len(raw.body) else []
        found = Answer(kind=kind, packet_id=packet_id, codes=(code,), properties=properties)
    elif kind in (SUBACK, UNSUBACK):
        packet_id, properties = reader.number(2), reader.properties(kind)
        codes = tuple(reader.take(len(raw.body) - reader.at))
        assert codes, f"no reason codes: {raw}"
        found = Answer(kind=kind, packet_id=packet_id, codes=codes, properties=properties)
    else:
        assert kind in (DISCONNECT, AUTH), f"a server must not send {raw}"
        code = reader.number(1) if raw.body else 0
        properties = reader.properties(kind) if reader.at < len(raw.body) else []
        found = Answer(kind=kind, codes=(code,), properties=properties)
    assert reader.at == len(raw.body), f"bytes behind the last field: {raw}"
    assert set(found.codes) <= CODES.get(kind, {0}), f"wrong reason code: {raw}"
    return found


def _publish(raw: Packet, reader: _Reader) -> Publish:
    qos, dup = raw.flags >> 1 & 3, bool(raw.flags & 8)
    assert qos < 3 and (qos or not dup), f"wrong flags: {raw}"
    topic = reader.text()
    packet_id = reader.number(2) if qos else 0
    assert packet_id or not qos, f"packet identifier 0: {raw}"
    properties = reader.properties(PUBLISH)
    return Publish(
        topic=topic,
        payload=raw.body[reader.at :],
        qos=qos,
        retain=bool(raw.flags & 1),
        dup=dup,
        packet_id=packet_id,
        properties=properties,
    )
