"""What is done at once with what comes from the sockets of clients."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from select import EPOLLHUP, EPOLLIN, EPOLLOUT
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.cores import COMPILED, REFERENCE, Client, both, needs_compiled, publish
from txbroker.core import FED, SHORT
from txbroker.core.reference.outlet import HIGH_MARK

WAY = ("here", "here", "edge")


class Bench:
    """Two connections of one exchange: what one publishes, the other has subscribed to."""

    def __init__(self, core: Any, max_packet: int = 100_000) -> None:
        self.exchange = core.Exchange(lambda: None)
        for apex, value in (("", "here"), ("far", "other")):
            self.exchange.routes.set(apex, value)
            self.exchange.bounds.set(apex, value)
        self.exchange.interests.add("#", "edge", "edge")
        self.publisher = Client(core, self.exchange, "publisher", max_packet=max_packet)
        self.subscriber = Client(core, self.exchange, "subscriber")
        self.target = self.subscriber.subscribe("#")
        self.client, self.node = socket.socketpair()
        self.node.setblocking(False)
        self.number = self.node.fileno()
        self.interest = bytearray(self.number) + bytes((EPOLLIN,))
        self.sockets = self.exchange.make_sockets()
        self.sockets.wire(self.ask, lambda run, left: self.left.append((run.raw, left)))
        self.sockets.add(self.number, self.publisher.inlet)
        self.way: tuple[str, str, str] | None = WAY
        self.asked = 0
        self.left: list[Any] = []

    def ask(self) -> tuple[str, str, str] | None:
        self.asked += 1
        return self.way

    def serve(self, data: bytes = b"", events: int = EPOLLIN, times: int = 1) -> Any:
        """What is left of so many times that this is ready."""
        if data:
            self.client.sendall(data)
        return self.sockets.serve([(self.number, events)] * times, self.interest, 17.0)

    def close(self) -> None:
        self.client.close()
        self.node.close()


@contextmanager
def a_bench(core: Any, **keys: Any) -> Iterator[Bench]:
    """It is closed at the end."""
    bench = Bench(core, **keys)
    try:
        yield bench
    finally:
        bench.close()


@both
def test_plain_publishes_go_on_at_once(core: Any) -> None:
    packets = publish(b"a", b"1") + publish(b"b/c", b"2")
    with a_bench(core) as bench:
        assert [] == bench.serve(packets)
        assert packets == bench.subscriber.outlet.take()
        assert (2, 2, 17.0) == (
            bench.exchange.received,
            bench.exchange.delivered,
            bench.publisher.inlet.heard_at,
        )
        assert bench.publisher.inlet.step() is None and bench.publisher.inlet.qos0 is None


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
        publish(b"a", bytes(SHORT)),
    ],
    ids=["qos1", "retained", "ping", "elsewhere", "system", "malformed", "long"],
)
def test_all_else_is_for_others_and_nothing_of_it_is_taken(core: Any, data: bytes) -> None:
    with a_bench(core) as bench:
        assert [(bench.number, FED)] == bench.serve(data)
        assert not bench.subscriber.outlet.size and not bench.exchange.received

        again = Client(core, bench.exchange, "again", max_packet=100_000)
        bench.publisher.inlet.takes_qos12 = again.inlet.takes_qos12 = False
        expected, run = again.step(data), again.inlet.qos0
        assert expected == bench.publisher.inlet.step()
        known = bench.publisher.inlet.qos0
        assert (run and run.raw) == (known and known.raw)


@both
def test_what_comes_in_pieces_is_put_together_by_others(core: Any) -> None:
    packet = publish(b"a", b"123")
    with a_bench(core) as bench:
        assert [(bench.number, FED)] == bench.serve(packet[:4])
        assert bench.publisher.inlet.step() is None
        assert [(bench.number, FED)] == bench.serve(packet[4:])
        assert bench.publisher.inlet.step() is None
        assert packet == bench.publisher.inlet.qos0.raw


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
        while at < len(data):
            step = cut if at < 3 * cut else 65_536
            left = bench.serve(data[at : at + step])
            at += step
            if left and bench.publisher.inlet.step() is None and bench.publisher.inlet.qos0:
                found += bench.publisher.inlet.qos0.raw
        assert data == found + bench.subscriber.outlet.take()


@both
def test_before_there_is_a_session_everything_is_for_others(core: Any) -> None:
    with a_bench(core) as bench:
        bench.publisher.inlet.close()
        assert [(bench.number, FED)] == bench.serve(publish(b"a"))
        assert 0.0 == bench.publisher.inlet.heard_at


@both
def test_it_is_asked_once_until_somebody_else_has_had_a_turn(core: Any) -> None:
    with a_bench(core) as bench:
        bench.way = None
        bench.client.sendall(publish(b"a"))
        assert [(bench.number, FED)] == bench.serve(times=3)
        assert 1 == bench.asked
        bench.publisher.inlet.step()

        bench.way = WAY
        assert [] == bench.serve(publish(b"a"), times=2)
        assert 2 == bench.asked


@both
def test_whoever_gets_nothing_straight_is_told(core: Any) -> None:
    with a_bench(core) as bench:
        bench.target.is_plain = False
        assert [] == bench.serve(publish(b"a"))
        assert [(publish(b"a"), [(bench.subscriber.session, 0)])] == bench.left


@both
def test_an_outlet_that_is_full_is_told(core: Any) -> None:
    with a_bench(core) as bench:
        bench.subscriber.outlet.send(bytes(HIGH_MARK - 1))
        assert [] == bench.serve(publish(b"a"))
        assert [(publish(b"a"), [])] == bench.left
        assert [bench.subscriber.outlet] == bench.exchange.take_full()


@both
@pytest.mark.parametrize("events", [EPOLLOUT, EPOLLIN | EPOLLOUT, EPOLLIN | EPOLLHUP])
def test_what_else_epoll_says_is_for_others(core: Any, events: int) -> None:
    with a_bench(core) as bench:
        assert [(bench.number, events)] == bench.serve(publish(b"a"), events)
        assert publish(b"a") == bench.node.recv(100)


@both
def test_a_descriptor_that_is_not_to_be_read_is_not(core: Any) -> None:
    with a_bench(core) as bench:
        bench.interest[bench.number] = 0
        assert [(bench.number, EPOLLIN)] == bench.serve(publish(b"a"))
        bench.interest[bench.number] = EPOLLIN
        bench.sockets.remove(bench.number)
        assert [(bench.number, EPOLLIN)] == bench.serve()
        bench.sockets.remove(bench.number + 1000)
        assert publish(b"a") == bench.node.recv(100)


@both
def test_the_end_of_a_connection_is_for_others(core: Any) -> None:
    with a_bench(core) as bench:
        assert [] == bench.serve()  # nothing has come: somebody else has read it
        bench.client.shutdown(socket.SHUT_WR)
        assert [(bench.number, EPOLLIN)] == bench.serve()


PACKETS = st.one_of(
    st.builds(
        publish,
        st.sampled_from([b"a", b"far", b"far/b", b"$a", b"", b"+", b"\xff", b"x" * 200]),
        st.binary(max_size=5),
        st.sampled_from([0, 0, 0, 0, 1, 2]),
        flags=st.sampled_from([0, 0, 0, 0, 1, 8]),
    ),
    st.sampled_from([b"\x40\2\0\1", b"\xc0\0", b"\x30\x83\0\0\1a", b"\x30\x80\x80\x80\x80\1"]),
    st.binary(max_size=4),
)


@needs_compiled
@given(st.lists(st.lists(PACKETS, max_size=4).map(b"".join), max_size=4))
def test_both_cores_do_the_same(reads: list[bytes]) -> None:
    """Whatever comes, and whatever of it others work off in between."""
    with a_bench(REFERENCE) as one, a_bench(COMPILED) as other:
        for data in filter(None, reads):
            told = []
            for bench in (one, other):
                left = [events for _, events in bench.serve(data)]
                sent, inlet = bench.subscriber.outlet.take(), bench.publisher.inlet
                found = inlet.step() if left else None
                run = inlet.qos0 if left else None
                told.append(
                    (left, sent, found, run and run.raw, bool(inlet.fault), bench.exchange.received)
                )
            assert told[0] == told[1]
