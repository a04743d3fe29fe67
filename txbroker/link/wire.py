"""SHELL: what both ends of a link have in common on Twisted: bytes, heartbeats, silence."""

from __future__ import annotations

from typing import Protocol as Interface

from twisted.internet.protocol import Protocol
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure

from txbroker.counters import Counters
from txbroker.link.frames import LinkError, encode_frame
from txbroker.net import Clock, Transport
from txbroker.runs import Octets
from txbroker.telemetry import get_logger
from txbroker.turn import Turn
from txbroker.v1.link_pb2 import Heartbeat, LinkFrame

log = get_logger()

HEARTBEAT = 1.0
SILENCE = 5.0
"""Seconds between heartbeats, and of silence after which a link counts as cut."""

_HEARTBEAT_FRAME = encode_frame(LinkFrame(heartbeat=Heartbeat()))


class End(Interface):
    """One end of a link, as its connection sees it; `may_speak`: who dials does so first."""

    @property
    def may_speak(self) -> bool: ...

    def receive(self, data: Octets) -> None:
        """Bytes from the other end; raises `LinkError`."""

    def lost(self) -> None:
        """The connection is gone."""

    def flush(self) -> None:
        """Send what is due."""

    def beat(self) -> None:
        """A second has passed."""


class LinkProtocol(Protocol):
    """A link's TCP connection."""

    transport: Transport

    def __init__(self, *, turn: Turn, clock: Clock, counters: Counters, peer: str) -> None:
        self.peer = peer
        self._turn = turn
        self._clock = clock
        self._counters = counters
        self.end: End | None = None
        self._last_heard = clock.seconds()
        self._pulse = LoopingCall(self._beat)
        self._pulse.clock = clock
        self._reason = "closed by the other end"

    # from whoever made the connection

    def attach(self, end: End) -> None:
        """This end's rules."""
        self.end = end

    def write(self, *pieces: Octets) -> None:
        """Send bytes, one behind the other."""
        self.transport.writeSequence(pieces)

    def drop(self, reason: str) -> None:
        """Close at once."""
        self._reason = reason
        self.transport.abortConnection()

    # from Twisted

    def connectionMade(self) -> None:
        self.transport.setTcpNoDelay(True)
        self._pulse.start(HEARTBEAT, now=False).addErrback(lambda f: self.drop(str(f.value)))

    def dataReceived(self, data: Octets) -> None:
        self._last_heard = self._clock.seconds()
        try:
            if self.end is not None:
                self.end.receive(data)
        except LinkError as error:
            self._counters.add("link.refused")
            self.drop(str(error))
        self._turn.end()

    def connectionLost(self, reason: Failure | None = None) -> None:
        if self._pulse.running:
            self._pulse.stop()
        log.info("link.closed", peer=self.peer, reason=self._reason)
        end, self.end = self.end, None
        if end is not None:
            end.lost()
        self._turn.end()

    # internal

    def _beat(self) -> None:
        if self._clock.seconds() - self._last_heard > SILENCE:
            self.drop(f"nothing heard for {SILENCE:.0f} s")
        else:
            if self.end is not None and self.end.may_speak:
                self.write(_HEARTBEAT_FRAME)
                self.end.beat()
            self._turn.end()
