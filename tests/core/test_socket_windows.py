"""Acknowledgements that come from the sockets of clients with a window."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.cores import answer, both, publish
from tests.core.socket_bench import Bench, a_bench
from txbroker.core import FED

PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70


def with_window(bench: Bench, qos: int, count: int, inflight: int = 10) -> Any:
    """
    The packet writer of the client that is read, with so many messages in its window, or behind it.
    """
    packet_writer = bench.publisher.packet_writer
    packet_writer.open_window(inflight, 1 << 20)
    for number in range(1, count + 1):
        assert packet_writer.deliver(b"t", b"", qos, 1, "part", number)
    packet_writer.dequeue()
    packet_writer.descriptor = bench.written.fileno()
    return packet_writer


@both
def test_nobody_has_to_hear_of_acknowledgements_at_a_window(core: Any) -> None:
    with a_bench(core) as bench:
        bench.connect_subscriber()
        packet_writer = with_window(bench, 1, 3)
        assert bench.wait(answer(PUBACK, 1) + answer(PUBACK, 3)) is None
        assert (1, 17.0) == (packet_writer.in_flight, bench.publisher.packet_reader.heard_at)

        assert bench.wait(answer(PUBACK, 2) + publish(b"a") + answer(PUBACK, 2)[:3]) is None
        assert (0, 1) == (packet_writer.in_flight, bench.router.received)
        assert bench.publisher.packet_reader.first_byte == PUBACK


@both
def test_what_waits_behind_a_window_is_launched_at_once(core: Any) -> None:
    with a_bench(core) as bench:
        packet_writer = with_window(bench, 1, 4, inflight=2)
        packet_writer.is_told = True
        assert bench.wait(answer(PUBACK, 1) + answer(PUBACK, 2)) is None
        assert (2, 0) == (packet_writer.in_flight, packet_writer.waiting)
        assert publish(b"t", b"", 1, 3) + publish(b"t", b"", 1, 4) == bench.reader.recv(100)


@both
def test_the_answers_of_qos_2_are_given_at_once(core: Any) -> None:
    with a_bench(core) as bench:
        packet_writer = with_window(bench, 2, 1)
        assert bench.wait(answer(PUBREC, 1) + answer(PUBREL, 7)) is None
        assert answer(PUBREL, 1) + answer(PUBCOMP, 7) == bench.reader.recv(100)
        assert bench.wait(answer(PUBCOMP, 1)) is None
        assert 0 == packet_writer.in_flight


@both
def test_others_hear_of_acknowledgements_that_they_may_have_to_act_on(core: Any) -> None:
    """There is news of the window, or the session is behind, or gone, or durable."""
    one = answer(PUBACK, 1)
    with a_bench(core) as bench:
        packet_writer = with_window(bench, 1, 2, inflight=1)
        assert [(bench.number, FED)] == bench.wait(one)
        assert 1 == packet_writer.waiting
    with a_bench(core) as bench:
        packet_writer = with_window(bench, 1, 1)
        packet_writer.is_direct = False
        assert [(bench.number, FED)] == bench.wait(one)
        assert 1 == packet_writer.in_flight
    with a_bench(core) as bench:
        with_window(bench, 1, 1)
        bench.publisher.packet_reader.close()
        assert [(bench.number, FED)] == bench.wait(one)
    with a_bench(core) as bench:
        durable = bench.publisher
        durable.packet_reader.open(durable.session, "durable", durable.flows, clean=False)
        assert [(bench.number, FED)] == bench.wait(one)
        assert durable.packet_reader.step() is None and [1] == durable.packet_reader.pubacks


@both
@pytest.mark.parametrize(
    "data",
    [answer(PUBACK, 0), b"\x40\x03\0\x01\0", answer(0x41, 1), answer(0x90, 1), b"\xc0\0"],
    ids=["no id", "too long", "flags", "suback", "ping"],
)
def test_what_only_resembles_an_acknowledgement_is_for_others(core: Any, data: bytes) -> None:
    with a_bench(core) as bench:
        packet_writer = with_window(bench, 1, 2)
        assert [(bench.number, FED)] == bench.wait(answer(PUBACK, 1) + data)
        assert 1 == packet_writer.in_flight
        first_byte, body = bench.publisher.packet_reader.step()
        assert data == bytes((first_byte, len(body))) + body


@both
@pytest.mark.parametrize("level", [4, 5])
def test_padded_acknowledgement_of_level_5_is_for_others(core: Any, level: int) -> None:
    """Level 5 forbids its length; at level 4 it counts."""
    with a_bench(core) as bench:
        packet_writer = with_window(bench, 1, 2)
        one = bench.publisher
        one.packet_reader.open(one.session, "padded", one.flows, clean=True, level=level)
        found = bench.wait(answer(PUBACK, 1) + b"\x40\x82\0\0\2")
        assert found == ([(bench.number, FED)] if level == 5 else None)
        assert packet_writer.in_flight == (1 if level == 5 else 0)
        if level == 5:
            assert (0x40, b"\0\2") == one.packet_reader.step() and one.packet_reader.is_padded
