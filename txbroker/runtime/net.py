"""
What the shells use of Twisted's reactor and transports, as types.

Twisted describes these with zope interfaces, whose methods type checkers misread; a structural type
of just what is used checks better, and says at a glance what a shell may do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from txbroker.model.publish_run import Octets


class DelayedCall(Protocol):
    """A call that is due later."""

    def active(self) -> bool:
        """Whether it is still due."""

    def cancel(self) -> None:
        """Take it back; only while it is active."""


class Clock(Protocol):
    """The reactor's time, in seconds."""

    def seconds(self) -> float:
        """Seconds since some fixed moment."""

    def callLater(self, delay: float, action: Callable[..., object], *args: Any) -> DelayedCall:
        """Call it once, later."""


class Transport(Protocol):
    """A stream connection."""

    bufferSize: int

    def write(self, data: Octets) -> None:
        """Send bytes, or queue them."""

    def writeSequence(self, pieces: Sequence[Octets]) -> None:
        """The same for several, one behind the other."""

    def loseConnection(self) -> None:
        """Close once everything was sent."""

    def abortConnection(self) -> None:
        """Close now."""

    def pauseProducing(self) -> None:
        """Read no more."""

    def resumeProducing(self) -> None:
        """Read again."""

    def registerProducer(self, producer: object, streaming: bool) -> None:
        """Tell this object when the output is full or drained."""

    def unregisterProducer(self) -> None:
        """Tell it no more."""

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Send small writes at once."""

    def getPeer(self) -> Any:
        """The other end's address."""
