"""
Sessions that are behind: read the journals from their cursors, until they are current again.

One order rules: a session that is behind in a part gets nothing live from it, so what it missed
comes first. Journals are read only for sessions that are here and have room, so a catch-up costs a
chunk of memory however long it is. Where a zone was cut or came back, the parts are read in the
order of time (protocol rule 7): see `Cursor`.

A session that may have missed more than its limits is measured first: how many messages wait is not
known before they are read once, since an absent session costs nothing but its positions. The oldest
ones beyond the limits are then dropped, and counted for it.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from txbroker.authority.journal import Chunk, Record
from txbroker.counters import Counters
from txbroker.edge.chunks import RETRY, Chunks, Missing, Reader
from txbroker.edge.zonemap import ZoneMap
from txbroker.mqtt.session import Cursor, Session, SessionLimits
from txbroker.place import PartKey, Place
from txbroker.timers import Timers

TURN = 16
"""Chunks that are worked through before others have their turn."""

LARGE = 16 * 1024
"""Bytes that a message is taken to have when it is judged whether many of them may be too much."""


@attrs.define(slots=True, eq=False)
class _Measure:
    """What waits for a session, counted so far; `seen` is how far each part was read for it."""

    seen: dict[PartKey, int] = attrs.Factory(dict)
    messages: int = 0
    size: int = 0


class Backlog:
    """The catch-up of one edge's sessions; `again` has `work` called in another turn."""

    def __init__(
        self,
        *,
        zones: ZoneMap,
        reader: Reader,
        timers: Timers,
        counters: Counters,
        limits: SessionLimits,
        again: Callable[[], None],
    ) -> None:
        self._zones = zones
        self._reader = reader
        self._timers = timers
        self._counters = counters
        self.limits = limits
        self._again = again
        self._chunks = Chunks(reader, timers, wake=self.wake, gone=self._give_up)
        self._hungry: dict[Session, None] = {}
        self._measures: dict[Session, _Measure] = {}

    # from the edge

    def returned(self, session: Session) -> None:
        """The session's client is here again."""
        if self._may_exceed(session):
            self._measures[session] = _Measure()
        self.wake(session)

    def wake(self, session: Session) -> None:
        """The session may have something to read, and room for it."""
        if session in self._hungry or not session.behind or not session.has_room():
            return
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
            if session.sink is None:
                self._measures.pop(session, None)
            elif session not in self._measures or self._measure(session):
                self._feed(session)
        if self._hungry:
            self._again()

    # from operators

    def distance(self, session: Session) -> int:
        """How many records lie behind the session's cursors; not all of them need be its."""
        return sum(max(self._end(cursor) - cursor.offset, 0) for cursor in session.behind.values())

    # internal: limits

    def _may_exceed(self, session: Session) -> bool:
        return self.distance(session) > min(self.limits.messages, self.limits.size // LARGE)

    def _end(self, cursor: Cursor) -> int:
        """Up to where the edge knows that there is something."""
        if cursor.until is not None:
            return cursor.until
        route = self._zones.get(cursor.part.zone)
        position = None if route is None else route.position
        is_same = position is not None and position.epoch == cursor.part.epoch
        return position.offset if position is not None and is_same else 0

    def _measure(self, session: Session) -> bool:
        """Count on through the next chunk; True when all is counted."""
        measure = self._measures[session]
        for cursor in session.behind.values():
            seen = max(measure.seen.get(cursor.part, 0), cursor.offset)
            if seen >= self._end(cursor):
                continue
            chunk = self._chunks.behind(cursor.part, seen, session)
            if chunk is None:
                return False
            for record in chunk.records:
                if record.offset > seen and _granted(session, cursor.part, record):
                    measure.messages += 1
                    measure.size += record.message.size
            measure.seen[cursor.part] = chunk.through
            self.wake(session)
            return False
        del self._measures[session]
        session.skip = max(measure.messages - self.limits.messages, 0)
        session.skip_size = max(measure.size - self.limits.size, 0)
        return True

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
        if worked:
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
        chunk = self._chunks.behind(cursor.part, cursor.offset, session)
        if chunk is None:
            return False
        if chunk.first - 1 > cursor.offset:
            lost = chunk.first - 1 - cursor.offset
            self._counters.add("session.missed", lost)
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
        qos = _granted(session, cursor.part, record)
        if not qos:
            return True
        if session.skip > 0 or session.skip_size > 0:
            session.skip -= 1
            session.skip_size -= record.message.size
            session.drop(qos)
            return True
        return session.deliver(record.message, qos, Place(cursor.part, record.offset))

    def _give_back(self, session: Session, packet_id: int, place: Place) -> None:
        def done(found: Chunk | Missing) -> None:
            if found is Missing.UNREACHABLE:
                self._timers.call_later(RETRY, lambda: self._give_back(session, packet_id, place))
                return
            records = found.records if isinstance(found, Chunk) else ()
            message = next((r.message for r in records if r.offset == place.offset), None)
            session.give_back(packet_id, message)
            self.wake(session)

        self._reader.read(place.part, place.offset - 1, place.offset, done)

    def _give_up(self, session: Session, part: PartKey) -> None:
        if session.behind.pop(part, None) is not None:
            self._counters.add("session.part_gone")


def _granted(session: Session, part: PartKey, record: Record) -> int:
    """With which QoS the session gets the record; 0: not at all, as QoS 0 is not queued."""
    granted = 0
    for subscription in session.matching(record.message.topic):
        is_its = subscription.starts.get(part, 0) < record.offset
        if is_its and part.zone not in subscription.pending:
            granted = max(granted, subscription.qos)
    return min(granted, record.message.qos)


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
