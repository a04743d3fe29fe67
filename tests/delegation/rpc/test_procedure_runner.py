"""How procedures of delegation wait for each other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from tests.support.apart import run_apart
from txbroker.delegation import join_child
from txbroker.delegation.join_child import JoinChild, ParentLost
from txbroker.delegation.join_messages import AnswerDelayed
from txbroker.delegation.procedure import LogEvent, Procedure, ReceiveMessage, locked
from txbroker.delegation.rpc import procedure_runner
from txbroker.delegation.rpc.join_convert import ChildEnd, ParentEnd
from txbroker.delegation.rpc.procedure_runner import DelegationRunner
from txbroker.v1.control_pb2 import JoinReply


class Stream:
    """The other end of a join stream, which may break."""

    def __init__(self) -> None:
        self.sent: list[object] = []
        self.is_broken = False

    async def send(self, message: object, seconds: float) -> None:
        if self.is_broken:
            raise ConnectionError
        self.sent.append(message)

    async def receive(self, seconds: float) -> None:
        raise AssertionError("nothing is received")


def answer() -> Procedure[str]:
    yield LogEvent(name="x", fields={})
    return "answered"


def play(
    scene: Callable[[Stream, asyncio.Lock, asyncio.Task[str]], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A child asks while another one has the lock."""
    monkeypatch.setattr(procedure_runner, "ALIVE_EVERY", 0.005)
    none = cast(Any, None)
    runner = DelegationRunner(
        node_grant=none, authority=None, committer=none, channels=none, departure=none
    )

    async def scenario() -> None:
        stream, lock = Stream(), asyncio.Lock()
        await lock.acquire()
        asking = runner.run(locked(lock, answer(), meanwhile=AnswerDelayed()), stream)
        task = asyncio.create_task(asking)
        while len(stream.sent) < 3:
            await asyncio.sleep(0.001)
        await scene(stream, lock, task)
        await asyncio.sleep(0)
        assert not lock.locked()

    run_apart(scenario())


def test_a_child_that_waits_hears_that_its_parent_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would give up, come again, and have its handover rolled back."""

    async def scene(stream: Stream, lock: asyncio.Lock, task: asyncio.Task[str]) -> None:
        assert set(stream.sent) == {AnswerDelayed()}
        lock.release()
        assert await task == "answered"

    play(scene, monkeypatch)


def test_a_child_that_is_gone_leaves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its handover would fence the zone for nobody."""

    async def scene(stream: Stream, lock: asyncio.Lock, task: asyncio.Task[str]) -> None:
        stream.is_broken = True
        with pytest.raises(ConnectionError):
            await task
        assert lock.locked()
        lock.release()

    play(scene, monkeypatch)


@pytest.mark.parametrize("is_released", [False, True])
def test_a_request_that_is_cancelled_keeps_no_lock(
    is_released: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one that it gets in the same turn."""

    async def scene(stream: Stream, lock: asyncio.Lock, task: asyncio.Task[str]) -> None:
        if is_released:
            lock.release()
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if not is_released:
            lock.release()

    play(scene, monkeypatch)


def test_a_delayed_answer_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child goes on waiting; one of an earlier version does so, too."""

    class Call:
        def __init__(self) -> None:
            self.said: list[JoinReply] = []

        async def write(self, reply: JoinReply, seconds: float | None) -> None:
            self.said.append(reply)

        async def read(self, seconds: float) -> JoinReply:
            return self.said.pop()

    async def scenario() -> object:
        call, none = Call(), cast(Any, None)
        await ParentEnd(call, none).send(AnswerDelayed())
        assert "alive" == call.said[0].WhichOneof("kind")
        return await ChildEnd(call, none).receive(1.0)

    told = run_apart(scenario())
    monkeypatch.setattr(join_child, "announcement_of", lambda node_grant: None)
    asking = JoinChild(cast(Any, None), cast(Any, None)).ask("parent")
    next(asking)
    waits = asking.send(None)
    assert isinstance(waits, ReceiveMessage)
    assert asking.send(told) == waits
    with pytest.raises(StopIteration) as end:
        asking.send(None)
    assert ParentLost() == end.value.value
