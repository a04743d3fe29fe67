"""
The body of a journal's batch: duplicate marks, publishers and edges, and the PUBLISH packets in
their stored form.

    flags (1: a message has RETAIN), number of marks, of edges, of publishers
    for each mark: edge, incarnation, zone, stream, sequence
    the names of the edge nodes that messages came in on
    the publishers' client ids; for more than one edge: for each publisher the index of its own
    for more than one publisher: for each message the index of its own
    the packets, one after the other

Texts are UTF-8 behind their length, numbers little-endian. The same client id at two edges is two
publishers. The file of the batch has the version of this format (`segment.FORMAT`). Pure: bytes in,
values out, and back.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.journal.zone_journal import Record
from txbroker.model.publish_run import Octets, PublishRun
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.property_list import LISTED, read_list
from txbroker.storage.segment import Batch

MOST_RECORDS = 65_535
"""The most messages of one batch: each may have another publisher, whose index has two bytes."""

_HEAD = Struct("<BHHH")
_NUMBERS = Struct("<QQQ")
_SIZE = Struct("<H")
_RETAINED = 1

Marks = tuple[tuple[MarkKey, int], ...]
"""Duplicate marks with the highest sequence of each."""

Piece = Message | PublishRun
"""A piece of a batch."""


# -- encoding


def encode_records(pieces: Sequence[Piece], marks: Mapping[MarkKey, int], node: str = "") -> bytes:
    """
    Return the body of a batch.

    A batch has 1 to `MOST_RECORDS` messages, and at most 65,535 marks. `node` is the edge of
    messages that name none.
    """
    publishers: dict[tuple[str, str], int] = {}
    places = array("H")
    packets: list[Octets] = []
    has_retained = False
    for piece in pieces:
        if isinstance(piece, Message):
            who = piece.client_id, piece.edge or node
            places.append(publishers.setdefault(who, len(publishers)))
            packets.append(piece.link_packet)
            has_retained = has_retained or piece.retain
        else:
            places += _places(piece, publishers, node)
            packets.append(piece.raw)
    edges: dict[str, int] = {}
    edge_of = array("H", [edges.setdefault(edge, len(edges)) for _, edge in publishers])
    parts = [_HEAD.pack(has_retained * _RETAINED, len(marks), len(edges), len(publishers))]
    for (edge, incarnation, zone, stream), sequence in marks.items():
        parts.append(_text(edge) + _text(zone) + _NUMBERS.pack(incarnation, stream, sequence))
    parts += map(_text, edges)
    parts += [_text(client) for client, _ in publishers]
    if len(edges) > 1:
        parts.append(_little(edge_of).tobytes())
    if len(publishers) > 1:
        parts.append(_little(places).tobytes())
    return b"".join((*parts, *packets))


def to_batch(
    offsets: Sequence[int],
    packets: bytes,
    clients: Sequence[str] = (),
    client: Sequence[int] = (),
) -> tuple[int, bytes, int, bytes]:
    """
    Return the arguments of `StoredRecords.add` for packets whose edges are unknown.

    The offsets are in order, and the last is at most 65,535 above the first; raises
    `OverflowError`. `client` has for each packet an index of `clients`; without them the publishers
    are unknown, too.
    """
    clients = clients or ("",)
    parts = [_HEAD.pack(0, 0, 1, len(clients)), _text(""), *map(_text, clients)]
    if len(clients) > 1:
        parts.append(_little(array("H", client)).tobytes())
    body = b"".join((*parts, packets))
    places = array("H", [offset - offsets[0] for offset in offsets])
    return offsets[0], body, len(offsets), _little(places).tobytes()


def _places(run: PublishRun, publishers: dict[tuple[str, str], int], node: str) -> array[int]:
    """Return the publisher's index for each message of a run; new publishers are added."""
    edge = run.edge or node
    if run.places is None:
        who = run.clients[0], edge
        return array("H", (publishers.setdefault(who, len(publishers)),)) * run.count
    own = [publishers.setdefault((client, edge), len(publishers)) for client in run.clients]
    if not isinstance(run.places, bytes) or max(own) > 255:
        return array("H", map(own.__getitem__, run.places))
    wide = bytearray(2 * run.count)
    wide[::2] = run.places.translate(bytes(own).ljust(256))
    return _little(array("H", bytes(wide)))


def _text(text: str) -> bytes:
    raw = text.encode()
    return _SIZE.pack(len(raw)) + raw


def _little(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


# -- decoding


class _Opened(NamedTuple):
    """The decoded fields before the packets, except the messages' indexes, which begin at `at`."""

    marks: Marks
    has_retained: bool
    publishers: list[tuple[str, str]]
    at: int


def read_marks(body: bytes) -> tuple[Marks, bool]:
    """Return the marks of a batch, and whether any of its messages has RETAIN."""
    opened = _open(body)
    return opened.marks, opened.has_retained


def decode_records(
    batch: Batch, skip: int = 0, limit: int = MOST_RECORDS, size: int = sys.maxsize
) -> list[Record]:
    """
    Return the messages of a batch after the first `skip`.

    At most `limit` messages are returned; the last one may exceed the total of `size` bytes
    (`Message.size`).
    """
    body = batch.body
    _, _, publishers, at = _open(body)
    (client, edge), places = publishers[0], None
    if len(publishers) > 1:
        places, at = _indexes(body, at, batch.count)
    at = _behind(body, at, min(skip, batch.count))
    records: list[Record] = []
    topics: dict[bytes, str] = {}
    # The packets were checked before they were stored. So decoding reads the needed fields only:
    # this takes two thirds of the time of the codec's `decode`.
    for place in range(skip, min(batch.count, skip + limit)):
        if size <= 0:
            break
        start = at + 2
        end = start + body[at + 1]
        if body[at + 1] > 127:
            start, end = _frame(body, at)
        topic_end = start + 2 + (body[start] << 8 | body[start + 1])
        raw = body[start + 2 : topic_end]
        topic = topics.get(raw)
        if topic is None:
            topic = topics[raw] = raw.decode()
        if places is not None:
            client, edge = publishers[places[place]]
        qos = body[at] >> 1 & 3
        payload, properties = topic_end + 2 if qos else topic_end, b""
        if body[at] & LISTED == LISTED:
            properties, payload = read_list(body, payload, end)
        message = Message(
            topic,
            body[payload:end],
            qos,
            body[at] & 1 == 1,
            client,
            None,
            edge,
            body[at:end],
            properties,
        )
        records.append(Record(batch.first + place, message))
        size -= message.size
        at = end
    return records


def _open(body: bytes) -> _Opened:
    flags, marks_count, edges_count, publishers_count = _HEAD.unpack_from(body)
    at = _HEAD.size
    marks: list[tuple[MarkKey, int]] = []
    for _ in range(marks_count):
        (edge, zone), at = _read_texts(body, at, 2)
        incarnation, stream, sequence = _NUMBERS.unpack_from(body, at)
        at += _NUMBERS.size
        marks.append(((edge, incarnation, zone, stream), sequence))
    edges, at = _read_texts(body, at, edges_count)
    clients, at = _read_texts(body, at, publishers_count)
    if edges_count > 1:
        edge_of, at = _indexes(body, at, publishers_count)
        edges = [edges[index] for index in edge_of]
    else:
        edges *= publishers_count
    return _Opened(
        tuple(marks), bool(flags & _RETAINED), list(zip(clients, edges, strict=True)), at
    )


def _read_texts(body: bytes, at: int, count: int) -> tuple[list[str], int]:
    texts: list[str] = []
    for _ in range(count):
        start = at + 2
        at = start + (body[at] | body[at + 1] << 8)
        texts.append(body[start:at].decode())
    return texts, at


def _indexes(body: bytes, at: int, count: int) -> tuple[array[int], int]:
    end = at + 2 * count
    return _little(array("H", body[at:end])), end


def _behind(body: bytes, at: int, count: int) -> int:
    """Return the end of so many packets from `at` on."""
    for _ in range(count):
        length = body[at + 1]
        at = at + 2 + length if length < 128 else _frame(body, at)[1]
    return at


def _frame(body: bytes, at: int) -> tuple[int, int]:
    """Return start and end of the contents of the packet that begins at `at` (section 2.2.3)."""
    at += 1
    length = body[at] & 127
    shift = 7
    while body[at] > 127:
        at += 1
        length |= (body[at] & 127) << shift
        shift += 7
    return at + 1, at + 1 + length
