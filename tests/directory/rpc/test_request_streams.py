"""Requests and replies on streams, over real gRPC: what goes together, and when a call is made."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import attrs
import grpc
import grpc.aio
import pytest

from tests.directory.rpc.test_directory_service import CLAIM, LOOKUP, Disk, no_hurry
from tests.storage.test_committer import run_apart
from txbroker.directory.requests import NotHeld, Ping, Pong, Request
from txbroker.directory.rpc import directory_convert as wire
from txbroker.directory.rpc import request_server, request_streams
from txbroker.directory.rpc.request_server import RequestServer
from txbroker.directory.rpc.request_streams import RequestStreams
from txbroker.model.counters import Counters
from txbroker.rpc import call_throttle
from txbroker.rpc.channels import Channels
from txbroker.rpc.pieced_calls import Pieces
from txbroker.runtime.aio import Tasks
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.v1 import directory_pb2
from txbroker.v1.directory_pb2_grpc import DirectoryServicer, add_DirectoryServicer_to_server


@attrs.define(slots=False)
class Peer:
    """A node with a server, and the streams of another to it."""

    address: str
    streams: RequestStreams
    server: RequestServer
    disk: Disk
    calls: list[str]
    counters: Counters

    async def ask(self, request: Request, *, source: str = "b", timeout: float = 5.0) -> Any:
        question = wire.question(source, "me", request)
        return wire.answer_of(await self.streams.ask(self.address, question, timeout))


@asynccontextmanager
async def peer(servicer: Callable[[RequestServer], Any] = lambda made: made) -> AsyncIterator[Peer]:
    """`servicer` may stand in for the node's server."""
    tasks, disk, counters = Tasks(FlushQueue(lambda _: None)), Disk(is_safe=True), Counters()

    async def safe(_: Request | None) -> None:
        done = asyncio.Event()
        disk.when_durable(done.set)
        await done.wait()

    rests: Any = SimpleNamespace(safe=safe, is_safe=lambda request: disk.is_safe)
    shares: Any = SimpleNamespace(hurry=no_hurry)
    made = RequestServer(
        calls=rests,
        shares=shares,
        tasks=tasks,
        flush_queue=FlushQueue(lambda _: None),
        counters=counters,
    )
    directory: Any = SimpleNamespace(
        members=SimpleNamespace(name="me"), greatest=lambda _: 0, handle=handle
    )
    made.wire(directory)
    made.start()
    calls: list[str] = []

    class Noted(grpc.aio.ServerInterceptor):
        async def intercept_service(self, continuation: Any, details: Any) -> Any:
            calls.append(details.method.rpartition("/")[2])
            return await continuation(details)

    server = grpc.aio.server(interceptors=[Noted(), Pieces(counters, 100)])
    add_DirectoryServicer_to_server(servicer(made), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    channels = Channels()
    try:
        yield Peer(address, RequestStreams(channels, tasks), made, disk, calls, counters)
    finally:
        await tasks.stop()
        await channels.close()
        await server.stop(0)


def handle(source: str, request: Request) -> Any:
    if source == "stranger":
        return None
    match request:
        case Ping():
            return Pong()
        case _:
            return NotHeld(incarnation=len(getattr(request, "client_ids", ())))


def lookup(count: int) -> Request:
    return attrs.evolve(LOOKUP, client_ids=("x",) * count)


def test_requests_of_a_turn_go_in_one_message_and_each_gets_its_reply() -> None:
    async def scenario() -> None:
        async with peer() as node:
            seen: list[int] = []
            serve = node.server._serve

            async def noted(message: directory_pb2.Questions, replies: Any) -> bool:
                seen.append(len(message.questions))
                return await serve(message, replies)

            node.server._serve = noted  # type: ignore[method-assign]
            await node.ask(Ping())
            answers = await asyncio.gather(*(node.ask(lookup(n)) for n in range(100)))
            assert [NotHeld(incarnation=n) for n in range(100)] == answers
            assert [1, 100] == seen
            assert ["AskMany"] == node.calls

    run_apart(scenario())


def test_a_long_queue_goes_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_streams, "MOST", 3)
    monkeypatch.setattr(request_server, "MOST", 3)

    async def scenario() -> None:
        async with peer() as node:
            assert 10 == len(await asyncio.gather(*(node.ask(lookup(1)) for _ in range(10))))
            large = lookup(30_000)
            answers = await asyncio.gather(node.ask(Ping()), node.ask(large), node.ask(Ping()))
            assert [Pong(), NotHeld(incarnation=30_000), Pong()] == answers
            assert ["AskMany"] == node.calls

    run_apart(scenario())


def test_a_reply_that_waits_for_a_sync_holds_up_no_other() -> None:
    async def scenario() -> None:
        async with peer() as node:
            node.disk.is_safe = False
            claimed = asyncio.create_task(node.ask(CLAIM))
            assert await node.ask(Ping()) == Pong()
            assert not claimed.done()
            while not node.disk.waiting:
                await asyncio.sleep(0)
            node.disk.waiting.pop()()
            assert await claimed == NotHeld()

    run_apart(scenario())


def test_each_message_waits_for_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first had its turn from its call, and waited for the end of that: ten milliseconds."""
    monkeypatch.setattr(call_throttle, "PATIENCE", 600.0)

    async def scenario() -> None:
        async with peer() as node:
            for _ in range(3):
                assert await node.ask(Ping()) == Pong()
            assert ["AskMany"] == node.calls

    run_apart(scenario())


def test_an_idle_stream_ends_and_the_next_request_opens_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_streams, "IDLE", 0.01)

    async def scenario() -> None:
        async with peer() as node:
            for _ in range(30):
                assert await node.ask(Ping()) == Pong()
                await asyncio.sleep(0.01)  # some come while the stream ends
            while node.streams._streams or node.server._streams:
                await asyncio.sleep(0.01)
            assert node.calls.count("AskMany") > 1

    run_apart(scenario())


def test_a_stream_waits_for_a_late_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its request opened the stream or came later, and whoever else was answered."""
    monkeypatch.setattr(request_streams, "IDLE", 0.01)

    async def scenario() -> None:
        async with peer() as node:
            node.disk.is_safe = False
            began = time.monotonic()
            owed = [asyncio.create_task(node.ask(CLAIM, timeout=30.0)) for _ in range(2)]
            while len(node.disk.waiting) < 2:
                await asyncio.sleep(0)
            assert await node.ask(Ping(), timeout=10.0) == Pong()
            await asyncio.sleep(0.05)
            assert node.streams._streams[node.address]._until >= began + 30.0
            for action in node.disk.waiting:
                action()
            assert [NotHeld()] * 2 == await asyncio.gather(*owed)
            assert ["AskMany"] == node.calls

    run_apart(scenario())


def test_a_node_without_streams_is_asked_in_calls() -> None:
    """A node one version older knows `Ask` alone."""

    class Older(DirectoryServicer):
        def __init__(self, made: RequestServer) -> None:
            self.Ask = made.Ask  # type: ignore[method-assign]

        async def AskMany(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")

    async def scenario() -> None:
        async with peer(Older) as node:
            assert await asyncio.gather(node.ask(Ping()), node.ask(Ping())) == [Pong(), Pong()]
            assert 2 == node.calls.count("Ask")

    run_apart(scenario())


def test_a_node_that_serves_enough_streams_is_asked_in_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stranger that takes all streams cannot silence members."""
    monkeypatch.setattr(request_server, "STREAMS", 0)

    async def scenario() -> None:
        async with peer() as node:
            for _ in range(3):
                assert await node.ask(Ping()) == Pong()
            assert ["Ask"] * 3 == [call for call in node.calls if call != "AskMany"]
            # On a busy machine the first one may break before its refusal has come.
            assert node.calls.count("AskMany") in (1, 2)
            assert not node.server._streams

    run_apart(scenario())


def test_a_stream_is_tried_again_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_server, "STREAMS", 0)
    monkeypatch.setattr(request_streams, "REFUSED", 0.01)

    async def scenario() -> None:
        async with peer() as node:
            assert await node.ask(Ping()) == Pong()
            monkeypatch.setattr(request_server, "STREAMS", 1)
            while node.streams._streams:
                await asyncio.sleep(0.01)
            assert await node.ask(Ping()) == Pong()
            assert ["AskMany", "Ask", "AskMany"] == node.calls

    run_apart(scenario())


def test_a_stream_ends_behind_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets its empty reply, and one stream is no way to ask on for ever."""

    async def scenario() -> None:
        async with peer() as node:
            assert await node.ask(Ping(), source="stranger") is None
            while node.server._streams:
                await asyncio.sleep(0)
            assert node.counters.snapshot()["directory.refused"] == 1
            assert await node.ask(Ping()) == Pong()

    run_apart(scenario())


def test_a_message_of_too_many_requests_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_server, "MOST", 2)

    async def scenario() -> None:
        async with peer() as node:
            asked = [node.ask(Ping(), timeout=1.0) for _ in range(3)]
            # Each is asked again in a call of its own.
            assert [Pong()] * 3 == await asyncio.gather(*asked)
            assert 3 == node.calls.count("Ask")

    run_apart(scenario())


def test_a_node_that_stops_waits_for_no_stream() -> None:
    """A stream that others would use for two seconds more delayed each stop as long."""

    async def scenario() -> None:
        async with peer() as node:
            assert await node.ask(Ping()) == Pong()
            node.server.close()
            while node.server._streams or node.streams._streams:
                await asyncio.sleep(0)

    began = time.monotonic()
    run_apart(scenario())
    assert time.monotonic() - began < request_streams.IDLE


def test_a_silent_node_costs_a_request_its_time_alone() -> None:
    async def scenario() -> None:
        async with peer() as node:
            node.disk.is_safe = False
            with pytest.raises(TimeoutError):
                await node.ask(CLAIM, timeout=0.05)
            assert not next(iter(node.streams._streams.values()))._waiting
            assert await node.ask(Ping()) == Pong()
            for action in node.disk.waiting:
                action()  # a late reply is nobody's
            assert await node.ask(Ping()) == Pong()

    run_apart(scenario())


def test_a_node_that_is_away_is_known_at_once() -> None:
    async def scenario() -> None:
        async with peer() as node:
            node.address = "127.0.0.1:1"
            with pytest.raises(grpc.aio.AioRpcError):
                await node.ask(Ping(), timeout=30.0)
            while node.streams._streams:
                await asyncio.sleep(0)

    run_apart(scenario())


def test_a_node_that_owes_many_replies_is_asked_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_streams, "WAITING", 3)

    async def scenario() -> None:
        async with peer() as node:
            node.disk.is_safe = False
            owed = [asyncio.create_task(node.ask(CLAIM)) for _ in range(3)]
            await asyncio.sleep(0)
            with pytest.raises(TimeoutError):
                await node.ask(Ping())
            while len(node.disk.waiting) < 3:
                await asyncio.sleep(0)
            for action in node.disk.waiting:
                action()
            assert [NotHeld()] * 3 == await asyncio.gather(*owed)

    run_apart(scenario())


def test_few_requests_wait_for_a_sync_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_server, "UNREPLIED", 2)

    async def scenario() -> None:
        async with peer() as node:
            node.disk.is_safe = False
            owed = []
            for _ in range(4):
                owed.append(asyncio.create_task(node.ask(CLAIM)))
                await asyncio.sleep(0.02)  # each in a message of its own
            assert 2 == len(node.disk.waiting)
            node.disk.is_safe = True
            for action in node.disk.waiting:
                action()
            assert [NotHeld()] * 4 == await asyncio.gather(*owed)

    run_apart(scenario())
