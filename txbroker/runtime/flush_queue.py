"""Output gathered during one turn of the reactor, written at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol


class Flushable(Protocol):
    """Something with output to send."""

    def flush(self) -> None:
        """Send it."""


class FlushQueue:
    """
    Who has output to write. One for each node.

    Whoever enters the node (a read, a timer, a control call) ends the turn when it is done. Where
    nobody does, `later` makes sure that the turn ends soon after.
    """

    def __init__(self, later: Callable[[Callable[[], None]], object]) -> None:
        self._later = later
        self._dirty: dict[Flushable, None] = {}
        self._next: set[Flushable] = set()
        self._is_due = False
        self._is_shared = False

    def mark_dirty(self, end: Flushable) -> None:
        """Call its `flush` once at the end of this turn."""
        self._dirty[end] = None
        if not self._is_shared:
            self._end_soon()

    def mark_next(self, end: Flushable) -> None:
        """Call its `flush` once in a turn of its own, soon: others come first."""
        if end not in self._next:
            self._next.add(end)
            self._later(lambda: self._flush_alone(end))

    def share(self, work: Callable[[], None]) -> None:
        """Do `work`, in which many enter the node, as one turn: it ends when all are done."""
        self._is_shared = True
        try:
            work()
            self._flush()
        finally:
            self._is_shared = False
            self._end_soon()

    def end(self) -> None:
        """Flush all that has output; flushing may give others output."""
        if not self._is_shared:
            self._flush()

    def _flush(self) -> None:
        while self._dirty:
            dirty, self._dirty = self._dirty, {}
            waiting = iter(dirty)
            try:
                for end in waiting:
                    end.flush()
            except BaseException:  # of one; the others are still to be flushed
                self._dirty = dict.fromkeys(waiting) | self._dirty
                self._end_soon()
                raise

    def _end_soon(self) -> None:
        if self._dirty and not self._is_due:
            self._is_due = True
            self._later(self._end_later)

    def _flush_alone(self, end: Flushable) -> None:
        self._next.discard(end)
        self.mark_dirty(end)
        self.end()

    def _end_later(self) -> None:
        self._is_due = False
        self.end()


def run_all(actions: Iterable[Callable[[], object]]) -> None:
    """Run all of the actions, whatever becomes of each; then the first error goes on."""
    first: Exception | None = None
    for action in actions:
        try:
            action()
        except Exception as error:
            first = first or error
    if first is not None:
        raise first
