"""The port in front of gRPC: what passes, under which name, and what is ended."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.support.cluster import on_loop
from tests.support.vanished import vanish
from tests.system.http2_attacks import CALL, CONTINUATION, HEADERS, PING, PREFACE, SETTINGS, frame
from txbroker.rpc import control_port
from txbroker.rpc.callers import Callers
from txbroker.rpc.channels import SERVER_OPTIONS
from txbroker.rpc.control_port import FILES_EACH, ControlPort

OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
LARGE = bytes(range(256)) * 16_000


class Served:
    """A gRPC server behind a port, which answers with what it got."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.peers: list[str] = []
        self.refused: list[tuple[str, str]] = []
        later = asyncio.get_running_loop().call_soon_threadsafe
        self.port = ControlPort(later, lambda *what: self.refused.append(what))
        self.number = self.port.bind(host, 0)
        self.address = f"[{host}]:{self.number}" if ":" in host else f"{host}:{self.number}"
        self.server = grpc.aio.server(options=SERVER_OPTIONS)
        handlers: dict[str, Any] = {"Echo": grpc.stream_stream_rpc_method_handler(self._echo)}
        generic = grpc.method_handlers_generic_handler("t.T", handlers)
        self.server.add_generic_rpc_handlers((generic,))
        self.server.add_insecure_port(self.port.inner)

    async def _echo(self, said: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        self.peers.append(context.peer())
        async for one in said:
            yield one

    async def echo(self, *said: bytes) -> list[bytes]:
        """What comes back over a connection of its own."""
        async with grpc.aio.insecure_channel(self.address, options=OWN_CONNECTION) as channel:
            method: Any = channel.stream_stream("/t.T/Echo")
            return [one async for one in method(iter(said))]

    def dial(self) -> socket.socket:
        """A stranger."""
        return socket.create_connection(("127.0.0.1", self.number), timeout=10)


@asynccontextmanager
async def serving(host: str = "127.0.0.1") -> AsyncIterator[Served]:
    """A server that runs."""
    served = Served(host)
    await served.server.start()
    served.port.start()
    try:
        yield served
    finally:
        await served.server.stop(0)
        served.port.close()


async def until(condition: Callable[[], object]) -> None:
    """Wait for it."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


@on_loop
async def test_calls_pass_both_ways() -> None:
    """More at once than sockets hold."""
    async with serving() as served:
        said = [LARGE[:number] for number in (0, 1, 70_000)] + [LARGE[: 3 << 20]] * 5
        assert said == await served.echo(*said)
        assert not served.refused


@on_loop
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_callers_are_told_apart_by_host_and_connection(host: str) -> None:
    """As those are that connect to gRPC itself: hosts have limits and turns of their own."""
    async with serving(host) as served:
        await served.echo()
        await served.echo()
        assert 2 == len(set(served.peers))
        callers = Callers(2)
        assert all(map(callers.enter, served.peers))
        assert not callers.enter(f"ipv6:%5B{host}%5D:5000" if ":" in host else f"ipv4:{host}:5000")


@on_loop
async def test_only_the_port_connects_to_grpc() -> None:
    """The socket has no name as soon as it is served."""
    async with serving() as served:
        assert not os.path.exists(served.port.inner.removeprefix("unix:"))


@on_loop
async def test_headers_without_end_end_the_connection() -> None:
    """And that one alone."""
    async with serving() as served:
        with served.dial() as stranger:
            stranger.sendall(PREFACE + frame(SETTINGS) + frame(HEADERS, 0, 1, CALL))
            more = frame(CONTINUATION, 0, 1, bytes(16_000))
            with suppress(OSError):
                while True:
                    await asyncio.to_thread(stranger.sendall, more)
            await until(lambda: served.refused)
            assert "headers" in served.refused[0][1]
            assert served.refused[0][0].startswith("ipv4:127.0.0.1:")
        assert [b"x"] == await served.echo(b"x")


@on_loop
async def test_who_does_not_begin_in_time_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent ones, and those that never acknowledge; a client may stay for long."""
    monkeypatch.setattr(control_port, "BEGIN_WITHIN", 0.2)
    async with serving() as served:
        channel = grpc.aio.insecure_channel(served.address, options=OWN_CONNECTION)
        call: Any = channel.stream_stream("/t.T/Echo")()
        await call.write(b"x")
        assert b"x" == await call.read()
        for said in (b"", PREFACE + frame(SETTINGS)):
            with served.dial() as stranger:
                stranger.sendall(said)
                while await asyncio.to_thread(stranger.recv, 4_096):
                    pass
        await call.write(b"y")
        assert b"y" == await call.read()
        call.cancel()
        await channel.close()


@on_loop
async def test_no_connection_is_left_behind() -> None:
    """Whoever ends it."""
    async with serving() as served:
        await served.echo(b"x")
        with served.dial() as stranger:
            stranger.sendall(PREFACE + frame(SETTINGS))
            await asyncio.to_thread(stranger.recv, 4_096)
        await until(lambda: not served.port._ends)
        assert not served.port._due


@on_loop
async def test_a_port_without_files_accepts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """When there is room."""
    monkeypatch.setattr(control_port, "ceiling", lambda: 3)
    async with serving() as served:
        with served.dial() as stranger:
            await until(lambda: served.port._is_paused)
            assert not served.port._ends
            monkeypatch.setattr(control_port, "ceiling", lambda: 10_000)
            await until(lambda: served.port._ends)
            stranger.close()
        assert [b"x"] == await served.echo(b"x")


@pytest.mark.parametrize("last", [b"", frame(PING, payload=bytes(8))], ids=["idle", "unheard"])
@on_loop
async def test_connections_of_peers_that_vanished_make_room(
    monkeypatch: pytest.MonkeyPatch, last: bytes
) -> None:
    """They had no call, so gRPC never asks; an answer that is not heard puts off no end."""
    monkeypatch.setattr(control_port, "GONE_AFTER", 3)
    monkeypatch.setattr(control_port, "ceiling", lambda: 2 * FILES_EACH)  # for one connection
    monkeypatch.setattr(control_port, "next_descriptor", lambda _: 0)
    async with serving() as served:
        stranger = served.dial()
        stranger.sendall(PREFACE + frame(SETTINGS) + frame(SETTINGS, 1))
        await until(lambda: len(served.port._ends) == 2 and not served.port._due)
        with stranger:
            vanish(stranger)
            stranger.sendall(last)
            async with asyncio.timeout(8):
                assert [b"x"] == await served.echo(b"x")


@on_loop
async def test_an_address_in_use_is_said() -> None:
    """By the system's error; nothing is left."""
    async with serving() as served:
        port = ControlPort(print, print)
        with pytest.raises(OSError, match="in use"):
            port.bind("127.0.0.1", served.number)
        port.close()
