"""
SHELL: the TCP port of a node's gRPC server, and what passes from there to gRPC.

gRPC accepts whatever a stranger sends. So gRPC listens on a Unix socket, to which only this port
connects. The port checks the headers of calls (`CallHeaders`), and passes all bytes on, both ways.
A connection to gRPC has the peer's address as its name, so that hosts still take turns.

The port has a thread of its own. In the event loop, each call would wait two turns longer, and a
flood of frames would make those turns long for clients.
"""

from __future__ import annotations

import itertools
import os
import secrets
import select
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from txbroker.rpc.call_headers import CallHeaders
from txbroker.runtime import hooks
from txbroker.runtime.descriptors import ceiling, next_descriptor

BEGIN_WITHIN: Final = 10.0
"""Seconds in which a peer must acknowledge SETTINGS, as each HTTP/2 client does at once."""

END_WITHIN: Final = 5.0
"""Seconds in which a peer must read the last bytes of a connection that gRPC has ended."""

FILES_EACH: Final = 3
"""
Open files of a connection: the peer's, and both ends of the one to gRPC.

The port keeps at most a third as many ends as the process may open files.
"""

GONE_AFTER: Final = 15
"""
Seconds in which a peer's machine must answer the kernel; a third of them without a word first.

A machine that has lost its power or its address ends no connection. gRPC asks the peers of running
calls alone. So dead connections took all open files of the port, and no other node came in.
"""

READ: Final = 64 * 1024
"""Bytes that one read takes; so many may wait for a slow reader."""

ACCEPTS: Final = 64
"""Connections that are accepted at once; others have their turn in between."""

SWEEP: Final = 0.5
"""Seconds between two looks at deadlines, and at a port that found no room."""

BACKLOG: Final = 1024


class _End:
    """One end of a connection: the peer's (`headers` is set) or gRPC's."""

    __slots__ = ("deadline", "headers", "is_full", "is_last", "other", "socket", "unsent")

    def __init__(self, its: socket.socket, headers: CallHeaders | None = None) -> None:
        self.socket = its
        self.headers = headers
        self.other: _End | None = None
        self.unsent = b""
        self.is_full = False  # the kernel has refused bytes
        self.is_last = False  # the other end is closed
        self.deadline = 0.0


class ControlPort:
    """
    The port of one node.

    `refused` gets the peer and the reason of each connection that was ended for its bytes. `later`
    runs a callback in the event loop, from any thread.
    """

    def __init__(self, later: Callable[..., object], refused: Callable[[str, str], object]) -> None:
        self._later = later
        self._refused = refused
        self._folder = tempfile.mkdtemp(prefix="txbroker-")
        self._path = os.path.join(self._folder, "grpc")
        self._inner = -1
        self._name = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._listening: list[socket.socket] = []
        self._ends: dict[int, _End] = {}
        self._due: dict[_End, None] = {}
        self._epoll = select.epoll()
        self._is_open = True
        self._is_paused = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    @property
    def inner(self) -> str:
        """Return the address on which gRPC must listen before `start`."""
        return f"unix:{self._path}"

    def bind(self, host: str, port: int) -> int:
        """Bind all addresses of the host; return the port. Raises `OSError`."""
        failed: OSError | None = None
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in found:
            made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)
            # Accepted connections inherit it.
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
            _look_for_life(made)
            try:
                made.bind((address[0], port, *address[2:]))
                made.listen(BACKLOG)
            except OSError as error:  # A name may have addresses that the machine lacks.
                made.close()
                failed = error
                continue
            self._listening.append(made)
            port = made.getsockname()[1]
        if failed is not None and not self._listening:
            raise failed
        return port

    def start(self) -> None:
        """Accept connections: gRPC listens by now."""
        # Nobody else can connect to gRPC: its socket has no name any more.
        self._inner = os.open(self._path, os.O_PATH | os.O_CLOEXEC)
        self._remove_name()
        for made in self._listening:
            self._epoll.register(made, select.EPOLLIN)
        self._thread.start()

    def close(self) -> None:
        """Close the port and all its connections."""
        self._is_open = False
        if self._thread.is_alive():
            os.eventfd_write(self._wake, 1)
            self._thread.join()
        for end in self._ends.values():
            end.socket.close()
        self._ends.clear()
        for made in self._listening:
            made.close()
        self._epoll.close()
        os.close(self._wake)
        if self._inner >= 0:
            os.close(self._inner)
        self._remove_name()

    # internal: the thread

    def _run(self) -> None:
        try:
            self._serve_all()
        except Exception as error:
            # Otherwise the node would be deaf to other nodes.
            self._later(hooks.fail, error)

    def _serve_all(self) -> None:
        listening = {made.fileno(): made for made in self._listening}
        swept = time.monotonic()
        while self._is_open:
            has_to_sweep = self._due or self._is_paused
            for number, events in self._epoll.poll(SWEEP if has_to_sweep else None):
                if number in listening:
                    self._accept(listening[number])
                elif (end := self._ends.get(number)) is not None:
                    self._serve(end, events)
            if time.monotonic() >= swept + SWEEP:
                swept = time.monotonic()
                self._sweep(swept)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS):
            try:
                if not self._has_room(listening):
                    self._pause(True)
                    return
                made, _ = listening.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue
            except OSError:
                self._pause(True)  # Otherwise the thread would spin until a file is free.
                return
            made.setblocking(False)
            end = _End(made, CallHeaders())
            self._add(end)
            self._set_deadline(end, BEGIN_WITHIN)

    def _has_room(self, listening: socket.socket) -> bool:
        most = ceiling()
        is_few = len(self._ends) * FILES_EACH < most
        return is_few and next_descriptor(listening.fileno()) + FILES_EACH <= most

    def _pause(self, is_paused: bool) -> None:
        self._is_paused = is_paused
        for made in self._listening:
            self._epoll.modify(made, 0 if is_paused else select.EPOLLIN)

    def _sweep(self, now: float) -> None:
        for end in [end for end in self._due if now >= end.deadline]:
            self._close(end)
        if self._is_paused:
            self._pause(False)

    def _serve(self, end: _End, events: int) -> None:
        try:
            if events & select.EPOLLOUT:
                self._send(end)
            if events & ~select.EPOLLOUT and end.socket.fileno() >= 0:
                self._read(end)
        except BlockingIOError:
            pass
        except OSError:
            self._close(end)

    def _read(self, end: _End) -> None:
        """Pass on what an end says. Raises `OSError`."""
        data = end.socket.recv(READ)
        if not data:
            self._end(end)
        if not data or end.is_last:
            return
        if end.headers is not None and not self._is_sound(end, end.headers, data):
            return
        other = end.other
        if other is None:
            end.unsent += data  # no more than the preface
            if end.headers is None or not end.headers.is_begun:
                return
            other, data, end.unsent = self._connect(end), end.unsent, b""
        other.unsent += data
        self._send(other)

    def _is_sound(self, end: _End, headers: CallHeaders, data: bytes) -> bool:
        """Check the peer's bytes; close the connection if they are too many headers."""
        fault = headers.find_fault(data)
        if fault:
            self._later(self._refused, _name_of(end.socket.getpeername()), fault)
            self._close(end)
        elif headers.is_acknowledged and not end.is_last:
            self._due.pop(end, None)
        return not fault

    def _connect(self, peer: _End) -> _End:
        """Connect to gRPC under the peer's address. Raises `OSError`."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        end = _End(made)
        try:
            address = _name_of(peer.socket.getpeername())
            made.bind(f"\0{self._name}-{next(self._numbers)}/{address}")
            made.connect(f"/proc/self/fd/{self._inner}")
        except OSError:
            made.close()
            raise
        peer.other, end.other = end, peer
        self._add(end)
        return end

    def _send(self, end: _End) -> None:
        """Send what waits for an end; the other end is not read until all is sent."""
        with suppress(BlockingIOError):
            end.unsent = end.unsent[end.socket.send(end.unsent) :]
        if end.is_last and not end.unsent:
            self._close(end)
        elif end.is_full != (len(end.unsent) > 0):
            end.is_full = not end.is_full
            self._watch(end)
            if end.other is not None:
                self._watch(end.other)

    def _end(self, end: _End) -> None:
        """End a connection of which one end is closed, after the other end has read all."""
        other = end.other
        if other is None or not other.unsent:
            self._close(end)
            return
        end.other = other.other = None
        self._close(end)
        other.is_last = True
        self._set_deadline(other, END_WITHIN)
        self._watch(other)

    def _set_deadline(self, end: _End, seconds: float) -> None:
        end.deadline = time.monotonic() + seconds
        self._due[end] = None

    def _add(self, end: _End) -> None:
        self._ends[end.socket.fileno()] = end
        self._epoll.register(end.socket, select.EPOLLIN)

    def _watch(self, end: _End) -> None:
        is_read = not end.is_last and (end.other is None or not end.other.is_full)
        interest = (select.EPOLLIN if is_read else 0) | (select.EPOLLOUT if end.is_full else 0)
        self._epoll.modify(end.socket, interest)

    def _close(self, end: _End) -> None:
        """Close both ends."""
        for one in (end, end.other):
            if one is not None and one.socket.fileno() >= 0:
                self._due.pop(one, None)
                del self._ends[one.socket.fileno()]
                one.socket.close()

    def _remove_name(self) -> None:
        with suppress(OSError):
            os.unlink(self._path)
        with suppress(OSError):
            os.rmdir(self._folder)


def _look_for_life(made: socket.socket) -> None:
    """Let the kernel end connections whose peer is gone."""
    probe = max(GONE_AFTER // 5, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, True)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(GONE_AFTER // 3, 1))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe)
    # Bytes that nobody acknowledges put off the questions: this bounds both.
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1_000 * GONE_AFTER)


def _name_of(address: tuple[str, int] | tuple[str, int, int, int]) -> str:
    """Return a peer's address as gRPC writes it."""
    host, port = address[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
