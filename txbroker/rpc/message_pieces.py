"""
A gRPC message of more than 4 MiB in pieces; both ends.

Large messages grow with the data: a payload, the cuts of a zone, the filters of a session. A piece
begins with a byte that begins no message of protobuf, and states the bytes to come. So the first
piece suffices to refuse a message that is too large.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from txbroker.model.errors import PeerError

MIB = 1 << 20

LARGEST = 4 * MIB
"""The most bytes of a gRPC message, in each direction."""

LARGEST_WHOLE = 320 * MIB
"""The most bytes of a message in pieces: the largest message of MQTT, and its additions."""

LARGEST_OF_STRANGER = 16 * MIB
"""
The most bytes of such a message in a call that was not let in: no authentication names its sender.
"""

TOGETHER = 384 * MIB
"""The most bytes of all incomplete messages at a node."""

TOGETHER_OF_STRANGERS = 32 * MIB
"""The most bytes of incomplete messages in calls that were not let in."""

ANNOUNCEMENT = "txbroker-pieces"
"""Metadata of a call and of its answer: the sender accepts pieces."""

UPGRADE = "use one version of txbroker for both"

_PIECE = MIB
_SMALLEST = 64 * 1024
_MARK = b"\x07"  # field 0 of type 7: neither exists
_HEAD = Struct("<cQ")


class PieceRoom:
    """
    The bytes of incomplete messages, shared by several calls.

    `drops_oldest`: at the limit the oldest message is dropped. Otherwise strangers whose messages
    never end would use all bytes.
    """

    def __init__(self, limit: int, *, drops_oldest: bool = False) -> None:
        self._left = limit
        self._drops_oldest = drops_oldest
        self._users: dict[WholeMessage, int] = {}

    def reserve(self, user: WholeMessage, size: int) -> None:
        """Reserve bytes for a message; raises `PeerError` if the limit is reached."""
        if self._drops_oldest:
            for other in list(self._users):
                if size <= self._left:
                    break
                if other is not user:
                    other.drop()
        if size > self._left:
            raise PeerError("as much comes in pieces as the node takes at once; try again later")
        self._left -= size
        self._users[user] = self._users.get(user, 0) + size

    def free(self, user: WholeMessage) -> None:
        """Release all bytes of a message."""
        self._left += self._users.pop(user, 0)


class WholeMessage:
    """
    Joins the pieces of one call's messages, at most `largest` bytes each, within `room`.

    `close` it with the call: otherwise an incomplete message holds its bytes in `room`.
    """

    def __init__(self, room: PieceRoom, largest: int) -> None:
        self._room = room
        self._largest = largest
        self._pieces: list[bytes] = []
        self._to_come = 0
        self._is_dropped = False

    def allow(self, room: PieceRoom, largest: int) -> None:
        """Set the room and the limit from the next message on."""
        self.close()
        self._room, self._largest = room, largest

    def add(self, message: bytes) -> bytes | None:
        """
        Add a piece; return the completed message, or None if more is to come. Raises `PeerError`.
        """
        if self._is_dropped:
            raise PeerError("others came after it, and there was no room; try again later")
        if not message.startswith(_MARK):
            if self._pieces:
                raise PeerError("a message begins within another one")
            return message
        to_come = self._check(message)
        size = len(message) - _HEAD.size
        self._room.reserve(self, size)
        self._pieces.append(message[_HEAD.size :])
        self._to_come = to_come - size
        if self._to_come:
            return None
        whole = b"".join(self._pieces)
        self.close()
        return whole

    def close(self) -> None:
        """Discard an incomplete message."""
        self._room.free(self)
        self._pieces, self._to_come = [], 0

    def drop(self) -> None:
        """Discard an incomplete message and refuse all later pieces."""
        self.close()
        self._is_dropped = True

    def _check(self, piece: bytes) -> int:
        """Return the bytes to come, this piece included."""
        if len(piece) <= _HEAD.size:
            raise PeerError("a piece of a message is empty")
        to_come: int = _HEAD.unpack_from(piece)[1]
        size = len(piece) - _HEAD.size
        if to_come > self._largest and not self._pieces:
            raise PeerError(f"a message of {to_come} bytes; at most {self._largest} are taken here")
        if self._pieces and to_come != self._to_come:
            raise PeerError("pieces of two messages are mixed")
        if size > to_come or (size < to_come and size < _SMALLEST):
            raise PeerError(f"a piece of {size} bytes, where {to_come} are to come")
        return to_come


def split(message: bytes) -> Iterator[bytes]:
    """Yield the pieces of a message, each a gRPC message of its own."""
    view = memoryview(message)
    for start in range(0, len(view), _PIECE):
        yield _HEAD.pack(_MARK, len(view) - start) + view[start : start + _PIECE]
