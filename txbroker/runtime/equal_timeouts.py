"""Alarms of many who wait equally long, most of which are taken back: one call is there for all."""

from __future__ import annotations

from collections.abc import Callable

from txbroker.model.timers import Cancellable, Timers


class EqualTimeouts:
    """
    `Timers` for delays that are all the same: who came first is due first.

    Where a delay is shorter than one before, its alarm may ring as late as that one.
    """

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._waiting: dict[_Wait, None] = {}  # in the order in which they came
        self._call: Cancellable | None = None

    def now(self) -> float:
        """Seconds since some fixed moment."""
        return self._timers.now()

    def call_later(self, delay: float, action: Callable[[], None]) -> Cancellable:
        """Run `action` once, `delay` seconds from now."""
        wait = _Wait(self._timers.now() + delay, action, self._waiting)
        self._waiting[wait] = None
        if self._call is None:
            self._call = self._timers.call_later(delay, self._ring)
        return wait

    def _ring(self) -> None:
        now = self._timers.now()
        try:
            while self._waiting and (first := next(iter(self._waiting))).due <= now:
                first.cancel()
                first.action()
        finally:  # an error of one does not take the others' alarms from them
            self._call = None
            if self._waiting:
                first = next(iter(self._waiting))
                self._call = self._timers.call_later(max(0.0, first.due - now), self._ring)


class _Wait:
    """One of them."""

    __slots__ = ("_among", "action", "due")

    def __init__(self, due: float, action: Callable[[], None], among: dict[_Wait, None]) -> None:
        self.due = due
        self.action = action
        self._among = among

    def cancel(self) -> None:
        """Take it back; it may have rung."""
        self._among.pop(self, None)
