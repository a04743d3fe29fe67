"""
The framing of a byte stream into packets (section 2.2 of the OASIS text of MQTT 3.1.1).

Sockets of clients and links between nodes share the framing: the meaning of a type is unknown here.
"""

from __future__ import annotations

from collections.abc import Iterator

from txbroker.model.publish_run import Octets
from txbroker.mqtt.wire.reason_codes import ReasonCode
from txbroker.mqtt.wire.return_codes import ProtocolViolation


class Framer:
    """
    The framer of one connection: bytes become frames, pairs of first byte and body.

    The framer does not check types and flags, so links between nodes may use types of their own.
    """

    def __init__(self, max_packet: int) -> None:
        """Set `max_packet`, the size in bytes of the largest legal packet, its header included."""
        self.max_packet = max_packet
        # Unread bytes are `_buffer[_offset:] + _tail`. The tail grows in place while a packet is
        # incomplete, and moves over when the packet is complete. So each byte is copied a fixed
        # number of times, however slowly a client sends.
        self._buffer = b""
        self._offset = 0
        self._tail = bytearray()
        self._before = 0  # offset of the last frame
        self._wanted = 2  # fewer bytes than this have no frame

    @property
    def pending(self) -> int:
        """Return the number of stored bytes that no frame has yet."""
        return len(self._buffer) - self._offset + len(self._tail)

    @property
    def first_byte(self) -> int | None:
        """Return the first byte of the incomplete frame; None: no byte of it has arrived."""
        if self._offset < len(self._buffer):
            return self._buffer[self._offset]
        return self._tail[0] if self._tail else None

    @property
    def awaited(self) -> int:
        """Return the bytes of the incomplete frame, as far as its length is known."""
        return max(self.pending, self._wanted)

    def feed(self, data: Octets) -> None:
        """Store the bytes that were read; `frames` returns the frames that they complete."""
        if self._offset == len(self._buffer) and not self._tail:
            self._buffer = bytes(data)
            self._offset = 0
        else:
            self._tail += data

    def joined(self, data: bytes) -> bytes | None:
        """
        Return the stored bytes and `data` as one; None: they have no frame yet, and `data` is
        stored.
        """
        if not self.pending:
            return data
        self.feed(data)
        if self.pending < self._wanted:
            return None
        whole = self._buffer[self._offset :] + self._tail
        self._buffer, self._offset, self._wanted = b"", 0, 2
        self._tail.clear()
        return bytes(whole)

    @property
    def is_padded(self) -> bool:
        """True if the length of the last frame has more bytes than it needs; see `unread`."""
        at = self._before + 1
        while self._buffer[at] > 127:
            at += 1
        return at > self._before + 1 and not self._buffer[at]

    def unread(self) -> None:
        """Make the last frame come again; no call may come between."""
        self._offset = self._before

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """
        Yield the complete frames, each once; after a stop, the next call yields the rest.

        Raises `ProtocolViolation` after the frames that precede the fault. The faults are a
        malformed length, and a packet that is too large, as soon as its length is known. The caller
        must then close the connection.
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
                    raise too_large(self.max_packet, buffer[offset], buffer[start:stop])
                if stop > end:
                    self._wanted = stop - offset
                    break
                self._before, self._offset = offset, stop
                yield buffer[offset], buffer[start:stop]
                offset = self._offset
            # A few leftover bytes must not hold a read of 256 KiB in memory.
            self._buffer = self._buffer[self._offset :]
            self._offset = 0


def too_large(max_packet: int, first_byte: int, begun: bytes) -> ProtocolViolation:
    """Return the violation of a packet of which as much of the body has come as `begun`."""
    reason = f"A packet is larger than {max_packet} bytes."
    code = ReasonCode.PACKET_TOO_LARGE
    violation = ProtocolViolation("limits.packet", reason, reason_code=code)
    violation.frame = first_byte, begun
    return violation


def encode_length(remaining: int) -> bytes:
    """Encode a remaining length; the caller ensures that it fits into four bytes."""
    encoded = bytearray()
    while remaining > 127:
        encoded.append(remaining & 127 | 128)
        remaining >>= 7
    encoded.append(remaining)
    return bytes(encoded)


def _long_length(buffer: bytes, position: int) -> tuple[int, int]:
    """
    Decode a remaining length whose second byte is at `position`; return it and the body's offset.

    The offset is 0 while the last bytes of the length are missing.
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
