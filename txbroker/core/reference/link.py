"""Decodes the input of a link: bytes in, runs of publishes and single frames out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from txbroker.core.reference.link_scope import LinkScope
from txbroker.core.reference.packet_reader import buffer_rest, gather
from txbroker.core.reference.packets import DUP, Entry, Form, plain_publish
from txbroker.core.reference.run import Run
from txbroker.model.publish_run import MOST, Octets
from txbroker.mqtt.wire.framing import Framer, encode_length
from txbroker.mqtt.wire.property_list import LISTED, is_stored_publish
from txbroker.mqtt.wire.return_codes import ProtocolViolation

MOST_KNOWN = 1000
LONGEST_KNOWN = 200
"""Maximum number of known batch headers, and the maximum size of each in bytes."""

SILENT = 2.0
"""
Seconds after which a link counts as silent. What comes next may have waited in the sockets, as
heartbeats come each second. So nothing of it is forwarded before the caller has looked.
"""

COUNT = 4
"""
Bytes at the end of a batch header that hold the number of its publishes, little-endian.

The reader knows a header without its count, so one known header covers all counts.
"""


class LinkReader:
    """
    The input of one link; `expected` publishes of the current batch are still to come.

    Publishes outside the scope `bailiwick` are returned one by one, for the caller to check. A
    batch with a known header may be forwarded at once (see `Sockets`). The link must be `is_open`,
    and `received` below `most` bytes. If only a part was forwarded, `step` returns a header for the
    rest. Attributes:

    - `heard_at`: the time of the last batch that was forwarded.
    - `may_take`: at an edge, returns True if deliveries may go to its clients now.
    - `leave`: at an edge, receives each run that not all clients could receive.
    """

    def __init__(self, max_frame: int) -> None:
        self.bailiwick = LinkScope()
        self.expected = 0
        self.is_fed = False
        self.is_open = False
        self.received = self.most = 0
        self.may_take: Callable[[], bool] | None = None
        self.leave: Callable[[Run, list[tuple[Any, range]]], None]
        self.heard_at = 0.0
        self._known: dict[bytes, tuple[str, str]] = {}  # by header without its count
        self._header = b""
        self._begun: bytes | None = None  # the header of the current batch, without its count
        self._peeked: tuple[bytes | None, int] = None, 0
        self.fault: Exception | None = None
        self._framer = Framer(max_frame)
        self._next: tuple[int, bytes] | None = None

    @property
    def first_byte(self) -> int | None:
        """First byte of the incomplete frame, or None."""
        return self._framer.first_byte

    def is_silent(self, now: float) -> bool:
        """True if nothing came for so long that what comes may have waited."""
        return self.heard_at > 0 and now - self.heard_at > SILENT

    def trust(self, max_frame: int) -> None:
        """Raise the maximum frame size, for a peer that is trusted now."""
        self._framer.max_packet = max_frame

    def feed(self, data: Octets) -> None:
        """Append bytes that were read, without holding a view of them; `step` processes them."""
        self.is_fed = True
        self._framer.feed(data)

    def joined(self, data: bytes) -> bytes | None:
        """Prepend the incomplete frame to `data`; return None if it is incomplete still."""
        return self._framer.joined(data)

    def know(self, client_id: str, edge: str, count: int) -> None:
        """
        Remember the header that `step` returned last, of a batch of `count` publishes.

        Publishes of QoS 0 under this header belong to this client at this edge. The reader may
        forward them without asking.
        """
        header = self._header
        if self.is_open and COUNT <= len(header) <= LONGEST_KNOWN and _count_of(header) == count:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._begun = header[:-COUNT]
            self._known[self._begun] = client_id, edge

    def forget(self) -> None:
        """Forget all headers."""
        self._known.clear()
        self._header = b""

    def answered(self, data: bytes) -> int:
        """Return 0: a link has no acknowledgements (`PacketReader.answered`)."""
        return 0

    def peek(self, data: bytes) -> tuple[Run, int] | None:
        """Return the run at the start of `data` if its batch header is known, and its end."""
        if not (self.is_open and self.received < self.most):
            return None
        begun, left, at = self._begun, self.expected, 0
        if not left:
            begun, left, at = self._peek_header(data)
        if begun is None or begun not in self._known:
            return None
        gathered = gather(
            data[at:], self._framer.max_packet, min(left, MOST), self.bailiwick, Form.STORED
        )
        if not gathered.entries:
            return None
        client_id, edge = self._known[begun]
        run = Run(bytes(gathered.data), gathered.entries, clients=(client_id,))
        run.edge = edge
        self._peeked = begun, left - run.count
        return run, at + len(run.data)

    def _peek_header(self, data: bytes) -> tuple[bytes | None, int, int]:
        """Return the header at the start of `data` without its count, the count, and its end."""
        framer = Framer(self._framer.max_packet)
        framer.feed(data)
        with suppress(ProtocolViolation):
            for first_byte, body in framer.frames():
                if first_byte or len(body) < COUNT:
                    break
                return body[:-COUNT], _count_of(body), len(data) - framer.pending
        return None, 0, 0

    def record_forwarded(self, run: Run) -> int:
        """Record that `run` was forwarded; return 0, as none of its publishes is a client's."""
        self.received += run.size
        self._begun, self.expected = self._peeked
        return 0

    def buffer_rest(self, data: bytes, at: int) -> bool:
        """Keep the bytes from `at` on; return False if they hold more than a frame's beginning."""
        self.is_fed = not buffer_rest(data, at, self._framer)
        return not self.is_fed

    def step(self) -> Run | tuple[int, bytes] | None:
        """
        Return the next frame, or a run of the next publishes, or None.

        A run holds plain publishes of one batch within the scope, all of QoS 0 or none. The caller
        sets its clients and offsets. None means no further frame; `fault` is then set if the next
        bytes are no frame.
        """
        data = bytearray()
        entries: list[Entry] = []
        while (frame := self._take()) is not None:
            if self.expected and self._begun is not None:
                self._next = frame
                frame = 0, self._begun + self.expected.to_bytes(COUNT, "little")
                self.expected = 0
            self._begun = None
            first_byte, body = frame
            is_publish = is_stored_publish(first_byte)
            if is_publish:
                first_byte &= ~DUP
            one = None
            if self.expected and is_publish:
                one = plain_publish(first_byte, body, 0, self.bailiwick, Form.STORED)
            is_alike = one is not None and (not entries or (one.qos > 0) == (entries[0].qos > 0))
            if not is_alike and entries:
                self._next = frame
                break
            if is_publish and self.expected:
                self.expected -= 1
            if one is None:
                self._header = body if not first_byte else b""
                return first_byte, body
            at = len(data)
            entries.append(one.moved(at))
            wire_byte = first_byte & ~LISTED
            data += bytes((wire_byte,)) + encode_length(len(body)) + body
            if len(entries) == MOST:
                break
        self.is_fed = bool(entries) or self.fault is not None
        return Run(bytes(data), entries, clients=("",)) if entries else None

    def _take(self) -> tuple[int, bytes] | None:
        if self._next is not None:
            frame, self._next = self._next, None
            return frame
        try:
            return next(self._framer.frames(), None)
        except ProtocolViolation as violation:
            self.fault = violation
            return None


def _count_of(header: bytes) -> int:
    return int.from_bytes(header[-COUNT:], "little")
