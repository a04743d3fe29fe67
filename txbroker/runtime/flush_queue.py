"""Collects objects with output during one turn of the reactor, and flushes them at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol


class Flushable(Protocol):
    """An object with output to send."""

    def flush(self) -> None:
        """Send the output."""


class FlushQueue:
    """
    The objects of a node that have output to write.

    Every entry into the node (a read, a timer, a control call) ends the turn when it is done. An
    entry that does not is covered by `later`, which ends the turn soon after.
    """

    def __init__(self, later: Callable[[Callable[[], None]], object]) -> None:
        self._later = later
        self._dirty: dict[Flushable, None] = {}
        self._next: set[Flushable] = set()
        self._is_due = False
        self._is_shared = False

    def mark_dirty(self, end: Flushable) -> None:
        """Call `end.flush` once at the end of this turn."""
        self._dirty[end] = None
        if not self._is_shared:
            self._end_soon()

    def mark_next(self, end: Flushable) -> None:
        """Call `end.flush` once in a later turn of its own, so that other objects come first."""
        if end not in self._next:
            self._next.add(end)
            self._later(lambda: self._flush_alone(end))

    def share(self, work: Callable[[], None]) -> None:
        """Run `work`, which holds many entries into the node, as one turn, and end that turn."""
        self._is_shared = True
        try:
            work()
            self._flush()
        finally:
            self._is_shared = False
            self._end_soon()

    def end(self) -> None:
        """Flush all objects with output, also those that get output by a flush."""
        if self._dirty and not self._is_shared:
            self._flush()

    def _flush(self) -> None:
        while self._dirty:
            dirty, self._dirty = self._dirty, {}
            waiting = iter(dirty)
            try:
                for end in waiting:
                    end.flush()
            except BaseException:  # An error of one flush must not lose the others' output.
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
    """Run all actions, also after an error; then raise the first error."""
    first: Exception | None = None
    for action in actions:
        try:
            action()
        except Exception as error:
            first = first or error
    if first is not None:
        raise first
