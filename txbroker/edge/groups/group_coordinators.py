"""
The groups that this node coordinates, as the owner of the zones that enclose their filters.

A group begins with the first edge that reports members. Its session is found or made as a client's
is, wherever it was before: so a group follows its zone to another node. While no member is
connected the session is away. It ends with the last member, after `GRACE` if no session of a member
outlives its connection, or as `session_limits.age` says.

One publish may concern thousands of groups. So groups with something to send are flushed in slices,
as the second's work is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import attrs

from txbroker.edge.groups.edge_connections import STALE, EdgeConnections
from txbroker.edge.groups.group_coordinator import GroupCoordinator, GroupEdge, GroupEvents
from txbroker.edge.groups.member_port import MemberPort
from txbroker.edge.routing.group_report import GroupReport
from txbroker.edge.sessions.connect_procedure import TAKEN_OVER, ConnectProcedure, OpenedSession
from txbroker.edge.sessions.edge import Edge
from txbroker.edge.sessions.session_connect import SessionConnect
from txbroker.model.reporter import Reporter
from txbroker.model.share_name import shared_subscription
from txbroker.model.timers import Timers
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.encoder import LARGEST_PACKET
from txbroker.mqtt.wire.packets import FOREVER, LEVEL_5, Connect, Subscribe
from txbroker.mqtt.wire.properties import Properties
from txbroker.mqtt.wire.subscription_options import AS_PUBLISHED
from txbroker.runtime.flush_queue import Flushable

GRACE: Final = 60
"""Seconds that a group outlives the connections of all edges, if no session of a member does."""

NO_RETAINED: Final = 2 << 4
"""The retain handling of shared subscriptions: they get no retained messages."""

CROWD: Final = 100
"""Groups that wait to be flushed, beyond which they are a crowd."""

AT_ONCE: Final = 8
"""
New groups whose sessions are looked up at the same time; the others wait in line.

The look-ups of thousands of groups kept the calls to all keepers busy: CONNECTs took seconds, and
clients of other nodes were refused.
"""

GROUPS: Final = 10_000
"""The most groups that one node coordinates; the next ones are not confirmed."""


@attrs.frozen(kw_only=True)
class GroupNodes:
    """
    What groups ask about nodes.

    - `is_leaving`: True while this node retires.
    - `is_removed`: True for the name of a node that a command removed.
    - `has_absent_edge`: True while an edge that the zone knows has not connected to this process.
    """

    is_leaving: Callable[[], bool]
    is_removed: Callable[[str], bool]
    has_absent_edge: Callable[[], bool]


class GroupCoordinators:
    """See the module's text."""

    def __init__(
        self,
        *,
        edge: Edge,
        connects: SessionConnect,
        timers: Timers,
        reporter: Reporter,
        mark_dirty: Callable[[Flushable], None],
        nodes: GroupNodes,
    ) -> None:
        self._edge = edge
        self._connects = connects
        self._timers = timers
        self._reporter = reporter
        self._mark_dirty = mark_dirty
        self._slices = edge.slices
        self._nodes = nodes
        self._reports_due_until = 0.0
        self._events = GroupEvents(
            changed=self._change,
            closed=self._on_closed,
            dropped=partial(edge.counters.add, "group.dropped.qos0"),
        )
        self._groups: dict[str, GroupCoordinator] = {}
        self._connections = EdgeConnections(
            self._groups, slices=edge.slices, timers=timers, release=self._release, drop=self._drop
        )
        self._connecting: set[str] = set()
        self._line: dict[str, None] = {}  # groups whose session has to be found or made
        self._looked_up: set[str] = set()  # of those that connect: begun since the last second
        self._told: set[str] = set()
        self._changed: dict[GroupCoordinator, None] = {}
        # owners of the second's work, and of the line, in the slices
        self._round, self._line_owner = object(), object()

    @property
    def groups(self) -> int:
        """Number of groups that this node coordinates."""
        return len(self._groups)

    # from edges

    def report(self, port: MemberPort, text: str, report: GroupReport) -> None:
        """Apply an edge's report on the members of a group."""
        self._connections.finish(port)
        group = self._groups.get(text)
        if group is None:
            if report.is_over and text not in self._edge.clients.sessions:
                if report.request:  # there is nothing that it answers
                    port.confirm_report(text, report.request)
                return
            if not report.is_first:
                return  # an edge whose first report was beyond the bound repeats that
            if len(self._groups) >= GROUPS:
                self._edge.counters.add("group.over_limit")
                return
            group = self._groups[text] = self._make(text)
        if report.is_first:
            self._connections.note_first(port, group)
        had_members = port.edge_name in group.edges
        group.report(port, report)
        if group.has_members:
            self._set_expiry(group)
            self._begin(group)
        elif group.edges:
            self._set_expiry(group)
            self._release(group)
        elif had_members:
            self._end(group)

    def lose(self, port: MemberPort) -> None:
        """Note that an edge's connection broke."""
        self._connections.lose(port)

    def on_edge(self, port: MemberPort) -> None:
        """Note that an edge has connected: its first reports are due."""
        self._reports_due_until = self._timers.now() + STALE
        self._connections.begin(port)

    # from the node

    def beat(self) -> None:
        """
        Try again what failed, and forget groups that have ended and edges that were removed; once a
        second.
        """
        if self._groups and self._nodes.has_absent_edge():
            self._reports_due_until = self._timers.now() + STALE
        # Keepers that are away must not delay the groups of other keepers.
        self._looked_up.clear()
        self._go_on()
        if not self._slices.is_busy(self._round):
            self._slices.start(self._round, self._check_all())

    # from the flush queue

    def flush(self) -> None:
        """Flush the groups that have something to send."""
        if self._changed and not self._slices.is_busy(self):
            self._slices.start(self, self._flush_all())

    # internal

    def _check_all(self) -> Iterator[None]:
        for group in list(self._groups.values()):
            if self._groups.get(group.text) is group:
                self._check(group)
            yield

    def _check(self, group: GroupCoordinator) -> None:
        group.settle()
        self._drop_removed(group)
        if self._groups.get(group.text) is not group:
            return
        if group.session is None and not group.has_members:
            if group.text not in self._edge.clients.sessions:
                self._forget(group)
            elif not group.awaits_member:
                self._set_expiry(group)  # its last durable edge may have been removed
        else:
            self._begin(group)

    def _change(self, group: GroupCoordinator) -> bool:
        """Have the group flushed; return True if a crowd waits."""
        self._changed[group] = None
        self._mark_dirty(self)
        return len(self._changed) > CROWD

    def _flush_all(self) -> Iterator[None]:
        try:
            while self._changed:
                group = next(iter(self._changed))
                del self._changed[group]
                group.send()
                yield
        finally:
            if self._changed:  # an error of one group must not lose the others' output
                self._mark_dirty(self)

    def _make(self, text: str) -> GroupCoordinator:
        return GroupCoordinator(
            text,
            self._edge.clients.sessions.get(text),
            router=self._edge.router,
            now=self._timers.now,
            events=self._events,
            max_packet=LARGEST_PACKET,
        )

    def _begin(self, group: GroupCoordinator) -> None:
        """Find or make the group's session: at once if the session is here, or in its turn."""
        if group.session is not None or group.text in self._connecting:
            return
        if group.text in self._edge.clients.sessions:
            self._look_up(group)
        else:
            self._line[group.text] = None
            self._go_on()

    def _go_on(self) -> None:
        """Look up the sessions of the groups that are next in the line."""
        has_room = len(self._looked_up) < AT_ONCE
        if self._line and has_room and not self._slices.is_busy(self._line_owner):
            self._slices.start(self._line_owner, self._look_up_next())

    def _look_up_next(self) -> Iterator[None]:
        while self._line and len(self._looked_up) < AT_ONCE:
            text = next(iter(self._line))
            del self._line[text]
            group = self._groups.get(text)
            if group is not None:
                self._looked_up.add(text)
                self._look_up(group)
            yield

    def _look_up(self, group: GroupCoordinator) -> None:
        text = group.text
        is_done = group.session is not None or text in self._connecting
        if is_done or self._nodes.is_leaving() or not group.has_members:
            self._looked_up.discard(text)
            return
        self._connecting.add(text)
        packet = Connect(
            client_id=text,
            clean_session=False,
            protocol_level=LEVEL_5,
            properties=Properties(session_expiry=FOREVER if self._is_durable(group) else GRACE),
        )
        self._connects.runner.run(self._connect(group, packet))

    def _connect(self, group: GroupCoordinator, packet: Connect) -> ConnectProcedure[None]:
        found = None
        try:
            found = yield from self._connects.connect(packet, _ConnectingGroup())
        finally:
            self._end_look_up(group)
        if isinstance(found, OpenedSession):
            self._accept(group, found.session, found.present)
        else:
            self._on_refused(group, TAKEN_OVER if found is None else found.reason)

    def _accept(self, group: GroupCoordinator, session: Session, present: bool) -> None:
        self._told.discard(group.text)
        clients = self._edge.clients
        if not group.has_members or self._groups.get(group.text) is not group:
            clients.miss(session)
            return
        group.attach(session, present=present)
        if not clients.attach(session, group):
            group.detach()
            return
        found = shared_subscription(group.text)
        assert found is not None
        topic_filter = found[1]
        known = session.subscriptions.get(topic_filter)
        if known is not None:
            group.confirm(tuple(known.pending))
            return
        packet = Subscribe(1, ((topic_filter, 2 | AS_PUBLISHED | NO_RETAINED),))
        pending: list[str] = []
        confirm = partial(self._confirm, group, session, pending)
        self._edge.subscriptions.subscribe(session, packet, confirm, pending.extend)

    def _end_look_up(self, group: GroupCoordinator) -> None:
        self._connecting.discard(group.text)
        self._looked_up.discard(group.text)
        self._go_on()

    def _confirm(self, group: GroupCoordinator, session: Session, pending: list[str]) -> None:
        if group.session is session:
            group.confirm(tuple(pending))

    def _on_refused(self, group: GroupCoordinator, reason: str) -> None:
        """Try again later: the session cannot be had."""
        is_wanted = self._groups.get(group.text) is group
        if is_wanted and group.text not in self._told:
            self._told.add(group.text)
            self._reporter.event("group.unreachable", filter=group.text, reason=reason)

    def _on_closed(self, group: GroupCoordinator) -> None:
        self._release(group)

    def _release(self, group: GroupCoordinator) -> None:
        """Let the session go: it stays here with its client away, or moves to another node."""
        session = group.session
        if session is not None:
            group.detach()
            self._edge.clients.disconnect(session, group, will=False)

    def _end(self, group: GroupCoordinator) -> None:
        """End a group without members."""
        session = group.session
        self._release(group)
        self._forget(group)
        knows_all = group.knows_all_edges(GRACE) and not self._may_have_others(group)
        if knows_all and not group.awaits_member:
            self._edge.clients.delete(group.text)
            group.end()
        elif session is not None:
            session.save_then(group.end)
        # Else members at edges that have not come back yet, or one between two edges, may need the
        # group's position.

    def _forget(self, group: GroupCoordinator) -> None:
        del self._groups[group.text]
        self._line.pop(group.text, None)
        self._told.discard(group.text)  # otherwise names of groups that came once stay for ever

    def _set_expiry(self, group: GroupCoordinator) -> None:
        session = self._edge.clients.sessions.get(group.text)
        expiry = None if self._is_durable(group) else GRACE
        if session is not None and session.expiry != expiry:
            self._edge.clients.set_expiry(session, expiry)

    def _is_durable(self, group: GroupCoordinator) -> bool:
        """True if a member's session outlives its connection, or may."""
        return group.is_durable or self._may_have_others(group)

    def _may_have_others(self, group: GroupCoordinator) -> bool:
        """
        True if an edge may have a durable member, and has not reported to this process.

        Without it such a member loses the group's messages: its node was away for longer than
        `GRACE`, as the last other member left.
        """
        return group.was_durable and self._timers.now() < self._reports_due_until

    def _drop_removed(self, group: GroupCoordinator) -> None:
        """
        Lend the messages of nodes that do not come back to others.

        A connected edge lives, whatever an operator says: dropped, its members would get nothing
        more. Or it is dead, and its connection breaks later.
        """
        group.stop_awaiting(self._nodes.is_removed)
        for edge in list(group.edges.values()):
            if edge.port is None and self._nodes.is_removed(edge.name):
                self._drop(group, edge)

    def _drop(self, group: GroupCoordinator, edge: GroupEdge) -> None:
        group.remove(edge)
        if not group.edges and self._groups.get(group.text) is group:
            self._end(group)


class _ConnectingGroup:
    """A group as a client without a socket, until it has its session (`ConnectingClient`)."""

    __slots__ = ("is_open",)

    def __init__(self) -> None:
        self.is_open = True

    def close(self, reason: str, code: int) -> None:
        """End the wait: the group's session is wanted elsewhere."""
        self.is_open = False

    def drop_if_gone(self) -> bool:
        """Return False: a group does not leave while it waits."""
        return False

    def host(self) -> str:
        """Return the same for all groups."""
        return ""
