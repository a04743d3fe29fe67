"""SHELL: implements the cores' `Timers` on Twisted's reactor, and runs periodic tasks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from twisted.internet.task import LoopingCall

from txbroker.model.errors import TxbrokerError
from txbroker.runtime import hooks
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.runtime.net import Clock, DelayedCall
from txbroker.runtime.structured_log import get_logger

log = get_logger()

BEAT = 1.0
"""Seconds between two beats of the periodic tasks."""


def use_monotonic_clock(reactor: Any) -> None:
    """
    Make all calls of the reactor use the monotonic clock.

    Twisted's calls use the time of day: a step forward rings each alarm at once, a step back none.
    """
    if reactor.seconds is time.monotonic:
        return
    now = reactor.seconds()
    left = [(call, call.getTime() - now) for call in reactor.getDelayedCalls()]
    reactor.seconds = time.monotonic
    for call, delay in left:
        call.seconds = time.monotonic
        call.reset(max(delay, 0.0))


class ReactorTimers:
    """
    The cores' `Timers` on Twisted's reactor; each alarm ends the turn.

    `now` is the reactor's own: it is asked for each connection, and again for its keep-alive.
    """

    def __init__(self, reactor: Clock, flush_queue: FlushQueue) -> None:
        self._reactor = reactor
        self._flush_queue = flush_queue
        self.now = reactor.seconds

    def call_later(self, delay: float, action: Callable[[], None]) -> Alarm:
        """Run `action` once, `delay` seconds from now."""

        def ring() -> None:
            hooks.run(action)
            self._flush_queue.end()

        return Alarm(self._reactor.callLater(delay, ring))


class Alarm:
    """A delayed call that may be cancelled at any time, also after it rang."""

    def __init__(self, call: DelayedCall) -> None:
        self._call = call

    def cancel(self) -> None:
        """Cancel the call unless it has rung."""
        if self._call.active():
            self._call.cancel()


class PeriodicTasks:
    """
    The periodic work of a node, all of it at the same moments.

    A process that wakes finds its caches cold. Its first steps then take ten times as long as
    usual, while messages wait. So the process wakes once for all periodic work. An error postpones
    a task to its next period.
    """

    def __init__(self, clock: Clock) -> None:
        self._works: list[tuple[int, Callable[[], None]]] = []
        self._beats = 0
        self._call = LoopingCall(self._beat)
        self._call.clock = clock

    def every(self, seconds: float, work: Callable[[], None]) -> None:
        """Run `work` at the start, and then every `seconds`, rounded to whole beats."""
        self._works.append((round(seconds / BEAT), work))

    def start(self) -> None:
        """Start the beats."""
        self._call.start(BEAT)

    def stop(self) -> None:
        """Stop the beats."""
        if self._call.running:
            self._call.stop()

    def _beat(self) -> None:
        beats, self._beats = self._beats, self._beats + 1
        for period, work in self._works:
            if beats % period == 0:
                _try(work)


def _try(work: Callable[[], None]) -> None:
    try:
        work()
    except TxbrokerError as error:  # A passing fault of the disk or system must not end the node.
        log.warning("work.deferred", reason=str(error))
    except Exception:
        log.exception("timer.failed")
