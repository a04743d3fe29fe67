"""Connections that are accepted and dialed on the poller, and their end."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from contextlib import ExitStack
from unittest import mock

import pytest
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.protocol import Factory

from tests.core.cores import needs_compiled
from tests.runtime.sockets.stream_bench import Peer, read_all, streams
from tests.support.cluster import on_loop
from tests.support.mqttclient import until
from txbroker.core import Router
from txbroker.core.reference.router import HURRIED_BYTES
from txbroker.runtime import hooks
from txbroker.runtime.flush_queue import Flushable
from txbroker.runtime.rotation import Rotation
from txbroker.runtime.sockets import stream
from txbroker.runtime.sockets.accepted import GONE, has_left
from txbroker.runtime.sockets.poller import SocketOutputs


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
        with socket.create_connection(address, timeout=10) as client:
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


@needs_compiled
def test_one_client_gets_little_at_once_where_turns_must_be_short() -> None:
    """2 MiB to a client that had read nothing took 9 ms; all others waited."""
    router = Router(lambda: None)
    with ExitStack() as stack:
        here, _ = (stack.enter_context(one) for one in socket.socketpair())
        here.setblocking(False)
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * HURRIED_BYTES)
        packet_writer = router.make_packet_writer()
        packet_writer.descriptor = here.fileno()
        packet_writer.send(bytes(4 * HURRIED_BYTES))
        router.hurry(True)
        assert [] == router.send_outputs()
        assert router.has_outputs
        assert HURRIED_BYTES // 2 == packet_writer.written
        router.hurry(False)
        router.send_outputs()
        assert HURRIED_BYTES // 2 < packet_writer.written


def test_a_port_that_cannot_go_on_ends_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be closed, with a line in the log, and the node live on without it."""
    ended: list[str] = []
    monkeypatch.setattr(hooks, "_ends", [lambda: ended.append("ended")])
    monkeypatch.setattr(stream, "ceiling", lambda: 1 / 0)
    port = stream.StreamPort.__new__(stream.StreamPort)
    port._waiting = Rotation()
    port.doRead()
    assert ["ended"] == ended
