"""
SHELL: watches the TCP connections of a node, and lets all that are ready share one turn.

Twisted's asyncio reactor spends a callback of asyncio, a context and a log prefix on each socket
that is ready. Here the sockets are in an epoll of their own, in which the event loop waits, too
(`selector`). When something is ready, a batch of connections is served in one loop, and the turn
ends once: what they brought is made durable together, and a connection to which several of them
sent something is written once.

Measured against Twisted's reactor and uvloop: docs/decisions/event-loop.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from select import EPOLLIN, EPOLLOUT
from typing import Any, Final, Protocol

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST
from twisted.python.failure import Failure

from txbroker.core import FED, READ_SIZE, Sockets
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.runtime.sockets.accepted import ABORTED, AcceptedStream
from txbroker.runtime.sockets.selector import Selector
from txbroker.runtime.structured_log import get_logger

log = get_logger()


SERVE_FOR = 0.003
"""
Seconds for all that happens at connections in one turn, beside what they bring; the rest of them
come first in the next turn.
"""


class Pollable(Protocol):
    """What is watched: a connection or a listening socket of Twisted."""

    def fileno(self) -> int: ...

    def doRead(self) -> Exception | None:
        """It can be read; gives why it is at its end, if it is."""

    def doWrite(self) -> Exception | None:
        """It can be written; likewise."""

    def readConnectionLost(self, reason: Failure) -> None:
        """The other end sends no more."""

    def connectionLost(self, reason: Failure) -> None:
        """It is at its end."""


class Poller:
    """
    To the event loop a file descriptor; to Twisted's classes a part of a reactor (`StreamReactor`).

    Made while the event loop runs; `now` gives the time, in seconds.
    """

    def __init__(self, now: Callable[[], float], turn: FlushQueue, sockets: Sockets) -> None:
        self.sockets = sockets
        self.buffer = memoryview(bytearray(READ_SIZE))
        self.buffers = [self.buffer]
        self._now = now
        self._turn = turn
        self._loop = asyncio.get_running_loop()
        self._selector = Selector.of(self._loop)
        self._epoll = self._selector.join(self._wait)
        # Both by file descriptor: who has it, and EPOLLIN, EPOLLOUT or both.
        self._watched: list[Any] = []
        self._interest = bytearray()
        self._ending: deque[tuple[AcceptedStream, Exception]] = deque()
        self._is_end_due = False
        self._skipped: frozenset[int] = frozenset()
        self._left: list[tuple[int, int]] = []
        self._has_others = False
        self._is_serving = False

    def close(self) -> None:
        """Watch no more; whatever is open still is closed."""
        for descriptor in self.removeAll():
            descriptor.connectionLost(Failure(ConnectionLost()))
        self._selector.leave(self._epoll)

    # IReactorFDSet

    def addReader(self, reader: Pollable) -> None:
        """Call its `doRead` when it can be read."""
        self._add(reader, EPOLLIN)

    def addWriter(self, writer: Pollable) -> None:
        """Call its `doWrite` when it can be written."""
        self._add(writer, EPOLLOUT)

    def removeReader(self, reader: Pollable) -> None:
        """Call it no more."""
        self._remove(reader, EPOLLIN)

    def removeWriter(self, writer: Pollable) -> None:
        """Call it no more."""
        self._remove(writer, EPOLLOUT)

    def removeAll(self) -> list[Pollable]:
        """Watch none of them any more; gives them."""
        watched = [descriptor for descriptor in self._watched if descriptor is not None]
        for descriptor in watched:
            self._remove(descriptor, EPOLLIN | EPOLLOUT)
        return watched

    def getReaders(self) -> list[Pollable]:
        """Who waits for something to read."""
        return self._interested(EPOLLIN)

    def getWriters(self) -> list[Pollable]:
        """Who waits for room to write."""
        return self._interested(EPOLLOUT)

    # from accepted connections

    def watch(self, number: int, stream: AcceptedStream) -> None:
        """As `addReader`, for one that is new."""
        if number >= len(self._watched):
            self._make_room(number)
        self._epoll.register(number, EPOLLIN)
        self._watched[number] = stream
        self._interest[number] = EPOLLIN

    def readNow(self, stream: AcceptedStream, number: int) -> None:
        """Who has just connected has often said something already; an end is met again later."""
        if self._interest[number] & EPOLLIN and self.sockets.read(number):
            try:
                stream.fed()
            except Exception as error:
                self._fail(stream, error)

    def endSoon(self, stream: AcceptedStream, number: int, why: Exception) -> None:
        """Tell it that it is at its end, in this turn, but not before the caller has returned."""
        self.forget(number)
        self._ending.append((stream, why))
        if not self._is_serving:
            self._end_later()

    def forget(self, number: int) -> None:
        """A descriptor is about to be closed, which takes it out of the epoll."""
        self._interest[number] = 0
        self._watched[number] = None

    # internal: who is watched

    def _add(self, descriptor: Pollable, kind: int) -> None:
        if self._epoll.closed:
            return  # a name that was looked up when the node stopped: nobody waits for it
        number = descriptor.fileno()
        if number >= len(self._watched):
            self._make_room(number)
        if self._watched[number] is not descriptor:
            self._epoll.register(number, kind)
            self._watched[number] = descriptor
            self._interest[number] = kind
        elif not self._interest[number] & kind:
            self._interest[number] |= kind
            self._epoll.modify(number, self._interest[number])

    def _make_room(self, number: int) -> None:
        more = number + 1
        self._interest.extend(bytes(more))
        self._watched.extend([None] * more)

    def _remove(self, descriptor: Pollable, kind: int) -> None:
        number = descriptor.fileno()
        if number < 0 or number >= len(self._watched) or self._watched[number] is not descriptor:
            return
        if not self._interest[number] & kind:
            return
        self._interest[number] &= ~kind
        if self._interest[number]:
            self._epoll.modify(number, self._interest[number])
        else:
            # Errors are reported, again and again, of whatever is in there.
            self._epoll.unregister(number)
            self._watched[number] = None

    def _interested(self, kind: int) -> list[Pollable]:
        return [
            d for n, d in enumerate(self._watched) if d is not None and self._interest[n] & kind
        ]

    # internal: what is ready

    def _wait(self, timeout: float | None) -> bool:
        """For the selector."""
        try:
            left = self.sockets.wait(self._epoll, self._interest, timeout, self._now)
            if left is None:
                return False
            self._left, self._is_serving = left, True
            self._turn.share(self._serve_left)
        except Exception:
            log.exception("stream.failed")
        finally:
            self._is_serving = False
        found, self._has_others = self._has_others, False
        return found

    def _serve_left(self) -> None:
        self.sockets.tell()
        left = self._left
        if self._skipped:  # whoever was not served the last time comes first
            left.sort(key=lambda one: one[0] not in self._skipped)
        until, skipped = self._now() + SERVE_FOR, []
        for number, events in left:
            if number == self._selector.number:
                self._has_others = True
            elif events == FED:
                self._feed(number)
            elif self._now() < until:
                self._serve(number, events)
            else:
                skipped.append(number)  # it is ready still
        self._skipped = frozenset(skipped)
        self._is_serving = False
        self._end_all()

    def _feed(self, number: int) -> None:
        descriptor = self._watched[number]
        if descriptor is not None:
            try:
                descriptor.fed()
            except Exception as error:
                self._fail(descriptor, error)

    def _serve(self, number: int, events: int) -> None:
        watched, interest = self._watched, self._interest
        descriptor = watched[number]
        # An error or a hang-up is for whoever waits, as with select(2).
        if descriptor is not None and events & ~EPOLLOUT and interest[number] & EPOLLIN:
            self._do(descriptor, descriptor.doRead, is_read=True)
            descriptor = watched[number]
        if descriptor is not None and events & ~EPOLLIN and interest[number] & EPOLLOUT:
            self._do(descriptor, descriptor.doWrite, is_read=False)

    def _do(
        self, descriptor: Pollable, action: Callable[[], Exception | None], *, is_read: bool
    ) -> None:
        try:
            why = action()
        except Exception as error:
            self._fail(descriptor, error)
        else:
            if why is not None:
                self._disconnect(descriptor, why, is_read=is_read)

    def _end_later(self) -> None:
        if not self._is_end_due:
            self._is_end_due = True
            self._loop.call_soon(self._end_batch)

    def _end_batch(self) -> None:
        self._is_end_due = False
        self._turn.share(self._end_all)

    def _end_all(self) -> None:
        until = self._now() + SERVE_FOR
        while self._ending and self._now() < until:
            stream, why = self._ending.popleft()
            try:
                stream.connectionLost(_failure_of(why))
            except Exception:  # of one connection: the others go on
                log.exception("stream.failed")
        if self._ending:
            self._end_later()

    def _fail(self, descriptor: Any, error: Exception) -> None:
        """An error of one connection: the others go on."""
        log.exception("stream.failed")
        self._disconnect(descriptor, error, is_read=False)

    def _disconnect(self, descriptor: Pollable, why: Exception, *, is_read: bool) -> None:
        try:
            self.removeReader(descriptor)
            if is_read and isinstance(why, ConnectionDone):
                descriptor.readConnectionLost(_failure_of(why))
            else:
                self.removeWriter(descriptor)
                descriptor.connectionLost(_failure_of(why))
        except Exception:  # of one connection: the others go on
            log.exception("stream.failed")


_USUAL: Final[dict[Exception, Failure]] = {
    why: Failure(why) for why in (CONNECTION_DONE, CONNECTION_LOST, ABORTED)
}


def _failure_of(why: Exception) -> Failure:
    """Making one takes longer than all else at the end of a connection."""
    return _USUAL.get(why) or Failure(why)
