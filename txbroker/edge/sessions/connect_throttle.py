"""
How many clients are looked for at once.

To find the session of a client that comes takes calls to other nodes, some milliseconds each on
both sides. Thousands at once make each of them late: then all are refused, those of other nodes as
well, whose questions wait behind. So few look at once, and whoever has left meanwhile is not looked
for at all. The others wait in the order in which they came, each behind those of its own source
only: sources take turns, as a crowd from one host made all others wait for its end.

Nodes that do not answer hold up those who need them, and nobody else: after a while without an end
of any, as many more begin.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

import attrs

from txbroker.directory.effects import Procedure
from txbroker.model.timers import Cancellable, Timers
from txbroker.runtime.fair_shares import CROWD
from txbroker.runtime.rotation import Rotation

T = TypeVar("T")

AT_ONCE = 32
"""Clients that are looked for at the same time."""

PATIENCE = 0.1
"""Seconds without an end of any, after which as many more begin."""


class ProcedureRunner(Protocol):
    """The shell that runs procedures; `finished` is called in the turn in which one ends."""

    def run(
        self, procedure: Procedure[T], finished: Callable[[T], object] = lambda _: None
    ) -> None:
        """Run it to its end."""


@attrs.frozen
class _Waiting:
    begin: Callable[[], None]
    is_wanted: Callable[[], bool]
    drop_if_gone: Callable[[], object]


class ConnectThrottle:
    """Of one node; procedures pass it on their way to `runner`."""

    def __init__(self, runner: ProcedureRunner, timers: Timers) -> None:
        self._runner = runner
        self._timers = timers
        self._waiting: Rotation[Hashable, _Waiting] = Rotation()
        self._is_going_on = False
        self._inside = 0  # of this round
        self._round = 0
        self._alarm: Cancellable | None = None

    def pass_through(
        self,
        make: Callable[[], Procedure[T]],
        finished: Callable[[T], object],
        is_wanted: Callable[[], bool],
        drop_if_gone: Callable[[], object],
        *,
        source: Hashable,
    ) -> None:
        """
        Run the procedure that `make` gives, at once or when its source has its turn, if it is
        wanted by then. `drop_if_gone` has a look at whom it is for, who is not heard of while it
        waits.
        """
        one = _Waiting(lambda: self._begin(make(), finished), is_wanted, drop_if_gone)
        self._waiting.add(source, one)
        if len(self._waiting) == 1:
            self._go_on()

    # internal

    def _begin(self, procedure: Procedure[T], finished: Callable[[T], object]) -> None:
        its_round = self._round
        self._inside += 1

        def ended(result: T) -> None:
            if its_round == self._round:
                self._inside -= 1
            try:
                finished(result)
            finally:
                self._watch(is_new=True)
                self._go_on()

        self._runner.run(procedure, ended)

    def _go_on(self) -> None:
        if self._is_going_on:
            return  # one that began has ended at once
        self._is_going_on = True
        try:
            while self._waiting and self._inside < AT_ONCE:
                is_crowd = len(self._waiting) > CROWD
                one = self._waiting.next()
                if is_crowd:
                    one.drop_if_gone()
                if one.is_wanted():
                    one.begin()
        finally:
            self._is_going_on = False
            self._watch()

    def _watch(self, *, is_new: bool = False) -> None:
        if self._alarm is not None and (is_new or not self._waiting):
            self._alarm.cancel()
            self._alarm = None
        if self._alarm is None and self._waiting:
            self._alarm = self._timers.call_later(PATIENCE, self._begin_round)

    def _begin_round(self) -> None:
        self._alarm = None
        self._round += 1
        self._inside = 0
        self._go_on()
