"""
Slow consumers against their publishers: who waits, and for how long.

A target (a client's queue, a link's queue) that passes its high mark raises the pressure; while it
is up, the node takes in no more publishes than its buffers hold, and returns no credit. A target
that has not come down to its low mark after `patience` seconds has had its turn: it is *slow*, no
longer counts, and what passes its limit is dropped and counted until it has drained. So a consumer
that is merely busy loses nothing, and one that is stuck stalls nobody for longer than that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from txbroker.timers import Cancellable, Timers


class Pressure:
    """One for each node; the `when_relieved` actions run when the last target came down."""

    def __init__(self, timers: Timers, patience: float = 1.0) -> None:
        self._timers = timers
        self._patience = patience
        self._raised: dict[Hashable, Cancellable] = {}
        self._slow: set[Hashable] = set()
        self._actions: list[Callable[[], None]] = []

    @property
    def active(self) -> bool:
        """Whether somebody has to be waited for."""
        return bool(self._raised)

    def when_relieved(self, action: Callable[[], None]) -> None:
        """Run `action` each time that the pressure goes."""
        self._actions.append(action)

    def is_slow(self, target: Hashable) -> bool:
        """Whether the target had its turn and has not drained since."""
        return target in self._slow

    def raise_(self, target: Hashable, patience: float | None = None) -> None:
        """The target passed its high mark; `patience` seconds where it is not the usual time."""
        if target not in self._raised and target not in self._slow:
            self._wait_for(target, self._patience if patience is None else patience)

    def renew(self, target: Hashable, patience: float) -> None:
        """The target is still above its low mark, but has come on: its time begins anew."""
        alarm = self._raised.get(target)
        if alarm is not None:
            alarm.cancel()
            self._wait_for(target, patience)

    def lower(self, target: Hashable) -> None:
        """The target is below its low mark, or gone."""
        self._slow.discard(target)
        alarm = self._raised.pop(target, None)
        if alarm is not None:
            alarm.cancel()
            self._relieve()

    def _wait_for(self, target: Hashable, patience: float) -> None:
        self._raised[target] = self._timers.call_later(patience, lambda: self._expire(target))

    def _expire(self, target: Hashable) -> None:
        del self._raised[target]
        self._slow.add(target)
        self._relieve()

    def _relieve(self) -> None:
        if not self._raised:
            for action in self._actions:
                action()
