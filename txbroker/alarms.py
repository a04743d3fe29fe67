"""SHELL: the cores' `Timers` on Twisted's reactor."""

from __future__ import annotations

from collections.abc import Callable

from txbroker.net import Clock, DelayedCall
from txbroker.turn import Turn


class ReactorTimers:
    """The cores' `Timers` on Twisted's reactor; each alarm ends the turn."""

    def __init__(self, reactor: Clock, turn: Turn) -> None:
        self._reactor = reactor
        self._turn = turn

    def now(self) -> float:
        """Seconds since some fixed moment."""
        return float(self._reactor.seconds())

    def call_later(self, delay: float, action: Callable[[], None]) -> Alarm:
        """Run `action` once, `delay` seconds from now."""

        def ring() -> None:
            action()
            self._turn.end()

        return Alarm(self._reactor.callLater(delay, ring))


class Alarm:
    """A delayed call that may be cancelled at any time, also after it happened."""

    def __init__(self, call: DelayedCall) -> None:
        self._call = call

    def cancel(self) -> None:
        """Take it back, if it has not happened."""
        if self._call.active():
            self._call.cancel()
