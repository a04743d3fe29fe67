"""
SHELL: whether the disk of a node's `data` folder has room for publishes.

A node whose disk is full to the last byte can write nothing any more, not even what would make room
again. So publishes stop before that, at the watermark `limits.disk_free`: they are not read, not
acknowledged and never skipped, while subscriptions, deliveries and acknowledgements go on. The
committer may say the same of a disk that refuses a write.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from pathlib import Path

from txbroker.config import ReserveSize
from txbroker.model.counters import Counters
from txbroker.model.timers import Cancellable, Timers
from txbroker.runtime.flush_queue import run_all
from txbroker.runtime.structured_log import get_logger, tell_repeated

log = get_logger()

LOOK_EVERY = 1.0
LOOK_OFTEN = 0.2
"""Seconds between two looks at the disk, beside one after each write: the node's, and its own while
it is short."""

MARGIN = 1.25
"""So many times the reserve must be free before publishes are taken again, so that a disk that
hovers about the watermark does not stop and start its clients five times a second."""


ROOMY = 1024**3
"""Bytes above the watermark that nobody writes between two looks."""


def measure(folder: Path) -> tuple[int, int]:
    """Bytes free for this process on the file system of `folder`, and its size; raises OSError."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


class DiskWatermark:
    """
    One for each node; `is_short`: what would have to be durable is not taken now, as the disk
    `is_full`, or as too much waits for a sync.
    """

    def __init__(
        self,
        folder: Path,
        reserve: ReserveSize,
        *,
        timers: Timers,
        counters: Counters,
        measure: Callable[[Path], tuple[int, int]] = measure,
    ) -> None:
        self.is_short = False
        self.is_full = False
        self.free = 0
        self._folder = folder
        self._reserve = reserve
        self._timers = timers
        self._counters = counters
        self._measure = measure
        self._is_low = False
        self._is_roomy = False
        self._is_stopped = False
        self._refusal: str | None = None
        self._is_behind = False
        self._alarm: Cancellable | None = None
        self._on_change: list[Callable[[], None]] = []
        self._waiting: dict[Hashable, Callable[[], None]] = {}

    # from the node

    def stop(self) -> None:
        """Look no more by itself."""
        self._is_stopped = True
        self._cancel()

    def set_reserve(self, reserve: ReserveSize) -> None:
        """Another watermark, from now on."""
        self._reserve = reserve
        self.look()

    def look(self) -> None:
        """Measure, and tell whom it concerns where that changes something; soon again if short."""
        self._cancel()
        self._look()
        if self.is_short and not self._is_stopped:
            self._alarm = self._timers.call_later(LOOK_OFTEN, self._look_again)

    # from the committer

    def note_written(self) -> None:
        """
        Something was written: look whether it still may be. A small disk is full in less time than
        passes between two looks.
        """
        if not (self.is_short or self._is_roomy):
            self.look()

    def set_full(self, is_full: bool, reason: str) -> None:
        """The disk has refused a write, for this `reason`; or it has taken what it refused."""
        self._refusal = reason if is_full else None
        self._settle(reason)

    def set_behind(self, is_behind: bool, reason: str) -> None:
        """Too much waits for a sync, as `reason` says; or no more."""
        self._is_behind = is_behind
        if is_behind:
            self._counters.add("disk.behind")
            tell_repeated(log.warning, "disk.behind", folder=str(self._folder), why=reason)
        self._settle(reason)

    # from those who take publishes

    def when_changed(self, action: Callable[[], None]) -> None:
        """Run `action` each time that `is_short` has changed."""
        self._on_change.append(action)

    def when_room(self, waiter: Hashable, action: Callable[[], None]) -> None:
        """Run `action` once, when there is room again; `waiter` may `forget` it before."""
        self._waiting[waiter] = action

    def forget(self, waiter: Hashable) -> None:
        """It does not wait any more; harmless where it does not."""
        self._waiting.pop(waiter, None)

    # internal

    def _look_again(self) -> None:
        self._alarm = None
        self.look()

    def _cancel(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _look(self) -> None:
        try:
            self.free, total = self._measure(self._folder)
        except OSError:
            return  # a folder that is gone is told by whoever writes to it
        reserve = self._reserve.of(total)
        self._is_low = self.free < (reserve * MARGIN if self._is_low else reserve)
        self._is_roomy = self.free > reserve + ROOMY
        self._settle(f"{self.free} bytes are free, {reserve} are to stay so")

    def _settle(self, reason: str) -> None:
        is_full = self._is_low or self._refusal is not None
        if is_full != self.is_full:
            self.is_full = is_full
            self._tell_full(reason)
        is_short = is_full or self._is_behind
        if is_short == self.is_short:
            return
        self.is_short = is_short
        run_all(self._on_change)
        if not is_short:
            waiting, self._waiting = self._waiting, {}
            run_all(waiting.values())

    def _tell_full(self, reason: str) -> None:
        folder = str(self._folder)
        if self.is_full:
            self._counters.add("disk.short")
            log.error("disk.short", limit="limits.disk_free", folder=folder, why=reason)
        else:
            log.info("disk.ok", folder=folder, free=self.free)
