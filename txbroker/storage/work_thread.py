"""SHELL: runs work that blocks on the disk in threads beside the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from txbroker.runtime.structured_log import get_logger

_Work = Callable[[], None]
_Done = Callable[[BaseException | None], None]

_log = get_logger()

LANES = 4
"""Largest number of works that run side by side."""


def one_by_one(works: Sequence[_Work]) -> None:
    """Run each work in this thread."""
    for work in works:
        work()


def side_by_side(works: Sequence[_Work]) -> None:
    """
    Run the works in several threads, and return when all have ended; raises the first error.

    A file system commits the changes of several files at once. Two syncs side by side take as long
    as one sync; in a row they take three to ten times as long.
    """
    todo: SimpleQueue[_Work] = SimpleQueue()
    for work in works:
        todo.put(work)
    errors: list[BaseException] = []

    def lane() -> None:
        try:
            while not errors:
                todo.get_nowait()()
        except Empty:
            return
        except BaseException as error:  # the caller raises it
            errors.append(error)

    # Daemons: a disk that never answers must not keep the process from ending.
    helpers = [
        threading.Thread(target=lane, name="sync", daemon=True)
        for _ in range(min(len(works), LANES) - 1)
    ]
    for helper in helpers:
        helper.start()
    lane()
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[0]


class WorkThread:
    """A thread that runs work items in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str = "store") -> None:
        self._loop = loop
        self._queue: SimpleQueue[tuple[_Work, _Done] | None] = SimpleQueue()
        # Without `daemon`, a disk that never answers would prevent the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, work: _Work, done: _Done) -> None:
        """Run `work` in the thread; then call `done` on the loop with the error, or None."""
        self._queue.put((work, done))

    def close(self, timeout: float = 10.0) -> None:
        """Let the thread finish its queue; wait at most `timeout` seconds."""
        self._queue.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        while (task := self._queue.get()) is not None:
            work, done = task
            error: BaseException | None = None
            try:
                work()
            except BaseException as raised:  # `done` decides on the loop about the error.
                error = raised
                _log.error("store.work_failed", error=f"{type(raised).__name__}: {raised}")
            try:
                self._loop.call_soon_threadsafe(done, error)
            except RuntimeError:
                return  # The loop has ended, and all waiters with it.
