"""The port for events that an operator may want to know."""

from __future__ import annotations

from typing import Protocol


class Reporter(Protocol):
    """Receives the cores' events for an operator; the shell logs them."""

    def event(self, name: str, **fields: object) -> None:
        """Report one fact under its constant name."""
