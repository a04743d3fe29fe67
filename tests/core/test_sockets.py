"""What is done at once with what comes from the sockets of clients."""

from __future__ import annotations

import socket
import time
from select import EPOLLHUP, EPOLLIN, EPOLLOUT
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.cores import COMPILED, REFERENCE, Client, both, needs_compiled, publish
from tests.core.socket_bench import WAY, a_bench, a_link, header, held
from txbroker.core import FED
from txbroker.core.reference.packet_writer import HIGH_MARK


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
