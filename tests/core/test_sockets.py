"""What is done at once with what comes from the sockets of clients, and of links."""

from __future__ import annotations

import fcntl
import socket
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from select import EPOLLHUP, EPOLLIN, EPOLLOUT, epoll
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.cores import (
    COMPILED,
    REFERENCE,
    Client,
    answer,
    both,
    needs_compiled,
    publish,
    stored,
)
from tests.support.property_lists import user_property
from txbroker.core import FED
from txbroker.core.reference.packet_writer import HIGH_MARK
from txbroker.core.reference.packets import encode_length

USER = user_property("name", "value")
WAY = ("here", "here", "edge", None)


class Bench:
    """Two connections of one exchange: what one publishes, the other has subscribed to."""

    def __init__(self, core: Any, max_packet: int = 100_000) -> None:
        self.router = core.Router(lambda: self.told.append(True))
        for apex, value in (("", "here"), ("far", "other")):
            self.router.routes.set(apex, value)
            self.router.bounds.set(apex, value)
        self.router.interests.add("#", "edge", "edge")
        self.publisher = Client(core, self.router, "publisher", max_packet=max_packet)
        self.subscriber = Client(core, self.router, "subscriber")
        self.target = self.subscriber.subscribe("#")
        self.client, self.node = socket.socketpair()
        self.reader, self.written = socket.socketpair()
        self.node.setblocking(False)
        self.written.setblocking(False)
        self.number = self.node.fileno()
        self.epoll = epoll()
        self.epoll.register(self.number, EPOLLIN)
        self.interest = bytearray(self.number) + bytes((EPOLLIN,))
        self.sockets = self.router.make_sockets()
        self.sockets.wire_zone(self.ask, self.leave, self.find)
        self.sockets.wire_owners(self.find)
        self.sockets.add(self.number, self.publisher.packet_reader)
        self.way: tuple[Any, ...] | None = WAY
        self.asked = 0
        self.left: list[Any] = []
        self.told: list[bool] = []
        self.senders: dict[str, Any] = {}
        self.found: list[str] = []

    def ask(self) -> tuple[Any, ...] | None:
        self.asked += 1
        return self.way

    def leave(self, run: Any, left: list[Any]) -> None:
        self.left.append((run.raw, left))

    def find(self, key: str) -> Any:
        self.found.append(key)
        return self.senders.get(key)

    def add_sender(self, key: str, room: int = 1000) -> Any:
        """A link that leads there, whose bytes can be read at `reader`."""
        packet_writer = self.router.make_packet_writer()
        packet_writer.descriptor = self.written.fileno()
        sender = self.router.make_sender(packet_writer, lambda name: f"<{name}>1234".encode())
        sender.room = room
        self.senders[key] = sender
        return sender

    def connect_subscriber(self) -> None:
        """What is for the subscriber can be written, and read at `reader`."""
        self.subscriber.packet_writer.descriptor = self.written.fileno()

    def wait(self, data: bytes = b"", timeout: float | None = 0.0) -> Any:
        """What is left when this has come."""
        if data:
            self.client.sendall(data)
        return self.sockets.wait(self.epoll, self.interest, timeout, lambda: 17.0)

    def close(self) -> None:
        self.epoll.close()
        for end in (self.client, self.node, self.reader, self.written):
            end.close()


@contextmanager
def a_bench(core: Any, **keys: Any) -> Iterator[Bench]:
    """It is closed at the end."""
    bench = Bench(core, **keys)
    try:
        yield bench
    finally:
        bench.close()


@both
def test_plain_publishes_go_on_at_once_and_nobody_has_to_look(core: Any) -> None:
    packets = publish(b"a", b"1") + publish(b"b/c", b"2")
    with a_bench(core) as bench:
        bench.connect_subscriber()
        assert bench.wait(packets) is None
        assert packets == bench.reader.recv(100)
        assert (2, 2, 17.0) == (
            bench.router.received,
            bench.router.delivered,
            bench.publisher.packet_reader.heard_at,
        )
        assert (
            bench.publisher.packet_reader.step() is None
            and bench.publisher.packet_reader.qos0 is None
        )
        assert not bench.told and not bench.router.send_outputs()


@both
def test_output_that_cannot_be_written_is_told_when_that_is_asked_for(core: Any) -> None:
    with a_bench(core) as bench:
        assert [] == bench.wait(publish(b"a"))
        assert bench.sockets.has_postponed and not bench.told
        bench.sockets.notify_output()
        assert [True] == bench.told and not bench.sockets.has_postponed
        assert [bench.subscriber.packet_writer] == bench.router.send_outputs()
        assert publish(b"a") == bench.subscriber.packet_writer.dequeue()


@both
@pytest.mark.parametrize(
    "data",
    [
        publish(b"a", b"1") + publish(b"a", b"2", 1, 7),
        publish(b"a", b"1", flags=1),
        publish(b"a", b"1") + b"\xc0\0",
        publish(b"far/a", b"1"),
        publish(b"$SYS/a", b"1"),
        publish(b"a", b"1") + b"\x30\x80\x80\x80\x80",
        publish(b"a", bytes(17_000)),
    ],
    ids=["qos1", "retained", "ping", "elsewhere", "system", "malformed", "long"],
)
def test_all_else_is_for_others_and_nothing_of_it_is_taken(core: Any, data: bytes) -> None:
    with a_bench(core) as bench:
        assert [(bench.number, FED)] == bench.wait(data)
        assert not bench.subscriber.packet_writer.size and not bench.router.received

        again = Client(core, bench.router, "again", max_packet=100_000)
        bench.publisher.packet_reader.takes_qos12 = again.packet_reader.takes_qos12 = False
        expected, run = again.step(data), again.packet_reader.qos0
        assert expected == bench.publisher.packet_reader.step()
        known = bench.publisher.packet_reader.qos0
        assert (run and run.raw) == (known and known.raw)


@both
@pytest.mark.parametrize("cut", range(1, 20))
def test_what_comes_in_pieces_is_put_together(core: Any, cut: int) -> None:
    packets = publish(b"a", b"123") + publish(b"b", b"45")
    with a_bench(core) as bench:
        bench.connect_subscriber()
        for data in (packets[:cut], packets[cut:]):
            if bench.wait(data) is not None:
                assert (
                    bench.publisher.packet_reader.step() is None
                    and bench.publisher.packet_reader.qos0 is None
                )
        assert packets == bench.reader.recv(100)
        assert 2 == bench.router.received


@both
def test_what_others_have_not_worked_off_goes_first(core: Any) -> None:
    ping = b"\xc0\0"
    with a_bench(core) as bench:
        assert [(bench.number, FED)] == bench.wait(publish(b"a") + ping + publish(b"b"))
        assert (0xC0, b"") == bench.publisher.packet_reader.step()
        assert publish(b"a") == bench.publisher.packet_reader.qos0.raw
        assert [(bench.number, FED)] == bench.wait(publish(b"c"))
        assert bench.publisher.packet_reader.step() is None
        assert publish(b"b") + publish(b"c") == bench.publisher.packet_reader.qos0.raw


@both
@pytest.mark.parametrize("size", [100_000, 300_000, 1_000_000])
@pytest.mark.parametrize("cut", [1, 10_000, 65_536])
def test_long_packets_are_whole_however_they_come(core: Any, size: int, cut: int) -> None:
    """With something before and after them in the same read, or nothing."""
    packets = [
        publish(b"a", b"1"),
        publish(b"b", bytes(range(250)) * (size // 250)),
        publish(b"c", bytes(70_000)),
        publish(b"d", b"4"),
    ]
    data, found = b"".join(packets), b""
    with a_bench(core, max_packet=2 * size) as bench:
        at = 0
        while at < len(data) or held(bench.node):
            # A busy machine makes reads smaller: the next piece would not fit behind unread ones.
            step = 0 if held(bench.node) else cut if at < 3 * cut else 65_536
            left = bench.wait(data[at : at + step])
            at += step
            found += bench.subscriber.packet_writer.dequeue()
            if (
                left
                and bench.publisher.packet_reader.step() is None
                and bench.publisher.packet_reader.qos0
            ):
                found += bench.publisher.packet_reader.qos0.raw
        assert data == found


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


@both
def test_before_there_is_a_session_everything_is_for_others(core: Any) -> None:
    with a_bench(core) as bench:
        bench.publisher.packet_reader.close()
        assert [(bench.number, FED)] == bench.wait(publish(b"a"))
        assert 0.0 == bench.publisher.packet_reader.heard_at


@both
def test_further_pieces_of_a_first_packet_are_for_nobody(core: Any) -> None:
    """Others know its length: 5,000 clients that sent CONNECT byte by byte took all their turns."""
    with a_bench(core) as bench:
        packet_reader = bench.publisher.packet_reader
        packet_reader.close()
        for data in (b"\x10", b"\x0c"):
            assert [(bench.number, FED)] == bench.wait(data)
            assert packet_reader.step() is None
        for byte in bytes(11):
            assert bench.wait(bytes((byte,))) is None
        assert 14 == packet_reader.awaited
        assert [(bench.number, FED)] == bench.wait(b"\0")
        assert (0x10, bytes(12)) == packet_reader.step()


@both
def test_one_that_has_just_connected_is_read_out_of_turn(core: Any) -> None:
    with a_bench(core) as bench:
        bench.publisher.packet_reader.close()
        assert not bench.sockets.read(bench.number)
        assert not bench.sockets.read(bench.number + 1000) and not bench.sockets.read(-1)
        bench.client.sendall(b"\x10\2ab")
        assert bench.sockets.read(bench.number)
        assert (0x10, b"ab") == bench.publisher.packet_reader.step()
        bench.client.close()
        assert not bench.sockets.read(bench.number)
        assert bench.wait() in ([(bench.number, EPOLLIN)], [(bench.number, EPOLLIN | EPOLLHUP)])


@both
def test_it_is_asked_again_each_time(core: Any) -> None:
    with a_bench(core) as bench:
        bench.connect_subscriber()
        bench.way = None
        assert [(bench.number, FED)] == bench.wait(publish(b"a"))
        bench.publisher.packet_reader.step()

        bench.way = WAY
        assert bench.wait(publish(b"a")) is None
        assert 2 == bench.asked


@both
def test_what_is_to_be_kept_is_when_that_is_asked_for(core: Any) -> None:
    kept: list[bytes] = []
    with a_bench(core) as bench:
        bench.connect_subscriber()
        bench.way = (*WAY[:3], lambda runs: kept.extend(run.raw for run in runs))
        for timeout in (0.0, 60.0, None):  # others are waited for, but not for so long
            assert [] == bench.wait(publish(b"a"), timeout)
            assert bench.sockets.has_postponed
            assert not kept and publish(b"a") == bench.reader.recv(100)
            bench.sockets.notify_output()
            bench.sockets.notify_output()
            assert [publish(b"a")] == kept and not bench.sockets.has_postponed
            kept.clear()


@both
def test_whoever_gets_nothing_straight_is_told(core: Any) -> None:
    with a_bench(core) as bench:
        bench.target.is_plain = False
        assert [] == bench.wait(publish(b"a"))
        assert [(publish(b"a"), [(bench.subscriber.session, range(1))])] == bench.left


@needs_compiled
def test_less_is_read_of_whoever_takes_long() -> None:
    """What goes to very many is little at a time; more again when it takes no longer."""
    pace = 0.01
    packet = publish(b"a", bytes(1_000))

    def leave(run: Any, left: list[Any]) -> None:
        sizes.append(len(run.raw))
        time.sleep(pace)

    sizes: list[int] = []
    with a_bench(COMPILED) as bench:
        bench.sockets.wire_zone(bench.ask, leave, bench.find)
        bench.target.is_plain = False
        bench.client.setblocking(False)
        rest = memoryview(packet * 5_000)

        def read() -> None:
            nonlocal rest
            with suppress(BlockingIOError):
                while rest:
                    rest = rest[bench.client.send(rest) :]
            bench.wait()

        while len(sizes) < 20 and (rest or held(bench.node)):
            read()
        pace = 0.0
        while sizes[-1] <= 30_000 and (rest or held(bench.node)):
            read()  # more than once: others of a busy machine make a read long, too

    assert sizes[0] > 10_000 > 6_000 > max(sizes[5:20])
    assert sizes[-1] > 30_000


def another(stack: ExitStack, bench: Bench, name: str) -> tuple[socket.socket, Client]:
    """One more client that is read: its socket, and what is here of it."""
    client, node = (stack.enter_context(end) for end in socket.socketpair())
    node.setblocking(False)
    one = Client(COMPILED, bench.router, name)
    bench.sockets.add(node.fileno(), one.packet_reader)
    bench.epoll.register(node.fileno(), EPOLLIN)
    bench.interest += bytes(max(0, node.fileno() + 1 - len(bench.interest)))
    bench.interest[node.fileno()] = EPOLLIN
    return client, one


def work_for(seconds: float) -> None:
    """Take the thread so long; a pause is not counted."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@needs_compiled
def test_less_is_read_at_once_of_each_of_a_crowd() -> None:
    """Whoever asks for little comes once in a round: 500 reads of a millisecond made it wait."""
    crowd, packets = 40, publish(b"a", bytes(1_000)) * 60

    def leave(run: Any, left: list[Any]) -> None:
        sizes.append(len(run.raw))
        work_for(0.001)

    sizes: list[int] = []
    with ExitStack() as stack:
        bench = stack.enter_context(a_bench(COMPILED))
        bench.sockets.wire_zone(bench.ask, leave, bench.find)
        bench.target.is_plain = False
        ends = [another(stack, bench, f"one {number}") for number in range(crowd)]
        rests = {client: memoryview(b"") for client, _ in ends}
        for client in rests:
            client.setblocking(False)
        while len(sizes) < 12 * crowd:
            for client, rest in rests.items():
                with suppress(BlockingIOError):
                    while True:
                        rest = rests[client] = rest or memoryview(packets)
                        rest = rests[client] = rest[client.send(rest) :]
            bench.wait()

    assert max(sizes[-crowd:]) < 5_000 < 10_000 < sizes[0]


@needs_compiled
def test_a_little_longer_than_the_others_is_no_reason_to_wait() -> None:
    """One that asks for as little as each of a crowd has its turn in each round."""
    crowd = 200

    def leave(run: Any, left: list[Any]) -> None:
        who.append(run.clients[0])
        if run.clients[0] == "publisher":
            work_for(80e-6)

    who: list[str] = []
    with ExitStack() as stack:
        bench = stack.enter_context(a_bench(COMPILED))
        bench.sockets.wire_zone(bench.ask, leave, bench.find)
        bench.target.is_plain = False
        ends = [another(stack, bench, f"one {number}")[0] for number in range(crowd)]
        for _ in range(150):
            for client in (bench.client, *ends):
                client.sendall(publish(b"a", b"x"))
            bench.wait()
    places = [place for place, name in enumerate(who) if name == "publisher"]

    assert len(places) > len(who) / (3 * crowd)


@needs_compiled
def test_a_long_packet_is_read_in_pieces() -> None:
    """What the kernel holds of it, up to 6 MB, made everybody wait while it was copied."""
    packet = publish(b"a", bytes(2_000_000))
    with a_bench(COMPILED, max_packet=3_000_000) as bench:
        bench.client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 400_000)
        bench.client.setblocking(False)
        rest, at_once = memoryview(packet), []
        for _ in range(4):
            with suppress(BlockingIOError):
                while rest:
                    rest = rest[bench.client.send(rest) :]
            before = held(bench.node)
            bench.wait()
            at_once.append(before - held(bench.node))

    assert all(size <= 65_536 << place for place, size in enumerate(at_once))
    assert sum(at_once) > 100_000


def held(end: socket.socket) -> int:
    """Bytes that may be read there."""
    return int.from_bytes(fcntl.ioctl(end, termios.FIONREAD, bytes(4)), sys.byteorder)


@needs_compiled
def test_what_one_used_while_nobody_waited_is_forgotten() -> None:
    """Else a crowd of new ones is read before it until each of them has used as much."""
    crowd = 20

    def leave(run: Any, left: list[Any]) -> None:
        who.append(run.clients[0])
        time.sleep(0.001)

    who: list[str] = []
    with ExitStack() as stack:
        bench = stack.enter_context(a_bench(COMPILED))
        bench.sockets.wire_zone(bench.ask, leave, bench.find)
        bench.target.is_plain = False
        for _ in range(100):
            bench.wait(publish(b"a", b"x"))
        ends = []
        for number in range(crowd):
            ends.append(another(stack, bench, f"new {number}"))
        who.clear()
        for turn in range(100):
            for client, _ in ends:
                client.sendall(publish(b"a", b"x"))
            bench.wait(publish(b"a", b"x") if turn == 30 else b"")
            if "publisher" in who:
                break
    assert "publisher" in who


@both
def test_a_packet_writer_that_is_full_is_told(core: Any) -> None:
    with a_bench(core) as bench:
        bench.subscriber.packet_writer.send(bytes(HIGH_MARK - 1))
        assert [] == bench.wait(publish(b"a"))
        assert [(publish(b"a"), [])] == bench.left
        assert [bench.subscriber.packet_writer] == bench.router.dequeue_full()


@both
def test_an_error_is_of_one_connection(core: Any) -> None:
    with a_bench(core) as bench:
        bench.sockets.wire_zone(lambda: 1 / 0, bench.leave, bench.find)
        assert [(bench.number, FED)] == bench.wait(publish(b"a"))
        assert isinstance(bench.publisher.packet_reader.fault, ZeroDivisionError)


@both
def test_what_else_epoll_says_is_for_others(core: Any) -> None:
    with a_bench(core) as bench:
        bench.epoll.modify(bench.number, EPOLLIN | EPOLLOUT)
        assert [(bench.number, EPOLLOUT)] == bench.wait()
        assert [(bench.number, EPOLLIN | EPOLLOUT)] == bench.wait(publish(b"a"))
        assert publish(b"a") == bench.node.recv(100)
        bench.client.close()
        ((number, events),) = bench.wait()
        assert number == bench.number and events & EPOLLHUP


@both
def test_what_somebody_who_left_had_sent_is_read_as_that_of_others(core: Any) -> None:
    """A crowd may leave at once, and each have sent much."""
    with a_bench(core) as bench:
        bench.connect_subscriber()
        bench.client.sendall(publish(b"a"))
        bench.client.close()
        found = bench.wait() or bench.wait()
        assert publish(b"a") == bench.reader.recv(100)
        assert (bench.number, EPOLLIN) in found


@both
def test_a_descriptor_that_is_not_to_be_read_is_not(core: Any) -> None:
    with a_bench(core) as bench:
        bench.interest[bench.number] = 0
        assert [(bench.number, EPOLLIN)] == bench.wait(publish(b"a"))
        bench.interest[bench.number] = EPOLLIN
        bench.sockets.remove(bench.number)
        assert [(bench.number, EPOLLIN)] == bench.wait()
        bench.sockets.remove(bench.number + 1000)
        assert publish(b"a") == bench.node.recv(100)


@both
def test_the_end_of_a_connection_is_for_others(core: Any) -> None:
    with a_bench(core) as bench:
        bench.client.shutdown(socket.SHUT_WR)
        assert [(bench.number, EPOLLIN)] == bench.wait()


@both
def test_it_waits_for_as_long_as_nothing_comes(core: Any) -> None:
    with a_bench(core) as bench:
        begin = time.monotonic()
        assert bench.wait(timeout=0.05) is None
        assert time.monotonic() - begin >= 0.05
        assert [(bench.number, FED)] == bench.wait(b"\xc0\0", timeout=None)


# -- to links


@both
def test_what_is_for_an_owner_elsewhere_goes_there(core: Any) -> None:
    packets = publish(b"far/a", b"1") + publish(b"far/b", b"2")
    with a_bench(core) as bench:
        sender = bench.add_sender("other", 150)
        assert bench.wait(packets) is None
        assert b"<publisher>\2\0\0\0" + packets == bench.reader.recv(1000)
        assert (2, 0) == (bench.router.received, bench.router.delivered)
        assert 0 < sender.sent == 150 - sender.room

        sender.room = 0
        assert [(bench.number, FED)] == bench.wait(publish(b"far/a"))
        assert ["other", "other"] == bench.found


@both
def test_what_is_for_one_owner_goes_there_by_whatever_apex(core: Any) -> None:
    packets = publish(b"far/a", b"1") + publish(b"farther", b"2")
    with a_bench(core) as bench:
        bench.router.routes.set("farther", "other")
        bench.add_sender("other", 150)
        assert bench.wait(packets) is None
        assert b"<publisher>\2\0\0\0" + packets == bench.reader.recv(1000)


@both
def test_a_node_without_a_zone(core: Any) -> None:
    """Also while some client's output is full: only the owner gets what a client publishes."""
    packet = publish(b"far/a", b"1")
    with a_bench(core) as bench:
        bench.add_sender("other")
        bench.sockets = bench.router.make_sockets()
        bench.sockets.wire_owners(bench.find)
        bench.sockets.add(bench.number, bench.publisher.packet_reader)
        assert bench.wait(packet) is None
        bench.subscriber.packet_writer.send(bytes(HIGH_MARK))
        assert [] == bench.wait(packet)
        assert bench.publisher.packet_reader.fault is None
        bench.router.send_outputs()
        assert 2 * (b"<publisher>\1\0\0\0" + packet) == bench.reader.recv(1000)


@both
def test_what_is_for_two_owners_is_for_others(core: Any) -> None:
    with a_bench(core) as bench:
        bench.add_sender("other")
        assert [(bench.number, FED)] == bench.wait(publish(b"far/a") + publish(b"a"))
        assert not bench.router.received


@both
def test_what_other_edges_want_goes_there_and_here(core: Any) -> None:
    packet = publish(b"a", b"1")
    with a_bench(core) as bench:
        bench.add_sender("there")
        bench.router.interests.add("a", "there", "there")
        assert [] == bench.wait(packet)
        assert packet == bench.subscriber.packet_writer.dequeue()
        bench.sockets.notify_output()
        bench.router.send_outputs()
        assert b"<publisher>\1\0\0\0" + packet == bench.reader.recv(1000)

        bench.connect_subscriber()
        bench.router.interests.remove("#", "edge")
        assert bench.wait(packet) is None
        assert b"<publisher>\1\0\0\0" + packet == bench.reader.recv(1000)


@both
def test_all_links_have_to_be_free(core: Any) -> None:
    with a_bench(core) as bench:
        for key in ("there", "elsewhere"):
            bench.router.interests.add("a", key, key)
        bench.add_sender("there")
        assert [(bench.number, FED)] == bench.wait(publish(b"a"))
        bench.publisher.packet_reader.step()
        bench.add_sender("elsewhere", room=0)
        assert [(bench.number, FED)] == bench.wait(publish(b"a"))
        assert not bench.subscriber.packet_writer.size and not bench.router.received


@both
def test_what_nobody_wants_goes_nowhere(core: Any) -> None:
    with a_bench(core) as bench:
        bench.router.interests.remove("#", "edge")
        assert bench.wait(publish(b"a")) is None
        assert (1, 0) == (bench.router.received, bench.router.delivered)


@both
def test_a_header_is_made_once_until_it_is_forgotten(core: Any) -> None:
    made: list[str] = []

    def make(client_id: str) -> bytes:
        made.append(client_id)
        return b".1234"

    router = core.Router(lambda: None)
    packet_writer = router.make_packet_writer()
    sender = router.make_sender(packet_writer, make)
    client = Client(core, router, "me")
    client.step(publish(b"a"))
    run = client.packet_reader.qos0
    assert not sender.send(run)  # there is no room
    sender.room = 1000
    assert not sender.send(run)  # it cannot be written
    packet_writer.descriptor = 1
    assert sender.send(run) and sender.send(run)
    sender.forget()
    assert sender.send(run)
    assert ["me"] * 2 == made
    assert (b".\1\0\0\0" + publish(b"a")) * 3 == packet_writer.dequeue()


# -- from links


def header(text: bytes, count: int = 1) -> bytes:
    """That of a batch of so many publishes."""
    text += count.to_bytes(4, "little")
    return b"\0" + encode_length(len(text)) + text


class LinkBench(Bench):
    """What comes, comes over a link, whose first batch was taken by others."""

    def __init__(self, core: Any) -> None:
        super().__init__(core)
        self.packet_reader = core.LinkReader(100_000)
        self.sockets.add(self.number, self.packet_reader)
        self.connect_subscriber()
        self.packet_reader.is_open = True
        self.packet_reader.most = 1000
        self.batch(header(b"one"), publish(b"a"))
        self.packet_reader.know("client", "there", 1)

    def batch(self, head: bytes, *packets: bytes) -> Any:
        """Have others take this."""
        assert [(self.number, FED)] == self.wait(head + b"".join(packets))
        found = [self.packet_reader.step()]
        self.packet_reader.expected = len(packets)
        while found[-1] is not None:
            found.append(self.packet_reader.step())
        return found


@contextmanager
def a_link(core: Any) -> Iterator[LinkBench]:
    """It is closed at the end."""
    bench = LinkBench(core)
    try:
        yield bench
    finally:
        bench.close()


@both
def test_a_batch_whose_header_is_known_goes_on_at_once(core: Any) -> None:
    with a_link(core) as link:
        assert link.wait(header(b"one") + publish(b"a/b", b"12")) is None
        assert publish(b"a/b", b"12") == link.reader.recv(100)
        assert (0, 1) == (link.router.received, link.router.delivered)
        assert 17.0 == link.packet_reader.heard_at and link.packet_reader.received > 5


@both
def test_a_batch_in_the_stored_form_goes_on_at_once(core: Any) -> None:
    """Packets with a list among others; clients of each level get their own form."""
    said = [(b"1", b""), (b"2", None), (b"3", USER), (b"4", USER)]
    packets = [publish(b"a/b", payload, properties=listed) for payload, listed in said]
    data = b"".join(
        packet if listed is None else stored(packet)
        for packet, (_, listed) in zip(packets, said, strict=True)
    )
    for level in (4, 5):
        with a_link(core) as link:
            link.subscriber.packet_writer.level = level
            assert link.wait(header(b"one", 4) + data) is None
            expected = b"".join(
                publish(b"a/b", payload, properties=None if level < 5 else listed or b"")
                for payload, listed in said
            )
            assert expected == link.reader.recv(1000)
            assert 4 == link.router.delivered and not link.packet_reader.expected
            assert link.packet_reader.received > 2 * len(USER)


@both
def test_a_list_that_is_not_plain_is_for_others(core: Any) -> None:
    """Those before it have gone on, and it is of the same batch."""
    odd = stored(publish(b"a", b"2", properties=b"\x23\0\1"))
    with a_link(core) as link:
        data = header(b"one", 2) + stored(publish(b"a", b"1", properties=USER)) + odd
        assert [(link.number, FED)] == link.wait(data)
        link.router.send_outputs()
        assert publish(b"a", b"1") == link.reader.recv(100)
        head = link.packet_reader.step()
        assert (0, b"one\1\0\0\0") == head
        link.packet_reader.expected = 1
        assert (odd[0], odd[2:]) == link.packet_reader.step()


@both
def test_publishes_of_a_client_at_level_5_go_on_at_once(core: Any) -> None:
    """To clients here, to a link whose node reads properties, and into the journal."""
    packets = [publish(b"a", b"1", properties=b""), publish(b"a", b"2", properties=USER)]
    kept: list[bytes] = []
    with a_bench(core) as bench:
        session = bench.publisher.session
        bench.publisher.packet_reader.open(session, "publisher", None, clean=True, level=5)
        bench.subscriber.packet_writer.level = 5
        bench.router.interests.add("#", "there", "there")
        bench.way = ("here", "here", "edge", lambda runs: kept.extend(run.raw for run in runs))
        bench.add_sender("there").has_properties = True
        bench.wait(b"".join(packets))
        bench.sockets.notify_output()
        sent = b"".join(map(stored, packets))
        assert [sent] == kept
        assert b"<publisher>\2\0\0\0" + sent == bench.reader.recv(1000)
        assert b"".join(packets) == bench.subscriber.packet_writer.dequeue()
        odd = publish(b"a", b"2", properties=b"\x23\0\1")
        assert [(bench.number, FED)] == bench.wait(odd)
        assert (0x30, odd[2:]) == bench.publisher.packet_reader.step()


@both
@pytest.mark.parametrize(
    "data",
    [
        header(b"two") + publish(b"a"),
        header(b"one"),
        header(b"one", 0) + publish(b"a"),
        header(b"one") + publish(b"a", qos=1),
        header(b"one") + publish(b"a", flags=8),
        header(b"one") + publish(b"far"),
        publish(b"a"),
    ],
    ids=["unknown", "empty", "none", "qos1", "dup", "elsewhere", "headless"],
)
def test_any_other_is_for_others(core: Any, data: bytes) -> None:
    with a_link(core) as link:
        assert [(link.number, FED)] == link.wait(data)
        assert not link.subscriber.packet_writer.size and not link.router.delivered


@both
def test_several_batches_of_a_read_go_on_wherever_it_ends(core: Any) -> None:
    a, b, c = publish(b"a", b"1"), publish(b"b", b"2"), publish(b"c", b"3")
    data = header(b"one", 2) + a + b + header(b"one", 3) + a + b + c + header(b"one") + c
    with a_link(core) as link:
        link.packet_reader.most = 10_000
        for size in (1, 3, 7, 20, 29, len(data)):
            for at in range(0, len(data), size):
                link.wait(data[at : at + size])
                while (found := link.packet_reader.step()) is not None:
                    if isinstance(found, tuple):
                        link.packet_reader.expected = int.from_bytes(found[1][-4:], "little")
                    else:
                        assert size < len(data)
                        link.router.fan_out(found, None)
                link.router.send_outputs()
            assert a + b + a + b + c + c == link.reader.recv(100)


@both
def test_the_rest_of_a_batch_has_a_header_for_others(core: Any) -> None:
    first, second = publish(b"a", b"1"), publish(b"a", b"2", 1, 1)
    with a_link(core) as link:
        data = header(b"one", 3) + first + second + first
        assert [(link.number, FED)] == link.wait(data)
        assert first == link.subscriber.packet_writer.dequeue()
        assert (0, header(b"one", 2)[2:]) == link.packet_reader.step()
        link.packet_reader.expected = 2
        assert [second, first] == [link.packet_reader.step().raw, link.packet_reader.step().raw]
        assert link.packet_reader.step() is None


@both
def test_a_header_is_known_by_its_count_and_only_in_time(core: Any) -> None:
    with a_link(core) as link:
        link.batch(header(b"two", 2), publish(b"a"), publish(b"a"))
        link.packet_reader.know("client", "there", 1)
        link.packet_reader.is_open = False
        link.packet_reader.know("client", "there", 2)
        link.packet_reader.is_open = True
        assert [(link.number, FED)] == link.wait(header(b"two", 2) + publish(b"a") * 2)


@both
def test_a_link_that_is_closed_for_that_or_has_had_enough_takes_nothing(core: Any) -> None:
    data = header(b"one") + publish(b"a", bytes(100))
    with a_link(core) as link:
        link.packet_reader.is_open = False
        assert [(link.number, FED)] == link.wait(data)
        while link.packet_reader.step() is not None:
            pass
        link.packet_reader.is_open = True
        link.packet_reader.most = 1
        assert link.wait(data) is None
        assert [(link.number, FED)] == link.wait(data)


@both
def test_deliveries_go_to_clients_whatever_the_own_zone_says(core: Any) -> None:
    data = header(b"one") + publish(b"far", b"1")
    with a_link(core) as link:
        answers = [True, False]
        link.packet_reader.may_take = lambda: answers.pop(0)
        link.packet_reader.leave = lambda run, left: link.left.append((run.raw, left))
        assert link.wait(data) is None
        assert publish(b"far", b"1") == link.reader.recv(100)
        assert [(link.number, FED)] == link.wait(data)
        while link.packet_reader.step() is not None:
            pass

        answers.append(True)
        link.target.is_plain = False
        assert [] == link.wait(data)
        assert [(publish(b"far", b"1"), [(link.subscriber.session, range(1))])] == link.left
        assert not link.asked


@both
def test_headers_that_are_forgotten_are_not_known(core: Any) -> None:
    with a_link(core) as link:
        link.packet_reader.forget()
        assert [(link.number, FED)] == link.wait(header(b"one") + publish(b"a"))


# -- both do the same

PACKETS = st.one_of(
    st.builds(
        publish,
        st.sampled_from([b"a", b"far", b"far/b", b"$a", b"", b"+", b"\xff", b"x" * 200]),
        st.binary(max_size=5),
        st.sampled_from([0, 0, 0, 0, 1, 2]),
        flags=st.sampled_from([0, 0, 0, 0, 1, 8]),
    ),
    st.sampled_from([b"\x40\2\0\1", b"\xc0\0", b"\x30\x83\0\0\1a", b"\x30\x80\x80\x80\x80\1"]),
    st.sampled_from([header(b"one"), header(b"two")]),
    # What would be a publish, were it one by its first byte.
    st.builds(lambda kind: bytes((kind << 4,)) + publish(b"a", b"1")[1:], st.integers(0, 15)),
    st.binary(max_size=4),
)


@needs_compiled
@given(st.lists(st.lists(PACKETS, max_size=4).map(b"".join), max_size=4), st.booleans())
def test_both_cores_do_the_same(reads: list[bytes], is_link: bool) -> None:
    """Whatever comes, and whatever of it others work off in between."""
    make = a_link if is_link else a_bench
    with make(REFERENCE) as one, make(COMPILED) as other:
        for data in filter(None, reads):
            told = []
            for bench in (one, other):
                bench.wait(data)  # that a long packet is not whole yet is told or not
                packet_reader = bench.packet_reader if is_link else bench.publisher.packet_reader
                seen: list[Any] = [bench.subscriber.packet_writer.dequeue()]
                while True:
                    found = packet_reader.step()
                    run = found if is_link else packet_reader.qos0
                    seen += [getattr(run, "raw", run), bool(packet_reader.fault)]
                    if found is None:
                        break
                seen += [bench.router.received, bench.router.delivered]
                told.append(seen)
            assert told[0] == told[1]
