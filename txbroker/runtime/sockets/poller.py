"""
SHELL: watches the TCP connections of a node, and serves all ready ones in one turn.

Twisted's asyncio reactor spends a callback of asyncio, a context and a log prefix on each ready
socket. The poller has an epoll of its own, in which the event loop waits, too (`selector`). The
poller serves the ready connections as a batch in one loop, then ends the turn once. So the
publishes of a batch become durable together. A connection with output from several of them gets one
write.

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

from txbroker.core import FED, READ_SIZE, Router, Sockets
from txbroker.runtime.flush_queue import Flushable, FlushQueue
from txbroker.runtime.sockets.accepted import ABORTED, AcceptedStream
from txbroker.runtime.sockets.selector import Selector
from txbroker.runtime.structured_log import get_logger

log = get_logger()


SERVE_FOR = 0.003
"""
Seconds per turn for events at connections, beside the work that they bring.

Connections that were not served are first in the next turn.
"""

END_FOR = 0.001
"""Seconds per turn for connections that end: nobody waits for these."""


class Pollable(Protocol):
    """A watched object: a connection, or a listening socket of Twisted."""

    def fileno(self) -> int: ...

    def doRead(self) -> Exception | None:
        """Read; return the reason if the connection ended."""

    def doWrite(self) -> Exception | None:
        """Write; return the reason if the connection ended."""

    def readConnectionLost(self, reason: Failure) -> None:
        """Handle the end of the peer's output."""

    def connectionLost(self, reason: Failure) -> None:
        """Handle the end of the connection."""


class SocketOutputs:
    """
    The output gathered for clients in a turn; `again` schedules a flush in another turn.

    `is_short`: little is written in each turn, as a caller waits for several turns.
    """

    router: Router

    def __init__(self, again: Callable[[Flushable], None]) -> None:
        self._again = again
        self._next_turn = _NextTurn(self)
        self._is_short = False

    @property
    def is_short(self) -> bool:
        """See the class's text."""
        return self._is_short

    @is_short.setter
    def is_short(self, is_short: bool) -> None:
        self._is_short = is_short
        self.router.hurry(is_short)

    def flush(self) -> None:
        """
        Write the gathered output at the end of a turn, and let connections with leftover output
        react.
        """
        for packet_writer in self.router.send_outputs():
            if packet_writer.connection is not None:
                packet_writer.connection.flush()
        if self.router.has_outputs:
            self._again(self._next_turn)


class _NextTurn:
    """The output that was left for the next turn."""

    def __init__(self, outputs: SocketOutputs) -> None:
        self._outputs = outputs

    def flush(self) -> None:
        self._outputs.router.begin_turn()
        self._outputs.flush()


class Poller:
    """
    A file descriptor to the event loop; a part of a reactor (`StreamReactor`) to Twisted's classes.

    Must be created while the event loop runs. `now` returns the time in seconds.
    """

    def __init__(self, now: Callable[[], float], flush_queue: FlushQueue, sockets: Sockets) -> None:
        self.sockets = sockets
        self.buffer = memoryview(bytearray(READ_SIZE))
        self.buffers = [self.buffer]
        self.now = now
        self._flush_queue = flush_queue
        self._loop = asyncio.get_running_loop()
        self._selector = Selector.of(self._loop)
        self._epoll = self._selector.join(self._wait)
        # Indexed by file descriptor: the watched object; EPOLLIN, EPOLLOUT or both; what the epoll
        # reports, which may be more.
        self._watched: list[Any] = []
        self._interest = bytearray()
        self._reported = bytearray()
        self._ending: deque[tuple[AcceptedStream, Exception]] = deque()
        self._is_end_due = False
        self._skipped: frozenset[int] = frozenset()
        self._left: list[tuple[int, int]] = []
        self._has_others = False
        self._is_serving = False

    def close(self) -> None:
        """End all watches; close every open connection."""
        for descriptor in self.removeAll():
            descriptor.connectionLost(Failure(ConnectionLost()))
        self._selector.remove(self._epoll)

    # IReactorFDSet

    def addReader(self, reader: Pollable) -> None:
        """Call `reader.doRead` whenever the socket is readable."""
        self._add(reader, EPOLLIN)

    def addWriter(self, writer: Pollable) -> None:
        """Call `writer.doWrite` whenever the socket is writable."""
        self._add(writer, EPOLLOUT)

    def removeReader(self, reader: Pollable) -> None:
        """End the calls of `reader.doRead`."""
        self._remove(reader, EPOLLIN)

    def removeWriter(self, writer: Pollable) -> None:
        """End the calls of `writer.doWrite`."""
        self._remove(writer, EPOLLOUT)

    def removeAll(self) -> list[Pollable]:
        """End all watches; return the objects that were watched."""
        watched = [descriptor for descriptor in self._watched if descriptor is not None]
        for descriptor in watched:
            self._remove(descriptor, EPOLLIN | EPOLLOUT)
        return watched

    def getReaders(self) -> list[Pollable]:
        """Return the objects that are watched for reading."""
        return self._interested(EPOLLIN)

    def getWriters(self) -> list[Pollable]:
        """Return the objects that are watched for writing."""
        return self._interested(EPOLLOUT)

    # from accepted connections

    def watch(self, number: int, stream: AcceptedStream) -> None:
        """Watch a new connection for reading, as `addReader` does."""
        if number >= len(self._watched):
            self._make_room(number)
        self._epoll.register(number, EPOLLIN)
        self._watched[number] = stream
        self._interest[number] = self._reported[number] = EPOLLIN

    def pause(self, number: int) -> None:
        """
        End the reads of a connection; the epoll is told when the connection sends more.

        Most clients send nothing while they wait for an answer. So most pauses cost no system call.
        """
        self._interest[number] &= ~EPOLLIN

    def resume(self, number: int, stream: AcceptedStream) -> None:
        """Read a paused connection again."""
        if self._reported[number] & EPOLLIN:
            self._interest[number] |= EPOLLIN
        else:
            self._add(stream, EPOLLIN)

    def readNow(self, stream: AcceptedStream, number: int) -> None:
        """Read a new connection at once: it often has sent bytes. An end is detected later."""
        if self._interest[number] & EPOLLIN and self.sockets.read(number):
            try:
                stream.protocol.on_input()
            except Exception as error:
                self._fail(stream, error)

    def endSoon(self, stream: AcceptedStream, number: int, why: Exception) -> None:
        """End the connection in this turn, but after the caller has returned."""
        self.forget(number)
        self._ending.append((stream, why))
        if not self._is_serving:
            self._end_later()

    def forget(self, number: int) -> None:
        """Drop a descriptor that is about to be closed, which removes it from the epoll."""
        self._interest[number] = self._reported[number] = 0
        self._watched[number] = None

    # from listening sockets

    def soon(self, action: Callable[[], None]) -> None:
        """Run `action` in the next turn of the event loop, as one entry into the node."""
        self._loop.call_soon(self._flush_queue.share, action)

    # internal: who is watched

    def _add(self, descriptor: Pollable, kind: int) -> None:
        if self._epoll.closed:
            return  # The node stopped during a name lookup: a closed epoll would raise.
        number = descriptor.fileno()
        if number >= len(self._watched):
            self._make_room(number)
        if self._watched[number] is not descriptor:
            self._epoll.register(number, kind)
            self._watched[number] = descriptor
            self._interest[number] = self._reported[number] = kind
        else:
            self._interest[number] |= kind
            self._report(number)

    def _make_room(self, number: int) -> None:
        more = number + 1
        self._interest.extend(bytes(more))
        self._reported.extend(bytes(more))
        self._watched.extend([None] * more)

    def _remove(self, descriptor: Pollable, kind: int) -> None:
        number = descriptor.fileno()
        if number < 0 or number >= len(self._watched) or self._watched[number] is not descriptor:
            return
        self._interest[number] &= ~kind
        self._report(number)

    def _report(self, number: int) -> None:
        """Have the epoll report what is of interest, and nothing else."""
        interest = self._interest[number]
        if interest == self._reported[number]:
            return
        self._reported[number] = interest
        if interest:
            self._epoll.modify(number, interest)
        else:
            # An epoll reports errors of each registered descriptor again and again.
            self._epoll.unregister(number)
            self._watched[number] = None

    def _interested(self, kind: int) -> list[Pollable]:
        return [
            d for n, d in enumerate(self._watched) if d is not None and self._interest[n] & kind
        ]

    # internal: what is ready

    def _wait(self, timeout: float | None) -> bool:
        """Wait and serve connections for the selector; see `Wait`."""
        try:
            left = self.sockets.wait(self._epoll, self._interest, timeout, self.now)
            if left is None:
                return False
            is_idle = len(left) == 1 and left[0][0] == self._selector.number
            if is_idle and not self.sockets.has_postponed:
                return True  # a turn of the node would cost more than most events of the loop
            self._left, self._is_serving = left, True
            self._flush_queue.share(self._serve_left)
        except Exception:
            log.exception("stream.failed")
        finally:
            self._is_serving = False
        found, self._has_others = self._has_others, False
        return found

    def _serve_left(self) -> None:
        self.sockets.notify_output()
        left = self._left
        if self._skipped:  # Otherwise the same connections could be skipped each time.
            left.sort(key=lambda one: one[0] not in self._skipped)
        until, skipped = self.now() + SERVE_FOR, []
        for number, events in left:
            if number == self._selector.number:
                self._has_others = True
            elif events == FED:
                self._feed(number)
            elif self.now() < until:
                self._serve(number, events)
            else:
                skipped.append(number)  # The epoll reports it again.
        self._skipped = frozenset(skipped)
        self._is_serving = False
        self._end_all()

    def _feed(self, number: int) -> None:
        descriptor = self._watched[number]
        if descriptor is not None:
            try:
                # The protocol of a dialed connection may be a wrapper by an endpoint.
                descriptor.packet_writer.connection.on_input()
            except Exception as error:
                self._fail(descriptor, error)

    def _serve(self, number: int, events: int) -> None:
        watched, interest = self._watched, self._interest
        if interest[number] != self._reported[number]:
            self._report(number)
        descriptor = watched[number]
        # An error or a hang-up goes to whichever direction is watched, as with select(2).
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
        self._flush_queue.share(self._end_all)

    def _end_all(self) -> None:
        until = self.now() + END_FOR
        while self._ending and self.now() < until:
            stream, why = self._ending.popleft()
            try:
                stream.connectionLost(_failure_of(why))
            except Exception:  # An error of one connection must not stop the others.
                log.exception("stream.failed")
        if self._ending:
            self._end_later()

    def _fail(self, descriptor: Any, error: Exception) -> None:
        """Log an error of one connection and disconnect it; the others continue."""
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
        except Exception:  # An error of one connection must not stop the others.
            log.exception("stream.failed")


_USUAL: Final[dict[Exception, Failure]] = {
    why: Failure(why) for why in (CONNECTION_DONE, CONNECTION_LOST, ABORTED)
}


def _failure_of(why: Exception) -> Failure:
    """Return a cached `Failure`: making one costs more than the rest of a connection's end."""
    return _USUAL.get(why) or Failure(why)
