"""SHELL: work that waits for the disk, done in a thread beside the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue

from txbroker.runtime.structured_log import get_logger

_Work = Callable[[], None]
_Done = Callable[[BaseException | None], None]

_log = get_logger()


class WorkThread:
    """One thread that does one thing after the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str = "store") -> None:
        self._loop = loop
        self._queue: SimpleQueue[tuple[_Work, _Done] | None] = SimpleQueue()
        # A disk that never answers must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, work: _Work, done: _Done) -> None:
        """Do `work` in the thread, then call `done` on the loop with the error, or None."""
        self._queue.put((work, done))

    def close(self, timeout: float = 10.0) -> None:
        """Let the thread finish what it was given; at most `timeout` seconds are waited for it."""
        self._queue.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        while (task := self._queue.get()) is not None:
            work, done = task
            error: BaseException | None = None
            try:
                work()
            except BaseException as raised:  # the loop decides what becomes of it
                error = raised
                _log.error("store.work_failed", error=f"{type(raised).__name__}: {raised}")
            try:
                self._loop.call_soon_threadsafe(done, error)
            except RuntimeError:
                return  # the loop has ended, and with it everybody who waits
