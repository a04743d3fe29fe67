"""
Fair shares of a node's time for those who bring it work.

A client may bring more work in one read than others should wait for. So each has a share of half a
millisecond; what is left then waits, and its connection is not read: the rest stays in the kernel.
Newcomers have brought no more than their first packet, mostly: unless there is a crowd of them, one
that waits is read until it brings more, as to have it watched again takes as long as its work.
Whoever has used least comes next. So whoever asks for little is served at once, however many others
ask for much. Newcomers have a queue of their own and a part of each turn: a crowd of them holds up
nobody who is here, and a crowd of those who are here holds up no newcomer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from txbroker.runtime.flush_queue import FlushQueue

SHARE = 0.0005
"""Seconds that one works at a stretch; a step that has begun is done."""

TURN = 0.0015
"""Seconds of all work in one turn of the event loop."""

HURRIED = 0.0003
"""
Likewise, while somebody waits for what takes many turns, such as the answers of other nodes, or a
sync: its thread, its end and the next one each wait for the end of a turn, which made a publish of
QoS 1 wait for eight.
"""

LIGHT = 0.0001
"""Seconds that are not counted: most never bring more at once."""

NEWCOMERS = 0.3
"""The part of a turn that newcomers have while others have work, too."""

CROWD = 100
"""Newcomers may wait that nobody looks after; of more, those who are gone by now are dropped."""


ENOUGH = 32
"""Newcomers that wait while others have work, until more are taken: what a turn has time for."""


class FairShare:
    """How much one has used; it `is_late` while its work waits for its turn."""

    __slots__ = ("is_late", "used")

    def __init__(self, used: float) -> None:
        self.used = used
        self.is_late = False


class ShareWorker(Protocol):
    """Who brings work."""

    share: FairShare | None
    """Made when it first has used more than a little."""

    @property
    def newcomer(self) -> Newcomer | None:
        """Itself, while nothing is known of it yet."""

    def work(self) -> bool:
        """Go on until `FairShares.is_over`; True if something is left."""

    def fail(self, error: Exception) -> None:
        """Its work has raised this."""

    def on_late(self) -> None:
        """Read it no more, or again: it waits for its turn (`FairShare.is_late`), or not."""


class Newcomer(ShareWorker, Protocol):
    """Who has not said yet who it is."""

    def drop_if_gone(self) -> bool:
        """True if nobody waits for it any more; then it is at its end."""


class FairShares:
    """
    Of one node. `later` runs an action in the next turn of the event loop, `now` gives seconds,
    and `worked` those that this thread has worked: others of the machine are nobody's fault. `tell`
    is told how many are late.
    """

    def __init__(
        self,
        *,
        later: Callable[[Callable[[], None]], object],
        now: Callable[[], float],
        worked: Callable[[], float],
        turn: FlushQueue,
        tell: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._later = later
        self._now = now
        self._worked = worked
        self._turn = turn
        self._tell = tell
        self._on_hurry: list[Callable[[bool], None]] = []
        self._on_short: list[Callable[[bool], None]] = []
        self._late: list[tuple[float, int, ShareWorker]] = []
        self._new: deque[Newcomer] = deque()  # the newcomers among those who are late
        self._number = count()
        self._floor = 0.0  # what those have used whose turn it is
        self._top = 0.0  # the most that anybody has used
        self._spent = 0.0  # in this turn of the event loop
        self._spent_on_new = 0.0  # of it
        self._until = 0.0
        self._hurries = 0
        self._is_sync_awaited = False
        self._turn_length = TURN
        self._is_due = False

    @property
    def is_over(self) -> bool:
        """True if whoever works has used its share."""
        return self._now() >= self._until

    @property
    def is_crowded(self) -> bool:
        """True if so many newcomers wait that those who are gone by now are dropped."""
        return len(self._new) > CROWD

    @property
    def puts_off_newcomers(self) -> bool:
        """True if one more need not come yet: enough wait, or this turn has no time left."""
        if self._late:
            return len(self._new) >= ENOUGH
        return bool(self._new) or self._spent >= self._turn_length

    def when_hurried(self, action: Callable[[bool], None]) -> None:
        """Call it when little is to be read at once, and when it may be much again."""
        self._on_hurry.append(action)

    def when_short(self, action: Callable[[bool], None]) -> None:
        """Call it when turns are to be short, and when they need not be any more."""
        self._on_short.append(action)

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """Turns are short, and little is read at once, meanwhile: somebody waits for many."""
        self._hurries += 1
        if self._hurries == 1:
            self._tell_hurry(True)
        try:
            yield
        finally:
            self._hurries -= 1
            if not self._hurries:
                self._tell_hurry(False)

    def await_sync(self, is_awaited: bool) -> None:
        """
        Somebody waits for a sync, or nobody does any more: turns are short meanwhile. As much is
        read as ever, since what comes together is made durable together.
        """
        self._is_sync_awaited = is_awaited
        self._look_at_turns()

    def serve(self, worker: ShareWorker) -> None:
        """It has work: let it begin now, if others have left time for that."""
        share = worker.share
        if share is not None and share.is_late:
            worker.on_late()
            return
        is_new = worker.newcomer is not None
        if is_new:
            has_to_wait = bool(self._new) or not self._has_time_for_new
        else:
            has_to_wait = bool(self._late) and self._used_by(worker) > self._floor
        if has_to_wait or self._spent >= self._turn_length:
            self._put_off(worker)
        else:
            self._let_work(worker, is_new=is_new)

    # internal

    def _tell_hurry(self, is_hurried: bool) -> None:
        for action in self._on_hurry:
            action(is_hurried)
        self._look_at_turns()

    def _look_at_turns(self) -> None:
        is_short = bool(self._hurries) or self._is_sync_awaited
        if is_short != (self._turn_length == HURRIED):
            self._turn_length = HURRIED if is_short else TURN
            # What was spent of a long turn is more than a short one has: left as it is, it would
            # put off all who come until somebody works.
            self._spend(0.0, is_new=False)
            for action in self._on_short:
                action(is_short)

    @property
    def _has_time_for_new(self) -> bool:
        return not self._late or self._spent_on_new < NEWCOMERS * self._turn_length

    def _spend(self, seconds: float, *, is_new: bool) -> None:
        self._spent += seconds
        if is_new:
            self._spent_on_new += seconds
        if self._spent >= self._turn_length / 2:
            self._be_due()

    def _used_by(self, worker: ShareWorker) -> float:
        share = worker.share
        return self._floor if share is None else max(share.used, self._floor)

    def _let_work(self, worker: ShareWorker, *, is_new: bool) -> None:
        used = self._used_by(worker)
        clock = self._worked if self._late else self._now  # which takes a tenth of the time
        began = clock()
        # Of a newcomer no more than its first packet, where others wait.
        if is_new and (self._late or self._new):
            self._until = 0.0
        else:
            self._until = self._now() + min(SHARE, self._turn_length)
        try:
            has_more = worker.work()
        finally:
            took = clock() - began
            self._spend(took, is_new=is_new)
        if (took > LIGHT and not is_new) or has_more:
            share = worker.share
            if share is None:
                share = worker.share = FairShare(used)
            share.used = used + took
            self._top = max(self._top, share.used)
        if has_more:
            self._put_off(worker)

    def _put_off(self, worker: ShareWorker) -> None:
        if not self._late:
            # Nobody has waited: all are even. What one has used in hours would let those who have
            # used nothing yet go before it for seconds.
            self._floor = self._top
        used, share = self._used_by(worker), worker.share
        if share is None:
            share = worker.share = FairShare(used)
        share.is_late = True
        newcomer = worker.newcomer
        if newcomer is not None:
            self._new.append(newcomer)
        else:
            heappush(self._late, (used, next(self._number), worker))
        if newcomer is None or self.is_crowded:
            worker.on_late()
        self._tell(self._waiting)
        self._be_due()

    def _be_due(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._later(self._begin_turn)

    def _begin_turn(self) -> None:
        """Another turn of the event loop: everybody else has been served before."""
        self._is_due = False
        self._spent = self._spent_on_new = 0.0
        try:
            if self._waiting:
                self._turn.share(self._work_off)
        finally:
            if self._waiting:
                self._be_due()

    @property
    def _waiting(self) -> int:
        return len(self._late) + len(self._new)

    def _work_off(self) -> None:
        while self._waiting and self._spent < self._turn_length:
            worker = self._next()
            if worker is None:
                continue
            share = worker.share
            assert share is not None
            share.is_late = False
            try:
                self._let_work(worker, is_new=worker.newcomer is not None)
            except Exception as error:  # of one of them: the others go on
                worker.fail(error)
            if not share.is_late:
                worker.on_late()
        self._tell(self._waiting)

    def _next(self) -> ShareWorker | None:
        if self._new and self._has_time_for_new:
            return self._next_newcomer()
        used, _, worker = heappop(self._late)
        self._floor = max(self._floor, used)
        return worker

    def _next_newcomer(self) -> ShareWorker | None:
        """The first one; None: it is gone, and it would take long until those come who are here."""
        is_crowd = self.is_crowded
        newcomer = self._new.popleft()
        if not is_crowd:
            return newcomer
        began = self._now()
        is_gone = newcomer.drop_if_gone()
        self._spend(self._now() - began, is_new=True)
        return None if is_gone else newcomer
