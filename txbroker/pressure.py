"""
Slow consumers against their publishers: who waits, and for how long.

A target (a client's queue, a link's queue) that passes its high mark raises the pressure; while it
is up, the node takes in no more publishes than its buffers hold, and returns no credit. A target
that has not come down to its low mark after its patience has had its turn: it is *slow*, no longer
counts, and what passes its limit is dropped and counted until it has drained. So a consumer that is
merely busy loses nothing, and one that is stuck stalls nobody for longer than that.

One that drains, but takes its time each time, would stall everybody again and again. So the time
for which a target has held others up is its debt: the patience is that much less, until the debt is
forgiven. Short times cost nothing: a fast consumer is full often at full speed.

Many consumers that are each waited for once would stall everybody as well: so the node has a budget
for all of them together. A target that never came down gets what is left of that, and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import attrs

from txbroker.timers import Cancellable, Timers
from txbroker.turn import run_all

PATIENCE = 0.3
"""Seconds for which publishers wait for a consumer, in general."""

SHORT = 0.1
"""Seconds for which a target may hold others up at a stretch without running into debt."""

FORGIVEN = 0.1
"""How much of a debt is forgiven in each second, in seconds."""


SHARE = 0.1
"""What of the time the node may wait for targets, all together, in the long run."""


@attrs.define(slots=True, eq=False)
class _Raised:
    since: float
    alarm: Cancellable


class Pressure:
    """One for each node; the `when_relieved` actions run when the last target came down."""

    def __init__(self, timers: Timers, patience: float = PATIENCE) -> None:
        self._timers = timers
        self._patience = patience
        self._raised: dict[Hashable, _Raised] = {}
        self._slow: set[Hashable] = set()
        self._debts: dict[Hashable, tuple[float, float]] = {}  # how much, as of when
        self._proven: dict[Hashable, int] = {}
        self._budget = (2 * patience, timers.now())  # how much, as of when
        self._begun = 0.0  # since when somebody is waited for
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
        if target in self._raised or target in self._slow:
            return
        usual = self._patience if patience is None else patience
        # It has earned a short time with each time that it came down.
        earned = SHORT * self._proven.get(target, 0)
        # Half of the budget stays for the next one, who may be the better one.
        left = min(usual - self._debt(target), max(self._left() / 2, earned))
        if left > 0:
            self._wait_for(target, left)
        else:
            self._slow.add(target)

    def renew(self, target: Hashable, patience: float) -> None:
        """The target is still above its low mark, but has come on: its time begins anew."""
        raised = self._raised.get(target)
        if raised is not None:
            self._proven[target] = self._proven.get(target, 0) + 1
            raised.alarm.cancel()
            self._wait_for(target, patience)

    def lower(self, target: Hashable) -> None:
        """The target is below its low mark."""
        self._slow.discard(target)
        raised = self._raised.pop(target, None)
        if raised is not None:
            raised.alarm.cancel()
            held_up = self._timers.now() - raised.since
            self._proven[target] = self._proven.get(target, 0) + 1
            self._charge(target, held_up if held_up > SHORT else 0.0)
            self._relieve(is_short=held_up <= SHORT)

    def forget(self, *targets: Hashable) -> None:
        """The targets are gone."""
        if self._raised or self._slow or self._debts or self._proven:
            for target in targets:
                self.lower(target)
                self._debts.pop(target, None)
                self._proven.pop(target, None)

    # internal

    def _wait_for(self, target: Hashable, patience: float) -> None:
        now = self._timers.now()
        if not self._raised:
            self._begun = now
        alarm = self._timers.call_later(patience, lambda: self._expire(target))
        self._raised[target] = _Raised(now, alarm)

    def _expire(self, target: Hashable) -> None:
        self._charge(target, self._timers.now() - self._raised.pop(target).since)
        self._slow.add(target)
        self._relieve(is_short=False)

    def _left(self) -> float:
        """What is left of the node's budget, in seconds."""
        amount, since = self._budget
        return min(amount + SHARE * (self._timers.now() - since), 2 * self._patience)

    def _debt(self, target: Hashable) -> float:
        amount, since = self._debts.get(target, (0.0, 0.0))
        return max(amount - FORGIVEN * (self._timers.now() - since), 0.0)

    def _charge(self, target: Hashable, held_up: float) -> None:
        debt = self._debt(target) + held_up
        if debt:
            self._debts[target] = debt, self._timers.now()
        else:
            self._debts.pop(target, None)

    def _relieve(self, *, is_short: bool) -> None:
        """One target less is waited for; what was waited for it counts, if it was not short."""
        now = self._timers.now()
        if not is_short:
            self._budget = max(self._left() - (now - self._begun), 0.0), now
            self._begun = now
        if not self._raised:
            run_all(self._actions)
