"""
Decodes a journal's batches (`journal/store/record_format.py`) without trust in their source.
"""

from __future__ import annotations

import sys
from array import array
from struct import Struct
from typing import NamedTuple

from txbroker.core.reference.packets import Form
from txbroker.model.errors import PeerError
from txbroker.model.topics import TopicError, validate_topic_name
from txbroker.mqtt.wire.property_list import is_stored_publish, list_at

MOST = 65_535
"""Maximum number of records in a batch."""

PROBLEMS = (
    "",
    "it ends too early",
    "no publisher is named",
    "an index is too high",
    "a name is no UTF-8",
    "a packet is no PUBLISH",
    "a topic is not valid",
    "something follows its last packet",
    "its places are in disorder",
    "its number of records is wrong",
    "its offsets are not those that come next",
)
(_, SHORT, NOBODY, INDEX, NAME, PACKET, TOPIC, REST, PLACES, COUNT, ORDER) = range(len(PROBLEMS))

_HEAD = Struct("<BHHH")
_MARK = 24  # bytes of a mark after its texts


class Opened(NamedTuple):
    """
    The decoded beginning of a body.

    `publishers`: client and node, undecoded. `places`: for each message the index of its publisher,
    or None for a single publisher. `names` and `packets`: the positions of the names and packets.
    """

    publishers: list[tuple[bytes, bytes]]
    places: array[int] | None
    names: int
    packets: int


class Packet(NamedTuple):
    """
    The positions of one PUBLISH in a body.

    Its properties, if any, lie from `properties` up to the payload.
    """

    start: int
    topic: int
    topic_end: int
    properties: int
    payload: int
    end: int


class Malformed(Exception):
    """A malformed body; `problem` is an index of `PROBLEMS`."""

    def __init__(self, problem: int) -> None:
        super().__init__(problem)
        self.problem = problem


def malformed(first: int, problem: int) -> PeerError:
    """Return the error for a malformed batch that begins at offset `first`."""
    return PeerError(f"the stored batch of offset {first} is malformed: {PROBLEMS[problem]}")


def open_body(body: bytes, count: int) -> Opened:
    """Decode the part before the packets of `count` records; raises `Malformed`."""
    if not 0 < count <= MOST:
        raise Malformed(COUNT)
    if len(body) < _HEAD.size:
        raise Malformed(SHORT)
    _, marks, edges_count, publishers_count = _HEAD.unpack_from(body)
    if not edges_count or not publishers_count:
        raise Malformed(NOBODY)
    at = _HEAD.size
    for _ in range(marks):
        at = _text(body, _text(body, at)[1])[1] + _MARK
    names = at
    edges, at = _texts(body, at, edges_count)
    clients, at = _texts(body, at, publishers_count)
    edge_of = array("H", bytes(2 * publishers_count))
    if edges_count > 1:
        edge_of, at = _indexes(body, at, publishers_count, edges_count)
    places = None
    if publishers_count > 1:
        places, at = _indexes(body, at, count, publishers_count)
    publishers = [(client, edges[edge]) for client, edge in zip(clients, edge_of, strict=True)]
    return Opened(publishers, places, names, at)


def packet_at(body: bytes | bytearray, at: int) -> Packet:
    """Return the positions of the PUBLISH at `at`; raises `Malformed`."""
    start, at, size = at, at + 1, len(body)
    length = shift = 0
    while True:
        if at >= size:
            raise Malformed(SHORT)
        length |= (body[at] & 127) << shift
        shift += 7
        at += 1
        if body[at - 1] < 128:
            break
        if shift > 21:
            raise Malformed(PACKET)
    end = at + length
    qos = body[start] >> 1 & 3
    if not is_stored_publish(body[start]) or qos == 3 or length < 2:
        raise Malformed(PACKET)
    if end > size:
        raise Malformed(SHORT)
    topic_end = at + 2 + (body[at] << 8 | body[at + 1])
    payload = topic_end + (2 if qos else 0)
    if payload > end:
        raise Malformed(PACKET)
    properties = payload
    if Form.STORED.has_list(body[start]):
        found = list_at(body, payload, end)
        if found is None:
            raise Malformed(PACKET)
        properties, payload = found
    return Packet(start, at + 2, topic_end, properties, payload, end)


def topic_of(raw: bytes) -> str:
    """Decode and check a topic name; raises `Malformed`."""
    try:
        name = raw.decode()
        validate_topic_name(name)
    except (UnicodeDecodeError, TopicError):
        raise Malformed(TOPIC) from None
    return name


def names_of(client: bytes, node: bytes) -> tuple[str, str]:
    """Decode the names of a publisher and its node; raises `Malformed`."""
    try:
        return client.decode(), node.decode()
    except UnicodeDecodeError:
        raise Malformed(NAME) from None


def places_of(raw: bytes, count: int) -> array[int] | range:
    """Return the places of `count` records, relative to the first offset; raises `Malformed`."""
    if not raw:
        return range(count)
    if len(raw) != 2 * count:
        raise Malformed(PLACES)
    found = little(array("H", raw))
    if any(found[index] >= found[index + 1] for index in range(count - 1)):
        raise Malformed(PLACES)
    return found


def little(numbers: array[int]) -> array[int]:
    """Convert numbers in place from little-endian or to it."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _text(body: bytes, at: int) -> tuple[bytes, int]:
    if at + 2 > len(body):
        raise Malformed(SHORT)
    start = at + 2
    end = start + (body[at] | body[at + 1] << 8)
    if end > len(body):
        raise Malformed(SHORT)
    return body[start:end], end


def _texts(body: bytes, at: int, count: int) -> tuple[list[bytes], int]:
    texts: list[bytes] = []
    for _ in range(count):
        text, at = _text(body, at)
        texts.append(text)
    return texts, at


def _indexes(body: bytes, at: int, count: int, limit: int) -> tuple[array[int], int]:
    end = at + 2 * count
    if end > len(body):
        raise Malformed(SHORT)
    found = little(array("H", body[at:end]))
    if max(found) >= limit:
        raise Malformed(INDEX)
    return found, end
