"""What comes from the other end of a link: bytes in, runs of publishes and single frames out."""

from __future__ import annotations

from txbroker.core.reference.packets import DUP, plain_publish
from txbroker.core.reference.run import Entry, Run
from txbroker.mqtt.framing import Framer, encode_length
from txbroker.mqtt.return_codes import ProtocolViolation
from txbroker.runs import MOST, Octets


class LinkInlet:
    """One link's input; `expected`: so many publishes of the batch at hand are still to come."""

    def __init__(self, max_frame: int) -> None:
        self.expected = 0
        self.fault: ProtocolViolation | None = None
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
        self._framer.feed(data)

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
                return first_byte, body
            at = len(data)
            entries.append(one.moved(at))
            data += bytes((first_byte,)) + encode_length(len(body)) + body
            if len(entries) == MOST:
                break
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
