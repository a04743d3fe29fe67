"""Messages in pieces: cut, put together, and refused at a bound."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from txbroker.model.errors import PeerError
from txbroker.rpc import message_pieces
from txbroker.rpc.message_pieces import LARGEST, MIB, PieceRoom, WholeMessage, split


def whole(room: int = 64 * MIB, largest: int = 16 * MIB) -> WholeMessage:
    """With a room of its own."""
    return WholeMessage(PieceRoom(room), largest)


@pytest.mark.parametrize("size", [LARGEST + 1, 5 * MIB, 16 * MIB])
def test_a_message_comes_together(size: int) -> None:
    """As it was; no piece is larger than a message may be."""
    message, parts = os.urandom(size), whole()
    cut = list(split(message))
    assert max(map(len, cut)) < LARGEST
    assert [parts.add(piece) for piece in cut] == [None] * (len(cut) - 1) + [message]
    assert parts.add(b"\x0asmall") == b"\x0asmall"


def test_nothing_is_counted_when_a_message_is_complete() -> None:
    """A room has as much room as before, however many came through it."""
    room = PieceRoom(6 * MIB)
    parts = WholeMessage(room, 16 * MIB)
    for _ in range(10):
        for piece in split(bytes(5 * MIB)):
            parts.add(piece)
    WholeMessage(room, 16 * MIB).add(next(split(bytes(5 * MIB))))


def head(to_come: int, size: int) -> bytes:
    """A piece that says so much is to come, and has so much."""
    return message_pieces._HEAD.pack(message_pieces._MARK, to_come) + bytes(size)


@pytest.mark.parametrize(
    "lie",
    [
        lambda: [head(17 * MIB, MIB)],
        lambda: [head((1 << 64) - 1, MIB)],
        lambda: [head(8 * MIB, 0)],
        lambda: [head(8 * MIB, 100)],  # endless small ones
        lambda: [head(8 * MIB, MIB), head(8 * MIB, MIB)],  # never less
        lambda: [head(8 * MIB, MIB), head(1 << 40, MIB)],
        lambda: [head(8 * MIB, MIB), b"\x0asmall"],
        lambda: [head(MIB, MIB + 1)],
        lambda: [b"\x07"],
    ],
)
def test_a_lie_is_refused(lie: Callable[[], list[bytes]]) -> None:
    """At the piece that tells it."""
    parts, told = whole(), lie()
    for piece in told[:-1]:
        assert parts.add(piece) is None
    with pytest.raises(PeerError):
        parts.add(told[-1])


def test_all_together_are_bounded() -> None:
    """Whoever comes when there is no room is refused; what ends gives its room back."""
    room = PieceRoom(4 * MIB)
    first, second = WholeMessage(room, 16 * MIB), WholeMessage(room, 16 * MIB)
    for piece in list(split(bytes(8 * MIB)))[:4]:
        first.add(piece)
    with pytest.raises(PeerError, match="try again"):
        second.add(head(8 * MIB, MIB))
    first.close()
    assert second.add(head(8 * MIB, MIB)) is None


def test_the_oldest_stranger_goes_first() -> None:
    """Strangers that never end do not keep out who comes after them."""
    room = PieceRoom(4 * MIB, drops_oldest=True)
    idle = [WholeMessage(room, 16 * MIB) for _ in range(4)]
    for one in idle:
        one.add(head(8 * MIB, MIB))
    late = WholeMessage(room, 16 * MIB)
    for piece in list(split(bytes(8 * MIB)))[:3]:
        assert late.add(piece) is None
    assert idle[3].add(head(7 * MIB, 64 * 1024)) is None
    with pytest.raises(PeerError, match="try again"):
        idle[0].add(head(7 * MIB, MIB))
