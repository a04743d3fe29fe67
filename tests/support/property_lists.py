"""Properties of a PUBLISH as bytes: those that travel with a message, and others."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

from txbroker.mqtt.wire.framing import encode_length


def sized(raw: bytes) -> bytes:
    """A field behind its length."""
    return len(raw).to_bytes(2) + raw


def user_property(name: str, value: str = "") -> bytes:
    return b"\x26" + sized(name.encode()) + sized(value.encode())


def with_length(properties: bytes) -> bytes:
    """The list of these properties."""
    return encode_length(len(properties)) + properties


_texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12
).map(str.encode)
_topics = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0+#"), min_size=1, max_size=12
).map(str.encode)
_properties = st.one_of(
    st.sampled_from([b"\x01\x00", b"\x01\x01"]),
    _texts.map(lambda text: b"\x03" + sized(text)),
    _topics.map(lambda text: b"\x08" + sized(text)),
    st.binary(max_size=300).map(lambda raw: b"\x09" + sized(raw)),
    st.builds(lambda name, value: b"\x26" + sized(name) + sized(value), _texts, _texts),
)


def _name(properties: bytes) -> bytes:
    """User properties may come with the same name, others once."""
    return properties if properties[0] == 0x26 else properties[:1]


plain_properties: Final[st.SearchStrategy[bytes]] = st.lists(
    _properties, max_size=6, unique_by=_name
).map(b"".join)
"""The properties that runs hold: each but expiry once, user properties as often as one likes."""

NOT_PLAIN: Final[dict[str, bytes]] = {
    "topic alias": b"\x23\x00\x01",
    "subscription identifier": b"\x0b\x01",
    "unknown": b"\x7f\x00",
    "highest": b"\xff\x00",
    "zero": b"\x00",
    "session expiry": b"\x11\x00\x00\x00\x01",
    "format of two": b"\x01\x02",
    "no format": b"\x01",
    "expiry twice": b"\x02\x00\x00\x00\x01" * 2,
    "short expiry": b"\x02\x00\x00\x01",
    "content type twice": b"\x03\x00\x01a" * 2,
    "content type with NUL": b"\x03\x00\x09abcdefgh\x00",
    "short content type": b"\x03\x00\x02a",
    "no length": b"\x03\x00",
    "content type no UTF-8": b"\x03\x00\x02\xc0\x80",
    "surrogate": b"\x03\x00\x03\xed\xa0\x80",
    "response topic with wildcard": b"\x08\x00\x03a/+",
    "response topic with hash": b"\x08\x00\x01#",
    "no response topic": b"\x08\x00\x00",
    "response topic with NUL": b"\x08\x00\x02a\x00",
    "response topic twice": b"\x08\x00\x01a" * 2,
    "correlation data twice": b"\x09\x00\x00" * 2,
    "short correlation data": b"\x09\x00\x05abcd",
    "user property without value": b"\x26\x00\x01a",
    "user property with NUL": b"\x26\x00\x01a\x00\x01\x00",
    "name no UTF-8": b"\x26\x00\x01\xff\x00\x01a",
}
"""Properties that the core leaves to others."""

NO_LIST: Final[dict[str, bytes]] = {
    "nothing": b"",
    "too short": b"\x05\x26\x00",
    "length in two bytes": b"\x80\x00",
    "length in three": b"\x85\x80\x00\x02\x00\x00\x00\x01",
    "length in five": b"\x80\x80\x80\x80\x01",
    "half a length": b"\x80",
    "longer by one": b"\x02\x01",
}
"""Bytes that are no list at all, at the end of a packet."""
