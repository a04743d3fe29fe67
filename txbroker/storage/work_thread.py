"""SHELL: runs work that blocks on the disk in a thread beside the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue

from txbroker.runtime.structured_log import get_logger

_Work = Callable[[], Callable[[], None] | None]
_Done = Callable[[BaseException | None], None]

_log = get_logger()


class WorkThread:
    """A thread that runs work items in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str = "store") -> None:
        self._loop = loop
        self._queue: SimpleQueue[tuple[_Work, _Done] | None] = SimpleQueue()
        # Without `daemon`, a disk that never answers would prevent the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, work: _Work, done: _Done) -> None:
        """
        Run `work` in the thread; then call `done` on the loop with the error, or None.

        `work` may return more work, which nobody awaits: it runs after `done` was called.
        """
        self._queue.put((work, done))

    def close(self, timeout: float = 10.0) -> None:
        """Let the thread finish its queue; wait at most `timeout` seconds."""
        self._queue.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        while (task := self._queue.get()) is not None:
            work, done = task
            error: BaseException | None = None
            more: Callable[[], None] | None = None
            try:
                more = work()
            except BaseException as raised:  # `done` decides on the loop about the error.
                error = raised
                _log.error("storage.sync_failed", error=f"{type(raised).__name__}: {raised}")
            try:
                self._loop.call_soon_threadsafe(done, error)
            except RuntimeError:
                return  # The loop has ended, and all waiters with it.
            if more is not None:
                more()
