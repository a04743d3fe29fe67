"""
A gRPC message that is larger than 4 MiB, in pieces; both ends.

What may be larger grows with the data: a payload, the cuts of a zone, the filters of a session. A
piece begins with a byte with which no message of protobuf begins, and says how much is to come: so
a message that is too large is refused at its first piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from txbroker.model.errors import PeerError

MIB = 1 << 20

LARGEST = 4 * MIB
"""Bytes of a gRPC message, each way."""

LARGEST_WHOLE = 320 * MIB
"""Bytes of what comes in pieces: the largest message of MQTT, and what goes along with it."""

LARGEST_OF_STRANGER = 16 * MIB
"""The same of a call that was not let in: no authentication tells whose it is."""

TOGETHER = 384 * MIB
"""Bytes of all that is being put together at a node."""

TOGETHER_OF_STRANGERS = 32 * MIB
"""The same of calls that were not let in."""

ANNOUNCEMENT = "txbroker-pieces"
"""Metadata of a call, and of its answer: whoever sends it takes pieces."""

UPGRADE = "use one version of txbroker for both"

_PIECE = MIB
_SMALLEST = 64 * 1024
_MARK = b"\x07"  # field 0 of type 7: there is neither
_HEAD = Struct("<cQ")


class PieceRoom:
    """
    Bytes that may be under way together, in all that shares it.

    `drops_oldest`: what began first goes when there is no room. Else a stranger whose messages
    never end would hold all of it.
    """

    def __init__(self, limit: int, *, drops_oldest: bool = False) -> None:
        self._left = limit
        self._drops_oldest = drops_oldest
        self._users: dict[WholeMessage, int] = {}

    def take(self, user: WholeMessage, size: int) -> None:
        """Raises `PeerError` where there is no room."""
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
        """All that was taken."""
        self._left += self._users.pop(user, 0)


class WholeMessage:
    """
    Puts the messages of one call together again; at most `largest` bytes each, within `room`.

    `close` it with the call, or what has come of a message keeps its room.
    """

    def __init__(self, room: PieceRoom, largest: int) -> None:
        self._room = room
        self._largest = largest
        self._pieces: list[bytes] = []
        self._to_come = 0
        self._is_dropped = False

    def allow(self, room: PieceRoom, largest: int) -> None:
        """From the next message on."""
        self.close()
        self._room, self._largest = room, largest

    def add(self, message: bytes) -> bytes | None:
        """The message that is complete with this one; None: more is to come. Raises `PeerError`."""
        if self._is_dropped:
            raise PeerError("others came after it, and there was no room; try again later")
        if not message.startswith(_MARK):
            if self._pieces:
                raise PeerError("a message begins within another one")
            return message
        to_come = self._check(message)
        size = len(message) - _HEAD.size
        self._room.take(self, size)
        self._pieces.append(message[_HEAD.size :])
        self._to_come = to_come - size
        if self._to_come:
            return None
        whole = b"".join(self._pieces)
        self.close()
        return whole

    def close(self) -> None:
        """Forget what has come of a message."""
        self._room.free(self)
        self._pieces, self._to_come = [], 0

    def drop(self) -> None:
        """Forget it, and refuse what comes after it."""
        self.close()
        self._is_dropped = True

    def _check(self, piece: bytes) -> int:
        """What is to come, with this one."""
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
    """Its pieces, each a message of its own."""
    view = memoryview(message)
    for start in range(0, len(view), _PIECE):
        yield _HEAD.pack(_MARK, len(view) - start) + view[start : start + _PIECE]
