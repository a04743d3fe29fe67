"""One host has so many calls under way and no more, over however many connections."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.support.cluster import on_loop
from txbroker.model.counters import Counters
from txbroker.rpc.callers import Callers
from txbroker.rpc.channels import SERVER_OPTIONS, STREAMS
from txbroker.rpc.pieced_calls import LARGEST_METADATA, Pieces

MOST = 3
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)


def test_hosts_do_not_take_each_others_places() -> None:
    """Whatever the port; what has ended leaves nothing behind."""
    callers = Callers(MOST)
    liar = [f"ipv4:10.0.0.1:{port}" for port in range(5_000, 5_000 + MOST)]
    assert all(map(callers.enter, liar))
    assert not callers.enter("ipv4:10.0.0.1:80")
    assert callers.enter("ipv4:10.0.0.2:5000") and callers.enter("ipv6:%5B::1%5D:5000")
    callers.end_call(liar[0])
    assert callers.enter("ipv4:10.0.0.1:80")
    for peer in (*liar[1:], "ipv4:10.0.0.1:80", "ipv4:10.0.0.2:5000", "ipv6:%5B::1%5D:5000"):
        callers.end_call(peer)
    assert not callers._calls


def test_one_host_has_one_limit_over_all_addresses_of_its_network() -> None:
    """Whoever has one IPv6 address has 2**64 of them."""
    callers = Callers(MOST)
    addresses = [f"ipv6:%5B2001:db8::{number}%5D:5000" for number in range(1, MOST + 2)]
    assert all(map(callers.enter, addresses[:MOST]))
    assert not callers.enter(addresses[MOST])
    assert callers.enter("ipv6:%5B2001:db8:0:1::1%5D:5000")


class Idling:
    """A server whose calls never end by themselves; `entered` counts those that are served."""

    def __init__(self, most: int = MOST) -> None:
        self.pieces = Pieces(Counters(), most)
        self.entered = asyncio.Semaphore(0)
        self.peers: Counter[str] = Counter()
        self.server = grpc.aio.server(interceptors=[self.pieces], options=SERVER_OPTIONS)
        handlers = {"Idle": grpc.stream_stream_rpc_method_handler(self._idle)}
        generic = grpc.method_handlers_generic_handler("t.T", handlers)
        self.server.add_generic_rpc_handlers((generic,))
        self.port = self.server.add_insecure_port("127.0.0.1:0")

    async def _idle(self, _: Any, context: Any) -> None:
        self.peers[context.peer()] += 1
        self.entered.release()
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing is counted any more."""
        async with asyncio.timeout(10):
            while self.pieces.callers._calls:
                await asyncio.sleep(0.01)
        await self.server.stop(0)


@on_loop
async def test_calls_that_idle_are_bounded() -> None:
    """Each over a connection of its own; a place is free again when one ends."""
    idling = Idling()
    await idling.server.start()
    channels = [
        grpc.aio.insecure_channel(f"127.0.0.1:{idling.port}", options=OWN_CONNECTION)
        for _ in range(MOST + 1)
    ]
    *calls, last = [channel.stream_stream("/t.T/Idle") for channel in channels]
    begun = [call() for call in calls]
    for _ in calls:
        await asyncio.wait_for(idling.entered.acquire(), 10)
    assert grpc.StatusCode.RESOURCE_EXHAUSTED == await asyncio.wait_for(last().code(), 10)
    assert 1 == idling.pieces.counters.get("control.refused")
    begun[0].cancel()
    while idling.entered.locked():
        last()
        await asyncio.sleep(0.05)
    for channel in channels:
        await channel.close()
    await idling.close()


@on_loop
async def test_calls_of_one_connection_are_bounded() -> None:
    """Further ones wait at the caller, and others' do not."""
    idling = Idling(2 * STREAMS)
    await idling.server.start()
    channels = [
        grpc.aio.insecure_channel(f"127.0.0.1:{idling.port}", options=OWN_CONNECTION)
        for _ in range(2)
    ]
    many, one = [channel.stream_stream("/t.T/Idle") for channel in channels]
    begun = [many() for _ in range(STREAMS + 5)]
    for _ in range(STREAMS):
        await asyncio.wait_for(idling.entered.acquire(), 30)
    begun.append(one())
    async with asyncio.timeout(30):
        while len(idling.peers) < 2:
            await idling.entered.acquire()
    assert [STREAMS, 1] == list(idling.peers.values())
    begun[0].cancel()
    await asyncio.wait_for(idling.entered.acquire(), 30)
    for channel in channels:
        await channel.close()
    await idling.close()


class Ending:
    """The context of a call whose connection goes while it is served; it has no name then."""

    name = "ipv4:10.0.0.1:5000"

    def peer(self) -> str:
        return self.name

    def invocation_metadata(self) -> tuple[()]:
        return ()


@on_loop
async def test_a_call_whose_connection_has_gone_is_counted_no_more() -> None:
    """It raised as it ended, and the host had one call less for good."""
    pieces, ending = Pieces(Counters(), MOST), Ending()

    async def end(_: Any, context: Any) -> None:
        assert pieces.callers._calls
        ending.name = ""

    async def find(_: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(end)

    details: Any = SimpleNamespace(method="/t.T/End")
    handler = await pieces.intercept_service(find, details)
    await handler.stream_stream(None, ending)
    assert not pieces.callers._calls


class Laden:
    """The context of a call with metadata of this size."""

    def __init__(self, size: int) -> None:
        self._metadata = tuple((f"name{number:06}", b"v" * 90) for number in range(size // 100))
        self.refusal: grpc.StatusCode | None = None

    def peer(self) -> str:
        return "ipv4:10.0.0.1:5000"

    def invocation_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return self._metadata

    async def abort(self, code: grpc.StatusCode, reason: str) -> None:
        self.refusal = code
        raise grpc.aio.AbortError


@on_loop
async def test_a_call_with_large_metadata_waits_for_no_turn() -> None:
    """Calls that waited with megabytes of them filled a node's memory."""
    pieces = Pieces(Counters(), MOST)
    served: list[Any] = []

    async def serve(_: Any, context: Any) -> None:
        served.append(context)

    async def find(_: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(serve)

    details: Any = SimpleNamespace(method="/t.T/Call")
    handler = await pieces.intercept_service(find, details)
    turn = await pieces.throttle.take("working")
    large = Laden(LARGEST_METADATA + 100)
    with pytest.raises(grpc.aio.AbortError):
        await asyncio.wait_for(handler.stream_stream(None, large), 30)
    assert (large.refusal, served) == (grpc.StatusCode.RESOURCE_EXHAUSTED, [])
    assert not pieces.callers._calls
    turn.end()
    await asyncio.wait_for(handler.stream_stream(None, Laden(LARGEST_METADATA - 100)), 30)
    assert len(served) == 1
