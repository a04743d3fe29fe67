"""
Cutting a stream of bytes into packets (section 2.2 of the OASIS text of MQTT 3.1.1).

Sockets of clients and links between nodes share it: what a type means is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator

from txbroker.model.publish_run import Octets
from txbroker.mqtt.wire.return_codes import ProtocolViolation


class Framer:
    """
    Cuts the bytes of one connection into frames: pairs of first byte and body.

    Types and flags are not judged, so links between nodes may use it for types of their own.
    """

    def __init__(self, max_packet: int) -> None:
        """`max_packet` is the size in bytes of the largest packet taken, its header included."""
        self.max_packet = max_packet
        # What arrived is `_buffer[_offset:] + _tail`. The tail grows in place while a packet is
        # incomplete and moves over when it completes it, so each byte is copied a fixed number
        # of times, however it trickles in.
        self._buffer = b""
        self._offset = 0
        self._tail = bytearray()
        self._before = 0  # where the last frame begins
        self._wanted = 2  # fewer bytes than this hold no frame

    @property
    def pending(self) -> int:
        """Bytes held that no frame has been made of yet."""
        return len(self._buffer) - self._offset + len(self._tail)

    @property
    def first_byte(self) -> int | None:
        """The first byte of the frame that is not complete yet; None where none of it is here."""
        if self._offset < len(self._buffer):
            return self._buffer[self._offset]
        return self._tail[0] if self._tail else None

    @property
    def awaited(self) -> int:
        """Bytes of the frame that is not complete yet, as far as its length is known."""
        return max(self.pending, self._wanted)

    def feed(self, data: Octets) -> None:
        """Take what was read; `frames` then gives what it completes."""
        if self._offset == len(self._buffer) and not self._tail:
            self._buffer = bytes(data)
            self._offset = 0
        else:
            self._tail += data

    def joined(self, data: bytes) -> bytes | None:
        """What came before and is no frame yet, and this; None: that is none yet, and was taken."""
        if not self.pending:
            return data
        self.feed(data)
        if self.pending < self._wanted:
            return None
        whole = self._buffer[self._offset :] + self._tail
        self._buffer, self._offset, self._wanted = b"", 0, 2
        self._tail.clear()
        return bytes(whole)

    def put_back(self) -> None:
        """The frame that came last comes again; nothing was fed or asked for since."""
        self._offset = self._before

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """
        The complete frames, each once; whoever stops halfway gets the rest from the next call.

        Raises `ProtocolViolation` in its turn, after the frames that came before the fault: for a
        malformed length, or a packet that is too large as soon as its length is known. The only
        thing to do then is to close.
        """
        while self.pending >= self._wanted:
            self._wanted = 2
            if self._tail:
                self._buffer = self._buffer[self._offset :] + self._tail
                self._offset = 0
                self._tail.clear()
            buffer, offset, end = self._buffer, self._offset, len(self._buffer)
            while end - offset >= 2:
                length, start = buffer[offset + 1], offset + 2
                if length > 127:
                    length, start = _long_length(buffer, start)
                    if not start:
                        self._wanted = end - offset + 1
                        break
                stop = start + length
                if stop - offset > self.max_packet:
                    reason = f"A packet is larger than {self.max_packet} bytes."
                    raise ProtocolViolation("limits.packet", reason)
                if stop > end:
                    self._wanted = stop - offset
                    break
                self._before, self._offset = offset, stop
                yield buffer[offset], buffer[start:stop]
                offset = self._offset
            # A few bytes left over must not keep a read of 256 KiB in memory.
            self._buffer = self._buffer[self._offset :]
            self._offset = 0


def encode_length(remaining: int) -> bytes:
    """A remaining length as it stands on the wire; it is expected to fit into four bytes."""
    encoded = bytearray()
    while remaining > 127:
        encoded.append(remaining & 127 | 128)
        remaining >>= 7
    encoded.append(remaining)
    return bytes(encoded)


def _long_length(buffer: bytes, position: int) -> tuple[int, int]:
    """
    A remaining length whose second byte is at `position`, and where the body starts.

    The start is 0 while the last bytes of the length are missing.
    """
    length = buffer[position - 1] & 0x7F
    for shift in (7, 14, 21):
        if position == len(buffer):
            return 0, 0
        byte = buffer[position]
        length |= (byte & 0x7F) << shift
        position += 1
        if byte < 128:
            return length, position
    raise ProtocolViolation("section 2.2.3", "A remaining length has more than four bytes.")
