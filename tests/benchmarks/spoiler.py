"""
A broker for one filter of each subscriber at QoS 0 that does something wrong with its messages.

Every connection has a thread. The last subscriber gets all packets, or each the next (`in_turn`).
`spoil(count, packet)` is asked for each PUBLISH that is no probe, counted from 0, and returns the
packets that are delivered in its place.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator

from benchmarks.client import length

Spoil = Callable[[int, bytes], list[bytes]]

PROBE = b"\xff\xff\xff\xff"


class Spoiler:
    """Listens on `port` until it is closed."""

    def __init__(self, spoil: Spoil, *, level: int = 4, in_turn: bool = False) -> None:
        self._spoil = spoil
        self._count = 0
        self._no_properties = b"" if level < 5 else b"\0"
        self._in_turn = in_turn
        self._subscribers: deque[socket.socket] = deque()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop listening; connections end with their clients."""
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            for first, body in packets(sock):
                if first >> 4 == 1:
                    rest = b"\x00\x00" + self._no_properties
                    sock.sendall(b"\x20" + length(len(rest)) + rest)
                elif first >> 4 == 8:
                    self._subscribers.append(sock)
                    rest = body[:2] + self._no_properties + b"\x00"
                    sock.sendall(b"\x90" + length(len(rest)) + rest)
                elif first >> 4 == 3:
                    self._deliver(bytes([first]) + length(len(body)) + body, body)

    def _deliver(self, packet: bytes, body: bytes) -> None:
        payload = body[2 + int.from_bytes(body[:2]) :]
        chosen = [packet]
        if payload[:4] != PROBE:
            chosen = self._spoil(self._count, packet)
            self._count += 1
        for one in chosen:
            if self._in_turn:
                self._subscribers.rotate(1)
            self._subscribers[-1].sendall(one)


def packets(sock: socket.socket) -> Iterator[tuple[int, bytes]]:
    """First byte and body of each packet until the other side closes."""
    with sock.makefile("rb") as stream:
        while head := stream.read(1):
            size = shift = 0
            while (digit := stream.read(1)[0]) > 127:
                size |= (digit & 127) << shift
                shift += 7
            yield head[0], stream.read(size | digit << shift)


def number_of(packet: bytes) -> int:
    """The number that a PUBLISH has in its stream; for packets shorter than 130 bytes."""
    topic = int.from_bytes(packet[2:4])
    number: int = struct.unpack_from("<I", packet, 4 + topic + 4)[0]
    return number
