"""
Where sessions stand in the journals of the zones: what is left to a cursor, and when.

An absent durable session has a cursor in every part that may have something for it: it gets one
when its client leaves, and when a part appears later. A client that is here needs one only where
its session is behind. Here is also what follows from the tree of zones: where one is cut or comes
back, what lies before that point is taken before what lies behind it (protocol rules 7 and 13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.routing.route import Route, StreamPosition
from txbroker.edge.sessions.catch_up import CatchUp
from txbroker.edge.sessions.interests import Interests
from txbroker.edge.sessions.low_water import LowWater
from txbroker.edge.sessions.session_store import SessionStore
from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.timers import Timers
from txbroker.model.topics import is_sys, may_match_within
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.session.cursor import Cursor
from txbroker.mqtt.session.session import Session

ENDED = 1_000
"""Parts that have ended, and of which no heir has told yet."""


class SessionCursors:
    """
    The cursors of one edge's `sessions`. `followed` are the parts that were followed before this
    process began, and how far.
    """

    def __init__(
        self,
        sessions: dict[str, Session],
        *,
        zones: ResolverCache,
        interests: Interests,
        timers: Timers,
        keeper: SessionStore,
        backlog: CatchUp,
        low_water: LowWater,
    ) -> None:
        self.followed: dict[JournalId, int] = {}
        self._found: set[JournalId] = set()  # see `on_found`; as many as this node delegates
        self._sessions = sessions
        self._zones = zones
        self._interests = interests
        self._timers = timers
        self._keeper = keeper
        self._backlog = backlog
        self._low_water = low_water
        self._met: dict[JournalId, int] = {}
        self._ended: dict[JournalId, int] = {}

    # from the clients

    def load(self, make: Callable[[str], Session]) -> list[Session]:
        """After a start: the durable sessions, their clients away; `make` gives a new one."""
        self.followed = self._keeper.positions()
        return self._keeper.load(make)

    def arrive(self, session: Session) -> None:
        """Its client is here."""
        self._backlog.wake(session)

    def leave(self, session: Session) -> None:
        """Its client is away: from here on a durable session costs a position for each zone."""
        for route in self._zones:
            if route.position is None or route.part in session.places.behind:
                continue
            if not session.subscriptions.keys().isdisjoint(self._interests.of_zone(route)):
                offset = max(route.position.offset, session.places.taken.get(route.part, 0))
                session.places.begin(Cursor(route.part, offset))
        self._keeper.note_life(session)
        self._keeper.save(session, urgent=False)

    # from the edge

    def is_late(self, predecessor: LogPosition, part: JournalId) -> bool:
        """
        Whether the part, which goes on from `predecessor`, began while this node was away: what was
        followed up to that place, or not that far, has to be followed on in the part.
        """
        if part in self.followed or part in self._found:
            return False
        place = predecessor.offset
        met = self._met.get(predecessor.part, place)
        if met >= place and self.followed.get(predecessor.part, place + 1) <= place:
            return True
        if met > place:
            return False
        # It was cut while its stream was followed here, which says so itself unless it broke.
        above = self._zones.get(predecessor.part.zone)
        position = None if above is None or above.port is not None else above.position
        return position is not None and position.offset <= place

    def behind_in(self, route: Route) -> list[Session]:
        """The sessions that are behind in what the route follows."""
        return [s for s in self._all() if s.is_behind and route.part in s.places.behind]

    def on_cut(self, route: Route, below: Route, behind: Iterable[Session]) -> None:
        """
        The stream of `route` says that `below` is served elsewhere from here on.

        Sessions that are `behind` there read on to this point before anything from below. Whoever
        is told of thousands of cuts looks for these sessions once.
        """
        assert route.position is not None
        here = LogPosition(route.part, route.position.offset)
        for session in behind:
            if self._wants(session, below.apex):
                self._begin_after(session, here, below.part)

    def on_restored(self, part: JournalId) -> None:
        """The zone's node was restored: whoever is behind in an earlier part goes on in this."""
        for session in self._touched(part.zone):
            self.go_on(session, part)

    def go_on(self, session: Session, part: JournalId) -> None:
        """A session that is behind in an earlier part of the zone is behind in this one, too."""
        behind = session.places.behind
        earlier = [p for p in behind if p.zone == part.zone and p.epoch < part.epoch]
        if earlier and self._wants(session, part.zone):
            stops = tuple(LogPosition(p, 0) for p in earlier)
            self._begin(session, Cursor(part, 0, stops=stops))

    def on_root_lost(self, part: JournalId) -> None:
        """
        A root lost its disk while this node was down, and goes on in this part, behind nothing.

        Who has come anywhere in an earlier part of it has all of this one still to come.
        """
        for session in self._touched(part.zone):
            if self._wants(session, part.zone):
                begun = (p for s in session.subscriptions.values() for p in s.starts)
                places = (*session.places.behind, *session.places.taken, *begun, *self.followed)
                earlier = {p for p in places if p.zone == part.zone and p.epoch < part.epoch}
                if earlier:
                    stops = tuple(LogPosition(p, 0) for p in earlier if p in session.places.behind)
                    self._begin(session, Cursor(part, 0, stops=stops))

    def on_found(self, route: Route, cut: ZoneCut, predecessor: LogPosition | None) -> None:
        """
        This node had forgotten that `cut` is another node's: its data is a copy from before that.

        Sessions of the copy may have followed the zone, or not: they have all of it again, behind
        what the copy has of its topics. A session that began since has missed nothing.
        """
        part = JournalId(cut.apex, cut.epoch)
        self._found.add(part)
        for session in self._touched(cut.apex):
            is_older = any(
                may_match_within(topic_filter, cut.apex) and route.part not in subscription.starts
                for topic_filter, subscription in session.subscriptions.items()
            )
            if is_older and self._wants(session, cut.apex):
                self._begin_after(session, predecessor or LogPosition(route.part, 0), part)

    def on_inherited(self, route: Route, predecessor: LogPosition) -> None:
        """The zone of `route` was cut from one that is followed here, while that was away."""
        above = self._zones.get(predecessor.part.zone)
        come = above.position if above is not None and above.part == predecessor.part else None
        is_late = come is not None and come.offset < predecessor.offset
        for session in self._touched(route.apex):
            if not self._wants(session, route.apex):
                continue
            earlier = session.places.behind.get(predecessor.part)
            if earlier is None and is_late and come is not None:
                earlier = Cursor(predecessor.part, come.offset)
                self._begin(session, earlier)
            is_behind = earlier is not None and earlier.offset < predecessor.offset
            if is_behind or session.sink is None:
                self._begin_after(session, predecessor, route.part)

    def on_renewed(
        self, route: Route, known: StreamPosition, epoch: int, predecessor: LogPosition | None
    ) -> None:
        """
        The zone is served at another epoch, and its earlier part was followed up to `known`.

        What that has above comes before the first record of the new one; so does what the zone of
        `predecessor` had of it, where it was part of that one meanwhile.
        """
        before, after = JournalId(route.apex, known.epoch), JournalId(route.apex, epoch)
        come = None
        if predecessor is not None:
            above = self._zones.get(predecessor.part.zone)
            come = above.position if above is not None and above.part == predecessor.part else None
        for session in self._touched(route.apex):
            if not self._wants(session, route.apex):
                continue
            self._begin(session, Cursor(before, known.offset))
            self._begin(session, Cursor(after, 0, stops=(LogPosition(before, 0),)))
            if predecessor is None or predecessor.part.zone == route.apex:
                continue
            if come is not None and come.offset < predecessor.offset:
                self._begin(session, Cursor(predecessor.part, come.offset))
            if after in session.places.behind and predecessor.part in session.places.behind:
                session.places.behind[after].after = predecessor

    def on_ended(self, route: Route, heir: Route, *, is_whole: bool) -> None:
        """
        The part of `route` is closed; `heir` has the zone from here on.

        Who is behind in the part reads it to its end before anything newer from the heir. That is
        everybody, where the stream of the part did not tell its end itself (`is_whole`).
        """
        ended = route.part
        if route.position is None:
            if ended in self.followed:  # earlier: who wanted it has a cursor there since the start
                self._keeper.on_ended(ended)
            return
        offset = route.position.offset
        if not is_whole and not route.is_over:
            for session in self._touched(route.apex):
                if self._wants(session, route.apex):
                    self._begin(session, Cursor(ended, offset))
        for session in self._all():
            cursor = session.places.behind.get(ended)
            if cursor is None:
                session.places.forget_part(ended)
                continue
            cursor.until = offset if is_whole else None
            cursor.is_over = True
            if not route.is_over and heir.position is not None:
                self._gate_at(session, ended, LogPosition(heir.part, heir.position.offset))
        if route.is_over:
            self._keeper.on_ended(ended)
            return
        # Where it goes on is still to be told: that may be several parts away.
        self._ended[ended] = offset
        self._keeper.on_closed(ended, offset)
        while len(self._ended) > ENDED:
            self._forget_ended(next(iter(self._ended)))

    def meet(self, passage: EpochTransition, *, at_end: bool) -> None:
        """A part that is read comes by a passage: whoever is behind there follows it."""
        for session in self._touched(passage.apex):
            self.follow(session, passage, at_end=at_end)

    def on_passage(self, passage: EpochTransition, *, is_alone: bool) -> None:
        """
        Topics went on in another part.

        Who is behind in the part that they left is behind in that one, too. So is everybody else,
        unless the passage `is_alone` and the streams of the two parts follow one another here: that
        of a part that ends did not come to its end, if it did not say so.
        """
        left = passage.left
        stood = self._stood_at(left.part)
        if is_alone and (left.part in self._ended or not passage.is_return):
            stood = None
        for session in self._touched(passage.apex):
            if stood is not None and stood <= left.offset and self._follows(session, passage):
                if left.part in self._ended and left.part not in session.places.behind:
                    self._go_back(session, passage.entered)  # it has all of the part
                    continue
                self._begin(session, Cursor(left.part, stood))
            self.follow(session, passage, at_end=True)
        if passage.is_return:
            self._forget_ended(left.part)

    def follow(self, session: Session, passage: EpochTransition, *, at_end: bool) -> bool:
        """
        Whether the session is to read on where the topics went on; then it is behind there.

        `at_end`: also one that had all up to the place that they left.
        """
        left, entered = passage.left, passage.entered
        if not self._wants(session, passage.apex):
            return False
        earlier = session.places.behind.get(left.part)
        offset = session.places.cut_off.get(left.part) if earlier is None else earlier.offset
        if offset is None or offset > left.offset or (offset == left.offset and not at_end):
            return False
        if not passage.is_return:
            self._begin_after(session, left, entered.part)
            return entered.part in session.places.behind
        self._go_back(session, entered)
        self._gate_at(session, left.part, entered)
        return entered.part in session.places.behind

    def take_up(self, part: JournalId) -> None:
        """
        The node that has the part is found. Sessions that have set it aside read on in it before
        anything comes live: they would pass over what lies between, and be given the rest twice.
        """
        for session in self._all():
            if part in session.cut_off:
                session.places.take_up(part, is_kept=True)

    def on_online(self, route: Route) -> None:
        """The stream of a zone flows: who waited for its part may read on."""
        assert route.position is not None
        part, began = route.part, route.began
        start = route.position.offset
        if began is not None:
            start = began.offset if began.epoch == part.epoch else 0
        if part not in self._met:
            self._met[part] = route.position.offset
            filters = self._interests.of_zone(route)
            for session in self._all():
                if not _has_begun(session, route.apex, filters):
                    continue
                if began is None and not session.clean:
                    self._note_start(session, filters, LogPosition(part, start))
                if session.sink is None:
                    self._begin(session, Cursor(part, start))
        self.wake()

    def wake(self) -> None:
        """Who is behind may read on."""
        for session in self._all():
            if session.sink is not None:
                self._backlog.wake(session)

    # from readers

    def followed_now(self) -> dict[JournalId, int]:
        """How far this edge follows each part; a session that is not behind there is as far."""
        return {r.part: r.position.offset for r in self._zones if r.position is not None}

    # from the node

    def checkpoint(self) -> None:
        """Once a second: one durable position for the sessions that are not behind."""
        self._keeper.checkpoint(
            (route.apex, route.position.epoch, route.position.offset)
            for route in self._zones
            if route.position is not None
        )

    # internal

    def _all(self) -> Iterable[Session]:
        return list(self._sessions.values())

    def _begin(self, session: Session, cursor: Cursor) -> None:
        """The session is behind there, if it is not already."""
        if cursor.part not in session.places.behind and cursor.part not in session.places.cut_off:
            cursor.offset = max(cursor.offset, session.places.taken.get(cursor.part, 0))
            session.places.begin(cursor)
            self._low_water.lower((LogPosition(cursor.part, cursor.offset),))
            if not session.clean:
                self._keeper.save(session, urgent=False)
            if session.sink is not None:
                self._backlog.wake(session)

    def _note_start(self, session: Session, filters: Set[str], place: LogPosition) -> None:
        """
        A zone that was not known here when the session subscribed is followed from the place on.

        Without a start the session would pass for one that had all before it, too, and what an
        older session of its client waits for would be left out when the two become one.
        """
        if session.has_met(place.part):
            return
        part, offset = place
        for topic_filter, subscription in session.subscriptions.items():
            is_known = part.zone in subscription.pending or part in subscription.starts
            if topic_filter not in filters or is_known:
                continue
            if not self._interests.is_asked(session, topic_filter, part.zone):
                subscription.begin(part, offset)
        self._keeper.save_all(session)

    def _begin_after(self, session: Session, left: LogPosition, part: JournalId) -> None:
        """The session is behind in a part that began when an earlier one had come to that place."""
        earlier = session.places.behind.get(left.part)
        # What is to be taken before anything behind the place is to be taken before the part, too.
        stops = () if earlier is None else earlier.stops
        before = tuple(
            LogPosition(stop.part, 0)
            for stop in stops
            if stop.offset <= left.offset
            and (stop.part.zone != part.zone or stop.part.epoch < part.epoch)
        )
        self._begin(session, Cursor(part, 0, None, left, before))

    def _go_back(self, session: Session, entered: LogPosition) -> None:
        """Topics came back to a zone around theirs, at that place."""
        # What of the part is not of these topics may lie before them, and not have come yet.
        route = self._zones.get(entered.part.zone)
        here = self._stood_at(entered.part)
        offset = entered.offset
        if here is not None and route is not None and self._covers(session, route):
            offset = min(here, offset)
        self._begin(session, Cursor(entered.part, offset))

    def _gate_at(self, session: Session, ended: JournalId, place: LogPosition) -> None:
        """Nothing behind the place is taken before the ended part is."""
        self._begin(session, Cursor(place.part, place.offset))
        later, earlier = session.places.behind.get(place.part), session.places.behind.get(ended)
        if later is None or earlier is None:
            return  # one was cut off itself, the other is passed
        offset = max(later.offset, place.offset)
        if earlier.after is not None and earlier.after.part == place.part:
            offset = max(offset, earlier.after.offset)  # up to there it waits for the later one
        stop = LogPosition(ended, offset)
        if stop in later.stops:
            return
        later.stops += (stop,)
        if not session.clean:
            self._keeper.save(session, urgent=False)

    def _stood_at(self, part: JournalId) -> int | None:
        """How far this edge followed the part, if it did and may again."""
        route = self._zones.get(part.zone)
        if route is not None and route.position is not None and route.part == part:
            return route.position.offset
        return self._ended.get(part)

    def _forget_ended(self, part: JournalId) -> None:
        if self._ended.pop(part, None) is not None:
            self._keeper.on_ended(part)

    def _follows(self, session: Session, passage: EpochTransition) -> bool:
        """Whether the topics' zone, as it was before the passage, had confirmed a filter of it."""
        zone = passage.left.part.zone
        return any(
            may_match_within(topic_filter, passage.apex) and zone not in subscription.pending
            for topic_filter, subscription in session.subscriptions.items()
        )

    def _touched(self, apex: str) -> list[Session]:
        """Those that have a filter that may match within the apex."""
        filters = self._interests.filters_of(apex)
        # The shorter of the two is gone through, until one is found.
        return [s for s in self._all() if not s.subscriptions.keys().isdisjoint(filters)]

    def _covers(self, session: Session, route: Route) -> bool:
        """Whether the session wants something of the zone that no zone below it serves."""
        return any(
            self._zones.is_covered(topic_filter, route) and route.apex not in subscription.pending
            for topic_filter, subscription in session.subscriptions.items()
            if not is_sys(topic_filter)
        )

    def _wants(self, session: Session, apex: str) -> bool:
        return any(
            may_match_within(topic_filter, apex) and apex not in subscription.pending
            for topic_filter, subscription in session.subscriptions.items()
        )


def _has_begun(session: Session, apex: str, filters: Set[str]) -> bool:
    """True if the zone has confirmed one of these to the session."""
    subscriptions = session.subscriptions
    return not subscriptions.keys().isdisjoint(filters) and any(
        apex not in subscription.pending
        for topic_filter, subscription in subscriptions.items()
        if topic_filter in filters
    )
