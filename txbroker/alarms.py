"""SHELL: the cores' `Timers` on Twisted's reactor, and what is done again and again."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.task import LoopingCall

from txbroker.errors import TxbrokerError
from txbroker.net import Clock, DelayedCall
from txbroker.telemetry import get_logger
from txbroker.turn import Turn

log = get_logger()


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


class Periodic:
    """
    Work that is done at once and then again and again; an error puts it off until the next time.
    """

    def __init__(self, reactor: Clock, work: Callable[[], None]) -> None:
        self._work = work
        self._call = LoopingCall(self._try)
        self._call.clock = reactor

    def start(self, seconds: float) -> None:
        """Do it now, and then each time when so many seconds have gone by."""
        self._call.start(seconds)

    def stop(self) -> None:
        """Do it no more."""
        if self._call.running:
            self._call.stop()

    def _try(self) -> None:
        try:
            self._work()
        except TxbrokerError as error:  # the disk or the system has something against it just now
            log.warning("work.put_off", reason=str(error))
        except Exception:
            log.exception("timer.failed")
