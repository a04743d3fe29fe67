"""
A TCP proxy in front of a node's link listener that counts the messages that pass, each way.

How it gets between: a node tells `advertise`:port of its `link` as its link address. So with the
link bound to 127.0.0.1 and 127.0.0.2 advertised, edges dial 127.0.0.2, where the proxy listens on
the same port. The control plane is bound to 127.0.0.2 itself. All of 127.0.0.0/8 is loopback on
Linux. Bytes pass unchanged. A message is a packet of type 3 in MQTT framing. The proxy counts it
before it passes the message on, so whoever has received it may look at the counts. Which edge is at
the other end says the Hello of each link.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from txbroker.v1.link_pb2 import LinkFrame

from .nodes import free_port, topology

LISTEN = "127.0.0.2"
TARGET = "127.0.0.1"

CONTROL, PUBLISH = 0, 3


def behind_proxy(node: str, **keys: Any) -> dict[str, Any]:
    """A topology document as `nodes.topology` makes it, for a node whose links pass a proxy."""
    addresses = {
        "grpc": f"{LISTEN}:{free_port(LISTEN)}",
        "link": f"{TARGET}:{free_port(TARGET)}",
        "advertise": LISTEN,
    }
    return topology(node, **addresses, **keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """A message that passed: `is_publish` from the edge to the owner, else a delivery."""

    owner: str
    edge: str
    is_publish: bool
    topic: str
    payload: bytes


class LinkProxy:
    """
    In front of the links of the node of `document` (see `behind_proxy`), which need not run yet.

    `passed` are the messages in the order in which they passed, `opened` counts the links.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self.owner = str(document["node"])
        self.passed: list[Passed] = []
        self.opened = 0
        self._port = int(document["link"].rpartition(":")[2])
        self._listener = socket.create_server((LISTEN, self._port))
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self._run(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """No more links, and those that are open end."""
        with self._lock:
            self._is_closed = True
            sockets = [self._listener, *self._sockets]
        for each in sockets:
            _hang_up(each)
        for thread in list(self._threads):
            thread.join(5.0)
        self._listener.close()

    # internal

    def _run(self, target: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                edge, _ = self._listener.accept()
            except OSError:
                return
            try:
                owner = socket.create_connection((TARGET, self._port), timeout=5)
            except OSError:
                edge.close()
                continue
            owner.settimeout(None)
            with self._lock:
                self.opened += 1
                self._sockets |= {edge, owner}
                if self._is_closed:
                    _hang_up(edge)
            link = _Link(self)
            self._run(self._pump, link, edge, owner, True)
            self._run(self._pump, link, owner, edge, False)

    def _pump(
        self, link: _Link, source: socket.socket, sink: socket.socket, is_publish: bool
    ) -> None:
        cut = _Frames()
        try:
            while data := source.recv(65_536):
                for kind, body in cut.feed(data):
                    link.saw(kind, body, is_publish)
                sink.sendall(data)
        except OSError:
            pass
        for each in (source, sink):
            _hang_up(each)
        # The other direction's thread still reads one of the two: only the last one closes.
        with self._lock:
            is_last = link.leave()
            if is_last:
                self._sockets -= {source, sink}
        if is_last:
            source.close()
            sink.close()


class _Link:
    """A link: who is its edge, and how many of its two threads still run."""

    def __init__(self, proxy: LinkProxy) -> None:
        self._proxy = proxy
        self._edge = ""
        self._running = 2

    def saw(self, kind: int, body: bytes, is_publish: bool) -> None:
        """Note a frame that is about to pass."""
        if kind == PUBLISH:
            size = int.from_bytes(body[1:3], "big")
            start = 3 + size + (2 if body[0] & 0x06 else 0)
            passed = Passed(
                owner=self._proxy.owner,
                edge=self._edge,
                is_publish=is_publish,
                topic=body[3 : 3 + size].decode(),
                payload=body[start:],
            )
            self._proxy.passed.append(passed)
        elif kind == CONTROL and not self._edge:
            frame = LinkFrame.FromString(body[1:])
            if frame.HasField("hello"):
                self._edge = frame.hello.edge

    def leave(self) -> bool:
        """Note that a direction has ended; True if it was the last."""
        self._running -= 1
        return not self._running


class _Frames:
    """Cuts MQTT framing: gives type, and first byte with body."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The frames that these bytes complete."""
        self._buffer += data
        while True:
            length, position = 0, 1
            while True:
                if len(self._buffer) <= position:
                    return
                digit = self._buffer[position]
                length |= (digit & 0x7F) << 7 * (position - 1)
                position += 1
                if digit < 0x80:
                    break
            if len(self._buffer) < position + length:
                return
            first = self._buffer[0]
            body = bytes([first]) + bytes(self._buffer[position : position + length])
            del self._buffer[: position + length]
            yield first >> 4, body


def _hang_up(each: socket.socket) -> None:
    """End both directions, which wakes whoever reads."""
    try:
        each.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
