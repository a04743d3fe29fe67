"""
The coordinator of one group and the members at three edges, without a reactor: frames, commits and
time go on as a test says.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice, takewhile
from typing import Any, cast

from tests.support.edge_parts import edge_parts
from tests.support.pair import Alarms
from tests.support.recorders import SinkRecorder, WatcherRecorder
from tests.support.runs import read_run
from txbroker.core import Router, Run
from txbroker.directory.effects import AwaitDurable
from txbroker.edge.groups.group_coordinators import GroupCoordinators, GroupNodes
from txbroker.edge.routing.group_report import GroupReport
from txbroker.edge.routing.owner_interest import OwnerInterest
from txbroker.edge.sessions.connect_procedure import (
    ConnectingClient,
    ConnectProcedure,
    OpenedSession,
)
from txbroker.edge.sessions.connect_runner import ConnectRunner
from txbroker.edge.sessions.session_connect import ConnectRefused
from txbroker.edge.sessions.session_format import decode_window, encode_window
from txbroker.edge.sessions.shared_subscriptions import SharedSubscriptions
from txbroker.model.counters import Counters
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.cursor import Subscription
from txbroker.mqtt.session.durable_sender import DurableSender
from txbroker.mqtt.session.group_sender import GroupSender
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.shared_subscription import SharedSubscription
from txbroker.mqtt.session.window import OutboundMessage, SessionLimits
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import Connect, Publish, Pubrel, Subscribe
from txbroker.runtime.slices import LONGEST, Slices

GROUP = "$share/g/t"
PART = JournalId("", 1)
LIMITS = SessionLimits(inflight=4)


class Commit:
    """A disk: what is written is durable when the test says `commit`."""

    def __init__(self) -> None:
        self._actions: list[Callable[[], None]] = []

    def when_durable(self, action: Callable[[], None]) -> None:
        """Wait for the next commit."""
        self._actions.append(action)

    def commit(self) -> None:
        """All is durable."""
        actions, self._actions = self._actions, []
        for action in actions:
            action()


class Watcher(WatcherRecorder):
    """Keeps sessions on a disk."""

    def __init__(self, disk: Commit, shared: SharedSubscriptions | None = None) -> None:
        super().__init__()
        self._disk = disk
        if shared is not None:
            self.answer_leases = shared.answer
            self.answer_runs = shared.answer_runs

    def save(self, session: Session, *, urgent: bool) -> None:
        if urgent and not session.is_over:
            sender = session.durable_sender
            self._disk.when_durable(lambda: sender.on_saved(sender.dequeue_unsaved()))

    def save_then(self, session: Session, action: Callable[[], None]) -> None:
        self._disk.when_durable(action)

    def expired(self, count: int) -> None:
        raise AssertionError

    def too_large(self, session: Session, count: int) -> None:
        self.events.append(("too large", count))

    def dropped(self, session: Session, qos: int, count: int, *, is_first: bool) -> None:
        raise AssertionError


class Member:
    """A client: what it has processed is in `world.processed`."""

    def __init__(self, world: World, name: str, *, clean: bool, qos: int) -> None:
        self.world, self.name, self.clean, self.qos = world, name, clean, qos
        self.sink: SinkRecorder | None = None
        self.due: deque[tuple[Publish | Pubrel, bytes]] = deque()
        self.open: dict[int, bytes] = {}

    def read(self, session: Session) -> None:
        """Take the packets that have come; a message of QoS 2 is processed now, once."""
        assert self.sink is not None
        events, taken = self.sink.events, list(self.sink.events)
        events.clear()
        for packet in taken:
            if isinstance(packet, Publish):
                assert packet.packet_id is not None
                if packet.qos == 2 and packet.packet_id in self.open:
                    assert self.open[packet.packet_id] == packet.payload
                else:
                    self.world.processed[packet.payload] += 1
                if packet.qos == 2:
                    self.open[packet.packet_id] = packet.payload
                self.due.append((packet, packet.payload))
            elif isinstance(packet, Pubrel):
                self.due.append((packet, b""))

    def answer(self, session: Session) -> None:
        """Answer the oldest packet."""
        if not self.due:
            return
        packet, _ = self.due.popleft()
        assert packet.packet_id is not None
        if isinstance(packet, Pubrel):
            self.open.pop(packet.packet_id, None)
            session.sender.on_pubcomp(packet.packet_id)
        elif packet.qos == 1:
            session.sender.on_pubacks([packet.packet_id])
        else:
            session.sender.on_pubrec(packet.packet_id)
        session.sender.poll_packet_writer()


class Link:
    """One connection of an edge with the coordinator: both ends' port, and what is on its way."""

    def __init__(self, world: World, edge: EdgeNode) -> None:
        self.world, self.edge = world, edge
        self.edge_name = edge.name
        self.up: deque[GroupReport] = deque()
        self.down: deque[Callable[[], None]] = deque()

    def report_group(self, group: str, report: GroupReport) -> None:
        self.up.append(report)

    def lend(
        self,
        group: str,
        part: JournalId,
        offsets: Sequence[int],
        messages: Sequence[Message],
        *,
        is_again: bool,
    ) -> None:
        places, route = [LogPosition(part, o) for o in offsets], cast(Any, self.edge.route)
        said = list(messages)
        self.down.append(
            lambda: self.edge.shared.on_lent(route, group, places, said, is_again=is_again)
        )

    def lend_run(self, group: str, part: JournalId, run: Run) -> None:
        route = cast(Any, self.edge.route)
        self.down.append(
            lambda: self.edge.shared.on_lent_run(route, group, part, run, is_again=False)
        )

    def send_run(self, group: str, run: Run) -> None:
        raise AssertionError

    def confirm(self, group: str, pending: Collection[str]) -> None:
        route = cast(Any, self.edge.route)
        self.down.append(lambda: self.edge.shared.on_confirmed(route, group, pending))

    def confirm_report(self, group: str, request: int) -> None:
        route = cast(Any, self.edge.route)
        self.down.append(lambda: self.edge.shared.on_report_confirmed(route, group, request))


class Way:
    """The route to the coordinator (`Route`)."""

    apex = ""

    def __init__(self) -> None:
        self.port: Link | None = None
        self.interest = OwnerInterest()


class NotedGroups:
    """What a session store notes of groups."""

    def __init__(self, groups: Iterable[str] = ()) -> None:
        self.noted_groups = set(groups)

    def note_group(self, text: str) -> bool:
        self.noted_groups.add(text)
        return True

    def forget_group(self, text: str) -> None:
        self.noted_groups.discard(text)


class EdgeNode(NotedGroups):
    """An edge and the clients that come to it."""

    def __init__(self, world: World, name: str, members: list[Member]) -> None:
        self.world, self.name = world, name
        self.members = {member.name: member for member in members}
        self.stored: dict[str, tuple[bool, list[tuple[int, OutboundMessage]]]] = {}
        self.stored_groups: set[str] = set()
        self.start()

    def start(self) -> None:
        """A new process, with the durable sessions that are on its disk."""
        self.disk = Commit()
        self.route = Way()
        self.is_due = False
        super().__init__(self.stored_groups)
        self.sessions: dict[str, Session] = {}
        self.slices = Slices(self.world.alarms.now, self._again)
        self.shared = SharedSubscriptions(
            edge_parts(self.world.alarms, self, again=self._again),
            zones=cast(Any, self),
            wake=lambda _: None,
            session_store=cast(Any, self),
            slices=self.slices,
            wait=1.0,
        )
        self.watcher = Watcher(self.disk, self.shared)
        for name, (is_member, flights) in self.stored.items():
            session = self._session(name)
            copies = [(number, _copy(entry)) for number, entry in flights]
            session.restore(copies, (), (), max((n for n, _ in flights), default=0))
            if is_member:
                session.share(_membership(self.members[name]))
            self.shared.adopt(session)

    # what the shared subscriptions see: zones, the store, the log

    def first(self, prefix: str) -> Way:
        return self.route

    def save_all(self, session: Session) -> None:
        """The test's disk takes all."""

    def when_durable(self, action: Callable[[], None]) -> None:
        self.disk.when_durable(action)

    def event(self, name: str, **fields: object) -> None:
        """Nobody reads it."""

    # what the schedule does

    def connect(self, name: str) -> None:
        """The client comes, and subscribes if it has not."""
        member = self.members[name]
        if member.sink is not None:
            return
        session = self.sessions.get(name) or self._session(name)
        member.sink = SinkRecorder()
        member.due.clear()
        if member.clean:
            member.open.clear()
        session.sender.attach(member.sink)
        self.shared.follow(session)
        if GROUP not in session.shared:
            subscribed = [(GROUP, member.qos)]
            self.shared.subscribe(session, subscribed, 0, lambda: None, lambda _: None)

    def disconnect(self, name: str) -> None:
        """The client's connection breaks."""
        member, session = self.members[name], self.sessions.get(name)
        if member.sink is None or session is None:
            return
        member.read(session)
        self.shared.reclaim(session)
        session.detach()
        self.shared.follow(session)
        member.sink = None
        if member.clean:
            self._end(session)

    def leave(self, name: str) -> None:
        """The client unsubscribes."""
        session = self.sessions.get(name)
        if session is not None and self.members[name].sink is not None:
            self.shared.unsubscribe(session, (GROUP,), lambda: None)

    def step(self, name: str, *, answers: bool) -> None:
        """The client reads, and answers one packet."""
        member, session = self.members[name], self.sessions.get(name)
        if member.sink is not None and session is not None:
            member.read(session)
            if answers:
                member.answer(session)

    def work(self) -> None:
        """End the turn."""
        if self.is_due:
            self.is_due = False
            self.slices.work()
            self.shared.work()
        self.shared.check()

    def commit(self) -> None:
        """All sessions are on the disk."""
        self.stored = {
            name: (GROUP in s.shared, [(n, _copy(e)) for n, e in s.durable_sender.flows()])
            for name, s in self.sessions.items()
            if not s.clean
        }
        self.stored_groups = set(self.noted_groups)
        self.disk.commit()

    def crash(self) -> None:
        """The process dies; the disk stays as it was at the last commit."""
        for name, member in self.members.items():
            session = self.sessions.get(name)
            if member.sink is not None and session is not None:
                member.read(session)
            member.sink = None
            member.due.clear()
        # Answers that are not durable at the coordinator go with the process.
        group = self.shared._groups.get(GROUP)
        if group is not None:
            had = [*group._places, *group._in_runs, *group._done]
            had += (place for places in group._unconfirmed.values() for place in places)
            self.world.excused |= {self.world.message(place).payload for place in had}
        self.cut()
        self.start()

    def join(self) -> None:
        """The link is up."""
        if self.route.port is None:
            self.route.port = link = Link(self.world, self)
            self.world.links.append(link)
            self.world.marked.add(self.name)
            self.world.come.add(self.name)
            self.world.coordinators.on_edge(link)
            self.shared.on_online(cast(Any, self.route))

    def cut(self) -> None:
        """The link breaks, with all that is on its way."""
        link, self.route.port = self.route.port, None
        if link is not None:
            self.world.links.remove(link)
            self.shared.on_lost(cast(Any, self.route))
            if self.world.is_late:
                self.world.slices.charge(LONGEST)
            self.world.coordinators.lose(link)

    def _again(self) -> None:
        self.is_due = True

    def _session(self, name: str) -> Session:
        member = self.members[name]
        session = Session(name, clean=member.clean, limits=LIMITS, watcher=self.watcher)
        self.sessions[name] = session
        return session

    def _end(self, session: Session, *, is_moved: bool = False) -> None:
        self.shared.end(session, is_moved=is_moved)
        session.close()
        del self.sessions[session.client_id]


class World:
    """The coordinator's node, and all else; `is_late`: its group notes breaks a turn later."""

    def __init__(self, seed: int, *, is_late: bool = False) -> None:
        self.random = random.Random(seed)
        self.is_late = is_late
        self.alarms = Alarms()
        self.router = Router(lambda: None)
        self.processed: Counter[bytes] = Counter()
        self.excused: set[bytes] = set()
        self.links: list[Link] = []
        self.journal: list[Message] = []
        self.stored: tuple[int, list[tuple[int, OutboundMessage]]] = (0, [])
        self.stored_edges: frozenset[str] = frozenset()
        self.is_elsewhere = False
        self.removed: set[str] = set()
        self.marked: set[str] = set()  # edges with low-water marks
        self.start()
        self.edges = [
            EdgeNode(self, "a", [Member(self, "a1", clean=False, qos=2)]),
            EdgeNode(
                self,
                "b",
                [Member(self, "b1", clean=True, qos=2), Member(self, "b2", clean=False, qos=2)],
            ),
            EdgeNode(self, "c", [Member(self, "c1", clean=True, qos=2)]),
        ]

    def start(self) -> None:
        """A new process of the coordinator's node."""
        self.disk = Commit()
        self.counters = Counters()
        self.sessions: dict[str, Session] = {}
        self.dirty: dict[Any, None] = {}
        self.come: set[str] = set()
        self.slices = Slices(self.alarms.now, lambda: None)
        self.coordinators = GroupCoordinators(
            edge=cast(Any, self),
            connects=cast(Any, self),
            timers=self.alarms,
            reporter=cast(Any, self),
            mark_dirty=self._mark,
            nodes=GroupNodes(
                is_leaving=lambda: False,
                is_removed=self.removed.__contains__,
                has_absent_edge=lambda: bool(self.marked - self.come - self.removed),
            ),
        )
        self.watcher = Watcher(self.disk)
        self.at, flights = self.stored
        session = self._session()
        copies = [(number, _copy(entry)) for number, entry in flights]
        for _, entry in copies:
            entry.message, entry.size = None, 0
        session.restore(copies, (), (), max((n for n, _ in flights), default=0))
        _sender_of(session).edges = self.stored_edges

    # what the coordinators see: the edge, its clients and subscriptions, the log

    clients = subscriptions = property(lambda self: self)
    runner = ConnectRunner(cast(Any, None), lambda action: None, cast(Any, None))

    def event(self, name: str, **fields: object) -> None:
        """Nobody reads it."""

    is_slow = False

    def connect(
        self, packet: Connect, client: ConnectingClient
    ) -> ConnectProcedure[OpenedSession | ConnectRefused]:
        if self.is_slow:
            yield AwaitDurable()
        if self.is_elsewhere:
            return ConnectRefused("away")
        return OpenedSession(self.sessions[GROUP], True, True, client)

    def attach(self, session: Session, group: Any) -> bool:
        session.sender.attach(group)
        return True

    def miss(self, session: Session) -> None:
        """The session stays."""

    def disconnect(self, session: Session, group: Any, *, will: bool) -> None:
        if session.sender.sink is group:
            session.detach()

    def subscribe(self, session: Session, packet: Subscribe, confirm: Any, note: Any) -> None:
        session.add(Subscription("t", 2))
        confirm()

    def set_expiry(self, session: Session, expiry: int | None) -> None:
        session.expiry = expiry

    def delete(self, client_id: str) -> None:
        self.excused |= {message.payload for message in self.journal}
        self.stored, self.stored_edges = (len(self.journal), []), frozenset()
        self.at = len(self.journal)
        self._session()

    # what the schedule does

    def publish(self, qos: int) -> None:
        """A message is accepted."""
        self.journal.append(Message("t", b"%d/%d" % (qos, len(self.journal)), qos))

    def pump(self) -> None:
        """End the coordinator's turn."""
        session = self.sessions[GROUP]
        sender = session.durable_sender
        if sender.sink is not None:
            for packet_id, place in sender.unread():
                sender.restore_packet(packet_id, self.message(place))
            cursor = session.places.behind.get(PART)
            if cursor is not None:
                self.at = min(self.at, cursor.offset)
                session.places.end(PART)
            while self.at < len(self.journal) and self._read(sender):
                """It goes on."""
        dirty, self.dirty = self.dirty, {}
        for one in dirty:
            one.flush()
        self.slices.work()

    def message(self, place: LogPosition) -> Message:
        """What lies there; offsets begin at 1."""
        return self.journal[place.offset - 1]

    def _read(self, sender: DurableSender) -> bool:
        """Launch what comes next in the journal: a run, or one message; False: there is no room."""
        plain = takewhile(lambda message: message.qos == 1, self.journal[self.at :])
        some = list(islice(plain, min(sender.run_room, self.random.randrange(5))))
        if some:
            sender.launch_run(PART, read_run(some, self.at + 1))
            self.at += len(some)
            return True
        message, place = self.journal[self.at], LogPosition(PART, self.at + 1)
        is_taken = sender.deliver(OutboundMessage(message, message.qos, False, place))
        self.at += is_taken
        return is_taken

    def commit(self) -> None:
        """The group's session is on the disk."""
        session = self.sessions[GROUP]
        sender = session.durable_sender
        at = min([self.at, *(offset - 1 for offset in sender.first_queued().values())])
        cursor = session.places.behind.get(PART)
        if cursor is not None:
            at = min(at, cursor.offset)
        value = encode_window(session)
        kept = Session(GROUP, clean=False, limits=SessionLimits(), watcher=self.watcher)
        flights = decode_window(value, kept, lambda _: None).flows
        self.stored = at, flights
        self.stored_edges = _sender_of(session).edges
        self.disk.commit()

    def crash(self) -> None:
        """The coordinator's process dies."""
        for edge in self.edges:
            edge.cut()
        self.start()

    def take_away(self) -> None:
        """Another node has the session."""
        session = self.sessions[GROUP]
        if session.sink is not None:
            session.sink.close("taken over", 0)

    def carry(self, link: Link) -> None:
        """Carry one frame each way."""
        if link.up:
            self.coordinators.report(link, GROUP, link.up.popleft())
        if link.down:
            link.down.popleft()()

    def run(self, steps: int) -> None:
        """Do so many random things."""
        names = [(edge, name) for edge in self.edges for name in edge.members]
        for _ in range(steps):
            edge, name = self.random.choice(names)
            what = self.random.random()
            if what < 0.12:
                self.publish(self.random.choice((1, 2)))
            elif what < 0.20:
                edge.connect(name)
            elif what < 0.23:
                edge.disconnect(name)
            elif what < 0.24:
                edge.leave(name)
            elif what < 0.45:
                edge.step(name, answers=self.random.random() < 0.6)
            elif what < 0.60:
                edge.commit()
            elif what < 0.65:
                edge.join()
            elif what < 0.665:
                edge.cut()
            elif what < 0.67:
                edge.crash()
            elif what < 0.675:
                self.crash()
            elif what < 0.685:
                self.is_elsewhere = not self.is_elsewhere
                self.take_away()
            elif what < 0.80:
                self.commit()
            elif what < 0.82:
                self.alarms.advance(1.0)
                self.beat()
            elif self.links:
                self.carry(self.random.choice(self.links))
            for one in self.edges:
                one.work()
            if self.random.random() < 0.7:
                self.pump()

    def beat(self) -> None:
        """A second has passed."""
        for edge in self.edges:
            edge.shared.beat()
        self.coordinators.beat()

    def settle(self) -> None:
        """All members come back and answer all, for as long as it takes."""
        self.is_elsewhere = False
        for _ in range(40 * (len(self.journal) + 10)):
            for edge in self.edges:
                edge.join()
                for name in edge.members:
                    edge.connect(name)
                    edge.step(name, answers=True)
                edge.work()
                edge.commit()
            for link in list(self.links):
                while link.up or link.down:
                    self.carry(link)
            self.pump()
            self.commit()
            self.alarms.advance(0.2)
            self.beat()
            if self.is_done():
                return

    def is_done(self) -> bool:
        """True if nothing is on its way."""
        sender = self.sessions[GROUP].durable_sender
        is_open = any(True for _ in sender.open_runs())
        has_flights = sender.window is not None and not sender.window.is_empty
        if self.at < len(self.journal) or is_open or has_flights:
            return False
        clients = [m for edge in self.edges for m in edge.members.values()]
        return not any(member.due for member in clients)

    def _mark(self, end: Any) -> None:
        self.dirty[end] = None

    def _session(self) -> Session:
        session = Session(GROUP, clean=False, limits=SessionLimits(), watcher=self.watcher)
        session.add(Subscription("t", 2))
        self.sessions[GROUP] = session
        return session


def _membership(member: Member) -> SharedSubscription:
    return SharedSubscription(GROUP, member.qos)


def _sender_of(session: Session) -> GroupSender:
    assert isinstance(session.sender, GroupSender)
    return session.sender


def _copy(entry: OutboundMessage) -> OutboundMessage:
    """What the disk has of a flight."""
    kept = OutboundMessage(
        entry.message, entry.qos, entry.retain, entry.place, entry.identifiers, entry.number
    )
    kept.released, kept.is_sent, kept.lent = entry.released, True, entry.lent
    return kept
