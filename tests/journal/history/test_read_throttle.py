"""Readers have all of an idle node, and a share of one that clients keep busy."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.storage.test_committer import run_apart
from txbroker.journal.history.read_throttle import SHARE, ReadThrottle

PIECE = 0.002


def spin(seconds: float) -> None:
    """Work for so long."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_readers_of_an_idle_node_do_not_rest() -> None:
    """What they themselves have the loop do counts for nothing."""

    async def scenario() -> list[bool]:
        pace, seen = ReadThrottle(), []

        async def send() -> None:
            spin(PIECE)

        for _ in range(60):
            await pace.work(lambda: time.sleep(PIECE))
            await pace.send(send())
            seen.append(pace.is_busy)
        pace.close()
        return seen

    for _ in range(5):  # what else the machine does may make the node look busy for a while
        seen = run_apart(scenario())
        assert seen[0]  # it has to be found out first
        if sum(seen) < 20:
            return
    pytest.fail(f"it rests all the time: {seen}")


def test_readers_of_a_busy_node_have_their_share() -> None:
    """Several of them together; when it is idle again, all."""

    async def scenario() -> tuple[float, bool]:
        pace, is_ended = ReadThrottle(), False

        async def clients() -> None:
            while not is_ended:
                spin(0.001)
                await asyncio.sleep(0.0005)

        async def read() -> None:
            while not is_ended:
                await pace.work(lambda: time.sleep(PIECE))

        async def count() -> float:
            worked, begun = 0.0, time.perf_counter()
            while (now := time.perf_counter()) < begun + 1.0:
                await pace.work(lambda: time.sleep(PIECE))
                worked += 1
            return worked * PIECE / (now - begun)

        busy = asyncio.create_task(clients())
        others = [asyncio.create_task(read()) for _ in range(3)]
        await asyncio.sleep(0.1)
        share = 4 * await count()
        is_ended = True
        await asyncio.gather(busy, *others)
        pieces = 0
        while pieces < 60 or (pace.is_busy and pieces < 3_000):  # a busy machine looks like it
            await pace.work(lambda: time.sleep(PIECE))
            pieces += 1
        is_busy = pace.is_busy
        pace.close()
        return share, is_busy

    share, is_busy = run_apart(scenario())
    assert share < 1.3 * SHARE
    assert not is_busy


def test_results_and_errors_come_through() -> None:
    async def scenario() -> tuple[int, str]:
        pace = ReadThrottle()

        async def send(number: int) -> str:
            await asyncio.sleep(0)
            try:
                await asyncio.wait_for(asyncio.Event().wait(), 0.01)
            except TimeoutError:
                pass
            if not number:
                raise LookupError("nothing")
            return str(number)

        value = await pace.work(lambda: 7)
        with pytest.raises(ZeroDivisionError):
            await pace.work(lambda: 1 // 0)
        with pytest.raises(LookupError):
            await pace.send(send(0))
        sent = await pace.send(send(3))
        waiting = asyncio.ensure_future(pace.send(asyncio.sleep(60)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        pace.close()
        return value, sent

    assert (7, "3") == run_apart(scenario())
