"""Benches whose bytes come from real sockets: of a client, and of a link."""

from __future__ import annotations

import fcntl
import socket
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from select import EPOLLIN, epoll
from typing import Any

from tests.core.cores import Client, publish
from txbroker.core import FED
from txbroker.core.reference.packets import encode_length

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


def held(end: socket.socket) -> int:
    """Bytes that may be read there."""
    return int.from_bytes(fcntl.ioctl(end, termios.FIONREAD, bytes(4)), sys.byteorder)
