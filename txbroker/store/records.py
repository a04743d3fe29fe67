"""
The body of a journal's batch: duplicate marks, client ids, and the raw PUBLISH packets.

    flags (1: a message has RETAIN), number of marks, number of client ids
    for each mark: edge, incarnation, zone, stream, sequence
    the client ids; for more than one: for each message the index of its own
    the packets, one after the other

Texts are UTF-8 behind their length. Pure: bytes in, values out, and back.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from txbroker.authority.handover import MarkKey
from txbroker.message import Message
from txbroker.mqtt.codec import decode
from txbroker.mqtt.packets import Publish
from txbroker.store.segment import Batch

_HEAD = Struct("<BHH")
_NUMBERS = Struct("<QQQ")
_SIZE = Struct("<H")
_RETAINED = 1

Marks = tuple[tuple[MarkKey, int], ...]
"""Duplicate marks with the highest sequence of each."""


class Record(NamedTuple):
    """One message of a journal; `time` in UTC microseconds is that of its batch."""

    offset: int
    message: Message
    time: int


# -- encoding


def encode_records(messages: Sequence[Message], marks: Mapping[MarkKey, int]) -> bytes:
    """The body of a batch; at most 65,535 messages and marks."""
    clients: dict[str, int] = {}
    places = array("H", [clients.setdefault(one.client_id, len(clients)) for one in messages])
    has_retained = any(one.retain for one in messages)
    parts = [_HEAD.pack(has_retained * _RETAINED, len(marks), len(clients))]
    for (edge, incarnation, zone, stream), sequence in marks.items():
        parts.append(_text(edge) + _text(zone) + _NUMBERS.pack(incarnation, stream, sequence))
    parts += map(_text, clients)
    if len(clients) > 1:
        parts.append(_little(places).tobytes())
    parts += [message.link_packet for message in messages]
    return b"".join(parts)


def _text(text: str) -> bytes:
    raw = text.encode()
    return _SIZE.pack(len(raw)) + raw


def _little(places: array[int]) -> array[int]:
    if sys.byteorder == "big":
        places.byteswap()
    return places


# -- decoding


def read_marks(body: bytes) -> tuple[Marks, bool]:
    """The marks of a batch, and whether any of its messages has RETAIN."""
    marks, has_retained, _, _ = _open(body)
    return marks, has_retained


def decode_records(batch: Batch, skip: int = 0, limit: int | None = None) -> Iterator[Record]:
    """The messages of a batch but the first `skip`, at most `limit`."""
    body, time = batch.body, batch.time
    _, _, clients, at = _open(body)
    places = None
    if len(clients) > 1:
        places = array("H", body[at : at + 2 * batch.count])
        _little(places)
        at += 2 * batch.count
    stop = batch.count if limit is None else min(batch.count, skip + limit)
    client = clients[0] if clients else ""
    for place in range(stop):
        start, end = _frame(body, at)
        if place >= skip:
            packet = decode(body[at], body[start:end])
            assert isinstance(packet, Publish)
            if places is not None:
                client = clients[places[place]]
            message = Message(packet.topic, packet.payload, packet.qos, packet.retain, client)
            yield Record(batch.first + place, message, time)
        at = end


def _open(body: bytes) -> tuple[Marks, bool, list[str], int]:
    """Marks, whether anything has RETAIN, client ids, where the rest begins."""
    flags, marks_count, clients_count = _HEAD.unpack_from(body)
    at = _HEAD.size
    marks: list[tuple[MarkKey, int]] = []
    for _ in range(marks_count):
        edge, at = _read_text(body, at)
        zone, at = _read_text(body, at)
        incarnation, stream, sequence = _NUMBERS.unpack_from(body, at)
        at += _NUMBERS.size
        marks.append(((edge, incarnation, zone, stream), sequence))
    clients: list[str] = []
    for _ in range(clients_count):
        client, at = _read_text(body, at)
        clients.append(client)
    return tuple(marks), bool(flags & _RETAINED), clients, at


def _read_text(body: bytes, at: int) -> tuple[str, int]:
    start = at + 2
    end = start + (body[at] | body[at + 1] << 8)
    return body[start:end].decode(), end


def _frame(body: bytes, at: int) -> tuple[int, int]:
    """Where the packet that begins at `at` has its contents (section 2.2.3)."""
    at += 1
    length = body[at]
    if length > 127:
        length &= 127
        shift = 7
        while True:
            at += 1
            digit = body[at]
            length |= (digit & 127) << shift
            if digit < 128:
                break
            shift += 7
    return at + 1, at + 1 + length
