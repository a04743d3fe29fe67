"""What comes from the other end of a link: bytes in, runs of publishes and single frames out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txbroker.core.reference.inlet import gather
from txbroker.core.reference.packets import DUP, plain_publish
from txbroker.core.reference.run import Entry, Run
from txbroker.mqtt.framing import Framer, encode_length
from txbroker.mqtt.return_codes import ProtocolViolation
from txbroker.runs import MOST, Octets

MOST_KNOWN = 1000
LONGEST_KNOWN = 200
"""How many headers of batches are known at a time, and of how many bytes each at the most."""


class LinkInlet:
    """
    One link's input; `expected`: so many publishes of the batch at hand are still to come.

    Batches whose header is known may go on at once (see `Sockets`), while the link `is_open` for
    that, as long as the `received` bytes of these are fewer than `most`. `heard_at`: when the last
    one came. At the end of an edge, `may_take` says whether deliveries go to its clients now, and
    `leave` gets what could not be given to all of them.
    """

    def __init__(self, max_frame: int) -> None:
        self.expected = 0
        self.is_fed = False
        self.is_open = False
        self.received = self.most = 0
        self.may_take: Callable[[], bool] | None = None
        self.leave: Callable[[Run, list[tuple[Any, int]]], None]
        self.heard_at = 0.0
        self._known: dict[bytes, tuple[int, str, str]] = {}
        self._header: bytes | None = None
        self._peeked = 0
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
        The header that `step` gave last may come again: so many publishes of QoS 0, of this client
        at this edge, follow it, which nothing has to be decided for.
        """
        if self._header is not None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[self._header] = count, client_id, edge

    def forget(self) -> None:
        """No header that came is good any more."""
        self._known.clear()

    def peek(self, data: bytes) -> Run | None:
        """The run that `data` is, behind a header that is known; behind it there may be a part."""
        if self.expected or not (self.is_open and self.received < self.most):
            return None
        for header, (count, client_id, edge) in self._known.items():
            if data.startswith(header):
                gathered = gather(data[len(header) :], self._framer.max_packet)
                if gathered is None or len(gathered.entries) != count:
                    return None
                run = Run(bytes(gathered.data), gathered.entries, clients=(client_id,))
                run.edge = edge
                self._peeked = len(header) + len(run.data)
                return run
        return None

    def note(self, run: Run, data: bytes) -> int:
        """That went on, the rest is kept; gives how many publishes of a client that were."""
        self.received += run.size
        self._framer.feed(data[self._peeked :])
        assert next(self._framer.frames(), None) is None
        return 0

    def step(self) -> Run | tuple[int, bytes] | None:
        """
        The next frame, or several: plain publishes of one batch, all of QoS 0 or none, are a run,
        whose clients and offsets are for the caller to set. None: there is no more, and `fault`
        says where it is because the bytes that follow are no frames.
        """
        data = bytearray()
        entries: list[Entry] = []
        while (frame := self._take()) is not None:
            first_byte, body = frame[0] & ~DUP if frame[0] >> 4 == 3 else frame[0], frame[1]
            one = None
            if self.expected and first_byte >> 4 == 3:
                one = plain_publish(first_byte, body, 0)
            is_alike = one is not None and (not entries or (one.qos > 0) == (entries[0].qos > 0))
            if not is_alike and entries:
                self._next = frame
                break
            if first_byte >> 4 == 3 and self.expected:
                self.expected -= 1
            if one is None:
                whole = b"\0" + encode_length(len(body)) + body
                is_short = not first_byte and len(whole) <= LONGEST_KNOWN
                self._header = whole if is_short else None
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
