"""What goes to one client, and what of it is in flight."""

from __future__ import annotations

import gc
import os
import socket
from typing import Any

import pytest

from tests.core import cores
from tests.core.cores import a_client, answer, both, needs_compiled, publish
from txbroker.core.reference.exchange import MOST_OUTPUTS, OUTPUT_BYTES
from txbroker.core.reference.outlet import (
    HIGH_MARK,
    MOST,
    QUEUE_BYTES,
    QUEUE_HIGH_MARK,
    QUEUE_MESSAGES,
)


def an_outlet(core: Any, inflight: int = 65_535, memory: int = 2**40) -> Any:
    outlet = a_client(core).outlet
    outlet.open_window(inflight, memory)
    return outlet


def given(outlet: Any, count: int, qos: int = 1, payload: bytes = b"p") -> list[bool]:
    """Whether there was room for each; offsets count from 1."""
    return [outlet.give(b"t", payload, qos, 66, "part", n + 1) for n in range(count)]


@both
def test_output_leaves_in_order_and_is_noted_once(core: Any) -> None:
    calls: list[int] = []
    exchange = core.Exchange(lambda: calls.append(1))
    one, other = exchange.make_outlet(), exchange.make_outlet()

    one.send(b"1")
    other.send(b"2")
    one.send(b"3")

    assert ([1], 2, b"13", b"2") == (calls, one.size, one.take(), other.take())
    assert [one, other] == exchange.send_outputs()
    assert (0, []) == (one.size, exchange.send_outputs())
    other.send(b"4")
    assert ([1, 1], [other]) == (calls, exchange.send_outputs())


@both
def test_output_to_a_crowd_is_written_in_turns(core: Any) -> None:
    """What others are sent meanwhile waits for none of it; each has all in the end, in order."""
    exchange = core.Exchange(lambda: None)
    crowd = [exchange.make_outlet() for _ in range(3 * MOST_OUTPUTS)]
    other = exchange.make_outlet()
    for outlet in crowd:
        outlet.send(b"1")
    first = exchange.send_outputs()
    assert exchange.has_outputs
    crowd[MOST_OUTPUTS].send(b"2")  # waits still
    crowd[0].send(b"2")  # was written
    other.send(b"3")
    second = exchange.send_outputs()
    rest = [exchange.send_outputs() for _ in range(2)]

    assert not exchange.has_outputs and not exchange.send_outputs()
    assert [MOST_OUTPUTS] * 3 == [len(first), len(second), len(rest[0])]
    assert other in second
    written = [*first, *second, *rest[0], *rest[1]]
    assert {*crowd, other} == set(written) and len(written) == len(crowd) + 2
    assert b"12" == crowd[MOST_OUTPUTS].take()


@both
def test_much_output_is_written_in_turns(core: Any) -> None:
    """However few it is for; little is not behind it."""
    exchange = core.Exchange(lambda: None)
    crowd = [exchange.make_outlet() for _ in range(8)]
    other = exchange.make_outlet()
    for outlet in crowd:
        outlet.send(bytes(OUTPUT_BYTES // 4))
    other.send(b"1")

    assert [other, crowd[7], crowd[6], *crowd[:2]] == exchange.send_outputs()
    assert exchange.has_outputs
    assert [crowd[5], crowd[4], *crowd[2:4]] == exchange.send_outputs()
    assert not exchange.has_outputs
    crowd[0].send(bytes(4 * OUTPUT_BYTES))
    assert [crowd[0]] == exchange.send_outputs()


@both
def test_little_output_is_never_behind_much(core: Any) -> None:
    """Those that were written have more, again and again: what came between them waited seconds."""
    exchange = core.Exchange(lambda: None)
    crowd = [exchange.make_outlet() for _ in range(16)]
    other = exchange.make_outlet()
    for outlet in crowd[:8]:
        outlet.send(bytes(OUTPUT_BYTES // 4))
    exchange.send_outputs()
    other.send(b"1")
    for outlet in crowd[8:]:
        outlet.send(bytes(OUTPUT_BYTES // 4))

    assert other in exchange.send_outputs()
    while exchange.has_outputs:  # an outlet that is known there is not freed at once
        exchange.send_outputs()


@both
def test_qos0_is_dropped_above_a_mark_or_when_shut(core: Any) -> None:
    outlet = an_outlet(core)
    outlet.send(bytes(HIGH_MARK - 1))
    assert outlet.has_room
    outlet.send(b"0")
    assert not outlet.has_room
    outlet.send(bytes(MOST - HIGH_MARK))

    assert outlet.send_qos0(b"x" * 100)
    assert not outlet.send_qos0(b"y")
    assert (MOST + 100, 1) == (outlet.size, outlet.dropped)
    outlet.take()
    outlet.is_shut = True
    assert not outlet.send_qos0(b"z")
    outlet.send(b"a")
    assert (2, b"a") == (outlet.dropped, outlet.take())


@both
def test_a_socket_takes_what_it_can(core: Any) -> None:
    outlet = an_outlet(core)
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        sent = os.urandom(3_000_000)
        outlet.send(sent)

        assert not outlet.send_to(here.fileno())
        got = there.recv(1024)
        while len(got) < len(sent):
            outlet.send_to(here.fileno())
            got += there.recv(1_000_000)

        assert sent == got
        assert outlet.send_to(here.fileno())
        outlet.send(b"more")
        assert outlet.send_to(here.fileno())
        assert (0, b"more") == (outlet.size, there.recv(10))
        there.close()
        outlet.send(b"nobody")
        with pytest.raises(BrokenPipeError):
            outlet.send_to(here.fileno())
    with pytest.raises(OSError):
        outlet.send_to(-1)


@both
def test_what_is_sent_now_overtakes_nothing(core: Any) -> None:
    outlet = an_outlet(core)
    outlet.send_now(b"1")
    assert b"1" == outlet.take(), "without a socket it waits, as anything does"
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        outlet.descriptor = here.fileno()
        outlet.send_now(b"2")
        assert (0, b"2") == (outlet.size, there.recv(10))
        outlet.send(b"3")
        outlet.send_now(b"4")
        assert (2, b"34") == (outlet.size, outlet.take())

        much = os.urandom(3_000_000)
        outlet.send_now(much)
        assert 0 < outlet.size < len(much)
        outlet.send_now(b"5")
        got = b""
        while len(got) <= len(much):
            outlet.send_to(here.fileno())
            got += there.recv(1_000_000)
        assert much + b"5" == got

        there.close()
        outlet.send_now(b"6")
        assert b"6" == outlet.take(), "whoever writes next is told"


@both
def test_packet_ids_go_up_and_around_those_in_flight(core: Any) -> None:
    outlet = an_outlet(core)

    for number in range(1, 65_540):
        assert outlet.give(b"t", b"", 1, 65, "part", number)
        expected = number if number < 65_536 else number - 65_535 + 1
        assert publish(b"t", b"", 1, expected) == outlet.take()
        if number != 1:
            outlet.acknowledge([expected])

    assert 1 == outlet.in_flight


@both
@pytest.mark.parametrize("kept", [set(), {1}, {1, 2, 3}, set(range(100, 140)), {5, 80, 200, 201}])
def test_acknowledgements_in_any_order(core: Any, kept: set[int]) -> None:
    outlet = an_outlet(core)
    given(outlet, 250)
    packet_ids = [n for n in range(1, 251) if n not in kept]

    outlet.acknowledge(packet_ids[1::2] + packet_ids[::-2] + packet_ids)

    assert len(kept) == outlet.in_flight
    outlet.acknowledge(sorted(kept, reverse=True))
    outlet.acknowledge([0, 1, 65_535])
    assert 0 == outlet.in_flight


@both
def test_window_is_full_by_number(core: Any) -> None:
    outlet = an_outlet(core, inflight=2)

    assert [True] * 5 == given(outlet, 5)

    assert (2, 3, 1) == (outlet.in_flight, outlet.waiting, outlet.fills)
    assert {"part": 3} == outlet.first_queued()
    outlet.take()
    outlet.acknowledge([2, 77])
    assert 0 == outlet.size
    outlet.pump()
    assert publish(b"t", b"p", 1, 3) == outlet.take()
    assert (2, 2, 2, {"part": 4}) == (
        outlet.in_flight,
        outlet.waiting,
        outlet.fills,
        outlet.first_queued(),
    )
    outlet.open_window(10, 10**6)
    outlet.pump()
    assert publish(b"t", b"p", 1, 4) + publish(b"t", b"p", 1, 5) == outlet.take()
    assert (4, 0, {}) == (outlet.in_flight, outlet.waiting, outlet.first_queued())
    assert 2 == outlet.fills


@both
def test_window_is_full_by_size_but_one_always_flies(core: Any) -> None:
    outlet = an_outlet(core, memory=10)

    given(outlet, 2)

    assert (1, 1, 1) == (outlet.in_flight, outlet.waiting, outlet.fills)
    outlet.acknowledge([1])
    outlet.pump()
    assert (1, 0, 2) == (outlet.in_flight, outlet.waiting, outlet.fills)


@both
def test_those_above_a_high_mark_are_told_once(core: Any) -> None:
    client = a_client(core)
    outlet, exchange = client.outlet, client.exchange
    outlet.open_window(0, 2**40)
    outlet.send(bytes(HIGH_MARK - 1))
    given(outlet, QUEUE_HIGH_MARK - 1)
    assert (False, []) == (outlet.is_full, exchange.take_full())

    outlet.send(b"1")
    given(outlet, 1)

    assert (True, [outlet]) == (outlet.is_full, exchange.take_full())
    assert (False, []) == (outlet.is_full, exchange.take_full())
    outlet.take()
    outlet.send(b"2")
    assert [] == exchange.take_full()
    given(outlet, 1)
    assert [outlet] == exchange.take_full()


@both
def test_nothing_that_can_wait_goes_out_above_the_high_mark(core: Any) -> None:
    outlet = an_outlet(core)
    outlet.send(bytes(HIGH_MARK))

    given(outlet, 2)

    assert (0, 2) == (outlet.in_flight, outlet.waiting)
    outlet.take()
    outlet.pump()
    assert 2 == outlet.in_flight


@both
def test_queue_is_bounded_by_number(core: Any) -> None:
    outlet = an_outlet(core, inflight=1)

    results = given(outlet, QUEUE_MESSAGES + 3)

    assert [True] * (QUEUE_MESSAGES + 1) + [False] * 2 == results
    assert (False, False) == (outlet.queue_has_room, outlet.is_short)
    assert not outlet.give_again(b"t", b"p", 1, 66, "part", 1)
    outlet.open_window(QUEUE_MESSAGES // 2 + 2, 2**40)
    outlet.pump()
    assert outlet.is_short


@both
def test_queue_is_bounded_by_size(core: Any) -> None:
    outlet = an_outlet(core, inflight=0)

    for number in range(4):
        assert outlet.give_again(b"t", bytes(300_000), 2, QUEUE_BYTES // 4, "part", number)
    assert not outlet.give_again(b"t", b"", 2, 1, "part", 5)
    assert (4, {"part": 0}) == (outlet.waiting, outlet.first_queued())


@both
def test_what_cannot_be_read_again_goes_first_and_is_dropped_beyond_limits(core: Any) -> None:
    outlet = an_outlet(core, inflight=0)
    outlet.give_again(b"t", b"later", 1, 70, "part", 3)
    for number in range(4):
        outlet.give_first(b"f", b"%d" % number, 2, 66, retain=number == 3)

    assert 2 == outlet.drop_first(2, 1000)
    assert (0, 1) == (outlet.drop_first(2, 1000), outlet.drop_first(2, 100))
    outlet.open_window(5, 1000)
    outlet.pump()
    assert publish(b"f", b"3", 2, 1, 1) + publish(b"t", b"later", 1, 2) == outlet.take()
    assert 0 == outlet.drop_first(0, 0)


@both
def test_a_live_message_does_not_pass_one_that_waits(core: Any) -> None:
    outlet = an_outlet(core)
    outlet.give_first(b"f", b"", 1, 65, retain=False)

    given(outlet, 1)

    assert (0, 2) == (outlet.in_flight, outlet.waiting)
    outlet.pump()
    assert publish(b"f", b"", 1, 1) + publish(b"t", b"p", 1, 2) == outlet.take()


@both
def test_qos2_lands_with_pubcomp_only_after_pubrec(core: Any) -> None:
    outlet = an_outlet(core)
    given(outlet, 2, qos=2)
    outlet.take()

    outlet.acknowledge([1])
    outlet.complete(1)
    assert 2 == outlet.in_flight
    outlet.receive(1)
    outlet.receive(99)
    assert answer(0x62, 1) + answer(0x62, 99) == outlet.take()
    outlet.complete(1)
    outlet.complete(2)
    outlet.complete(99)
    assert 1 == outlet.in_flight


@both
def test_queue_begins_somewhere_in_each_part(core: Any) -> None:
    outlet = an_outlet(core, inflight=0)
    for part, offset in ((("", 1), 5), (("a", 1), 2), (("", 1), 6), (("a", 1), 9)):
        outlet.give_again(b"t", b"", 1, 65, (*part,), offset)
    outlet.give_first(b"t", b"", 1, 65, retain=False)
    begins = [outlet.first_queued()]

    for inflight in range(1, 6):
        outlet.open_window(inflight, 2**40)
        outlet.pump()
        begins.append(outlet.first_queued())

    assert begins == [
        {("", 1): 5, ("a", 1): 2},
        {("", 1): 5, ("a", 1): 2},
        {("", 1): 6, ("a", 1): 2},
        {("", 1): 6, ("a", 1): 9},
        {("a", 1): 9},
        {},
    ]


@both
def test_parts_come_and_go(core: Any) -> None:
    """Each has its own offsets, also of two outlets, one of which goes with all it has."""
    client = a_client(core)
    other = client.exchange.make_outlet()
    for outlet in (client.outlet, other):
        outlet.open_window(0, 2**40)
    for number in range(300):
        client.outlet.give_again(b"t", b"", 1, 65, ("a", number), number)
        other.give_again(b"t", b"", 1, 65, ("b", number), number)
    del outlet, other
    client.outlet.open_window(200, 2**40)
    client.outlet.pump()
    for number in range(300):
        client.outlet.give_again(b"t", b"", 1, 65, ("c", number), number)

    expected = {("a", n): n for n in range(200, 300)} | {("c", n): n for n in range(300)}
    assert expected == client.outlet.first_queued()


@both
def test_output_goes_straight_to_a_socket(core: Any) -> None:
    """Only who has to be looked at is told of."""
    exchange = core.Exchange(lambda: None)
    sent, others = exchange.make_outlet(), exchange.make_outlet()
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        sent.descriptor = here.fileno()
        sent.send(b"1")
        others.send(b"2")
        assert [others] == exchange.send_outputs()
        assert (b"1", 0, 1) == (there.recv(10), sent.size, others.size)

        sent.send(bytes(16 * 1024 * 1024))
        assert [sent] == exchange.send_outputs()
        assert 0 < sent.size < 16 * 1024 * 1024


@both
def test_a_socket_that_cannot_be_written_is_told(core: Any) -> None:
    exchange = core.Exchange(lambda: None)
    outlet = exchange.make_outlet()
    here, there = socket.socketpair()
    with here:
        there.close()
        outlet.descriptor = here.fileno()
        outlet.send(b"1")
        assert [outlet] == exchange.send_outputs()
        assert outlet.size == 1


@both
@pytest.mark.parametrize("what", ["dropped", "fills", "is_behind", "waiting"])
def test_an_outlet_to_be_looked_at_is_not_written(core: Any, what: str) -> None:
    """Whoever looks at it writes it."""
    exchange = core.Exchange(lambda: None)
    outlet = exchange.make_outlet()
    outlet.open_window(1, 2**40)
    here, there = socket.socketpair()
    with here, there:
        outlet.descriptor = here.fileno()
        outlet.send(b"1")
        if what == "waiting":
            given(outlet, QUEUE_HIGH_MARK + 2)
            outlet.is_told = True
        elif what == "fills":
            given(outlet, 1)
        else:
            setattr(outlet, what, 1)
        assert [outlet] == exchange.send_outputs()
        assert outlet.size


KIB = 1024


def a_limited_exchange() -> Any:
    """All outlets of the process, which has no others with much, have a MiB."""
    gc.collect()
    exchange = cores.COMPILED.Exchange(lambda: None)
    exchange.limit_output(1024 * KIB)
    return exchange


@needs_compiled
def test_what_all_clients_have_waiting_is_bounded() -> None:
    """Who has most waiting pays first; who takes what comes gets all of it."""
    exchange = a_limited_exchange()
    stuck = [exchange.make_outlet() for _ in range(40)]
    packet = publish(b"t", bytes(10 * KIB))
    for _ in range(100):
        for outlet in stuck:
            outlet.send_qos0(packet)
    held = sum(outlet.memory_held() for outlet in stuck)
    busy = exchange.make_outlet()
    busy.descriptor = 1  # of a socket that takes what comes

    assert 512 * KIB < held < 2048 * KIB
    assert all(outlet.dropped and outlet.size for outlet in stuck)
    assert not any(outlet.has_room for outlet in stuck)
    assert all(busy.send_qos0(packet) for _ in range(10)) and busy.has_room
    assert exchange.make_outlet().send_qos0(packet)
    for outlet in stuck:
        outlet.take()
    assert exchange.room(HIGH_MARK) == HIGH_MARK


@needs_compiled
@pytest.mark.parametrize("qos", [0, 1])
def test_what_clients_share_counts_once(qos: int) -> None:
    """A message for a crowd is no reason to drop it, and is copied for none of them."""
    exchange = a_limited_exchange()
    payload = bytes(100 * KIB)
    run = cores.a_run(cores.COMPILED, publish(b"t", payload, qos))
    crowd = [cores.Client(cores.COMPILED, exchange, str(number)) for number in range(100)]
    for number, client in enumerate(crowd):
        client.subscribe("t", number % 2)
        client.outlet.open_window(10, 10**6)

    assert not exchange.fan_out(run, "part")
    assert all(client.outlet.size > 100 * KIB for client in crowd)
    assert not any(client.outlet.dropped for client in crowd)
    assert exchange.room(MOST) == MOST
    taken = [client.outlet.take() for client in crowd]
    assert [publish(b"t", payload), publish(b"t", payload, qos)] * 50 == taken


@needs_compiled
def test_what_waits_behind_windows_is_bounded_too() -> None:
    """What can be read again is, later; what cannot is not brought yet."""
    exchange = a_limited_exchange()
    payload = bytes(10 * KIB)
    clients = [exchange.make_outlet() for _ in range(40)]
    for outlet in clients:
        outlet.open_window(1, 2**40)
    given = [
        outlet.give(b"t", payload, 1, 10 * KIB, "part", number)
        for number in range(50)
        for outlet in clients
    ]
    first = exchange.make_outlet()
    for _ in range(3):
        first.give_first(b"t", payload, 1, 10 * KIB, retain=True)

    assert sum(outlet.memory_held() for outlet in clients) < 3 * 1024 * KIB
    assert all(outlet.waiting for outlet in clients)
    assert not all(given)
    assert not first.has_room
