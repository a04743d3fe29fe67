"""
A cache of journal chunks, shared by the sessions of an edge whose ranges meet.

A chunk begins at the offset that a session needs. The chunk has at most `SPAN` offsets, mostly one
or more whole batches. Other sessions within its range read on in it. So sessions that resume at
about the same time soon read the same chunks (protocol rule 23). A chunk may be cut short, by its
size or at the end of the journal. Then the next chunk begins where it ended.

A read ends in a chunk, at the end of the part, or in a `ReadFailure`. After an unreachable part or
an empty chunk the sessions are woken `RETRY` seconds later.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Protocol

import attrs

from txbroker.journal.zone_journal import JournalChunk
from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.log_position import JournalId
from txbroker.model.timers import Timers
from txbroker.mqtt.session.match import wants_publishers
from txbroker.mqtt.session.session import Session

SPAN = 4096
"""Offsets in one chunk, at most; the core finds the records that match a session."""

CHUNKS = 64
CACHE_BYTES = 16 * 1024 * 1024
"""Chunks that stay cached, and their bytes in total, for the next session in their range."""

RETRY = 0.5
"""Seconds until a read is repeated that failed, or returned no new record."""


class ReadFailure(Enum):
    """The reason why a read returned no chunk."""

    UNREACHABLE = "unreachable"  # ask again later
    GONE = "gone"  # no node has the part any more
    CUT_OFF = "cut off"  # a node has it whose zone was reclaimed; it may come back


class ChunkReader(Protocol):
    """Port that reads journals: the node's own, or those of an owner."""

    def read(
        self,
        part: JournalId,
        after: int,
        through: int,
        done: Callable[[JournalChunk | ReadFailure], None],
    ) -> None:
        """Read the durable QoS 1/2 records above `after` up to `through`."""


@attrs.frozen(kw_only=True)
class ReadEvents:
    """
    What a cache calls, all but `met` once for each session that asked.

    - `wake`: a further look is worthwhile.
    - `gone`: no node has the part, or the part is cut off.
    - `late`: the part cannot be read for now.
    - `end`: the part has no more records for now.
    - `met`: the transitions in a chunk, before any session gets the chunk.
    """

    wake: Callable[[Session], None]
    gone: Callable[[Session, JournalId, ReadFailure], None]
    late: Callable[[Session, JournalId], None]
    end: Callable[[Session, JournalId], None]
    met: Callable[[Iterable[EpochTransition]], None]


class JournalReadCache:
    """See the module's text."""

    def __init__(self, reader: ChunkReader, timers: Timers, events: ReadEvents) -> None:
        self._reader = reader
        self._timers = timers
        self._events = events
        self._kept: OrderedDict[tuple[JournalId, int], JournalChunk] = OrderedDict()
        self._sizes: dict[tuple[JournalId, int], int] = {}
        self._starts: dict[JournalId, list[int]] = {}
        self._size = 0
        self._asked: dict[tuple[JournalId, int], set[Session]] = {}
        self._unreachable: set[JournalId] = set()

    def behind(self, part: JournalId, offset: int, session: Session) -> JournalChunk | None:
        """
        Return a chunk with the records behind the offset.

        None: the chunk is requested, and the session is woken when it is worth another look.
        """
        found = self._find(part, offset)
        if found is not None and not found.is_named:
            # Read when nobody here asked who the publishers are: a client would get its own.
            found = None if wants_publishers(session.subscriptions.values()) else found
        if found is None and self._request(part, offset, session):
            found = self._find(part, offset)
        return found

    def forget(self, part: JournalId, offset: int) -> None:
        """
        Evict the chunks behind the offset, which were read before later records were appended.
        """
        while self._find(part, offset) is not None:
            starts = self._starts[part]
            self._drop(part, starts[bisect_right(starts, offset) - 1])

    def is_unreachable(self, part: JournalId) -> bool:
        """True if the last attempt to read the part failed."""
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

    def _request(self, part: JournalId, offset: int, session: Session) -> bool:
        """Request the chunk behind the offset; return True if it is here at once."""
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
                self._events.met(found.passages)
            if found.through > offset or found.is_closed:
                self._cache(key, found)
                self._wake_all(key)
                return
            for session in self._asked[key]:
                self._events.end(session, part)
        elif found is not ReadFailure.UNREACHABLE:
            for session in self._asked[key]:
                self._events.gone(session, part, found)
            self._wake_all(key)
            return
        else:
            self._unreachable.add(part)
            for session in self._asked[key]:
                self._events.late(session, part)
        self._timers.call_later(RETRY, lambda: self._wake_all(key))

    def _wake_all(self, key: tuple[JournalId, int]) -> None:
        for session in self._asked.pop(key):
            self._events.wake(session)

    def _cache(self, key: tuple[JournalId, int], chunk: JournalChunk) -> None:
        if self._kept.pop(key, None) is None:
            insort(self._starts.setdefault(key[0], []), key[1])
        self._kept[key] = chunk
        self._weigh(key)

    def _weigh(self, key: tuple[JournalId, int]) -> None:
        """
        Update a chunk's size, which grows as sessions decode its records; evict others beyond the
        limit.
        """
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
