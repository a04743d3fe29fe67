"""
Schedules a very large number of deadlines, most of which are cancelled.

A delayed call of the reactor is several objects, and a cancelled call stays in memory for a while.
Ten thousand keep-alives, or SUBSCRIBEs that wait, need neither exactness nor ten thousand calls. So
all deadlines in the same tenth of a second share one call.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Final, Protocol

from txbroker.model.timers import Cancellable, Timers

PER_SECOND: Final = 10

GRAIN: Final = 1 / PER_SECOND
"""Seconds by which a deadline may be late; it is never early."""

RING_FOR: Final = 0.002
"""
Seconds per turn for deadlines that have passed; the others follow in the next turns.

Ten thousand clients may have the same keep-alive. Closed in one turn, they made the node deaf.
"""

FEW = 1_000
"""Empty slots that stay in the heap before a sweep removes them."""

Slot = int
"""A moment, in grains of the clock."""


class HasDeadline(Protocol):
    """An object that can have a deadline."""

    def on_deadline(self) -> None:
        """Handle the deadline."""


class Deadlines:
    """
    The deadlines of many objects; each has at most one, and remembers its slot.

    `call_later` makes an object for an action, for parts that want `Timers`.
    """

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._count = 0
        self._waiting: dict[Slot, dict[HasDeadline, None]] = {}
        self._slots: list[Slot] = []  # a heap: the keys of the above
        self._empty = 0  # slots that `cancel` emptied
        self._call: Cancellable | None = None
        self._called: Slot = 0

    def __len__(self) -> int:
        """Return the number of deadlines plus the number of slots in the heap."""
        return self._count + len(self._slots)

    def set(self, who: HasDeadline, delay: float) -> Slot:
        """Call `who.on_deadline` in `delay` seconds, or up to `GRAIN` later; return the slot."""
        slot = math.ceil((self._timers.now() + delay) * PER_SECOND)
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

    # Timers

    def now(self) -> float:
        """Return the seconds since some fixed moment."""
        return self._timers.now()

    def call_later(self, delay: float, action: Callable[[], None]) -> Cancellable:
        """Run `action` once, in `delay` seconds or up to `GRAIN` later."""
        return _Waiting(self, delay, action)

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
        delay = max(0.0, first / PER_SECOND - self._timers.now())
        self._call = self._timers.call_later(delay, self._ring)

    def _disarm(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _ring(self) -> None:
        self._call = None
        now = self._timers.now()
        until = now + RING_FOR
        try:
            while self._slots and self._slots[0] <= now * PER_SECOND:
                if not self._ring_at(self._slots[0], until):
                    break
        finally:  # An error of one callback must not lose the other deadlines.
            if self._slots:
                self._arm()

    def _ring_at(self, slot: Slot, until: float) -> bool:
        """Call all that wait for the slot until the time `until`; return False if some are left."""
        waiting = self._waiting[slot]
        while waiting:
            for who in tuple(waiting):  # a callback may cancel others, and set more
                if who in waiting:
                    del waiting[who]
                    self._count -= 1
                    who.on_deadline()
                    if waiting and self._timers.now() >= until:
                        return False
        if self._waiting.get(slot) is waiting:  # False if a callback cancelled the last deadline.
            heapq.heappop(self._slots)
            del self._waiting[slot]
        return True


class _Waiting:
    """An action with a deadline."""

    __slots__ = ("_action", "_deadlines", "_slot")

    def __init__(self, deadlines: Deadlines, delay: float, action: Callable[[], None]) -> None:
        self._deadlines = deadlines
        self._action = action
        self._slot = deadlines.set(self, delay)

    def on_deadline(self) -> None:
        self._action()

    def cancel(self) -> None:
        """Cancel the action; one that has run is ignored."""
        self._deadlines.cancel(self, self._slot)
