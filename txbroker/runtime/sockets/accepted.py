"""
SHELL: the transport of a connection that was accepted.

There are very many of these, most of which do nothing, and many that live for a moment. So it is
none of Twisted's, but does what protocols know from them, with slots instead of a dictionary.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
import sys
import termios
from collections.abc import Callable, Sequence
from typing import Any, Final

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.error import ConnectionAborted
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST
from twisted.python.failure import Failure

from txbroker.core import HIGH_MARK, LinkReader, PacketReader, PacketWriter
from txbroker.model.publish_run import Octets
from txbroker.runtime.sockets.unsent import Unsent

ABORTED: Final = ConnectionAborted()
GONE: Final = IPv4Address("TCP", "gone", 0)
"""The address of an end that has left."""

_RESET: Final = struct.pack("ii", 1, 0)
"""For SO_LINGER: a close is a reset, which drops what the other end has not read."""

_NONE: Final = bytes(4)
"""For TIOCOUTQ, which gives an int."""


class AcceptedStream:
    """
    Bytes are sent at once; what the kernel does not take waits here, and the producer is told of it
    as by Twisted's transports. `reactor` is the `Poller`, `descriptor` the socket, which is of no
    use to anybody else.
    """

    __slots__ = (
        "_descriptor",
        "_is_ending",
        "_is_full",
        "_is_pushing",
        "_packet_writer",
        "_producer",
        "_waiting",
        "protocol",
        "reactor",
    )

    def __init__(self, descriptor: int, protocol: Any, reactor: Any) -> None:
        self.protocol = protocol
        self.reactor = reactor
        self._descriptor = descriptor
        self._is_ending = False
        self._is_full = False
        self._is_pushing = False
        self._packet_writer: PacketWriter | None = None
        self._producer: Any = None
        self._waiting: Unsent | None = None
        reactor.watch(descriptor, self)

    # to protocols

    def carry(self, packet_reader: PacketReader | LinkReader, packet_writer: PacketWriter) -> None:
        """
        What comes is for the packet reader; what comes into the packet writer may be written
        straight while nothing waits here.
        """
        self._packet_writer = packet_writer
        packet_writer.descriptor = self._descriptor
        self.reactor.sockets.add(self._descriptor, packet_reader)

    def has_left(self) -> bool:
        """True if the other end sends no more, whatever it has sent and was not read yet."""
        return self._descriptor < 0 or has_left(self._descriptor)

    def write(self, data: Octets) -> None:
        """Send bytes; what the kernel does not take waits, and the producer is told of it."""
        self.writeSequence((data,))

    def writeSequence(self, pieces: Sequence[Octets]) -> None:
        """The same for several, which are not joined where the kernel takes them all."""
        if self._is_ending:
            return
        if self._waiting is None:
            try:
                sent = os.writev(self._descriptor, pieces)
            except OSError:
                sent = 0  # a lost connection is met again, and told, when it is written later
            if sent == sum(map(len, pieces)):
                return
            self._waiting = Unsent()
            self._waiting.add(pieces, sent)
            if self._packet_writer is not None:
                self._packet_writer.descriptor = -1
            self.reactor.addWriter(self)
        else:
            self._waiting.add(pieces)
        if self._waiting.size > HIGH_MARK and not self._is_full:
            self._is_full = True
            if self._producer is not None:
                self._producer.pauseProducing()

    def push(self) -> None:
        """
        Send what is in the packet writer. What the kernel does not take stays there, where the
        limit for all packet writers holds; the producer is told when it is too much, and when it
        has gone. Who uses this does not `write`.
        """
        packet_writer = self._packet_writer
        if packet_writer is None or self._is_ending:
            return
        if not self._is_pushing:
            try:
                if packet_writer.send_to(self._descriptor):
                    return
            except OSError:
                pass  # a lost connection is met again, and told, when it is written later
            self._is_pushing = True
            packet_writer.descriptor = -1
            self.reactor.addWriter(self)
        if not (packet_writer.has_room or self._is_full):
            self._is_full = True
            if self._producer is not None:
                self._producer.pauseProducing()

    def loseConnection(self) -> None:
        """Close it when all is sent."""
        if not self._is_ending:
            self._end()
            if self._waiting is None and not self._is_pushing:
                self.reactor.endSoon(self, self._descriptor, CONNECTION_DONE)
            else:
                self.reactor.removeReader(self)

    def abortConnection(self) -> None:
        """Close it soon, and send nothing more."""
        if self._descriptor >= 0:
            self._end()
            self.reactor.endSoon(self, self._descriptor, ABORTED)

    def pauseProducing(self) -> None:
        """Read no more."""
        self.reactor.removeReader(self)

    def resumeProducing(self) -> None:
        """Read again."""
        if not self._is_ending:
            self.reactor.addReader(self)

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Tell it when more waits than `HIGH_MARK`, and when nothing does any more."""
        if self._descriptor < 0:
            producer.stopProducing()
        else:
            self._producer = producer

    def unregisterProducer(self) -> None:
        """Tell it no more."""
        self._producer = None

    def unread(self) -> int:
        """
        Bytes that wait here and in the kernel until the other end takes them, less those that the
        packet writer has written: less each time that some are taken.
        """
        waiting = 0 if self._waiting is None else self._waiting.size
        if self._packet_writer is not None:
            waiting -= self._packet_writer.written
        try:
            in_kernel = fcntl.ioctl(self._descriptor, termios.TIOCOUTQ, _NONE)
        except OSError:
            return waiting  # it is at its end
        return waiting + int.from_bytes(in_kernel, sys.byteorder)

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Small writes are sent at once from the start: the listening socket has it set."""

    def getHost(self) -> IPv4Address | IPv6Address:
        """This end's address."""
        return _address_of(_ask(self._descriptor, socket.socket.getsockname))

    def getPeer(self) -> IPv4Address | IPv6Address:
        """The other end's address; `GONE` where it has left."""
        return peer_of(self._descriptor)

    # to the poller

    def fileno(self) -> int:
        """Its socket; -1: it is closed."""
        return self._descriptor

    def doRead(self) -> Exception | None:
        """What there is goes to the protocol."""
        return read_some(self._descriptor, self.reactor, self.protocol)

    def fed(self) -> None:
        """What there was is in the packet reader."""
        self.protocol.fed()

    def doWrite(self) -> Exception | None:
        """Send of what waits as much as the kernel takes."""
        try:
            if not self._is_sent():
                return None
        except OSError:
            return CONNECTION_LOST
        has_pushed, self._is_pushing, self._waiting = self._is_pushing, False, None
        self.reactor.removeWriter(self)
        if self._is_ending:
            return CONNECTION_DONE
        if self._packet_writer is not None:
            self._packet_writer.descriptor = self._descriptor
        if (
            self._is_full or has_pushed
        ):  # what had no room in the packet writer may be less than full
            self._is_full = False
            if self._producer is not None:
                self._producer.resumeProducing()
        return None

    def readConnectionLost(self, reason: Failure) -> None:
        """The other end sends no more."""
        self.connectionLost(reason)

    def connectionLost(self, reason: Failure) -> None:
        """It is at its end."""
        descriptor = self._descriptor
        if descriptor < 0:
            return
        if not self._is_ending:
            self._end()
        self._waiting = None
        self.reactor.forget(descriptor)
        self.reactor.sockets.remove(descriptor)
        self._descriptor = -1
        if reason.value is ABORTED:
            _reset(descriptor)
        os.close(descriptor)
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.stopProducing()
        protocol, self.protocol = self.protocol, None
        self._packet_writer = None
        protocol.connectionLost(reason)

    # internal

    def _is_sent(self) -> bool:
        """True if the kernel has taken all that waits. Raises `OSError`."""
        if self._waiting is not None:
            return self._waiting.write(self._descriptor)
        return self._packet_writer is None or self._packet_writer.send_to(self._descriptor)

    def _end(self) -> None:
        """Nothing more is taken from either side."""
        self._is_ending = True
        if self._packet_writer is not None:
            self._packet_writer.descriptor = -1


def read_some(descriptor: int, reactor: Any, protocol: Any) -> Exception | None:
    """
    Give a protocol what there is at its socket; why that is at its end, if it is.

    The protocol gets a view of a buffer that is the next one's as soon as it returns, and copies
    what it keeps. A bytes object of READ_SIZE to read into would cost ten times as much.
    """
    try:
        size = os.readv(descriptor, reactor.buffers)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:
        return CONNECTION_LOST
    if not size:
        return CONNECTION_DONE
    protocol.dataReceived(reactor.buffer[:size])
    return None


def has_left(descriptor: int) -> bool:
    """True if the other end of a socket sends no more."""
    ends = select.poll()
    ends.register(descriptor, select.POLLRDHUP)
    return bool(ends.poll(0))


def peer_of(descriptor: int) -> IPv4Address | IPv6Address:
    """The address of a socket's other end; `GONE` where it has left."""
    try:
        return _address_of(_ask(descriptor, socket.socket.getpeername))
    except OSError:
        return GONE


def _ask(descriptor: int, question: Callable[[socket.socket], tuple[Any, ...]]) -> tuple[Any, ...]:
    if descriptor < 0:
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
    asked = socket.socket(fileno=descriptor)
    try:
        return question(asked)
    finally:
        asked.detach()


def _address_of(found: tuple[Any, ...]) -> IPv4Address | IPv6Address:
    """A socket's address as Twisted has it."""
    if len(found) == 2:
        return IPv4Address("TCP", *found)
    if found[3]:  # the name of the scope belongs to the address
        flags = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
        found = (socket.getnameinfo(found, flags)[0], *found[1:])
    return IPv6Address("TCP", *found)


def _reset(descriptor: int) -> None:
    ended = socket.socket(fileno=descriptor)
    try:
        ended.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    except OSError:
        pass  # it is over already
    finally:
        ended.detach()
