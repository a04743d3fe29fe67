"""How much is read of each client: less of one that takes long."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, suppress
from select import EPOLLIN
from typing import Any

from tests.core.cores import COMPILED, Client, needs_compiled, publish
from tests.core.socket_bench import Bench, a_bench, held


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


@needs_compiled
def test_what_one_used_while_nobody_waited_is_forgotten() -> None:
    """Else a crowd of new ones is read before it until each of them has used as much."""
    crowd = 20

    def leave(run: Any, left: list[Any]) -> None:
        who.append(run.clients[0])
        time.sleep(pace)

    who: list[str] = []
    pace = 0.001
    with ExitStack() as stack:
        bench = stack.enter_context(a_bench(COMPILED))
        bench.sockets.wire_zone(bench.ask, leave, bench.find)
        bench.target.is_plain = False
        for _ in range(100):
            bench.wait(publish(b"a", b"x"))
        pace = 0.05  # longer than all reads of a turn together may take
        bench.wait(publish(b"a", b"x"))
        pace = 0.001
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
