"""
Decodes the input of one client: bytes in, runs of publishes and single packets out.

Before `open`, the caller handles every packet. After `open`, the reader handles plain publishes and
acknowledgements that need no decision. Bytes take one of two paths:

- the full path: `feed` appends the bytes (`is_fed`), and `step` processes them;
- the direct path of `Sockets`: `joined`, `answered`, `peek` and `record_forwarded` handle
  acknowledgements and runs of QoS 0 at once. `buffer_rest` passes the rest to the full path. The
  direct path is closed while `is_fed` is True, as later bytes must not overtake earlier ones.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from txbroker.core.reference.flows import Flows
from txbroker.core.reference.link_scope import LinkScope
from txbroker.core.reference.packet_writer import PacketWriter
from txbroker.core.reference.packets import PUBLISH, Entry, Form, plain_publish
from txbroker.core.reference.run import Run
from txbroker.model.publish_run import MOST, Octets
from txbroker.mqtt.wire.framing import Framer, encode_length
from txbroker.mqtt.wire.property_list import LISTED, LISTED_LEVEL
from txbroker.mqtt.wire.return_codes import ProtocolViolation

PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70

PINGREQ, PINGRESP = b"\xc0\0", b"\xd0\0"


class PacketReader:
    """
    The input of one connection that is not processed yet.

    Before `open`, `step` returns each packet. After it, the reader itself handles simple packets.
    Plain publishes go to `qos0` and `qos12`. Acknowledgements go to the window of the packet writer
    (of a clean session) or into `pubacks`. Attributes:

    - `takes_qos12`: True if the reader may collect publishes of QoS 1 and 2 now.
    - `leaves_text`: True if publishes that say that their payload is UTF-8 are for the caller.
    - `heard_at`: the time of the last whole packet, where the caller sets it.
    - `is_padded`: True if the remaining length of the returned packet has more bytes than it needs.
      Level 5 forbids that, and the level of a CONNECT is the caller's to find.
    """

    def __init__(self, max_packet: int, packet_writer: PacketWriter) -> None:
        self.qos0: Run | None = None
        self.qos12: Run | None = None
        self.pubacks: list[int] = []
        self.takes_qos12 = False
        self.leaves_text = False
        self.has_heard = False
        self.has_landed = False
        self.has_more = False
        self.wants_flows = False
        self.is_fed = False
        self.is_padded = False
        self.heard_at = 0.0
        self.fault: Exception | None = None
        self._framer = Framer(max_packet)
        self._packet_writer = packet_writer
        self._session: Any = None
        self._flows: Flows | None = None
        self._clients: tuple[str, ...] = ()
        self._is_clean = False
        self._form = Form.LEVEL_4

    @property
    def max_packet(self) -> int:
        """Maximum size of a packet in bytes."""
        return self._framer.max_packet

    @max_packet.setter
    def max_packet(self, size: int) -> None:
        self._framer.max_packet = size

    @property
    def first_byte(self) -> int | None:
        """First byte of the incomplete packet, or None."""
        return self._framer.first_byte

    @property
    def awaited(self) -> int:
        """Bytes of the incomplete packet, as far as its length is known."""
        return self._framer.awaited

    def open(
        self, session: Any, client_id: str, flows: Flows | None, *, clean: bool, level: int = 4
    ) -> None:
        """
        Set the client's session and level; without `flows` the reader asks for them
        (`wants_flows`).
        """
        self._session = session
        self._clients = (client_id,)
        self._flows = flows
        self._is_clean = clean
        self._form = Form.LEVEL_5 if level >= LISTED_LEVEL else Form.LEVEL_4

    def close(self) -> None:
        """Stop collecting packets."""
        self._session = None

    def feed(self, data: Octets) -> None:
        """Append bytes that were read, without holding a view of them; `step` processes them."""
        self.is_fed = True
        self._framer.feed(data)

    def joined(self, data: bytes) -> bytes | None:
        """Prepend the incomplete packet to `data`; return None if it is incomplete still."""
        return self._framer.joined(data)

    def step(self) -> tuple[int, bytes] | None:
        """
        Process packets until the caller must handle one; return that packet, or None.

        A full run (`MOST` messages) ends the step early; `has_more` is then True, as bytes may be
        left. The caller must process `qos0`, `qos12` and `pubacks` before the returned packet: they
        came first. A `fault` comes last: the bytes behind it are no packets. Flags after the call:

        - `has_heard`: the input held a whole packet.
        - `has_landed`: the window got room, its waiting messages were launched, and the session
          must handle the rest.
        - `wants_flows`: the next packet is a publish that needs flows to be collected.
        """
        self.pubacks = []
        self.has_heard = self.has_landed = self.has_more = self.wants_flows = False
        gathered = Gathered(), Gathered()
        serial = 0 if self._flows is None else self._flows.next_serial()
        found = None
        try:
            for first_byte, body in self._framer.frames():
                self.has_heard = True
                if not self._process(first_byte, body, gathered, serial):
                    if self.wants_flows:
                        self._framer.unread()
                        self.has_more = True
                        break
                    found = first_byte, body
                    self.is_padded = self._framer.is_padded
                    self.has_more = self._framer.pending > 0
                    break
                if len(gathered[0].entries) == MOST or len(gathered[1].entries) == MOST:
                    self.has_more = True
                    break
        except ProtocolViolation as violation:
            self.fault = violation
        if self.has_landed:
            self._packet_writer.pump()
            self.has_landed = not self._packet_writer.is_direct or self._packet_writer.has_news
        self.qos0 = self._run(gathered[0], serial)
        self.qos12 = self._run(gathered[1], serial)
        self.is_fed = self.has_more or self.fault is not None
        return found

    @property
    def is_new(self) -> bool:
        """True if no session is open: the caller knows the length of the incomplete packet."""
        return self._session is None

    def take_pings(self, data: bytes, now: float) -> bool:
        """
        Answer PINGREQ packets if they and the beginning of one are all that a socket brought.

        Return False if nothing was processed: the bytes hold something else, or output waits.
        """
        whole = PINGREQ[: self._framer.pending] + data
        count = len(whole) // 2
        is_ping = whole == (PINGREQ * (count + 1))[: len(whole)]
        if not is_ping or not self._may_take_pings():
            return False
        if len(whole) > len(data):
            self._framer.joined(data)
        self._framer.feed(whole[2 * count :])
        if count:
            self.heard_at = now
            self._packet_writer.send(PINGRESP * count)  # [MQTT-3.12.4-1]
        return True

    def _may_take_pings(self) -> bool:
        """True if a PINGREQ needs no decision, and what is left of earlier bytes begins one."""
        packet_writer, half = self._packet_writer, self._framer.pending
        if self._session is None or self.is_fed or half > 1:
            return False
        if half and self.first_byte != PINGREQ[0]:
            return False
        return packet_writer.descriptor >= 0 and packet_writer.has_room

    def answered(self, data: bytes) -> int:
        """
        Process the acknowledgements at the start of `data` that concern the window alone.

        Return the number of bytes processed.
        """
        if self._session is None or not self._packet_writer.is_calm:
            return 0
        framer, at = Framer(self._framer.max_packet), 0
        framer.feed(data)
        self.has_landed = False
        with suppress(ProtocolViolation):
            for first_byte, body in framer.frames():
                if self._is_illegal(framer) or not self._process_answer(first_byte, body):
                    break
                at = len(data) - framer.pending
        if self.has_landed:
            self._packet_writer.pump()
        return at

    def peek(self, data: bytes) -> tuple[Run, int] | None:
        """
        Return the run of plain QoS 0 publishes in `data`, and its end; None otherwise.

        Only the beginning of a packet may follow the run.
        """
        if self._session is None:
            return None
        gathered = gather(
            data, self._framer.max_packet, MOST, form=self._form, leaves_text=self.leaves_text
        )
        run = self._run(gathered, 0)
        if run is None or not is_part(data[len(run.data) :], self._framer.max_packet):
            return None
        return run, len(run.data)

    def record_forwarded(self, run: Run) -> int:
        """Record that `run` was forwarded; return the number of its client publishes."""
        return run.count

    def buffer_rest(self, data: bytes, at: int) -> bool:
        """Keep the bytes from `at` on; return False if they hold more than a packet's beginning."""
        self.is_fed = not buffer_rest(data, at, self._framer)
        return not self.is_fed

    def _process(
        self, first_byte: int, body: bytes, gathered: tuple[Gathered, Gathered], serial: int
    ) -> bool:
        """Process one packet; return False if the caller must handle it."""
        if self._session is None or self._is_illegal(self._framer):
            return False
        if first_byte >> 4 == 3:
            return self._process_publish(first_byte, body, gathered, serial)
        return self._process_answer(first_byte, body)

    def _is_illegal(self, framer: Framer) -> bool:
        """True if level 5 forbids the length of the framer's last packet."""
        return self._form is Form.LEVEL_5 and framer.is_padded

    def _process_answer(self, first_byte: int, body: bytes) -> bool:
        """Process an acknowledgement; return False if the caller must handle the packet."""
        if len(body) != 2 or body == b"\0\0":
            return False
        packet_id = int.from_bytes(body)
        if first_byte == PUBACK:
            if self._packet_writer.has_window:
                if not self._packet_writer.acknowledge((packet_id,)):
                    return False
                self.has_landed = True
            else:
                self.pubacks.append(packet_id)
            return True
        if not self._is_clean or (first_byte == PUBREL and self._flows is None):
            return False
        if first_byte == PUBREC:
            return self._packet_writer.receive(packet_id)
        elif first_byte == PUBREL:
            assert self._flows is not None
            return self._flows.release(packet_id, self._packet_writer)
        elif first_byte == PUBCOMP:
            if not self._packet_writer.complete(packet_id):
                return False
            self.has_landed = True
        else:
            return False
        return True

    def _process_publish(
        self, first_byte: int, body: bytes, gathered: tuple[Gathered, Gathered], serial: int
    ) -> bool:
        one = plain_publish(first_byte, body, 0, form=self._form, leaves_text=self.leaves_text)
        if one is None:
            return False
        if one.qos:
            self.wants_flows = self._flows is None
            is_taken = self.takes_qos12 and (one.qos == 1 or self._is_clean)
            if not is_taken or self._flows is None:
                return False
            if not self._flows.open_flow(one.packet_id, one.qos, serial):
                return False
        gathered[one.qos > 0].add(one, bytes((first_byte,)) + encode_length(len(body)) + body)
        return True

    def _run(self, gathered: Gathered, serial: int) -> Run | None:
        if not gathered.entries:
            return None
        run = Run(
            bytes(gathered.data),
            gathered.entries,
            clients=self._clients,
            session=self._session,
            serial=serial,
        )
        run.flows, run.packet_writer = self._flows, self._packet_writer
        return run


LONGEST = 16_383
"""Maximum remaining length, in bytes, of a packet that `gather` accepts."""


def gather(
    data: bytes,
    max_packet: int,
    most: int,
    bailiwick: LinkScope | None = None,
    form: Form = Form.LEVEL_4,
    *,
    leaves_text: bool = False,
) -> Gathered:
    """Return the plain QoS 0 publishes at the start of `data`, at most `most`, in wire form."""
    framer, gathered = Framer(max_packet), Gathered()
    framer.feed(data)
    firsts = (PUBLISH, PUBLISH | LISTED) if form is Form.STORED else (PUBLISH,)
    with suppress(ProtocolViolation):
        for first_byte, body in framer.frames():
            rest = encode_length(len(body)) + body
            one = None
            if first_byte in firsts and len(gathered.entries) < most:
                one = plain_publish(first_byte, body, 0, bailiwick, form, leaves_text=leaves_text)
            is_as_it_was = data.startswith(rest, len(gathered.data) + 1)
            if one is None or len(body) > LONGEST or not is_as_it_was:
                break
            gathered.add(one, bytes((PUBLISH,)) + rest)
    return gathered


def buffer_rest(data: bytes, at: int, framer: Framer) -> bool:
    """
    Feed the bytes from `at` on to the framer; return False if `step` must process them.

    Bytes that hold more than a packet's beginning need processing. So does a packet's beginning if
    no run preceded it, as its first bytes must be checked.
    """
    rest = data[at:]
    is_kept = at > 0 and is_part(rest, framer.max_packet)
    framer.feed(rest)
    if is_kept:
        assert next(framer.frames(), None) is None
    return is_kept


def is_part(data: bytes, max_packet: int) -> bool:
    """True if `data` holds no whole packet, but at most the beginning of one."""
    framer = Framer(max_packet)
    framer.feed(data)
    try:
        return next(framer.frames(), None) is None
    except ProtocolViolation:
        return False


class Gathered:
    """The publishes collected for a run."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.entries: list[Entry] = []

    def add(self, one: Entry, packet: bytes) -> None:
        """Add a publish whose entry counts positions from the start of its packet."""
        at = len(self.data)
        self.data += packet
        self.entries.append(one.moved(at))
