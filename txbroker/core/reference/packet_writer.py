"""
Encodes and sends the output to one client, with the QoS 1 and 2 window of a clean session.

The output is a buffer of bytes that leave in order. From `HIGH_MARK` on, the client is full, and
messages that can wait are not sent. Above `MOST`, the writer discards QoS 0.

After `open_window`, a message of QoS 1 or 2 passes these states:

- *waiting*: in `_first` if it cannot be read again, else in `_queue`. `pump` sends `_first` before
  `_queue`, while the window and the output have room;
- *sent* (`SENT`): in flight under a packet id. PUBACK ends QoS 1, PUBREC moves QoS 2 on;
- *released* (`RELEASED`): PUBREL was sent. PUBCOMP ends the flight.

`deliver` sends a live message at once if no message waits and the window has room.

`lend` sends a message of a shared subscription, or none: such a message never waits here. Its
packet id is reported (`dequeue_landed`) when the client has answered. `lend_run` sends many, which
are known by their lender and their offset (`dequeue_answered`).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from txbroker.core.reference.aliases import GROWTH, Aliases
from txbroker.core.reference.packets import publish_head
from txbroker.model.publish_run import Octets
from txbroker.mqtt.wire.message import OVERHEAD
from txbroker.mqtt.wire.message_expiry import expiry_of
from txbroker.mqtt.wire.property_list import LISTED_LEVEL, property_list

HIGH_MARK = 256 * 1024
"""Bytes of output above which the client gets no message that can wait."""

MOST = 4 * 1024 * 1024
"""Bytes of output above which a message that cannot wait is discarded."""

MANY_DROPPED = 64
"""
Messages that a shut writer discards before each call of `on_output`, after the first.

With 400 clients that read nothing, each message of a flood cost the node 400 looks at them.
"""

QUEUE_MESSAGES = 8_192
QUEUE_BYTES = 1024 * 1024
"""Maximum queue behind the window, of messages that can be read again from a journal."""

QUEUE_HIGH_MARK = 1_000
"""Messages behind the window at which the client counts as full."""

SENT, RELEASED = 1, 2

NOT_FOUND = 0x92
"""The reason code of PUBREL for a packet id that no message in flight has (section 3.6.2.1)."""


class Flight(NamedTuple):
    """
    A message in flight: PUBLISH was sent (`SENT`), or PUBREL (`RELEASED`).

    `lent_as`: the lender and the offset of a message that `lend_run` sent.
    """

    qos: int
    size: int
    state: int
    is_lent: bool = False
    lent_as: tuple[int, int] | None = None


class Waiting(NamedTuple):
    """A packet that waits for a packet id at `id_at`; `part` and `offset` locate its record."""

    packet: bytes
    id_at: int
    qos: int
    size: int
    part: Any
    offset: int


class PacketWriter:
    """
    The output to one connected client.

    `on_output` is called when output exists or was discarded, once until `is_noted` is reset.
    `on_full` is called when the output, or the queue behind the window, passes its high mark. The
    call comes once until `is_full` is reset. `on_fill` is called when the window becomes full,
    `on_hurry` when output should not wait for the end of the turn.
    After `open_window`, QoS 1 and 2 of a clean session are stored in this object only. Attributes:

    - `is_direct`: True if live messages may bypass the session, which has no earlier ones.
    - `reads`: the part of a journal whose messages of QoS 1 and 2 pass the session by, as it reads
      them in its turn; None: no part.
    - `is_shut`: True to discard QoS 0; `dropped` counts the discarded messages. Of a shut writer
      the first one is news, and then one of `MANY_DROPPED`.
    - `fills`: how often the window became full; `is_told`: True if this needs no handling.
    - `descriptor`: the socket for direct writes, or -1.
    - `written`: bytes of output that a socket has accepted, by any path.
    - `is_behind`: True if publishers may wait for this output.
    - `level`: the client's level of MQTT; below 5 its packets have no property lists.
    - `max_packet`: the largest packet in bytes that the client accepts, or 0 for any. Larger ones
      are discarded for this client alone, and counted in `too_large`, which is news.
    """

    def __init__(
        self,
        on_output: Callable[[PacketWriter], None],
        on_full: Callable[[PacketWriter], None],
        on_fill: Callable[[], None],
        on_hurry: Callable[[PacketWriter], None],
    ) -> None:
        self.is_direct = False
        self.reads: Any = None
        self.is_shut = False
        self._shut_drops = 0  # of QoS 0, for being shut
        self.dropped = 0
        self.level = 4
        self.max_packet = 0
        self.too_large = 0
        self.written = 0
        self.fills = 0
        self.descriptor = -1
        self.is_behind = False
        self.is_noted = False
        self.is_full = False
        self.is_told = False
        self.connection: Any = None
        self.has_window = False
        self._on_output = on_output
        self._on_full = on_full
        self._on_fill = on_fill
        self._on_hurry = on_hurry
        self._output = bytearray()
        self._aliases: Aliases | None = None
        self._inflight = 0
        self._memory = 0
        self._flights: dict[int, Flight] = {}
        self._flight_size = 0
        self._last_id = 0
        self._first: deque[Waiting] = deque()
        self._first_size = 0
        self._queue: deque[Waiting] = deque()
        self._queue_size = 0
        self._landed: list[int] = []
        self._answered: list[tuple[int, int]] = []

    # output

    @property
    def alias_maximum(self) -> int:
        """How many topic aliases packets of QoS 0 may use; a new value begins without aliases."""
        return self._aliases.most if self._aliases else 0

    @alias_maximum.setter
    def alias_maximum(self, most: int) -> None:
        self._aliases = Aliases(most) if most else None

    @property
    def size(self) -> int:
        """Bytes of output that wait for the socket."""
        return len(self._output)

    @property
    def has_room(self) -> bool:
        """True if a message that can wait may be sent now."""
        return len(self._output) < HIGH_MARK and self._first_size < QUEUE_BYTES

    def send(self, data: bytes) -> None:
        """Append bytes to the output."""
        self._note()
        self._output += data
        if len(self._output) >= HIGH_MARK:
            self._note_full()

    def send_soon(self, data: bytes) -> None:
        """Send bytes with those of the next few other packet writers, before the turn ends."""
        self.send(data)
        self._on_hurry(self)

    def send_qos0(self, packet: bytes) -> bool:
        """Send a packet that may be discarded; return False if it was discarded and counted."""
        if not self._has_space_for(packet):
            return False
        if self.is_shut or len(self._output) > MOST:
            self.dropped += 1
            self._shut_drops += self.is_shut
            if not self.is_shut or self._shut_drops == 1 or self._shut_drops % MANY_DROPPED == 0:
                self._note()
            return False
        self.send(self._aliased(packet))
        return True

    def send_run(self, run: Any) -> None:
        """Send a `Run` of QoS 0 in the client's form; discard and count what has no room."""
        for index in range(run.count):
            message = run.message(index)
            packet = self.encode_qos0(message.topic.encode(), message.payload, message.properties)
            self.send_qos0(packet)

    def dequeue(self) -> Octets:
        """Remove and return all output; the result may be a view of bytes that were read."""
        output, self._output = bytes(self._output), bytearray()
        return output

    def send_to(self, descriptor: int) -> bool:
        """
        Write until the non-blocking socket refuses; return True if no output is left.

        Raises `OSError`. Very large output is written in part. (Compiled; the reference writes
        all.)
        """
        while self._output:
            try:
                written = os.write(descriptor, self._output)
            except BlockingIOError:
                return False
            del self._output[:written]
            self.written += written
        return True

    def is_sent(self) -> bool:
        """True if all output was written to `descriptor`, and the writer has no news."""
        if self.descriptor < 0 or self.dropped or self.too_large or self.has_news:
            return False
        try:
            return self.send_to(self.descriptor)
        except OSError:
            return False  # The owner of the socket meets the error again.

    @property
    def has_news(self) -> bool:
        """True if the session must handle a change of the window."""
        is_new = self.fills > 0 and not self.is_told
        is_new = is_new or bool(self._landed or self._answered)
        return is_new or self.is_behind or self.waiting > QUEUE_HIGH_MARK

    @property
    def is_calm(self) -> bool:
        """True if acknowledgements concern the window alone."""
        return self.has_window and self.is_direct and not self.has_news

    # the window of a clean session

    def open_window(self, inflight: int, memory: int) -> None:
        """Limit unacknowledged messages by number and by bytes; one message always is allowed."""
        self.has_window = True
        self._inflight = inflight
        self._memory = memory

    @property
    def in_flight(self) -> int:
        """Number of messages that the client has not acknowledged."""
        return len(self._flights)

    @property
    def waiting(self) -> int:
        """Number of messages queued behind those in flight."""
        return len(self._first) + len(self._queue)

    @property
    def queue_has_room(self) -> bool:
        """True if a message that can be read again may be queued."""
        return len(self._queue) < QUEUE_MESSAGES and self._queue_size < QUEUE_BYTES

    @property
    def is_short(self) -> bool:
        """True if the queue is so short that the session should read more messages."""
        return len(self._queue) < QUEUE_MESSAGES // 2

    def deliver(
        self,
        topic: bytes,
        payload: bytes,
        qos: int,
        size: int,
        part: Any,
        offset: int,
        properties: bytes = b"",
        *,
        retain: bool = False,
    ) -> bool:
        """
        Send or queue a live QoS 1/2 message; return False if the queue has no room.

        A message that expires is not queued either: a queue does not age its messages.
        A message that the client cannot accept counts as sent [MQTT-3.1.2-25].
        """
        waiting = self._packet(topic, payload, qos, size, retain, part, offset, properties)
        if not self._has_space_for(waiting.packet):
            return True
        if not (self._first or self._queue) and self._can_launch:
            self._launch(waiting)
            return True
        if not self.queue_has_room or expiry_of(properties) is not None:
            return False
        self._wait(waiting)
        return True

    def redeliver(
        self,
        topic: bytes,
        payload: bytes,
        qos: int,
        size: int,
        part: Any,
        offset: int,
        properties: bytes = b"",
        *,
        retain: bool = False,
    ) -> bool:
        """Queue a message from a journal, for `pump`; return False if the queue has no room."""
        waiting = self._packet(topic, payload, qos, size, retain, part, offset, properties)
        if not self._has_space_for(waiting.packet):
            return True
        if not self.queue_has_room:
            return False
        self._wait(waiting)
        return True

    def deliver_first(
        self,
        topic: bytes,
        payload: bytes,
        qos: int,
        size: int,
        properties: bytes = b"",
        *,
        retain: bool,
    ) -> None:
        """Queue a message that cannot be read again before all others, for `pump`."""
        waiting = self._packet(topic, payload, qos, size, retain, None, 0, properties)
        if self._has_space_for(waiting.packet):
            self._first.append(waiting)
            self._first_size += size

    def drop_first(self, messages: int, size: int) -> int:
        """Discard the oldest unrepeatable messages above these limits; return their number."""
        dropped = 0
        while len(self._first) > messages or self._first_size > size:
            self._first_size -= self._first.popleft().size
            dropped += 1
        return dropped

    @property
    def lend_room(self) -> int:
        """Number of messages that `lend` may send now; 0 while others wait."""
        if not self.has_window or self.waiting or not self._can_launch:
            return 0
        return self._inflight - len(self._flights)

    def lend(
        self,
        topic: bytes,
        payload: bytes,
        qos: int,
        size: int,
        properties: bytes = b"",
        *,
        retain: bool = False,
        again: bool = False,
    ) -> int:
        """
        Send a QoS 1/2 message of a shared subscription at once; return its packet id, or 0 for no
        room.

        `again`: another client had the message before, so DUP is set.
        """
        if self._first or self._queue or not self._can_launch:
            return 0
        waiting = self._packet(topic, payload, qos, size, retain, None, 0, properties, again=again)
        self._launch(waiting, is_lent=True)
        return self._last_id

    def dequeue_landed(self) -> list[int]:
        """
        Return the packet ids of lent messages that the client has answered: by PUBACK, or at QoS 2
        by PUBREC.
        """
        landed, self._landed = self._landed, []
        return landed

    def lend_run(self, run: Any, start: int, stop: int, lender: int, *, again: bool = False) -> int:
        """
        Send messages of a `Run` from `start` up to `stop`, as `lend` does; return how many.

        The run ends before a message without room, of QoS 2, or too large for the client.
        """
        for index in range(start, stop):
            if run.entries[index].qos != 1 or self.waiting or not self._can_launch:
                return index - start
            message = run.message(index)
            topic, payload, listed = message.topic.encode(), message.payload, message.properties
            size = len(topic) + len(payload) + len(listed) + OVERHEAD
            waiting = self._packet(topic, payload, 1, size, False, None, 0, listed, again=again)
            if self.max_packet and len(waiting.packet) > self.max_packet:
                return index - start
            self._launch(waiting, lent_as=(lender, run.offset(index)))
        return stop - start

    def dequeue_answered(self) -> dict[int, list[int]]:
        """Return the offsets by lender of the messages of `lend_run` that the client answered."""
        answered, self._answered = self._answered, []
        return _by_lender(answered)

    def unanswered(self) -> dict[int, list[int]]:
        """Return the offsets by lender of the messages of `lend_run` in flight, in order."""
        lent = [flight.lent_as for flight in self._flights.values() if flight.lent_as is not None]
        return _by_lender(sorted(lent))

    def pump(self) -> None:
        """Send queued messages as far as the window and the output have room."""
        while (self._first or self._queue) and self._can_launch:
            if self._first:
                waiting = self._first.popleft()
                self._first_size -= waiting.size
            else:
                waiting = self._queue.popleft()
                self._queue_size -= waiting.size
            self._launch(waiting)

    def acknowledge(self, packet_ids: Iterable[int]) -> bool:
        """Handle PUBACKs; `pump` must follow. Return False if a message awaits another packet."""
        is_right = True
        for packet_id in packet_ids:
            flight = self._flights.get(packet_id)
            if flight is None:
                continue
            if flight.qos == 1:
                self._land(packet_id)
            else:
                is_right = False
        return is_right

    def receive(self, packet_id: int) -> bool:
        """
        Handle PUBREC: answer PUBREL even to an unknown packet id (section 4.3.3).

        At level 5 such an answer says so. Return False for a message of QoS 1, which awaits another
        packet.
        """
        flight = self._flights.get(packet_id)
        if flight is not None:
            if flight.qos != 2:
                return False
            self._report(packet_id, flight)
            self._flights[packet_id] = flight._replace(state=RELEASED, is_lent=False)
        elif self.level >= LISTED_LEVEL:
            self.send(b"\x62\x03" + packet_id.to_bytes(2) + bytes((NOT_FOUND,)))
            return True
        self.send(b"\x62\x02" + packet_id.to_bytes(2))
        return True

    def complete(self, packet_id: int) -> bool:
        """Handle PUBCOMP; `pump` must follow. Return False if a message awaits another packet."""
        flight = self._flights.get(packet_id)
        if flight is None:
            return True
        if flight.qos != 2 or flight.state != RELEASED:
            return False
        self._land(packet_id)
        return True

    def refuse(self, packet_id: int) -> bool:
        """
        Handle PUBREC with an error; `pump` must follow. Return False if a message awaits another
        packet.
        """
        flight = self._flights.get(packet_id)
        if flight is None:
            return True
        if flight.qos != 2 or flight.state == RELEASED:
            return False
        self._land(packet_id)
        return True

    def first_queued(self) -> dict[Any, int]:
        """Return the lowest queued offset of each part of a journal."""
        found: dict[Any, int] = {}
        for waiting in self._queue:
            found.setdefault(waiting.part, waiting.offset)
        return found

    def encode_qos0(self, topic: bytes, payload: bytes, properties: bytes) -> bytes:
        """Return the PUBLISH of a live message at QoS 0 in the client's form."""
        rest = self._list(properties) + payload
        return publish_head(0, topic, len(rest)) + rest

    # internal

    def _list(self, properties: bytes) -> bytes:
        return property_list(properties) if self.level >= LISTED_LEVEL else b""

    def _packet(
        self,
        topic: bytes,
        payload: bytes,
        qos: int,
        size: int,
        retain: bool,
        part: Any,
        offset: int,
        properties: bytes,
        *,
        again: bool = False,
    ) -> Waiting:
        rest = self._list(properties) + payload
        head = publish_head(qos << 1 | retain | again << 3, topic, 2 + len(rest))
        return Waiting(head + b"\0\0" + rest, len(head), qos, size, part, offset)

    def _has_space_for(self, packet: bytes) -> bool:
        """True if the client accepts a packet of this size; count the packet otherwise."""
        if not self.max_packet or len(packet) <= self.max_packet:
            return True
        self._note()
        self.too_large += 1
        return False

    def _aliased(self, packet: bytes) -> bytes:
        """Return a PUBLISH of QoS 0 with an alias, if it gets one."""
        has_room = not self.max_packet or len(packet) + GROWTH <= self.max_packet
        return self._aliases.put(packet) if self._aliases and has_room else packet

    def _note(self) -> None:
        if not self.is_noted:
            self.is_noted = True
            self._on_output(self)

    @property
    def _can_launch(self) -> bool:
        return (
            len(self._flights) < self._inflight
            and self._flight_size < self._memory
            and len(self._output) < HIGH_MARK
        )

    def _launch(
        self,
        waiting: Waiting,
        *,
        is_lent: bool = False,
        lent_as: tuple[int, int] | None = None,
    ) -> None:
        packet_id = self._last_id % 65_535 + 1
        while packet_id in self._flights:  # [MQTT-2.3.1-4]
            packet_id = packet_id % 65_535 + 1
        self._last_id = packet_id
        self._flights[packet_id] = Flight(waiting.qos, waiting.size, SENT, is_lent, lent_as)
        self._flight_size += waiting.size
        if len(self._flights) == self._inflight or self._flight_size >= self._memory:
            self.fills += 1
            self._on_fill()
        packet, id_at = waiting.packet, waiting.id_at
        self.send(packet[:id_at] + packet_id.to_bytes(2) + packet[id_at + 2 :])

    def _land(self, packet_id: int) -> None:
        flight = self._flights.pop(packet_id)
        self._flight_size -= flight.size
        self._report(packet_id, flight)

    def _report(self, packet_id: int, flight: Flight) -> None:
        if flight.lent_as is not None:
            self._answered.append(flight.lent_as)
        elif flight.is_lent:
            self._landed.append(packet_id)
        else:
            return
        self._note()

    def _wait(self, waiting: Waiting) -> None:
        self._queue.append(waiting)
        self._queue_size += waiting.size
        if len(self._queue) >= QUEUE_HIGH_MARK or self._queue_size >= QUEUE_BYTES // 4:
            self._note_full()

    def _note_full(self) -> None:
        if not self.is_full:
            self.is_full = True
            self._on_full(self)


def _by_lender(messages: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for lender, offset in messages:
        found.setdefault(lender, []).append(offset)
    return found
