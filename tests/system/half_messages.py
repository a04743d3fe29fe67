"""What a stranger does on a node's gRPC port with messages that never end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from tests.system.http2_attacks import (
    ACK,
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    SETTINGS,
    UPDATE,
    call,
    frame,
    talker,
)
from tests.system.innocents import Ports, Stranger

WHOLE: Final = 4 * 2**20 - 100
"""Bytes of a message, just below what gRPC refuses."""

INITIAL_WINDOW: Final = 4
"""The setting of HTTP/2 that tells how much a new stream may send."""

FRAME: Final = 16_384
STREAMS: Final = 10
"""Streams of one connection."""

CONNECTIONS: Final = 8

_EMPTY = bytes(5)
_MESSAGES = memoryview(_EMPTY + b"\0" + WHOLE.to_bytes(4) + bytes(WHOLE - 1))
"""A message without requests, and one without its last byte."""

_CALL = call(b"/txbroker.v1.Directory/AskMany")


class Talk:
    """A connection with streams of requests, which sends as much as the node allows."""

    def __init__(self, stranger: Stranger) -> None:
        self.stranger = stranger
        self._window = self._initial = 65_535
        self._received = b""
        self._windows: dict[int, int] = {}
        self._left: dict[int, memoryview] = {}

    def open(self, number: int) -> None:
        """Open a stream: an empty message, then one without its end."""
        self._send(frame(HEADERS, END_HEADERS, number, _CALL))
        self._windows[number] = self._initial
        self._left[number] = _MESSAGES

    def go_on(self) -> None:
        """Read what the node allows, and send that much."""
        self._read()
        for number, left in self._left.items():
            size = min(FRAME, self._window, self._windows[number], len(left))
            if size > 0:
                self._send(frame(DATA, 0, number, bytes(left[:size])))
                self._left[number] = left[size:]
                self._windows[number] -= size
                self._window -= size

    def _send(self, data: bytes) -> None:
        self.stranger.socket.setblocking(True)
        with suppress(OSError):
            self.stranger.socket.sendall(data)
        self.stranger.socket.setblocking(False)

    def _read(self) -> None:
        with suppress(OSError):
            while part := self.stranger.socket.recv(1 << 16):
                self._received += part
        while len(self._received) >= 9:
            size = int.from_bytes(self._received[:3])
            if len(self._received) < 9 + size:
                return
            kind, flags = self._received[3], self._received[4]
            number = int.from_bytes(self._received[5:9])
            payload = self._received[9 : 9 + size]
            self._received = self._received[9 + size :]
            self._process(kind, flags, number, payload)

    def _process(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == UPDATE and number:
            self._windows[number] += int.from_bytes(payload)
        elif kind == UPDATE:
            self._window += int.from_bytes(payload)
        elif kind == PING and not flags & ACK:
            self._send(frame(PING, ACK, payload=payload))
        elif kind == SETTINGS and not flags & ACK:
            for at in range(0, len(payload), 6):
                if int.from_bytes(payload[at : at + 2]) == INITIAL_WINDOW:
                    more = int.from_bytes(payload[at + 2 : at + 6]) - self._initial
                    self._initial += more
                    for known in self._windows:
                        self._windows[known] += more
            self._send(frame(SETTINGS, ACK))


def half_messages(ports: Ports) -> Iterator[None]:
    """All but the last byte of messages of 4 MiB, on more streams than a node serves."""
    talks = [Talk(talker(ports)) for _ in range(CONNECTIONS)]
    for talk in talks:
        for number in range(STREAMS):
            talk.open(2 * number + 1)
        yield
    while True:
        for talk in talks:
            talk.go_on()
            yield
