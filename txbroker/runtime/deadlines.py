"""
Schedules a very large number of deadlines, most of which are cancelled.

A delayed call of the reactor is several objects, and a cancelled call stays in memory for a while.
The keep-alive timers of ten thousand clients need neither exactness nor ten thousand calls. So all
deadlines in the same tenth of a second share one call.
"""

from __future__ import annotations

import heapq
from typing import Protocol

from txbroker.runtime.net import Clock, DelayedCall

GRAIN = 0.1
"""Seconds by which a deadline may be late; it is never early."""

FEW = 1_000
"""Empty slots that stay in the heap before a sweep removes them."""

Slot = int
"""A moment, in grains of the clock."""


class HasDeadline(Protocol):
    """An object that can have a deadline."""

    def on_deadline(self) -> None:
        """Handle the deadline."""


class Deadlines:
    """The deadlines of many objects; each has at most one, and remembers its slot."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._count = 0
        self._waiting: dict[Slot, dict[HasDeadline, None]] = {}
        self._slots: list[Slot] = []  # a heap: the keys of the above
        self._empty = 0  # slots that `cancel` emptied
        self._call: DelayedCall | None = None
        self._called: Slot = 0

    def __len__(self) -> int:
        """Return the number of deadlines plus the number of slots in the heap."""
        return self._count + len(self._slots)

    def set(self, who: HasDeadline, delay: float) -> Slot:
        """Call `who.on_deadline` in `delay` seconds, or up to `GRAIN` later; return the slot."""
        slot = int((self._clock.seconds() + delay) / GRAIN) + 1
        waiting = self._waiting.get(slot)
        if waiting is None:
            waiting = self._waiting[slot] = {}
            heapq.heappush(self._slots, slot)
            self._arm()
        self._count += 1
        waiting[who] = None
        return slot

    def cancel(self, who: HasDeadline, slot: Slot) -> None:
        """Cancel the deadline; a deadline that has passed is ignored."""
        waiting = self._waiting.get(slot)
        if waiting is not None and who in waiting:
            del waiting[who]
            self._count -= 1
            if not self._count:
                self._waiting.clear()
                self._slots.clear()
                self._empty = 0
                self._disarm()
            elif not waiting:
                self._empty += 1
                if self._empty > max(len(self._slots) // 2, FEW):
                    self._sweep()

    # internal

    def _sweep(self) -> None:
        # Keep-alives of up to 18 hours, each of its own length, would leave a million slots.
        self._waiting = {slot: waiting for slot, waiting in self._waiting.items() if waiting}
        self._slots = sorted(self._waiting)
        self._empty = 0

    def _arm(self) -> None:
        first = self._slots[0]
        if self._call is not None and self._called <= first:
            return
        self._disarm()
        self._called = first
        delay = max(0.0, first * GRAIN - self._clock.seconds())
        self._call = self._clock.callLater(delay, self._ring)

    def _disarm(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _ring(self) -> None:
        self._call = None
        now = self._clock.seconds()
        try:
            while self._slots and self._slots[0] * GRAIN <= now:
                self._ring_at(self._slots[0])
        finally:  # An error of one callback must not lose the other deadlines.
            if self._slots:
                self._arm()

    def _ring_at(self, slot: Slot) -> None:
        waiting = self._waiting[slot]
        while waiting:
            who, _ = waiting.popitem()
            self._count -= 1
            who.on_deadline()
        if self._waiting.get(slot) is waiting:  # False if a callback cancelled the last deadline.
            heapq.heappop(self._slots)
            del self._waiting[slot]
