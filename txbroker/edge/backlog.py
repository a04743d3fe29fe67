"""
Sessions that are behind: read the journals from their cursors, until they are current again.

One order rules: a session that is behind in a part gets nothing live from it, so what it missed
comes first. Journals are read in aligned chunks that sessions share (protocol rule 23), only for
sessions that are here and have room, so a catch-up costs one chunk of memory however long it is.
Where a zone was cut or came back, the parts are read in the order of time (rule 7): see `Cursor`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from txbroker.authority.journal import Chunk, Record
from txbroker.counters import Counters
from txbroker.edge.zonemap import ZoneMap
from txbroker.mqtt.session import Cursor, Session
from txbroker.place import PartKey, Place
from txbroker.timers import Timers

SPAN = 512
"""Offsets in one chunk."""

CHUNKS = 64
CACHE_BYTES = 16 * 1024 * 1024
"""Chunks that are kept, and their size in all, for the next session that comes along."""

RETRY = 0.5
"""Seconds until a read that could not be answered is tried again."""

TURN = 16
"""Chunks that are worked through before others have their turn."""


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


class Backlog:
    """The catch-up of one edge's sessions."""

    def __init__(
        self,
        *,
        zones: ZoneMap,
        reader: Reader,
        timers: Timers,
        counters: Counters,
        again: Callable[[], None],
    ) -> None:
        self._zones = zones
        self._reader = reader
        self._timers = timers
        self._counters = counters
        self._again = again
        self._hungry: dict[Session, None] = {}
        self._chunks: OrderedDict[tuple[PartKey, int], tuple[int, Chunk]] = OrderedDict()
        self._size = 0
        self._asked: dict[tuple[PartKey, int], set[Session]] = {}

    # from the edge

    def wake(self, session: Session) -> None:
        """The session is behind, is here and has room."""
        if session not in self._hungry:
            if not self._hungry:
                self._again()
            self._hungry[session] = None

    def restore(self, session: Session) -> None:
        """Read the messages of a session's open flows again, after a restart."""
        for packet_id, place in session.unread():
            self._give_back(session, packet_id, place)

    def work(self) -> None:
        """Feed sessions for a while; the others wait for the next turn."""
        for _ in range(min(TURN, len(self._hungry))):
            session = next(iter(self._hungry))
            del self._hungry[session]
            self._feed(session)
        if self._hungry:
            self._again()

    # internal: one session

    def _feed(self, session: Session) -> None:
        worked = False
        for cursor in list(session.behind.values()):
            if not session.has_room():
                return
            if self._is_done(session, cursor):
                worked = True
            elif not _is_gated(session, cursor):
                worked = self._advance(session, cursor) or worked
        if worked and session.behind and session.has_room():
            self.wake(session)

    def _is_done(self, session: Session, cursor: Cursor) -> bool:
        """Whether the session has all of the part; it then takes what is live."""
        route = self._zones.get(cursor.part.zone)
        position = None if route is None else route.position
        if cursor.until is not None:
            is_done = cursor.offset >= cursor.until
        elif position is None or position.epoch != cursor.part.epoch:
            return False
        else:
            is_done = cursor.offset >= position.offset
            if is_done:
                session.ahead[cursor.part] = cursor.offset
        if is_done:
            session.pass_part(cursor)
        return is_done

    def _advance(self, session: Session, cursor: Cursor) -> bool:
        """Give the session what the next chunk has for it; False when that has to be read first."""
        key = (cursor.part, cursor.offset // SPAN)
        after, chunk = self._chunks.get(key, (0, None))
        if chunk is None or not after <= cursor.offset < chunk.through:
            has_more = chunk is not None and chunk.through <= cursor.offset
            start = chunk.through if chunk is not None and has_more else key[1] * SPAN
            self._ask(key, start, session)
            return False
        self._chunks.move_to_end(key)
        if chunk.first - 1 > cursor.offset:
            self._counters.add("session.missed", chunk.first - 1 - cursor.offset)
            cursor.offset = chunk.first - 1
        limit = _limit(session, cursor)
        for record in chunk.records:
            if record.offset <= cursor.offset:
                continue
            if record.offset > limit or not self._give(session, cursor, record):
                return True
            cursor.offset = record.offset
        cursor.offset = max(cursor.offset, min(chunk.through, limit))
        return True

    def _give(self, session: Session, cursor: Cursor, record: Record) -> bool:
        """Give one record; False: no room for it."""
        message = record.message
        granted = 0
        for subscription in session.matching(message.topic):
            is_its = subscription.starts.get(cursor.part, 0) < record.offset
            if is_its and cursor.part.zone not in subscription.pending:
                granted = max(granted, subscription.qos)
        qos = min(granted, message.qos)
        if not qos:
            return True
        if cursor.skip:
            cursor.skip -= 1
            session.dropped += 1
            self._counters.add("session.dropped.queue_full")
            return True
        return session.deliver(message, qos, Place(cursor.part, record.offset))

    def _give_back(self, session: Session, packet_id: int, place: Place) -> None:
        def done(found: Chunk | Missing) -> None:
            if found is Missing.UNREACHABLE:
                self._timers.call_later(RETRY, lambda: self._give_back(session, packet_id, place))
                return
            records = found.records if isinstance(found, Chunk) else ()
            message = next((r.message for r in records if r.offset == place.offset), None)
            session.give_back(packet_id, message)
            if session.has_room() and session.behind:
                self.wake(session)

        self._reader.read(place.part, place.offset - 1, place.offset, done)

    # internal: chunks

    def _ask(self, key: tuple[PartKey, int], start: int, session: Session) -> None:
        waiting = self._asked.get(key)
        if waiting is not None:
            waiting.add(session)
            return
        self._asked[key] = {session}
        part, number = key
        self._reader.read(
            part, start, (number + 1) * SPAN, lambda found: self._on_read(key, start, found)
        )

    def _on_read(self, key: tuple[PartKey, int], start: int, found: Chunk | Missing) -> None:
        part, _ = key
        waiting = self._asked.pop(key)
        if found is Missing.UNREACHABLE:
            self._timers.call_later(RETRY, lambda: self._wake_all(waiting))
            return
        if found is Missing.GONE:
            for session in waiting:
                self._give_up(session, part)
            self._wake_all(waiting)
            return
        assert isinstance(found, Chunk)
        self._keep(key, start, found)
        behind = [s for s in waiting if part in s.behind]
        # Nothing new: the edge has not heard that it is current; its stream will tell.
        going_on = {s for s in behind if found.through > s.behind[part].offset}
        self._wake_all(going_on)
        if len(going_on) < len(behind):
            stuck = set(behind) - going_on
            self._timers.call_later(RETRY, lambda: self._wake_all(stuck))

    def _give_up(self, session: Session, part: PartKey) -> None:
        cursor = session.behind.pop(part, None)
        if cursor is not None:
            self._counters.add("session.part_gone")

    def _wake_all(self, sessions: set[Session]) -> None:
        for session in sessions:
            if session.behind and session.has_room():
                self.wake(session)

    def _keep(self, key: tuple[PartKey, int], start: int, chunk: Chunk) -> None:
        known = self._chunks.pop(key, None)
        if known is not None:
            self._size -= _size(known[1])
        self._chunks[key] = start, chunk
        self._size += _size(chunk)
        while len(self._chunks) > 1 and (len(self._chunks) > CHUNKS or self._size > CACHE_BYTES):
            _, (_, gone) = self._chunks.popitem(last=False)
            self._size -= _size(gone)


def _is_gated(session: Session, cursor: Cursor) -> bool:
    after = cursor.after
    if after is not None:
        earlier = session.behind.get(after.part)
        if earlier is not None and earlier.offset < after.offset:
            return True
        cursor.after = None
    return cursor.offset >= _limit(session, cursor)


def _limit(session: Session, cursor: Cursor) -> int:
    """The offset beyond which another part has to be finished first."""
    cursor.stops = [stop for stop in cursor.stops if stop.part in session.behind]
    return min((stop.offset for stop in cursor.stops), default=1 << 62)


def _size(chunk: Chunk) -> int:
    return sum(record.message.size for record in chunk.records)
