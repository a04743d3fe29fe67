"""SHELL: the common part of both ends of a link on Twisted: bytes, heartbeats, silence."""

from __future__ import annotations

from typing import Protocol as Interface

from twisted.internet.protocol import Protocol
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure

from txbroker.core import PacketWriter
from txbroker.link.frames import FrameReader, encode_frame
from txbroker.model.counters import Counters
from txbroker.model.errors import PeerError
from txbroker.model.publish_run import Octets
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.runtime.net import Clock, Transport
from txbroker.runtime.structured_log import get_logger, log_limited
from txbroker.v1.link_pb2 import Heartbeat, LinkFrame

log = get_logger()

HEARTBEAT = 1.0
SILENCE = 5.0
"""Seconds between heartbeats, and seconds of silence after which a link counts as lost."""


class LinkEnd(Interface):
    """
    An end of a link, as its connection sees it.

    `may_speak`: True if this end may send frames; the dialing end speaks first.
    """

    @property
    def may_speak(self) -> bool: ...

    packet_writer: PacketWriter
    """The writer whose bytes go directly to the other end."""

    reader: FrameReader
    """The reader of the frames that come; its `packet_reader` gets the bytes."""

    def work(self) -> None:
        """Process the bytes in the packet reader; raises `LinkError`."""

    def on_disconnect(self) -> None:
        """Note that the connection is lost."""

    def flush(self) -> None:
        """Send all frames that are due."""

    def beat(self) -> None:
        """Note that a second has passed."""


class LinkProtocol(Protocol):
    """A link's TCP connection."""

    transport: Transport

    def __init__(
        self, *, flush_queue: FlushQueue, clock: Clock, counters: Counters, peer: str
    ) -> None:
        self.peer = peer
        self._flush_queue = flush_queue
        self._clock = clock
        self._counters = counters
        self.end: LinkEnd | None = None
        self._began = clock.seconds()
        self._pulse: LoopingCall | None = None
        self._has_beaten = False
        self._reason = "closed by the other end"

    # from the dialer or the listener

    def attach(self, end: LinkEnd) -> None:
        """Attach the end that processes the link's frames."""
        self.end = end
        end.packet_writer.connection = self
        if self.connected:
            self._carry()

    def write(self, *pieces: Octets) -> None:
        """Send pieces of bytes, in order."""
        self.transport.writeSequence(pieces)

    def flush(self) -> None:
        """Write the rest of the packet writer's bytes, which could not be written directly."""
        if self.end is not None:
            self.write(self.end.packet_writer.dequeue())

    @property
    def silence(self) -> float:
        """Return the seconds since the other end was last heard, or since the connection began."""
        heard_at = 0.0 if self.end is None else self.end.reader.packet_reader.heard_at
        return self._clock.seconds() - (heard_at or self._began)

    def drop(self, reason: str) -> None:
        """Close the connection at once."""
        self._reason = reason
        self.transport.abortConnection()

    # from Twisted

    def connectionMade(self) -> None:
        self.transport.setTcpNoDelay(True)
        if self.end is not None:
            self._carry()
        self._pulse = LoopingCall(self._beat)
        self._pulse.clock = self._clock
        self._pulse.start(HEARTBEAT, now=False).addErrback(lambda f: self.drop(str(f.value)))

    def dataReceived(self, data: Octets) -> None:
        if self.end is not None:
            self.end.reader.packet_reader.feed(data)
        self.on_input()
        self._flush_queue.end()

    def on_input(self) -> None:
        """Process read bytes that are in the packet reader; the caller ends the turn."""
        try:
            if self.end is not None:
                self.end.reader.hear(self._clock.seconds())
                self.end.work()
                if not self._has_beaten and self._may_speak:
                    self._send_heartbeat()  # A link that is young must be able to measure a wait.
        except PeerError as error:
            self._counters.add("link.refused")
            self.drop(str(error))

    def connectionLost(self, reason: Failure | None = None) -> None:
        # A cycle of references between connection and end would wait for the garbage collector,
        # which comes late for many links.
        pulse, self._pulse = self._pulse, None
        if pulse is not None and pulse.running:
            pulse.stop()
        log_limited(log.info, "link.closed", kind=self._kind, peer=self.peer, reason=self._reason)
        end, self.end = self.end, None
        if end is not None:
            end.on_disconnect()
        self._flush_queue.end()

    # internal

    @property
    def _kind(self) -> str:
        """Return the peer's name, for the log."""
        return self.peer

    @property
    def _may_speak(self) -> bool:
        """True if this end may send frames; its work may have closed it."""
        return self.end is not None and self.end.may_speak

    def _carry(self) -> None:
        carry = getattr(self.transport, "carry", None)
        if carry is not None and self.end is not None:
            carry(self.end.reader.packet_reader, self.end.packet_writer)

    def _beat(self) -> None:
        if self.silence > SILENCE:
            self.drop(f"nothing heard for {SILENCE:.0f} s")
        else:
            if self.end is not None and self._may_speak:
                self._send_heartbeat()
                self.end.beat()
            self._flush_queue.end()

    def _send_heartbeat(self) -> None:
        self._has_beaten = True
        at = int(1000 * self._clock.seconds())
        self.write(encode_frame(LinkFrame(heartbeat=Heartbeat(at=at))))
