"""
Catch-up: sessions that are behind read the journals from their cursors, until they are current.

A cursor is gated (another part goes first), readable, or done (the session takes the part live). A
session that is behind in a part gets nothing live from the part, so missed messages come first.
Parts that were cut or came back are read in the order of time (protocol rule 7): see `Cursor`. A
part without reachable records is put off, set aside (cut off), or given up (gone).

Journals are read only for sessions whose client is connected and whose window has room. So a
catch-up costs one chunk of memory, however long it is.

Beyond `session_limits` the oldest messages are dropped. An absent session costs nothing but its
positions. So the number of waiting messages is unknown before they are read once. Catch-up counts
them first unless offsets and bytes show that the limits hold. Messages that come live while the
client is connected are counted as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby, islice

import attrs

from txbroker.edge.routing.edge_parts import EdgeParts
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.routing.route import Route
from txbroker.edge.sessions.journal_read_cache import (
    ChunkReader,
    JournalReadCache,
    ReadEvents,
    ReadFailure,
)
from txbroker.edge.sessions.matching_records import Found, message_at, record_match, wanted
from txbroker.edge.sessions.session_merge import begun_filters
from txbroker.journal.zone_journal import JournalChunk
from txbroker.model.epoch_transition import FOREVER, EpochTransition
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.publish_run import MOST
from txbroker.model.topics import is_within
from txbroker.mqtt.session.cursor import Cursor, MergedPart, WaitingRecords
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.window import OutboundMessage, SessionLimits
from txbroker.mqtt.wire.message import OVERHEAD, Message

TURN = 8
"""Sessions fed in one turn, before others have their turn."""

TURN_FOR = 0.008
"""Seconds of a turn; a session with thousands of filters takes milliseconds for a message."""

STEP = 512
"""Messages of one chunk that are given to a session, or counted for it, at a time; at most."""

RARE = 16
"""The same for a session that takes runs: only records that are in none go one by one."""

RUN_BYTES = 1024 * 1024
"""Bytes of a run that is read for a session, before its last record."""

# In half the time of the constructor: each delivery makes one.
_place = partial(tuple.__new__, LogPosition)

_UNKNOWN = 1 << 62
"""Bytes; stands for a size without a known bound."""


@attrs.define(slots=True)
class _Excess:
    """Messages and bytes to drop before the rest is within the limits."""

    messages: int
    size: int


class CatchUp:
    """The catch-up of one edge's sessions; `again` calls `work` in another turn."""

    def __init__(
        self,
        parts: EdgeParts,
        *,
        zones: ResolverCache,
        reader: ChunkReader,
        limits: SessionLimits,
        met: Callable[[Iterable[EpochTransition]], None],
    ) -> None:
        """`met`: see `ReadEvents`."""
        self._zones = zones
        self._counters = parts.counters
        self.limits = limits
        self._again = parts.again
        self._reader = reader
        self._chunks = JournalReadCache(
            reader,
            parts.timers,
            ReadEvents(
                wake=self.wake,
                gone=self._give_up,
                late=lambda session, part: session.sender.defer(part),
                end=self._end_cursor,
                met=met,
            ),
        )
        self._hungry: dict[Session, None] = {}
        self._now = parts.timers.now
        self._until = 0.0  # of this turn

    # from the edge

    def wake(self, session: Session) -> None:
        """Schedule the session: it may have something to read, and room for it."""
        if session in self._hungry or not session.sender.is_hungry:
            return
        if not self._hungry:
            self._again()
        self._hungry[session] = None

    def work(self) -> None:
        """Feed some sessions; the others wait for the next turn."""
        self._until = self._now() + TURN_FOR
        for count in range(min(TURN, len(self._hungry))):
            if count and self._now() >= self._until:
                break
            session = next(iter(self._hungry))
            del self._hungry[session]
            if session.sink is not None:
                self._read_flights(session)
                self._feed(session)
        if self._hungry:
            self._again()

    def poll_cut_off(self, sessions: Iterable[Session]) -> None:
        """Ask, now and then, whether parts that were cut off can be read again."""
        waiting: dict[JournalId, list[Session]] = {}
        for session in sessions:
            for part in session.places.cut_off:
                waiting.setdefault(part, []).append(session)
        for part, those in waiting.items():
            offset = min(session.places.cut_off[part] for session in those)
            self._reader.read(part, offset, offset + 1, partial(self._resume_part, part, those))

    # from operators

    def distance(self, session: Session) -> int:
        """Return how many records lie behind the session's cursors; not all of them need match."""
        cursors = session.places.behind.values()
        return sum(max(self._end(cursor) - cursor.offset, 0) for cursor in cursors)

    # internal: messages in flight

    def _read_flights(self, session: Session) -> None:
        """Read the messages in flight that have to be sent again, in the order of sending."""
        if not session.sender.has_unread:
            return
        for part, flights in groupby(session.sender.unread(), key=lambda flight: flight[1].part):
            for packet_id, place in flights:
                chunk = self._chunks.behind(part, place.offset - 1, session)
                if chunk is not None:
                    session.sender.restore_packet(packet_id, message_at(chunk, place.offset))
                elif not self._chunks.is_unreachable(part):
                    return
                else:
                    session.sender.defer(part)
                    break

    # internal: limits

    def _end(self, cursor: Cursor) -> int:
        """Return the last offset that the edge knows of in the cursor's part."""
        if cursor.until is not None:
            return cursor.until
        route = self._zones.get(cursor.part.zone)
        position = None if route is None else route.position
        is_same = position is not None and position.epoch == cursor.part.epoch
        return position.offset if position is not None and is_same else 0

    def _excess(self, session: Session) -> _Excess | None:
        """Return the excess to drop; None: a chunk has to be read before that is known."""
        messages = -self.limits.messages
        size = -self.limits.size
        for cursor in list(session.places.behind.values()):  # a transition may add a cursor
            waiting = cursor.waiting
            if waiting is None:
                waiting = session.places.count(cursor, self._end(cursor))
            uncounted = waiting.uncounted(cursor.offset)
            is_known = not uncounted or waiting.rest is not None
            if not is_known and not self._count_chunk(session, cursor, waiting, is_counting=False):
                return None
            messages += waiting.messages + uncounted
            size += waiting.size
            if uncounted:
                size += (waiting.rest or 0) + uncounted * OVERHEAD
        if messages <= 0 and size <= 0:
            return _Excess(0, 0)
        return self._count(session)

    def _count(self, session: Session) -> _Excess | None:
        messages = -self.limits.messages
        size = -self.limits.size
        for cursor in list(session.places.behind.values()):
            waiting = cursor.waiting
            if waiting is None:
                return None
            if waiting.uncounted(cursor.offset) and not self._chunks.is_unreachable(cursor.part):
                if self._count_chunk(session, cursor, waiting, is_counting=True):
                    self.wake(session)
                return None
            messages += waiting.messages
            size += waiting.size
        return _Excess(max(messages, 0), max(size, 0))

    def _count_chunk(
        self, session: Session, cursor: Cursor, waiting: WaitingRecords, *, is_counting: bool
    ) -> bool:
        """
        Size up, or count, the next uncounted chunk; return False if the chunk has to be read first.
        """
        seen = max(waiting.seen, cursor.offset)
        chunk = self._chunks.behind(cursor.part, seen, session)
        if chunk is not None and chunk.last < waiting.end and not waiting.is_asked:
            waiting.is_asked = True
            self._chunks.forget(cursor.part, seen)
            chunk = self._chunks.behind(cursor.part, seen, session)
        if chunk is None:
            return self._chunks.is_unreachable(cursor.part)
        waiting.rest = chunk.rest if chunk.last >= waiting.end else _UNKNOWN
        if not is_counting:
            waiting.rest += chunk.records.stored.size_above(seen)
            return True
        found = wanted(session, cursor.part, chunk, seen)
        for _, offset, size, _ in islice(found, STEP):
            if offset <= waiting.end:
                waiting.add(size)
        waiting.seen = min(max(_before(found, chunk.through), seen), waiting.end)
        return True

    # internal: one session

    def _order(self, session: Session) -> None:
        """
        Add stops to the cursors of a session that moved here: ended parts go before their heirs.

        The part of such a cursor may have ended before the move. Where the session was here at the
        end, a stop already gives the offset.
        """
        cursors = session.places.behind
        behind = cursors.values()
        for ended in behind:
            if len(behind) < 2 or not self._has_ended(ended.part):
                continue
            for later in behind:
                has_stop = any(stop.part == ended.part for stop in later.stops)
                if not has_stop and self._goes_on_in(later.part, ended.part):
                    offset = max(later.offset, _begins_behind(ended, later.part, cursors))
                    later.stops += (LogPosition(ended.part, offset),)

    def _is_gated(self, session: Session, cursor: Cursor) -> bool:
        """True if another part must be read first."""
        is_late = session.sender.is_late(cursor.part) or cursor.must_wait(session.places.behind)
        return is_late or self._follows_cut(session, cursor)

    def _follows_cut(self, session: Session, later: Cursor) -> bool:
        """
        True if the session can read what lies before the cut at which the cursor's part begins.

        The session was current at the cut, and fell behind after it. The messages that waited in
        its window were discarded as its client left. At another node the two parts are read at
        different speeds.
        """
        behind = session.places.behind
        route = self._zones.get(later.part.zone) if len(behind) > 1 else None
        if route is None or route.epoch != later.part.epoch:
            return False
        for earlier in behind.values():
            start = route.start_offset(earlier.part)
            if start is not None and earlier.offset < start:
                is_followed = self._is_wanted(session, earlier.part.zone)
                end = self._end(earlier) if is_followed else 0
                has_more = not end or earlier.offset < end
                return has_more and not self._chunks.is_unreachable(earlier.part)
        return False

    def _has_ended(self, part: JournalId) -> bool:
        route = self._zones.get(part.zone)
        if route is not None:
            return route.epoch > part.epoch
        return self._zones.enclosing(part.zone).cuts is not None

    def _goes_on_in(self, part: JournalId, ended: JournalId) -> bool:
        if part.zone == ended.zone:
            return part.epoch > ended.epoch
        return is_within(ended.zone, part.zone) and not self._has_ended(part)

    def _feed(self, session: Session) -> None:
        self._order(session)
        worked = False
        for cursor in list(session.places.behind.values()):
            if not self._is_gated(session, cursor):
                worked = self._is_done(session, cursor) or worked
        excess = self._excess(session) if session.sender.has_room() else None
        if excess is None:
            return
        for cursor in list(session.places.behind.values()):
            if not session.sender.has_room():
                return
            if not self._is_gated(session, cursor):
                worked = self._advance(session, cursor, excess) or worked
        if worked:
            self.wake(session)

    def _is_done(self, session: Session, cursor: Cursor) -> bool:
        """True if the session has all of the part; from then on it takes live messages."""
        if cursor.until is not None:
            is_done = cursor.offset >= cursor.until
        else:
            route = self._zones.get(cursor.part.zone)
            position = None if route is None else route.position
            if route is None or position is None or position.epoch != cursor.part.epoch:
                return False
            if route.claims.read:
                return False  # records that wait for the claim still come, behind the position
            if route.is_over:
                return False  # its stream does not bring the rest of the part
            if not self._is_wanted(session, cursor.part.zone):
                return False  # no stream is followed for it: only a read finds the part's end
            # A cursor with a place in this part would not notice live messages that pass the place.
            # Nor would live messages wait for the parts of the stops.
            is_done = (
                cursor.offset >= position.offset
                and not any(stop.part in session.places.behind for stop in cursor.stops)
                and not any(
                    other.after is not None
                    and other.after.part == cursor.part
                    and other.after.offset > cursor.offset
                    for other in session.places.behind.values()
                )
                and self._is_followed(session, route)
            )
            if is_done:
                session.places.get_ahead(cursor.part, cursor.offset)
        if is_done:
            session.finish_part(cursor)
        return is_done

    def _advance(self, session: Session, cursor: Cursor, excess: _Excess) -> bool:
        """
        Give the session its messages of the next chunk; return False if the chunk has to be read
        first.
        """
        chunk = self._chunks.behind(cursor.part, cursor.offset, session)
        if chunk is None:
            return False
        if chunk.first - 1 > cursor.offset:
            self._counters.add("session.missed", chunk.first - 1 - cursor.offset)
            _record_drop(session, cursor.part, cursor.offset + 1, chunk.first - 1)
            cursor.offset = chunk.first - 1
        if chunk.is_closed:
            cursor.until = chunk.last
        is_whole = not (excess.messages > 0 or excess.size > 0)
        if is_whole and self._launch_run(session, cursor, chunk):
            return True
        self._deliver_chunk(session, cursor, chunk, excess)
        session.sender.send_queued()
        return True

    def _launch_run(self, session: Session, cursor: Cursor, chunk: JournalChunk) -> bool:
        """
        Launch the session's next records as a run; return False if each has to be looked at.

        The run ends where records begin, or end, that are not counted: they count together.
        """
        room, part, since = session.sender.run_room, cursor.part, cursor.offset
        if not room or not _is_plain(session, part, since):
            return False
        waiting, limit = cursor.waiting, min(cursor.limit(session.places.behind), chunk.through)
        if waiting is not None:
            limit = min([limit, *(end for end in (waiting.seen, waiting.end) if end > since)])
        stored = chunk.records.stored
        run, through = stored.run(
            session.subscriptions, since, limit, most=min(room, MOST), room=RUN_BYTES
        )
        if run is not None:
            session.sender.launch_run(part, run)
            if waiting is not None:
                waiting.subtract(run.offset(0), run.size, run.count)
        cursor.offset = max(since, through)
        return cursor.offset > since

    def _deliver_chunk(
        self, session: Session, cursor: Cursor, chunk: JournalChunk, excess: _Excess
    ) -> None:
        limit = min(cursor.limit(session.places.behind), chunk.through)
        since, dropped = cursor.offset, 0
        part, records, waiting = cursor.part, chunk.records, cursor.waiting
        found = wanted(session, part, chunk, since)
        most = RARE if session.sender.takes_runs else STEP
        for place, offset, size, qos in islice(found, most):
            if offset > limit:
                break
            if excess.messages > 0 or excess.size > 0:
                excess.messages -= 1
                excess.size -= size
                session.sender.drop(qos)
                dropped = offset
            elif not _queue(session, records[place].message, qos, _place((part, offset))):
                limit = offset - 1
                break
            if waiting is not None:
                waiting.subtract(offset, size)
            if session.is_special and self._now() >= self._until:
                limit = min(limit, offset)
                break
        else:
            limit = _before(found, limit)
        _record_drop(session, part, since + 1, dropped)
        cursor.offset = max(cursor.offset, limit)

    def _end_cursor(self, session: Session, part: JournalId) -> None:
        """
        End the cursor of a part without more records, if the session wants nothing of that zone.

        Zones below may serve all its filters by now. Then nothing more comes from this zone.
        """
        cursor = session.places.behind.get(part)
        if cursor is None or self._is_wanted(session, part.zone):
            return
        if not self._zones.leads_to(part.zone):
            # A root that lost its disk forgot the zone, whose owner accepts records meanwhile.
            session.set_aside(part, cursor.offset)
        else:
            # If the stream of the part begins here after all, the session has the records up to
            # this offset. Unmarked, they would be delivered twice.
            session.places.get_ahead(part, cursor.offset)
            session.finish_part(cursor)

    def _is_wanted(self, session: Session, apex: str) -> bool:
        """True if the zone may have messages for the session from now on."""
        return any(self._zones.may_concern(f, apex) for f in session.subscriptions)

    def _is_followed(self, session: Session, route: Route) -> bool:
        """
        True if the owner has confirmed all filters of the session that concern the zone.

        The filters of a session that moved here are not confirmed yet. Until then the stream
        position covers the filters of other sessions only.
        """
        return all(
            route.interest.has_confirmed(topic_filter)
            or route.apex in subscription.pending
            or not self._zones.may_concern(topic_filter, route.apex)
            for topic_filter, subscription in session.subscriptions.items()
        )

    def _give_up(self, session: Session, part: JournalId, why: ReadFailure) -> None:
        """End the session's reads of a part: no node has the part any more, or it is cut off."""
        cursor = session.places.behind.get(part)
        come = session.places.taken.get(part, 0) if cursor is None else cursor.offset
        lost = frozenset(place.offset for _, place in session.sender.unread() if place.part == part)
        for packet_id, place in session.sender.unread():
            if place.part == part:
                session.sender.restore_packet(packet_id, None)
        offsets = [offset - 1 for offset in lost] + ([] if cursor is None else [cursor.offset])
        if why is ReadFailure.CUT_OFF and offsets:
            if lost:
                # The messages behind those in flight may have been answered.
                filters = begun_filters(session, part)
                session.places.note_had(part, MergedPart(through=come, filters=filters, left=lost))
            session.set_aside(part, min(offsets))
            self._counters.add("session.part_cut_off")
        elif cursor is not None:
            _record_drop(session, part, cursor.offset + 1, FOREVER)
            cursor.until = cursor.offset
            session.finish_part(cursor)
            self._counters.add("session.part_gone")

    def _resume_part(
        self, part: JournalId, sessions: list[Session], found: JournalChunk | ReadFailure
    ) -> None:
        if found in (ReadFailure.UNREACHABLE, ReadFailure.CUT_OFF):
            return
        for session in sessions:
            if part in session.places.cut_off:
                session.places.resume(part, is_kept=isinstance(found, JournalChunk))
                if session.sink is not None:
                    self.wake(session)


def _is_plain(session: Session, part: JournalId, since: int) -> bool:
    """True if the session gets all matching records of the part behind this offset."""
    return part not in session.places.had and all(
        s.qos and part.zone not in s.pending and s.starts.get(part, 0) <= since
        for s in session.subscriptions.values()
    )


def _queue(session: Session, message: Message, qos: int, place: LogPosition) -> bool:
    """Queue a record for the session; return False if the session has no room for it."""
    if message.expiry == 0:
        session.count_expired(1)
        return True
    if not session.is_special:
        return session.sender.queue(OutboundMessage(message, qos, False, place))
    match = record_match(session, place, message)
    if match is None:
        return True  # its own message, which it does not want
    qos = min(match.subscription.qos, message.qos)
    retain = match.is_as_published and message.retain
    entry = OutboundMessage(message, qos, retain, place, match.identifiers)
    return not qos or session.sender.queue(entry)


def _before(found: Iterator[Found], limit: int) -> int:
    """Return the offset before the next record found, or the limit."""
    left = next(found, None)
    return limit if left is None else min(limit, left[1] - 1)


def _record_drop(session: Session, part: JournalId, first: int, last: int) -> None:
    """
    Record that the session does not get its messages in this range; no-op if `last` < `first`.
    """
    recording = session.watcher.recording
    if recording is not None and not session.clean:
        recording.dropped(session.client_id, part, first, last)


def _begins_behind(cursor: Cursor, part: JournalId, behind: Mapping[JournalId, Cursor]) -> int:
    """Return the offset of `part` that the session has to pass before it reads at the cursor."""
    known: Cursor | None = cursor
    while known is not None and known.after is not None:
        if known.after.part == part:
            return known.after.offset
        known = behind.get(known.after.part)
    return 0
