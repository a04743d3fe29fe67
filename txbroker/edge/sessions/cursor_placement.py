"""
The place at which a session's cursor begins in a part, and the sessions that need one there.

A cursor begins at a place that the session has reached, and never before a record that the session
has. Unread records that come first stop it: an earlier part (`stops`), or a place of that part
(`after`).
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.routing.route import Route
from txbroker.edge.sessions.catch_up import CatchUp
from txbroker.edge.sessions.interests import Interests
from txbroker.edge.sessions.low_water import LowWater
from txbroker.edge.sessions.session_store import SessionStore
from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.topics import is_sys, may_match_within
from txbroker.mqtt.session.cursor import Cursor
from txbroker.mqtt.session.session import Session


class CursorPlacement:
    """Begins cursors of one edge's `sessions`, stores them, and wakes the catch-up of clients."""

    def __init__(
        self,
        sessions: dict[str, Session],
        *,
        zones: ResolverCache,
        interests: Interests,
        session_store: SessionStore,
        backlog: CatchUp,
        low_water: LowWater,
    ) -> None:
        self._sessions = sessions
        self._zones = zones
        self._interests = interests
        self._session_store = session_store
        self._backlog = backlog
        self._low_water = low_water

    # which sessions

    def all(self) -> Iterable[Session]:
        """Return the sessions; callers may add and end some meanwhile."""
        return list(self._sessions.values())

    def touched(self, apex: str) -> list[Session]:
        """Return the sessions that have a filter that may match within the apex."""
        filters = self._interests.filters_of(apex)
        # `isdisjoint` walks over the shorter set, and stops at the first common filter.
        return [s for s in self.all() if not s.subscriptions.keys().isdisjoint(filters)]

    def interested(self, apex: str) -> list[Session]:
        """Return the sessions with a filter for the apex whose zone has confirmed the filter."""
        return [s for s in self.touched(apex) if self.is_interested(s, apex)]

    def is_interested(self, session: Session, apex: str) -> bool:
        """True if a filter may match within the apex, whose zone has confirmed the filter."""
        return any(
            may_match_within(topic_filter, apex) and apex not in subscription.pending
            for topic_filter, subscription in session.subscriptions.items()
        )

    def covers(self, session: Session, route: Route) -> bool:
        """True if a filter of the session matches topics of the zone that no zone below serves."""
        return any(
            self._zones.is_covered(topic_filter, route) and route.apex not in subscription.pending
            for topic_filter, subscription in session.subscriptions.items()
            if not is_sys(topic_filter)
        )

    def follows(self, session: Session, transition: EpochTransition) -> bool:
        """True if the zone that the topics left had confirmed a filter of the session for them."""
        zone = transition.left.part.zone
        return any(
            may_match_within(topic_filter, transition.apex) and zone not in subscription.pending
            for topic_filter, subscription in session.subscriptions.items()
        )

    # begin

    def start(self, session: Session, cursor: Cursor) -> None:
        """
        Begin the cursor unless the session is already behind in that part, or has set it aside.
        """
        if cursor.part not in session.places.behind and cursor.part not in session.places.cut_off:
            cursor.offset = max(cursor.offset, session.places.taken.get(cursor.part, 0))
            self.put(session, cursor)
            if not session.clean:
                self._session_store.save(session, urgent=False)
            if session.sink is not None:
                self._backlog.wake(session)

    def put(self, session: Session, cursor: Cursor) -> None:
        """
        Set the session behind at the cursor, and lower the marks of the cursor's part to it.

        The stream may have passed the place long ago: owners trim what no mark retains.
        """
        session.places.add(cursor)
        self._low_water.lower((LogPosition(cursor.part, cursor.offset),))

    def start_after(self, session: Session, left: LogPosition, part: JournalId) -> None:
        """Begin a cursor in a part that began when an earlier part had come to the place `left`."""
        earlier = session.places.behind.get(left.part)
        # A stop at or before that place applies to the part as well. Otherwise the part's records
        # would pass those of the stop's part.
        stops = () if earlier is None else earlier.stops
        before = tuple(
            LogPosition(stop.part, 0)
            for stop in stops
            if stop.offset <= left.offset
            and (stop.part.zone != part.zone or stop.part.epoch < part.epoch)
        )
        self.start(session, Cursor(part, 0, None, left, before))

    def start_anew(self, session: Session, part: JournalId, followed: Iterable[JournalId]) -> None:
        """Begin a cursor in a part without predecessor, if the session had an earlier one."""
        begun = (p for s in session.subscriptions.values() for p in s.starts)
        places = (*session.places.behind, *session.places.taken, *begun, *followed)
        earlier = {p for p in places if p.zone == part.zone and p.epoch < part.epoch}
        if earlier:
            stops = tuple(LogPosition(p, 0) for p in earlier if p in session.places.behind)
            self.start(session, Cursor(part, 0, stops=stops))

    def start_returned(self, session: Session, entered: LogPosition, here: int | None) -> None:
        """
        Begin a cursor at the place where topics came back to an enclosing zone.

        `here`: how far this edge followed the part, if it did.
        """
        # Records of other topics in that part may lie before the place, and not have come yet. A
        # cursor at the place would skip them.
        route = self._zones.get(entered.part.zone)
        offset = entered.offset
        if here is not None and route is not None and self.covers(session, route):
            offset = min(here, offset)
        self.start(session, Cursor(entered.part, offset))

    def gate_at(self, session: Session, ended: JournalId, place: LogPosition) -> None:
        """Stop the session at the place until it has read the ended part."""
        self.start(session, Cursor(place.part, place.offset))
        later, earlier = session.places.behind.get(place.part), session.places.behind.get(ended)
        if later is None or earlier is None:
            return  # one part was set aside, or the session has passed it
        offset = max(later.offset, place.offset)
        if earlier.after is not None and earlier.after.part == place.part:
            offset = max(offset, earlier.after.offset)  # else both cursors wait for one another
        stop = LogPosition(ended, offset)
        if stop in later.stops:
            return
        later.stops += (stop,)
        if not session.clean:
            self._session_store.save(session, urgent=False)

    def record_start(self, session: Session, filters: Set[str], place: LogPosition) -> None:
        """
        Note that a session follows, from `place` on, a zone that was unknown when it subscribed.

        Without a start the session would count as having all earlier records. A merge with an older
        session of the client would then omit the records that the older session waits for.
        """
        if session.has_met(place.part):
            return
        part, offset = place
        for topic_filter, subscription in session.subscriptions.items():
            is_known = part.zone in subscription.pending or part in subscription.starts
            if topic_filter not in filters or is_known:
                continue
            if not self._interests.is_asked(session, topic_filter, part.zone):
                subscription.exclude(part, offset)
        self._session_store.save_all(session)


def has_begun(session: Session, apex: str, filters: Set[str]) -> bool:
    """True if the zone has confirmed one of these filters to the session."""
    subscriptions = session.subscriptions
    return not subscriptions.keys().isdisjoint(filters) and any(
        apex not in subscription.pending
        for topic_filter, subscription in subscriptions.items()
        if topic_filter in filters
    )
