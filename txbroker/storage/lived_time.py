"""
Measures the time that a node has lived over all its processes, and the age of log entries.

A wall clock steps: NTP corrects it, and a board without a battery starts in another year. An age by
that clock would expire sessions and trim journals at once. So each age that outlives a process is
the difference of two readings of `LivedTime`. Only elapsed time advances a reading.

Entries of this process are dated by marks of the node's message clock. Older ones have only the
wall clock of their batch, which counts up to the start of this process. So no step of the wall
clock expires a message while the process runs.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from struct import Struct

from txbroker.storage.tables import LogTable

SECOND = 1_000_000

NOTED_EVERY = 60 * SECOND
"""Microseconds between two stored readings of a running node."""

LONGEST_GAP = NOTED_EVERY
"""
Maximum that a gap between two processes counts, in microseconds.

A killed process may leave this much unstored. Only the wall clock measures the rest of a gap.
"""

LONGEST_DOWN = 30 * 24 * 3600 * SECOND
"""
Maximum that a gap counts for the ages of messages, in microseconds.

A message must not outlive its interval by the time that its node was down. A longer gap is a wrong
clock.
"""

STEPS = 64
"""Marks in an age: an entry expires at most a 64th of the age too late."""

MOST_MARKS = 4_096
"""Marks of one log; beyond it every second mark of the older half goes."""

STEP = SECOND // 10
"""Microseconds between two marks of `RecordAges`."""

_NOTE = Struct(">QQ")  # lived time, and the wall clock at that reading
_MARK = Struct(">QQ")  # a reading, and the last entry of the log at that reading


def wall() -> int:
    """Return the time of day for records: microseconds UTC."""
    return time.time_ns() // 1000


class LivedTime:
    """
    A clock of lived time in microseconds.

    A new node's clock begins at the time of day. So its readings compare with the times of day that
    earlier versions stored.

    A gap between two processes counts up to `longest_gap`, in microseconds.
    """

    def __init__(
        self,
        table: LogTable,
        *,
        now: Callable[[], float],
        wall: Callable[[], int],
        last: int,
        key: bytes = b"lived",
        longest_gap: int = LONGEST_GAP,
    ) -> None:
        """
        Continue the clock from the stored reading in `table`.

        `now` returns monotonic seconds, `wall` UTC microseconds. `last` is the wall clock of the
        last write of an earlier version, or 0.
        """
        self._table = table
        self._now = now
        self._wall = wall
        self._key = key
        stored = table.get(key)
        lived, noted = (last, last) if stored is None else _NOTE.unpack(stored)
        gap = wall() - noted if noted else 0
        self._begun = now()
        self._started = wall()
        self._before = (lived or wall()) + min(max(gap, 0), longest_gap)
        self.store()

    def __call__(self) -> int:
        """Return a reading."""
        return self._before + int((self._now() - self._begun) * SECOND)

    def at(self, time: int) -> int:
        """
        Return the reading at a moment of an earlier process, from the wall clock then.

        Only the wall clock at the start of this process counts. A clock that went back counts as no
        time.
        """
        return self._before - max(self._started - time, 0)

    def tick(self) -> None:
        """Store the reading every `NOTED_EVERY`; the caller calls this each second."""
        if self() - self._noted >= NOTED_EVERY:
            self.store()

    def store(self) -> None:
        """Store the reading with the next commit."""
        self._noted = self()
        self._table.put(self._key, _NOTE.pack(self._noted, self._wall()))


class EntryAges:
    """
    Ages of the entries of logs, from a few marks per log: a reading and the last entry then.

    Entries that an earlier version or another node wrote are as old as their first mark.
    """

    def __init__(self, table: LogTable, lived: Callable[[], int]) -> None:
        self._table = table
        self._lived = lived

    def mark(self, name: bytes, last: int, age: float) -> None:
        """
        Mark that the log ends with entry `last`, for later queries with this `age` in seconds.
        """
        marks, now, limit = self._marks(name), self._lived(), int(age * SECOND)
        before, known = marks[-1] if marks else (0, 0)
        if last <= known or now - before < limit // STEPS:
            return
        first = sum(time <= now - limit for time, _ in marks)
        marks = [*marks[max(first - 1, 0) :], (now, last)]
        self._table.put(name, b"".join(_MARK.pack(*mark) for mark in marks))

    def through(self, name: bytes, age: float) -> int:
        """Return the last entry of the log that is older than `age` seconds; 0 if none is."""
        oldest = self._lived() - int(age * SECOND)
        return max((last for time, last in self._marks(name) if time <= oldest), default=0)

    def retain_only(self, names: set[bytes]) -> None:
        """Delete the marks of all logs that `names` does not contain."""
        for name, _ in self._table.items():
            if name not in names:
                self._table.delete(name)

    def _marks(self, name: bytes) -> list[tuple[int, int]]:
        return [(time, last) for time, last in _MARK.iter_unpack(self._table.get(name) or b"")]


class RecordAges:
    """
    The dates of one log's entries; entries up to `last` are older than this process.

    A mark is a pair of a clock reading and a number. Entries up to the number were appended by that
    reading. An entry is dated up to a `STEP` too late, and never too early: a message must not
    expire early.
    """

    def __init__(self, clock: LivedTime, last: int) -> None:
        self._clock = clock
        self._last = last
        self._ends: list[int] = []
        self._readings: list[int] = []

    def note(self, entry: int) -> None:
        """Note that this entry was appended now."""
        now = self._clock()
        if self._readings and now < self._readings[-1]:
            self._ends[-1] = entry
            return
        self._ends.append(entry)
        self._readings.append(now + STEP)
        if len(self._ends) > MOST_MARKS:
            half = MOST_MARKS // 2
            self._ends[:half] = self._ends[1:half:2]
            self._readings[:half] = self._readings[1:half:2]

    def written(self, entry: int, time: int) -> int:
        """Return the reading at which the entry was appended; `time` is that of its batch."""
        return self._written(entry, time, self._clock())

    def _written(self, entry: int, time: int, now: int) -> int:
        if entry <= self._last:
            return self._clock.at(time)
        place = bisect_left(self._ends, entry)
        return min(self._readings[place], now) if place < len(self._ends) else now

    def age(self, entry: int, time: int) -> float:
        """Return the seconds since the entry was appended."""
        now = self._clock()  # read once: an entry of this very moment must not be younger than that
        return (now - self._written(entry, time, now)) / SECOND
