"""The messages of a group that wait for a member, in the order in which they are lent."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from txbroker.core import Run
from txbroker.model.log_position import JournalId
from txbroker.mqtt.session.window import LaunchedRun, OutboundMessage

Flight = tuple[int, OutboundMessage]
"""A message in flight, with its packet id."""


class GroupQueue:
    """
    Flights that are lent one by one, and runs that are lent by the run.

    `count`: messages that wait. A flight that comes again goes before runs with later offsets.
    """

    def __init__(self) -> None:
        self.count = 0
        self._again: deque[Flight] = deque()
        self._queue: deque[Flight | LaunchedRun] = deque()
        self._last: dict[JournalId, int] = {}  # offsets of waiting runs

    def __bool__(self) -> bool:
        return bool(self._again or self._queue)

    @property
    def run(self) -> LaunchedRun | None:
        """Return the first item if it is a run."""
        first = self._queue[0] if self._queue and not self._again else None
        return first if isinstance(first, LaunchedRun) else None

    @property
    def flight(self) -> Flight | None:
        """Return the first item if it is a flight."""
        if self._again:
            return self._again[0]
        first = self._queue[0] if self._queue else None
        return None if isinstance(first, LaunchedRun) else first

    def flights(self) -> Iterator[Flight]:
        """Yield all flights that are lent one by one."""
        yield from self._again
        for item in self._queue:
            if not isinstance(item, LaunchedRun):
                yield item

    def add(self, flight: Flight) -> None:
        """Append a flight; before all others if a run of its part with later offsets waits."""
        self.count += 1
        place = flight[1].place
        if place is not None and self._last.get(place.part, 0) > place.offset:
            self._again.append(flight)
        else:
            self._queue.append(flight)

    def add_first(self, flight: Flight) -> None:
        """Insert a flight before all others."""
        self.count += 1
        self._again.appendleft(flight)

    def add_run(self, run: LaunchedRun) -> None:
        """Append a run."""
        self.count += run.run.count
        self._queue.append(run)
        self._last[run.part] = run.run.last

    def dequeue(self) -> Flight:
        """Remove the first item, which is a flight."""
        self.count -= 1
        if self._again:
            return self._again.popleft()
        first = self._queue.popleft()
        assert not isinstance(first, LaunchedRun)
        return first

    def dequeue_run(self, most: int) -> tuple[JournalId, Run]:
        """Remove at most so many messages of the first item, which is a run."""
        first = self._queue.popleft()
        assert isinstance(first, LaunchedRun)
        part, run = first.part, first.run
        if most < run.count:
            run, rest = run.cut(most)
            self._queue.appendleft(LaunchedRun(part, rest))
        elif self._last[part] == run.last:
            del self._last[part]
        self.count -= run.count
        return part, run

    def keep(self, flights: list[Flight]) -> None:
        """Keep only these flights, and all runs."""
        kept = {packet_id for packet_id, _ in flights}
        self._again = deque(flight for flight in self._again if flight[0] in kept)
        self._queue = deque(
            item for item in self._queue if isinstance(item, LaunchedRun) or item[0] in kept
        )
        runs = (item.run.count for item in self._queue if isinstance(item, LaunchedRun))
        self.count = len(flights) + sum(runs)

    def clear(self) -> None:
        """Remove all."""
        self._again.clear()
        self._queue.clear()
        self._last.clear()
        self.count = 0
