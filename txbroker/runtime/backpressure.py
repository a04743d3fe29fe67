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

Many targets would stall everybody one after the other, each with a patience of its own. So all
long waits of a node come out of one budget, `BUDGET` seconds in each `WINDOW`, but those for
targets that drain as fast as publishers may expect. And nobody waits for
a stranger that connects to read nothing: a target that has never drained is on trial for a moment,
in which its own buffers take what comes; where they fill up before, its trial is a wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

import attrs

from txbroker.model.timers import Cancellable, Timers
from txbroker.runtime.flush_queue import run_all

PATIENCE = 0.3
"""Seconds for which publishers wait for one consumer."""

SHORT = 0.1
"""Seconds for which a target may hold others up at a stretch without running into debt."""

FORGIVEN = 0.1
"""How much of a debt is forgiven in each second, in seconds."""

WINDOW = 3.0
BUDGET = 0.1 * WINDOW
"""Seconds of all long waits in each `WINDOW`: publishers lose a tenth of their time at most."""

TRIAL = 0.1
"""Seconds within which a target that has never drained has to begin; nobody waits meanwhile."""

LOOK = 0.01
"""Seconds between two looks at a target on trial."""


@attrs.define(slots=True, eq=False)
class _Raised:
    """A wait; `mark` is what was left to drain when the target was last seen to come on."""

    since: float
    expires: float
    left: Callable[[], int]
    pace: int
    mark: int
    alarm: Cancellable


@attrs.define(slots=True, eq=False)
class _Trial:
    """A target has to come down by something from `mark` before `until`."""

    until: float
    left: Callable[[], int]
    pace: int
    mark: int
    alarm: Cancellable


class Backpressure:
    """One for each node; the `when_relieved` actions run when the last target came down."""

    def __init__(self, timers: Timers, patience: float = PATIENCE, budget: float = BUDGET) -> None:
        self._timers = timers
        self._patience = patience
        self._budget = budget
        self._raised: dict[Hashable, _Raised] = {}
        self._on_trial: dict[Hashable, _Trial] = {}
        self._slow: set[Hashable] = set()
        self._known: set[Hashable] = set()
        self._debts: dict[Hashable, tuple[float, float]] = {}  # how much, as of when
        self._spent: deque[tuple[float, float]] = deque()  # until when, how much
        self._total = 0.0
        self._spent_until = float("-inf")
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

    def raise_(
        self,
        target: Hashable,
        left: Callable[[], int],
        *,
        pace: int = 1,
        has_drained: bool = False,
    ) -> None:
        """
        The target passed its high mark. `left` tells how much it has not drained yet, in any unit;
        one that drains `pace` in a `SHORT` time is fast. `has_drained`: it did so before.
        """
        if target in self._raised or target in self._slow or target in self._on_trial:
            return
        if has_drained or target in self._known:
            self._wait_for(target, left, pace)
        else:
            until = self._timers.now() + TRIAL
            alarm = self._timers.call_later(LOOK, lambda: self._try(target))
            self._on_trial[target] = _Trial(until, left, pace, left(), alarm)

    def hurry(self, target: Hashable) -> None:
        """The buffers of a target fill up: where it is on trial, it is waited for until its end."""
        trial = self._on_trial.get(target)
        if trial is not None:
            self._end_trial(target)
            self._wait_for(target, trial.left, trial.pace, trial.until - self._timers.now())

    def lower(self, target: Hashable) -> None:
        """The target is below its low mark."""
        self._slow.discard(target)
        if self._end_trial(target):
            self._known.add(target)
        raised = self._end_wait(target)
        if raised is not None:
            held_up = self._timers.now() - raised.since
            if held_up > SHORT:
                self._known.discard(target)
                self._charge(target, held_up)
                self._spend(raised)
            else:
                self._known.add(target)
            self._relieve()

    def forget(self, *targets: Hashable) -> None:
        """The targets are gone."""
        if self._raised or self._on_trial or self._slow or self._debts or self._known:
            for target in targets:
                self._slow.discard(target)
                self._known.discard(target)
                self._debts.pop(target, None)
                self._end_trial(target)
                raised = self._end_wait(target)
                if raised is not None:  # another one may come in its place, and another
                    self._spend(raised)
                    self._relieve()

    # internal

    def _wait_for(
        self, target: Hashable, left: Callable[[], int], pace: int, most: float = float("inf")
    ) -> None:
        now = self._timers.now()
        free = SHORT if target in self._known else 0.0
        budget = max(self._budget - self._spent_lately(now), free)
        patience = min(self._patience - self._debt(target), budget, most)
        if patience > 0:
            alarm = self._look_later(target, patience)
            self._raised[target] = _Raised(now, now + patience, left, pace, left(), alarm)
        else:
            self._slow.add(target)

    def _look_later(self, target: Hashable, patience: float) -> Cancellable:
        return self._timers.call_later(min(patience, SHORT), lambda: self._look(target))

    def _look(self, target: Hashable) -> None:
        """A fast target is waited for as long as it takes; another one has its patience."""
        raised, now = self._raised[target], self._timers.now()
        left = raised.left()
        if left <= raised.mark - raised.pace:
            raised.expires += now - raised.since
            raised.since, raised.mark = now, left
        if now < raised.expires:
            raised.alarm = self._look_later(target, raised.expires - now)
            return
        del self._raised[target]
        self._known.discard(target)
        self._charge(target, now - raised.since)
        self._slow.add(target)
        self._spend(raised)
        self._relieve()

    def _try(self, target: Hashable) -> None:
        """What kernels move alone has gone into their buffers before; the rest is the target's."""
        trial, now = self._on_trial[target], self._timers.now()
        if trial.left() <= trial.mark - max(trial.pace // 4, 1):
            del self._on_trial[target]
            self._wait_for(target, trial.left, trial.pace)
        elif now < trial.until:
            trial.alarm = self._timers.call_later(LOOK, lambda: self._try(target))
        else:
            del self._on_trial[target]
            self._slow.add(target)

    def _end_wait(self, target: Hashable) -> _Raised | None:
        raised = self._raised.pop(target, None)
        if raised is not None:
            raised.alarm.cancel()
        return raised

    def _end_trial(self, target: Hashable) -> bool:
        trial = self._on_trial.pop(target, None)
        if trial is not None:
            trial.alarm.cancel()
        return trial is not None

    def _debt(self, target: Hashable) -> float:
        amount, since = self._debts.get(target, (0.0, 0.0))
        return max(amount - FORGIVEN * (self._timers.now() - since), 0.0)

    def _charge(self, target: Hashable, held_up: float) -> None:
        self._debts[target] = self._debt(target) + held_up, self._timers.now()

    def _spend(self, raised: _Raised) -> None:
        """Take a wait out of the node's budget; time that several targets share counts once."""
        now = self._timers.now()
        amount = now - max(raised.since, self._spent_until)
        if amount > 0:
            self._spent.append((now, amount))
            self._total += amount
            self._spent_until = now

    def _spent_lately(self, now: float) -> float:
        while self._spent and self._spent[0][0] <= now - WINDOW:
            self._total -= self._spent.popleft()[1]
        if not self._raised:
            return self._total
        first = next(iter(self._raised.values()))  # the oldest one
        return self._total + now - max(first.since, self._spent_until)

    def _relieve(self) -> None:
        if not self._raised:
            run_all(self._actions)
