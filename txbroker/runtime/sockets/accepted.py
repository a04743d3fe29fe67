"""
SHELL: the transport of an accepted connection.

A node has very many accepted connections; most are idle, and many are short-lived. So the class
does not derive from Twisted's transports. Protocols find the same methods, and objects have slots
instead of a dictionary.
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
"""The address of a peer that has disconnected."""

_RESET: Final = struct.pack("ii", 1, 0)
"""Value for SO_LINGER: close resets the connection and drops what the peer has not read."""

_NONE: Final = bytes(4)
"""Buffer for TIOCOUTQ, which returns an int."""


class AcceptedStream:
    """
    An accepted connection.

    Writes are sent at once; the rest that the kernel refuses waits here. The producer is paused and
    resumed as by Twisted's transports. `reactor` is the `Poller`. `descriptor` is the socket, owned
    by this object alone.
    """

    __slots__ = (
        "_descriptor",
        "_is_ending",
        "_is_full",
        "_is_pushing",
        "_producer",
        "_waiting",
        "packet_writer",
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
        self.packet_writer: PacketWriter | None = None
        self._producer: Any = None
        self._waiting: Unsent | None = None
        reactor.watch(descriptor, self)

    # to protocols

    def carry(self, packet_reader: PacketReader | LinkReader, packet_writer: PacketWriter) -> None:
        """
        Attach the packet reader, which receives all input, and the packet writer.

        The packet writer may write to the socket directly while nothing waits here.
        """
        self.packet_writer = packet_writer
        packet_writer.descriptor = self._descriptor
        self.reactor.sockets.add(self._descriptor, packet_reader)

    def has_left(self) -> bool:
        """True if the peer sends no more, regardless of unread bytes."""
        return self._descriptor < 0 or has_left(self._descriptor)

    def write(self, data: Octets) -> None:
        """Send bytes; queue the rest that the kernel refuses, and pause a full producer."""
        self.writeSequence((data,))

    def writeSequence(self, pieces: Sequence[Octets]) -> None:
        """Send several pieces, without joining them if the kernel accepts all."""
        if self._is_ending:
            return
        if self._waiting is None:
            try:
                sent = os.writev(self._descriptor, pieces)
            except OSError:
                sent = 0  # The next write from the poller meets the lost connection and reports it.
            if sent == sum(map(len, pieces)):
                return
            self._waiting = Unsent()
            self._waiting.add(pieces, sent)
            if self.packet_writer is not None:
                self.packet_writer.descriptor = -1
            self.reactor.addWriter(self)
        else:
            self._waiting.add(pieces)
        if self._waiting.size > HIGH_MARK and not self._is_full:
            self._is_full = True
            if self._producer is not None:
                self._producer.pauseProducing()

    def push(self) -> None:
        """
        Send the content of the packet writer.

        The rest that the kernel refuses stays in the packet writer, whose limit covers all packet
        writers. The producer is paused when the writer is full, and resumed when it is empty. A
        protocol that uses `push` must not use `write`.
        """
        packet_writer = self.packet_writer
        if packet_writer is None or self._is_ending:
            return
        if not self._is_pushing:
            try:
                if packet_writer.send_to(self._descriptor):
                    return
            except OSError:
                pass  # The next write from the poller meets the lost connection and reports it.
            self._is_pushing = True
            packet_writer.descriptor = -1
            self.reactor.addWriter(self)
        if not (packet_writer.has_room or self._is_full):
            self._is_full = True
            if self._producer is not None:
                self._producer.pauseProducing()

    def loseConnection(self) -> None:
        """Close the connection after all bytes are sent."""
        if not self._is_ending:
            self._end()
            if self._waiting is None and not self._is_pushing:
                self.reactor.endSoon(self, self._descriptor, CONNECTION_DONE)
            else:
                self.reactor.removeReader(self)

    def abortConnection(self) -> None:
        """Close the connection soon, and discard unsent bytes."""
        if self._descriptor >= 0:
            self._end()
            self.reactor.endSoon(self, self._descriptor, ABORTED)

    def pauseProducing(self) -> None:
        """Stop reading."""
        if not self._is_ending:
            self.reactor.pause(self._descriptor)

    def resumeProducing(self) -> None:
        """Resume reading."""
        if not self._is_ending:
            self.reactor.resume(self._descriptor, self)

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Pause `producer` above `HIGH_MARK` waiting bytes; resume it when none wait."""
        if self._descriptor < 0:
            producer.stopProducing()
        else:
            self._producer = producer

    def unregisterProducer(self) -> None:
        """Remove the producer."""
        self._producer = None

    def unread(self) -> int:
        """
        Return the bytes in this queue and in the kernel, less those the packet writer has written.

        The number falls whenever the peer takes some.
        """
        waiting = 0 if self._waiting is None else self._waiting.size
        if self.packet_writer is not None:
            waiting -= self.packet_writer.written
        try:
            in_kernel = fcntl.ioctl(self._descriptor, termios.TIOCOUTQ, _NONE)
        except OSError:
            return waiting  # The connection has ended.
        return waiting + int.from_bytes(in_kernel, sys.byteorder)

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Do nothing: the listening socket already sets TCP_NODELAY on accepted sockets."""

    def getHost(self) -> IPv4Address | IPv6Address:
        """Return the local address."""
        return _address_of(_ask(self._descriptor, socket.socket.getsockname))

    def getPeer(self) -> IPv4Address | IPv6Address:
        """Return the peer's address; `GONE` if it has disconnected."""
        return peer_of(self._descriptor)

    # to the poller

    def fileno(self) -> int:
        """Return the socket's descriptor; -1 once closed."""
        return self._descriptor

    def doRead(self) -> Exception | None:
        """Read available bytes into the protocol; return the reason if the stream ended."""
        return read_some(self._descriptor, self.reactor, self.protocol)

    def doWrite(self) -> Exception | None:
        """Send waiting bytes until the kernel refuses; return the reason if the stream ended."""
        try:
            if not self._is_sent():
                return None
        except OSError:
            return CONNECTION_LOST
        has_pushed, self._is_pushing, self._waiting = self._is_pushing, False, None
        self.reactor.removeWriter(self)
        if self._is_ending:
            return CONNECTION_DONE
        if self.packet_writer is not None:
            self.packet_writer.descriptor = self._descriptor
        if (
            self._is_full or has_pushed
        ):  # A refused packet may be larger than the room of a writer that is not full.
            self._is_full = False
            if self._producer is not None:
                self._producer.resumeProducing()
        return None

    def readConnectionLost(self, reason: Failure) -> None:
        """End the connection: the peer sends no more."""
        self.connectionLost(reason)

    def connectionLost(self, reason: Failure) -> None:
        """Release the socket, stop the producer, and notify the protocol."""
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
        self.packet_writer = None
        protocol.connectionLost(reason)

    # internal

    def _is_sent(self) -> bool:
        """True if the kernel has accepted all waiting bytes. Raises `OSError`."""
        if self._waiting is not None:
            return self._waiting.write(self._descriptor)
        return self.packet_writer is None or self.packet_writer.send_to(self._descriptor)

    def _end(self) -> None:
        """Refuse further bytes in both directions."""
        self._is_ending = True
        if self.packet_writer is not None:
            self.packet_writer.descriptor = -1


def read_some(descriptor: int, reactor: Any, protocol: Any) -> Exception | None:
    """
    Read available bytes of a socket into a protocol; return the reason if the stream ended.

    The protocol gets a view of a shared buffer, valid until it returns, and must copy what it
    needs. A new bytes object of READ_SIZE for each read would cost ten times as much.
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
    """True if the peer of a socket sends no more."""
    ends = select.poll()
    ends.register(descriptor, select.POLLRDHUP)
    return bool(ends.poll(0))


def peer_of(descriptor: int) -> IPv4Address | IPv6Address:
    """Return the address of a socket's peer; `GONE` if it has disconnected."""
    try:
        return _address_of(_ask(descriptor, socket.socket.getpeername))
    except OSError:
        return GONE


def _ask(descriptor: int, question: Callable[[socket.socket], tuple[Any, ...]]) -> tuple[Any, ...]:
    if descriptor < 0:
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
    asked = _socket_of(descriptor)
    try:
        return question(asked)
    finally:
        asked.detach()


def _socket_of(descriptor: int) -> socket.socket:
    """
    Return a descriptor as Python's socket; the caller detaches it.

    A guessed family and type spare three system calls. IPv6 has room for an address of either.
    """
    return socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, descriptor)


def _address_of(found: tuple[Any, ...]) -> IPv4Address | IPv6Address:
    """Return a socket address as Twisted's type."""
    if len(found) == 2:
        return IPv4Address("TCP", *found)
    if found[3]:  # A link-local address is unreachable without the name of its scope.
        flags = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
        found = (socket.getnameinfo(found, flags)[0], *found[1:])
    return IPv6Address("TCP", *found)


def _reset(descriptor: int) -> None:
    ended = _socket_of(descriptor)
    try:
        ended.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    except OSError:
        pass  # The connection has already ended.
    finally:
        ended.detach()
