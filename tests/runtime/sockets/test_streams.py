"""Reads and writes of connections on the poller, over loopback sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from select import EPOLLIN, EPOLLOUT
from unittest import mock

import pytest
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost

from tests.runtime.sockets.stream_bench import MUCH, Carried, Peer, read_all, streams, watched
from tests.support.cluster import on_loop
from tests.support.mqttclient import until
from tests.support.vanished import vanish
from txbroker.runtime.sockets import poller, stream

# -- writing


@on_loop
async def test_bytes_leave_at_once() -> None:
    """Before the event loop is asked."""
    async with streams() as bench:
        client, peer = await bench.connect()
        with client:
            peer.transport.write(b"now")
            assert client.recv(10) == b"now"
            assert not bench.poller.getWriters()


@on_loop
async def test_what_the_kernel_does_not_take_waits() -> None:
    """In order; the producer is paused meanwhile; afterwards bytes leave at once again."""
    async with streams() as bench:
        client, peer = await bench.connect()
        with client:
            peer.transport.registerProducer(peer, True)
            for start in range(0, len(MUCH), 100_000):
                peer.transport.write(MUCH[start : start + 100_000])
            assert peer.events[0] == "pause"
            assert bench.poller.getWriters() == [peer.transport]

            received = bytearray()
            while len(received) < len(MUCH):
                received += await asyncio.to_thread(client.recv, 1 << 20)
            assert bytes(received) == MUCH
            assert peer.events[-1] == "resume"
            assert not bench.poller.getWriters()
            peer.transport.write(b"now")
            assert client.recv(10) == b"now"


@on_loop
async def test_what_is_pushed_waits_in_the_packet_writer() -> None:
    """There it counts; the producer is told when it has gone, and the end comes behind it."""
    async with streams() as bench:
        bench.make = lambda: Carried(bench.router)
        client, peer = await bench.connect()
        with client:
            packet_writer = peer.packet_writer  # type: ignore[attr-defined]
            peer.transport.registerProducer(peer, True)
            packet_writer.send(b"few")
            peer.transport.push()
            assert client.recv(10) == b"few"
            assert packet_writer.descriptor >= 0 and not peer.events

            packet_writer.send(MUCH)
            peer.transport.push()
            left, unread = packet_writer.size, peer.transport.unread()
            assert 0 < left < len(MUCH) and packet_writer.descriptor < 0
            assert peer.events == ["pause"]
            packet_writer.send(b"more")
            peer.transport.push()
            assert packet_writer.size == left + 4

            received = bytearray()
            while len(received) < len(MUCH) + 4:
                received += await asyncio.to_thread(client.recv, 1 << 20)
            assert bytes(received) == MUCH + b"more"
            await until(lambda: peer.events == ["pause", "resume"])
            assert packet_writer.descriptor >= 0 and peer.transport.unread() < unread

            packet_writer.send(MUCH)
            peer.transport.push()
            peer.transport.loseConnection()
            assert packet_writer.size
            assert await read_all(client) == MUCH
            await until(lambda: peer.reason is ConnectionDone)


@on_loop
async def test_loose_connection_sends_what_waits() -> None:
    """The end comes behind it."""
    async with streams() as bench:
        client, peer = await bench.connect()
        with client:
            peer.transport.write(MUCH)
            peer.transport.loseConnection()
            assert await read_all(client) == MUCH
            await until(lambda: peer.reason is ConnectionDone)


@on_loop
async def test_abort_sends_nothing_more() -> None:
    """Not what waits, and not what is written afterwards."""
    async with streams() as bench:
        client, peer = await bench.connect()
        with client:
            peer.transport.abortConnection()
            peer.transport.write(b"late")
            with pytest.raises(ConnectionResetError):
                await read_all(client)
            await until(lambda: peer.reason is ConnectionAborted)
            peer.transport.write(b"later")
            peer.transport.pauseProducing()


@on_loop
async def test_a_lost_connection_is_told_once_it_is_met() -> None:
    """By a write to it: not from within `write`, but soon."""
    async with streams() as bench:
        client, peer = await bench.connect()
        peer.transport.pauseProducing()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        peer.transport.write(b"x")
        assert peer.reason is None
        await until(lambda: peer.reason is ConnectionLost)


# -- reading


@on_loop
async def test_end_of_input_closes() -> None:
    """What came before it is read."""
    async with streams() as bench:
        client, peer = await bench.connect()
        with client:
            client.sendall(b"last words")
            client.shutdown(socket.SHUT_WR)
            await until(lambda: peer.reason is ConnectionDone)
            assert peer.received == b"last words"


@on_loop
async def test_a_peer_that_vanished_is_asked_for_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """MQTT asks nothing of a client without keep-alive; here the kernel asks soon."""
    for name in ("SILENT_FOR", "ASKED_EACH", "ASKED"):
        monkeypatch.setattr(stream, name, 1)
    async with streams() as bench:
        client, gone = await bench.connect()
        other, alive = await bench.connect()
        with client, other:
            vanish(client)
            await until(lambda: gone.reason is not None)
            other.sendall(b"alive")
            await until(lambda: alive.received == b"alive")

    assert gone.reason is ConnectionLost


@on_loop
async def test_a_peer_is_asked_after_minutes_of_silence() -> None:
    """The kernel's own two hours are too long; a client that saves its battery is not woken."""
    async with streams() as bench:
        client, peer = await bench.connect()
        with client, socket.socket(fileno=os.dup(peer.transport.fileno())) as accepted:
            found = [
                accepted.getsockopt(level, option)
                for level, option in (
                    (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
                    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
                    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
                )
            ]

    assert [1, 600, 60, 5] == found


@on_loop
async def test_a_paused_connection_is_not_read() -> None:
    """And does not keep the loop busy, even when the other end is gone."""
    async with streams() as bench:
        client, peer = await bench.connect()
        peer.transport.pauseProducing()
        client.sendall(b"x")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        other, awake = await bench.connect()
        with other, mock.patch.object(bench.turn, "share", wraps=bench.turn.share) as share:
            client.close()
            for number in range(10):
                other.sendall(b"%d" % number)
                await until(lambda n=number: awake.received.endswith(b"%d" % n))
            assert share.call_count <= 10
            assert (peer.received, peer.reason) == (b"", None)
            peer.transport.resumeProducing()
            await until(lambda: peer.reason is not None)


@on_loop
async def test_a_pause_in_which_nothing_comes_costs_no_system_call() -> None:
    """The epoll is told by the first byte that comes in a pause, and only once."""
    async with streams() as bench:
        client, peer = await bench.connect()
        poller = bench.poller
        with client, watched(poller) as epoll:
            for sent in (b"a", b"b"):
                peer.transport.pauseProducing()
                assert peer.transport not in poller.getReaders()
                peer.transport.resumeProducing()
                client.sendall(sent)
                await until(lambda sent=sent: peer.received.endswith(sent))
            assert not epoll.unregister.called and not epoll.modify.called

            peer.transport.pauseProducing()
            client.sendall(b"c")
            await until(lambda: epoll.unregister.called)
            client.sendall(b"d")
            peer.transport.resumeProducing()
            await until(lambda: peer.received == b"abcd")
            assert (epoll.unregister.call_count, epoll.register.call_count) == (1, 1)


@on_loop
async def test_what_comes_in_a_pause_keeps_no_writer_busy() -> None:
    async with streams() as bench:
        client, peer = await bench.connect()
        poller = bench.poller
        with client, watched(poller) as epoll:
            peer.transport.write(MUCH)
            assert poller.getWriters() == [peer.transport]
            peer.transport.pauseProducing()
            client.sendall(b"a")
            only_written = mock.call(peer.transport.fileno(), EPOLLOUT)
            await until(lambda: only_written in epoll.modify.mock_calls)
            received = 0
            while received < len(MUCH):
                received += len(await asyncio.to_thread(client.recv, 1 << 20))
            await until(lambda: not poller.getWriters())
            assert peer.received == b""
            peer.transport.resumeProducing()
            await until(lambda: peer.received == b"a")


# -- batches


@on_loop
async def test_one_turn_for_all_that_are_ready() -> None:
    """However often each of them ends it."""
    async with streams() as bench:
        flushed = []

        class End:
            def flush(self) -> None:
                flushed.append([peer.received for peer in bench.peers])

        end = End()

        def receive(data: bytes) -> None:
            bench.turn.mark_dirty(end)
            bench.turn.end()

        clients = [(await bench.connect())[0] for _ in range(5)]
        for peer in bench.peers:
            peer.on_data = receive
        for client in clients:
            client.sendall(b"x")
        await until(lambda: all(peer.received for peer in bench.peers))
        assert flushed == [[b"x"] * 5]
        for client in clients:
            client.close()


@on_loop
async def test_an_event_of_the_loop_alone_is_no_turn_of_the_node() -> None:
    """A thread that is done costs no round through the node."""
    async with streams() as bench:
        with mock.patch.object(bench.turn, "share", wraps=bench.turn.share) as turns:
            for _ in range(5):
                await asyncio.to_thread(os.getpid)
            assert not turns.called

            client, _ = await bench.connect()
            assert turns.called
        client.close()


@pytest.mark.parametrize("has_postponed", [False, True])
@on_loop
async def test_what_was_postponed_leaves_with_an_event_of_the_loop(has_postponed: bool) -> None:
    """Otherwise output would wait for the next bytes of some client."""
    async with streams() as bench:
        others = [(bench.poller._selector.number, EPOLLIN)]
        sockets = mock.Mock(has_postponed=has_postponed)
        sockets.wait.return_value = others
        with mock.patch.object(bench.poller, "sockets", sockets):
            assert bench.poller._wait(0.0)

        assert has_postponed == sockets.notify_output.called


@on_loop
async def test_what_was_said_before_the_accept_is_read_with_it() -> None:
    """Whoever connects and says who it is has its answer one round of the loop earlier."""
    async with streams() as bench:
        rounds: list[list[bytes]] = []

        class Rounds:
            def flush(self) -> None:
                rounds.append([peer.received for peer in bench.peers])

        def make() -> Peer:
            bench.turn.mark_dirty(Rounds())
            return Carried(bench.router)

        bench.make = make
        with socket.create_connection(("127.0.0.1", bench.port.getHost().port)) as client:
            client.sendall(b"\x10\5hello")
            await until(lambda: bool(rounds))

            assert [[b"hello"]] == rounds


@on_loop
async def test_an_error_in_the_first_read_is_not_of_the_others() -> None:
    """Its connection is closed; who comes behind it is served."""
    async with streams() as bench:
        bench.make = lambda: Carried(bench.router)
        with mock.patch.object(Peer, "dataReceived", side_effect=[KeyError("x"), None]) as received:
            clients = []
            for _ in range(2):
                clients.append(
                    socket.create_connection(("127.0.0.1", bench.port.getHost().port), timeout=10)
                )
                clients[-1].sendall(b"\x10\5hello")
            await until(lambda: received.call_count == 2)
            await until(lambda: bench.peers[0].reason is KeyError)

        assert b"" == await read_all(clients[0])
        assert bench.peers[1].reason is None
        for client in clients:
            client.close()


@on_loop
async def test_an_error_of_one_is_not_of_the_others() -> None:
    """It is logged; its connection is closed."""
    async with streams() as bench:
        clients = [(await bench.connect())[0] for _ in range(3)]

        def fail(data: bytes) -> None:
            raise RuntimeError("a mistake")

        bench.peers[0].on_data = fail
        with mock.patch("txbroker.runtime.sockets.poller.log") as log:
            for client in clients:
                client.sendall(b"x")
            await until(lambda: all(peer.received for peer in bench.peers))
            await until(lambda: bench.peers[0].reason is RuntimeError)
        log.exception.assert_called_once_with("stream.failed")
        assert [None, None] == [peer.reason for peer in bench.peers[1:]]
        for client in clients:
            client.close()


@on_loop
async def test_a_batch_is_bounded() -> None:
    """Others have their turn before all connections have been served."""
    async with streams() as bench:
        loop = asyncio.get_running_loop()
        clients = [(await bench.connect())[0] for _ in range(150)]
        served_at_tick: list[int] = []

        def served() -> int:
            return sum(bool(peer.received) for peer in bench.peers)

        def receive(data: bytes) -> None:
            loop.call_soon(lambda: served_at_tick.append(served()))

        for peer in bench.peers:
            peer.on_data = receive
        with mock.patch.object(poller, "SERVE_FOR", 0.0001):
            for client in clients:
                client.sendall(b"x")
            await until(lambda: served() == len(clients))
        assert served_at_tick[0] < len(clients)
        for client in clients:
            client.close()
