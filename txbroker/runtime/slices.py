"""
Long pieces of work, done in slices over the turns of the loop.

A piece of work is an iterator: each step of it is short, and it may stop between any two. What it
promises to others while it is not done is its own affair. This module promises:

- **A bound.** The slices of a turn take `longest` seconds together, and at the most one step more.
- **Small work is done at once.** `start` does a first slice before it returns, unless work of the
  same owner waits, or the slices of this turn have had their time.
- **Order.** Pieces of one owner (a client, a zone; any hashable key) are done one after the other.
- **Fairness.** Owners take turns, step by step: one that has much delays no other by more than its
  own steps.
- **An end.** What is left is done in later turns, for which `again` asks; each of them lets all
  other work of the loop come first. A piece that raises is over, and the others go on. After
  `cancel` no step of an owner is done any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator

LONGEST = 0.004
"""Seconds that the slices of one turn take together."""

HURRIED = 0.0005
"""Likewise, while somebody waits for many turns (`FairShares.when_short`)."""


class Slices:
    """See the module's text; `now` is a monotonic clock, `again` has `work` called in a turn."""

    def __init__(
        self, now: Callable[[], float], again: Callable[[], None], longest: float = LONGEST
    ) -> None:
        self.longest = self._usual = longest
        self._now = now
        self._again = again
        self._left: dict[Hashable, deque[Iterator[object]]] = {}
        self._spent = 0.0
        self._is_asked = False
        self._is_working = False

    def hurry(self, is_hurried: bool) -> None:
        """Somebody waits for many turns, or nobody does any more."""
        self.longest = HURRIED if is_hurried else self._usual

    def __len__(self) -> int:
        """How many owners have work left."""
        return len(self._left)

    def is_busy(self, owner: Hashable) -> bool:
        """True if work of this owner is left."""
        return owner in self._left

    def start(self, owner: Hashable, steps: Iterator[object]) -> bool:
        """Begin a piece of work; True if it is done when this returns."""
        earlier = self._left.get(owner)
        if earlier is not None:
            earlier.append(steps)
            return False
        self._left[owner] = deque((steps,))
        if not self._is_working:  # else a step starts it, and it takes its turn behind that
            self._run(lambda: owner if owner in self._left else None)
        return owner not in self._left

    def finish(self, owner: Hashable) -> None:
        """Do all that is left of an owner now, however long that takes; not from its own step."""
        while owner in self._left:
            self._step(owner)

    def cancel(self, owner: Hashable) -> None:
        """The owner is gone; no step of its work is done any more."""
        self._left.pop(owner, None)

    def work(self) -> None:
        """The next turn: do a slice of what is left."""
        self._is_asked = False
        self._spent = 0.0
        self._run(lambda: next(iter(self._left), None))

    # internal

    def _run(self, choose: Callable[[], Hashable | None]) -> None:
        """Do steps of the owners chosen, while this turn has time for them."""
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
            # Also where all is done: else many small pieces of one turn have no bound together.
            if not self._is_asked and (self._left or self._spent * 8 > self.longest):
                self._is_asked = True
                self._again()

    def _step(self, owner: Hashable) -> None:
        """One step; then the other owners come first."""
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
            if self._left.get(owner) is pieces:  # not cancelled by the step
                del self._left[owner]
                if pieces:
                    self._left[owner] = pieces
