"""PINGREQ packets that are all that a socket brings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.core.cores import Client, both, publish
from tests.core.socket_bench import Bench, a_bench
from txbroker.core import FED
from txbroker.core.reference.packet_reader import PINGREQ, PINGRESP
from txbroker.core.reference.packet_writer import HIGH_MARK


@contextmanager
def answering(core: Any) -> Iterator[Bench]:
    """The client that is read has its answers at `reader`."""
    with a_bench(core) as bench:
        bench.publisher.packet_writer.descriptor = bench.written.fileno()
        yield bench


@both
@pytest.mark.parametrize("clean", [True, False])
def test_pings_are_answered_and_nobody_has_to_look(core: Any, clean: bool) -> None:
    with answering(core) as bench:
        one = bench.publisher
        one.packet_reader.open(one.session, "client", one.flows, clean=clean)
        assert bench.wait(PINGREQ * 3) is None
        assert PINGRESP * 3 == bench.reader.recv(100)
        assert 17.0 == one.packet_reader.heard_at
        assert not bench.told and one.packet_reader.first_byte is None


@both
def test_pings_in_pieces_count_as_heard_when_they_are_whole(core: Any) -> None:
    with answering(core) as bench:
        packet_reader = bench.publisher.packet_reader
        assert bench.wait(PINGREQ[:1]) is None
        assert (0.0, 0xC0, 2) == (
            packet_reader.heard_at,
            packet_reader.first_byte,
            packet_reader.awaited,
        )
        assert bench.wait(PINGREQ[1:] + PINGREQ[:1]) is None
        assert PINGRESP == bench.reader.recv(100)
        assert (17.0, 0xC0) == (packet_reader.heard_at, packet_reader.first_byte)
        assert bench.wait(PINGREQ[1:]) is None
        assert PINGRESP == bench.reader.recv(100)
        assert packet_reader.first_byte is None
        bench.wait(PINGREQ[:1])
        assert [(bench.number, FED)] == bench.wait(PINGREQ[1:] + publish(b"a"))
        assert (0xC0, b"") == packet_reader.step()


@both
@pytest.mark.parametrize(
    "pieces",
    [
        [PINGREQ + publish(b"a", b"1", 1)],
        [publish(b"a", b"1", 1) + PINGREQ],
        [b"\xc0\x80\0"],
        [b"\xc0\1\0"],
        [b"\xc1\0"],
        [b"\xc0", b"\x80\0"],
        [b"\x30", b"\0\xc0\0"],
        [b"\x32\x06", PINGREQ * 3],
    ],
    ids=["more", "behind", "padded", "body", "flags", "in pieces", "publish", "within"],
)
def test_all_else_goes_to_others_as_it_came(core: Any, pieces: list[bytes]) -> None:
    with answering(core) as bench:
        for data in pieces:
            bench.wait(data)
        assert not bench.publisher.packet_writer.size and not bench.publisher.packet_writer.written
        again = Client(core, bench.router, "again", max_packet=100_000)
        packet_reader = bench.publisher.packet_reader
        packet_reader.takes_qos12 = again.packet_reader.takes_qos12 = False
        assert again.step(b"".join(pieces)) == packet_reader.step()
        assert str(again.packet_reader.fault) == str(packet_reader.fault)


@both
def test_pings_that_cannot_be_answered_at_once_are_for_others(core: Any) -> None:
    """There is no session, or output waits, or earlier bytes are still to be processed."""
    with answering(core) as bench:
        bench.publisher.packet_reader.close()
        assert [(bench.number, FED)] == bench.wait(PINGREQ)
    with answering(core) as bench:
        bench.publisher.packet_writer.descriptor = -1
        assert [(bench.number, FED)] == bench.wait(PINGREQ)
    with answering(core) as bench:
        bench.publisher.packet_writer.send(bytes(HIGH_MARK))
        assert (bench.number, FED) in bench.wait(PINGREQ)
    with answering(core) as bench:
        bench.publisher.packet_reader.feed(publish(b"a", qos=1))
        assert [(bench.number, FED)] == bench.wait(PINGREQ)
        assert (0xC0, b"") == bench.publisher.packet_reader.step()
