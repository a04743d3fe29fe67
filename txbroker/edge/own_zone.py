"""
The node's own zone, as its edge reaches it: no link, the authority answers at once.

It is both ends in one: the edge's `OwnerPort` and the authority's `EdgePort`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from txbroker.authority.authority import Authority
from txbroker.authority.handover import MarkKey
from txbroker.authority.journal import Record
from txbroker.authority.peer import CatchUp, Greeting, Peer, Verdict
from txbroker.delegation.cut import Cut
from txbroker.edge.edge import Edge
from txbroker.edge.publishing import settle
from txbroker.edge.route import Position, Publication, Route, State
from txbroker.message import Message
from txbroker.place import PartKey
from txbroker.pressure import Pressure


class OwnZone:
    """Joins the edge and the authority of one node."""

    def __init__(self, edge: Edge, authority: Authority, pressure: Pressure) -> None:
        self._edge = edge
        self._authority = authority
        self._pressure = pressure
        self._route: Route | None = None
        self._peer: Peer | None = None
        self._is_parked = False
        self._open: deque[tuple[int, Publication]] = deque()
        pressure.when_relieved(self._go_on)

    # from the node

    def open(self, cut: Cut) -> None:
        """The authority serves the zone now: the edge reaches it here."""
        edge, authority = self._edge, self._authority
        route = edge.zones.add(cut)
        route.is_local = True
        self._route = route
        edge.on_owner(route, cut.epoch, authority.predecessor)
        greeting = Greeting(
            edge=edge.name,
            incarnation=edge.incarnation,
            filters=tuple(sorted(route.filters)),
            claims=self._claims(route),
            position=self._resume_at(route, cut.epoch),
        )
        accepted = authority.connect(greeting, self)
        assert accepted is not None, "no newer process has this node's data"
        self._peer, caught_up = accepted
        self._catch_up(caught_up)
        position = Position(epoch=cut.epoch, offset=authority.delivered)
        edge.on_online(
            route, self, marks=self._marks(route), cuts=authority.cuts(), position=position
        )
        # What this node's clients sent to the earlier owner comes first (rule 13).
        edge.publisher.hold_below(edge.zones.enclosing(cut.apex), route)

    # from the edge (OwnerPort)

    def has_credit(self) -> bool:
        """Whether the zone takes publishes now."""
        return not self._is_parked and not self._pressure.active

    def publish(self, publication: Publication) -> None:
        """Give it to the authority."""
        verdict = self._authority.publish(publication.message)
        if verdict is Verdict.TAKEN:
            if publication.message.qos:
                self._open.append((self._authority.offset, publication))
                self.on_durable(self._authority.delivered)
            return
        assert self._route is not None
        self._route.wait_first([publication])
        if verdict is Verdict.PARKED:
            self._is_parked = True
            return
        cut = self._authority.cut_for(publication.message.topic)
        if cut is not None:
            below = self._edge.zones.add(cut)
            self._edge.publisher.hold_below(self._route, below)

    def restart(self, sequence: int) -> None:
        """Nothing is numbered here."""

    def add_interest(self, topic_filter: str, request: int) -> None:
        """Ask for deliveries, and once for the retained messages."""
        assert self._peer is not None
        self._authority.add_interest(self._peer, topic_filter, request, True)

    def remove_interest(self, topic_filter: str) -> None:
        """No more deliveries."""
        assert self._peer is not None
        self._authority.remove_interest(self._peer, topic_filter)

    def sync(self, filters: Iterable[str], claims: Iterable[str]) -> None:
        """Replace the interest and claim what was inherited."""
        assert self._peer is not None
        self._catch_up(self._authority.sync(self._peer, filters, claims))

    def beat(self) -> None:
        """Once a second: what was delivered up to now was all that is for this node."""
        if self._route is not None:
            self._edge.on_reached(self._route, self._authority.delivered)

    def keep(self, places: dict[PartKey, int]) -> None:
        """What this node's sessions need lies above these offsets."""
        if self._peer is not None:
            self._authority.keep(self._peer, places)

    def close(self, reason: str) -> None:
        """There is no connection to close; doubts are settled by the marks at hand."""
        route = self._route
        if route is not None and route.doubts:
            self._edge.publisher.on_marks(route, self._marks(route))

    # from the authority (EdgePort)

    def deliver(self, record: Record) -> None:
        """A message for this node's own sessions."""
        if self._route is not None:
            self._edge.on_message(self._route, record.message, record.offset)

    def answer(self, request: int, offset: int, retained: list[Message]) -> None:
        """The interest holds."""
        if self._route is not None:
            self._edge.interests.on_answer(self._route, request, offset, retained)

    def tell_cut(self, cut: Cut) -> None:
        """A child took over part of the zone."""
        if self._route is not None:
            self._edge.on_cut(self._route, cut)

    def tell_gone(self, apex: str, epoch: int) -> None:
        """The zone is another node's now; or a child gave its zone back to this one."""
        if apex != self._authority.apex:
            if self._route is not None:
                self._edge.on_cut_ended(self._route, apex, epoch)
            return
        route, self._route = self._route, None
        if route is not None:
            route.is_local = False
            self._is_parked = False
            self._edge.on_gone(route)

    def on_durable(self, offset: int) -> None:
        """What was published up to here is safe: the clients may be told."""
        while self._open and self._open[0][0] <= offset:
            settle(self._open.popleft()[1])
        if self._open:
            self._authority.await_durable(self)

    def unpark(self) -> None:
        """A fence was lifted, or became a cut."""
        self._is_parked = False
        self._go_on()

    # internal

    def _resume_at(self, route: Route, epoch: int) -> int | None:
        if route.position is None:
            return None
        return route.position.offset if route.position.epoch == epoch else 0

    def _catch_up(self, catch_up: CatchUp) -> None:
        authority, after = self._authority, catch_up.after
        until = authority.delivered
        while after is not None and after < until and self._peer is not None:
            records, after = authority.backlog(self._peer, catch_up, after, until)
            for record in records:
                self.deliver(record)

    def _claims(self, route: Route) -> tuple[str, ...]:
        # While the earlier owner's link is up, its stream says when its last delivery has come.
        above = self._edge.zones.enclosing(route.apex)
        is_told = above.port is None or above is route or route.apex in (above.cuts or {})
        return (route.apex, *route.claims) if is_told else tuple(route.claims)

    def _marks(self, route: Route) -> dict[MarkKey, int]:
        return {d.key: self._authority.marks.get(d.key, 0) for d in route.doubts}

    def _go_on(self) -> None:
        route = self._route
        if route is not None and route.state is State.ONLINE:
            self._edge.publisher.flush(route)
