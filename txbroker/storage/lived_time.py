"""
The time that a node has lived, over all its processes, and how old the entries of its logs are.

A wall clock steps: NTP corrects it, a board without a battery starts in another year. An age that
goes by it ends sessions and trims journals at once. So each age that outlives a process is the
difference of two readings of `LivedTime`, which nothing but time that passes moves.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from txbroker.storage.tables import LogTable

SECOND = 1_000_000

NOTED_EVERY = 60 * SECOND
"""Microseconds between two notes of a node that runs."""

LONGEST_GAP = NOTED_EVERY
"""
Microseconds that a gap between two processes counts at most: what a killed one may have left
unnoted. The rest of a gap is known from the wall clock alone.
"""

STEPS = 64
"""Marks in an age: an entry is let go when it is older by a 64th at most."""

_NOTE = Struct(">QQ")  # what had been lived, and the wall clock then
_MARK = Struct(">QQ")  # a reading, and the last entry that there was
_KEY = b"lived"


class LivedTime:
    """
    Microseconds. A new node begins at the time of day, so that readings and the times of day that
    earlier versions stored compare.
    """

    def __init__(
        self, table: LogTable, *, now: Callable[[], float], wall: Callable[[], int], last: int
    ) -> None:
        """
        `now`: monotonic seconds; `wall`: microseconds UTC; `last`: the wall clock when an earlier
        version wrote last, 0 where none did.
        """
        self._table = table
        self._now = now
        self._wall = wall
        stored = table.get(_KEY)
        lived, noted = (last, last) if stored is None else _NOTE.unpack(stored)
        gap = wall() - noted if noted else 0
        self._begun = now()
        self._before = (lived or wall()) + min(max(gap, 0), LONGEST_GAP)
        self.note()

    def __call__(self) -> int:
        """A reading."""
        return self._before + int((self._now() - self._begun) * SECOND)

    def tick(self) -> None:
        """Each second: keep the reading now and then."""
        if self() - self._noted >= NOTED_EVERY:
            self.note()

    def note(self) -> None:
        """Keep the reading with the next commit."""
        self._noted = self()
        self._table.put(_KEY, _NOTE.pack(self._noted, self._wall()))


class EntryAges:
    """
    How old the entries of logs are: for each log some marks, which say what there was when.

    Entries that earlier versions wrote, or another node, are as old as their first mark.
    """

    def __init__(self, table: LogTable, lived: Callable[[], int]) -> None:
        self._table = table
        self._lived = lived

    def note(self, name: bytes, last: int, age: float) -> None:
        """Now and then: a log ends with the entry `last`; somebody will ask for this age."""
        marks, now, limit = self._marks(name), self._lived(), int(age * SECOND)
        before, known = marks[-1] if marks else (0, 0)
        if last <= known or now - before < limit // STEPS:
            return
        first = sum(time <= now - limit for time, _ in marks)
        marks = [*marks[max(first - 1, 0) :], (now, last)]
        self._table.put(name, b"".join(_MARK.pack(*mark) for mark in marks))

    def through(self, name: bytes, age: float) -> int:
        """The last entry of the log that is known to be older than that; 0: none is."""
        oldest = self._lived() - int(age * SECOND)
        return max((last for time, last in self._marks(name) if time <= oldest), default=0)

    def keep_only(self, names: set[bytes]) -> None:
        """There are these logs and no others."""
        for name, _ in self._table.items():
            if name not in names:
                self._table.delete(name)

    def _marks(self, name: bytes) -> list[tuple[int, int]]:
        return [(time, last) for time, last in _MARK.iter_unpack(self._table.get(name) or b"")]
