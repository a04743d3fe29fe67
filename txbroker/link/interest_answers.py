"""
An owner's answers to what an edge wants, with the retained messages.

There may be a million of these, so they are gathered in shares, as other work is, and one answer
after the other. The answer has its place in the delivery stream when all are found: they are then
as at that place, and whatever changed before it is not live for whoever waits for the answer. Of
what is gathered and has not left, no more is kept than of one answer and `WAITING` messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from txbroker.authority.retained_messages import RetainedCollection, RetainedQuery
from txbroker.runtime.fair_shares import FairShare, ShareWorker

AT_ONCE = 256
"""Steps of an answer that are done where it is asked for."""

WAITING = 10_000
"""Retained messages that have not left, from which on no other answer is begun."""

LOOK = 16
"""Steps between two looks at whether others come first."""

Tell = Callable[[int, RetainedCollection | None], None]


class InterestAnswers:
    """
    Of one link. `tell` puts an answer into the stream, `left` says how many retained messages wait
    there, `fail` ends the link.
    """

    newcomer = None

    def __init__(
        self,
        *,
        tell: Tell,
        left: Callable[[], int],
        serve: Callable[[ShareWorker], None],
        is_over: Callable[[], bool],
        fail: Callable[[str], None],
    ) -> None:
        self.share: FairShare | None = None
        self._tell = tell
        self._left = left
        self._serve = serve
        self._is_over = is_over
        self._fail = fail
        self._asked: deque[tuple[int, RetainedQuery | None]] = deque()
        self._gathering: RetainedCollection | None = None
        self._steps: Iterator[None] | None = None

    def give(self, request: int, retained: RetainedQuery | None) -> None:
        """Answer a request, behind those before it."""
        self._asked.append((request, retained))
        if len(self._asked) == 1 and self._has_room and self._go_on(AT_ONCE):
            self._serve(self)

    def go_on(self) -> None:
        """Some of what waited may have left."""
        if self._asked and self._has_room:
            self._serve(self)

    def close(self) -> None:
        """Nothing is answered any more."""
        self._asked.clear()
        self._gathering = self._steps = None

    # from Shares

    def work(self) -> bool:
        """From `FairShares`."""
        while self._asked and self._has_room:
            if self._go_on(LOOK) and self._is_over():
                return True
        return False

    def fail(self, error: Exception) -> None:
        """From `FairShares`."""
        self._fail(f"an answer has failed: {error!r}")
        raise error

    def on_late(self) -> None:
        """From `FairShares`."""

    # internal

    @property
    def _has_room(self) -> bool:
        return self._left() < WAITING

    def _go_on(self, most: int) -> bool:
        """Do so many steps of the first one; True if it is not done."""
        request, retained = self._asked[0]
        if retained is not None and self._steps is None:
            self._gathering = retained.gather()
            self._steps = self._gathering.steps()
        if self._steps is not None:
            for _ in range(most):
                if next(self._steps, self) is self:
                    break
            else:
                return True
        gathering, self._gathering, self._steps = self._gathering, None, None
        self._asked.popleft()
        self._tell(request, gathering)
        return False
