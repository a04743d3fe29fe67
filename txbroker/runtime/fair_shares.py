"""
Schedules the work of connections, so that each gets a fair share of a node's time.

A client may send more work in one read than other clients should wait for. So each worker has a
share of half a millisecond. A worker with work left is *late*, and waits in a queue. The node does
not read its connection meanwhile, so the rest stays in the kernel. The queue is ordered by use: the
worker that has used least is next. So a light worker is served at once, however many workers are
heavy, or have just come.

A newcomer is a connection that has not identified its client yet. A newcomer has usually sent its
first packet only. So the node reads a waiting newcomer until it sends more, unless newcomers crowd.
To watch its socket again costs as much as its work. Newcomers have a queue of their own and a part
of each turn. So a crowd of newcomers delays no connected client, and a crowd of clients delays no
newcomer. The hosts of newcomers take turns. So a crowd from one host delays no newcomer of another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from txbroker.runtime.flush_queue import FlushQueue
from txbroker.runtime.rotation import Rotation

SHARE = 0.0005
"""Seconds that a worker runs at a stretch; a begun step is finished."""

TURN = 0.0015
"""Seconds of all work in one turn of the event loop."""

HURRIED = 0.0003
"""
Seconds of all work in a turn while a caller waits for many turns: a node's answer, or a sync.

A sync's thread, its end and the next sync each wait for the end of a turn. With long turns a
publish of QoS 1 waited for eight of them.
"""

CREDIT = 0.002
"""
Seconds of use by which a worker that was light for long goes before those that have just come.

Otherwise a light client waits behind each connection of a storm, as each of these is as light.
"""

LIGHT = 0.0001
"""
Seconds of work that are not counted: most connections never send more at once.

A step of a worker that has a share counts for so much at least while others wait. Otherwise a crowd
of light workers, which use nothing, goes before a worker that once used a little more, for ever.
"""

NEWCOMERS = 0.3
"""Part of a turn that newcomers get while other workers have work."""

CROWD = 100
"""Newcomers that may wait unchecked; of a larger crowd, those that have left are dropped."""


ENOUGH = 32
"""Waiting newcomers at which the node accepts no more while workers are late: one turn's work."""


class FairShare:
    """The time that a worker has used; `is_late`: True while its work waits in the queue."""

    __slots__ = ("is_late", "used")

    def __init__(self, used: float) -> None:
        self.used = used
        self.is_late = False


class ShareWorker(Protocol):
    """A connection that has work."""

    share: FairShare | None
    """Made when the worker first has used more than `LIGHT`."""

    @property
    def newcomer(self) -> Newcomer | None:
        """Return the worker itself until its client is identified, then None."""

    def work(self) -> bool:
        """Continue until `FairShares.is_over`; return True if work is left."""

    def fail(self, error: Exception) -> None:
        """Handle an error that `work` raised."""

    def on_late(self) -> None:
        """Pause or resume reading the connection, as `FairShare.is_late` says."""


class Newcomer(ShareWorker, Protocol):
    """A connection that is not identified yet."""

    def drop_if_gone(self) -> bool:
        """Close the connection if its client has left; return True if it was closed."""

    def host(self) -> str:
        """Return the client's host."""


class Shortened(Protocol):
    """Work beside the workers; `is_short`: its part of a turn must be short."""

    is_short: bool


class FairShares:
    """
    The fair shares of a node.

    `later` runs an action in the next turn of the event loop; `now` returns seconds. `worked`
    returns the seconds of work of this thread, so that other processes' load is charged to no
    worker. `tell` receives the number of late workers.
    """

    def __init__(
        self,
        *,
        later: Callable[[Callable[[], None]], object],
        now: Callable[[], float],
        worked: Callable[[], float],
        flush_queue: FlushQueue,
        tell: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._later = later
        self._now = now
        self._worked = worked
        self._flush_queue = flush_queue
        self._tell = tell
        self._on_hurry: list[Callable[[bool], None]] = []
        self._shortened: list[Shortened] = []
        self._late: list[tuple[float, int, ShareWorker]] = []
        self._new: Rotation[str, Newcomer] = Rotation()  # the late newcomers, by host
        self._waiting = 0  # late workers and newcomers
        self._number = count()
        self._floor = 0.0  # use of the worker that is next
        self._top = 0.0  # the highest use of any worker
        self._spent = 0.0  # in this turn of the event loop
        self._spent_on_new = 0.0  # the newcomers' part of it
        self._spent_at_ports = 0.0  # and that of their accepts
        self._until = 0.0
        self._hurries = 0
        self._is_sync_awaited = False
        self._turn_length = TURN
        self._stretch = min(SHARE, TURN)
        self._is_due = False

    @property
    def is_over(self) -> bool:
        """True if the running worker has used its share."""
        return self._now() >= self._until

    @property
    def is_crowded(self) -> bool:
        """True if so many newcomers wait that those that have left are dropped."""
        return self._new.count > CROWD

    def defers_newcomers(self) -> bool:
        """True if the node should accept no newcomer now: enough wait, or the turn is used up."""
        if self._late:
            most = NEWCOMERS * self._turn_length
            return self._new.count >= ENOUGH or self._spent_at_ports >= most
        return self._new.count > 0 or self._spent >= self._turn_length

    def when_hurried(self, action: Callable[[bool], None]) -> None:
        """Call `action` with True when reads must be small, with False when they need not be."""
        self._on_hurry.append(action)

    def shorten(self, work: Shortened) -> None:
        """Tell the work from now on whether turns must be short."""
        self._shortened.append(work)

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """Shorten turns and reads in this context, for a caller that waits for many turns."""
        self._hurries += 1
        if self._hurries == 1:
            self._notify_hurry(True)
        try:
            yield
        finally:
            self._hurries -= 1
            if not self._hurries:
                self._notify_hurry(False)

    def await_sync(self, is_awaited: bool) -> None:
        """
        Shorten turns while a caller awaits a sync.

        Reads stay large: packets that arrive together become durable together.
        """
        self._is_sync_awaited = is_awaited
        self._check_turns()

    def charge_newcomers(self, seconds: float) -> None:
        """Count time that a port spent on newcomers before they are served here."""
        self._spent_at_ports += seconds
        self._charge(seconds, is_new=False)

    def serve(self, worker: ShareWorker) -> None:
        """Run the worker now if others have left time for it; otherwise queue it as late."""
        share = worker.share
        if share is not None and share.is_late:
            worker.on_late()
            return
        is_new = worker.newcomer is not None
        if not self._waiting:
            has_to_wait = False
        elif is_new:
            has_to_wait = self._new.count > 0 or not self._has_time_for_new
        else:
            has_to_wait = bool(self._late) and self._used_by(worker) > self._floor
        if has_to_wait or self._spent >= self._turn_length:
            self._defer(worker)
        else:
            self._run_worker(worker, is_new=is_new)

    # internal

    def _notify_hurry(self, is_hurried: bool) -> None:
        for action in self._on_hurry:
            action(is_hurried)
        self._check_turns()

    def _check_turns(self) -> None:
        is_short = bool(self._hurries) or self._is_sync_awaited
        if is_short != (self._turn_length == HURRIED):
            self._turn_length = HURRIED if is_short else TURN
            self._stretch = min(SHARE, self._turn_length)
            # The spent part of a long turn may exceed a short turn. Without a new turn, that would
            # delay all arrivals until some worker ran.
            self._charge(0.0, is_new=False)
            for work in self._shortened:
                work.is_short = is_short

    @property
    def _has_time_for_new(self) -> bool:
        return not self._late or self._spent_on_new < NEWCOMERS * self._turn_length

    def _charge(self, seconds: float, *, is_new: bool) -> None:
        self._spent += seconds
        if is_new:
            self._spent_on_new += seconds
        if self._spent >= self._turn_length / 2:
            self._be_due()

    def _used_by(self, worker: ShareWorker) -> float:
        share = worker.share
        return self._floor if share is None else max(share.used, self._floor - CREDIT)

    def _run_worker(self, worker: ShareWorker, *, is_new: bool) -> None:
        floor = self._floor
        now = self._now
        clock = self._worked if self._late else now  # `now` costs a tenth of `worked`
        began = clock()
        # A newcomer gets one packet while others wait, or a crowd of newcomers fills the turn.
        if is_new and self._waiting:
            self._until = 0.0
        else:
            self._until = (began if clock is now else now()) + self._stretch
        try:
            has_more = worker.work()
        finally:
            took = clock() - began
            self._charge(took, is_new=is_new)
        share = worker.share
        if share is None and ((took > LIGHT and not is_new) or has_more):
            share = worker.share = FairShare(floor)
        if share is not None and (has_more or not is_new):
            least = LIGHT if self._late else 0.0
            share.used = max(share.used, floor - CREDIT) + max(took, least)
            self._top = max(self._top, share.used)
        if has_more:
            self._defer(worker)

    def _defer(self, worker: ShareWorker) -> None:
        if not self._late:
            # An empty queue makes all workers even. Otherwise hours of use would let workers
            # without any use go first for seconds.
            self._floor = self._top
        used, share = self._used_by(worker), worker.share
        if share is None:
            share = worker.share = FairShare(used)
        share.is_late = True
        newcomer = worker.newcomer
        if newcomer is not None:
            self._new.add(newcomer.host(), newcomer)
        else:
            heappush(self._late, (used, next(self._number), worker))
        self._waiting += 1
        if newcomer is None or self.is_crowded:
            worker.on_late()
        self._tell(self._waiting)
        self._be_due()

    def _be_due(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._later(self._start_turn)

    def _start_turn(self) -> None:
        """Begin another turn of the event loop; all other events come before it."""
        self._is_due = False
        self._spent = self._spent_on_new = self._spent_at_ports = 0.0
        try:
            if self._waiting:
                self._flush_queue.share(self._work_off)
        finally:
            if self._waiting:
                self._be_due()

    def _work_off(self) -> None:
        while self._waiting and self._spent < self._turn_length:
            worker = self._next()
            if worker is None:
                continue
            share = worker.share
            assert share is not None
            share.is_late = False
            try:
                self._run_worker(worker, is_new=worker.newcomer is not None)
            except Exception as error:  # An error of one worker must not stop the others.
                worker.fail(error)
            if not share.is_late:
                worker.on_late()
        self._tell(self._waiting)

    def _next(self) -> ShareWorker | None:
        self._waiting -= 1
        if self._new.count and self._has_time_for_new:
            return self._next_newcomer()
        used, _, worker = heappop(self._late)
        self._floor = max(self._floor, used)
        return worker

    def _next_newcomer(self) -> ShareWorker | None:
        """
        Return the first newcomer of the next host; None if it left.

        Without the check, a crowd that left delays live ones.
        """
        is_crowd = self.is_crowded
        newcomer = self._new.next()
        if not is_crowd:
            return newcomer
        began = self._now()
        is_gone = newcomer.drop_if_gone()
        self._charge(self._now() - began, is_new=True)
        return None if is_gone else newcomer
