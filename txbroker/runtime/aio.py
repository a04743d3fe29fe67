"""SHELL: the only boundary between asyncio coroutines (gRPC) and Twisted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from twisted.internet.defer import Deferred

from txbroker.runtime.flush_queue import FlushQueue
from txbroker.runtime.structured_log import get_logger

STOP_LIMIT = 2.0
"""Seconds that all tasks have to end; the process waits no longer."""

T = TypeVar("T")

log = get_logger()

LOOK_EVERY = 0.02
"""Seconds between two checks of an awaited condition."""

CANCEL_AGAIN = 0.1
"""Seconds after which a task that still runs is cancelled again."""


class Tasks:
    """
    The asyncio tasks of a node: referenced while they run, errors logged, all cancelled at the end.

    The end of a task ends the turn of `turn`, so that the task's output is written.
    """

    def __init__(self, flush_queue: FlushQueue) -> None:
        self._flush_queue = flush_queue
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a task."""
        task = asyncio.get_event_loop().create_task(coroutine)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    async def stop(self) -> None:
        """Cancel all running tasks and wait up to `STOP_LIMIT` seconds for their end."""
        # One cancellation may not suffice. A gRPC call that was just answered swallows it, and an
        # ending task may start another one.
        deadline = time.monotonic() + STOP_LIMIT
        while self._running and time.monotonic() < deadline:
            for task in self._running:
                task.cancel()
            await asyncio.wait(self._running, timeout=CANCEL_AGAIN)
        if self._running:
            left = sorted(getattr(task.get_coro(), "__qualname__", "") for task in self._running)
            log.warning("task.abandoned", tasks=left)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("task.failed", exc_info=task.exception())
        self._flush_queue.end()


async def wait_until(condition: Callable[[], bool], limit: float) -> bool:
    """Wait for a condition, at most `limit` seconds; return its last value."""
    deadline = time.monotonic() + limit
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(LOOK_EVERY)
    return condition()


def as_deferred(coroutine: Coroutine[Any, Any, T]) -> Deferred[T]:
    """Return a Deferred that fires with the result of the coroutine."""
    return Deferred.fromFuture(asyncio.ensure_future(coroutine))
