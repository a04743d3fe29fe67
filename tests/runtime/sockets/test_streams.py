"""Connections on the poller, over loopback sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from select import EPOLLIN, EPOLLOUT
from typing import Any
from unittest import mock

import attrs
import pytest
from twisted.internet.endpoints import HostnameEndpoint, serverFromString
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.protocol import Factory, Protocol
from twisted.python.failure import Failure

from tests.support.cluster import on_loop
from tests.support.mqttclient import until
from tests.support.vanished import vanish
from txbroker.core import Router
from txbroker.core.reference.router import HURRIED_BYTES
from txbroker.runtime import hooks
from txbroker.runtime.flush_queue import Flushable, FlushQueue
from txbroker.runtime.rotation import Rotation
from txbroker.runtime.sockets import poller, stream
from txbroker.runtime.sockets.accepted import GONE, has_left
from txbroker.runtime.sockets.poller import Poller, SocketOutputs
from txbroker.runtime.sockets.reactor import StreamReactor

MUCH = bytes(range(256)) * (32 * 1024)  # 8 MiB


class Peer(Protocol):
    """The node's end of a connection; `on_data` may be replaced."""

    transport: Any

    def __init__(self) -> None:
        self.received = b""
        self.reason: type[Exception] | None = None
        self.events: list[str] = []
        self.on_data: Callable[[bytes], None] = lambda data: None

    def dataReceived(self, data: bytes) -> None:
        self.received += data
        self.on_data(data)

    def connectionLost(self, reason: Failure | None = None) -> None:
        assert reason is not None
        self.reason = reason.type

    def pauseProducing(self) -> None:
        self.events.append("pause")

    def resumeProducing(self) -> None:
        self.events.append("resume")

    def stopProducing(self) -> None:
        self.events.append("stop")


class Carried(Peer):
    """One whose input is a packet reader's, as clients' and links' are."""

    def __init__(self, router: Router) -> None:
        super().__init__()
        self.packet_writer = router.make_packet_writer()
        self.packet_writer.connection = self
        self.packet_reader = router.make_packet_reader(self.packet_writer, 1000)

    def connectionMade(self) -> None:
        self.transport.carry(self.packet_reader, self.packet_writer)

    def on_input(self) -> None:
        frame = self.packet_reader.step()
        if frame is not None:
            self.dataReceived(frame[1])


@attrs.define
class Bench:
    """A listening socket on a poller, and the connections that were made to it."""

    poller: Poller
    reactor: StreamReactor
    router: Router
    turn: FlushQueue
    port: Any
    peers: list[Peer] = attrs.field(factory=list)
    make: Callable[[], Peer] = Peer

    def dial(self, source: str = "127.0.0.1") -> socket.socket:
        """The client's end of a connection from this host."""
        address = ("127.0.0.1", self.port.getHost().port)
        return socket.create_connection(address, 10, (source, 0))

    async def connect(self) -> tuple[socket.socket, Peer]:
        """One more: the client's end, which blocks, and the node's."""
        known = len(self.peers)
        client = socket.create_connection(("127.0.0.1", self.port.getHost().port), timeout=10)
        await until(lambda: len(self.peers) > known)
        return client, self.peers[-1]


@asynccontextmanager
async def streams() -> AsyncIterator[Bench]:
    """A bench; it is closed at the end."""
    from twisted.internet import reactor

    loop = asyncio.get_running_loop()
    flush_queue = FlushQueue(loop.call_soon)
    router = Router(lambda: None)
    poller = Poller(reactor.seconds, flush_queue, router.make_sockets())
    bench = Bench(poller, StreamReactor(reactor, poller), router, flush_queue, None)

    class Peers(Factory):
        noisy = False

        def buildProtocol(self, addr: object) -> Peer:
            bench.peers.append(bench.make())
            return bench.peers[-1]

    endpoint = serverFromString(bench.reactor, "tcp:0:interface=127.0.0.1")
    bench.port = await endpoint.listen(Peers()).asFuture(loop)
    try:
        yield bench
    finally:
        await bench.port.stopListening().asFuture(loop)
        poller.close()


async def read_all(client: socket.socket) -> bytes:
    """What comes until the other end closes."""

    def read() -> bytes:
        parts = []
        while part := client.recv(65536):
            parts.append(part)
        return b"".join(parts)

    return await asyncio.to_thread(read)


def watched(poller: Poller) -> Any:
    """The calls of the poller's epoll, while the block runs."""
    return mock.patch.object(poller, "_epoll", wraps=poller._epoll, closed=False)


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


# -- accepting, dialing, the end


@on_loop
async def test_accepting_pauses_when_it_fails() -> None:
    """It is told once; who waited is accepted afterwards."""
    async with streams() as bench:
        failing = mock.Mock(side_effect=OSError(24, "Too many open files"))
        with (
            mock.patch.object(stream, "ACCEPT_PAUSE", 0.05),
            mock.patch.object(stream, "log") as log,
        ):
            address = ("127.0.0.1", bench.port.getHost().port)
            with mock.patch.object(stream, "accept", failing):
                client = socket.create_connection(address, timeout=10)
                start = time.process_time()
                await until(lambda: failing.call_count == 3)
                assert time.process_time() - start < 0.1
                assert not bench.peers
            with client:
                await until(lambda: len(bench.peers) == 1)
        log.warning.assert_called_once()


@on_loop
async def test_an_error_in_accepting_leaves_the_socket_open() -> None:
    """The next connection is accepted."""
    async with streams() as bench:
        with (
            mock.patch.object(stream, "log") as log,
            mock.patch.object(bench.port.factory, "buildProtocol", side_effect=RuntimeError),
            socket.create_connection(("127.0.0.1", bench.port.getHost().port)) as client,
        ):
            assert await read_all(client) == b""
        log.exception.assert_called_once_with("stream.failed")
        client, _ = await bench.connect()
        client.close()


@on_loop
async def test_whom_nobody_wants_is_accepted_beside_the_others() -> None:
    """Those leave room in the backlog for whoever comes behind a crowd of them."""
    async with streams() as bench:
        address = ("127.0.0.1", bench.port.getHost().port)
        bench.port._drops = has_left
        left = stream.CROWD + 8
        crowd = [socket.create_connection(address, timeout=10) for _ in range(left)]
        for client in crowd:
            client.close()
        with (
            mock.patch.object(stream, "ACCEPT_FOR", 10.0),
            socket.create_connection(address, timeout=10) as client,
        ):
            client.sendall(b"here")
            await until(lambda: any(peer.received == b"here" for peer in bench.peers))
            assert stream.CROWD == len(bench.peers)


@on_loop
async def test_few_who_are_put_off_wait_at_the_port() -> None:
    """Until there is time for them, each with what it has said meanwhile."""
    async with streams() as bench:
        bench.port._puts_off = lambda: len(bench.peers) == 1
        crowd = [bench.dial() for _ in range(3)]
        for client in crowd:
            client.sendall(b"here")
        bench.port.doRead()
        bench.port.doRead()
        assert 1 == len(bench.peers)

        bench.port._puts_off = lambda: False
        await until(lambda: [peer.received for peer in bench.peers] == 3 * [b"here"])
        for client in crowd:
            client.close()


@on_loop
async def test_a_crowd_that_is_put_off_waits_at_the_port() -> None:
    """The node has no time for it, and no memory for its connections."""
    async with streams() as bench:
        bench.port._puts_off = lambda: True
        crowd = [bench.dial() for _ in range(stream.CROWD + 8)]
        await until(lambda: len(bench.port._waiting) == len(crowd))
        assert not bench.peers
        bench.port._puts_off = lambda: False
        await until(lambda: len(bench.peers) == len(crowd))
        for client in crowd:
            client.close()


@on_loop
async def test_time_spent_on_newcomers_is_charged() -> None:
    """What is not charged makes the turn of all others long."""
    async with streams() as bench:
        charged: list[float] = []
        bench.port._charge = charged.append
        bench.port._puts_off = lambda: len(charged) % 3 == 2
        crowd = [bench.dial() for _ in range(6)]
        bench.port.doRead()
        assert 2 == len(charged) == len(bench.peers)
        assert all(seconds > 0 for seconds in charged)
        for client in crowd:
            client.close()


@on_loop
async def test_hosts_take_turns() -> None:
    """Whoever comes from elsewhere waits for one of a crowd, not for all of it."""
    async with streams() as bench:
        bench.port._puts_off = lambda: True
        crowd = [bench.dial() for _ in range(10)]
        other = bench.dial("127.0.0.2")
        bench.port.doRead()
        bench.port._puts_off = lambda: len(bench.peers) == 2
        await until(lambda: len(bench.peers) == 2)
        hosts = [peer.transport.getPeer().host for peer in bench.peers]
        assert ["127.0.0.1", "127.0.0.2"] == hosts
        for client in (*crowd, other):
            client.close()


@on_loop
async def test_accepts_of_a_turn_have_an_end() -> None:
    """The others are accepted in the turns that follow."""
    async with streams() as bench:
        bench.port._puts_off = lambda: True
        with mock.patch.object(stream, "ACCEPT_FOR", 0.0):
            crowd = [bench.dial() for _ in range(3)]
            bench.port.doRead()
            assert 1 == len(bench.port._waiting)
            await until(lambda: len(bench.port._waiting) == 3)
        for client in crowd:
            client.close()


@on_loop
async def test_a_crowd_does_not_take_the_last_files() -> None:
    """Its newest connections are closed; whoever comes from elsewhere is accepted."""
    async with streams() as bench:
        bench.port._puts_off = lambda: True
        crowd = [bench.dial() for _ in range(6)]
        await until(lambda: len(bench.port._waiting) == len(crowd))
        with (
            mock.patch.object(stream, "ceiling", return_value=0),
            mock.patch.object(stream, "SPARED", 3),
        ):
            other = bench.dial("127.0.0.2")
            assert b"" == await read_all(crowd[-1])
        assert [5, 1] == [len(queue) for queue in bench.port._waiting._queues.values()]
        for client in (*crowd, other):
            client.close()


@on_loop
async def test_a_port_that_is_short_of_files_takes_no_more() -> None:
    """Nor when its pause is over: one at a time they would take what is the store's."""
    async with streams() as bench:
        bench.port._puts_off = lambda: True
        crowd = [bench.dial() for _ in range(3)]
        taken = []
        with mock.patch.object(stream, "ceiling", return_value=0):
            for _ in range(2):
                bench.port.doRead()
                taken.append(bench.port._waiting.count)
        bench.port.doRead()
        taken.append(bench.port._waiting.count)
        for client in crowd:
            client.close()
    assert [1, 1, 3] == taken


@on_loop
async def test_who_waits_at_a_port_that_closes_is_closed() -> None:
    """Nobody else knows of the connection, which would stay open for ever."""
    async with streams() as bench:
        bench.port._puts_off = lambda: True
        client = bench.dial()
        bench.port.doRead()
    assert b"" == await read_all(client)
    client.close()


@on_loop
async def test_dialed_connections() -> None:
    """They are watched by the poller, too, and written at once."""
    async with streams() as bench:
        loop = asyncio.get_running_loop()
        endpoint = HostnameEndpoint(bench.reactor, "127.0.0.1", bench.port.getHost().port)
        dialed = await endpoint.connect(Factory.forProtocol(Peer)).asFuture(loop)
        await until(lambda: len(bench.peers) == 1)
        assert dialed.transport in bench.poller.getReaders()
        dialed.transport.write(b"hello")
        await until(lambda: bench.peers[0].received == b"hello")
        dialed.transport.loseConnection()
        await until(lambda: bench.peers[0].reason is ConnectionDone)


@on_loop
async def test_close_ends_all() -> None:
    """Whoever is connected still."""
    async with streams() as bench:
        client, peer = await bench.connect()
    assert peer.reason is ConnectionLost
    with client:
        assert client.recv(1) == b""


@on_loop
async def test_who_has_left_has_an_address_that_says_so() -> None:
    """A log line about a client that is gone must not fail."""
    async with streams() as bench:
        client, peer = await bench.connect()
        assert client.getsockname()[1] == peer.transport.getPeer().port
        transport = peer.transport
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        await until(lambda: peer.reason is not None)

        assert GONE == transport.getPeer()


@on_loop
async def test_a_packet_writer_is_never_written_to_a_later_connection() -> None:
    """Its socket's number is given to the next connection that comes."""
    async with streams() as bench:
        router = Router(lambda: None)
        packet_writer = router.make_packet_writer()
        client, peer = await bench.connect()
        peer.transport.carry(router.make_packet_reader(packet_writer, 100), packet_writer)
        number = peer.transport.fileno()
        client.close()
        await until(lambda: peer.reason is not None)
        later, other = await bench.connect()
        packet_writer.send(b"secret")

        assert number == other.transport.fileno()
        assert [packet_writer] == router.send_outputs()
        other.transport.write(b"hello")
        assert b"hello" == later.recv(100)
        later.close()


def test_a_crowd_waits_for_further_turns_where_turns_must_be_short() -> None:
    """All ends of one turn write as much as one would; the rest begins anew in the next."""
    later: list[Flushable] = []
    outputs = SocketOutputs(later.append)
    router = outputs.router = Router(lambda: None)
    written = []
    with ExitStack() as stack:
        crowd = []
        for _ in range(8):
            here, there = (stack.enter_context(one) for one in socket.socketpair())
            here.setblocking(False)
            here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * HURRIED_BYTES)
            packet_writer = router.make_packet_writer()
            packet_writer.descriptor = here.fileno()
            packet_writer.send(bytes(HURRIED_BYTES // 4))
            crowd.append(packet_writer)
        outputs.is_short = True
        outputs.flush()
        while later:
            for _ in range(4):
                outputs.flush()
            written.append(sum(one.written for one in crowd))
            turn = set(later)
            later.clear()
            for one in turn:
                one.flush()
    assert HURRIED_BYTES <= written[0] <= 5 * HURRIED_BYTES // 4
    assert 2 * HURRIED_BYTES == sum(one.written for one in crowd)


def test_a_port_that_cannot_go_on_ends_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be closed, with a line in the log, and the node live on without it."""
    ended: list[str] = []
    monkeypatch.setattr(hooks, "_ends", [lambda: ended.append("ended")])
    monkeypatch.setattr(stream, "ceiling", lambda: 1 / 0)
    port = stream.StreamPort.__new__(stream.StreamPort)
    port._waiting = Rotation()
    port.doRead()
    assert ["ended"] == ended
