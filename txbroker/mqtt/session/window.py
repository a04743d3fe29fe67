"""
The messages on their way to one client: in flight with their packet ids, or waiting behind.

Bookkeeping only; when something is sent, and what has to be durable first, is the sender's. Two
kinds of messages wait. Messages that cannot be read again (retained ones for a SUBSCRIBE) come
first. Of messages that can be read again only a few are held.

A message waits, then is in flight with a packet id, then is complete. A message in flight can be
unread: its bytes are in the journal only. A message never goes from one state back to an earlier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import attrs

from txbroker.core import Run
from txbroker.model.invariant import holds, ordered
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.wire.encoder import encode_publish, pack_packet_id
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import LEVEL_5
from txbroker.mqtt.wire.properties import Properties, encode_properties

LAST_PACKET_ID = 65_535

KNOWN_LISTS = 64
"""Lists of subscription identifiers that are encoded once: thousands may match each message."""

QUEUE_MESSAGES = 1_000
QUEUE_BYTES = 1024 * 1024
"""
Upper bounds of the queued messages that a journal has, too; further ones wait in the journal alone.
"""


@attrs.frozen(kw_only=True)
class SessionLimits:
    """
    The bounds of a session. `inflight` QoS 1/2 messages of `memory` bytes may be unacknowledged
    (one message, however large, is always let through). `messages` of `size` bytes may wait for it.
    """

    inflight: int = 100
    memory: int = 8 * 1024 * 1024
    messages: int = 100_000
    size: int = 1024 * 1024 * 1024


@attrs.frozen
class Lent:
    """The group that lent a message, and the place by which the group's coordinator knows it."""

    group: str
    place: LogPosition


@attrs.define(slots=True, eq=False)
class OutboundMessage:
    """
    A QoS 1/2 message to the client; `released`: PUBREC came, PUBREL is due or went.

    `place` says where it can be read again; None: only here, and where the session is durable it is
    kept under `number`. `message` None: to be read again before it can be sent. `identifiers`: the
    subscription identifiers that its packet carries. `until`: the time at which a message that
    waits expires; None: never, or not known yet. `is_unsaved`: its packet (PUBLISH, or PUBREL)
    waits until its flow is durable. `lease`: under which a group lent the message; 0: none did.
    `lent`: the same for other nodes and processes.
    `is_again`: another client of the group had it before. `size`: bytes that it counts for.
    """

    message: Message | None
    qos: int
    retain: bool
    place: LogPosition | None = None
    identifiers: tuple[int, ...] = ()
    number: int = 0
    released: bool = False
    is_sent: bool = False
    is_unsaved: bool = False
    until: float | None = None
    lease: int = 0
    lent: Lent | None = None
    is_again: bool = False
    size: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.size = 0 if self.message is None else self.message.size

    def begin_to_wait(self, now: float) -> None:
        """Note that the message waits from now on."""
        expiry = None if self.message is None else self.message.expiry
        self.until = None if expiry is None else now + expiry

    def aged(self, now: float) -> Message | None:
        """Return the message with what is left of its interval."""
        if self.until is None or self.message is None:
            return self.message
        return self.message.with_expiry(self.until - now)

    def end_to_wait(self, now: float) -> bool:
        """Take the time for which the message waited off its interval; return False: it expired."""
        if self.until is None or self.message is None:
            return True
        left, self.until = self.until - now, None
        self.message = self.message.with_expiry(left)
        return left > 0

    @property
    def properties(self) -> bytes:
        """Return the property list of its packet at level 5, without the list's length."""
        message = self.message
        properties = b"" if message is None else message.properties
        return properties + _listed(self.identifiers) if self.identifiers else properties

    def qos0_packet(self, level: int) -> bytes:
        """Return the PUBLISH of a QoS 0 message for a client of this level."""
        message = self.message
        assert message is not None
        if level < LEVEL_5 or not self.identifiers:
            return message.qos0_packet(level, retain=self.retain)
        return encode_publish(
            message.topic, message.payload, 0, self.retain, properties=self.properties
        )

    def packet(self, packet_id: int, *, dup: bool, level: int) -> bytes:
        """Return the PUBLISH of a QoS 1 or 2 message for a client of this level."""
        message = self.message
        assert message is not None, "its message is read before anything is sent"
        qos, retain = self.qos, self.retain
        if level < LEVEL_5 or not self.identifiers:
            head = message.head(qos, retain=retain, dup=dup, level=level)
            listed = message.property_list(level)
            return b"".join((head, pack_packet_id(packet_id), listed, message.payload))
        return encode_publish(
            message.topic, message.payload, qos, retain, dup, packet_id, self.properties
        )

    @property
    def is_unread(self) -> bool:
        """True if a journal must be read before the packet can be sent."""
        return self.message is None and not self.released


def run_offsets(run: Run) -> Sequence[int]:
    """Return the offsets of a run whose messages a journal has, in ascending order."""
    return range(run.first, run.first + run.count) if run.offsets is None else run.offsets


@attrs.frozen(eq=False)
class LaunchedRun:
    """Records of one part that are in flight together: of QoS 1, and none expires."""

    part: JournalId
    run: Run


Unsaved = int | LaunchedRun
"""An item that waits until it is durable: the message of a packet id, or a run."""


class Window:
    """
    See the module's text. `resend`: packet ids in flight that are still to be sent on the present
    connection, in their order. `late`: parts whose messages in flight cannot be read now.

    Invariant: 1 <= packet id <= 65,535; each size is the sum of what it measures.
    Invariant: the offsets in the queue grow in each part.
    """

    def __init__(self) -> None:
        self.flights: dict[int, OutboundMessage] = {}
        self.flight_size = 0
        self.held: deque[OutboundMessage] = deque()
        self.held_size = 0
        self.queue: deque[OutboundMessage] = deque()
        self.queue_size = 0
        self._queued: dict[JournalId, int] = {}  # queued messages of each part
        self.resend: deque[int] = deque()
        self.late: set[JournalId] = set()

    @property
    def waiting(self) -> int:
        """Return how many messages wait behind those in flight."""
        return len(self.held) + len(self.queue)

    @property
    def is_empty(self) -> bool:
        """True if no message is in flight or waits."""
        return not (self.flights or self.held or self.queue)

    @property
    def has_room(self) -> bool:
        """True if messages that a journal has may be queued."""
        return len(self.queue) < QUEUE_MESSAGES and self.queue_size < QUEUE_BYTES

    @property
    def is_short(self) -> bool:
        """True if the queue is so short that more records should be fetched."""
        return len(self.queue) < QUEUE_MESSAGES // 2

    @property
    def unanswered(self) -> int:
        """Return how many messages in flight were sent on the present connection."""
        return len(self.flights) - len(self.resend)

    def is_open(self, inflight: int, memory: int) -> bool:
        """True if one more message may be in flight, within these limits."""
        return len(self.flights) < inflight and self.flight_size < memory and not self.resend

    def check(self) -> None:
        """State what is in flight, and what waits."""
        ids = self.flights.keys()
        ordered(self, 16, "1 <= packet ids <= 65535", 1, min(ids, default=1))
        ordered(self, 16, "packet ids <= 65535", max(ids, default=1), LAST_PACKET_ID)
        for kind, entries, known in (
            ("in flight", self.flights.values(), self.flight_size),
            ("held", self.held, self.held_size),
            ("queued", self.queue, self.queue_size),
        ):
            size = sum(entry.size for entry in entries)
            holds(self, 34, f"bytes {kind} are counted", size == known, size, known)
        last: dict[JournalId, int] = {}
        for entry in self.queue:
            assert entry.place is not None
            part, offset = entry.place
            ordered(self, 6, "the queue goes upwards in a part", last.get(part, 0), offset)
            last[part] = offset
        holds(self, 6, "the parts of the queue are known", last.keys() == self._queued.keys())

    # in flight

    def launch(self, entry: OutboundMessage, after: int) -> int:
        """Put a message in flight under the next free packet id after `after`; return the id."""
        packet_id = after % LAST_PACKET_ID + 1
        while packet_id in self.flights:  # [MQTT-2.3.1-4]
            packet_id = packet_id % LAST_PACKET_ID + 1
        self.flights[packet_id] = entry
        self.flight_size += entry.size
        return packet_id

    def land(self, packet_id: int) -> OutboundMessage:
        """Remove a message whose flow is complete, and return it."""
        entry = self.flights.pop(packet_id)
        self.flight_size -= entry.size
        return entry

    def restore(self, entry: OutboundMessage, message: Message) -> None:
        """Set a message that was read again, with what is left of its interval."""
        entry.message = message
        entry.until = None
        entry.size = message.size
        self.flight_size += entry.size

    def unload(self) -> None:
        """Forget the messages that a journal has."""
        for entry in self.flights.values():
            if entry.place is not None:
                self.flight_size -= entry.size
                entry.message = None
                entry.size = 0

    def unread(self) -> Iterator[tuple[int, LogPosition]]:
        """Yield the packet ids and positions to read, in the order of sending."""
        for packet_id, entry in self.flights.items():
            if entry.is_unread and entry.place is not None:
                yield packet_id, entry.place

    def defer(self, part: JournalId) -> None:
        """Send other parts first: this part cannot be read now."""
        self.late.add(part)
        self.resend = deque(
            packet_id for packet_id in self.resend if not self._is_late(packet_id, part)
        )

    def _is_late(self, packet_id: int, part: JournalId) -> bool:
        entry = self.flights.get(packet_id)
        if entry is None or not entry.is_unread or entry.place is None:
            return False
        return entry.place.part == part

    # waiting messages

    def wait(self, entry: OutboundMessage) -> None:
        """Append the message to its queue."""
        place = entry.place
        if place is None:
            self.held.append(entry)
            self.held_size += entry.size
        else:
            self.queue.append(entry)
            self.queue_size += entry.size
            self._queued[place.part] = self._queued.get(place.part, 0) + 1

    def next_waiting(self) -> OutboundMessage | None:
        """Dequeue the first waiting message."""
        if self.held:
            return self.next_held()
        if not self.queue:
            return None
        entry = self.queue.popleft()
        self.queue_size -= entry.size
        assert entry.place is not None
        part = entry.place.part
        self._queued[part] -= 1
        if not self._queued[part]:
            del self._queued[part]
        return entry

    def next_held(self) -> OutboundMessage:
        """Dequeue the first message that no journal has."""
        entry = self.held.popleft()
        self.held_size -= entry.size
        return entry

    def first_queued(self) -> dict[JournalId, int]:
        """
        Return the lowest queued offset of each part; the offsets of a part increase in the queue.
        """
        found: dict[JournalId, int] = {}
        for entry in self.queue:
            if len(found) == len(self._queued):
                break
            assert entry.place is not None
            found.setdefault(*entry.place)
        return found

    def discard_queue(self, part: JournalId | None = None) -> Iterable[LogPosition]:
        """Discard queued messages, those of one part or all; return their positions."""
        if part is not None and part not in self._queued:
            return []
        discarded: list[LogPosition] = []
        kept: deque[OutboundMessage] = deque()
        for entry in self.queue:
            assert entry.place is not None
            if part is None or entry.place.part == part:
                discarded.append(entry.place)
                self.queue_size -= entry.size
            else:
                kept.append(entry)
        self.queue = kept
        for one in {place.part for place in discarded}:
            del self._queued[one]
        return discarded


@lru_cache(maxsize=KNOWN_LISTS)
def _listed(identifiers: tuple[int, ...]) -> bytes:
    """Return these subscription identifiers as properties."""
    return encode_properties(Properties(subscription_identifiers=identifiers))
