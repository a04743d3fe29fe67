"""What comes from the other end of a link: bytes in, runs of publishes and single frames out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from txbroker.core.reference.link_scope import LinkScope
from txbroker.core.reference.packet_reader import gather, keep
from txbroker.core.reference.packets import DUP, Entry, plain_publish
from txbroker.core.reference.run import Run
from txbroker.model.publish_run import MOST, Octets
from txbroker.mqtt.wire.framing import Framer, encode_length
from txbroker.mqtt.wire.return_codes import ProtocolViolation

MOST_KNOWN = 1000
LONGEST_KNOWN = 200
"""How many headers of batches are known at a time, and of how many bytes each at the most."""

COUNT = 4
"""
Bytes at the end of a batch's header that say how many publishes follow, the least significant one
first. Of headers that differ in nothing else, one has to be known.
"""


class LinkReader:
    """
    One link's input; `expected`: so many publishes of the batch at hand are still to come. Those
    that are not within the `bailiwick` come each by itself, for others to judge.

    Batches whose header is known may go on at once (see `Sockets`), while the link `is_open` for
    that, as long as the `received` bytes of these are fewer than `most`; if only the beginning of
    one does, `step` gives a header for the rest. `heard_at`: when the last one came. At the end of
    an edge, `may_take` says whether deliveries go to its clients now, and `leave` gets what could
    not be given to all of them.
    """

    def __init__(self, max_frame: int) -> None:
        self.bailiwick = LinkScope()
        self.expected = 0
        self.is_fed = False
        self.is_open = False
        self.received = self.most = 0
        self.may_take: Callable[[], bool] | None = None
        self.leave: Callable[[Run, list[tuple[Any, int]]], None]
        self.heard_at = 0.0
        self._known: dict[bytes, tuple[str, str]] = {}  # by headers without their counts
        self._header = b""
        self._begun: bytes | None = None  # such a header: that of the batch at hand
        self._peeked: tuple[bytes | None, int] = None, 0
        self.fault: Exception | None = None
        self._framer = Framer(max_frame)
        self._next: tuple[int, bytes] | None = None

    @property
    def first_byte(self) -> int | None:
        """The first byte of the frame that is not complete yet."""
        return self._framer.first_byte

    def trust(self, max_frame: int) -> None:
        """Frames may be as large as this from here on."""
        self._framer.max_packet = max_frame

    def feed(self, data: Octets) -> None:
        """Take what was read, of which a view is not kept; `step` works it off."""
        self.is_fed = True
        self._framer.feed(data)

    def joined(self, data: bytes) -> bytes | None:
        """What came before and was not whole, and this; None: it was taken, and is not whole."""
        return self._framer.joined(data)

    def know(self, client_id: str, edge: str, count: int) -> None:
        """
        The header that `step` gave last, of so many publishes, may come again: those of QoS 0 are
        of this client at this edge, and nothing has to be decided for them.
        """
        header = self._header
        if self.is_open and COUNT <= len(header) <= LONGEST_KNOWN and _count_of(header) == count:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._begun = header[:-COUNT]
            self._known[self._begun] = client_id, edge

    def forget(self) -> None:
        """No header that came is good any more."""
        self._known.clear()
        self._header = b""

    def answered(self, data: bytes) -> int:
        """As `PacketReader.answered`: there are none here."""
        return 0

    def peek(self, data: bytes) -> tuple[Run, int] | None:
        """The run that this begins with, if its batch's header is known, and where it ends."""
        if not (self.is_open and self.received < self.most):
            return None
        begun, left, at = self._begun, self.expected, 0
        if not left:
            begun, left, at = self._peek_header(data)
        if begun is None or begun not in self._known:
            return None
        gathered = gather(data[at:], self._framer.max_packet, min(left, MOST), self.bailiwick)
        if not gathered.entries:
            return None
        client_id, edge = self._known[begun]
        run = Run(bytes(gathered.data), gathered.entries, clients=(client_id,))
        run.edge = edge
        self._peeked = begun, left - run.count
        return run, at + len(run.data)

    def _peek_header(self, data: bytes) -> tuple[bytes | None, int, int]:
        """The header that this begins with, without its count, that, and where it ends."""
        framer = Framer(self._framer.max_packet)
        framer.feed(data)
        with suppress(ProtocolViolation):
            for first_byte, body in framer.frames():
                if first_byte or len(body) < COUNT:
                    break
                return body[:-COUNT], _count_of(body), len(data) - framer.pending
        return None, 0, 0

    def note(self, run: Run) -> int:
        """That went on; gives how many publishes of a client that were."""
        self.received += run.size
        self._begun, self.expected = self._peeked
        return 0

    def keep(self, data: bytes, at: int) -> bool:
        """What did not go on is kept; False: it is to be worked off."""
        self.is_fed = not keep(data, at, self._framer)
        return not self.is_fed

    def step(self) -> Run | tuple[int, bytes] | None:
        """
        The next frame, or several: plain publishes of one batch within the bailiwick, all of QoS 0
        or none, are a run, whose clients and offsets are for the caller to set. None: there is no
        more, and `fault` says where it is because the bytes that follow are no frames.
        """
        data = bytearray()
        entries: list[Entry] = []
        while (frame := self._take()) is not None:
            if self.expected and self._begun is not None:
                self._next = frame
                frame = 0, self._begun + self.expected.to_bytes(COUNT, "little")
                self.expected = 0
            self._begun = None
            first_byte, body = frame[0] & ~DUP if frame[0] >> 4 == 3 else frame[0], frame[1]
            one = None
            if self.expected and first_byte >> 4 == 3:
                one = plain_publish(first_byte, body, 0, self.bailiwick)
            is_alike = one is not None and (not entries or (one.qos > 0) == (entries[0].qos > 0))
            if not is_alike and entries:
                self._next = frame
                break
            if first_byte >> 4 == 3 and self.expected:
                self.expected -= 1
            if one is None:
                self._header = body if not first_byte else b""
                return first_byte, body
            at = len(data)
            entries.append(one.moved(at))
            data += bytes((first_byte,)) + encode_length(len(body)) + body
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
