"""
The coordinator of one group: it lends the messages of the group's session to members.

Theory of operation. The group is a durable session whose client id is the group's whole filter (see
`GroupSender`), and the coordinator is its client. A message that the session sends is waiting, then
lent to an edge, then complete. The coordinator lends as many messages to an edge as the edge has
reported room for. Each edge gets its share by the number of its members.

A QoS 1 message whose edge is gone is lent to another one. A QoS 2 message stays lent until that
edge comes back, or its next process reports that it does not have the message. After a start the
coordinator does not know what was lent. It waits for such reports of all edges that had members:
their names are stored with the session before anything is lent to them.

Most messages come and go by the run: of these the coordinator knows which edge has which places.
What is lent again has a flight of its own.

Invariant: a message in flight is at one place: waiting, in doubt, or lent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final

import attrs

from txbroker.core import Router, Run
from txbroker.edge.groups.group_queue import GroupQueue
from txbroker.edge.groups.member_port import MemberPort
from txbroker.edge.routing.group_report import GroupReport
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.log_positions import PlaceSet
from txbroker.mqtt.session.group_sender import GroupSender
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.window import LaunchedRun, OutboundMessage, run_offsets
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import LEVEL_5

SETTLING: Final = 3.0
"""
The least seconds for which a QoS 2 message of an earlier process waits for an edge with members.

An earlier version did not store the names of the edges.
"""

MOST_LENT: Final = 65_535
"""The most unanswered messages of a group: each has a packet id."""

MOST_REPORTED: Final = 2 * MOST_LENT
"""The most messages of which edges may report before the session has them."""

MOST_IN_CROWD: Final = 4_096
"""Bytes of QoS 0 of one group that wait while a crowd of groups waits for its turns."""

_NO_JOURNAL: Final = JournalId("", 0)
"""Stands for the journal of a message that no journal has; its offset is the packet id."""


@attrs.define(eq=False)
class GroupEdge:
    """
    An edge with members, connected or not.

    - `sent`: messages lent on the present connection; at most `limit`.
    - `is_stored`: True if the disk has the name of the edge, so that it may have messages.
    - `turns`: messages lent for each member, by which edges take turns.
    - `has`: the messages lent in runs that are not answered.
    """

    name: str
    port: MemberPort | None = None
    members: int = 0
    is_durable: bool = False
    limit: int = 0
    sent: int = 0
    is_stored: bool = False
    turns: float = 0.0
    has: PlaceSet = attrs.field(factory=PlaceSet)

    @property
    def has_members(self) -> bool:
        """True if the edge is connected and has a connected member."""
        return self.port is not None and self.members > 0

    @property
    def room(self) -> int:
        """Messages that may be lent to the edge now."""
        may_lend = self.is_stored and self.has_members
        return max(self.limit - self.sent, 0) if may_lend else 0


@attrs.frozen(kw_only=True)
class GroupEvents:
    """
    What a group calls.

    - `changed` asks for a call of `send` at the end of the turn, or in a slice after it, and
      returns True if a crowd of groups waits for that.
    - `closed` reports that another node has the session.
    - `dropped` counts messages of QoS 0 that no member gets.
    """

    changed: Callable[[GroupCoordinator], bool]
    closed: Callable[[GroupCoordinator], None]
    dropped: Callable[[int], None]


class GroupCoordinator:
    """
    The group `text`; the session's `GroupSink` while a session is attached.

    `was_durable`: True if a durable member may be at an edge that has not come back since.
    `awaits_member`: True if the last durable member has left its edge for another one, and no edge
    has reported a durable member since.
    """

    receive_maximum = 0

    def __init__(
        self,
        text: str,
        earlier: Session | None,
        *,
        router: Router,
        now: Callable[[], float],
        events: GroupEvents,
        max_packet: int,
    ) -> None:
        """`earlier`: the group's session of an earlier process or coordinator."""
        self.text = text
        self.packet_writer = router.make_packet_writer()
        self.edges: dict[str, GroupEdge] = {}
        self.session: Session | None = None
        self.pending: Collection[str] | None = None
        self.awaits_member = False
        self.was_durable = earlier is not None and earlier.expiry is None
        self._now = now
        self._changed = events.changed
        self._on_closed = events.closed
        self._count_dropped = events.dropped
        self._waiting = GroupQueue()
        self._doubtful: dict[LogPosition, tuple[int, OutboundMessage]] = {}
        self._settled_at = 0.0
        self._back: set[str] = set()  # edges that have reported to this process
        self._awaited: set[str] = set()  # edges that may have messages, and have not
        # An edge may leave before the session is attached, and others have not come back yet.
        self._resumed_at: float | None = None if earlier is None else now()
        self._lent: dict[LogPosition, tuple[int, GroupEdge]] = {}
        self._held: dict[LogPosition, GroupEdge] = {}
        self._answered: set[LogPosition] = set()
        self._completed: dict[int, LogPosition] = {}
        self._confirms: dict[MemberPort, int] = {}
        self._asking: dict[MemberPort, int] = {}
        self._reader = router.make_packet_reader(self.packet_writer, max_packet)
        self.packet_writer.level = LEVEL_5
        self.packet_writer.connection = self

    # its life

    @property
    def has_members(self) -> bool:
        """True if a member is connected, at an edge that is connected."""
        return any(edge.has_members for edge in self.edges.values())

    @property
    def is_durable(self) -> bool:
        """True if the session of a member outlives its connection."""
        return any(edge.is_durable for edge in self.edges.values())

    @property
    def sender(self) -> GroupSender | None:
        """Return the session's sender while the session is attached."""
        if self.session is None:
            return None
        assert isinstance(self.session.sender, GroupSender)
        return self.session.sender

    def knows_all_edges(self, grace: float) -> bool:
        """
        True if no other edge has members: the group is new, or `grace` seconds have passed since it
        came from another process.
        """
        return self._resumed_at is None or self._now() - self._resumed_at >= grace

    def attach(self, session: Session, *, present: bool) -> None:
        """Begin with the group's session, just before it is attached; `present`: it is not new."""
        self.session = session
        if present and self._resumed_at is None:
            self._resumed_at = self._now()
            self.was_durable = True
        self._settled_at = self._now() + SETTLING
        assert self.sender is not None
        self._awaited = set(self.sender.edges - self._back)
        for edge in self.edges.values():
            edge.is_stored = False
        self._store_edges()
        self._reader.open(session, "", None, clean=False, level=LEVEL_5)
        self._count_room()

    def detach(self) -> None:
        """Forget the session and its messages: it goes on elsewhere, or later."""
        # What edges have and had does not change, and they report it once for each connection.
        self._held.update({place: edge for place, (_, edge) in self._lent.items()})
        for edge in self.edges.values():
            self._held.update(dict.fromkeys(edge.has, edge))
            edge.has.clear()
        self._answered.update(self._completed.values())
        self.session = None
        self.pending = None
        self._waiting.clear()
        self._doubtful.clear()
        self._lent.clear()
        self._completed.clear()
        self._reader.close()
        self.packet_writer.dequeue()

    def confirm(self, pending: Collection[str]) -> None:
        """Tell all edges that the group has its subscription."""
        self.pending = pending
        self._changed(self)
        for edge in self.edges.values():
            if edge.port is not None:
                edge.port.confirm(self.text, pending)

    # from edges

    def report(self, port: MemberPort, report: GroupReport) -> None:
        """Apply an edge's report on its members."""
        edge = self.edges.get(port.edge_name)
        self._back.add(port.edge_name)
        self._awaited.discard(port.edge_name)
        if report.request:
            self._asking[port] = self._confirms[port] = report.request
        if edge is None:
            if report.is_over:
                self._complete(report.done)
                self._store_edges()
                self._changed(self)
                return
            edge = self.edges[port.edge_name] = GroupEdge(port.edge_name)
            self._store_edges()
        if edge.port is not port:
            if not report.is_first:
                return  # a late report on an earlier connection
            self._begin(edge, port, report)
        if report.is_moved:
            self.lose(port)  # the members stay, and have what they have of QoS 2
            return
        if edge.members == 0:
            edge.turns = max(edge.turns, self._least_turns(edge))
        edge.members, edge.limit = report.members, report.limit
        edge.is_durable = report.is_durable
        self._complete(report.done)
        self._take_runs_back(edge, report.returned)
        for place, is_again in reversed(list(report.returned.items())):
            self._take_back(edge, place, is_again=is_again)
        if report.is_over:
            self.remove(edge)
            self.awaits_member |= report.is_durable and not self.is_durable
        elif report.is_durable:
            self.awaits_member = False
        self._changed(self)

    def lose(self, port: MemberPort) -> None:
        """Lend an edge's QoS 1 messages to others: its connection broke."""
        self._confirms.pop(port, None)
        self._asking.pop(port, None)
        edge = self.edges.get(port.edge_name)
        if edge is None:
            return
        if edge.port is not port:
            return
        edge.port, edge.members = None, 0
        sender = self.sender
        for place in self._lent_to(edge):
            entry = None if sender is None else sender.flight(self._lent[place][0])
            if entry is None or entry.qos == 1:
                self._take_back(edge, place, is_again=True)
        self._take_runs_back(edge, dict.fromkeys(edge.has, True))
        self._changed(self)

    def remove(self, edge: GroupEdge) -> None:
        """Forget an edge, and lend all of its messages to others."""
        self.edges.pop(edge.name, None)
        for place in self._lent_to(edge):
            self._take_back(edge, place, is_again=True)
        self._take_runs_back(edge, dict.fromkeys(edge.has, True))
        self._forget_held(edge)
        self._store_edges()
        self._changed(self)

    def stop_awaiting(self, has_nothing: Callable[[str], bool]) -> None:
        """Await no report of edges that have no message; `has_nothing`: True for such a name."""
        gone = {name for name in self._awaited if has_nothing(name)}
        if gone:
            self._awaited -= gone
            self._store_edges()

    # from the session (GroupSink)

    def lend(self, flights: list[tuple[int, OutboundMessage]]) -> None:
        """Lend QoS 1 and 2 messages, each to a member."""
        now = self._now()
        for packet_id, entry in flights:
            # Also of one in doubt: the message would come later than its interval.
            entry.begin_to_wait(now)
            if self._held or self._answered or entry.is_again:
                self._lend_again(packet_id, entry)
            else:
                self._waiting.add((packet_id, entry))
        self._changed(self)

    def lend_run(self, run: LaunchedRun) -> None:
        """Lend messages of QoS 1, each to a member: none of them was lent before."""
        self._waiting.add_run(run)
        self._changed(self)

    def _lend_again(self, packet_id: int, entry: OutboundMessage) -> None:
        """Lend a message that an edge may have, or may have answered."""
        place = _place(packet_id, entry)
        holder = self._held.pop(place, None)
        if place in self._answered:
            self._answered.discard(place)
            self._completed[packet_id] = place
        elif holder is not None and (entry.qos == 2 or holder.port is not None):
            self._lent[place] = packet_id, holder
        elif entry.is_again and entry.qos == 2 and self._is_doubtful:
            self._doubtful[place] = packet_id, entry
        else:
            self._waiting.add((packet_id, entry))

    def deliver_qos0(self, entry: OutboundMessage) -> None:
        """Send a QoS 0 message to a member, or discard the message."""
        self._send_qos0()  # earlier messages first
        edges = [edge for edge in self.edges.values() if edge.has_members]
        if not edges or entry.message is None:
            self._count_dropped(1)
            return
        edge = min(edges, key=_turns)
        edge.turns += 1 / edge.members
        assert edge.port is not None
        edge.port.lend(self.text, _NO_JOURNAL, (0,), (entry.message,), is_again=False)

    def close(self, reason: str, code: int) -> None:
        """Release the session: another node takes it, or an operator ends it."""
        self._on_closed(self)

    def end(self) -> None:
        """Confirm all reports: the group has ended, and its session is over or durable."""
        self._confirm_reports(self._asking)

    # from the router

    def flush(self) -> None:
        """
        Have the session's output of QoS 0 sent; at once if no more fits.

        One publish may be for thousands of groups: sent in one turn, it stalled all clients. What
        such a crowd cannot send is dropped early: it would take the room of all clients' output.
        """
        packet_writer = self.packet_writer
        if self._changed(self):
            packet_writer.is_shut = packet_writer.size > MOST_IN_CROWD
        elif not packet_writer.has_room:
            self._send_qos0()

    # from the coordinators

    def send(self) -> None:
        """Lend what waits, and confirm what is durable."""
        self.packet_writer.is_shut = False
        if self.session is None:
            return
        sender = self.sender
        assert sender is not None
        self._send_qos0()
        if self._completed:
            completed, self._completed = self._completed, {}
            sender.complete(completed)
        if self.pending is not None:  # an edge takes nothing before the group is confirmed
            self._distribute()
        self._count_room()
        sender.pump()
        if self._confirms and not self._answered:
            confirms, self._confirms = self._confirms, {}
            self.session.save_then(lambda: self._confirm_reports(confirms))

    def settle(self) -> None:
        """Lend messages whose edge did not come back in time; once a second."""
        sender = self.sender
        if sender is not None and self._now() >= self._settled_at and not sender.has_unread:
            # What edges reported of messages that are not in flight was complete before.
            self._held.clear()
            if self._answered:
                self._answered.clear()
                self._changed(self)
        if self._doubtful and not self._is_doubtful:
            for flight in self._doubtful.values():
                self._waiting.add(flight)
            self._doubtful.clear()
        if self._waiting:
            self._changed(self)

    # internal

    @property
    def _is_doubtful(self) -> bool:
        """True while an edge that has not reported may have messages of an earlier process."""
        return bool(self._awaited) or self._now() < self._settled_at

    def _store_edges(self) -> None:
        """Store which edges may have messages. Then the new ones may get some."""
        session, sender = self.session, self.sender
        if session is None or sender is None:
            return
        names = self._awaited | self.edges.keys()
        if names != sender.edges:
            sender.edges = frozenset(names)
            session.save_all()
        new = [edge for edge in self.edges.values() if not edge.is_stored]
        if new:
            session.save_then(partial(self._on_stored, new))

    def _on_stored(self, edges: Iterable[GroupEdge]) -> None:
        for edge in edges:
            edge.is_stored = True
        self._changed(self)

    def _begin(self, edge: GroupEdge, port: MemberPort, report: GroupReport) -> None:
        """Apply the first report on a connection: all that the edge has of the group's messages."""
        edge.port, edge.sent = port, 0
        held, done = report.held, report.done
        self._forget_held(edge)  # of an earlier connection, or process
        for place in self._lent_to(edge):
            if place not in held and place not in done:
                self._take_back(edge, place, is_again=True)
        gone = (place for place in edge.has if place not in held and place not in done)
        self._take_runs_back(edge, dict.fromkeys(gone, True))
        waiting = {_place(*flight): flight for flight in self._waiting.flights()}
        kept = []
        for place in report.held:
            flight = self._doubtful.pop(place, None) or waiting.get(place)
            if flight is not None:
                kept.append(place)
                self._lent[place] = flight[0], edge
            elif not self._is_lent(place) and len(self._held) < MOST_REPORTED:
                self._held[place] = edge
        if kept:
            self._waiting.keep([f for place, f in waiting.items() if place not in held])
        if self.pending is not None:
            port.confirm(self.text, self.pending)

    def _lent_to(self, edge: GroupEdge) -> list[LogPosition]:
        """Return what is lent to an edge, the last one first: each goes before all that waits."""
        return [place for place, lent in reversed(self._lent.items()) if lent[1] is edge]

    def _is_lent(self, place: LogPosition) -> bool:
        return place in self._lent or any(place in edge.has for edge in self.edges.values())

    def _forget_held(self, edge: GroupEdge) -> None:
        for place in [place for place, holder in self._held.items() if holder is edge]:
            del self._held[place]

    def _least_turns(self, new: GroupEdge) -> float:
        known = [edge.turns for edge in self.edges.values() if edge.members and edge is not new]
        return min(known, default=0.0)

    def _complete(self, done: PlaceSet) -> None:
        packet_ids = []
        waiting: set[LogPosition] = set()
        for place in self._complete_runs(done):
            lent = self._lent.pop(place, None)
            flight = self._doubtful.pop(place, None)
            self._held.pop(place, None)
            if lent is not None:
                packet_ids.append(lent[0])
            elif flight is not None:
                packet_ids.append(flight[0])
            elif self.sender is None or self.sender.has_unread:
                if len(self._answered) < MOST_REPORTED:
                    self._answered.add(place)
            else:
                waiting.add(place)
        if waiting and self._waiting:
            flights = {_place(*flight): flight for flight in self._waiting.flights()}
            packet_ids += [flights[place][0] for place in waiting if place in flights]
            self._waiting.keep([f for place, f in flights.items() if place not in waiting])
        if packet_ids and self.sender is not None:
            self._count_room()
            self.sender.complete(packet_ids)

    def _complete_runs(self, done: PlaceSet) -> PlaceSet:
        """End the flights of messages that were lent in runs; return the other places."""
        others = PlaceSet()
        for part, offsets in done.parts():
            left = set(offsets)
            ended: set[int] = set()
            for edge in self.edges.values():
                ended |= edge.has.take(part, left)
            if ended and self.sender is not None:
                self.sender.complete_run(part, ended)
            others.update(part, left - ended)
        return others

    def _take_runs_back(self, edge: GroupEdge, returned: Mapping[LogPosition, bool]) -> None:
        """Have messages of runs lent again, one by one; each with whether a member had it."""
        parts: dict[JournalId, dict[int, bool]] = {}
        for (part, offset), was_sent in returned.items() if edge.has else ():
            parts.setdefault(part, {})[offset] = was_sent
        for part, offsets in parts.items():
            taken = edge.has.take(part, offsets)
            if taken and self.sender is not None:
                self.sender.take_apart(part, {offset: offsets[offset] for offset in taken})

    def _take_back(self, edge: GroupEdge, place: LogPosition, *, is_again: bool) -> None:
        """Let a message wait again, before all others."""
        if self._held.get(place) is edge:
            del self._held[place]
        lent = self._lent.get(place)
        if lent is None or lent[1] is not edge or self.sender is None:
            return
        del self._lent[place]
        entry = self.sender.flight(lent[0])
        if entry is not None and entry.message is not None:
            entry.is_again = entry.is_again or is_again
            self._waiting.add_first((lent[0], entry))

    def _distribute(self) -> None:
        """Lend waiting messages to the edges that have room, in turn."""
        while self._waiting:
            edges = [edge for edge in self.edges.values() if edge.room]
            if not edges:
                return
            edge = min(edges, key=_turns)
            members = sum(one.members for one in edges)
            share = max(self._waiting.count * edge.members // members, 1)
            if self._waiting.run is None:
                self._lend_some(edge, min(share, edge.room))
            elif self.sender is not None and self.sender.is_resending:
                return  # what comes again goes first
            else:
                self._lend_part(edge, min(share, edge.room))

    def _lend_part(self, edge: GroupEdge, most: int) -> None:
        """Lend the next messages of a run to an edge."""
        assert edge.port is not None
        part, run = self._waiting.dequeue_run(most)
        edge.has.update(part, run_offsets(run))
        edge.sent += run.count
        edge.turns += run.count / edge.members
        edge.port.lend_run(self.text, part, run)

    def _lend_some(self, edge: GroupEdge, most: int) -> None:
        """Lend the next messages of one part to an edge."""
        port = edge.port
        assert port is not None
        waiting, now = self._waiting, self._now()
        part: JournalId | None = None
        is_again = False
        offsets: list[int] = []
        messages: list[Message] = []
        while (flight := waiting.flight) is not None and len(offsets) < most:
            packet_id, entry = flight
            place = entry.place or _place(packet_id, entry)
            if part is not None and (place.part != part or entry.is_again != is_again):
                break
            waiting.dequeue()
            is_ageing = entry.until is not None
            if (is_ageing and not entry.end_to_wait(now)) or entry.message is None:
                self._expire(packet_id)
                continue
            if is_ageing:
                entry.begin_to_wait(now)  # until it is answered, or waits again
            part, is_again = place.part, entry.is_again
            offsets.append(place.offset)
            messages.append(entry.message)
            self._lent[place] = packet_id, edge
        if part is None:
            return
        edge.sent += len(offsets)
        edge.turns += len(offsets) / edge.members
        port.lend(self.text, part, offsets, messages, is_again=is_again)

    def _expire(self, packet_id: int) -> None:
        assert self.session is not None and self.sender is not None
        self.session.count_expired(1)
        self.sender.complete((packet_id,))

    def _send_qos0(self) -> None:
        """Share the output of QoS 0 among the edges with members."""
        dropped, self.packet_writer.dropped = self.packet_writer.dropped, 0
        if dropped:
            self._count_dropped(dropped)
        if not self.packet_writer.size:
            return
        self._reader.feed(self.packet_writer.dequeue())
        while True:
            frame = self._reader.step()
            run = self._reader.qos0
            if run is not None:
                self._share_run(run)
            elif frame is None and not self._reader.has_more:
                return  # and not before: the reader keeps its last run, 80 KB for each group

    def _share_run(self, run: Run) -> None:
        edges = [edge for edge in self.edges.values() if edge.has_members]
        members = sum(edge.members for edge in edges)
        if not members:
            self._count_dropped(run.count)
            return
        edges.sort(key=_turns)
        at, counted = 0, 0
        for edge in edges:
            counted += edge.members
            stop = max(run.count * counted // members, min(at + 1, run.count))
            if stop > at:
                assert edge.port is not None
                part = run if stop - at == run.count else run.select(range(at, stop))
                edge.port.send_run(self.text, part)
                edge.turns += (stop - at) / edge.members
            at = stop

    def _count_room(self) -> None:
        room = sum(edge.room for edge in self.edges.values())
        lent = len(self._lent) + sum(len(edge.has) for edge in self.edges.values())
        known = lent + self._waiting.count + len(self._doubtful)
        # As many again as members can have: these are durable when members have answered.
        ahead = 2 * room + lent
        self.receive_maximum = min(known + max(ahead - self._waiting.count, 0), MOST_LENT)

    def _confirm_reports(self, confirms: Mapping[MemberPort, int]) -> None:
        for port, request in confirms.items():
            if port in self._asking:
                port.confirm_report(self.text, request)


def _turns(edge: GroupEdge) -> float:
    return edge.turns


def _place(packet_id: int, entry: OutboundMessage) -> LogPosition:
    return LogPosition(_NO_JOURNAL, packet_id) if entry.place is None else entry.place
