"""
SHELL: Twisted's TCP transports, reading into one buffer and writing at once.

Twisted's own `write` waits for the event loop to say that the socket can be written, which it
nearly always can: three system calls and a round of the loop for each write. Here the bytes are
sent at once, and only what the kernel does not take waits, in Twisted's way.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from twisted.internet.main import CONNECTION_LOST
from twisted.internet.tcp import Client, Port
from twisted.python.failure import Failure

from txbroker.core import LinkReader, PacketReader, PacketWriter, accept
from txbroker.model.publish_run import Octets
from txbroker.runtime import hooks
from txbroker.runtime.descriptors import ceiling, next_descriptor
from txbroker.runtime.sockets.accepted import AcceptedStream, peer_of, read_some
from txbroker.runtime.sockets.unsent import Unsent
from txbroker.runtime.structured_log import get_logger

log = get_logger()

ACCEPTS = 64
"""Connections that are accepted at once."""

MOST_ACCEPTS = 512
"""Likewise, with those that are closed again as nobody wants them any more."""

FEW = 100
"""Connections that may wait in the backlog of a factory that puts them off."""

UNACKED: Final = slice(24, 28)
"""Where `tcpi_unacked` is in Linux's `struct tcp_info`."""

BACKLOG = 1024
"""Connections that may wait to be accepted; Twisted's 50 are fewer than come after a restart."""

ACCEPT_PAUSE = 1.0
"""Seconds until accepting is tried again after it failed, mostly for want of open files."""


class _Direct:
    """What a connection that was dialed does differently from Twisted's; not for TLS."""

    # of Twisted's `Connection`
    socket: socket.socket
    protocol: Any
    reactor: Any
    connected: int

    _is_queueing = False
    """Whether something waits for the socket: bytes, or the end of the connection."""

    _unsent: Unsent | None = None

    _packet_writer: PacketWriter | None = None

    def startTLS(self, context: object, normal: bool = True) -> None:
        """Not to be had: `write` would go past it."""
        raise NotImplementedError("TLS has Twisted's own transport")

    def carry(self, packet_reader: PacketReader | LinkReader, packet_writer: PacketWriter) -> None:
        """As `AcceptedStream.carry`."""
        self._packet_writer = packet_writer
        if self.connected and not self._is_queueing:
            packet_writer.descriptor = self.socket.fileno()
        self.reactor.sockets.add(self.socket.fileno(), packet_reader)

    def doRead(self) -> Exception | None:
        """What there is goes to the protocol."""
        return read_some(self.socket.fileno(), self.reactor, self.protocol)

    def fed(self) -> None:
        """What there was is in the packet reader."""
        assert self._packet_writer is not None
        self._packet_writer.connection.fed()  # endpoints put another protocol before the real one

    def write(self, data: Octets) -> None:
        """Send bytes; what the kernel does not take waits, and the producer is told of it."""
        self.writeSequence((data,))

    def writeSequence(self, pieces: Sequence[Octets]) -> None:
        """The same for several, which are not joined where the kernel takes them all."""
        sent = 0
        if self.connected and not self._is_queueing:
            try:
                sent = self.socket.sendmsg(pieces)
            except OSError:
                pass  # a lost connection is met again, and told, when it is written from the loop
        if self.connected and sent < sum(map(len, pieces)):
            self._unsent = self._unsent or Unsent()
            self._unsent.add(pieces, sent)
            self.startWriting()

    def doWrite(self) -> Exception | None:
        """Send of what waits as much as the kernel takes; the end of it all is Twisted's."""
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
        """Wait until the socket can be written."""
        self._is_queueing = True
        self._aim(-1)
        self.reactor.addWriter(self)

    def stopWriting(self) -> None:
        """There is nothing to write any more."""
        self._is_queueing = False
        self._aim(self.socket.fileno() if self.connected else -1)
        self.reactor.removeWriter(self)

    def abortConnection(self) -> None:
        """Close it soon, and send nothing more."""
        super().abortConnection()  # type: ignore[misc]
        self._is_queueing = True
        self._aim(-1)

    def connectionLost(self, reason: Failure) -> None:
        """It is at its end."""
        if self._packet_writer is not None:
            self._aim(-1)
            self.reactor.sockets.remove(self.socket.fileno())
        super().connectionLost(reason)  # type: ignore[misc]

    def _aim(self, descriptor: int) -> None:
        if self._packet_writer is not None:
            self._packet_writer.descriptor = descriptor


# Twisted's `abortConnection` puts other functions in the place of `doRead`; mypy takes their type.


class DialedStream(_Direct, Client):  # type: ignore[misc]
    """The transport of a connection that was dialed."""


class StreamPort(Port):
    """
    A listening socket; `reactor` is a `StreamReactor`. A factory that says that it does not ask for
    the address (`asks_for_address`) gets None. One that has `puts_off` is given no connection while
    that is true and few wait: the kernel keeps them for less than a node does. One that has `drops`
    says of each descriptor whether it is not worth a connection: where many connect and leave at
    once, the backlog must not fill up with those, as whoever finds no room in it tries again after
    one second and after three.
    """

    factory: Any
    _is_short = False

    def __init__(self, port: int, factory: Any, backlog: int, interface: str, reactor: Any) -> None:
        super().__init__(port, factory, max(backlog, BACKLOG), interface, reactor)
        self._poller = reactor.poller
        self._asks_for_address = getattr(factory, "asks_for_address", True)
        self._drops: Callable[[int], bool] | None = getattr(factory, "drops", None)
        self._puts_off: Callable[[], bool] | None = getattr(factory, "puts_off", None)

    def createInternetSocket(self) -> socket.socket:
        """As Twisted's; accepted ones have TCP_NODELAY from it."""
        made: socket.socket = super().createInternetSocket()  # type: ignore[no-untyped-call]
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        return made

    def doRead(self) -> None:
        """Connections have come. An error would close the port, and the node would be deaf."""
        hooks.run(self._accept_some)

    def _accept_some(self) -> None:
        most = ceiling()
        if self._is_short and next_descriptor(self.socket.fileno()) >= most:
            self._pause(f"{most} files are open, the rest is for the node's own")
            return
        taken, puts_off = 0, self._puts_off
        for _ in range(MOST_ACCEPTS):
            if puts_off is not None and puts_off():
                if _waiting_at(self.socket) <= FEW:
                    return
                puts_off = None
            try:
                descriptor = accept(self.socket)
            except (ConnectionAbortedError, PermissionError):
                descriptor = -1
            except OSError as error:
                self._pause(error.strerror)
                return
            if descriptor < 0:
                self._is_short = False
                return
            try:
                taken += self._take(descriptor)
            except Exception:  # of one connection: the node goes on listening
                log.exception("stream.failed")
                taken += 1
            if taken >= ACCEPTS:
                return
            if descriptor + 1 >= most:
                self._pause(f"{most} files are open, the rest is for the node's own")
                return

    def _take(self, descriptor: int) -> bool:
        """Make a connection of it; False: nobody wants one."""
        protocol = None
        try:
            if self._drops is not None and self._drops(descriptor):
                return False
            address = peer_of(descriptor) if self._asks_for_address else None
            protocol = self.factory.buildProtocol(address)
        finally:
            if protocol is None:
                os.close(descriptor)
        if protocol is not None:
            stream = AcceptedStream(descriptor, protocol, self._poller)
            protocol.makeConnection(stream)
            self._poller.readNow(stream, descriptor)
        return True

    def _pause(self, reason: str | None) -> None:
        # Whoever has to wait stays in the backlog; asking for them at once would only spin.
        if not self._is_short:
            self._is_short = True
            log.warning("accept.paused", reason=reason, port=self._realPortNumber)
        self.reactor.removeReader(self)
        self.reactor.callLater(ACCEPT_PAUSE, self._go_on)

    def _go_on(self) -> None:
        if self.connected and not self.disconnecting:
            self.reactor.addReader(self)


def _waiting_at(listening: socket.socket) -> int:
    """Connections in the backlog, which is what the kernel tells as unacknowledged of those."""
    info = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, UNACKED.stop)
    return int.from_bytes(info[UNACKED], sys.byteorder)
