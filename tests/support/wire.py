"""
MQTT 3.1.1 packets as tests spell them, legal or not, and what a server may send.

Nothing of txbroker is imported, so that a mistake in the broker's codec cannot hide itself.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = range(1, 8)
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT = range(8, 15)
NAMES = [
    "reserved-0",
    "CONNECT",
    "CONNACK",
    "PUBLISH",
    "PUBACK",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "SUBACK",
    "UNSUBSCRIBE",
    "UNSUBACK",
    "PINGREQ",
    "PINGRESP",
    "DISCONNECT",
    "reserved-15",
]

# The packets that a server may send: type -> (flags, remaining length or None for any). PUBLISH
# apart.
FROM_SERVER: dict[int, tuple[int, int | None]] = {
    CONNACK: (0, 2),
    PUBACK: (0, 2),
    PUBREC: (0, 2),
    PUBREL: (2, 2),
    PUBCOMP: (0, 2),
    SUBACK: (0, None),
    UNSUBACK: (0, 2),
    PINGRESP: (0, 0),
}


@dataclass(frozen=True, slots=True)
class Packet:
    """
    A packet from the server, as it came: fixed header and body.
    """

    kind: int
    flags: int
    body: bytes

    @property
    def packet_id(self) -> int:
        """The packet identifier of an acknowledgement (the first two bytes)."""
        return int.from_bytes(self.body[:2], "big")

    @property
    def codes(self) -> list[int]:
        """The return codes of a SUBACK."""
        return list(self.body[2:])

    def __str__(self) -> str:
        shown = self.body[:60].hex(" ") + (" ..." if len(self.body) > 60 else "")
        return f"{NAMES[self.kind]} flags={self.flags:04b} [{len(self.body)}] {shown}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """
    A PUBLISH from the server, taken apart. `packet_id` is 0 at QoS 0.
    """

    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Will:
    """
    The will of a CONNECT.
    """

    topic: str | bytes
    payload: bytes = b"gone"
    qos: int = 0
    retain: bool = False


# the encoder: it can spell illegal packets too


def length(value: int) -> bytes:
    """The remaining length in one to four bytes."""
    out = bytearray()
    while True:
        value, digit = divmod(value, 128)
        out.append(digit | (0x80 if value else 0))
        if not value:
            return bytes(out)


def string(text: str | bytes) -> bytes:
    """A length-prefixed string; bytes are taken as they are, so they may be ill-formed."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("!H", len(data)) + data


def packet(kind: int, flags: int, body: bytes = b"") -> bytes:
    """Any packet, legal or not."""
    return bytes([kind << 4 | flags]) + length(len(body)) + body


def connect(
    client_id: str | bytes = "",
    *,
    clean: bool = True,
    keep_alive: int = 0,
    will: Will | None = None,
    username: str | bytes | None = None,
    password: bytes | None = None,
    name: str | bytes = "MQTT",
    level: int = 4,
    set_flags: int = 0,
    clear_flags: int = 0,
    tail: bytes = b"",
) -> bytes:
    """
    A CONNECT. The flags follow the fields; `set_flags`, `clear_flags` and `tail` spoil them.
    """
    flags = 0x02 if clean else 0
    payload = string(client_id)
    if will is not None:
        flags |= 0x04 | will.qos << 3 | (0x20 if will.retain else 0)
        payload += string(will.topic) + string(will.payload)
    if username is not None:
        flags |= 0x80
        payload += string(username)
    if password is not None:
        flags |= 0x40
        payload += string(password)
    flags = (flags | set_flags) & ~clear_flags
    head = string(name) + struct.pack("!BBH", level, flags, keep_alive)
    return packet(CONNECT, 0, head + payload + tail)


def publish(
    topic: str | bytes,
    payload: bytes = b"",
    *,
    qos: int = 0,
    packet_id: int = 0,
    retain: bool = False,
    dup: bool = False,
) -> bytes:
    """A PUBLISH; the packet identifier goes in where `qos` is not 0."""
    flags = dup << 3 | qos << 1 | retain
    body = string(topic) + (struct.pack("!H", packet_id) if qos else b"") + payload
    return packet(PUBLISH, flags, body)


def ack(kind: int, packet_id: int) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP with its right flags."""
    return packet(kind, 2 if kind == PUBREL else 0, struct.pack("!H", packet_id))


def subscribe(packet_id: int, *filters: tuple[str | bytes, int]) -> bytes:
    """A SUBSCRIBE for (filter, options byte) pairs."""
    body = b"".join(string(text) + bytes([options]) for text, options in filters)
    return packet(SUBSCRIBE, 2, struct.pack("!H", packet_id) + body)


def unsubscribe(packet_id: int, *filters: str | bytes) -> bytes:
    """An UNSUBSCRIBE."""
    return packet(UNSUBSCRIBE, 2, struct.pack("!H", packet_id) + b"".join(map(string, filters)))


PING = packet(PINGREQ, 0)
BYE = packet(DISCONNECT, 0)


def parse_publish(raw: Packet) -> Publish:
    """
    Take a PUBLISH apart; fails the test on anything that a server must not send.
    """
    qos = raw.flags >> 1 & 3
    size = int.from_bytes(raw.body[:2], "big")
    start = 2 + size + (2 if qos else 0)
    assert qos < 3 and len(raw.body) >= start, f"malformed: {raw}"
    dup = bool(raw.flags & 8)
    assert qos or not dup, f"DUP at QoS 0: {raw}"  # [MQTT-3.3.1-2]
    packet_id = int.from_bytes(raw.body[2 + size : 4 + size], "big") if qos else 0
    assert packet_id or not qos, f"packet identifier 0: {raw}"  # [MQTT-2.3.1-1]
    return Publish(
        topic=raw.body[2 : 2 + size].decode("utf-8"),
        payload=raw.body[start:],
        qos=qos,
        retain=bool(raw.flags & 1),
        dup=dup,
        packet_id=packet_id,
    )


def cut_packet(buffer: bytearray) -> Packet | None:
    """
    Take the first whole packet off `buffer`, None when there is none yet. A packet that a server
    must never send fails the test.
    """
    found = cut_frame(buffer)
    if found is not None and found.kind != PUBLISH:
        flags, allowed = FROM_SERVER.get(found.kind, (-1, None))
        assert found.flags == flags, f"a server must not send {found}"  # [MQTT-2.2.2-1]
        assert allowed in (None, len(found.body)), f"wrong length: {found}"
    return found


def cut_frame(buffer: bytearray) -> Packet | None:
    """Take the first whole packet off `buffer`, whatever it is; None when there is none yet."""
    size, position = 0, 1
    while True:
        if len(buffer) <= position:
            return None
        digit = buffer[position]
        size |= (digit & 0x7F) << 7 * (position - 1)
        position += 1
        if digit < 0x80:
            break
        assert position <= 4, f"remaining length: {buffer[:5].hex()}"
    if len(buffer) < position + size:
        return None
    found = Packet(buffer[0] >> 4, buffer[0] & 15, bytes(buffer[position : position + size]))
    del buffer[: position + size]
    return found
