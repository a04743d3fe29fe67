"""Time as the cores see it: handed in, never looked up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Cancellable(Protocol):
    """A call that has not happened yet."""

    def cancel(self) -> None:
        """Take it back."""


class Timers(Protocol):
    """A monotonic clock with an alarm, both in seconds."""

    def now(self) -> float:
        """Seconds since some fixed moment."""

    def call_later(self, delay: float, action: Callable[[], None]) -> Cancellable:
        """Run `action` once, `delay` seconds from now."""
