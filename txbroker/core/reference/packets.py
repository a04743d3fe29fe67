"""Decodes the packets that the core handles: plain PUBLISH. `mqtt/wire/decoder.py` has the rest."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from txbroker.core.reference.link_scope import LinkScope
from txbroker.mqtt.wire.fields import limit_levels, topic_name_of
from txbroker.mqtt.wire.framing import encode_length
from txbroker.mqtt.wire.message_expiry import expiry_of
from txbroker.mqtt.wire.property_list import LISTED, are_many, is_text, list_at
from txbroker.mqtt.wire.return_codes import ProtocolViolation

__all__ = [
    "DUP",
    "PUBLISH",
    "RETAIN",
    "Entry",
    "Form",
    "limit_levels",
    "plain_publish",
    "publish_head",
]

PUBLISH = 0x30
DUP = 0x08
RETAIN = 0x01


class Form(Enum):
    """The form of PUBLISH packets (`mqtt.wire.property_list`): wire form by level, or stored."""

    LEVEL_4 = 4
    LEVEL_5 = 5
    STORED = 15

    def has_list(self, first_byte: int) -> bool:
        """True if a packet with this first byte has a property list."""
        return self is Form.LEVEL_5 or (self is Form.STORED and first_byte & LISTED == LISTED)


class Entry(NamedTuple):
    """
    The positions of one PUBLISH in the bytes of a run.

    The packet lies in `start` to `end`, its topic in `topic` to `topic_end`, its payload from
    `payload` on. A property list, if any, fills the space before the payload.
    """

    start: int
    topic: int
    topic_end: int
    payload: int
    end: int
    qos: int
    packet_id: int

    @property
    def list_start(self) -> int:
        """Position behind topic and packet id: of the property list, if any, or the payload."""
        return self.topic_end + (2 if self.qos else 0)

    @property
    def has_list(self) -> bool:
        """True if the packet has a property list."""
        return self.payload > self.list_start

    @property
    def properties(self) -> int:
        """Position of the properties, behind the length of their list."""
        size = self.payload - self.list_start
        of_length = next(n for n in range(5) if n + 128**n > size)
        return self.list_start + of_length

    def moved(self, by: int) -> Entry:
        """Return the entry for bytes with `by` more bytes before the packet."""
        start, topic, topic_end, payload, end = (place + by for place in self[:5])
        return Entry(start, topic, topic_end, payload, end, self.qos, self.packet_id)


def publish_head(flags: int, topic: bytes, rest: int) -> bytes:
    """Encode a PUBLISH with these flags up to the end of its topic; `rest` bytes follow it."""
    body = len(topic).to_bytes(2) + topic
    return bytes((PUBLISH | flags,)) + encode_length(len(body) + rest) + body


def plain_publish(
    first_byte: int,
    body: bytes,
    start: int,
    bailiwick: LinkScope | None = None,
    form: Form = Form.LEVEL_4,
    *,
    leaves_text: bool = False,
    leaves_expiring: bool = False,
) -> Entry | None:
    """
    Return the positions in a PUBLISH of this form that begins at `start` of a run, or None.

    None leaves the packet to the decoder. The packet is then malformed or illegal, has RETAIN, or
    has a list that is not plain or too long. Or it has expired. Or its topic begins with `$`, or is
    outside the link scope `bailiwick`. `leaves_text`: or the packet says that its payload is UTF-8.
    `leaves_expiring`: or it will expire.
    """
    qos = first_byte >> 1 & 3
    if first_byte & RETAIN or qos == 3 or (first_byte & DUP and not qos) or len(body) < 2:
        return None
    size = body[0] << 8 | body[1]
    payload = 2 + size + (2 if qos else 0)
    if not size or payload > len(body) or body[2] == ord("$"):
        return None
    packet_id = body[payload - 2] << 8 | body[payload - 1] if qos else 0
    if qos and not packet_id:
        return None
    if form.has_list(first_byte):
        found = list_at(body, payload, len(body))
        if found is None:
            return None
        properties = body[slice(*found)]
        expiry = expiry_of(properties)
        if expiry == 0 or are_many(properties):
            return None
        if leaves_expiring and expiry is not None:
            return None
        if leaves_text and is_text(properties):
            return None
        payload = found[1]
    try:
        topic = topic_name_of(body[2 : 2 + size])
    except ProtocolViolation:
        return None
    if bailiwick is not None and not bailiwick.has(topic):
        return None
    at = start + 1 + len(encode_length(len(body)))
    return Entry(start, at + 2, at + 2 + size, at + payload, at + len(body), qos, packet_id)
