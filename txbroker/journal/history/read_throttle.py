"""
SHELL: readers of the history get a bounded share of the node's time while clients need it.

What clients need is what the loop's thread works, less what it does for readers. So that is
measured, and readers rest as long as the others are busy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from types import coroutine
from typing import Any, TypeVar

from txbroker.storage.work_thread import WorkThread

T = TypeVar("T")

SHARE = 0.2
"""Of the time, what readers have while the node is busy."""

BUSY = 0.1
"""Of the time, what the loop's thread works for others when the node counts as busy."""

WINDOW = 0.02
"""Seconds over which that is measured."""

BESIDE = 0.0003
"""Seconds that the loop's thread works for a piece of readers beside what is measured, about."""

STALE = 0.5
"""Seconds without readers after which nothing is known."""


class ReadThrottle:
    """
    Does the work of readers, one piece after the other, in a thread beside the loop.

    `is_busy`: clients need the node; small pieces are wanted.
    """

    def __init__(self) -> None:
        self._thread = WorkThread(asyncio.get_running_loop(), "readers")
        self._turn = asyncio.Lock()
        self._worked = 0.0  # since the last rest
        self._own = 0.0  # on the loop's thread, in this window
        self._window = (0.0, 0.0)  # when it began, by the clock and by what the thread has worked
        self.is_busy = True

    async def work(self, piece: Callable[[], T]) -> T:
        """What `piece` returns or raises; it is done when it is its turn."""
        async with self._turn:
            was_busy = self.is_busy
            self._judge()
            if self.is_busy:
                owed = self._worked * (1 / SHARE - 1) if was_busy else 0.0
                await asyncio.sleep(max(owed, WINDOW / 4))
                self._worked = 0.0
            begun = time.perf_counter()
            try:
                return await self._in_thread(piece)
            finally:
                self._worked += time.perf_counter() - begun
                self._own += BESIDE

    def send(self, sending: Awaitable[T]) -> Awaitable[T]:
        """The same as `sending`, which is work for readers on the loop's thread."""
        return self._timed(sending)

    def close(self) -> None:
        """Nothing more is to be done."""
        self._thread.close()

    async def _in_thread(self, piece: Callable[[], T]) -> T:
        done = asyncio.get_running_loop().create_future()
        found: list[T] = []

        def tell(error: BaseException | None) -> None:
            if done.cancelled():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self._thread.run(lambda: found.append(piece()), tell)
        await done
        return found[0]

    def _judge(self) -> None:
        now, worked = time.perf_counter(), time.thread_time()
        elapsed = now - self._window[0]
        if elapsed < WINDOW:
            return
        others = worked - self._window[1] - self._own
        self.is_busy = elapsed > STALE or others > BUSY * elapsed
        self._window = now, worked
        self._own = 0.0

    @coroutine
    def _timed(self, sending: Awaitable[T]) -> Generator[Any, Any, T]:
        steps: Any = sending.__await__()
        go_on: Callable[[], Any] = partial(next, steps)
        while True:
            begun = time.thread_time()
            try:
                waited_for = go_on()
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                used = time.thread_time() - begun
                self._own += used
                self._worked += used
            try:
                value = yield waited_for
                go_on = partial(steps.send, value)
            except BaseException as error:  # for whoever is waited for
                go_on = partial(steps.throw, error)
