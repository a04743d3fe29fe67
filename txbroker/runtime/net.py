"""
Types of the parts of Twisted's reactor and transports that the shells use.

Twisted describes these by zope interfaces, whose methods type checkers misread. A structural type
of the used parts checks better, and shows what a shell may do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from txbroker.model.publish_run import Octets


class DelayedCall(Protocol):
    """A call that is due later."""

    def active(self) -> bool:
        """True if the call is still due."""

    def cancel(self) -> None:
        """Cancel the call; only while it is active."""


class Clock(Protocol):
    """The reactor's clock, in seconds."""

    def seconds(self) -> float:
        """Return the seconds since some fixed moment."""

    def callLater(self, delay: float, action: Callable[..., object], *args: Any) -> DelayedCall:
        """Call `action` once, `delay` seconds from now."""


class Transport(Protocol):
    """A stream connection."""

    bufferSize: int

    def write(self, data: Octets) -> None:
        """Send bytes, or queue them."""

    def writeSequence(self, pieces: Sequence[Octets]) -> None:
        """Send several pieces in order, or queue them."""

    def loseConnection(self) -> None:
        """Close the connection after all bytes are sent."""

    def abortConnection(self) -> None:
        """Close the connection at once."""

    def pauseProducing(self) -> None:
        """Stop reading."""

    def resumeProducing(self) -> None:
        """Resume reading."""

    def registerProducer(self, producer: object, streaming: bool) -> None:
        """Notify `producer` when the output is full or drained."""

    def unregisterProducer(self) -> None:
        """Remove the producer."""

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Send small writes at once."""

    def getPeer(self) -> Any:
        """Return the peer's address."""
