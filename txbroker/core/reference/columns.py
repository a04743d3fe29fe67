"""Converts stored batches to columns, and filters the records of a batch."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import NamedTuple

from txbroker.core.reference.property_columns import FilledProperties, property_columns
from txbroker.core.reference.stored import (
    ORDER,
    REST,
    Malformed,
    Opened,
    Packet,
    little,
    malformed,
    names_of,
    open_body,
    packet_at,
    places_of,
    topic_of,
)

LARGEST = 2**31 - 1
"""Maximum bytes of all topics, payloads or properties of one set of columns: ends have 32 bits."""

FULL = "columns have room for 2 GiB of topics, of payloads and of properties each"
"""Error of a batch for which there is no room."""

LAST = 2**63 - 1
"""The highest possible offset."""

CACHE = 1024 * 1024
"""Bytes of topics whose match is cached."""


class Texts(NamedTuple):
    """Concatenated texts: `ends` (int32) has the start of the first text and the end of each."""

    ends: bytes
    data: bytes


class Filled(NamedTuple):
    """
    `rows` records as buffers in the layout of Arrow, numbers in the byte order of the machine.

    `qos` is int8; `retain` has one bit per record, lowest first; `offset` is int64. `created` is
    int64, in microseconds UTC. `publisher` is int32, an index of `publishers`: client id and node.
    `properties` is None if no record has any.
    """

    rows: int
    topics: Texts
    payloads: Texts
    qos: bytes
    retain: bytes
    offset: bytes
    created: bytes
    publisher: bytes
    publishers: list[tuple[str, str]]
    properties: FilledProperties | None


class Columns:
    """
    Converts the stored batches of one part, in order, to columns: `add` each, then `finish`.

    Batches come from the network, and are checked. Offsets must lie in `start` to `end`
    (exclusive), each higher than the one before. With `payload` False, the payloads stay empty.
    """

    def __init__(self, start: int = 0, end: int = LAST, *, payload: bool = True) -> None:
        self._next = start
        self._end = end
        self._has_payload = payload
        self._clear()

    @property
    def count(self) -> int:
        """Number of records since the last `finish`."""
        return len(self._offset)

    @property
    def size(self) -> int:
        """Bytes of the topics and payloads since the last `finish`."""
        return len(self._topics) + len(self._payloads)

    def add(self, first: int, time: int, body: bytes, count: int, places: bytes = b"") -> None:
        """
        Add the next batch: `count` records from offset `first` on, received at `time` (microseconds
        UTC).

        The body holds the records at `places` (16 bits each, little-endian), or all if empty.
        Raises `PeerError` for a malformed batch, and `OverflowError` if the columns have no room.
        After either, nothing of the batch was added.
        """
        try:
            self._add(first, time, body, count, places)
        except Malformed as error:
            raise malformed(first, error.problem) from None

    def finish(self) -> Filled:
        """Return the columns of all batches since the last `finish`."""
        bits = bytearray((self.count + 7) // 8)
        for index, is_retained in enumerate(self._retain):
            bits[index >> 3] |= is_retained << (index & 7)
        filled = Filled(
            self.count,
            Texts(self._topic_ends.tobytes(), bytes(self._topics)),
            Texts(self._payload_ends.tobytes(), bytes(self._payloads)),
            bytes(self._qos),
            bytes(bits),
            self._offset.tobytes(),
            self._created.tobytes(),
            self._publisher.tobytes(),
            list(self._publishers),
            property_columns(self._lists, self.count),
        )
        self._clear()
        return filled

    def _clear(self) -> None:
        self._topics, self._topic_ends = bytearray(), array("i", [0])
        self._payloads, self._payload_ends = bytearray(), array("i", [0])
        self._qos = bytearray()
        self._retain = bytearray()
        self._offset = array("q")
        self._created = array("q")
        self._publisher = array("i")
        self._publishers: dict[tuple[str, str], int] = {}
        self._lists: dict[int, bytes] = {}  # by row
        self._lists_size = 0

    def _add(self, first: int, time: int, body: bytes, count: int, places: bytes) -> None:
        opened = open_body(body, count)
        at_places = places_of(places, count)
        if first + at_places[0] < self._next or first + at_places[-1] >= self._end:
            raise Malformed(ORDER)
        packets = _packets(body, opened, count)
        publishers = [names_of(*one) for one in opened.publishers]
        topics = b"".join([body[one.topic : one.topic_end] for one in packets])
        payloads = b"".join([body[one.payload : one.end] for one in packets if self._has_payload])
        lists = {
            self.count + place: body[one.properties : one.payload]
            for place, one in enumerate(packets)
            if one.properties < one.payload
        }
        lists_size = sum(map(len, lists.values()))
        if (
            len(self._topics) + len(topics) > LARGEST
            or len(payloads) + len(self._payloads) > LARGEST
            or lists_size + self._lists_size > LARGEST
        ):
            raise OverflowError(FULL)
        for one in packets:
            self._topic_ends.append(self._topic_ends[-1] + one.topic_end - one.topic)
            size = one.end - one.payload if self._has_payload else 0
            self._payload_ends.append(self._payload_ends[-1] + size)
            self._qos.append(body[one.start] >> 1 & 3)
            self._retain.append(body[one.start] & 1)
        self._topics += topics
        self._payloads += payloads
        self._lists |= lists
        self._lists_size += lists_size
        known = self._publishers
        own = [known.setdefault(who, len(known)) for who in publishers]
        self._offset.extend(first + place for place in at_places)
        self._created.extend([time] * count)
        self._publisher.extend(own[p] for p in opened.places or bytes(count))
        self._next = first + at_places[-1] + 1


class Sieve:
    """Selects the wanted records of batches; `matches` returns True for a wanted topic."""

    def __init__(self, matches: Callable[[str], bool]) -> None:
        self._matches = matches
        self._known: dict[bytes, bool] = {}
        self._size = 0

    def sift(
        self, first: int, body: bytes, count: int, low: int, high: int
    ) -> tuple[bytes, bytes] | None:
        """
        Select matching records with offsets from `low` up to `high` (exclusive) of a batch.

        The batch has `count` records from offset `first` on. Return a body of the selected records,
        and their places (see `Columns.add`). Both are empty if no record matches; None means that
        all match. Marks are left out.

        Raises `PeerError` for a malformed batch, and any error of `matches`.
        """
        try:
            opened = open_body(body, count)
            packets = _packets(body, opened, count)
            chosen = [
                place
                for place, one in enumerate(packets)
                if low <= first + place < high and self._is_match(body[one.topic : one.topic_end])
            ]
        except Malformed as error:
            raise malformed(first, error.problem) from None
        if len(chosen) == count:
            return None
        if not chosen:
            return b"", b""
        head = bytearray(body[: opened.packets - 2 * count * (opened.places is not None)])
        del head[7 : opened.names]
        head[1:3] = b"\0\0"
        if opened.places is not None:
            head += little(array("H", [opened.places[place] for place in chosen])).tobytes()
        parts = [body[packets[place].start : packets[place].end] for place in chosen]
        return b"".join((head, *parts)), little(array("H", chosen)).tobytes()

    def _is_match(self, raw: bytes) -> bool:
        found = self._known.get(raw)
        if found is None:
            if self._size > CACHE:
                self._known.clear()
                self._size = 0
            found = self._known[raw] = self._matches(topic_of(raw))
            self._size += len(raw)
        return found


def _packets(body: bytes, opened: Opened, count: int) -> list[Packet]:
    packets: list[Packet] = []
    at = opened.packets
    for _ in range(count):
        one = packet_at(body, at)
        topic_of(body[one.topic : one.topic_end])
        packets.append(one)
        at = one.end
    if at != len(body):
        raise Malformed(REST)
    return packets
