"""
The node's own zone as its edge reaches it: no link, the authority answers at once.

The link object is both ends: the edge's `OwnerPort` and the authority's `EdgePort`. The link is
closed (no route), open, or parked: a fence holds a topic, and publishes wait for `unpark`. `open`
begins a new stream; `announce_end` closes the link when another node serves the zone.

Publishes first wait until their origin id is durable (`_outbound`), then at the authority, for its
commit. After the commit their clients are acknowledged, in order. A refused publish returns to the
front of the route, with all that was queued after it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

import attrs

from txbroker.authority.authority import Authority
from txbroker.authority.edge_peer import TAKEN, EdgeCatchUp, EdgeGreeting, EdgePeer, PublishVerdict
from txbroker.authority.retained_messages import RetainedQuery
from txbroker.core import Run, Way
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.edge.groups.group_coordinators import GroupCoordinators
from txbroker.edge.local.local_outbox_stream import LocalOutboxStream
from txbroker.edge.routing.durable_send_queue import DurableSendQueue
from txbroker.edge.routing.group_report import GroupReport
from txbroker.edge.routing.owner_port import StreamUser
from txbroker.edge.routing.publication import Item, Publication, unfold
from txbroker.edge.routing.route import Route
from txbroker.edge.routing.zone_claims import StreamPosition
from txbroker.edge.sessions.edge import Edge
from txbroker.edge.sessions.retained_feeds import Retained
from txbroker.journal.zone_journal import Record
from txbroker.model.log_position import JournalHolder, JournalId, LogPosition
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.message import Message
from txbroker.runtime.backpressure import Backpressure

MOST_KEPT = 1000
"""Publishes that may wait until their origin id is durable, at most."""


class LocalLink:
    """Joins the edge and the authority of one node."""

    def __init__(self, edge: Edge, authority: Authority, backpressure: Backpressure) -> None:
        self._edge = edge
        self.authority = authority
        self._backpressure = backpressure
        self._route: Route | None = None
        self._peer: EdgePeer | None = None
        self._is_parked = False
        self._void: list[Item] = []
        self._epoch = 0
        self._outbound = DurableSendQueue(edge.session_store.save_then, self._send_entry)
        self._is_waited_for = False
        self._streams: list[LocalOutboxStream] = []
        self._key: MarkKey
        self._next = 1
        self._groups: GroupCoordinators | None = None
        backpressure.when_relieved(self._resume)
        edge.publisher.wire(self.forward)
        edge.interests.wire(self.answer_now)

    # from the node

    def wire(self, groups: GroupCoordinators) -> None:
        """Set the groups that this node coordinates."""
        self._groups = groups

    def open(self, cut: ZoneCut) -> None:
        """Open the route here: the authority serves the zone now."""
        edge, authority = self._edge, self.authority
        route = edge.zones.add(cut)
        edge.on_serving(route)
        self._route = route
        # Publishes that an earlier epoch left unanswered were not durable there. The route sends
        # them again, and first.
        void, self._void = self._void, []
        route.queue.wait_first(void)
        self._epoch = cut.epoch
        edge.on_owner(route, cut.epoch, authority.predecessor, authority.transitions)
        edge.interests.update_now(route)
        self._open_stream(cut.apex)
        greeting = EdgeGreeting(
            edge=edge.name,
            incarnation=edge.incarnation,
            filters=tuple(sorted(route.interest.filters)),
            claims=self._processed(self._claims(route)),
            position=self._resume_at(route, cut.epoch),
            in_doubt=tuple(edge.keys_in_doubt(cut.apex)),
        )
        # Zones may have come back just before the process ended. Unless their return is followed
        # now, sessions would miss their records.
        back = authority.reception.returned(greeting)
        inherited = tuple(one.apex for one in back if one.is_inherited)
        accepted = authority.reception.connect(attrs.evolve(greeting, returned=inherited), self)
        assert accepted is not None, "no newer process has this node's data"
        self._peer, caught_up = accepted
        for one in back:
            if one.is_inherited:
                edge.cuts.on_cut_ended(route, one.apex, one.epoch, one.offset)
            else:
                self.announce_end(one.apex, one.epoch, one.offset)
        self._catch_up(caught_up)
        position = StreamPosition(epoch=cut.epoch, offset=authority.delivered)
        edge.on_online(
            route, self, marks=self._marks(route), cuts=authority.cuts(), position=position
        )
        self._complete(greeting.claims)
        # Publishes that this node's clients sent to the earlier owner go first. Otherwise newer
        # ones would pass them (rule 13).
        edge.publisher.move_below(edge.zones.enclosing(cut.apex), route)

    # from the edge (OwnerPort)

    def has_credit(self) -> bool:
        """True if the zone accepts publishes now."""
        self._is_waited_for = self._outbound.waiting >= MOST_KEPT
        has_to_wait = self._is_waited_for or self._is_parked or self._backpressure.active
        # After a handover the end of the zone is still on its way to the edge. A publish in between
        # would be refused.
        return self.authority.serving and not has_to_wait

    def passes(self, size: int) -> bool:
        """True if the zone accepts publishes now, but for a slow consumer of other publishers."""
        has_to_wait = self._outbound.waiting >= MOST_KEPT or self._is_parked
        is_open = self.authority.serving and not has_to_wait
        return is_open and self._backpressure.may_pass(size)

    def publish(self, publication: Publication) -> None:
        """
        Send a publish to the authority, once its origin id is durable if that is required (rule
        16).
        """
        kept = []
        if publication.needs_durable_id:
            kept.append(publication.set_origin(self._key, self._next))
            self._next += 1
        self._outbound.send(publication, kept)

    def publish_run(self, run: Run) -> None:
        """Send many publishes to the authority."""
        self._outbound.send(run, ())

    def way_through(self) -> Way | None:
        """
        Return the way on which `Sockets` may pass QoS 0 runs straight to the zone and its edges.

        The result is the same as that of all the steps between. The way includes the function that
        journals the runs, if QoS 0 is journaled. None: runs have to wait, or need further steps.
        """
        way = self._way_in()
        if way is None or way[2].unclaimed:
            return None
        authority = self.authority
        return *way, authority.append_qos0 if authority.stores_qos0 else None

    def _way_in(self) -> tuple[Route, PublishVerdict, EdgePeer] | None:
        """Return the local route if no queued publish must go first."""
        route, peer = self._route, self._peer
        if (
            route is None
            or peer is None
            or not route.is_clear
            or self._outbound.waiting
            or not self.has_credit()
        ):
            return None
        return route, TAKEN, peer

    def sender(self) -> None:
        """Return None: no link leads to the zone."""

    def forward(self, run: Run) -> bool:
        """
        Pass a run of this node's clients at once to the zone, or to the zone's clients.

        A run of QoS 1 and 2 must be for this zone alone. A run of QoS 0 must be for this node's
        clients alone. The result is the same as that of all the steps between. Returns False if the
        run is of another kind, or if part of it has to wait.
        """
        way = self._way_in()
        if way is None:
            return False
        if run.qos:
            return self._append(run, way[0])
        if way[2].unclaimed:
            return False
        left = self._edge.router.forward(run, *way)
        if left is None:
            return False
        self.authority.append_qos0((run,))
        self.deliver_rest(run, left)
        return True

    def _append(self, run: Run, route: Route) -> bool:
        edge = self._edge
        if not (edge.outboxes.is_idle(route) and edge.router.belongs(run, route, TAKEN)):
            return False
        self.authority.append_run(run, receipt=(self, run))
        return True

    def deliver_rest(self, run: Run, left: list[tuple[Session, range]]) -> None:
        """Deliver to the sessions that the core could not serve straight."""
        assert self._route is not None
        self._edge.delivery.deliver_left(run, self._route.part, left)

    def restart(self, sequence: int, returned: Iterable[Publication]) -> None:
        """Do nothing: the zone refuses a publish at once, so none behind it was sent."""

    def request_marks(
        self, keys: Iterable[MarkKey], answered: Callable[[dict[MarkKey, int]], None]
    ) -> None:
        """Ask how far the authority has accepted these streams."""
        asked, authority = list(keys), self.authority
        authority.in_order(lambda: answered({key: authority.marks.get(key, 0) for key in asked}))

    def open_stream(self, key: MarkKey, user: StreamUser) -> LocalOutboxStream:
        """Open the stream of an outbox."""
        stream = LocalOutboxStream(self, key, user)
        self._streams.append(stream)
        return stream

    def add_interest(self, topic_filter: str, request: int, *, retained: bool) -> None:
        """Ask for deliveries, and once for the `retained` messages."""
        assert self._peer is not None
        self.authority.reception.add_interest(self._peer, topic_filter, request, retained)

    def answer_now(self, topic_filter: str) -> tuple[LogPosition, Retained] | None:
        """
        Add an interest at once; return the place behind which it holds, and the retained messages.

        The result is the same as that of `add_interest` and `confirm_interest`. Returns None, and
        does nothing, if the answer has to wait.
        """
        route, peer = self._route, self._peer
        if route is None or peer is None:
            return None
        retained = self.authority.reception.add_interest_now(peer, topic_filter)
        if retained is None:
            return None
        offset = self.authority.delivered
        if route.position is None or offset > route.position.offset:
            route.skip_to(offset)
        return LogPosition(route.part, offset), retained

    def remove_interest(self, topic_filter: str) -> None:
        """Remove an interest: no more deliveries."""
        assert self._peer is not None
        self.authority.reception.remove_interest(self._peer, topic_filter)

    def sync(self, filters: Iterable[str], claims: Iterable[str]) -> None:
        """Replace the interest, and claim the subtrees that were inherited."""
        assert self._peer is not None
        self._catch_up(self.authority.reception.sync(self._peer, filters, self._processed(claims)))
        self._complete(tuple(claims))

    def beat(self) -> None:
        """
        Advance the stream position, once a second: all deliveries for this node up to now have
        come.
        """
        if self._route is not None:
            self._route.skip_to(self.authority.delivered)

    def set_low_water(
        self,
        places: dict[JournalId, int],
        kept: Callable[[], None],
        holders: Mapping[JournalId, tuple[JournalHolder, ...]],
    ) -> None:
        """Set the offsets above which this node's sessions need records."""
        if self._peer is not None:
            self.authority.reception.set_low_water(self._peer, places, kept, holders)

    def report_group(self, group: str, report: GroupReport) -> None:
        """Report on the members of a group."""
        if self._groups is not None:
            self._groups.report(self, group, report)

    def close(self, reason: str) -> None:
        """Do nothing: there is no connection to close."""

    # from the coordinators of groups (MemberPort)

    @property
    def edge_name(self) -> str:
        """Return the name of this node."""
        return self._edge.name

    def lend(
        self,
        group: str,
        part: JournalId,
        offsets: Sequence[int],
        messages: Sequence[Message],
        *,
        is_again: bool,
    ) -> None:
        """Lend messages, each to one member of the group."""
        if self._route is not None:
            places = [LogPosition(part, offset) for offset in offsets]
            shared = self._edge.shared
            shared.on_lent(self._route, group, places, messages, is_again=is_again)

    def lend_run(self, group: str, part: JournalId, run: Run) -> None:
        """Lend messages of QoS 1, each to one member of the group."""
        if self._route is not None:
            self._edge.shared.on_lent_run(self._route, group, part, run, is_again=False)

    def send_run(self, group: str, run: Run) -> None:
        """Send messages of QoS 0, each to one member of the group."""
        if self._route is not None:
            self._edge.shared.on_run(self._route, group, run)

    def confirm(self, group: str, pending: Collection[str]) -> None:
        """Confirm the group's subscription."""
        if self._route is not None:
            self._edge.shared.on_confirmed(self._route, group, pending)

    def confirm_report(self, group: str, request: int) -> None:
        """Confirm that a report is durable."""
        if self._route is not None:
            self._edge.shared.on_report_confirmed(self._route, group, request)

    # from the authority (EdgePort)

    def deliver(self, record: Record) -> None:
        """Deliver a message to this node's sessions."""
        if self._route is not None:
            self._edge.on_message(self._route, record.message, record.offset)

    def deliver_runs(self, runs: list[Run]) -> None:
        """Deliver many messages to this node's sessions."""
        if self._route is not None:
            self._edge.on_runs(self._route, runs)

    def confirm_interest(self, request: int, offset: int, retained: RetainedQuery | None) -> None:
        """Confirm an interest, from this offset on."""
        if self._route is not None:
            self._route.skip_to(offset)
            found = () if retained is None else iter(retained)
            self._edge.interests.on_answer(self._route, request, offset, found)

    def announce_cut(self, cut: ZoneCut) -> None:
        """Follow a cut: a child took over part of the zone."""
        if self._route is not None:
            self._edge.cuts.on_cut(self._route, cut)

    def announce_forgotten_cut(self, cut: ZoneCut) -> None:
        """
        Follow a cut that was forgotten: a child's zone, served here by mistake, is the child's
        again.
        """
        if self._route is not None:
            self._edge.cuts.on_forgotten_cut(self._route, cut)
            self._edge.cursors.on_forgotten_cut(self._route, cut, self.authority.predecessor)

    def announce_end(self, apex: str, epoch: int, offset: int | None = None) -> None:
        """
        Close the link, as another node serves the zone; or follow the return of a child's zone.
        """
        if apex != self.authority.apex:
            if self._route is not None and offset is not None:
                after = StreamPosition(epoch=self._epoch, offset=offset)
                self._edge.cuts.on_reclaimed(self._route, apex, epoch, after)
            elif self._route is not None:
                self._edge.cuts.on_cut_ended(self._route, apex, epoch)
            return
        route, self._route = self._route, None
        if route is not None:
            if self._groups is not None:
                self._groups.lose(self)
            self._is_parked = False
            self._streams.clear()
            route.queue.wait_first(self._outbound.close())
            self._edge.cuts.on_zone_end(route, is_whole=True)

    def unpark(self) -> None:
        """Resume publishes: a fence was lifted, or became a cut."""
        self._is_parked = False
        for stream in self._streams:
            stream.unpark()
        self._resume()

    # from the authority (PublishSource)

    def on_settled(self, tickets: Sequence[Item | Callable[[], None]]) -> None:
        """Acknowledge publishes to their clients, or call what waited: they are durable."""
        settled: list[Item] = []
        for item in tickets:
            if not callable(item):
                settled.append(item)
                continue
            self._edge.publisher.acknowledge(settled)
            settled = []
            item()
        self._edge.publisher.acknowledge(settled)

    def on_void(self, tickets: Sequence[Item | Callable[[], None]]) -> None:
        """Keep publishes that an ended epoch left unanswered until the zone opens again."""
        self._void += [item for item in tickets if not callable(item)]

    # from the streams

    def accept(
        self, message: Message, key: MarkKey, sequence: int, taken: Callable[[], None]
    ) -> PublishVerdict:
        """Publish a message, with its id in this stream; `taken` runs when it is durable."""
        return self.authority.publish(message, key, sequence, (self, taken))

    def when_settled(self, action: Callable[[], None]) -> None:
        """Run `action` when all accepted publishes are durable and delivered."""
        self.authority.in_order(action)

    def cut_for(self, topic: str) -> ZoneCut | None:
        """Return the cut that covers a refused topic."""
        return self.authority.cut_for(topic)

    @property
    def is_serving(self) -> bool:
        """True if the zone is served here."""
        return self.authority.serving

    # internal

    def _open_stream(self, apex: str) -> None:
        edge = self._edge
        self._key = (edge.name, edge.incarnation, apex, edge.zones.next_stream())
        self._next = 1

    def _send_entry(self, item: Item) -> None:
        if isinstance(item, Publication):
            self._send_one(item)
        elif self.authority.publish_run(item, receipt=(self, item) if item.qos else None):
            self._check_outbound()
        else:
            assert self._route is not None
            self._route.queue.wait_first([*unfold((item,)), *self._outbound.close()])

    def _check_outbound(self) -> None:
        if self._is_waited_for and not self._outbound.waiting:
            self._is_waited_for = False
            self._resume()

    def _send_one(self, publication: Publication) -> None:
        assert self._route is not None
        message, flow = publication.message, publication.flow
        key, sequence = None, 0
        if publication.needs_durable_id:
            assert flow is not None and flow.origin is not None
            key, sequence = flow.origin
        receipt = (self, publication) if message.qos else None
        verdict = self.authority.publish(message, key, sequence, receipt)
        if verdict is TAKEN:
            self._check_outbound()
            return
        # Returned publishes were numbered in this stream, and not accepted. A later mark of the
        # stream would cover their numbers, and count them as accepted.
        self._open_stream(self._route.apex)
        self._route.queue.wait_first([publication, *self._outbound.close()])
        if verdict is PublishVerdict.PARKED:
            self._is_parked = True
            return
        cut = self.authority.cut_for(message.topic)
        if cut is not None:
            below = self._edge.zones.add(cut)
            self._edge.publisher.move_below(self._route, below)

    def _resume_at(self, route: Route, epoch: int) -> int | None:
        if route.position is None:
            return None
        return route.position.offset if route.position.epoch == epoch else 0

    def _catch_up(self, catch_up: EdgeCatchUp) -> None:
        authority, after = self.authority, catch_up.after
        until = authority.delivered
        while after is not None and after < until and self._peer is not None:
            chunk, records = authority.reception.backlog(self._peer, catch_up, after, until)
            for record in records:
                self.deliver(record)
            after = chunk.through

    def _processed(self, claims: Iterable[str]) -> dict[str, int | None]:
        assert self._route is not None
        known = {apex: self._route.processed(apex) for apex in claims}
        epoch = self.authority.epoch
        return {
            apex: position.offset if position is not None and position.epoch == epoch else None
            for apex, position in known.items()
        }

    def _complete(self, claims: Collection[str]) -> None:
        assert self._route is not None
        assert self._peer is not None
        done = partial(self.authority.reception.on_claimed, self._peer, claims)
        self._edge.on_claimed(self._route, claims, done)

    def _claims(self, route: Route) -> tuple[str, ...]:
        # While the earlier owner's link is up, its stream announces its last delivery. A claim
        # before that would let newer records pass it.
        above = self._edge.zones.enclosing(route.apex)
        is_told = above.port is None or above is route or route.apex in (above.cuts or {})
        claims = route.claims.apexes
        return (route.apex, *claims) if is_told else tuple(claims)

    def _marks(self, route: Route) -> dict[MarkKey, int]:
        return {d.key: self.authority.marks.get(d.key, 0) for d in route.queue.doubts}

    def _resume(self) -> None:
        route = self._route
        if route is not None and route.port is not None:
            self._edge.publisher.flush(route)
            self._edge.outboxes.on_online(route)
