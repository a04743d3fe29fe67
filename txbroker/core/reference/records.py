"""Stores records of a journal in encoded form, and finds them by filter; decodes few of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from txbroker.core.reference.columns import LAST
from txbroker.core.reference.packets import DUP, Entry, Form, plain_publish
from txbroker.core.reference.run import Run
from txbroker.core.reference.stored import (
    ORDER,
    REST,
    Malformed,
    malformed,
    names_of,
    open_body,
    packet_at,
    places_of,
    topic_of,
)
from txbroker.model.topics import matches
from txbroker.mqtt.wire.framing import encode_length
from txbroker.mqtt.wire.message import OVERHEAD
from txbroker.mqtt.wire.property_list import LISTED

RECORD_BYTES = 64
TOPIC_BYTES = 160
"""Approximate memory of a record, and of a topic, in bytes, beside its packet."""


Found = tuple[int, int, str, int, int]
"""Fields that decide on delivery of a record: place, offset, topic, QoS and `Message.size`."""


class WholeRecord(NamedTuple):
    """
    A record; `client` and `node` name its publisher and its node; `packet` is the PUBLISH as
    stored.
    """

    offset: int
    topic: str
    payload: bytes
    qos: int
    retain: bool
    client: str
    node: str
    properties: bytes
    packet: bytes


class StoredRecords:
    """
    The records of a journal's part above offset `after` up to `through`, of QoS `least` or higher.

    `add` the batches in their order. Records of lower QoS count, too: the object is full after
    `most` records, or at `room` bytes. A batch that would not fit stays out whole, if possible, so
    that the reader reads each batch once.

    A place is the index of a record in this object.
    """

    def __init__(
        self,
        after: int = 0,
        through: int = LAST,
        *,
        most: int = LAST,
        room: int = LAST,
        least: int = 0,
    ) -> None:
        self._after = after
        self._end = max(after, through)
        self._most = most
        self._room = room
        self._least = least
        self._is_begun = False
        self._packets = bytearray()
        self._offsets: list[int] = []
        self._starts: list[int] = []
        self._topics: list[str] = []  # one per record; equal topics share one object
        self._names: dict[bytes, str] = {}
        self._publishers: list[tuple[str, str]] = []
        self.through = after
        """The offset up to which all records were examined."""

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def size(self) -> int:
        """Approximate memory of all records, in bytes."""
        return (
            len(self._packets) + RECORD_BYTES * len(self._offsets) + TOPIC_BYTES * len(self._names)
        )

    def add(self, first: int, body: bytes, count: int, places: bytes = b"") -> bool:
        """
        Add the next batch, with the arguments of `Columns.add`; return True if another batch may
        fit.

        The batch may begin before the first wanted offset. The object copies what it needs of the
        body. Raises `PeerError` for a malformed batch; then the object is useless.
        """
        try:
            return self._add(first, body, count, places)
        except Malformed as error:
            raise malformed(first, error.problem) from None

    def place_above(self, offset: int) -> int:
        """Return the place of the first record above `offset`."""
        return bisect_right(self._offsets, offset)

    def find(self, filters: Iterable[str], after: int, most: int) -> list[Found]:
        """
        Return the first `most` records above the offset `after` that match one of the filters.
        """
        wanted = list(filters)
        known: dict[str, bool] = {}
        found: list[Found] = []
        for place in range(self.place_above(after), len(self._offsets)):
            topic = self._topics[place]
            if topic not in known:
                known[topic] = any(matches(one, topic) for one in wanted)
            if known[topic]:
                if len(found) >= most:
                    break
                found.append(self._found(place))
        return found

    def run(
        self, filters: Iterable[str], after: int, through: int, *, most: int, room: int
    ) -> tuple[Run | None, int]:
        """
        Return the matching records above `after` as a run, and the offset up to which it has all.

        The run has QoS 1 alone, at most `most` records, and `room` bytes before the last one. The
        run ends at `through`, and before a record that expires or is not plain (`plain_publish`).
        """
        data, size = bytearray(), 0
        entries: list[Entry] = []
        offsets: list[int] = []
        reached = max(after, min(through, self.through))
        for place, offset, _, qos, _ in self.find(filters, after, most + 1):
            if offset > through:
                break
            at = self._starts[place]
            packet = packet_at(self._packets, at)
            body = bytes(self._packets[packet.topic - 2 : packet.end])
            first_byte = self._packets[at] & ~DUP
            one = plain_publish(first_byte, body, 0, None, Form.STORED, leaves_expiring=True)
            if one is None or qos != 1 or len(entries) == most or (entries and size >= room):
                reached = offset - 1
                break
            entries.append(one.moved(len(data)))
            offsets.append(offset)
            data += bytes((first_byte & ~LISTED,)) + encode_length(len(body)) + body
            size += packet.end - at
        if not entries:
            return None, reached
        run = Run(bytes(data), entries, clients=("",))
        if offsets[-1] - offsets[0] == len(offsets) - 1:
            run.first = offsets[0]
        else:
            run.offsets = offsets
        return run, reached

    def size_above(self, offset: int) -> int:
        """Return the sum of `Message.size` of all records above `offset`."""
        places = range(self.place_above(offset), len(self._offsets))
        return sum(self._found(place)[-1] for place in places)

    def record(self, place: int) -> WholeRecord:
        """Return the whole record; raises `IndexError`."""
        at = self._starts[place]
        one = packet_at(self._packets, at)
        packet = bytes(self._packets[at : one.end])
        return WholeRecord(
            self._offsets[place],
            self._topics[place],
            packet[one.payload - at :],
            packet[0] >> 1 & 3,
            packet[0] & 1 == 1,
            *self._publishers[place],
            packet[one.properties - at : one.payload - at],
            packet,
        )

    def offsets(self) -> list[int]:
        """Return the offsets of all records."""
        return list(self._offsets)

    def packets(self) -> bytes:
        """Return the raw PUBLISH packets of all records."""
        return bytes(self._packets)

    def _found(self, place: int) -> Found:
        packets, at, topic = self._packets, self._starts[place], self._topics[place]
        one = packet_at(packets, at)
        size = one.end - one.properties + len(topic) + OVERHEAD
        return place, self._offsets[place], topic, packets[at] >> 1 & 3, size

    def _add(self, first: int, body: bytes, count: int, places: bytes) -> bool:
        opened = open_body(body, count)
        at_places = places_of(places, count)
        if first + at_places[-1] > LAST:
            raise Malformed(ORDER)
        publishers = [names_of(*one) for one in opened.publishers]
        self.through = max(self.through, min(first + at_places[0] - 1, self._end))
        is_whole = first + at_places[-1] <= self._end and self._has_room(count, len(body))
        if self._is_begun and first <= self._end and not is_whole:
            return False
        at = opened.packets
        for index, place in enumerate(at_places):
            one = packet_at(body, at)
            if first + place > self._end:
                self.through = self._end
                return False
            if first + place > self._after:
                if first + place <= self.through:
                    raise Malformed(ORDER)
                who = publishers[opened.places[index] if opened.places is not None else 0]
                raw = body[one.topic : one.topic_end]
                if not self._examine(first + place, body[at : one.end], raw, who):
                    return False
            at = one.end
        if at != len(body):
            raise Malformed(REST)
        return self._has_room(count, len(body))

    def _has_room(self, count: int, size: int) -> bool:
        return count <= self._most and size <= self._room

    def _examine(self, offset: int, packet: bytes, raw: bytes, who: tuple[str, str]) -> bool:
        """Examine the next record, and add it if wanted; return True if another one fits."""
        self.through = offset
        self._is_begun = True
        self._most -= 1
        self._room -= len(packet)
        if packet[0] >> 1 & 3 >= self._least:
            topic = self._names.get(raw)
            if topic is None:
                topic = self._names[raw] = topic_of(raw)
            self._offsets.append(offset)
            self._starts.append(len(self._packets))
            self._topics.append(topic)
            self._publishers.append(who)
            self._packets += packet
        return self._most > 0 and self._room > 0
