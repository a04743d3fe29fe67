"""A clock that stands still until a test moves it."""

from __future__ import annotations

from collections.abc import Callable


class Alarm:
    """A call that has not happened yet."""

    def __init__(self, clock: Clock, due: float, action: Callable[[], None]) -> None:
        self.due = due
        self.action = action
        self._clock = clock

    def cancel(self) -> None:
        """Take it back; a call that has happened cannot be taken back."""
        self._clock.alarms.remove(self)


class Clock:
    """The `Timers` of a test: seconds from 0 on."""

    def __init__(self) -> None:
        self.alarms: list[Alarm] = []
        self._now = 0.0

    def now(self) -> float:
        """Seconds since the test began."""
        return self._now

    def call_later(self, delay: float, action: Callable[[], None]) -> Alarm:
        """Run `action` when `advance` passes its time."""
        alarm = Alarm(self, self._now + delay, action)
        self.alarms.append(alarm)
        return alarm

    def advance(self, seconds: float) -> None:
        """Let time pass; what falls due happens in its order, at its time."""
        until = self._now + seconds
        while due := [alarm for alarm in self.alarms if alarm.due <= until]:
            first = min(due, key=lambda alarm: alarm.due)
            self.alarms.remove(first)
            self._now = first.due
            first.action()
        self._now = until
