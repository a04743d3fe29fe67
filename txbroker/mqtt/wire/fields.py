"""
The data types inside a packet's body (section 1.5), read in sequence, and written.

A missing, leftover or malformed byte is a `ProtocolViolation`. The clauses are those of the OASIS
text of MQTT 3.1.1 (`level5_clauses` has those of MQTT 5.0).
"""

from __future__ import annotations

from functools import lru_cache

from txbroker.model.errors import CallerError
from txbroker.model.topics import LEVELS, TopicError, validate_topic_filter, validate_topic_name
from txbroker.mqtt.wire.reason_codes import ReasonCode
from txbroker.mqtt.wire.return_codes import ProtocolViolation

_SHOWN = 60  # characters of a topic in a reason
_FILTER_INVALID = ReasonCode.TOPIC_FILTER_INVALID  # to look up an enum's member takes its time


class FieldReader:
    """A body up to `end`, and the offset of its next field."""

    __slots__ = ("_body", "_end", "_offset")

    def __init__(self, body: bytes, offset: int = 0, end: int | None = None) -> None:
        self._body = body
        self._offset = offset
        self._end = len(body) if end is None else end

    def __bool__(self) -> bool:
        """True if bytes are left to read."""
        return self._offset < self._end

    @property
    def offset(self) -> int:
        """Return the offset of the next field."""
        return self._offset

    def byte(self) -> int:
        at = self._offset
        if at >= self._end:
            raise truncated()
        self._offset = at + 1
        return self._body[at]

    def uint16(self) -> int:
        at = self._offset
        if at + 2 > self._end:
            raise truncated()
        self._offset = at + 2
        return self._body[at] << 8 | self._body[at + 1]

    def uint32(self) -> int:
        return self.uint16() << 16 | self.uint16()

    def varint(self) -> int:
        """Read a variable byte integer; raises `ProtocolViolation` for a padded one."""
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 128:
                if shift and not byte:
                    # [MQTT-1.5.5-1]
                    reason = "A variable byte integer has more bytes than it needs."
                    raise ProtocolViolation("MQTT-1.5.5-1", reason)
                return value
        reason = "A variable byte integer has more than four bytes."
        raise ProtocolViolation("section 1.5.5", reason)

    def packet_id(self) -> int:
        value = self.uint16()
        if not value:
            raise zero_packet_id()
        return value

    def binary(self) -> bytes:
        """Read bytes that follow their length."""
        return self._sized(self.uint16())

    def property_list(self) -> FieldReader:
        """
        Read a property list; return its content, which is not copied.

        The copy of a list that is refused, of many megabytes, took the node 9 ms.
        """
        at = self._offset
        if at < self._end and not self._body[at]:  # most lists are empty
            self._offset = at + 1
            return _NOTHING
        start = self._pass(self.varint())
        return FieldReader(self._body, start, self._offset)

    def since(self, start: int) -> bytes:
        """Return the bytes from this offset up to the next field."""
        return self._body[start : self._offset]

    def _sized(self, size: int) -> bytes:
        start = self._pass(size)
        return self._body[start : self._offset]

    def _pass(self, size: int) -> int:
        """Pass that many bytes; return where they begin."""
        start = self._offset
        self._offset = stop = start + size
        if stop > self._end:
            raise truncated()
        return start

    def text(self) -> str:
        return text_of(self.binary())

    def pair(self) -> tuple[str, str]:
        return self.text(), self.text()  # [MQTT-1.5.7-1]

    def topic_name(self) -> str:
        return topic_name_of(self.binary())

    def topic_filter(self) -> str:
        return topic_filter_of(self.binary())

    def rest(self) -> bytes:
        """Read all bytes that are left; may be empty."""
        start, self._offset = self._offset, self._end
        return self._body[start : self._end]

    def end(self) -> None:
        """Raise `ProtocolViolation` if bytes are left."""
        if self:
            raise trailing()


_NOTHING = FieldReader(b"")


def pack_sized(raw: bytes) -> bytes:
    """Encode bytes behind their length; raises `CallerError` if they are too many."""
    if len(raw) > 0xFFFF:
        raise CallerError("A text or binary field has at most 65,535 bytes.")
    return len(raw).to_bytes(2) + raw


def pack_text(text: str) -> bytes:
    return pack_sized(text.encode())


def packet_id_of(body: bytes) -> int:
    """Return the packet identifier at the beginning of a body."""
    if len(body) < 2:
        raise truncated()
    packet_id = body[0] << 8 | body[1]
    if not packet_id:
        raise zero_packet_id()
    return packet_id


def text_of(raw: bytes) -> str:
    """Decode a UTF-8 string; a byte order mark stays in it [MQTT-1.5.3-3]."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        # [MQTT-1.5.3-1]
        raise ProtocolViolation("MQTT-1.5.3-1", "A text is not well-formed UTF-8.") from None
    if "\0" in text:
        # [MQTT-1.5.3-2]
        raise ProtocolViolation("MQTT-1.5.3-2", "A text contains the null character.")
    return text


def topic_name_of(raw: bytes) -> str:
    """Decode a topic name; a wildcard in it raises under the clause of PUBLISH."""
    text = text_of(raw)
    if b"+" in raw or b"#" in raw:
        # [MQTT-3.3.2-2]
        reason = f"Topic {shown(text)} has a wildcard: publish to one topic, without + and #."
        raise ProtocolViolation("MQTT-3.3.2-2", reason, reason_code=ReasonCode.TOPIC_NAME_INVALID)
    try:
        validate_topic_name(text)
    except TopicError as error:
        code = ReasonCode.TOPIC_NAME_INVALID
        reason = f"Topic {shown(text)}: {error}"
        raise ProtocolViolation(error.rule, reason, reason_code=code) from None
    check_levels(text)
    return text


def topic_filter_of(raw: bytes) -> str:
    """Decode a topic filter."""
    text = text_of(raw)
    try:
        validate_topic_filter(text)
    except TopicError as error:
        reason = f"Topic filter {shown(text)}: {error}"
        raise ProtocolViolation(error.rule, reason, reason_code=_FILTER_INVALID) from None
    check_levels(text, _FILTER_INVALID)
    return text


def shown(text: str) -> str:
    """Return a topic or filter for a reason of one line: quoted, and cut if it is long."""
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


_most_levels = LEVELS


def limit_levels(most: int) -> None:
    """
    Refuse topics and filters of more levels, in this process from now on.

    A level costs a node of a tree: 300 retained messages of 65,000 levels took 2.3 GB. Stored
    topics of more levels stay readable.
    """
    global _most_levels
    _most_levels = most
    recent_topic_name_of.cache_clear()


def check_levels(text: str, reason_code: ReasonCode = ReasonCode.TOPIC_NAME_INVALID) -> None:
    """Raise `ProtocolViolation` for a topic or filter of more levels than `limits.levels`."""
    if len(text) >= _most_levels and text.count("/") >= _most_levels:
        found = text.count("/") + 1
        reason = f"{shown(text)} has {found} levels: use {_most_levels}, or raise limits.levels."
        raise ProtocolViolation("limits.levels", reason, reason_code=reason_code)


# Clients publish to the same topics repeatedly; a cache hit takes a fifth of the time of decoding
# and checking. Only short topics are cached: a hostile client could fill half a gigabyte with long
# ones.
recent_topic_name_of = lru_cache(maxsize=8192)(topic_name_of)

RECENT_TOPIC_BYTES = 256


def truncated() -> ProtocolViolation:
    return ProtocolViolation("section 2.2.3", "A packet ends in the middle of a field.")


def trailing() -> ProtocolViolation:
    return ProtocolViolation("section 2.2.3", "A packet has bytes after its last field.")


def zero_packet_id() -> ProtocolViolation:
    # [MQTT-2.3.1-1]
    reason = "A packet identifier is zero."
    return ProtocolViolation("MQTT-2.3.1-1", reason, reason_code=ReasonCode.PROTOCOL_ERROR)
