"""
Runs long pieces of work in slices over the turns of the loop.

A piece of work is an iterator: each step is short, and the piece may pause between any two steps.
The piece itself guarantees its state between steps. This module guarantees:

- **A bound.** All slices of a turn take `longest` seconds together, plus at most one step.
- **Small work is done at once.** `start` runs a first slice before it returns. Exceptions: work of
  the same owner waits, or the slices of this turn have used their time.
- **Order.** Pieces of one owner (a client, a zone; any hashable key) run one after the other.
- **Fairness.** Owners take turns, step by step: an owner with much work delays another owner by
  single steps only.
- **An end.** Remaining work runs in later turns, which `again` requests. Each such turn lets all
  other work of the loop run first. A piece that raises is over, and the others continue. After
  `cancel` no step of the owner runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator

LONGEST = 0.004
"""Seconds that all slices of one turn take together."""

HURRIED = 0.0005
"""Seconds per turn while slices are short."""


class Slices:
    """
    The sliced work of all owners; the module docstring lists the guarantees.

    `is_short`: slices are short, as a caller waits for many turns (`FairShares.shorten`).
    `now` is a monotonic clock; `again` schedules a call of `work` in a later turn.
    """

    def __init__(
        self, now: Callable[[], float], again: Callable[[], None], longest: float = LONGEST
    ) -> None:
        self.is_short = False
        self._usual = longest
        self._now = now
        self._again = again
        self._left: dict[Hashable, deque[Iterator[object]]] = {}
        self._spent = 0.0
        self._is_asked = False
        self._is_working = False

    @property
    def spent(self) -> float:
        """Return the seconds that the slices of this turn have taken."""
        return self._spent

    def charge(self, seconds: float) -> None:
        """Count time of work that cannot be put off as time of this turn's slices."""
        self._spent += seconds
        self._end_turn()

    @property
    def longest(self) -> float:
        """Return the seconds that all slices of this turn may take."""
        return HURRIED if self.is_short else self._usual

    def __len__(self) -> int:
        """Return the number of owners with work left."""
        return len(self._left)

    def is_busy(self, owner: Hashable) -> bool:
        """True if work of this owner is left."""
        return owner in self._left

    def start(self, owner: Hashable, steps: Iterator[object]) -> bool:
        """Begin a piece of work; return True if it is already done."""
        earlier = self._left.get(owner)
        if earlier is not None:
            earlier.append(steps)
            return False
        self._left[owner] = deque((steps,))
        if not self._is_working:  # A piece that a step starts must queue behind that step.
            self._run(lambda: owner if owner in self._left else None)
        return owner not in self._left

    def finish(self, owner: Hashable) -> None:
        """Run all work of an owner now, however long; never call this from its own step."""
        while owner in self._left:
            self._step(owner)

    def cancel(self, owner: Hashable) -> None:
        """Drop all work of an owner that is gone."""
        self._left.pop(owner, None)

    def work(self) -> None:
        """Run a slice of the remaining work in a new turn."""
        self._is_asked = False
        self._spent = 0.0
        self._run(lambda: next(iter(self._left), None))

    # internal

    def _run(self, choose: Callable[[], Hashable | None]) -> None:
        """Run steps of the chosen owners while this turn has time for them."""
        self._is_working = True
        before = self._now()
        try:
            while self._spent < self.longest and (owner := choose()) is not None:
                self._step(owner)
                now = self._now()
                self._spent += now - before
                before = now
        finally:
            self._is_working = False
            self._end_turn()

    def _end_turn(self) -> None:
        """Ask for another turn if work is left, or if this turn's time is used."""
        # Without this reset, many small pieces of one turn would have no common bound.
        if not self._is_asked and (self._left or self._spent * 8 > self.longest):
            self._is_asked = True
            self._again()

    def _step(self, owner: Hashable) -> None:
        """Run one step of an owner, and move the owner behind the others."""
        pieces = self._left[owner]
        is_over = True
        try:
            next(pieces[0])
            is_over = False
        except StopIteration:
            pass
        finally:
            if is_over:
                pieces.popleft()
            if self._left.get(owner) is pieces:  # False if the step cancelled its owner.
                del self._left[owner]
                if pieces:
                    self._left[owner] = pieces
