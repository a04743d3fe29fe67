"""Runs the procedures of CONNECTs: look-ups in turn, waits for the store, words to the keepers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from txbroker.directory.effects import AwaitDurable
from txbroker.edge.sessions.connect_procedure import ConnectProcedure, LookUp
from txbroker.edge.sessions.connect_throttle import ConnectThrottle, ProcedureRunner
from txbroker.model.timers import Timers


class ConnectRunner:
    """
    The runner of one node; `when_durable` is the store's.

    A step that ends at once costs no turn of the loop: the procedure goes on in the same call.
    """

    def __init__(
        self,
        runner: ProcedureRunner,
        when_durable: Callable[[Callable[[], None]], None],
        timers: Timers,
    ) -> None:
        self._runner = runner
        self._when_durable = when_durable
        self._throttle = ConnectThrottle(runner, timers)
        self._timers = timers

    def now(self) -> float:
        """Return the monotonic time in seconds."""
        return self._timers.now()

    def run(self, procedure: ConnectProcedure[None]) -> bool:
        """Run the procedure up to a step that has to wait; return True if it has ended."""
        return self._advance(procedure, None)

    # internal

    def _advance(self, procedure: ConnectProcedure[None], result: Any) -> bool:
        while True:
            try:
                step = procedure.send(result)
            except StopIteration:
                return True
            if isinstance(step, AwaitDurable):
                self._when_durable(partial(self._resume, procedure))  # at the turn's end, or later
                return False
            done = _Completion()
            if isinstance(step, LookUp):
                self._throttle.admit(step, done.set, procedure.close)
            else:
                self._runner.run(step.procedure, done.set)
            if not done.is_here:
                done.resume = partial(self._resume, procedure)
                return False
            result = done.result

    def _resume(self, procedure: ConnectProcedure[None], result: Any = None) -> None:
        self._advance(procedure, result)


class _Completion:
    """The end of one step: at once, so that its result is here, or later, to resume with."""

    __slots__ = ("is_here", "result", "resume")

    def __init__(self) -> None:
        self.is_here = False
        self.result: Any = None
        self.resume: Callable[[Any], None] | None = None

    def set(self, result: Any) -> None:
        """Note the result of the step."""
        if self.resume is not None:
            self.resume(result)
        else:
            self.is_here, self.result = True, result
