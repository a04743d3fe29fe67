"""Procedures of simulated nodes: a clock, a lock, streams, and the runner of their steps."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from txbroker.delegation.hand_back_child import RetireError
from txbroker.delegation.hand_back_messages import HandBackOutcome, JournalCopy, JournalRest
from txbroker.delegation.hand_back_parent import HandBackAborted
from txbroker.delegation.procedure import (
    AcquireLock,
    AskOutcome,
    AwaitCondition,
    AwaitSettled,
    AwaitStored,
    LogEvent,
    MoveRoles,
    Procedure,
    ReceiveMessage,
    SaveReceivedZone,
    SendMessage,
)
from txbroker.delegation.zone_snapshot import StagedZone
from txbroker.model.errors import NoRoom, PeerError, StoreError

if TYPE_CHECKING:
    from tests.delegation.simulated_tree import Node

POLL = 0.05
"""Seconds between two looks at a condition."""


class Killed(BaseException):
    """The process died in the middle of a turn."""


class Clock:
    """Actions in the order of their times, and the random numbers of a history."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._numbers), action))

    def delay(self) -> float:
        return self.random.uniform(0.001, 0.02)

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self._due and self._due[0][0] <= until:
            self.now, _, action = heapq.heappop(self._due)
            action()
        self.now = until


class Lock:
    """The lock on changes of ownership."""

    def __init__(self) -> None:
        self.is_held = False
        self.waiting: deque[Callable[[], None]] = deque()

    def acquire(self, go_on: Callable[[], None]) -> None:
        if self.is_held:
            self.waiting.append(go_on)
        else:
            self.is_held = True
            go_on()

    def release(self) -> None:
        if self.waiting:
            self.waiting.popleft()()
        else:
            self.is_held = False


class StreamEnd:
    """
    One end of a stream: no message overtakes another; a broken stream loses all under way.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.peer: StreamEnd
        self.is_broken = False
        self.sent: deque[object] = deque()  # under way, the oldest first
        self.received: deque[object] = deque()
        self.awake: Callable[[], None] = lambda: None

    def send(self, message: object) -> None:
        peer = self.peer
        self.sent.append(message)

        def arrive() -> None:
            message = self.sent.popleft()
            # The journal is appended as it comes: no procedure sees its messages.
            if not peer.is_broken and not isinstance(message, JournalCopy | JournalRest):
                peer.received.append(message)
                peer.awake()

        self.node.tree.clock.after(self.node.tree.clock.delay(), arrive)

    def break_off(self) -> None:
        for end in (self, self.peer):
            if end.is_broken:
                continue
            end.is_broken = True
            self.node.tree.clock.after(self.node.tree.clock.delay(), end.wake)

    def wake(self) -> None:
        """Let the run that waits look at its end."""
        self.awake()


class Run:
    """One procedure that runs at a node; nothing is left of it when the node dies."""

    def __init__(
        self,
        node: Node,
        procedure: Procedure[Any],
        end: StreamEnd | None,
        ended: Callable[[Any, BaseException | None], object],
    ) -> None:
        self.node, self.procedure, self.end, self.ended = node, procedure, end, ended
        self.turn = 0
        self._life = node.life
        self.resume(None)

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Act in the life of the process that began the run: a lock may wake a dead one's."""
        if self.node.life == self._life:
            self.node.after(seconds, action)

    def later(self, action: Callable[[], object], seconds: float | None = None) -> None:
        """Act unless the procedure has gone on by another way since."""
        turn = self.turn
        clock = self.node.tree.clock
        seconds = clock.delay() if seconds is None else seconds
        self.after(seconds, lambda: action() if self.turn == turn else None)

    def resume(self, value: object) -> None:
        self._step(lambda: self.procedure.send(value))

    def fail(self, error: BaseException) -> None:
        self._step(lambda: self.procedure.throw(error))

    def _step(self, advance: Callable[[], Any]) -> None:
        self.turn += 1
        try:
            step = advance()
        except StopIteration as stop:
            self.ended(stop.value, None)
            return
        except Killed:
            return
        except (OSError, StoreError, PeerError, NoRoom, HandBackAborted, RetireError) as error:
            self.ended(None, error)
            return
        if isinstance(step, LogEvent):
            self.node.log.append((step.name, step.fields))
            self.resume(None)
            return
        try:
            self.node.tree.strike(f"{self.node.name} {type(step).__name__}")
        except Killed:
            return
        self._do(step)

    def _do(self, step: Any) -> None:
        match step:
            case SendMessage(message=message):
                assert self.end is not None
                if self.end.is_broken:
                    self.later(lambda: self.fail(ConnectionError("the stream is broken")))
                else:
                    self.end.send(message)
                    self.later(lambda: self.resume(None))
            case ReceiveMessage(seconds=seconds):
                self._receive()
                self.later(lambda: self.fail(TimeoutError()), seconds)
            case AwaitCondition(condition=condition, seconds=seconds):
                self._poll(condition, self.node.tree.clock.now + seconds)
            case AwaitSettled():
                self._settle(self.node.tree.clock.now + 10)
            case AcquireLock(lock=lock):
                assert isinstance(lock, Lock)
                lock.acquire(lambda: self.later(lambda: self.resume(None)))
            case SaveReceivedZone(zone=zone):
                self.later(lambda: self._save(zone))
            case AwaitStored() | MoveRoles():
                self.later(lambda: self.resume(None))
            case AskOutcome(offer=offer):
                self.later(lambda: self.resume(HandBackOutcome.UNKNOWN), 10.0)
                self.node.ask_outcome(offer, self._answered(self.turn))

    def _answered(self, turn: int) -> Callable[[HandBackOutcome], None]:
        def answered(outcome: HandBackOutcome) -> None:
            self.after(0.0, lambda: self.resume(outcome) if self.turn == turn else None)

        return answered

    def _receive(self) -> None:
        end, turn = self.end, self.turn
        assert end is not None

        def look() -> None:
            if self.turn == turn and end.received:
                self.resume(end.received.popleft())
            elif self.turn == turn and end.is_broken:
                self.fail(ConnectionError("the stream is broken"))

        end.awake = lambda: self.after(0.0, look)
        end.awake()

    def _poll(self, condition: Callable[[], bool], until: float) -> None:
        if condition() or self.node.tree.clock.now >= until:
            self.later(lambda: self.resume(condition()))
        else:
            self.later(lambda: self._poll(condition, until), POLL)

    def _settle(self, until: float) -> None:
        if self.node.disk.values == self.node.zone.retained.now:
            self.later(lambda: self.resume(None))
        elif self.node.tree.clock.now >= until:
            self.fail(TimeoutError("publishes are not durable"))
        else:
            self.later(lambda: self._settle(until), POLL)

    def _save(self, zone: StagedZone) -> None:
        try:
            self.node.node_grant.receive(zone)
        except StoreError as error:
            self.fail(error)
            return
        self.resume(None)
