"""Few calls are at work; those that wait take turns, and one that takes long holds up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from tests.support.cluster import on_loop
from txbroker.model.counters import Counters
from txbroker.rpc import call_throttle
from txbroker.rpc.call_throttle import REST, CallThrottle, CallTurn
from txbroker.rpc.callers import JoinedConnections
from txbroker.rpc.pieced_calls import Pieces

NEVER = 600.0
"""Seconds: a patience that no test waits for."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine must not end the turns of a test; few are a crowd."""
    monkeypatch.setattr(call_throttle, "PATIENCE", NEVER)
    monkeypatch.setattr(call_throttle, "CROWD", 0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)


async def pass_by(count: int) -> None:
    """So many turns of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


@on_loop
async def test_connections_take_turns() -> None:
    """One call is at work; of a storm from one connection one goes before that of another."""
    throttle, order, begun = CallThrottle(), list[str](), list[CallTurn]()
    begun.append(await throttle.take("storm"))

    async def call(peer: str) -> None:
        begun.append(await throttle.take(peer))
        order.append(peer)

    calls = [asyncio.ensure_future(call("storm")) for _ in range(50)]
    calls.append(asyncio.ensure_future(call("other")))
    await pass_by(3 * REST)
    assert order == []
    begun[-1].end()
    calls.append(asyncio.ensure_future(call("late")))
    for count in range(1, len(calls) + 1):
        await until(lambda count=count: len(order) == count)  # type: ignore[misc]
        await pass_by(3 * REST)
        assert len(order) == count
        begun[-1].end()
    assert order == ["storm", "other", "late", *["storm"] * 49]


@on_loop
async def test_none_begins_while_others_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child's may be behind them; but after a while one does."""
    throttle = CallThrottle()
    first = await throttle.take("storm")
    calls = [asyncio.ensure_future(throttle.take("storm"))]
    await pass_by(1)
    throttle._left = 0  # it has rested enough, before the end of the first
    first.end()
    await pass_by(REST - 2)
    for _ in range(100):
        calls.append(asyncio.ensure_future(throttle.take("storm")))
        await pass_by(1)
    assert not any(one.done() for one in calls)
    await until(calls[0].done)

    monkeypatch.setattr(call_throttle, "PATIENCE", 0.0)
    (await calls[0]).end()
    for _ in range(100):
        calls.append(asyncio.ensure_future(throttle.take("storm")))
        await pass_by(1)
    assert calls[1].done()
    for one in calls:
        (await asyncio.wait_for(one, 30)).end()
    assert throttle._turn is None
    monkeypatch.setattr(call_throttle, "PATIENCE", NEVER)
    (await throttle.take("last")).end()
    await pass_by(3)
    assert throttle._left == REST  # there is nothing to rest for


@on_loop
async def test_few_wait_for_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of other nodes come no more at a time."""
    throttle = CallThrottle()
    monkeypatch.setattr(call_throttle, "CROWD", 2)
    first = await throttle.take("a")
    calls = [asyncio.ensure_future(throttle.take("b")) for _ in range(3)]
    await pass_by(1)
    first.end()
    assert throttle._turn is None
    await until(lambda: throttle._turn is not None)
    (await calls[0]).end()
    assert throttle._turn is not None
    for one in calls[1:]:
        (await asyncio.wait_for(one, 30)).end()
    assert throttle._turn is None


@on_loop
async def test_one_that_takes_long_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on beside the others; its end ends no turn but its own."""
    throttle = CallThrottle()
    monkeypatch.setattr(call_throttle, "PATIENCE", 0.0)
    slow = [await asyncio.wait_for(throttle.take("slow"), 30) for _ in range(5)]
    await until(lambda: throttle._turn is None)
    monkeypatch.setattr(call_throttle, "PATIENCE", NEVER)
    now = await throttle.take("slow")
    other = asyncio.ensure_future(throttle.take("other"))
    for turn in slow:
        turn.end()
    await pass_by(3 * REST)
    assert not other.done()
    now.end()
    (await asyncio.wait_for(other, 30)).end()
    assert throttle._turn is None


@on_loop
async def test_whoever_waits_no_more_takes_no_place() -> None:
    """Whether its turn had come or not."""
    throttle = CallThrottle()
    first = await throttle.take("a")
    gone, called, last = (asyncio.ensure_future(throttle.take(peer)) for peer in "bcd")
    await pass_by(1)
    gone.cancel()
    await pass_by(1)
    first.end()
    await until(lambda: throttle._turn is not None)
    called.cancel()  # before it hears of its turn
    (await asyncio.wait_for(last, 30)).end()
    await asyncio.gather(gone, called, return_exceptions=True)
    assert gone.cancelled() and called.cancelled()
    assert throttle._turn is None and not throttle._waiting


def test_a_connection_is_known_while_a_stream_lasts() -> None:
    """One over which its node has joined."""
    joined = JoinedConnections()
    joined.enter("a")
    joined.enter("a")
    assert "a" in joined and "b" not in joined
    joined.leave("a")
    assert "a" in joined
    joined.leave("a")
    assert "a" not in joined and not joined._streams


class Bench:
    """Calls to the shared part of a node's server."""

    def __init__(self) -> None:
        self.pieces = Pieces(Counters(), 100)
        self.never = asyncio.Event()

    async def call(self, peer: str, work: Callable[[Any], Awaitable[None]]) -> None:
        """One over this connection, that does `work` when its turn comes."""

        async def handle(_: Any, context: Any) -> None:
            await work(context)

        async def find(_: Any) -> Any:
            return grpc.stream_stream_rpc_method_handler(handle)

        details: Any = SimpleNamespace(method="/t.T/Call")
        context = SimpleNamespace(peer=lambda: peer, invocation_metadata=lambda: ())
        handler = await self.pieces.intercept_service(find, details)
        await handler.stream_stream(None, context)

    async def join(self, context: Any) -> None:
        """As a child does."""
        context.note_joined()
        await self.never.wait()

    async def wait(self, context: Any) -> None:
        """Work that ends never, beside which none is left to do."""
        context.end_turn()
        await self.never.wait()

    async def end(self, context: Any) -> None:
        """Nothing at all."""


@on_loop
async def test_a_childs_call_waits_for_no_strangers() -> None:
    """As long as the stream over which it has joined goes on."""
    bench = Bench()
    pieces = bench.pieces
    joined = asyncio.ensure_future(bench.call("child", bench.join))
    await until(lambda: "child" in pieces.joined)
    storm = [asyncio.ensure_future(bench.call("stranger", bench.end)) for _ in range(10)]
    await asyncio.wait_for(bench.call("child", bench.end), 30)
    assert not any(one.done() for one in storm)

    joined.cancel()
    await asyncio.wait_for(asyncio.gather(*storm), 30)
    assert "child" not in pieces.joined


@on_loop
async def test_a_call_that_only_waits_keeps_no_place() -> None:
    """Its disk's time is not that of all others."""
    bench = Bench()
    waiting = [asyncio.ensure_future(bench.call("a", bench.wait)) for _ in range(3)]
    await asyncio.wait_for(bench.call("b", bench.end), 30)
    assert not any(one.done() for one in waiting)
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert bench.pieces.throttle._turn is None
