"""
SHELL: Twisted's TCP transports, which read into one shared buffer and write at once.

Twisted's own `write` waits for the event loop to report a writable socket, and the socket nearly
always is writable. The wait costs three system calls and a turn of the loop per write. This
transport sends the bytes at once; only a rest that the kernel refuses waits in Twisted's way.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from twisted.internet.main import CONNECTION_LOST
from twisted.internet.tcp import Client, Port
from twisted.python.failure import Failure

from txbroker.core import LinkReader, PacketReader, PacketWriter, accept
from txbroker.model.publish_run import Octets
from txbroker.runtime import hooks
from txbroker.runtime.descriptors import ceiling, next_descriptor
from txbroker.runtime.fair_shares import CROWD
from txbroker.runtime.rotation import Rotation
from txbroker.runtime.sockets.accepted import AcceptedStream, peer_of, read_some
from txbroker.runtime.sockets.unsent import Unsent
from txbroker.runtime.structured_log import get_logger, log_limited

log = get_logger()

ACCEPTS = 64
"""Accepted connections that a port passes on or drops at once."""

ACCEPT_FOR = 0.0005
"""
Seconds per turn for accepts. A turn accepts more than a machine of one host can dial meanwhile.
"""

SPARED = 100
"""Accepted connections that wait for their turn even if no open files are left for newcomers."""

BACKLOG = 1024
"""Connections that may wait to be accepted; Twisted's 50 are too few after a restart."""

ACCEPT_PAUSE = 1.0
"""Seconds after a failed accept, mostly for lack of open files, until the next attempt."""

SILENT_FOR = 600
"""
Seconds without a byte after which the kernel asks the peer of an accepted connection for life.

A client without keep-alive may vanish without a word, and its connection would stay for ever. More
frequent questions would wake clients that save their batteries.
"""

ASKED_EACH = 60
ASKED = 5
"""Seconds between two such questions, and questions without an answer that end the connection."""


class _Direct:
    """The parts of a dialed connection that differ from Twisted's; not for TLS."""

    # of Twisted's `Connection`
    socket: socket.socket
    protocol: Any
    reactor: Any
    connected: int

    _is_queueing = False
    """True if bytes, or the end of the connection, wait for the socket."""

    _unsent: Unsent | None = None

    packet_writer: PacketWriter | None = None

    def startTLS(self, context: object, normal: bool = True) -> None:
        """Refuse TLS: `write` would bypass it. Raises `NotImplementedError`."""
        raise NotImplementedError("TLS has Twisted's own transport")

    def carry(self, packet_reader: PacketReader | LinkReader, packet_writer: PacketWriter) -> None:
        """Attach the packet reader and writer, as `AcceptedStream.carry` does."""
        self.packet_writer = packet_writer
        if self.connected and not self._is_queueing:
            packet_writer.descriptor = self.socket.fileno()
        self.reactor.sockets.add(self.socket.fileno(), packet_reader)

    def doRead(self) -> Exception | None:
        """Read available bytes into the protocol; return the reason if the stream ended."""
        return read_some(self.socket.fileno(), self.reactor, self.protocol)

    def write(self, data: Octets) -> None:
        """Send bytes; queue the rest that the kernel refuses, and pause the producer."""
        self.writeSequence((data,))

    def writeSequence(self, pieces: Sequence[Octets]) -> None:
        """Send several pieces, without joining them if the kernel accepts all."""
        sent = 0
        if self.connected and not self._is_queueing:
            try:
                sent = self.socket.sendmsg(pieces)
            except OSError:
                pass  # The next write from the loop meets the lost connection and reports it.
        if self.connected and sent < sum(map(len, pieces)):
            self._unsent = self._unsent or Unsent()
            self._unsent.add(pieces, sent)
            self.startWriting()

    def doWrite(self) -> Exception | None:
        """Send queued bytes until the kernel refuses; Twisted handles the end of the queue."""
        if self._unsent is not None:
            try:
                if not self._unsent.write(self.socket.fileno()):
                    return None
            except OSError:
                return CONNECTION_LOST
            self._unsent = None
        ended: Exception | None = super().doWrite()  # type: ignore[misc]
        return ended

    def startWriting(self) -> None:
        """Watch the socket for writing."""
        self._is_queueing = True
        self._aim(-1)
        self.reactor.addWriter(self)

    def stopWriting(self) -> None:
        """End the watch for writing: the queue is empty."""
        self._is_queueing = False
        self._aim(self.socket.fileno() if self.connected else -1)
        self.reactor.removeWriter(self)

    def abortConnection(self) -> None:
        """Close the connection soon, and discard unsent bytes."""
        super().abortConnection()  # type: ignore[misc]
        self._is_queueing = True
        self._aim(-1)

    def connectionLost(self, reason: Failure) -> None:
        """Release the socket of the ended connection."""
        if self.packet_writer is not None:
            self._aim(-1)
            self.reactor.sockets.remove(self.socket.fileno())
        super().connectionLost(reason)  # type: ignore[misc]

    def _aim(self, descriptor: int) -> None:
        if self.packet_writer is not None:
            self.packet_writer.descriptor = descriptor


# Twisted's `abortConnection` replaces `doRead` by other functions; mypy infers their type.


class DialedStream(_Direct, Client):  # type: ignore[misc]
    """The transport of a dialed connection."""


class StreamPort(Port):
    """
    A listening socket; `reactor` is a `StreamReactor`.

    The kernel's backlog is first in, first out: a crowd of one host in it delays everybody. A
    client that finds the backlog full retries only after one and after three seconds. So the port
    accepts whatever comes, and the hosts of accepted connections take turns here. Such a connection
    costs its descriptor alone. Optional attributes of the factory:

    - `asks_for_address` False: `buildProtocol` receives None as the address.
    - `puts_off`: while it returns True, the port passes no connection on. A crowd that is passed on
      at once makes the turn long for everybody.
    - `charge`: receives the seconds that were spent on newcomers here.
    - `drops`: returns True for a descriptor of a crowd that is not worth a connection. Many clients
      connect and leave at once.
    """

    factory: Any
    _is_short = False
    _is_due = False

    def __init__(self, port: int, factory: Any, backlog: int, interface: str, reactor: Any) -> None:
        super().__init__(port, factory, max(backlog, BACKLOG), interface, reactor)
        self._poller = reactor.poller
        self._asks_for_address = getattr(factory, "asks_for_address", True)
        self._drops: Callable[[int], bool] | None = getattr(factory, "drops", None)
        self._puts_off: Callable[[], bool] | None = getattr(factory, "puts_off", None)
        self._charge: Callable[[float], None] | None = getattr(factory, "charge", None)
        self._waiting: Rotation[Hashable, int] = Rotation()  # accepted descriptors, by host

    def createInternetSocket(self) -> socket.socket:
        """Create the socket with the options that accepted sockets inherit."""
        made: socket.socket = super().createInternetSocket()  # type: ignore[no-untyped-call]
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, True)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_FOR)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ASKED_EACH)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, ASKED)
        return made

    def doRead(self) -> None:
        """Accept connections. An escaping error would close the port, and leave the node deaf."""
        hooks.run(self._accept_and_pass_on)

    def connectionLost(self, reason: Failure) -> None:
        """Stop listening; close the connections that wait here."""
        super().connectionLost(reason)  # type: ignore[no-untyped-call]
        while self._waiting:
            os.close(self._waiting.next())

    def _accept_and_pass_on(self) -> None:
        self._accept_some()
        self._pass_on()

    def _accept_some(self) -> None:
        most = ceiling()
        if self._is_short and next_descriptor(self.socket.fileno()) >= most:
            self._pause(f"{most} files are open, the rest is for the node's own")
            return
        until = self._poller.now() + ACCEPT_FOR
        while True:
            try:
                descriptor, host = accept(self.socket)
            except (ConnectionAbortedError, PermissionError):
                return
            except OSError as error:
                self._pause(error.strerror)
                return
            if descriptor < 0:
                self._is_short = False
                return
            self._waiting.add(host, descriptor)
            if descriptor + 1 >= most and not self._shed():
                self._pause(f"{most} files are open, the rest is for the node's own")
                return
            if self._poller.now() >= until:
                return

    def _shed(self) -> bool:
        """
        Close the newest connection of the host that has most waiting; return False if few wait.

        Otherwise a crowd of one host takes all open files, and nobody else is accepted.
        """
        if self._waiting.count <= SPARED:
            return False
        os.close(self._waiting.drop_newest())
        log_limited(log.warning, "accept.shed", reason="too many connections wait for their turn")
        return True

    def _pass_on(self) -> None:
        """Make connections of the waiting descriptors, as far as the factory wants them now."""
        for _ in range(ACCEPTS):
            if not self._waiting.count or (self._puts_off is not None and self._puts_off()):
                break
            try:
                self._accept_next()
            except Exception:  # An error of one connection must not stop the port.
                log.exception("stream.failed")
        if self._waiting.count and not self._is_due:
            self._is_due = True
            self._poller.soon(self._go_on_passing)

    def _go_on_passing(self) -> None:
        self._is_due = False
        hooks.run(self._pass_on)

    def _accept_next(self) -> None:
        """Make a connection of the next descriptor, unless the factory refuses it; read it."""
        began = self._poller.now()
        is_crowd = self._waiting.count > CROWD
        descriptor = self._waiting.next()
        stream = self._accept(descriptor, is_crowd=is_crowd)
        if self._charge is not None:
            self._charge(self._poller.now() - began)  # What it sent is charged where it is served.
        if stream is not None:
            self._poller.readNow(stream, descriptor)

    def _accept(self, descriptor: int, *, is_crowd: bool) -> AcceptedStream | None:
        protocol = None
        try:
            if is_crowd and self._drops is not None and self._drops(descriptor):
                return None
            address = peer_of(descriptor) if self._asks_for_address else None
            protocol = self.factory.buildProtocol(address)
        finally:
            if protocol is None:
                os.close(descriptor)
        if protocol is None:
            return None
        stream = AcceptedStream(descriptor, protocol, self._poller)
        protocol.makeConnection(stream)
        return stream

    def _pause(self, reason: str | None) -> None:
        # Waiting connections stay in the backlog; accepting again at once would spin.
        if not self._is_short:
            self._is_short = True
            log.warning("accept.paused", reason=reason, port=self._realPortNumber)
        self.reactor.removeReader(self)
        self.reactor.callLater(ACCEPT_PAUSE, self._resume)

    def _resume(self) -> None:
        if self.connected and not self.disconnecting:
            self.reactor.addReader(self)
