"""
An owner's answers to an edge's interests, with the retained messages.

An answer may have a million retained messages. So the owner gathers them in shares of its time, one
answer after the other. The answer enters the delivery stream when all are found, and has their
values as of that place. Changes before that place are not live for the waiting subscription. At
most one answer and `WAITING` messages are gathered and unsent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from txbroker.authority.retained_messages import RetainedCollection, RetainedQuery
from txbroker.runtime.fair_shares import FairShare, ShareWorker

AT_ONCE = 256
"""Steps of an answer that run at once with the request."""

WAITING = 10_000
"""Unsent retained messages from which on no other answer is begun."""

LOOK = 16
"""Steps between two checks for other work."""

Tell = Callable[[int, RetainedCollection | None], None]


class InterestAnswers:
    """
    The answers of one link.

    `asked` are the requests without an answer. `tell` enqueues an answer in the stream. `left`
    returns the number of retained messages that wait there. `fail` ends the link.
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
        self.asked: deque[tuple[int, RetainedQuery | None]] = deque()
        self._gathering: RetainedCollection | None = None
        self._steps: Iterator[None] | None = None

    def enqueue(self, request: int, retained: RetainedQuery | None) -> None:
        """Answer a request, behind the earlier ones."""
        self.asked.append((request, retained))
        if len(self.asked) == 1 and self._has_room and self._advance(AT_ONCE):
            self._serve(self)

    def resume(self) -> None:
        """Continue, as waiting messages may have left."""
        if self._has_room:
            self._serve(self)

    def close(self) -> None:
        """Drop all unanswered requests."""
        self.asked.clear()
        self._gathering = self._steps = None

    # from `FairShares`

    def work(self) -> bool:
        """Work for one share, as `FairShares` asks; return True if work is left."""
        while self.asked and self._has_room:
            if self._advance(LOOK) and self._is_over():
                return True
        return False

    def fail(self, error: Exception) -> None:
        """End the link after an error, and raise the error; called by `FairShares`."""
        self._fail(f"an answer has failed: {error!r}")
        raise error

    def on_late(self) -> None:
        """Do nothing about a late share; called by `FairShares`."""

    # internal

    @property
    def _has_room(self) -> bool:
        return self._left() < WAITING

    def _advance(self, most: int) -> bool:
        """Run so many steps of the first answer; return True if it is not done."""
        request, retained = self.asked[0]
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
        self.asked.popleft()
        self._tell(request, gathering)
        return False
