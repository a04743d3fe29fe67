"""
Deadlines of very many, most of whom never meet theirs.

A delayed call of the reactor is several objects, and one that was taken back stays for a while. The
keep-alive of ten thousand clients needs neither to be exact nor to be ten thousand calls: all whose
time comes in the same tenth of a second share one.
"""

from __future__ import annotations

import heapq
from typing import Protocol

from txbroker.runtime.net import Clock, DelayedCall

GRAIN = 0.1
"""Seconds by which a deadline may be late; it is never early."""

FEW = 1_000
"""Moments for which nobody waits any more that are kept until they come."""

Slot = int
"""A moment, in grains of the clock."""


class HasDeadline(Protocol):
    """Someone with a deadline."""

    def on_deadline(self) -> None:
        """It is there."""


class Deadlines:
    """Each who waits has one deadline at the most, and keeps the slot in which it is."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._count = 0
        self._waiting: dict[Slot, dict[HasDeadline, None]] = {}
        self._slots: list[Slot] = []  # a heap: the keys of the above
        self._empty = 0  # slots that were emptied by `cancel`
        self._call: DelayedCall | None = None
        self._called: Slot = 0

    def __len__(self) -> int:
        """How many wait, and the moments that are kept for them."""
        return self._count + len(self._slots)

    def set(self, who: HasDeadline, delay: float) -> Slot:
        """Call its `on_deadline` in `delay` seconds, or up to `GRAIN` later."""
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
        """Do not call it; it may have been called."""
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
        # Keep-alives of up to 18 hours, each of its own length, would leave a million slots behind.
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
        finally:  # an error of one does not take the others' deadlines from them
            if self._slots:
                self._arm()

    def _ring_at(self, slot: Slot) -> None:
        waiting = self._waiting[slot]
        while waiting:
            who, _ = waiting.popitem()
            self._count -= 1
            who.on_deadline()
        if self._waiting.get(slot) is waiting:  # not if the last of all has been cancelled since
            heapq.heappop(self._slots)
            del self._waiting[slot]
