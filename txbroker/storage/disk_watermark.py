"""
SHELL: decides whether the disk of a node's `data` folder has room for publishes.

A node on a full disk can write nothing, not even the records that would free space. So publishes
stop at a watermark before that, `limits.disk_free`. Below the watermark the node neither reads nor
acknowledges publishes, and skips none. Subscriptions, deliveries and their acknowledgements
continue.

Three conditions make the node *short*: too few free bytes, a refused write (`set_full`), too many
bytes that wait for a sync (`set_behind`). The watermark notifies its listeners when `is_short`
changes, and runs waiting actions when it becomes False.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from pathlib import Path

from txbroker.config import ReserveSize
from txbroker.model.counters import Counters
from txbroker.model.timers import Cancellable, Timers
from txbroker.runtime.flush_queue import run_all
from txbroker.runtime.structured_log import get_logger, log_limited

log = get_logger()

LOOK_EVERY = 1.0
LOOK_OFTEN = 0.2
"""
Seconds between two measurements of the disk, beside the measurement after each write.

The node measures every `LOOK_EVERY`; the watermark itself every `LOOK_OFTEN` while it is short.
"""

MARGIN = 1.25
"""
Publishes resume when the free bytes exceed the reserve times this factor.

Without the factor, a disk near the watermark stops and starts its clients five times a second.
"""


ROOMY = 1024**3
"""
Free bytes above the watermark that make a measurement after each write superfluous.

No node writes this much between two regular measurements.
"""


def measure(folder: Path) -> tuple[int, int]:
    """Return the bytes free for this process on the file system of `folder`, and the size."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


class DiskWatermark:
    """
    The disk watermark of a node. Publishes stop while `is_short` is True.

    `is_full`: True if the free bytes are below the watermark, or the disk refused a write.
    `is_short`: True if the disk `is_full`, or too many bytes wait for a sync. `free` is the number
    of free bytes at the last measurement.
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
        """End the watermark's own measurements."""
        self._is_stopped = True
        self._cancel()

    def set_reserve(self, reserve: ReserveSize) -> None:
        """Replace the reserve, and measure at once."""
        self._reserve = reserve
        self.measure()

    def measure(self) -> None:
        """Measure the disk, notify listeners of a change, and schedule a retry while short."""
        self._cancel()
        self._read_free_space()
        if self.is_short and not self._is_stopped:
            self._alarm = self._timers.call_later(LOOK_OFTEN, self._retry)

    # from the committer

    def measure_after_write(self) -> None:
        """
        Measure after a write, unless the disk is short or roomy.

        A small disk fills up within the time between two regular measurements.
        """
        if not (self.is_short or self._is_roomy):
            self.measure()

    def set_full(self, is_full: bool, reason: str) -> None:
        """Record that the disk refused a write for `reason`, or accepts writes again."""
        self._refusal = reason if is_full else None
        self._settle(reason)

    def set_behind(self, is_behind: bool, reason: str) -> None:
        """Record that too many bytes wait for a sync, as `reason` says, or that few do."""
        self._is_behind = is_behind
        if is_behind:
            self._counters.add("disk.behind")
            log_limited(log.warning, "disk.behind", folder=str(self._folder), why=reason)
        self._settle(reason)

    # from those who take publishes

    def when_changed(self, action: Callable[[], None]) -> None:
        """Run `action` after each change of `is_short`."""
        self._on_change.append(action)

    def when_room(self, waiter: Hashable, action: Callable[[], None]) -> None:
        """Run `action` once, when the disk has room; `forget` cancels it by `waiter`."""
        self._waiting[waiter] = action

    def forget(self, waiter: Hashable) -> None:
        """Cancel the action of `waiter`; without an action, nothing happens."""
        self._waiting.pop(waiter, None)

    # internal

    def _retry(self) -> None:
        self._alarm = None
        self.measure()

    def _cancel(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _read_free_space(self) -> None:
        try:
            self.free, total = self._measure(self._folder)
        except OSError:
            return  # The next write into a missing folder raises its own error.
        reserve = self._reserve.of(total)
        self._is_low = self.free < (reserve * MARGIN if self._is_low else reserve)
        self._is_roomy = self.free > reserve + ROOMY
        self._settle(f"{self.free} bytes are free, {reserve} are to stay so")

    def _settle(self, reason: str) -> None:
        is_full = self._is_low or self._refusal is not None
        if is_full != self.is_full:
            self.is_full = is_full
            self._log_short(reason)
        is_short = is_full or self._is_behind
        if is_short == self.is_short:
            return
        self.is_short = is_short
        run_all(self._on_change)
        if not is_short:
            waiting, self._waiting = self._waiting, {}
            run_all(waiting.values())

    def _log_short(self, reason: str) -> None:
        folder = str(self._folder)
        if self.is_full:
            self._counters.add("disk.short")
            log.error("disk.short", limit="limits.disk_free", folder=folder, why=reason)
        else:
            log.info("disk.ok", folder=folder, free=self.free)
