"""
The places of sessions in the journals of the zones: what is left to a cursor, and when.

An absent durable session has a cursor in every part that may have something for it. The session
gets one when its client leaves, and when a part appears later. A client that is here needs one only
where its session is behind. The module also follows the tree of zones. Where a zone is cut or comes
back, records before that point precede the records behind it (protocol rules 7 and 13).

A session is live in a part if the edge's stream position is its own. It is behind if it has a
cursor. Or it has set the part aside. A cursor begins where the session stands, reads on, and goes
when it meets the stream. The position that is durable follows the stream a second later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.routing.route import Route
from txbroker.edge.routing.zone_claims import StreamPosition
from txbroker.edge.sessions.catch_up import CatchUp
from txbroker.edge.sessions.cursor_placement import CursorPlacement, has_begun
from txbroker.edge.sessions.interests import Interests
from txbroker.edge.sessions.low_water import LowWater
from txbroker.edge.sessions.session_checks import check_places
from txbroker.edge.sessions.session_store import SessionStore
from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.invariant import holds, ordered
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.topics import may_match_within
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.session.cursor import Cursor
from txbroker.mqtt.session.session import Session

ENDED = 1_000
"""
Ended parts for which no owner has announced the part that continues them; older ones are forgotten.
"""


class SessionCursors:
    """
    The cursors of one edge's `sessions`. `followed` are the parts that were followed before this
    process began, and how far.

    Invariant: the position that is kept <= the position of the stream, in the node's own zone.
    """

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
        self.followed: dict[JournalId, int] = {}
        # see `on_forgotten_cut`; at most as many as this node delegates
        self._found: set[JournalId] = set()
        # see `on_unseen_cut`; until their owners are linked, or they end
        self._unseen: set[JournalId] = set()
        self._sessions = sessions
        self._zones = zones
        self._interests = interests
        self._session_store = session_store
        self._backlog = backlog
        self._placement = CursorPlacement(
            sessions,
            zones=zones,
            interests=interests,
            session_store=session_store,
            backlog=backlog,
            low_water=low_water,
        )
        self._met: dict[JournalId, int] = {}
        self._ended: dict[JournalId, int] = {}

    # from the clients

    def load(self, make: Callable[[str], Session]) -> list[Session]:
        """
        Load the durable sessions after a start, with their clients away; `make` gives a new
        session.
        """
        self.followed = self._session_store.stored.load()
        return self._session_store.load(make)

    def on_connect(self, session: Session) -> None:
        """Wake the session's catch-up: the client is connected."""
        self._backlog.wake(session)

    def on_disconnect(self, session: Session) -> None:
        """
        Begin a cursor in each zone that serves the session: the client has left.

        From here on a durable session costs one position for each zone.
        """
        for route in self._zones:
            if route.position is None:
                continue
            # This may bring deliveries, which the session leaves to a cursor.
            filters = self._interests.of_zone(route)
            if route.part in session.places.behind or self._awaits(session, route):
                continue
            if not session.subscriptions.keys().isdisjoint(filters):
                offset = max(route.position.offset, session.places.taken.get(route.part, 0))
                self.put(session, LogPosition(route.part, offset))
        self._session_store.mark_seen(session)
        self._session_store.save(session, urgent=False)

    # from subscriptions

    def put(self, session: Session, place: LogPosition) -> None:
        """Set the session behind at the place, where it was not behind in that part."""
        self._placement.put(session, Cursor(place.part, place.offset))

    # from the edge

    def is_late(self, predecessor: LogPosition, part: JournalId) -> bool:
        """
        True if the part, which continues after `predecessor`, began while this node was away.

        The edge had followed the predecessor up to that place, or less far. So sessions have to
        read on in the part.
        """
        if part in self.followed or part in self._found:
            return False
        if part in self._unseen:
            self._unseen.discard(part)
            return True
        place = predecessor.offset
        met = self._met.get(predecessor.part, place)
        if met >= place and self.followed.get(predecessor.part, place + 1) <= place:
            return True
        if met > place:
            return False
        # The edge followed the predecessor's stream at the cut. That stream announces the cut
        # itself, unless its link broke.
        above = self._zones.get(predecessor.part.zone)
        position = None if above is None or above.port is not None else above.position
        return position is not None and position.offset <= place

    def all(self) -> Iterable[Session]:
        """Return the sessions; callers may add and end some meanwhile."""
        return self._placement.all()

    def is_new(self, part: JournalId) -> bool:
        """True if no session here can have followed the part, before a cut leads to it."""
        return part not in self.followed and part not in self._ended

    def behind_in(self, route: Route) -> list[Session]:
        """Return the sessions that are behind in the part that the route follows."""
        return [s for s in self._placement.all() if s.is_behind and route.part in s.places.behind]

    def on_cut(self, route: Route, below: Route, behind: Iterable[Session]) -> None:
        """
        Begin cursors in the zone of `below`: the stream of `route` announces that another node
        serves it.

        Sessions that are `behind` in the route's part read up to this offset before any record from
        below. A caller with thousands of cuts looks these sessions up once. Where the stream from
        below came before its cut, all sessions are behind.
        """
        assert route.position is not None
        here = LogPosition(route.part, route.position.offset)
        for session in behind:
            if self._placement.is_interested(session, below.apex):
                self._placement.start_after(session, here, below.part)

    def on_unseen_cut(self, route: Route, below: Route) -> None:
        """
        Begin cursors where the stream of `route` stands: it is away, and the resolver told a cut.

        The filters move to the zone of `below`. So no stream brings what lies before the cut.
        """
        assert route.position is not None
        for session in self._placement.interested(below.apex):
            if self._placement.is_interested(session, route.apex):
                self._unseen.add(below.part)
                self._placement.start(session, Cursor(route.part, route.position.offset))

    def on_restored(self, part: JournalId) -> None:
        """
        Begin cursors in the part for sessions that are behind in an earlier part: the node was
        restored.
        """
        for session in self._placement.touched(part.zone):
            self.follow_part(session, part)

    def follow_part(self, session: Session, part: JournalId) -> None:
        """
        Begin a cursor in the part if the session is behind in an earlier part of the same zone.
        """
        behind = session.places.behind
        earlier = [p for p in behind if p.zone == part.zone and p.epoch < part.epoch]
        if earlier and self._placement.is_interested(session, part.zone):
            stops = tuple(LogPosition(p, 0) for p in earlier)
            self._placement.start(session, Cursor(part, 0, stops=stops))

    def on_root_lost(self, part: JournalId) -> None:
        """
        Begin cursors in a part without predecessor: a root lost its disk while this node was down.

        A session with any offset in an earlier part of the zone reads this part from its beginning.
        """
        for session in self._placement.interested(part.zone):
            self._placement.start_anew(session, part, self.followed)

    def on_forgotten_cut(self, route: Route, cut: ZoneCut, predecessor: LogPosition | None) -> None:
        """
        Begin cursors in the zone of `cut`, which this node had forgotten to be another node's.

        The node's data is a copy from before the delegation. Sessions of the copy may have followed
        the zone or not. Older sessions read the whole part, behind the records that the copy has of
        its topics. A session that began after the restore has missed nothing.
        """
        part = JournalId(cut.apex, cut.epoch)
        self._found.add(part)
        for session in self._placement.touched(cut.apex):
            is_older = any(
                may_match_within(topic_filter, cut.apex) and route.part not in subscription.starts
                for topic_filter, subscription in session.subscriptions.items()
            )
            if is_older and self._placement.is_interested(session, cut.apex):
                self._placement.start_after(
                    session, predecessor or LogPosition(route.part, 0), part
                )

    def on_inherited(
        self, route: Route, predecessor: LogPosition, *, is_early: bool = False
    ) -> None:
        """
        Begin cursors in the zone of `route`, cut while this node was away from the zone of
        `predecessor`.

        `is_early`: the stream of `route` has passed records that all sessions have still to read.
        """
        above = self._zones.get(predecessor.part.zone)
        come = above.position if above is not None and above.part == predecessor.part else None
        is_late = come is not None and come.offset < predecessor.offset
        for session in self._placement.interested(route.apex):
            earlier = session.places.behind.get(predecessor.part)
            if earlier is None and is_late and come is not None:
                earlier = Cursor(predecessor.part, come.offset)
                self._placement.start(session, earlier)
            is_behind = earlier is not None and earlier.offset < predecessor.offset
            if is_behind or session.sink is None or is_early:
                self._placement.start_after(session, predecessor, route.part)

    def on_renewed(
        self, route: Route, known: StreamPosition, epoch: int, predecessor: LogPosition | None
    ) -> None:
        """
        Begin cursors in both parts: the zone is served at another epoch, after `known` in the
        earlier part.

        Sessions read the rest of the earlier part before the first record of the new part. The zone
        of `predecessor` may have had the topics in between. Then sessions read that zone's records
        of them before the new part, too.
        """
        before, after = JournalId(route.apex, known.epoch), JournalId(route.apex, epoch)
        come = None
        if predecessor is not None:
            above = self._zones.get(predecessor.part.zone)
            come = above.position if above is not None and above.part == predecessor.part else None
        for session in self._placement.interested(route.apex):
            self._placement.start(session, Cursor(before, known.offset))
            self._placement.start(session, Cursor(after, 0, stops=(LogPosition(before, 0),)))
            if predecessor is None or predecessor.part.zone == route.apex:
                continue
            if come is not None and come.offset < predecessor.offset:
                self._placement.start(session, Cursor(predecessor.part, come.offset))
            if after in session.places.behind and predecessor.part in session.places.behind:
                session.places.behind[after].after = predecessor

    def on_ended(self, route: Route, heir: Route, *, is_whole: bool) -> None:
        """
        Close the part of `route`; `heir` has the zone from here on.

        A session that is behind in the part reads it to its end before any newer record from the
        heir. Unless the stream of the part announced its end itself (`is_whole`), all sessions are
        behind.
        """
        ended = route.part
        self._unseen.discard(ended)
        if route.position is None:
            if ended in self.followed:  # earlier: interested sessions have cursors since the start
                self._session_store.on_ended(ended)
            return
        offset = route.position.offset
        if not is_whole and not route.is_over:
            for session in self._placement.interested(route.apex):
                self._placement.start(session, Cursor(ended, offset))
        for session in self._placement.all():
            cursor = session.places.behind.get(ended)
            if cursor is None:
                session.places.forget_part(ended)
                continue
            cursor.until = offset if is_whole else None
            cursor.is_over = route.is_over
            if not route.is_over and heir.position is not None:
                self._placement.gate_at(
                    session, ended, LogPosition(heir.part, heir.position.offset)
                )
        if route.is_over:
            self._session_store.on_ended(ended)
            return
        # The owners have still to announce which part continues this one. Several parts may lie
        # between. Without the offset the sessions would lose their place in the ended part.
        self._ended[ended] = offset
        self._session_store.on_closed(ended, offset)
        while len(self._ended) > ENDED:
            self._forget_ended(next(iter(self._ended)))

    def reopen_part(self, part: JournalId) -> bool:
        """Let the stream of an ended part count again; return False if the part had not ended."""
        return self._ended.pop(part, None) is not None

    def follow_transition(self, transition: EpochTransition, *, at_end: bool) -> None:
        """
        Follow a transition that a journal read met, for all sessions that are behind in the part
        left.
        """
        for session in self._placement.touched(transition.apex):
            self.follow(session, transition, at_end=at_end)

    def on_passage(self, transition: EpochTransition, *, is_alone: bool) -> None:
        """
        Begin cursors where topics went on in another part.

        A session that is behind in the part left is behind in the part entered, too. So are all
        other sessions, unless the transition `is_alone` and the streams of the two parts follow one
        another here. The stream of an ended part was incomplete if it did not announce the end.
        """
        left = transition.left
        stood = self._stood_at(left.part)
        if is_alone and (left.part in self._ended or not transition.is_return):
            stood = None
        route = self._zones.get(left.part.zone)
        for session in self._placement.touched(transition.apex):
            if (
                stood is not None
                and stood <= left.offset
                and not (route is not None and self._awaits(session, route))
                and self._placement.follows(session, transition)
            ):
                if left.part in self._ended and left.part not in session.places.behind:
                    # The session has all of the part.
                    self._start_returned(session, transition.entered)
                    continue
                self._placement.start(session, Cursor(left.part, stood))
            self.follow(session, transition, at_end=True)
        if transition.is_return:
            self._forget_ended(left.part)

    def follow(self, session: Session, transition: EpochTransition, *, at_end: bool) -> bool:
        """
        True if the session has to read on where the topics went on; a cursor begins there.

        `at_end`: follow also if the session had all records up to the place where the topics left.
        """
        left, entered = transition.left, transition.entered
        if not self._placement.is_interested(session, transition.apex):
            return False
        earlier = session.places.behind.get(left.part)
        offset = session.places.cut_off.get(left.part) if earlier is None else earlier.offset
        if offset is None or offset > left.offset or (offset == left.offset and not at_end):
            return False
        if not transition.is_return:
            self._placement.start_after(session, left, entered.part)
            return entered.part in session.places.behind
        self._start_returned(session, entered)
        self._placement.gate_at(session, left.part, entered)
        return entered.part in session.places.behind

    def follows_now(self, part: JournalId) -> bool:
        """True if this edge follows the part, and nobody has announced its end."""
        route = self._zones.get(part.zone)
        if route is None or route.position is None:
            return False
        return route.part == part and not route.is_over

    def resume_part(self, part: JournalId) -> None:
        """
        Begin cursors for sessions that have set the part aside: the node that has it is reachable
        again.

        These sessions read the part before any live delivery. Otherwise they would skip the records
        in between, and get the rest twice.
        """
        for session in self._placement.all():
            if part in session.cut_off:
                session.places.resume(part, is_kept=True)

    def on_online(self, route: Route) -> None:
        """Wake the sessions that waited for the zone's part: its stream flows."""
        assert route.position is not None
        part, began = route.part, route.began
        start = route.position.offset
        if began is not None:
            start = began.offset if began.epoch == part.epoch else 0
        if part not in self._met:
            self._met[part] = route.position.offset
            filters = self._interests.of_zone(route)
            for session in self._placement.all():
                if not has_begun(session, route.apex, filters):
                    continue
                if began is None and not session.clean:
                    self._placement.record_start(session, filters, LogPosition(part, start))
                since = self._interests.owed_since(session, route)
                if since is not None:
                    self._placement.start(session, Cursor(part, since))
                elif session.sink is None:
                    self._placement.start(session, Cursor(part, start))
        self.wake()

    def wake(self) -> None:
        """Wake the catch-up of all sessions whose clients are connected."""
        for session in self._placement.all():
            if session.sink is not None:
                self._backlog.wake(session)

    # from readers

    def followed_now(self) -> dict[JournalId, int]:
        """
        Return how far this edge follows each part; sessions that are not behind there are as far.
        """
        return {r.part: r.position.offset for r in self._zones if r.position is not None}

    # from the node

    def checkpoint(self, written: Callable[[], object] = lambda: None) -> None:
        """Persist one position per zone in slices, once a second; then call `written`."""
        self._session_store.checkpoint(self._followed_for_sessions(), written)

    def checkpoint_now(self) -> None:
        """Persist all positions and sessions in one turn, as the node ends."""
        self._session_store.checkpoint_now(self._followed_for_sessions())

    def check(self) -> None:
        """State how far streams have come, and what each session keeps."""
        for route in self._zones:
            if route.position is not None and route.is_local:  # another owner may begin lower
                kept = self._session_store.stored.of(route.part)
                ordered(self, 6, "kept <= position of the stream", kept, route.position.offset)
        for client_id, session in self._sessions.items():
            is_named = session.client_id == client_id
            holds(self, 19, "a session is known by its client", is_named, client_id)
            holds(self, 33, "a session here is not over", not session.is_over, client_id)
            session.check()
            if not session.clean and session.sink is None:
                followed = (route for route in self._zones if not self._awaits(session, route))
                check_places(session, followed)
                self._session_store.check_written(session)
        ordered(self, 34, "ended parts are bounded", len(self._ended), ENDED)

    # internal

    def _followed_for_sessions(self) -> dict[JournalId, int]:
        """
        Return how far this edge follows each part, but for zones whose cut was not told yet.

        A link may be there for publishes before this edge hears of the cut. Nothing of the zone has
        come to any session. A position there would hide from them, after a crash, what waits for
        the claim.
        """
        return {
            route.part: route.position.offset
            for route in self._zones
            if route.position is not None and not self._is_unannounced(route)
        }

    def _is_unannounced(self, route: Route) -> bool:
        """True if the zone above is known, and has not told of this zone's cut."""
        cuts = self._zones.enclosing(route.apex).cuts
        is_told = cuts is None or not route.apex or route.apex in cuts
        return not (is_told or route.interest.filters) and self.is_new(route.part)

    def _start_returned(self, session: Session, entered: LogPosition) -> None:
        self._placement.start_returned(session, entered, self._stood_at(entered.part))

    def _awaits(self, session: Session, route: Route) -> bool:
        """
        True if the session moved here, and the zone has still to answer how far it has come.

        The session has no place in the part, or had all of the part at its earlier node. The stream
        of this edge says nothing of such a session.
        """
        return self._interests.owed_since(session, route) is not None

    def _stood_at(self, part: JournalId) -> int | None:
        """Return how far this edge followed the part, if it did and may follow it again."""
        route = self._zones.get(part.zone)
        if route is not None and route.position is not None and route.part == part:
            return route.position.offset
        return self._ended.get(part)

    def _forget_ended(self, part: JournalId) -> None:
        if self._ended.pop(part, None) is None:
            return
        for session in self._placement.all():
            session.places.end_part(part)
        self._session_store.on_ended(part)
