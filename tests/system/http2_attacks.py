"""What strangers do on the link and gRPC ports below the calls: frames, streams and tokens."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

import grpc

from tests.system.call_attacks import fill, open_link
from tests.system.innocents import Ports, Stranger, sent
from txbroker.v1 import control_pb2, journal_pb2
from txbroker.v1.control_pb2_grpc import ControlStub
from txbroker.v1.journal_pb2_grpc import JournalStub

Attack = Callable[[Ports], Iterator[None]]

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, RESET, SETTINGS, PING, UPDATE, CONTINUATION = 0x0, 0x1, 0x3, 0x4, 0x6, 0x8, 0x9
ACK: Final = 0x1
END_HEADERS: Final = 0x4
END_STREAM: Final = 0x1

_open: Final[list[Stranger]] = []
_begun: Final[list[tuple[grpc.Channel, object]]] = []
"""What stays open until the end."""


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def field(name: bytes, value: bytes) -> bytes:
    """A header that no table has, as HPACK writes it."""
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value


def call(path: bytes) -> bytes:
    """The headers of a call."""
    return b"".join(
        field(name, value)
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path),
            (b":authority", b"node"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        )
    )


CALL: Final = call(b"/txbroker.v1.Control/Status")
"""The headers of a call that every node answers."""


def talker(ports: Ports) -> Stranger:
    """A connection that has begun HTTP/2."""
    made = Stranger.to(ports.grpc)
    made.send(PREFACE + frame(SETTINGS))
    return made


def frames(ports: Ports, *, one: bytes, reads: bool) -> Iterator[None]:
    """The same frame again and again, on a few connections."""
    packets = one * (65_536 // len(one))
    strangers = [talker(ports) for _ in range(8)]
    while True:
        for place, stranger in enumerate(strangers):
            if stranger.is_closed:
                stranger.close()
                strangers[place] = stranger = talker(ports)
            stranger.send(packets)
            if reads:
                stranger.read()
        yield


def calls(ports: Ports, *, ends: bytes) -> Iterator[None]:
    """Calls that begin, each on a stream of its own, and go on with `ends` of that stream."""

    def packets() -> Iterator[bytes]:
        for first in itertools.count(1, 400):
            yield b"".join(
                frame(HEADERS, END_HEADERS, stream, CALL)
                + (frame(ends[0], 0, stream, ends[1:]) if ends else b"")
                for stream in range(first, first + 400, 2)
            )

    sources = [packets() for _ in range(8)]
    strangers = [talker(ports) for _ in sources]
    while True:
        for place, stranger in enumerate(strangers):
            if stranger.is_closed:
                stranger.close()
                strangers[place], sources[place] = talker(ports), packets()
            strangers[place].send(next(sources[place]))
            strangers[place].read()
        yield


def slow_headers(ports: Ports) -> Iterator[None]:
    """A thousand connections whose call's headers come byte by byte and never end."""
    while len(_open) < 1_000:
        stranger = talker(ports)
        stranger.send(frame(HEADERS, 0, 1, CALL[:20]))
        _open.append(stranger)
        yield
    while True:
        for stranger in _open:
            stranger.send(frame(CONTINUATION, 0, 1, b"\0"))
            stranger.read()
            yield


def long_headers(ports: Ports, *, fields: int) -> Iterator[None]:
    """Headers that go on without end, so many fields in a frame."""
    more = frame(CONTINUATION, 0, 1, field(b"x" * 100, b"y" * 100) * fields) * (60 // fields)
    while True:
        strangers = [talker(ports) for _ in range(8)]
        for stranger in strangers:
            stranger.send(frame(HEADERS, 0, 1, CALL))
        for _ in range(200):
            for stranger in strangers:
                stranger.send(more)
                stranger.read()
            yield
        for stranger in strangers:
            stranger.close()


def unread_streams(ports: Ports) -> Iterator[None]:
    """Calls whose answers are long streams, of which nothing is read."""
    fill(ports.mqtt, 20_000, 500)
    target = f"{ports.grpc[0]}:{ports.grpc[1]}"
    while True:
        for _ in range(20):
            with suppress(grpc.RpcError):
                channel = grpc.insecure_channel(
                    target, options=[("grpc.use_local_subchannel_pool", 1)]
                )
                request = journal_pb2.RecordsRequest(zone="", epoch=1, start=0)
                begun = [JournalStub(channel).Records(request) for _ in range(50)]
                _begun.append((channel, begun))
            yield
        time.sleep(0.5)
        if len(_begun) >= 100:
            for channel, _ in _begun:
                channel.close()
            _begun.clear()


def waiting_streams(ports: Ports) -> Iterator[None]:
    """Joins that are begun, and say nothing."""
    target = f"{ports.grpc[0]}:{ports.grpc[1]}"

    def nothing() -> Iterator[control_pb2.JoinRequest]:
        time.sleep(3600)
        yield control_pb2.JoinRequest()

    for _ in range(40):
        channel = grpc.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)])
        _begun.append((channel, [ControlStub(channel).Join(nothing()) for _ in range(25)]))
        yield
    while True:
        time.sleep(0.05)
        yield


def tokens(ports: Ports) -> Iterator[None]:
    """Tokens for links that nobody opens, and connections to the link port that say nothing."""
    target = f"{ports.grpc[0]}:{ports.grpc[1]}"
    channels = [
        grpc.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(4)
    ]
    silent: list[Stranger] = []
    for number in itertools.count():
        with suppress(grpc.RpcError):
            open_link(channels[number % 4], number)
        with suppress(OSError):
            silent.append(Stranger.to(ports.link))
        if len(silent) > 2_000:
            silent.pop(0).close()
        yield


def half_open_links(ports: Ports) -> Iterator[None]:
    """The beginning of a Hello on thousands of connections, which grows byte by byte."""
    links: list[Stranger] = []
    while len(links) < 4_000:
        with suppress(OSError):
            links.append(Stranger.to(ports.link))
            links[-1].send(b"\0\0\x10\0")
        yield
    while True:
        for place, link in enumerate(links):
            link.send(b"\n")
            link.read()
            if link.is_closed:
                link.close()
                with suppress(OSError):
                    links[place] = Stranger.to(ports.link)
                    links[place].send(b"\0\0\x10\0")
            yield


def hung_up(ports: Ports) -> Iterator[None]:
    """Connections to the gRPC port that are closed for writing, then never read."""
    while True:
        strangers = [talker(ports) for _ in range(100)]
        for stranger in strangers:
            yield from sent(stranger, frame(PING, payload=bytes(8)) * 200)
            with suppress(OSError):
                stranger.socket.shutdown(socket.SHUT_WR)
            yield
        for stranger in strangers:
            stranger.close()


SETTING: Final = frame(SETTINGS, payload=(3).to_bytes(2) + (100).to_bytes(4))

HTTP2: Final[dict[str, Attack]] = {
    "http2-settings": partial(frames, one=SETTING, reads=True),
    "http2-settings-unread": partial(frames, one=SETTING, reads=False),
    "http2-pings": partial(frames, one=frame(PING, payload=bytes(8)), reads=True),
    "http2-pings-unread": partial(frames, one=frame(PING, payload=bytes(8)), reads=False),
    "http2-resets": partial(calls, ends=bytes((RESET, 0, 0, 0, 8))),
    "http2-open": partial(calls, ends=b""),
    "http2-updates": partial(calls, ends=bytes((UPDATE, 0, 0, 0, 1))),
    "http2-slow": slow_headers,
    "http2-long": partial(long_headers, fields=60),
    "http2-long-small": partial(long_headers, fields=5),
    "http2-hung-up": hung_up,
    "streams-unread": unread_streams,
    "streams-silent": waiting_streams,
    "link-tokens": tokens,
    "link-half-open": half_open_links,
}
