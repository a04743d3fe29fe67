"""
Limits how many CONNECTs look up their session at once.

A look-up calls other nodes, some milliseconds each on both sides. Thousands at once make each of
them late. Then all are refused, and so are those of other nodes, whose calls wait behind them. So
`AT_ONCE` look-ups run, and a CONNECT whose client has left meanwhile is not looked up.

The others wait. Each waits in the order of arrival within its source, and sources take turns.
Otherwise a crowd from one host makes all others wait for its end.

Nodes that do not answer delay only the CONNECTs that need them. If no look-up ends for `PATIENCE`,
as many more begin (a new round).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar

import attrs

from txbroker.directory.effects import Procedure
from txbroker.edge.sessions.connect_procedure import LookUp
from txbroker.model.timers import Cancellable, Timers
from txbroker.runtime.fair_shares import CROWD
from txbroker.runtime.rotation import Rotation

T = TypeVar("T")

AT_ONCE = 16
"""
Look-ups that run at the same time.

The look-ups end together, as they go in one request. With 32, such a turn of the event loop took 15
ms, and each look-up took several of these. A storm of CONNECTs doubled the time of a CONNECT from
another host.
"""

MOST_LEFT = 50
"""
CONNECTs of clients that have left, which are dropped in one turn.

A thousand of them took 0.1 s, in which the node served nobody.
"""

PATIENCE = 0.1
"""Seconds without the end of any look-up, after which as many more begin."""


class ProcedureRunner(Protocol):
    """
    The shell that runs procedures; `finished` is called in the turn in which a procedure ends.
    """

    def run(
        self, procedure: Procedure[T], finished: Callable[[T], object] = lambda _: None
    ) -> None:
        """Run the procedure to its end."""


@attrs.frozen
class _Waiting:
    look_up: LookUp
    finished: Callable[[Any], object]
    dropped: Callable[[], object]


class ConnectThrottle:
    """Throttle of one node; procedures pass it on their way to `runner`."""

    def __init__(self, runner: ProcedureRunner, timers: Timers) -> None:
        self._runner = runner
        self._timers = timers
        self._waiting: Rotation[Hashable, _Waiting] = Rotation()
        self._is_going_on = False
        self._inside = 0  # look-ups of this round that have not ended
        self._round = 0
        self._alarm: Cancellable | None = None
        self._is_due = False  # further CONNECTs are looked at in another turn

    def admit(
        self, look_up: LookUp, finished: Callable[[Any], object], dropped: Callable[[], object]
    ) -> None:
        """
        Begin the look-up, at once or in its source's turn; `finished` gets its result.

        If the client is gone by its turn, `dropped` is called instead.
        """
        # The first CONNECT of a kept session takes longest. Clean sessions have a source of their
        # own, so that none waits for it.
        source = (look_up.client.host(), look_up.is_clean)
        self._waiting.add(source, _Waiting(look_up, finished, dropped))
        if len(self._waiting) == 1:
            self._start_waiting()

    # internal

    def _start(self, waiting: _Waiting) -> None:
        its_round = self._round
        self._inside += 1

        def ended(result: object) -> None:
            if its_round == self._round:
                self._inside -= 1
            try:
                waiting.finished(result)
            finally:
                self._watch(is_new=True)
                self._start_waiting()

        self._runner.run(waiting.look_up.make(), ended)

    def _start_waiting(self) -> None:
        if self._is_going_on:
            return  # a procedure that began has ended at once; the outer call's loop continues
        self._is_going_on = True
        left = 0
        try:
            while self._waiting and self._inside < AT_ONCE and not self._is_due:
                is_crowd = len(self._waiting) > CROWD
                one = self._waiting.next()
                if is_crowd:
                    one.look_up.client.drop_if_gone()
                if one.look_up.client.is_open:
                    self._start(one)
                else:
                    one.dropped()
                    left += 1
                    if left == MOST_LEFT:
                        self._is_due = True
                        self._timers.call_later(0.0, self._go_on)
        finally:
            self._is_going_on = False
            self._watch()

    def _go_on(self) -> None:
        self._is_due = False
        self._start_waiting()

    def _watch(self, *, is_new: bool = False) -> None:
        if self._alarm is not None and (is_new or not self._waiting):
            self._alarm.cancel()
            self._alarm = None
        if self._alarm is None and self._waiting:
            self._alarm = self._timers.call_later(PATIENCE, self._start_round)

    def _start_round(self) -> None:
        self._alarm = None
        self._round += 1
        self._inside = 0
        self._start_waiting()
