"""
The low-water marks of this edge: the records that owners of zones keep for it (protocol rules 6 and
31).

Once a second the edge works out what its sessions need of each part. The edge adds the needs of
sessions that went to other nodes (`left`). Their marks stay until the new node's are durable at the
owners. An owner is told the marks of its zone and of all zones below, whoever serves these. A part
goes to the node above with its zone, and its marks are to be there before this edge hears of it.

A mark is worked out, then made durable with the positions, then told, then confirmed. A need below
a mark lowers the mark at once. A need that has risen raises the mark at a later look.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import attrs

from txbroker.edge.routing.owner_port import OwnerPort
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.routing.route import Route
from txbroker.edge.sessions.session_store import SessionStore
from txbroker.model.invariant import ordered
from txbroker.model.log_position import HOLDERS, JournalHolder, JournalId, LogPosition
from txbroker.model.timers import Timers
from txbroker.mqtt.session.session import Session
from txbroker.runtime.slices import Slices

LOOKED_AT = 2_000
STEP = 16
"""
Sessions visited in one second, and in one step of a slice.

Thousands of sessions with full windows, visited in one turn, kept all clients waiting for 0.1 s.
"""

UNLOADED_AFTER = 60.0
"""Seconds for which the messages in flight to a disconnected client stay in memory."""

AGAIN = 5.0
"""Seconds after which unconfirmed marks are sent again to an owner."""

STILL_HERE = 60.0
"""Seconds after which unchanged marks are sent again: an owner's marks age with their edge."""

BELOW = 10.0
"""
Seconds between two messages about marks that rose in zones below the owner's; these serve
themselves.
"""

UNCONFIRMED = 8
"""Unconfirmed messages of marks that are distinguished; older ones are merged."""

Marks = dict[JournalId, int]

Holders = dict[JournalId, tuple[JournalHolder, ...]]


@attrs.define(slots=True, eq=False)
class _Told:
    """
    The marks told on one connection to an owner. `sent` are the marks that were told and are not
    confirmed, by number. In force at the owner is `confirmed` or any of these.
    """

    port: OwnerPort
    last: Marks | None = None
    confirmed: Marks | None = None
    sent: deque[tuple[int, Marks]] = attrs.Factory(deque)
    number: int = 0
    at: float = 0.0

    def is_due(self, apex: str, marks: Marks, now: float) -> bool:
        """True if these marks have to be sent to the owner of `apex`."""
        last = self.last
        if last is None:
            return True
        if marks == last:
            return now - self.at >= (AGAIN if self.sent else STILL_HERE)
        if marks.keys() != last.keys() or any(offset < last[p] for p, offset in marks.items()):
            return True
        is_own = any(offset > last[p] for p, offset in marks.items() if p.zone == apex)
        return is_own or now - self.at >= BELOW

    def send(self, marks: Marks, holders: Holders, now: float) -> None:
        """Send the marks to the owner."""
        self.number += 1
        self.last, self.at = marks, now
        self.sent.append((self.number, marks))
        if len(self.sent) > UNCONFIRMED:
            (_, one), (number, other) = self.sent.popleft(), self.sent.popleft()
            both = {part: max(one[part], other[part]) for part in one.keys() & other.keys()}
            self.sent.appendleft((number, both))
        self.port.set_low_water(marks, partial(self._confirm, self.number), holders)

    def retains(self, place: LogPosition) -> bool:
        """
        True if the owner retains records above the place, whichever of the marks sent are in force.
        """
        if self.confirmed is None:
            return False
        told = (self.confirmed, *(marks for _, marks in self.sent))
        return all(marks.get(place.part, place.offset + 1) <= place.offset for marks in told)

    def _confirm(self, number: int) -> None:
        while self.sent and self.sent[0][0] <= number:
            self.confirmed = self.sent.popleft()[1]


class LowWater:
    """
    The marks of one edge; `left` gives the places that sessions needed when they left and that
    their new nodes have not confirmed. `wake` connects to an owner.

    Invariant: the mark of a part <= what any session here needs of the part.
    """

    def __init__(
        self,
        sessions: dict[str, Session],
        *,
        zones: ResolverCache,
        timers: Timers,
        session_store: SessionStore,
        slices: Slices,
        wake: Callable[[Route], None],
    ) -> None:
        self._sessions = sessions
        self._zones = zones
        self._timers = timers
        self._session_store = session_store
        self._slices = slices
        self._wake = wake
        self._left: Callable[[], Iterable[LogPosition]] = tuple
        self._looking: Iterator[None] | None = None
        self._seen: Marks = {}
        self._marks: Marks | None = None
        self._needed: set[JournalId] = set()
        self._holders: Holders = {}
        self._told: dict[Route, _Told] = {}

    def wire(self, left: Callable[[], Iterable[LogPosition]]) -> None:
        """Set the port that returns the places that sessions which moved to other nodes needed."""
        self._left = left

    # from the node

    def send_marks(self) -> None:
        """Compute the marks and send them to owners; called once a second, after a checkpoint."""
        if not self._slices.is_busy(self):
            self._slices.start(self, self._look())

    # from sessions that come, go, or go back

    def lower(self, places: Iterable[LogPosition]) -> None:
        """Lower the marks to these places from now on, whatever was seen before."""
        for part, offset in places:
            for marks in (self._seen, self._marks):
                if marks is not None and part in marks:
                    marks[part] = min(marks[part], offset)
                elif marks is not None:
                    marks[part] = offset

    def is_kept(self, places: Iterable[LogPosition]) -> bool:
        """
        True if all owners concerned have confirmed that they retain records above these places.
        """
        return all(self._is_kept(place) for place in places)

    def check(self) -> None:
        """State that no mark lets go of what a session needs."""
        marks = self._marks or {}
        for session in self._sessions.values():
            for part, offset in session.needs():
                words = f"mark <= need of {session.client_id} in {part}"
                ordered(self, 31, words, marks.get(part, offset), offset)
        for told in self._told.values():
            numbers = [number for number, _ in told.sent]
            ordered(self, 31, "tellings grow", *numbers, told.number)
            ordered(self, 34, "tellings are bounded", len(numbers), UNCONFIRMED)

    # internal

    def _look(self) -> Iterator[None]:
        """Visit the sessions of one second; send the marks after the last session."""
        if self._looking is None:
            self._looking = self._compute_marks()
        for _ in range(LOOKED_AT // STEP):
            if next(self._looking, self) is self:
                self._looking = None
                # Marks follow durable positions only. After a crash, older positions would need
                # records that the owners have trimmed.
                self._session_store.when_durable(self._send_marks)
                return
            yield

    def _compute_marks(self) -> Iterator[None]:
        """Compute the offsets above which sessions need records, some sessions at a time."""
        # A session that is not behind needs records only above the durable positions.
        self._seen = self._session_store.stored.load()
        needed: set[JournalId] = set()
        holders: Holders = {}
        unloaded = self._timers.now() - UNLOADED_AFTER
        self._see(self._left(), needed)
        for number, session in enumerate(list(self._sessions.values()), 1):
            if places := tuple(session.needs()):
                self._see(places, needed)
                for part, offset in places:
                    holder = JournalHolder(session.client_id, offset)
                    holders[part] = _with(holders.get(part, ()), holder)
            if session.away_since is not None and session.away_since < unloaded:
                session.sender.unload()
            if number % STEP == 0:
                yield
        self._marks, self._seen = self._seen, {}
        self._needed, self._holders = needed, holders

    def _see(self, places: Iterable[LogPosition], needed: set[JournalId]) -> None:
        marks = self._seen
        for part, offset in places:
            marks[part] = min(marks.get(part, offset), offset)
            needed.add(part)

    def _send_marks(self) -> None:
        by_route: dict[Route, Marks] = {}
        for part, offset in (self._marks or {}).items():
            for route in self._above(part.zone):
                by_route.setdefault(route, {})[part] = offset
        concerned = {route for part in self._needed for route in self._concerned(part)}
        now = self._timers.now()
        told: dict[Route, _Told] = {}
        for route in self._zones:
            self._set_needed(route, is_concerned=route in concerned)
            if route.port is None:
                continue
            known = self._told.get(route)
            if known is None or known.port is not route.port:
                known = _Told(route.port)
            told[route] = known
            marks = by_route.get(route, {})
            if known.is_due(route.apex, marks, now):
                holders = {part: self._holders[part] for part in marks if part in self._holders}
                known.send(marks, holders, now)
        self._told = told

    def _set_needed(self, route: Route, *, is_concerned: bool) -> None:
        was_needed = route.is_needed
        route.need_marks(is_needed=is_concerned)
        is_known = route.cut is not None and not route.is_local
        if is_concerned and not was_needed and route.port is None and is_known:
            self._wake(route)

    def _is_kept(self, place: LogPosition) -> bool:
        for route in self._concerned(place.part):
            told = self._told.get(route)
            if told is None or told.port is not route.port or not told.retains(place):
                return False
        return True

    def _concerned(self, part: JournalId) -> Iterator[Route]:
        """
        Yield the routes to the owners that may have the part.

        The owner of its zone has the part if it appends to it now. Otherwise the part may have
        gone, with the zone, to the owner of any zone above.
        """
        for route in self._above(part.zone):
            yield route
            if route.position is not None and route.part == part:
                return

    def _above(self, zone: str) -> Iterator[Route]:
        """Yield the routes of the zone and of all zones around it, the deepest first."""
        route = self._zones.get(zone) or self._zones.enclosing(zone)
        yield route
        while route.apex:
            route = self._zones.enclosing(route.apex)
            yield route


def _with(known: tuple[JournalHolder, ...], one: JournalHolder) -> tuple[JournalHolder, ...]:
    """Insert a holder; return the lowest holders, each client once, the lowest first."""
    if len(known) == HOLDERS and one.offset >= known[-1].offset:
        return known
    same = [other for other in known if other.client_id == one.client_id]
    if same and same[0].offset <= one.offset:
        return known
    others = [other for other in known if other.client_id != one.client_id]
    return tuple(sorted((*others, one), key=lambda holder: holder.offset)[:HOLDERS])
