"""A listening socket on a poller, and connections to it over loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

import attrs
from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Factory, Protocol
from twisted.python.failure import Failure

from tests.support.mqttclient import until
from txbroker.core import Router
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.runtime.sockets import stream
from txbroker.runtime.sockets.poller import Poller
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
    """A bench whose port accepts all in one turn, also on a busy machine."""
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
        with mock.patch.object(stream, "ACCEPT_FOR", 10.0):
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
