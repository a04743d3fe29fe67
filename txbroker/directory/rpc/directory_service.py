"""
SHELL: this node's client directory on gRPC: its procedures and its periodic work.

A request leaves when all changes on which it may rest are durable (`DirectoryCalls`).

A turn of the loop is long while clients are busy. Therefore a CONNECT waits for few turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import grpc
import grpc.aio

from txbroker.directory import effects
from txbroker.directory.directory import Directory
from txbroker.directory.effects import AwaitDurable, Pause, Procedure, Step
from txbroker.directory.member_admission import MemberProbe
from txbroker.directory.members import LIMIT
from txbroker.directory.requests import (
    Lookup,
    OtherView,
    Register,
    Registered,
    Reply,
    Request,
)
from txbroker.directory.rpc.directory_calls import DirectoryCalls
from txbroker.directory.rpc.request_server import RequestServer
from txbroker.runtime.aio import Tasks
from txbroker.runtime.fair_shares import FairShares
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.runtime.structured_log import TELL_AGAIN, get_logger, log_limited

T = TypeVar("T")

log = get_logger()


OFTEN = 0.1
"""Seconds between two flushes while keepers wait for entries."""

TOGETHER = 1_000
"""Entries after which a turn sends no more batches; those for fifty members have 25,000."""

SETTLE_PAUSE = 0.02
"""Seconds between two checks while the node stops."""


class DirectoryService:
    """The runner of `directory`, which `wire` sets before any call; `server` replies to others."""

    def __init__(
        self,
        calls: DirectoryCalls,
        server: RequestServer,
        *,
        shares: FairShares,
        tasks: Tasks,
        flush_queue: FlushQueue,
        now: Callable[[], float],
    ) -> None:
        self._calls = calls
        self.server = server
        self._shares = shares
        self._tasks = tasks
        self._flush_queue = flush_queue
        self._now = now
        self._pauses: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._is_started = False
        self._is_hurrying = False
        self._left_out = 0
        self._told_waiting: float | None = None

    def wire(self, directory: Directory) -> None:
        """Set the directory of this shell."""
        self._directory = directory
        self._calls.wire(directory)
        self.server.wire(directory)

    # from the node

    @property
    def stream_counts(self) -> tuple[int, int]:
        """Return how many streams of requests this node opened, and how many it serves."""
        return len(self._calls.streams), self.server.stream_count

    def start(self) -> None:
        """Begin to serve and to send: the directory has started."""
        self._is_started = True
        self.server.start()

    def beat(self) -> None:
        """Do the periodic work, about once a second."""
        self._directory.tick()
        self._log_waiting()
        self.flush()
        self._flush_queue.end()

    async def await_keepers(self, seconds: float) -> None:
        """Wait until the reachable keepers know the whole state, at most `seconds`."""
        until = self._now() + seconds
        while self._now() < until and not self._directory.replicator.is_settled:
            await asyncio.sleep(SETTLE_PAUSE)
            self.flush()
            self._flush_queue.end()

    async def await_rivals(self, seconds: float) -> None:
        """
        Wait until sessions that count above those of a copy are known, and have taken these in.

        Waits at most `seconds`, and for no keeper that does not answer.
        """
        until = self._now() + seconds
        while self._now() < until and not self._is_undisputed:
            await asyncio.sleep(OFTEN)
            self.beat()

    def wake(self) -> None:
        """Schedule a flush at the end of this turn."""
        self._flush_queue.mark_dirty(self)

    def flush(self) -> None:
        """Send the due batches to the keepers."""
        if not self._is_started:
            return
        replicator, now, entries = self._directory.replicator, self._now(), 0
        for name in self._directory.members.peers():
            batch = replicator.batch(name, now)
            if batch is not None:
                self._tasks.start(self._register(name, batch))
                entries += len(batch.entries) + len(batch.relayed)
            if entries >= TOGETHER:
                self._flush_queue.mark_next(self)  # the batches of all would take 20 ms
                break
        if replicator.advance():
            self._flush_queue.mark_next(self)
        for asked in self._directory.admission.due():
            self._tasks.start(self._admit(asked))
        if not self._is_hurrying and self._must_hurry:
            self._is_hurrying = True
            self._tasks.start(self._hurry())

    def run(
        self, procedure: Procedure[T], finished: Callable[[T], object] = lambda _: None
    ) -> None:
        """
        Run a procedure; `finished` gets its result in the turn in which the procedure ends.

        Effects that concern this node alone run at once: a node without other members needs no
        task.
        """
        step: Step | None = None
        try:
            while True:
                step = next(procedure)
                if not (isinstance(step, effects.SendRequest) and self._ask_here(step)):
                    break
        except StopIteration as stop:
            finished(stop.value)
            return
        self._tasks.start(self._advance(procedure, step, finished))

    # internal: procedures

    async def _advance(
        self, procedure: Procedure[T], step: Step, finished: Callable[[T], object]
    ) -> None:
        try:
            with self._shares.hurry():
                while True:
                    await self._do(step)
                    step = next(procedure)
        except StopIteration as stop:
            finished(stop.value)
        finally:
            procedure.close()
            self._flush_queue.end()

    async def _do(self, step: Step) -> None:
        match step:
            case Pause():
                await self._pause(step)
            case AwaitDurable():
                await self._calls.safe()
            case effects.SendRequest():
                if not self._ask_here(step):
                    await self._ask(step)

    def _ask_here(self, step: effects.SendRequest) -> bool:
        """
        Run an effect that concerns this node only; return False, without effect, for any other.
        """
        me = self._directory.members.name
        if any(name != me for name, _ in step.calls):
            return False
        for name, request in step.calls:
            if step.take(name, self._answer(request)):
                break
        return True

    async def _pause(self, pause: Pause) -> None:
        loop = asyncio.get_running_loop()
        over = loop.create_future()
        alarm = loop.call_later(pause.seconds, _end, over)
        self._pauses[over] = pause.until
        try:
            await over
        finally:
            alarm.cancel()
            del self._pauses[over]

    def _end_pauses(self) -> None:
        for over, is_so in self._pauses.items():
            if is_so():
                _end(over)

    async def _ask(self, step: effects.SendRequest) -> None:
        calls = step.calls
        if isinstance(calls[0][1], Lookup):
            # It changes nothing here. A task for the own answer costs a CONNECT two turns.
            if self._look_up_here(step):
                return
            calls = tuple(call for call in calls if call[0] != self._directory.members.name)
        if len(calls) == 1:
            ((name, request),) = calls
            step.take(name, await self._calls.call(name, request))
            return
        done = asyncio.Event()
        left = len(calls)

        async def one(name: str, request: Request) -> None:
            nonlocal left
            answer = await self._calls.call(name, request)
            if not done.is_set():
                left -= 1
                if step.take(name, answer) or left == 0:
                    done.set()

        for name, request in calls:
            self._tasks.start(one(name, request))
        await done.wait()

    def _look_up_here(self, step: effects.SendRequest) -> bool:
        """Take this node's own answers; return True if these are enough."""
        me = self._directory.members.name
        own = [request for name, request in step.calls if name == me]
        return any(step.take(me, self._answer(request)) for request in own)

    def _answer(self, request: Request) -> Reply | None:
        """Return this node's own answer; None: it sees other members than the request."""
        answer = self._directory.handle(self._directory.members.name, request)
        return None if isinstance(answer, OtherView) else answer

    # internal: members

    async def _admit(self, asked: MemberProbe) -> None:
        """Ask a node whether it is the member that another node named."""
        member, is_member = asked.member, False
        try:
            reply = await self._calls.ask_status(member.grpc)
            # An older node reports no identity of its data folder: the name alone must do.
            is_same = member.identity in ("", reply.who.identity) or not reply.who.identity
            is_member = reply.node == member.name and is_same
        except grpc.aio.AioRpcError as error:
            log.debug("member.unanswered", peer=member.name, reason=str(error.code()))
        finally:
            self._directory.admission.answered(asked, is_member=is_member)
        self.wake()

    def _log_waiting(self) -> None:
        directory = self._directory
        waiting, left_out = directory.admission.waiting, directory.members.left_out
        if not waiting:
            self._told_waiting = None
        elif self._is_to_be_told():
            self._told_waiting = self._now()
            log_limited(
                log.warning,
                "members.unreachable",
                count=waiting,
                reason="other nodes tell of members that do not answer; they count when they do",
            )
        if left_out > self._left_out:
            self._left_out = left_out
            log_limited(
                log.error,
                "members.full",
                limit=LIMIT,
                reason="no more members are taken in; remove lost ones with `txbroker forget`",
            )

    def _is_to_be_told(self) -> bool:
        """True if the log has no line on waiting members, or none of late."""
        told = self._told_waiting
        return told is None or self._now() - told >= TELL_AGAIN

    # internal: keepers

    async def _register(self, name: str, batch: Register) -> None:
        directory = self._directory
        loop, patience = asyncio.get_running_loop(), directory.reach.patience(name)
        # The call itself notes what it missed, once: twice would be proof that the keeper is away.
        late = loop.call_later(patience, directory.replicator.late, name, batch, self._now())
        answer = await self._calls.send(name, batch)
        late.cancel()
        if isinstance(answer, Registered):
            directory.replicator.answered(name, batch, answer, self._now())
            directory.conflicts.on_registered(batch, answer)
        else:
            if isinstance(answer, OtherView):
                share = directory.on_other_view(name, answer)
                if share is not None:
                    await self._calls.send(name, share)
            directory.replicator.failed(name, batch, self._now())
        self._end_pauses()
        self.wake()

    @property
    def _is_undisputed(self) -> bool:
        """True if no session here counts below another, as far as keepers that answer know."""
        return self._directory.replicator.is_settled and not self._directory.conflicts.offers

    @property
    def _must_hurry(self) -> bool:
        """True if keepers lack entries of this node."""
        return not (self._directory.members.is_alone or self._directory.replicator.is_settled)

    async def _hurry(self) -> None:
        try:
            while self._must_hurry:
                await asyncio.sleep(OFTEN)
                self.flush()
                self._flush_queue.end()
        finally:
            self._is_hurrying = False


def _end(over: asyncio.Future[None]) -> None:
    """End a pause; it may have ended in this turn."""
    if not over.done():
        over.set_result(None)
