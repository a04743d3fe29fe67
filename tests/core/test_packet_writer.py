"""What goes to one client, and what of it is in flight."""

from __future__ import annotations

import gc
import os
import socket
from contextlib import ExitStack
from typing import Any

import pytest

from tests.core import cores
from tests.core.cores import a_client, answer, both, needs_compiled, publish
from txbroker.core.reference.packet_writer import (
    HIGH_MARK,
    MANY_DROPPED,
    MOST,
    QUEUE_BYTES,
    QUEUE_HIGH_MARK,
    QUEUE_MESSAGES,
)
from txbroker.core.reference.packets import Entry
from txbroker.core.reference.router import HURRIED_BYTES, MOST_OUTPUTS, OUTPUT_BYTES


def a_packet_writer(core: Any, inflight: int = 65_535, memory: int = 2**40) -> Any:
    packet_writer = a_client(core).packet_writer
    packet_writer.open_window(inflight, memory)
    return packet_writer


def given(packet_writer: Any, count: int, qos: int = 1, payload: bytes = b"p") -> list[bool]:
    """Whether there was room for each; offsets count from 1."""
    return [packet_writer.deliver(b"t", payload, qos, 66, "part", n + 1) for n in range(count)]


@both
def test_output_leaves_in_order_and_is_noted_once(core: Any) -> None:
    calls: list[int] = []
    router = core.Router(lambda: calls.append(1))
    one, other = router.make_packet_writer(), router.make_packet_writer()

    one.send(b"1")
    other.send(b"2")
    one.send(b"3")

    assert ([1], 2, b"13", b"2") == (calls, one.size, one.dequeue(), other.dequeue())
    assert [one, other] == router.send_outputs()
    assert (0, []) == (one.size, router.send_outputs())
    other.send(b"4")
    assert ([1, 1], [other]) == (calls, router.send_outputs())


@both
def test_output_to_a_crowd_is_written_in_turns(core: Any) -> None:
    """What others are sent meanwhile waits for none of it; each has all in the end, in order."""
    router = core.Router(lambda: None)
    crowd = [router.make_packet_writer() for _ in range(3 * MOST_OUTPUTS)]
    other = router.make_packet_writer()
    for packet_writer in crowd:
        packet_writer.send(b"1")
    first = router.send_outputs()
    assert router.has_outputs
    crowd[MOST_OUTPUTS].send(b"2")  # waits still
    crowd[0].send(b"2")  # was written
    other.send(b"3")
    second = router.send_outputs()
    rest = [router.send_outputs() for _ in range(2)]

    assert not router.has_outputs and not router.send_outputs()
    assert [MOST_OUTPUTS] * 3 == [len(first), len(second), len(rest[0])]
    assert other in second
    written = [*first, *second, *rest[0], *rest[1]]
    assert {*crowd, other} == set(written) and len(written) == len(crowd) + 2
    assert b"12" == crowd[MOST_OUTPUTS].dequeue()


@both
def test_much_output_is_written_in_turns(core: Any) -> None:
    """However few it is for; little is not behind it."""
    router = core.Router(lambda: None)
    crowd = [router.make_packet_writer() for _ in range(8)]
    other = router.make_packet_writer()
    for packet_writer in crowd:
        packet_writer.send(bytes(OUTPUT_BYTES // 4))
    other.send(b"1")

    assert [other, crowd[7], crowd[6], *crowd[:2]] == router.send_outputs()
    assert router.has_outputs
    assert [crowd[5], crowd[4], *crowd[2:4]] == router.send_outputs()
    assert not router.has_outputs
    crowd[0].send(bytes(4 * OUTPUT_BYTES))
    assert [crowd[0]] == router.send_outputs()


@both
def test_little_output_is_never_behind_much(core: Any) -> None:
    """Those that were written have more, again and again: what came between them waited seconds."""
    router = core.Router(lambda: None)
    crowd = [router.make_packet_writer() for _ in range(16)]
    other = router.make_packet_writer()
    for packet_writer in crowd[:8]:
        packet_writer.send(bytes(OUTPUT_BYTES // 4))
    router.send_outputs()
    other.send(b"1")
    for packet_writer in crowd[8:]:
        packet_writer.send(bytes(OUTPUT_BYTES // 4))

    assert other in router.send_outputs()
    while router.has_outputs:  # a packet writer that is known there is not freed at once
        router.send_outputs()


@both
def test_qos0_is_dropped_above_a_mark_or_when_shut(core: Any) -> None:
    packet_writer = a_packet_writer(core)
    packet_writer.send(bytes(HIGH_MARK - 1))
    assert packet_writer.has_room
    packet_writer.send(b"0")
    assert not packet_writer.has_room
    packet_writer.send(bytes(MOST - HIGH_MARK))

    assert packet_writer.send_qos0(b"x" * 100)
    assert not packet_writer.send_qos0(b"y")
    assert (MOST + 100, 1) == (packet_writer.size, packet_writer.dropped)
    packet_writer.dequeue()
    packet_writer.is_shut = True
    assert not packet_writer.send_qos0(b"z")
    packet_writer.send(b"a")
    assert (2, b"a") == (packet_writer.dropped, packet_writer.dequeue())


@both
def test_a_shut_writer_is_looked_at_once_for_many_drops(core: Any) -> None:
    """Else a flood costs a look at each of many clients that read nothing, for each message."""
    router = core.Router(lambda: None)
    packet_writer = router.make_packet_writer()
    packet_writer.is_shut = True
    found = []
    for _ in range(2 * MANY_DROPPED):
        packet_writer.send_qos0(b"x" * 100)
        for left in router.send_outputs():
            found.append(left.dropped)
            left.dropped = 0
    assert [1, MANY_DROPPED - 1, MANY_DROPPED] == found


@both
def test_little_is_written_in_a_turn_while_somebody_waits_for_many(core: Any) -> None:
    """Its answer goes first, and the output to a crowd waits for further turns, however many calls
    there are in one."""
    router = core.Router(lambda: None)
    with ExitStack() as stack:
        crowd = [_connected(core, router, stack) for _ in range(20)]
        for packet_writer in crowd:
            packet_writer.send(bytes(HURRIED_BYTES // 8))
        answer = _connected(core, router, stack)
        router.hurry(True)
        turns = []
        while router.has_outputs:
            answer.send(b"answer")
            before = sum(one.size for one in crowd)
            for _ in range(5):
                router.send_outputs()
            assert 0 == answer.size
            turns.append(before - sum(one.size for one in crowd))
            router.begin_turn()
    assert 20 * HURRIED_BYTES // 8 == sum(turns)
    assert max(turns) <= HURRIED_BYTES * 10 // 8
    assert len(turns) >= 3


def _connected(core: Any, router: Any, stack: ExitStack) -> Any:
    """A packet writer with a socket that takes much."""
    here, there = socket.socketpair()
    for one in (here, there):
        stack.enter_context(one)
    here.setblocking(False)
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * HURRIED_BYTES)
    packet_writer = router.make_packet_writer()
    packet_writer.descriptor = here.fileno()
    return packet_writer


@both
def test_a_socket_takes_what_it_can(core: Any) -> None:
    packet_writer = a_packet_writer(core)
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        sent = os.urandom(3_000_000)
        packet_writer.send(sent)

        assert not packet_writer.send_to(here.fileno())
        got = there.recv(1024)
        while len(got) < len(sent):
            packet_writer.send_to(here.fileno())
            got += there.recv(1_000_000)

        assert sent == got
        assert packet_writer.send_to(here.fileno())
        packet_writer.send(b"more")
        assert packet_writer.send_to(here.fileno())
        assert (0, b"more") == (packet_writer.size, there.recv(10))
        there.close()
        packet_writer.send(b"nobody")
        with pytest.raises(BrokenPipeError):
            packet_writer.send_to(here.fileno())
    with pytest.raises(OSError):
        packet_writer.send_to(-1)


@both
def test_packet_ids_go_up_and_around_those_in_flight(core: Any) -> None:
    packet_writer = a_packet_writer(core)

    for number in range(1, 65_540):
        assert packet_writer.deliver(b"t", b"", 1, 65, "part", number)
        expected = number if number < 65_536 else number - 65_535 + 1
        assert publish(b"t", b"", 1, expected) == packet_writer.dequeue()
        if number != 1:
            packet_writer.acknowledge([expected])

    assert 1 == packet_writer.in_flight


@both
@pytest.mark.parametrize("kept", [set(), {1}, {1, 2, 3}, set(range(100, 140)), {5, 80, 200, 201}])
def test_acknowledgements_in_any_order(core: Any, kept: set[int]) -> None:
    packet_writer = a_packet_writer(core)
    given(packet_writer, 250)
    packet_ids = [n for n in range(1, 251) if n not in kept]

    packet_writer.acknowledge(packet_ids[1::2] + packet_ids[::-2] + packet_ids)

    assert len(kept) == packet_writer.in_flight
    packet_writer.acknowledge(sorted(kept, reverse=True))
    packet_writer.acknowledge([0, 1, 65_535])
    assert 0 == packet_writer.in_flight


@both
def test_window_is_full_by_number(core: Any) -> None:
    packet_writer = a_packet_writer(core, inflight=2)

    assert [True] * 5 == given(packet_writer, 5)

    assert (2, 3, 1) == (packet_writer.in_flight, packet_writer.waiting, packet_writer.fills)
    assert {"part": 3} == packet_writer.first_queued()
    packet_writer.dequeue()
    packet_writer.acknowledge([2, 77])
    assert 0 == packet_writer.size
    packet_writer.pump()
    assert publish(b"t", b"p", 1, 3) == packet_writer.dequeue()
    assert (2, 2, 2, {"part": 4}) == (
        packet_writer.in_flight,
        packet_writer.waiting,
        packet_writer.fills,
        packet_writer.first_queued(),
    )
    packet_writer.open_window(10, 10**6)
    packet_writer.pump()
    assert publish(b"t", b"p", 1, 4) + publish(b"t", b"p", 1, 5) == packet_writer.dequeue()
    assert (4, 0, {}) == (
        packet_writer.in_flight,
        packet_writer.waiting,
        packet_writer.first_queued(),
    )
    assert 2 == packet_writer.fills


@both
def test_window_is_full_by_size_but_one_always_flies(core: Any) -> None:
    packet_writer = a_packet_writer(core, memory=10)

    given(packet_writer, 2)

    assert (1, 1, 1) == (packet_writer.in_flight, packet_writer.waiting, packet_writer.fills)
    packet_writer.acknowledge([1])
    packet_writer.pump()
    assert (1, 0, 2) == (packet_writer.in_flight, packet_writer.waiting, packet_writer.fills)


@both
def test_those_above_a_high_mark_are_told_once(core: Any) -> None:
    client = a_client(core)
    packet_writer, router = client.packet_writer, client.router
    packet_writer.open_window(0, 2**40)
    packet_writer.send(bytes(HIGH_MARK - 1))
    given(packet_writer, QUEUE_HIGH_MARK - 1)
    assert (False, []) == (packet_writer.is_full, router.dequeue_full())

    packet_writer.send(b"1")
    given(packet_writer, 1)

    assert (True, [packet_writer]) == (packet_writer.is_full, router.dequeue_full())
    assert (False, []) == (packet_writer.is_full, router.dequeue_full())
    packet_writer.dequeue()
    packet_writer.send(b"2")
    assert [] == router.dequeue_full()
    given(packet_writer, 1)
    assert [packet_writer] == router.dequeue_full()


@both
def test_nothing_that_can_wait_goes_out_above_the_high_mark(core: Any) -> None:
    packet_writer = a_packet_writer(core)
    packet_writer.send(bytes(HIGH_MARK))

    given(packet_writer, 2)

    assert (0, 2) == (packet_writer.in_flight, packet_writer.waiting)
    packet_writer.dequeue()
    packet_writer.pump()
    assert 2 == packet_writer.in_flight


@both
def test_queue_is_bounded_by_number(core: Any) -> None:
    packet_writer = a_packet_writer(core, inflight=1)

    results = given(packet_writer, QUEUE_MESSAGES + 3)

    assert [True] * (QUEUE_MESSAGES + 1) + [False] * 2 == results
    assert (False, False) == (packet_writer.queue_has_room, packet_writer.is_short)
    assert not packet_writer.redeliver(b"t", b"p", 1, 66, "part", 1)
    packet_writer.open_window(QUEUE_MESSAGES // 2 + 2, 2**40)
    packet_writer.pump()
    assert packet_writer.is_short


@both
def test_queue_is_bounded_by_size(core: Any) -> None:
    packet_writer = a_packet_writer(core, inflight=0)

    for number in range(4):
        assert packet_writer.redeliver(b"t", bytes(300_000), 2, QUEUE_BYTES // 4, "part", number)
    assert not packet_writer.redeliver(b"t", b"", 2, 1, "part", 5)
    assert (4, {"part": 0}) == (packet_writer.waiting, packet_writer.first_queued())


@both
def test_what_cannot_be_read_again_goes_first_and_is_dropped_beyond_limits(core: Any) -> None:
    packet_writer = a_packet_writer(core, inflight=0)
    packet_writer.redeliver(b"t", b"later", 1, 70, "part", 3)
    for number in range(4):
        packet_writer.deliver_first(b"f", b"%d" % number, 2, 66, retain=number == 3)

    assert 2 == packet_writer.drop_first(2, 1000)
    assert (0, 1) == (packet_writer.drop_first(2, 1000), packet_writer.drop_first(2, 100))
    packet_writer.open_window(5, 1000)
    packet_writer.pump()
    assert publish(b"f", b"3", 2, 1, 1) + publish(b"t", b"later", 1, 2) == packet_writer.dequeue()
    assert 0 == packet_writer.drop_first(0, 0)


@both
def test_a_live_message_does_not_pass_one_that_waits(core: Any) -> None:
    packet_writer = a_packet_writer(core)
    packet_writer.deliver_first(b"f", b"", 1, 65, retain=False)

    given(packet_writer, 1)

    assert (0, 2) == (packet_writer.in_flight, packet_writer.waiting)
    packet_writer.pump()
    assert publish(b"f", b"", 1, 1) + publish(b"t", b"p", 1, 2) == packet_writer.dequeue()


@both
def test_qos2_lands_with_pubcomp_only_after_pubrec(core: Any) -> None:
    packet_writer = a_packet_writer(core)
    given(packet_writer, 2, qos=2)
    packet_writer.dequeue()

    packet_writer.acknowledge([1])
    packet_writer.complete(1)
    assert 2 == packet_writer.in_flight
    packet_writer.receive(1)
    packet_writer.receive(99)
    assert answer(0x62, 1) + answer(0x62, 99) == packet_writer.dequeue()
    packet_writer.complete(1)
    packet_writer.complete(2)
    packet_writer.complete(99)
    assert 1 == packet_writer.in_flight


@both
def test_queue_begins_somewhere_in_each_part(core: Any) -> None:
    packet_writer = a_packet_writer(core, inflight=0)
    for part, offset in ((("", 1), 5), (("a", 1), 2), (("", 1), 6), (("a", 1), 9)):
        packet_writer.redeliver(b"t", b"", 1, 65, (*part,), offset)
    packet_writer.deliver_first(b"t", b"", 1, 65, retain=False)
    begins = [packet_writer.first_queued()]

    for inflight in range(1, 6):
        packet_writer.open_window(inflight, 2**40)
        packet_writer.pump()
        begins.append(packet_writer.first_queued())

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
    """Each has its own offsets, also of two packet writers, one of which goes with all it has."""
    client = a_client(core)
    other = client.router.make_packet_writer()
    for packet_writer in (client.packet_writer, other):
        packet_writer.open_window(0, 2**40)
    for number in range(300):
        client.packet_writer.redeliver(b"t", b"", 1, 65, ("a", number), number)
        other.redeliver(b"t", b"", 1, 65, ("b", number), number)
    del packet_writer, other
    client.packet_writer.open_window(200, 2**40)
    client.packet_writer.pump()
    for number in range(300):
        client.packet_writer.redeliver(b"t", b"", 1, 65, ("c", number), number)

    expected = {("a", n): n for n in range(200, 300)} | {("c", n): n for n in range(300)}
    assert expected == client.packet_writer.first_queued()


@both
def test_output_goes_straight_to_a_socket(core: Any) -> None:
    """Only who has to be looked at is told of."""
    router = core.Router(lambda: None)
    sent, others = router.make_packet_writer(), router.make_packet_writer()
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        sent.descriptor = here.fileno()
        sent.send(b"1")
        others.send(b"2")
        assert [others] == router.send_outputs()
        assert (b"1", 0, 1) == (there.recv(10), sent.size, others.size)

        sent.send(bytes(16 * 1024 * 1024))
        assert [sent] == router.send_outputs()
        assert 0 < sent.size < 16 * 1024 * 1024


@both
def test_a_socket_that_cannot_be_written_is_told(core: Any) -> None:
    router = core.Router(lambda: None)
    packet_writer = router.make_packet_writer()
    here, there = socket.socketpair()
    with here:
        there.close()
        packet_writer.descriptor = here.fileno()
        packet_writer.send(b"1")
        assert [packet_writer] == router.send_outputs()
        assert packet_writer.size == 1


@both
@pytest.mark.parametrize("what", ["dropped", "too_large", "fills", "is_behind", "waiting"])
def test_a_packet_writer_to_be_looked_at_is_not_written(core: Any, what: str) -> None:
    """Whoever looks at it writes it."""
    router = core.Router(lambda: None)
    packet_writer = router.make_packet_writer()
    packet_writer.open_window(1, 2**40)
    here, there = socket.socketpair()
    with here, there:
        packet_writer.descriptor = here.fileno()
        packet_writer.send(b"1")
        if what == "waiting":
            given(packet_writer, QUEUE_HIGH_MARK + 2)
            packet_writer.is_told = True
        elif what == "fills":
            given(packet_writer, 1)
        else:
            setattr(packet_writer, what, 1)
        assert [packet_writer] == router.send_outputs()
        assert packet_writer.size


KIB = 1024


def a_limited_router() -> Any:
    """All packet writers of the process, which has no others with much, have a MiB."""
    gc.collect()
    router = cores.COMPILED.Router(lambda: None)
    router.limit_output(1024 * KIB)
    return router


@needs_compiled
def test_what_all_clients_have_waiting_is_bounded() -> None:
    """Who has most waiting pays first; who takes what comes gets all of it."""
    router = a_limited_router()
    stuck = [router.make_packet_writer() for _ in range(40)]
    packet = publish(b"t", bytes(10 * KIB))
    for _ in range(100):
        for packet_writer in stuck:
            packet_writer.send_qos0(packet)
    held = sum(packet_writer.memory_held() for packet_writer in stuck)
    busy = router.make_packet_writer()
    busy.descriptor = 1  # of a socket that takes what comes

    assert 512 * KIB < held < 2048 * KIB
    assert all(packet_writer.dropped and packet_writer.size for packet_writer in stuck)
    assert not any(packet_writer.has_room for packet_writer in stuck)
    assert all(busy.send_qos0(packet) for _ in range(10)) and busy.has_room
    assert router.make_packet_writer().send_qos0(packet)
    for packet_writer in stuck:
        packet_writer.dequeue()
    assert router.room(HIGH_MARK) == HIGH_MARK


@needs_compiled
@pytest.mark.parametrize("qos", [0, 1])
def test_what_clients_share_counts_once(qos: int) -> None:
    """A message for a crowd is no reason to drop it, and is copied for none of them."""
    router = a_limited_router()
    payload = bytes(100 * KIB)
    run = cores.a_run(cores.COMPILED, publish(b"t", payload, qos))
    crowd = [cores.Client(cores.COMPILED, router, str(number)) for number in range(100)]
    for number, client in enumerate(crowd):
        client.subscribe("t", number % 2)
        client.packet_writer.open_window(10, 10**6)

    assert not router.fan_out(run, "part")
    assert all(client.packet_writer.size > 100 * KIB for client in crowd)
    assert not any(client.packet_writer.dropped for client in crowd)
    assert router.room(MOST) == MOST
    taken = [client.packet_writer.dequeue() for client in crowd]
    assert [publish(b"t", payload), publish(b"t", payload, qos)] * 50 == taken


@needs_compiled
def test_what_waits_behind_windows_is_bounded_too() -> None:
    """What can be read again is, later; what cannot is not brought yet."""
    router = a_limited_router()
    payload = bytes(10 * KIB)
    clients = [router.make_packet_writer() for _ in range(40)]
    for packet_writer in clients:
        packet_writer.open_window(1, 2**40)
    given = [
        packet_writer.deliver(b"t", payload, 1, 10 * KIB, "part", number)
        for number in range(50)
        for packet_writer in clients
    ]
    first = router.make_packet_writer()
    for _ in range(3):
        first.deliver_first(b"t", payload, 1, 10 * KIB, retain=True)

    assert sum(packet_writer.memory_held() for packet_writer in clients) < 3 * 1024 * KIB
    assert all(packet_writer.waiting for packet_writer in clients)
    assert not all(given)
    assert not first.has_room


@both
def test_an_answer_to_a_lent_message_is_news(core: Any) -> None:
    """PUBACK, PUBREC and a refusal report the packet id, once; other messages report nothing."""
    packet_writer = a_packet_writer(core, inflight=4)
    given(packet_writer, 1)
    lent = [packet_writer.lend(b"t", b"p", qos, 66) for qos in (1, 2, 2)]

    assert ([2, 3, 4], 0) == (lent, packet_writer.lend(b"t", b"p", 1, 66))
    packet_writer.is_noted = False
    assert packet_writer.acknowledge([1]) and not packet_writer.is_noted
    assert packet_writer.acknowledge([2]) and packet_writer.is_noted
    assert packet_writer.receive(3) and packet_writer.refuse(4)
    assert [2, 3, 4] == packet_writer.dequeue_landed()
    assert packet_writer.complete(3)
    assert [] == packet_writer.dequeue_landed()


@both
def test_a_lent_message_never_waits(core: Any) -> None:
    packet_writer = a_packet_writer(core, inflight=2)
    assert 2 == packet_writer.lend_room
    given(packet_writer, 3)  # the third one waits

    assert (0, 0) == (packet_writer.lend_room, packet_writer.lend(b"t", b"p", 1, 66))
    packet_writer.acknowledge([1])
    assert 0 == packet_writer.lend(b"t", b"p", 1, 66)
    packet_writer.pump()
    packet_writer.acknowledge([2])
    packet_writer.dequeue()

    assert 4 == packet_writer.lend(b"t", b"p", 1, 66, again=True)
    assert 0x3A == packet_writer.dequeue()[0]


def a_run(core: Any, *qos: int) -> Any:
    """Messages of these QoS that a journal has, from offset 7 on."""
    packets = [publish(b"t", b"p", one, packet_id=9) for one in qos]
    entries, at = [], 0
    for packet, level in zip(packets, qos, strict=True):
        end = at + len(packet)
        topic_end = at + 5
        entries.append(Entry(at, at + 4, topic_end, topic_end + 2, end, level, 9))
        at = end
    run = core.Run(b"".join(packets), entries, clients=("",))
    run.first = 7
    return run


@both
def test_a_run_is_lent_as_far_as_there_is_room(core: Any) -> None:
    """Each message has its own packet id, and is known by its offset when it is answered."""
    packet_writer = a_packet_writer(core, inflight=3)
    run = a_run(core, 1, 1, 1, 1)

    assert 3 == packet_writer.lend_run(run, 0, 4, 5)
    assert b"".join(publish(b"t", b"p", 1, packet_id=n) for n in (1, 2, 3)) == (
        packet_writer.dequeue()
    )
    assert 0 == packet_writer.lend_run(run, 3, 4, 5)
    packet_writer.is_noted = False
    assert packet_writer.acknowledge([2, 1]) and packet_writer.is_noted
    assert ({5: [8, 7]}, {}) == (packet_writer.dequeue_answered(), packet_writer.dequeue_answered())
    assert {5: [9]} == packet_writer.unanswered() and not packet_writer.dequeue_landed()

    assert 1 == packet_writer.lend_run(run, 3, 4, 6, again=True)
    assert 0x3A == packet_writer.dequeue()[0]
    assert {5: [9], 6: [10]} == packet_writer.unanswered()


@both
def test_a_run_is_lent_up_to_what_others_have_to_look_at(core: Any) -> None:
    """A message of QoS 2, and one that is too large for the client."""
    packet_writer = a_packet_writer(core)
    assert 1 == packet_writer.lend_run(a_run(core, 1, 2, 1), 0, 3, 5)
    packet_writer.max_packet = 7
    assert 0 == packet_writer.lend_run(a_run(core, 1), 0, 1, 5)
    packet_writer.max_packet = 8
    assert 1 == packet_writer.lend_run(a_run(core, 1), 0, 1, 5)
    assert 0 == packet_writer.too_large


@both
def test_a_run_is_not_lent_before_what_waits(core: Any) -> None:
    packet_writer = a_packet_writer(core, inflight=1)
    given(packet_writer, 2)
    packet_writer.open_window(5, 2**40)
    assert 0 == packet_writer.lend_run(a_run(core, 1), 0, 1, 5)
