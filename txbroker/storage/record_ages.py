"""
The ages of a log's entries, for messages that expire.

Entries of this process are dated by marks of the node's message clock. Older ones have only the
wall clock of their batch, which counts up to the start of this process. So no step of the wall
clock expires a message while the process runs.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from txbroker.storage.lived_time import SECOND, LivedTime

MOST_MARKS: Final = 4_096
"""Marks of one log; beyond it every second mark of the older half goes."""


STEP: Final = SECOND // 10
"""Microseconds between two marks."""


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
