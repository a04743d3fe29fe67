"""
One question for one client id to the members of a site that keep its entry.

Answers go in, a decision comes out. That no session exists is only concluded when a majority of the
keepers says so, each of them settled; anything less means that there may be one (protocol rule 19).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs

from txbroker.directory.entry import DirectoryEntry, Order
from txbroker.directory.rendezvous_hash import majority
from txbroker.directory.requests import Answer


@attrs.frozen(kw_only=True)
class NoSession:
    """
    No session is kept; the last one known had this generation. `clean`: who is connected.
    `is_sole`: fewer than most keepers say so, and the others are known to be away. `is_named`: a
    keeper still knows of one that has ended, and one that counts below that may be somewhere.
    """

    generation: int
    clean: DirectoryEntry | None = None
    is_sole: bool = False
    is_named: bool = False


class SessionMayExist(enum.Enum):
    """Too few answered."""

    MAY_EXIST = "may exist"


Decision = DirectoryEntry | NoSession | SessionMayExist
"""An `DirectoryEntry`: its node is the one to ask for the session."""


class QuorumRead:
    """
    The answers of `keepers` so far. `void` names holders, with the incarnation up to which they
    said themselves that they hold nothing. `needed` settled answers decide; most, where not given.
    With `is_of_all` a clean session hides no kept one: that may be there still.
    """

    def __init__(
        self,
        keepers: tuple[str, ...],
        void: Mapping[str, int],
        needed: int | None = None,
        *,
        is_of_all: bool = False,
    ) -> None:
        self.generation = 0
        self._needed = majority(len(keepers)) if needed is None else needed
        self._keepers = keepers
        self._void = void
        self._is_of_all = is_of_all
        self._best: DirectoryEntry | None = None
        self._is_named = False
        self._settled: set[str] = set()
        self._done: set[str] = set()

    def take(self, keeper: str, answer: Answer | None) -> bool:
        """One answer, None where none came; True when no more need be waited for."""
        self._done.add(keeper)
        if answer is not None:
            if answer.settled:
                self._settled.add(keeper)
            self.generation = max(self.generation, answer.generation)
            entry = answer.entry
            if self._is_void(entry) if entry is not None else answer.generation:
                self._is_named = True
            elif entry is not None and self._is_better(entry):
                self._best = entry
        return self.has_majority or len(self._done) == len(self._keepers)

    @property
    def has_majority(self) -> bool:
        """Whether enough keepers that would know have answered."""
        return len(self._settled) >= self._needed

    def decide(self) -> Decision:
        """What follows from what was answered so far."""
        best = self._best
        if best is not None and best.persistent:
            return best
        if not self.has_majority:
            return SessionMayExist.MAY_EXIST
        return NoSession(
            generation=self.generation,
            clean=best,
            is_sole=self._needed < majority(len(self._keepers)),
            is_named=self._is_named,
        )

    def _is_void(self, entry: DirectoryEntry) -> bool:
        return entry.persistent and entry.incarnation <= self._void.get(entry.node, 0)

    def _is_better(self, entry: DirectoryEntry) -> bool:
        return self._best is None or self._rank(entry) > self._rank(self._best)

    def _rank(self, entry: DirectoryEntry) -> tuple[bool, Order]:
        return self._is_of_all and entry.persistent, entry.order
