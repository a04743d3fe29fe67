"""What goes to one client: its output, and the QoS 1 and 2 of a clean session."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from txbroker.core.reference.packets import publish_head
from txbroker.model.publish_run import Octets

HIGH_MARK = 256 * 1024
"""Bytes of output above which a client gets nothing that can wait."""

MOST = 4 * 1024 * 1024
"""Bytes of output above which what cannot wait is dropped."""

QUEUE_MESSAGES = 8_192
QUEUE_BYTES = 1024 * 1024
"""What waits behind the window and could be read again from a journal, at the most."""

QUEUE_HIGH_MARK = 1_000
"""Messages behind the window with which a client counts as full."""

SENT, RELEASED = 1, 2


class Flight(NamedTuple):
    """A message in flight: PUBLISH went, or (`RELEASED`) PUBREL."""

    qos: int
    size: int
    state: int


class Waiting(NamedTuple):
    """A packet that waits for a packet id at `id_at`; `part` and `offset`: where it lies."""

    packet: bytes
    id_at: int
    qos: int
    size: int
    part: Any
    offset: int


class PacketWriter:
    """
    The way to one client that is here; `on_output` is called when there is something to send, or
    was dropped, once until `is_noted` is taken back; `on_full` when the output or what waits behind
    the window has passed its high mark, once until `is_full` is taken back.

    `is_direct`: live messages may go straight to it; its session has nothing to take before them.
    `is_shut`: QoS 0 is dropped and counted in `dropped`. `fills` counts how often the window became
    full, which `on_fill` is told; `is_told`: nobody has to look at that any more. `descriptor` is
    of the socket that may be written straight, -1 while there is none. `written`: bytes that a
    socket took of the output, wherever it was written. `is_behind`: publishers may
    be waiting for what waits here. Of a clean session (`open_window`), QoS 1 and 2 are kept here
    and nowhere else.
    """

    def __init__(
        self,
        on_output: Callable[[PacketWriter], None],
        on_full: Callable[[PacketWriter], None],
        on_fill: Callable[[], None],
    ) -> None:
        self.is_direct = False
        self.is_shut = False
        self.dropped = 0
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
        self._output = bytearray()
        self._inflight = 0
        self._memory = 0
        self._flights: dict[int, Flight] = {}
        self._flight_size = 0
        self._last_id = 0
        self._first: deque[Waiting] = deque()
        self._first_size = 0
        self._queue: deque[Waiting] = deque()
        self._queue_size = 0

    # output

    @property
    def size(self) -> int:
        """Bytes that wait for the socket."""
        return len(self._output)

    @property
    def has_room(self) -> bool:
        """Whether something that can wait may go out now."""
        return len(self._output) < HIGH_MARK and self._first_size < QUEUE_BYTES

    def send(self, data: bytes) -> None:
        """Put bytes into the output; they leave in order."""
        self._note()
        self._output += data
        if len(self._output) >= HIGH_MARK:
            self._note_full()

    def send_now(self, data: bytes) -> None:
        """As `send`, but what the socket takes does not wait for the end of the turn."""
        if self.descriptor >= 0 and not self._output:
            with contextlib.suppress(OSError):  # it is met again, and told, with the rest
                data = data[os.write(self.descriptor, data) :]
        if data:
            self.send(data)

    def send_qos0(self, packet: bytes) -> bool:
        """Send a packet that may be dropped; False: it was, and counted."""
        if self.is_shut or len(self._output) > MOST:
            self._note()
            self.dropped += 1
            return False
        self.send(packet)
        return True

    def take(self) -> Octets:
        """All output, which is the caller's from here on; it may be a view of what was read."""
        output, self._output = bytes(self._output), bytearray()
        return output

    def send_to(self, descriptor: int) -> bool:
        """
        Write what a non-blocking socket takes; True: nothing is left. Raises `OSError`. Of very
        much, some is left for later. (Compiled; the reference writes all.)
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
        """Write all to `descriptor`; False: it was not to be, or there is more to be looked at."""
        if self.descriptor < 0 or self.dropped or self.has_news:
            return False
        try:
            return self.send_to(self.descriptor)
        except OSError:
            return False  # whoever has the socket is told again

    @property
    def has_news(self) -> bool:
        """Whether somebody has to look at what became of the window."""
        is_new = self.fills > 0 and not self.is_told
        return self.is_behind or is_new or self.waiting > QUEUE_HIGH_MARK

    @property
    def is_calm(self) -> bool:
        """Whether the window is all that has to hear of acknowledgements."""
        return self.has_window and self.is_direct and not self.has_news

    # the window of a clean session

    def open_window(self, inflight: int, memory: int) -> None:
        """At most so many messages, of so many bytes, are unacknowledged; one always may be."""
        self.has_window = True
        self._inflight = inflight
        self._memory = memory

    @property
    def in_flight(self) -> int:
        """Messages that the client has not acknowledged."""
        return len(self._flights)

    @property
    def waiting(self) -> int:
        """Messages behind those in flight."""
        return len(self._first) + len(self._queue)

    @property
    def queue_has_room(self) -> bool:
        """Whether what can be read again may wait here."""
        return len(self._queue) < QUEUE_MESSAGES and self._queue_size < QUEUE_BYTES

    @property
    def is_short(self) -> bool:
        """Whether so little waits that more should be brought."""
        return len(self._queue) < QUEUE_MESSAGES // 2

    def give(
        self, topic: bytes, payload: bytes, qos: int, size: int, part: Any, offset: int
    ) -> bool:
        """A live QoS 1/2 message: in flight, or in the queue; False: there is no room."""
        waiting = _packet(topic, payload, qos, size, False, part, offset)
        if not (self._first or self._queue) and self._can_launch:
            self._launch(waiting)
            return True
        if not self.queue_has_room:
            return False
        self._wait(waiting)
        return True

    def give_again(
        self, topic: bytes, payload: bytes, qos: int, size: int, part: Any, offset: int
    ) -> bool:
        """One that was read from a journal; it leaves with `pump`. False: there is no room."""
        if not self.queue_has_room:
            return False
        self._wait(_packet(topic, payload, qos, size, False, part, offset))
        return True

    def give_first(
        self, topic: bytes, payload: bytes, qos: int, size: int, *, retain: bool
    ) -> None:
        """One that cannot be read again; it goes before the queue, with `pump`."""
        self._first.append(_packet(topic, payload, qos, size, retain, None, 0))
        self._first_size += size

    def drop_first(self, messages: int, size: int) -> int:
        """Drop the oldest of those that cannot be read again, beyond these limits; how many."""
        dropped = 0
        while len(self._first) > messages or self._first_size > size:
            self._first_size -= self._first.popleft().size
            dropped += 1
        return dropped

    def pump(self) -> None:
        """Launch what waits, as far as the window and the output have room."""
        while (self._first or self._queue) and self._can_launch:
            if self._first:
                waiting = self._first.popleft()
                self._first_size -= waiting.size
            else:
                waiting = self._queue.popleft()
                self._queue_size -= waiting.size
            self._launch(waiting)

    def acknowledge(self, packet_ids: Iterable[int]) -> bool:
        """PUBACKs came; `pump` goes on. False where a message in flight wants another answer."""
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
        PUBREC came: PUBREL is the answer, whatever is known of it (section 4.3.3), but for a
        message of QoS 1. False: as for `acknowledge`.
        """
        flight = self._flights.get(packet_id)
        if flight is not None:
            if flight.qos != 2:
                return False
            self._flights[packet_id] = flight._replace(state=RELEASED)
        self.send(b"\x62\x02" + packet_id.to_bytes(2))
        return True

    def complete(self, packet_id: int) -> bool:
        """PUBCOMP came; `pump` goes on. False: as for `acknowledge`."""
        flight = self._flights.get(packet_id)
        if flight is None:
            return True
        if flight.qos != 2 or flight.state != RELEASED:
            return False
        self._land(packet_id)
        return True

    def first_queued(self) -> dict[Any, int]:
        """The lowest offset in the queue of each part that has any."""
        found: dict[Any, int] = {}
        for waiting in self._queue:
            found.setdefault(waiting.part, waiting.offset)
        return found

    # internal

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

    def _launch(self, waiting: Waiting) -> None:
        packet_id = self._last_id % 65_535 + 1
        while packet_id in self._flights:  # [MQTT-2.3.1-4]
            packet_id = packet_id % 65_535 + 1
        self._last_id = packet_id
        self._flights[packet_id] = Flight(waiting.qos, waiting.size, SENT)
        self._flight_size += waiting.size
        if len(self._flights) == self._inflight or self._flight_size >= self._memory:
            self.fills += 1
            self._on_fill()
        packet, id_at = waiting.packet, waiting.id_at
        self.send(packet[:id_at] + packet_id.to_bytes(2) + packet[id_at + 2 :])

    def _land(self, packet_id: int) -> None:
        self._flight_size -= self._flights.pop(packet_id).size

    def _wait(self, waiting: Waiting) -> None:
        self._queue.append(waiting)
        self._queue_size += waiting.size
        if len(self._queue) >= QUEUE_HIGH_MARK or self._queue_size >= QUEUE_BYTES // 4:
            self._note_full()

    def _note_full(self) -> None:
        if not self.is_full:
            self.is_full = True
            self._on_full(self)


def _packet(
    topic: bytes, payload: bytes, qos: int, size: int, retain: bool, part: Any, offset: int
) -> Waiting:
    head = publish_head(qos << 1 | retain, topic, 2 + len(payload))
    return Waiting(head + b"\0\0" + payload, len(head), qos, size, part, offset)
