"""
Fair shares of a node's time for those who bring it work.

A client may bring more work in one read than others should wait for. So each has a share of half a
millisecond; what is left then waits, and its connection is not read: the rest stays in the kernel.
Whoever has used least comes next. So whoever asks for little is served at once, however many others
ask for much. A newcomer begins with a debt: a crowd of them stays behind those who are here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from txbroker.turn import Turn

SHARE = 0.0005
"""Seconds that one works at a stretch; a step that has begun is done."""

TURN = 0.0015
"""Seconds of all work in one turn of the event loop."""

HURRIED = 0.0003
"""Likewise, while somebody waits for what takes many turns, such as the answers of other nodes."""

LIGHT = 0.0001
"""Seconds that are not counted: most never bring more at once."""

DEBT = 0.0005
"""Seconds that a newcomer counts as having used."""


class Share:
    """How much one has used; it `is_late` while its work waits for its turn."""

    __slots__ = ("is_late", "used")

    def __init__(self, used: float) -> None:
        self.used = used
        self.is_late = False


class Worker(Protocol):
    """Who brings work."""

    share: Share | None
    """Made when it first has used more than a little."""

    @property
    def is_newcomer(self) -> bool:
        """True if nothing is known of it yet."""

    def work(self) -> bool:
        """Go on until `Shares.is_over`; True if something is left."""

    def fail(self, error: Exception) -> None:
        """Its work has raised this."""

    def on_late(self) -> None:
        """It has begun to wait for its turn, or does so no more: see `Share.is_late`."""


class Shares:
    """
    Of one node. `later` runs an action in the next turn of the event loop, `now` gives seconds,
    and `worked` those that this thread has worked: others of the machine are nobody's fault. `tell`
    is told how many are late, `tell_hurry` when turns are to be short, and when no more.
    """

    def __init__(
        self,
        *,
        later: Callable[[Callable[[], None]], object],
        now: Callable[[], float],
        worked: Callable[[], float],
        turn: Turn,
        tell: Callable[[int], None] = lambda _: None,
        tell_hurry: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._later = later
        self._now = now
        self._worked = worked
        self._turn = turn
        self._tell = tell
        self._tell_hurry = tell_hurry
        self._late: list[tuple[float, int, Worker]] = []
        self._number = count()
        self._floor = 0.0  # what those have used whose turn it is
        self._spent = 0.0  # in this turn of the event loop
        self._until = 0.0
        self._waiting = 0
        self._is_due = False

    @property
    def is_over(self) -> bool:
        """True if whoever works has used its share."""
        return self._now() >= self._until

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """Turns are short meanwhile: somebody waits for many."""
        self._waiting += 1
        if self._waiting == 1:
            self._tell_hurry(True)
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._tell_hurry(False)

    def serve(self, worker: Worker) -> None:
        """It has work: let it begin now, if others have left time for that."""
        share = worker.share
        if share is not None and share.is_late:
            return
        if self._spent >= self._turn_length or (
            self._late and (self._used_by(worker) > self._floor or worker.is_newcomer)
        ):
            self._put_off(worker)
        else:
            self._let_work(worker)

    # internal

    @property
    def _turn_length(self) -> float:
        return HURRIED if self._waiting else TURN

    def _spend(self, seconds: float) -> None:
        self._spent += seconds
        if self._spent >= self._turn_length / 2:
            self._be_due()

    def _used_by(self, worker: Worker) -> float:
        share = worker.share
        return self._floor if share is None else max(share.used, self._floor)

    def _let_work(self, worker: Worker) -> None:
        used = self._used_by(worker)
        clock = self._worked if self._late else self._now  # which takes a tenth of the time
        began = clock()
        self._until = self._now() + min(SHARE, self._turn_length)
        try:
            has_more = worker.work()
        finally:
            took = clock() - began
            self._spend(took)
        if took > LIGHT or has_more:
            share = worker.share
            if share is None:
                share = worker.share = Share(used)
            share.used = used + took
        if has_more:
            self._put_off(worker)

    def _put_off(self, worker: Worker) -> None:
        used, share = self._used_by(worker), worker.share
        if share is None:
            share = worker.share = Share(used)
        if worker.is_newcomer:
            used += DEBT
        share.is_late = True
        heappush(self._late, (used, next(self._number), worker))
        worker.on_late()
        self._tell(len(self._late))
        self._be_due()

    def _be_due(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._later(self._begin_turn)

    def _begin_turn(self) -> None:
        """Another turn of the event loop: everybody else has been served before."""
        self._is_due = False
        self._spent = 0.0
        try:
            if self._late:
                self._turn.share(self._work_off)
        finally:
            if self._late:
                self._be_due()

    def _work_off(self) -> None:
        while self._late and self._spent < self._turn_length:
            used, _, worker = heappop(self._late)
            self._floor = max(self._floor, used)
            share = worker.share
            assert share is not None
            share.is_late = False
            try:
                self._let_work(worker)
            except Exception as error:  # of one of them: the others go on
                worker.fail(error)
            if not share.is_late:
                worker.on_late()
        self._tell(len(self._late))
