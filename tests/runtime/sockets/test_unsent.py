"""What the kernel has not taken yet."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txbroker.runtime.sockets.unsent import Unsent


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.binary(max_size=70_000), max_size=4), st.booleans())),
    st.integers(0, 5),
)
def test_all_arrives_in_order(groups: list[tuple[list[bytes], bool]], sent: int) -> None:
    """However little the socket takes, and whatever had left of the first pieces."""
    unsent, expected, got = Unsent(), b"", b""
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        for pieces, writes in groups:
            before = min(sent, sum(map(len, pieces)))
            unsent.add(pieces, before)
            expected += b"".join(pieces)[before:]
            if writes and unsent.size:
                unsent.write(near.fileno())
        while len(got) < len(expected):
            is_empty = not unsent.size or unsent.write(near.fileno())
            assert is_empty == (not unsent.size)
            got += far.recv(1 << 20)
    assert expected == got


def test_a_broken_connection_is_told_of() -> None:
    """Whoever writes has to close."""
    unsent = Unsent()
    unsent.add([b"lost"])
    near, far = socket.socketpair()
    far.close()
    with near, pytest.raises(OSError):
        unsent.write(near.fileno())
