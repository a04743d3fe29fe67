"""Time for the cores: callers pass it in, and no core reads a clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Cancellable(Protocol):
    """A call that is still due."""

    def cancel(self) -> None:
        """Cancel the call."""


class Timers(Protocol):
    """A monotonic clock with an alarm, both in seconds."""

    def now(self) -> float:
        """Return the seconds since some fixed moment."""

    def call_later(self, delay: float, action: Callable[[], None]) -> Cancellable:
        """Run `action` once, `delay` seconds from now."""
