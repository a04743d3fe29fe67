"""
Payloads that say what they are, so that a receiver alone can tell whether one is as it was sent:
`<PUBLISHER NUMBER TOPIC SIZE>` and a filling that follows from it.
"""

from __future__ import annotations

import re

import attrs

_HEAD = re.compile(rb"<([^ <>]+) (\d+) ([^ <>]+) (\d+)>")
_FILLING = bytes(range(256)).replace(b"<", b"-") * 2


@attrs.frozen
class Origin:
    """Who published it, as which of its messages, on which topic."""

    publisher: str
    number: int
    topic: str


def of_will(client: str) -> str:
    """The publisher of a client's wills; each has the number of its connection."""
    return f"will-of-{client}"


def client_of_will(publisher: str) -> str:
    """Whose wills this is the publisher of; "" where it is none of wills."""
    return publisher.removeprefix("will-of-") if publisher.startswith("will-of-") else ""


def make(publisher: str, number: int, topic: str, size: int) -> bytes:
    """`size` bytes, more if that is too short for the head."""
    head = f"<{publisher} {number} {topic} {size}>".encode()
    start = number % 256
    filling = _FILLING[start : start + 256]
    return (head + filling * (size // 256 + 1))[: max(size, len(head))]


def read(payload: bytes) -> Origin | None:
    """None for what nobody has made, or what is not whole."""
    found = _HEAD.match(payload)
    if found is None:
        return None
    origin = Origin(found[1].decode(), int(found[2]), found[3].decode())
    is_whole = payload == make(origin.publisher, origin.number, origin.topic, int(found[4]))
    return origin if is_whole else None
