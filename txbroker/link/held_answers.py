"""
Questions for marks that wait: about streams to zones that their owner has forgotten.

A root that lost its disk serves the zones of its children until they are back. Such a root does not
know what a child has taken of an edge. With the answer "nothing" the edge would publish here what
the child has, and the child would get that again. So the answer waits: until the child is back, and
its own marks count, or for `PATIENCE`. A child that is gone for good must not hold its edges for
ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.v1 import link_pb2

PATIENCE = 30
"""Seconds that an answer waits for a forgotten zone."""

MOST_HELD = 1_000
"""Questions of one link that wait; further ones are answered at once."""


class HeldAnswers:
    """The questions of one link; `has_forgotten` judges a zone, `answer` sends an answer."""

    def __init__(
        self, has_forgotten: Callable[[str], bool], answer: Callable[[link_pb2.Ask], None]
    ) -> None:
        self._has_forgotten = has_forgotten
        self._answer = answer
        self._held: list[tuple[int, link_pb2.Ask]] = []
        self._now = 0

    def known(self, keys: Iterable[MarkKey]) -> list[MarkKey]:
        """Return the streams whose marks are known."""
        return [key for key in keys if not self._has_forgotten(key[2])]

    def ask(self, ask: link_pb2.Ask) -> None:
        """Answer a question, at once if all its zones are known."""
        if self._must_wait(ask) and len(self._held) < MOST_HELD:
            self._held.append((self._now + PATIENCE, ask))
        else:
            self._answer(ask)

    def beat(self) -> None:
        """Answer the questions whose zones are known by now, as a second has passed."""
        self._now += 1
        held, self._held = self._held, []
        for until, ask in held:
            if self._now < until and self._must_wait(ask):
                self._held.append((until, ask))
            else:
                self._answer(ask)

    def _must_wait(self, ask: link_pb2.Ask) -> bool:
        return any(self._has_forgotten(mark.zone) for mark in ask.in_doubt)
