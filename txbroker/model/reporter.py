"""Who hears what the cores have to tell an operator."""

from __future__ import annotations

from typing import Protocol


class Reporter(Protocol):
    """Who is told of what an operator may want to know; the shell logs it."""

    def event(self, name: str, **fields: object) -> None:
        """One fact with its constant name."""
