"""
The shared subscriptions of an edge (MQTT 5.0, section 4.8.2).

A group is coordinated by the owner of the zone that encloses its filter: the deepest zone around
the levels before the first wildcard. The edge reports there how many messages its members can take.
The coordinator lends so many, each to one member. The edge reports the answers, and returns
messages whose member has left.

The group follows its zone: when another node serves that zone, the edge reports there.

A client may be in thousands of groups. What concerns many groups at once is done in slices:
reports, the second's work, and the comings and goings of a client. In one turn it took seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from txbroker.core import Run
from txbroker.edge.routing.edge_parts import EdgeParts
from txbroker.edge.routing.group_report import GroupReport
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.routing.route import Route
from txbroker.edge.sessions.edge_group import EdgeGroup, Waiter
from txbroker.edge.sessions.session_store import SessionStore
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.share_name import shared_subscription
from txbroker.model.topics import literal_prefix
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.shared_subscription import SharedSubscription
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.subscription_options import DELIVERY_BITS, QOS_BITS
from txbroker.runtime.deadlines import Deadlines
from txbroker.runtime.slices import Slices

FEW: Final = 8
"""Groups of a client that comes or goes, which are followed at once, and in one step of a slice."""

REPEAT: Final = 10
"""Seconds after which a coordinator that has not answered hears of a group again."""


class SharedSubscriptions:
    """
    The groups with members here; `wake` advances a route that has something to send, and `again`
    calls `work` in another turn. `slices` has the work on many groups.

    A SUBACK waits at most `wait` seconds for the coordinator.
    """

    def __init__(
        self,
        parts: EdgeParts,
        *,
        zones: ResolverCache,
        wake: Callable[[Route], None],
        session_store: SessionStore,
        slices: Slices,
        wait: float,
    ) -> None:
        self._zones = zones
        self._wake = wake
        self._session_store = session_store
        self._patience = Deadlines(parts.timers)
        self._counters = parts.counters
        self._reporter = parts.reporter
        self._again = parts.again
        self._slices = slices
        self.wait = wait
        self._groups = {
            text: _make_group(text, is_noted=True) for text in session_store.noted_groups
        }
        self._dirty: dict[EdgeGroup, None] = {}
        # Members that are over, by group; each with `is_moved`.
        self._ended: dict[str, dict[Session, bool]] = {}
        self._round = object()  # owns the second's work in the slices
        self._next_lease = 1
        self._beats = 0
        self._lent_by: dict[int, EdgeGroup] = {}
        self._next_lender = 1
        self._lenders: dict[int, tuple[EdgeGroup, JournalId]] = {}

    @property
    def groups(self) -> int:
        """Number of groups with members here."""
        return len(self._groups)

    def check(self) -> None:
        """State what the groups keep of the rules; after the end of a turn."""
        for group in self._groups.values():
            group.check()

    # from connections

    def subscribe(
        self,
        session: Session,
        filters: Iterable[tuple[str, int]],
        identifier: int,
        acknowledge: Callable[[], None],
        note_pending: Callable[[Collection[str]], None],
    ) -> None:
        """
        Make the session a member of groups; `acknowledge` runs when all are confirmed, or late.

        `filters` has each whole filter with its options. `note_pending` gets the apexes of zones
        that have not confirmed.
        """
        answer = _Answer(acknowledge, note_pending)
        is_noted = False
        for text, options in filters:
            kept = options & DELIVERY_BITS
            subscription = SharedSubscription(text, options & QOS_BITS, kept, identifier)
            session.share(subscription)
            group = self._add(session, text)
            is_noted |= group.is_noted
            answer.await_one()
            self._await(group, answer.end)
        self._save(session, answer.close, is_noted=is_noted)

    def unsubscribe(
        self, session: Session, texts: Iterable[str], acknowledge: Callable[[], None]
    ) -> None:
        """End memberships; `acknowledge` runs when that is durable."""
        for text in texts:
            if text in session.shared:
                session.unshare(text)
                self._leave(session, text)
        self._save(session, acknowledge)

    # from the clients' sessions

    def adopt(self, session: Session) -> None:
        """Add the memberships of a session that came from the disk or from another node."""
        for text in session.shared:
            self._add(session, text)
        if session.clean:
            return
        for lent in session.durable_sender.resume_lent():
            group = self._groups.get(lent.group)
            if group is not None:
                group.own(lent.place)
                self._change(group)

    def reclaim(self, session: Session) -> None:
        """Take lent messages back, before the session's connection is released."""
        if session.shared or self._lent_by or self._lenders:
            self._reclaim(session)

    def follow(self, session: Session) -> None:
        """Note in the session's groups that its client has connected, or has left."""
        if len(session.shared) <= FEW:
            for text in session.shared:
                self._follow_in(session, text)
        else:
            self._slices.start(session, self._follow_in_all(session))

    def end(self, session: Session, *, is_moved: bool) -> None:
        """End the memberships of a session that is over; `is_moved`: it goes on elsewhere."""
        if len(session.shared) <= FEW:
            for text in session.shared:
                self._leave(session, text, is_moved=is_moved)
            return
        # A member that comes before their turn must find a new group, too: see `_add`.
        for text in session.shared:
            self._ended.setdefault(text, {})[session] = is_moved
        self._slices.start(session, self._leave_all(session))

    def answer(self, leases: Iterable[int]) -> None:
        """Note that clients have answered messages."""
        for lease in leases:
            group = self._lent_by.pop(lease, None)
            if group is not None and group.answer(lease):
                self._change(group)

    def answer_runs(self, offsets: Mapping[int, list[int]]) -> None:
        """Note that a client has answered messages of runs, by lender."""
        for lender, those in offsets.items():
            known = self._lenders.get(lender)
            if known is not None:
                group, part = known
                group.answer_run(part, those)
                self._change(group)

    # from the node

    def beat(self) -> None:
        """Follow the zones, and report room that has come back; once a second."""
        self._beats += 1
        if not self._slices.is_busy(self._round):
            is_repeat = self._beats % REPEAT == 0
            self._slices.start(self._round, self._poll_all(is_repeat=is_repeat))

    def work(self) -> None:
        """Send the reports that are due, in slices."""
        if self._dirty and not self._slices.is_busy(self):
            self._slices.start(self, self._report_all())

    # from the edge

    def on_online(self, route: Route) -> None:
        """Report all groups of the zone: its owner is connected."""
        self._slices.start(self._round, self._poll_all())

    def on_lost(self, route: Route) -> None:
        """Note that the connection to the owner broke."""
        for group in self._groups.values():
            if group.route is route:
                group.port = group.pending = None

    # from coordinators

    def on_lent(
        self,
        route: Route,
        text: str,
        places: Sequence[LogPosition],
        messages: Sequence[Message],
        *,
        is_again: bool,
    ) -> None:
        """Give lent messages to members."""
        group = self._of(route, text)
        if group is None or group.pending is None:
            return  # lent before the members left; the coordinator hears of that
        if any(message.expiry == 0 for message in messages):
            places, messages = self._drop_expired(group, places, messages)
        leases = range(self._next_lease, self._next_lease + len(places))
        self._next_lease = leases.stop
        self._lent_by.update(dict.fromkeys(leases, group))
        if places:
            group.lend_all(places, messages, leases, is_again=is_again)
        for lease in leases:
            if not group.has_lease(lease):
                self._lent_by.pop(lease, None)
        self._change(group)

    def on_lent_run(
        self, route: Route, text: str, part: JournalId, run: Run, *, is_again: bool
    ) -> None:
        """Give lent messages of one part to members."""
        group = self._of(route, text)
        if group is None or group.pending is None:
            return
        given = group.lend_run(part, run, self._lender(group, part), is_again=is_again)
        left = range(given, run.count)
        if left:
            places = [LogPosition(part, run.offset(index)) for index in left]
            messages = [run.message(index) for index in left]
            self.on_lent(route, text, places, messages, is_again=is_again)
        self._change(group)

    def on_run(self, route: Route, text: str, run: Run) -> None:
        """Give messages of QoS 0 to members."""
        group = self._of(route, text)
        dropped = run.count if group is None else group.send_run(run)
        if dropped:
            self._counters.add("group.dropped.qos0", dropped)

    def on_confirmed(self, route: Route, text: str, pending: Collection[str]) -> None:
        """Answer SUBSCRIBE packets: the group has its subscription."""
        group = self._of(route, text)
        if group is not None:
            group.confirm(pending)

    def on_report_confirmed(self, route: Route, text: str, request: int) -> None:
        """Forget answers that are durable at the coordinator."""
        group = self._of(route, text)
        if group is not None:
            group.confirm_report(request)
            self._forget_idle(group)

    # internal

    def _poll_all(self, *, is_repeat: bool = False) -> Iterator[None]:
        """Follow the zone of each group, and its room."""
        for group in list(self._groups.values()):
            if self._groups.get(group.text) is not group:
                continue
            self._locate(group)
            if group.is_unknown and is_repeat:
                group.port = None  # maybe there is room for one more group by now
                self._change(group)
            elif group.port is not None and group.limit > group.told_limit:
                self._change(group)
            yield

    def _report_all(self) -> Iterator[None]:
        try:
            while self._dirty:
                group = next(iter(self._dirty))
                del self._dirty[group]
                if self._groups.get(group.text) is group:
                    self._report(group)
                yield
        finally:
            if self._dirty:  # an error of one report must not lose the others
                self._again()

    def _follow_in_all(self, session: Session) -> Iterator[None]:
        texts = list(session.shared)
        for start in range(0, len(texts), FEW):
            for text in texts[start : start + FEW]:
                if text in session.shared and not session.is_over:
                    self._follow_in(session, text)
            yield

    def _follow_in(self, session: Session, text: str) -> None:
        """Follow whether the client is connected now; it may have come and left again."""
        if session.sink is not None:
            self._add(session, text)
            return
        group = self._groups.get(text)
        if group is not None:
            group.disconnect(session)
            self._change(group)

    def _leave_all(self, session: Session) -> Iterator[None]:
        for text in list(session.shared):
            self._leave_ended(text)
            yield

    def _leave_ended(self, text: str) -> None:
        """End the memberships of sessions that are over, in this group."""
        for session, is_moved in self._ended.pop(text, {}).items():
            self._leave(session, text, is_moved=is_moved)

    def _of(self, route: Route, text: str) -> EdgeGroup | None:
        group = self._groups.get(text)
        return group if group is not None and group.route is route else None

    def _add(self, session: Session, text: str) -> EdgeGroup:
        if self._ended:
            self._leave_ended(text)
        group = self._groups.get(text)
        if group is None:
            group = self._groups[text] = _make_group(text)
        elif not group.sessions:
            group.port = group.pending = None  # its coordinator has heard that it is over
        group.sessions[session.client_id] = session
        if session.sink is not None:
            group.connect(session)
        if not group.is_noted:
            # After a crash nobody else can tell the coordinator that a member is gone.
            group.is_noted = self._session_store.note_group(text)
        self._locate(group)
        self._change(group)
        return group

    def _leave(self, session: Session, text: str, *, is_moved: bool = False) -> None:
        group = self._groups.get(text)
        if group is None:
            return
        group.disconnect(session)
        if group.sessions.get(session.client_id) is session:
            del group.sessions[session.client_id]
        if group.sessions:
            self._change(group)
        else:
            # Answers of this turn must be in the last report: another member would get them again.
            session.sender.poll_packet_writer()
            # A member that comes next must find a new group, without what came in between.
            group.goes_on = is_moved
            self._report(group)

    def _reclaim(self, session: Session) -> None:
        back, ended = session.sender.reclaim()
        for lease in back:
            group = self._lent_by.pop(lease, None)
            if group is not None:
                group.give_back((lease,))
                self._change(group)
        for lender, offsets in session.sender.reclaim_runs().items():
            known = self._lenders.get(lender)
            if known is not None:
                known[0].give_back_run(known[1], offsets)
                self._change(known[0])
        if ended:
            self._counters.add("group.dropped.qos2", len(ended))
            self.answer(ended)

    def _drop_expired(
        self, group: EdgeGroup, places: Sequence[LogPosition], messages: Sequence[Message]
    ) -> tuple[list[LogPosition], list[Message]]:
        """Complete the messages that expired on their way here; return the others."""
        lent = list(zip(places, messages, strict=True))
        expired = [place for place, message in lent if message.expiry == 0 and message.qos]
        group.expire(expired)
        self._counters.add("session.dropped.expired", len(expired))
        left = [(place, message) for place, message in lent if message.expiry != 0]
        return [place for place, _ in left], [message for _, message in left]

    def _lender(self, group: EdgeGroup, part: JournalId) -> int:
        """Return the number that stands for the group and the part in sessions' answers."""
        found = group.lenders.get(part)
        if found is None:
            found = group.lenders[part] = self._next_lender
            self._next_lender += 1
            self._lenders[found] = group, part
        return found

    def _locate(self, group: EdgeGroup) -> None:
        """Report the group at the node that serves its zone now."""
        route = self._zones.first(literal_prefix(group.topic_filter))
        earlier = group.route
        if earlier is not None and earlier is not route:
            earlier.interest.groups.discard(group.text)
            if earlier.port is not None and earlier.port is group.port:
                moved = GroupReport(is_over=True, is_moved=True)
                earlier.port.report_group(group.text, moved)
            group.port = group.pending = None
        group.route = route
        if not group.is_idle:  # answers of members that are gone must get there, too
            route.interest.groups.add(group.text)
        if group.port is not route.port:
            group.port = group.pending = None
        if route.port is None:
            self._wake(route)
        elif group.port is None:
            self._change(group)

    def _change(self, group: EdgeGroup) -> None:
        if not self._dirty:
            self._again()
        self._dirty[group] = None

    def _report(self, group: EdgeGroup) -> None:
        if group.route is None:  # of an earlier process
            self._locate(group)
        route = group.route
        assert route is not None
        port = route.port
        leases: list[int] = []
        if not group.sessions:
            leases = group.leases()
            group.end()
        if port is not None and port is group.port:
            port.report_group(group.text, group.report())
        elif port is not None and not group.is_idle:
            group.port = port
            port.report_group(group.text, group.first_report())
        if not group.sessions:
            for lease in leases:
                self._lent_by.pop(lease, None)
            self._forget_idle(group)

    def _forget_idle(self, group: EdgeGroup) -> None:
        """Forget a group without members, unless it has answers to report again."""
        if group.is_idle and self._groups.get(group.text) is group:
            del self._groups[group.text]
            if group.route is not None:
                group.route.interest.groups.discard(group.text)
            self._session_store.forget_group(group.text)
            for lender in group.lenders.values():
                del self._lenders[lender]

    def _await(self, group: EdgeGroup, waiter: Waiter) -> None:
        """Call the waiter when the coordinator has confirmed, or after the wait."""
        if group.pending is not None:
            waiter(group.pending)
            return

        def give_up() -> None:
            if waiter in group.waiters:
                group.waiters.remove(waiter)
                route = group.route
                apex = "" if route is None else route.apex
                self._reporter.event("group.pending", filter=group.text, zone=apex)
                waiter((apex,))

        group.waiters.append(waiter)
        self._patience.call_later(self.wait, give_up)

    def _save(
        self, session: Session, action: Callable[[], None], *, is_noted: bool = False
    ) -> None:
        if not session.clean:
            self._session_store.save_all(session)
        if is_noted or not session.clean:
            self._session_store.when_durable(action)
        else:
            action()


def _make_group(text: str, *, is_noted: bool = False) -> EdgeGroup:
    found = shared_subscription(text)
    assert found is not None
    return EdgeGroup(text, found[1], is_noted=is_noted)


class _Answer:
    """The answer to a SUBSCRIBE, which waits for some groups and for the disk."""

    def __init__(
        self, acknowledge: Callable[[], None], note_pending: Callable[[Collection[str]], None]
    ) -> None:
        self._acknowledge = acknowledge
        self._note_pending = note_pending
        self._open = 1

    def await_one(self) -> None:
        """Wait for one more group."""
        self._open += 1

    def end(self, pending: Collection[str]) -> None:
        """Note that a group has confirmed, or that the wait for it is over."""
        if pending:
            self._note_pending(pending)
        self.close()

    def close(self) -> None:
        """Wait for one thing less."""
        self._open -= 1
        if not self._open:
            self._acknowledge()
