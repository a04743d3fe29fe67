"""Schedules timeouts of equal length, most of which are cancelled, with one delayed call."""

from __future__ import annotations

from collections.abc import Callable

from txbroker.model.timers import Cancellable, Timers


class EqualTimeouts:
    """
    `Timers` for equal delays: the first alarm set is the first due.

    An alarm with a shorter delay than an earlier one may ring as late as the earlier one.
    """

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._waiting: dict[_Wait, None] = {}  # in the order of their start
        self._call: Cancellable | None = None

    def now(self) -> float:
        """Return the seconds since some fixed moment."""
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
        finally:  # An error of one action must not lose the other alarms.
            self._call = None
            if self._waiting:
                first = next(iter(self._waiting))
                self._call = self._timers.call_later(max(0.0, first.due - now), self._ring)


class _Wait:
    """One alarm."""

    __slots__ = ("_among", "action", "due")

    def __init__(self, due: float, action: Callable[[], None], among: dict[_Wait, None]) -> None:
        self.due = due
        self.action = action
        self._among = among

    def cancel(self) -> None:
        """Cancel the alarm; an alarm that has rung is ignored."""
        self._among.pop(self, None)
