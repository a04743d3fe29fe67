"""
Decides how long publishers wait for a slow consumer.

A target is a consumer: a client's queue or a link's queue. A target that passes its high mark
raises the pressure. Under pressure the node accepts only the publishes that fit into its buffers,
and returns no credit. A target that reaches its low mark lowers the pressure. States of a target:

- *waited for* (`_raised`): publishers wait for it, until its patience ends;
- *slow*: its patience ended before its low mark. The target no longer counts: packets above its
  limit are discarded and counted until it has drained;
- *on trial*: it has never drained. Its own buffers absorb publishes for a moment, and no publisher
  waits. If the buffers fill up earlier, the rest of the trial is a wait. Otherwise each stranger
  that connects and reads nothing would stall the node.

So a busy consumer loses nothing, and a stuck consumer stalls publishers for its patience at most.

A target that drains slowly each time would stall all publishers again and again. So the time of its
waits is its debt, which reduces its patience until the debt is forgiven. Short waits cost nothing:
a fast consumer is often full at full speed.

Many targets would stall all publishers in turn, each with its own patience. So all long waits of a
node share one budget: `BUDGET` seconds in each `WINDOW`. Waits for a target that drains at its pace
are exempt.

A light client waits for no target (`may_pass`): its publishes fit into the targets' buffers.
Otherwise one flood whose consumers read nothing delays all clients of the node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

import attrs

from txbroker.model.timers import Cancellable, Timers
from txbroker.runtime.flush_queue import run_all

PATIENCE = 0.3
"""Seconds that publishers wait for one consumer."""

SHORT = 0.1
"""Seconds of one wait that cause no debt."""

FORGIVEN = 0.1
"""Seconds of debt that are forgiven in each second."""

WINDOW = 3.0
BUDGET = 0.1 * WINDOW
"""Seconds of all long waits in each `WINDOW`: publishers lose at most a tenth of their time."""

TRIAL = 0.1
"""Seconds in which a target on trial must begin to drain; no publisher waits for it."""

LOOK = 0.01
"""Seconds between two checks of a target on trial."""

LIGHT = 4096
"""Bytes of a publish, or of a run of publishes, that may pass those that wait."""

PASSING = 256 * 1024
"""Bytes that may pass in one wait: thousands of light clients are as heavy as one flood."""


@attrs.define(slots=True, eq=False)
class _Raised:
    """A wait; `mark` is the amount left at the last check that found progress."""

    since: float
    expires: float
    left: Callable[[], int]
    pace: int
    mark: int
    alarm: Cancellable


@attrs.define(slots=True, eq=False)
class _Trial:
    """A trial: the target must drain some of `mark` before the time `until`."""

    until: float
    left: Callable[[], int]
    pace: int
    mark: int
    alarm: Cancellable


class Backpressure:
    """
    The back-pressure of a node; `when_relieved` actions run when the last wait ends.

    `active`: True if publishers have to wait for a target.
    """

    def __init__(self, timers: Timers, patience: float = PATIENCE, budget: float = BUDGET) -> None:
        self._timers = timers
        self._patience = patience
        self._budget = budget
        self.active = False
        self._raised: dict[Hashable, _Raised] = {}
        self._on_trial: dict[Hashable, _Trial] = {}
        self._slow: set[Hashable] = set()
        self._known: set[Hashable] = set()
        self._debts: dict[Hashable, tuple[float, float]] = {}  # how much, as of when
        self._spent: deque[tuple[float, float]] = deque()  # until when, how much
        self._total = 0.0
        self._spent_until = float("-inf")
        self._passed = 0
        self._actions: list[Callable[[], None]] = []

    def when_relieved(self, action: Callable[[], None]) -> None:
        """Run `action` each time that the pressure ends."""
        self._actions.append(action)

    def is_slow(self, target: Hashable) -> bool:
        """True if the target's patience ended and the target has not drained since."""
        return target in self._slow

    def may_pass(self, size: int) -> bool:
        """True if a publish of `size` bytes passes those that wait; if so, its bytes count."""
        if not self.active or size > LIGHT or self._passed + size > PASSING:
            return False
        self._passed += size
        return True

    def raise_(
        self,
        target: Hashable,
        left: Callable[[], int],
        *,
        pace: int = 1,
        has_drained: bool = False,
    ) -> None:
        """
        Record that the target passed its high mark.

        `left` returns the amount still to drain, in any unit. A target that drains `pace` of that
        unit in `SHORT` seconds is fast. `has_drained`: True if the target has drained before.
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
        """Turn the trial of a target whose buffers fill up into a wait for the trial's rest."""
        trial = self._on_trial.get(target)
        if trial is not None:
            self._end_trial(target)
            self._wait_for(target, trial.left, trial.pace, trial.until - self._timers.now())

    def lower(self, target: Hashable) -> None:
        """Record that the target is below its low mark."""
        self._slow.discard(target)
        if self._end_trial(target):
            self._known.add(target)
        raised = self._end_wait(target)
        if raised is not None:
            held_up = self._timers.now() - raised.since
            if held_up > SHORT:
                self._known.discard(target)
                self._charge(target, held_up)
                self._charge_budget(raised)
            else:
                self._known.add(target)
            self._relieve()

    def forget(self, *targets: Hashable) -> None:
        """Remove closed targets."""
        if self._raised or self._on_trial or self._slow or self._debts or self._known:
            for target in targets:
                self._slow.discard(target)
                self._known.discard(target)
                self._debts.pop(target, None)
                self._end_trial(target)
                raised = self._end_wait(target)
                if raised is not None:  # Uncharged, a series of new targets would stall the node.
                    self._charge_budget(raised)
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
            alarm = self._schedule_check(target, patience)
            self._raised[target] = _Raised(now, now + patience, left, pace, left(), alarm)
            self.active = True
        else:
            self._slow.add(target)

    def _schedule_check(self, target: Hashable, patience: float) -> Cancellable:
        return self._timers.call_later(min(patience, SHORT), lambda: self._check_target(target))

    def _check_target(self, target: Hashable) -> None:
        """Extend the wait for a target that kept its pace; end a wait without patience left."""
        raised, now = self._raised[target], self._timers.now()
        left = raised.left()
        if left <= raised.mark - raised.pace:
            raised.expires += now - raised.since
            raised.since, raised.mark = now, left
        if now < raised.expires:
            raised.alarm = self._schedule_check(target, raised.expires - now)
            return
        self._pop(target)
        self._known.discard(target)
        self._charge(target, now - raised.since)
        self._slow.add(target)
        self._charge_budget(raised)
        self._relieve()

    def _try(self, target: Hashable) -> None:
        """
        Check a trial.

        Progress by the kernel's buffers alone, which fill first, is too little.
        """
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
        raised = self._pop(target)
        if raised is not None:
            raised.alarm.cancel()
        return raised

    def _pop(self, target: Hashable) -> _Raised | None:
        raised = self._raised.pop(target, None)
        self.active = bool(self._raised)
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

    def _charge_budget(self, raised: _Raised) -> None:
        """Charge a wait to the node's budget; time that several targets share counts once."""
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
        first = next(iter(self._raised.values()))  # the oldest wait
        return self._total + now - max(first.since, self._spent_until)

    def _relieve(self) -> None:
        if not self._raised:
            self._passed = 0
            run_all(self._actions)
