"""
A quorum read: one lookup of one client id at the members of a site that keep its entry.

The read takes answers and returns a decision. `NoSession` needs a majority of the keepers, each of
them settled. Anything less means that a session may exist (protocol rule 19).
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
    No kept session exists; the last known one had this generation.

    - `clean`: the entry of a connected clean session.
    - `is_sole`: fewer than a majority said so, and the other keepers are known to be away.
    - `is_named`: a keeper still names an ended session; a session that counts below it may exist.
    """

    generation: int
    clean: DirectoryEntry | None = None
    is_sole: bool = False
    is_named: bool = False


class SessionMayExist(enum.Enum):
    """Too few keepers answered."""

    MAY_EXIST = "may exist"


Decision = DirectoryEntry | NoSession | SessionMayExist
"""A `DirectoryEntry` names in `node` the holder to ask for the session."""


class QuorumRead:
    """
    The answers of `keepers` so far.

    `void` names holders, each with the incarnation up to which the holder itself denied a session.
    `needed` settled answers decide; the default is a majority. With `is_of_all` a clean session
    hides no kept session, which may still exist.
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

    def add_answer(self, keeper: str, answer: Answer | None) -> bool:
        """Store an answer (None: no answer came); return True if no further answer is needed."""
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
        """True if enough settled keepers have answered."""
        return len(self._settled) >= self._needed

    def decide(self) -> Decision:
        """Return the decision on the answers so far."""
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
