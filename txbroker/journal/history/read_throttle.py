"""
SHELL: limits the share of the node's time that history readers get while clients need it.

Clients' need is the work of the loop's thread, minus its work for readers. The throttle measures
this work, and readers pause while it is high.
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
"""Fraction of time for readers while the node is busy."""

BUSY = 0.1
"""
Fraction of time that the loop's thread works for others, from which on the node counts as busy.
"""

WINDOW = 0.02
"""Seconds of one measurement."""

BESIDE = 0.0003
"""Approximate unmeasured seconds that the loop's thread works for one piece of readers' work."""

STALE = 0.5
"""Seconds without readers after which the last measurement is void."""


class ReadThrottle:
    """
    Runs readers' work in a thread beside the loop, one piece at a time.

    `is_busy`: True if clients need the node, so pieces should be small.
    """

    def __init__(self) -> None:
        self._thread = WorkThread(asyncio.get_running_loop(), "readers")
        self._turn = asyncio.Lock()
        self._worked = 0.0  # since the last pause
        self._own = 0.0  # on the loop's thread, in this window
        self._window = (0.0, 0.0)  # the window's start: clock, and work of the thread
        self.is_busy = True

    async def work(self, piece: Callable[[], T]) -> T:
        """Run `piece` when its turn comes; return its result or raise its error."""
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
        """Await `sending`, and count its time on the loop's thread as readers' work."""
        return self._timed(sending)

    def close(self) -> None:
        """Stop the thread."""
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
            except BaseException as error:  # an error belongs to the awaited coroutine
                go_on = partial(steps.throw, error)
