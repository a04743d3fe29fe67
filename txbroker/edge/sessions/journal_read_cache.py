"""
The chunks of journals that an edge's sessions read, shared where their ranges meet.

A chunk begins where somebody needs it and has `SPAN` offsets at the most, mostly one or more whole
batches, and whoever comes by reads on in it: so sessions that come at about the same time soon read
the same ones (protocol rule 23). It may be cut short, by its size or because there was no more yet;
then the next one begins where it ended.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Protocol

from txbroker.journal.zone_journal import JournalChunk
from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.log_position import JournalId
from txbroker.model.timers import Timers
from txbroker.mqtt.session.session import Session

SPAN = 4096
"""Offsets in one chunk, at the most; which of them are whose is found out by the core."""

CHUNKS = 64
CACHE_BYTES = 16 * 1024 * 1024
"""Chunks that are kept, and their size in all, for the next session that comes along."""

RETRY = 0.5
"""Seconds until a read that could not be answered, or brought nothing new, is tried again."""


class ReadFailure(Enum):
    """Why a read brought nothing."""

    UNREACHABLE = "unreachable"  # ask again later
    GONE = "gone"  # the part is kept nowhere any more
    CUT_OFF = "cut off"  # it went with a node from which the zone was reclaimed, and may come back


class ChunkReader(Protocol):
    """Whoever can read journals: the node's own, or by asking an owner."""

    def read(
        self,
        part: JournalId,
        after: int,
        through: int,
        done: Callable[[JournalChunk | ReadFailure], None],
    ) -> None:
        """The QoS 1/2 records above `after` up to `through`, as far as they are durable."""


class JournalReadCache:
    """
    `wake` is called for sessions when it is worth their while to look again, `gone` where a part is
    kept nowhere or is cut off, `late` where it cannot be read for now, `end` where it has nothing
    more for now; `met` with the passages that a chunk comes by, before anybody has it.
    """

    def __init__(
        self,
        reader: ChunkReader,
        timers: Timers,
        *,
        wake: Callable[[Session], None],
        gone: Callable[[Session, JournalId, ReadFailure], None],
        late: Callable[[Session, JournalId], None],
        end: Callable[[Session, JournalId], None],
        met: Callable[[Iterable[EpochTransition]], None],
    ) -> None:
        self._reader = reader
        self._timers = timers
        self._wake = wake
        self._gone = gone
        self._late = late
        self._end = end
        self._met = met
        self._kept: OrderedDict[tuple[JournalId, int], JournalChunk] = OrderedDict()
        self._sizes: dict[tuple[JournalId, int], int] = {}
        self._starts: dict[JournalId, list[int]] = {}
        self._size = 0
        self._asked: dict[tuple[JournalId, int], set[Session]] = {}
        self._unreachable: set[JournalId] = set()

    def behind(self, part: JournalId, offset: int, session: Session) -> JournalChunk | None:
        """
        A chunk with what follows the offset.

        None: it is asked for, and the session woken when it is here or worth another look.
        """
        found = self._find(part, offset)
        if found is None and self._ask(part, offset, session):
            found = self._find(part, offset)
        return found

    def forget(self, part: JournalId, offset: int) -> None:
        """The chunk with what follows the offset says too little of what comes after it."""
        while self._find(part, offset) is not None:
            starts = self._starts[part]
            self._drop(part, starts[bisect_right(starts, offset) - 1])

    def is_unreachable(self, part: JournalId) -> bool:
        """Whether the last attempt to read the part came to nothing."""
        return part in self._unreachable

    # internal

    def _find(self, part: JournalId, offset: int) -> JournalChunk | None:
        starts = self._starts.get(part)
        place = bisect_right(starts, offset) - 1 if starts else -1
        if not starts or place < 0:
            return None
        key = part, starts[place]
        chunk = self._kept[key]
        if offset >= chunk.through and not (chunk.is_closed and offset >= chunk.last):
            return None
        self._kept.move_to_end(key)
        self._weigh(key)
        return chunk

    def _ask(self, part: JournalId, offset: int, session: Session) -> bool:
        """Ask for what follows the offset; True where it is here at once."""
        key = part, offset
        waiting = self._asked.get(key)
        if waiting is not None:
            waiting.add(session)
            return False
        self._asked[key] = {session}
        self._reader.read(part, offset, offset + SPAN, lambda found: self._on_read(key, found))
        return key not in self._asked

    def _on_read(self, key: tuple[JournalId, int], found: JournalChunk | ReadFailure) -> None:
        part, offset = key
        if isinstance(found, JournalChunk):
            self._unreachable.discard(part)
            if found.passages:
                self._met(found.passages)
            if found.through > offset or found.is_closed:
                self._keep(key, found)
                self._wake_all(key)
                return
            for session in self._asked[key]:
                self._end(session, part)
        elif found is not ReadFailure.UNREACHABLE:
            for session in self._asked[key]:
                self._gone(session, part, found)
            self._wake_all(key)
            return
        else:
            self._unreachable.add(part)
            for session in self._asked[key]:
                self._late(session, part)
        self._timers.call_later(RETRY, lambda: self._wake_all(key))

    def _wake_all(self, key: tuple[JournalId, int]) -> None:
        for session in self._asked.pop(key):
            self._wake(session)

    def _keep(self, key: tuple[JournalId, int], chunk: JournalChunk) -> None:
        if self._kept.pop(key, None) is None:
            insort(self._starts.setdefault(key[0], []), key[1])
        self._kept[key] = chunk
        self._weigh(key)

    def _weigh(self, key: tuple[JournalId, int]) -> None:
        """A chunk grows as sessions take records of it; the last one used stays in any case."""
        size = self._kept[key].records.size
        self._size += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        while len(self._kept) > 1 and (len(self._kept) > CHUNKS or self._size > CACHE_BYTES):
            self._drop(*next(iter(self._kept)))

    def _drop(self, part: JournalId, start: int) -> None:
        del self._kept[part, start]
        self._size -= self._sizes.pop((part, start))
        starts = self._starts[part]
        del starts[bisect_right(starts, start) - 1]
        if not starts:
            del self._starts[part]
