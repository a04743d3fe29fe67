"""
The chunks of journals that an edge's sessions read, shared where their ranges meet.

Chunks are aligned to `SPAN` offsets, so sessions that come by at about the same time read the same
ones (protocol rule 23). A chunk may be cut short, by its size or because there was no more yet;
then the next read begins where it ended.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Protocol

from txbroker.authority.journal import Chunk
from txbroker.mqtt.session import Session
from txbroker.place import PartKey
from txbroker.timers import Timers

SPAN = 512
"""Offsets in one chunk."""

CHUNKS = 64
CACHE_BYTES = 16 * 1024 * 1024
"""Chunks that are kept, and their size in all, for the next session that comes along."""

RETRY = 0.5
"""Seconds until a read that could not be answered, or brought nothing new, is tried again."""


class Missing(Enum):
    """Why a read brought nothing."""

    UNREACHABLE = "unreachable"  # ask again later
    GONE = "gone"  # the part is kept nowhere any more


class Reader(Protocol):
    """Whoever can read journals: the node's own, or by asking an owner."""

    def read(
        self, part: PartKey, after: int, through: int, done: Callable[[Chunk | Missing], None]
    ) -> None:
        """The QoS 1/2 records above `after` up to `through`, as far as they are durable."""


class Chunks:
    """`wake` is called for sessions whose chunk has come, `gone` where a part is kept nowhere."""

    def __init__(
        self,
        reader: Reader,
        timers: Timers,
        *,
        wake: Callable[[Session], None],
        gone: Callable[[Session, PartKey], None],
    ) -> None:
        self._reader = reader
        self._timers = timers
        self._wake = wake
        self._gone = gone
        self._kept: OrderedDict[tuple[PartKey, int], tuple[int, Chunk]] = OrderedDict()
        self._size = 0
        self._asked: dict[tuple[PartKey, int], set[Session]] = {}

    def behind(self, part: PartKey, offset: int, session: Session) -> Chunk | None:
        """
        A chunk with what follows the offset.

        None: it is asked for, and the session woken when it is here or worth another look.
        """
        key = (part, offset // SPAN)
        start, chunk = self._kept.get(key, (0, None))
        if chunk is not None and start <= offset < chunk.through:
            self._kept.move_to_end(key)
            return chunk
        is_longer = chunk is not None and chunk.through <= offset
        self._ask(key, chunk.through if chunk and is_longer else key[1] * SPAN, offset, session)
        return None

    # internal

    def _ask(self, key: tuple[PartKey, int], start: int, offset: int, session: Session) -> None:
        waiting = self._asked.get(key)
        if waiting is not None:
            waiting.add(session)
            return
        self._asked[key] = {session}
        part, number = key

        def done(found: Chunk | Missing) -> None:
            self._on_read(key, start, offset, found)

        self._reader.read(part, start, (number + 1) * SPAN, done)

    def _on_read(
        self, key: tuple[PartKey, int], start: int, offset: int, found: Chunk | Missing
    ) -> None:
        waiting = self._asked.pop(key)
        if isinstance(found, Chunk):
            self._keep(key, start, found)
            if found.through > offset:
                self._wake_all(waiting)
                return
        elif found is Missing.GONE:
            for session in waiting:
                self._gone(session, key[0])
            self._wake_all(waiting)
            return
        self._timers.call_later(RETRY, lambda: self._wake_all(waiting))

    def _wake_all(self, sessions: Iterable[Session]) -> None:
        for session in sessions:
            self._wake(session)

    def _keep(self, key: tuple[PartKey, int], start: int, chunk: Chunk) -> None:
        known = self._kept.pop(key, None)
        if known is not None:
            self._size -= _size(known[1])
        self._kept[key] = start, chunk
        self._size += _size(chunk)
        while len(self._kept) > 1 and (len(self._kept) > CHUNKS or self._size > CACHE_BYTES):
            _, (_, gone) = self._kept.popitem(last=False)
            self._size -= _size(gone)


def _size(chunk: Chunk) -> int:
    return sum(record.message.size for record in chunk.records)
