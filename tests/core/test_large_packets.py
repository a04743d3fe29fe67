"""Packets of many megabytes, that others read: no copy of them keeps all clients waiting."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from tests.core.cores import COMPILED, Client, a_client, both, needs_compiled, publish
from tests.support import wire5
from txbroker.mqtt.session.connection_rules import judge
from txbroker.mqtt.wire.return_codes import ProtocolViolation

SIZE = 4_000_000

SUBSCRIBE = 0x82


def packet(size: int) -> bytes:
    """A SUBSCRIBE whose body has that many bytes, all of them different from their neighbours."""
    body = bytes(range(256)) * (size // 256 + 1)
    return wire5.packet(SUBSCRIBE >> 4, SUBSCRIBE & 15, body[:size])


def most_taken(action: Callable[[], object]) -> int:
    """The most bytes of Python's memory that the action has at once, beside what was there."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def feed(client: Client, data: bytes, piece: int = 65_536) -> None:
    """All but the last byte, as a socket brings it."""
    for start in range(0, len(data) - 1, piece):
        client.packet_reader.feed(data[start : min(start + piece, len(data) - 1)])
        assert client.packet_reader.step() is None


@both
@pytest.mark.parametrize("size", [262_139, 262_140, SIZE])
@pytest.mark.parametrize("behind", [b"", b"\xc0\0"])
@pytest.mark.parametrize("before", [b"", publish(b"a")])
def test_a_large_packet_is_for_others(core: Any, size: int, behind: bytes, before: bytes) -> None:
    client, data = a_client(core, max_packet=2**24), packet(size)
    feed(client, before + data)

    found = client.step(data[-1:] + behind)

    assert (SUBSCRIBE, data[-size:]) == found
    assert client.packet_reader.step() == ((0xC0, b"") if behind else None)
    assert client.packet_reader.first_byte is None


@both
def test_bytes_that_others_have_stay_as_they_are(core: Any) -> None:
    client, data = a_client(core, max_packet=2**24), packet(SIZE)
    same = bytes(bytearray(data))

    found = client.step(data)

    assert (SUBSCRIBE, data[-SIZE:]) == found
    assert same == data


@needs_compiled
def test_a_large_packet_is_not_copied() -> None:
    """The copies of a packet of 12 MB, and of its list, took a node 20 ms each time."""
    client, data = a_client(COMPILED, max_packet=2**24), packet(SIZE)

    def read() -> None:
        feed(client, data)
        assert client.step(data[-1:]) is not None

    assert most_taken(read) < SIZE * 3 // 2


@pytest.mark.parametrize(
    "make",
    [
        lambda listed: wire5.disconnect(0, properties=listed),
        lambda listed: wire5.subscribe(1, ("a", 0), properties=listed),
        lambda listed: wire5.publish("a", b"", properties=listed),
    ],
    ids=["disconnect", "subscribe", "publish"],
)
def test_a_list_of_too_many_properties_is_not_copied(make: Callable[[bytes], bytes]) -> None:
    data = make(b"\x26\0\0\0\0" * (SIZE // 5))
    body = data[5:]

    def refuse() -> None:
        with pytest.raises(ProtocolViolation, match="more than 1000 properties"):
            judge(data[0], body, is_first=False, level=5)

    assert most_taken(refuse) < SIZE // 4
