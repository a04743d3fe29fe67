"""
Random schedules of an edge, its clients and owners of zones that come and go.

Everything between a client's packet and an owner's journal is real: sessions, outboxes on a disk,
links, authorities, handovers. Only time, sockets, processes and the disk's syncs are the machine's.
An edge may be killed between any two writes, an owner at any time; links break anywhere.

What is checked, when all is whole again: every publish that its client finished is in a journal, of
QoS 2 once, and the first copies of each topic's lie in the order in which they were published.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.support.connects import connect
from tests.support.edge_parts import edge_parts
from tests.support.journal import MemoryJournal
from tests.support.keeping import WALL, JournalsRecorder
from tests.support.pair import Alarms, Host, Link, Recorder
from tests.support.reads import Reads
from tests.support.recorders import cut
from txbroker.authority.authority import Authority
from txbroker.core import PacketWriter, Router
from txbroker.delegation.delegation_table import DelegationTable
from txbroker.delegation.zone_snapshot import MarkKey, ReceivedZone
from txbroker.edge.routing.edge_limits import EdgeLimits
from txbroker.edge.routing.route import Route
from txbroker.edge.sessions.edge import Edge
from txbroker.edge.sessions.session_store import SessionStore, SessionTables
from txbroker.edge.store.outbox_store import OutboxFiles
from txbroker.journal.zone_journal import Record, ZoneState
from txbroker.link.frames import LinkError
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.decoder import Framer, decode
from txbroker.mqtt.wire.encoder import encode, encode_publish
from txbroker.mqtt.wire.packets import Connect, Puback, Pubcomp, Pubrec, Pubrel
from txbroker.storage.commit_ports import CommitEvents, CommitPorts
from txbroker.storage.committer import Committer, Durability
from txbroker.storage.log import SegmentLog
from txbroker.storage.tables import LogTables

APEXES = ("", "a", "a/b")
TOPICS = ("r", "a/x", "a/b/y")
CLIENTS = {"one": False, "two": False, "clean": True}
LIKELY = {
    "publish": 8,
    "leave": 1,
    "run": 10,
    "break_link": 2,
    "pass_time": 3,
    "kill_owner": 2,
    "start_owner": 3,
    "kill_edge": 1,
    "zone": 2,
}

Done = Callable[[BaseException | None], None]


class Killed(Exception):
    """The edge's process ends here."""


class History:
    """Every record that became durable anywhere, in that order."""

    def __init__(self) -> None:
        self.records: list[tuple[str, str, int, int]] = []  # client id, topic, QoS, number

    def note(self, record: Record) -> None:
        message = record.message
        entry = (message.client_id, message.topic, message.qos, int(message.payload))
        self.records.append(entry)


class Journal(MemoryJournal):
    """A journal that tells the history what is durable."""

    def __init__(self, history: History) -> None:
        super().__init__(lazy=True)
        self._history = history
        self._told = 0

    def sync(self) -> None:
        self.tell()
        super().sync()

    def tell(self) -> None:
        for record in self.records:
            if record.offset > self._told:
                self._history.note(record)
        self._told = self.offset

    def open(self, epoch: int, predecessor: Any) -> ZoneState:
        if epoch != self._epoch:
            self._told = 0
        return super().open(epoch, predecessor)

    def store_absorbed(self, apex: str, marks: dict[MarkKey, int]) -> None:
        self.store_marks(marks)

    def store_marks(self, marks: Mapping[MarkKey, int]) -> None:
        self.state = ZoneState(marks={**self.state.marks, **marks})


class Owner:
    """A node that may own a zone; dead ones keep their journal and table."""

    def __init__(self, apex: str, history: History, alarms: Alarms) -> None:
        self.apex = apex
        self.table = DelegationTable(apex)
        self.journal = Journal(history)
        self.epoch = 0
        self.holds = False
        self.is_alive = True
        self._alarms = alarms
        self.start()

    def start(self) -> None:
        """A new process over what is durable."""
        self.authority = Authority(self.apex, self.table, self.journal, Router(lambda: None))
        self.journal.authority = self.authority
        self.host = Host(self.authority, self._alarms)
        if self.holds:
            self.authority.open(self.epoch)

    def sync(self) -> None:
        """All that was taken is durable."""
        self.journal.sync()


class PublisherClient:
    """
    A client that sends publishes in reads of several, mixed with its PUBRELs.

    If its session is not clean, it sends again what is open, with the old packet id; else it never
    knows what became of that. `finished` are (topic, QoS, number) that were acknowledged.
    """

    def __init__(self, name: str, *, clean: bool) -> None:
        self.name = name
        self.clean = clean
        self.finished: set[tuple[str, int, int]] = set()
        self.published: set[tuple[str, int, int]] = set()
        self.is_here = False
        self.packet_writer: PacketWriter
        self.session: Session
        self._numbers = 0
        self._packet_id = 0
        self._open: dict[int, tuple[str, int, int]] = {}
        self._released: dict[int, tuple[str, int, int]] = {}
        self._out = b""
        self._edge: Edge
        self._reads: Reads

    @property
    def is_done(self) -> bool:
        return self.is_here and not (self._open or self._released or self._out)

    def connect(self, edge: Edge, router: Router) -> None:
        self._edge = edge
        self.packet_writer = router.make_packet_writer()
        self.packet_writer.connection = self
        packet = Connect(client_id=self.name, clean_session=self.clean)
        connect(edge, packet, partial(self._accept, self.packet_writer, router))

    def _accept(
        self, packet_writer: PacketWriter, router: Router, session: Session, _: bool
    ) -> None:
        if packet_writer is not self.packet_writer:
            return  # it has left, and come again
        self.session = session
        assert self._edge.clients.attach(session, self)
        self.is_here = True
        self._reads = Reads(self._edge, router, session, packet_writer)
        self._out = b"".join(encode(Pubrel(packet_id=packet_id)) for packet_id in self._released)
        for packet_id, (topic, qos, number) in self._open.items():
            self._send(packet_id, topic, qos, number, dup=True)
        self.send()

    def gone(self) -> None:
        """The connection is."""
        self.is_here = False
        self._out = b""
        if self.clean:
            self.published -= set(self._open.values())  # or not: nobody knows
            self._open.clear()
            self._released.clear()

    def leave(self) -> None:
        """It closes its connection."""
        self._edge.clients.disconnect(self.session, self, will=False)
        self.gone()

    def publish(self, topic: str, qos: int) -> None:
        """With the next read."""
        self._numbers += 1
        # Few identifiers: they are used again soon.
        packet_id = self._packet_id = self._packet_id % 12 + 1
        if qos and (packet_id in self._open or packet_id in self._released):
            return
        said = f"{topic}/{qos}", qos, self._numbers
        if qos:
            self._open[packet_id] = said
            self.published.add(said)
        self._send(packet_id, *said, dup=False)

    def _send(self, packet_id: int, topic: str, qos: int, number: int, *, dup: bool) -> None:
        payload = b"%d" % number
        self._out += encode_publish(topic, payload, qos, False, dup, packet_id if qos else None)

    def send(self) -> None:
        """What it has to say is read."""
        data, self._out = self._out, b""
        if data:
            self._reads.feed(data)

    def read(self) -> None:
        """What the session has sent."""
        framer = Framer(1 << 20)
        framer.feed(self.packet_writer.dequeue())
        for frame in framer.frames():
            packet = decode(*frame)
            assert isinstance(packet, Puback | Pubrec | Pubcomp)
            self._on_answer(packet)

    def _on_answer(self, packet: Puback | Pubrec | Pubcomp) -> None:
        packet_id = packet.packet_id
        if isinstance(packet, Pubcomp):
            self._released.pop(packet_id, None)
            return
        said = self._open.get(packet_id)
        if said is not None:
            first = next(one for one in self._open.values() if one[0] == said[0])
            assert said == first, f"{self.name}: {said} is answered before {first}"
            del self._open[packet_id]
            self.finished.add(said)
        if isinstance(packet, Pubrec):
            if said is not None:
                self._released[packet_id] = said
            self._out += encode(Pubrel(packet_id=packet_id))

    # from the session (Sink)

    receive_maximum = 65_535

    def close(self, reason: str, code: int) -> None:
        raise AssertionError(reason)

    def flush(self) -> None:
        raise AssertionError("nothing goes to it but answers")


class Disk:
    """The edge's store over a folder; `writes_left` writes happen before it is killed."""

    def __init__(self, folder: Path, alarms: Alarms) -> None:
        self.writes_left = 1 << 30
        self._work: tuple[Callable[[], object], Done] | None = None
        self.is_dirty = False
        self.committer = Committer(
            durability=Durability.SYNC,
            sync_interval=1.0,
            ports=CommitPorts(
                mark_dirty=self._mark_dirty,
                in_thread=self._in_thread,
                timers=alarms,
                end_turn=lambda: None,
            ),
            events=CommitEvents(
                on_full=self._never,
                on_failed=self._never,
            ),
        )
        self.tables_log = SegmentLog(folder / "tables", on_trimmed=self._never)
        tables = LogTables(self.tables_log, self.committer, lambda: 1)
        self.outboxes = OutboxFiles(folder, self.committer, tables, self._never, now=lambda: 1)
        self.keeper = SessionStore(
            SessionTables.of(tables.table),
            self.committer,
            lived=lambda: WALL,
            now=alarms.now,
            message_clock=lambda: WALL,
        )

    def flush(self) -> None:
        """The end of a turn."""
        if self.is_dirty:
            self.is_dirty = False
            for log in (self.tables_log, *self.outboxes.logs()):
                self._count_writes(log)
            self.committer.flush()

    def sync(self) -> None:
        """The running sync is done."""
        if self._work is not None:
            (work, done), self._work = self._work, None
            work()
            done(None)

    @property
    def is_quiet(self) -> bool:
        return not self.is_dirty and self._work is None

    def _count_writes(self, log: SegmentLog) -> None:
        plain = SegmentLog.write

        def write(*, is_unread: bool = False, most: int = sys.maxsize) -> bool:
            if log.staged:
                if not self.writes_left:
                    raise Killed
                self.writes_left -= 1
            return plain(log, is_unread=is_unread, most=most)

        log.write = write  # type: ignore[method-assign]

    def _mark_dirty(self, _: object) -> None:
        self.is_dirty = True

    def _in_thread(self, work: Callable[[], object], done: Done) -> None:
        self._work = work, done

    def _never(self, *_: object) -> None:
        raise AssertionError(_)


class Machine(RuleBasedStateMachine):
    """See the module's text."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="txbroker-outbox-"))
        self.alarms = Alarms()
        self.history = History()
        self.owners = {apex: Owner(apex, self.history, self.alarms) for apex in APEXES}
        self.clients = [PublisherClient(name, clean=clean) for name, clean in CLIENTS.items()]
        self.links: dict[Route, Link] = {}
        self.wanted: dict[Route, None] = {}
        self.asked: dict[Route, None] = {}
        self.incarnation = 0
        self.is_work_due = False
        self.is_alive = False
        self.pending: tuple[Owner, Any] | None = None

    # the edge's process

    @initialize(depth=st.integers(0, 2), seed=st.integers(0, 1000))
    def begin(self, depth: int, seed: int) -> None:
        root = self.owners[""]
        root.epoch, root.holds = 1, True
        root.authority.open(1)
        for apex in APEXES[1 : depth + 1]:
            self._hand_over(apex)
            self._commit()
        self._start_edge()
        self.run(seed, 20)

    def _start_edge(self) -> None:
        self.incarnation += 1
        self.disk = Disk(self.folder, self.alarms)
        self.links.clear()
        self.wanted.clear()
        self.asked.clear()
        self.router = Router(lambda: None)
        self.edge = Edge(
            edge_parts(
                self.alarms,
                Recorder(),
                incarnation=self.incarnation,
                router=self.router,
                connector=self,
                again=self._have_work,
            ),
            session_store=self.disk.keeper,
            reader=JournalsRecorder(),
            outbox_store=self.disk.outboxes,
            limits=EdgeLimits(),
        )
        self.edge.load()
        self.is_alive = True
        self.edge.on_lineage([cut("")])
        for client in self.clients:
            client.connect(self.edge, self.router)

    def _have_work(self) -> None:
        self.is_work_due = True

    def resolve(self, route: Route) -> None:
        """From the edge (`Connector`)."""
        self.asked[route] = None

    def connect(self, route: Route) -> None:
        """From the edge (`Connector`)."""
        if route not in self.links:
            self.wanted[route] = None

    def disconnect(self, route: Route) -> None:
        """From the edge (`Connector`)."""
        self.wanted.pop(route, None)
        link = self.links.pop(route, None)
        if link is not None:
            link.cut()

    # clients

    @precondition(lambda self: self.is_alive)
    @rule(
        who=st.integers(0, 2),
        said=st.lists(
            st.tuples(st.sampled_from(TOPICS), st.sampled_from((0, 1, 1, 2))), max_size=6
        ),
        is_sent=st.booleans(),
    )
    def publish(self, who: int, said: list[tuple[str, int]], is_sent: bool) -> None:
        """Some publishes, in one read; what becomes of them is in the other rules."""
        client = self.clients[who]
        if client.is_here:
            for topic, qos in said:
                client.publish(topic, qos)
            if is_sent:
                self._do(client.send)

    @precondition(lambda self: self.is_alive)
    @rule(who=st.integers(0, 2))
    def leave(self, who: int) -> None:
        """A client goes, and comes again at once."""
        client = self.clients[who]
        if client.is_here:
            self._do(client.leave)
            self._do(lambda: client.connect(self.edge, self.router))

    # steps of the machinery

    @rule(seed=st.integers(0, 1 << 16), count=st.integers(1, 40))
    def run(self, seed: int, count: int) -> None:
        """All goes on for a while, in some order."""
        chance = Random(seed)
        steps: list[Callable[[], None]] = [
            self._turn,
            self.disk.sync,
            lambda: self.sync_owner(chance.randrange(3)),
            lambda: self._carry_some(chance.randrange(3), chance.randint(1, 12)),
            lambda: self._reach(chance.randrange(6)),
        ]
        for _ in range(count):
            self._do(chance.choice(steps))
        self._do(lambda: self._pass_time(0.1))

    @invariant()
    def keeps_the_rules(self) -> None:
        """Those of docs/protocol.md, as the edge and the owners state them."""
        if self.is_alive:
            for link in self.links.values():
                link.edge_end.check()
            self.edge.check()
            self.disk.committer.check()
            self.disk.tables_log.check()
        for owner in self.owners.values():
            if owner.is_alive:
                owner.authority.check()
                owner.table.check()

    def _turn(self) -> None:
        self.disk.flush()
        if self.is_work_due:
            self.is_work_due = False
            self.edge.work()

    @precondition(lambda self: self.is_alive)
    @rule()
    def turn(self) -> None:
        """The edge's turn ends, and the next one begins."""
        self._do(self._turn)

    @precondition(lambda self: self.is_alive)
    @rule()
    def sync(self) -> None:
        """The edge's disk is done."""
        self._do(self.disk.sync)

    @rule(which=st.integers(0, 2))
    def sync_owner(self, which: int) -> None:
        """An owner's disk is done."""
        owner = self.owners[APEXES[which]]
        if owner.is_alive:
            owner.sync()

    @precondition(lambda self: self.is_alive)
    @rule(which=st.integers(0, 2), steps=st.integers(1, 12))
    def carry(self, which: int, steps: int) -> None:
        """A link carries some bytes."""
        self._do(lambda: self._carry_some(which, steps))

    def _carry_some(self, which: int, steps: int) -> None:
        links = list(self.links.values())
        if links:
            self._carry(links[which % len(links)], steps)

    def _carry(self, link: Link, steps: int) -> None:
        try:
            for _ in range(steps):
                if next(link.steps(), self) is self:
                    break
        except LinkError as error:
            link.closed.append(str(error))
        if link.closed:
            self._lose(link)

    @precondition(lambda self: self.is_alive)
    @rule(which=st.integers(0, 2))
    def break_link(self, which: int) -> None:
        """A link is cut."""
        links = list(self.links.values())
        if links:
            self._do(lambda: self._lose(links[which % len(links)]))

    def _lose(self, link: Link) -> None:
        route = link.route
        self.links.pop(route, None)
        link.cut()
        if route.is_needed:
            self.wanted[route] = None

    @precondition(lambda self: self.is_alive)
    @rule(seconds=st.sampled_from((0.1, 2.0)))
    def pass_time(self, seconds: float) -> None:
        """Alarms ring."""
        self._do(lambda: self._pass_time(seconds))

    def _pass_time(self, seconds: float) -> None:
        self.alarms.advance(seconds)
        self.edge.refresh_stale()
        self.edge.cursors.checkpoint()
        self.edge.outboxes.save()

    @precondition(lambda self: self.is_alive and (self.wanted or self.asked))
    @rule(which=st.integers(0, 5))
    def reach(self, which: int) -> None:
        """An attempt to reach an owner comes to something, or to nothing."""
        self._do(lambda: self._reach(which))

    def _reach(self, which: int) -> None:
        tasks = [("ask", route) for route in self.asked] + [("dial", r) for r in self.wanted]
        if not tasks:
            return
        kind, route = tasks[which % len(tasks)]
        if kind == "ask":
            del self.asked[route]
            self._answer(route)
        elif not route.is_needed:
            del self.wanted[route]
            route.rest()
        else:
            self._dial(route)

    def _answer(self, route: Route) -> None:
        owner = self.owners[route.apex]
        if not owner.is_alive:
            self.edge.on_unresolved(route)
        elif not owner.authority.serving:
            if route.apex and route.port is None and owner.epoch >= route.epoch:
                self.edge.cuts.on_zone_end(route, is_whole=True)
            else:
                self.edge.on_unresolved(route)
        else:
            zone = cut(route.apex, owner.epoch)
            self.edge.on_resolved(route, zone, owner.authority.cuts(), 30.0)

    def _dial(self, route: Route) -> None:
        owner = self.owners[route.apex]
        route.dial()
        if owner.is_alive and owner.authority.serving:
            del self.wanted[route]
            self.links[route] = link = Link(self.edge, route, owner.host)
            link.edge_end.start(b"token")
        elif owner.is_alive and route.apex and owner.epoch >= route.epoch:
            del self.wanted[route]
            self.edge.cuts.on_zone_end(route, is_whole=True)
        else:
            self.edge.on_failed(route)

    # owners

    @rule(which=st.integers(0, 2))
    def kill_owner(self, which: int) -> None:
        """What it had not synced is gone; or it stands, when it is killed right after the write."""
        owner = self.owners[APEXES[which]]
        if owner.is_alive and (self.pending is None or owner not in self.pending[0]):
            owner.is_alive = False
            owner.journal.crash()
            for link in [x for x in self.links.values() if x.host is owner.host]:
                self._do(lambda link=link: self._lose(link))

    @rule(which=st.integers(0, 2))
    def start_owner(self, which: int) -> None:
        """A dead owner is back."""
        owner = self.owners[APEXES[which]]
        if not owner.is_alive:
            owner.is_alive = True
            owner.start()

    @precondition(lambda self: self.pending is None)
    @rule(apex=st.sampled_from(APEXES[1:]))
    def hand_over(self, apex: str) -> None:
        """A zone is fenced: on its way from its parent to its node, or back."""
        self._hand_over(apex)

    def _hand_over(self, apex: str) -> None:
        child, parent = self.owners[apex], self._parent_of(apex)
        if not (child.is_alive and parent is not None and parent.is_alive):
            return
        giver = child if child.authority.serving else parent
        taker = parent if giver is child else child
        source = giver.authority.subtrees.prepare(apex)
        giver.authority.subtrees.fence(source)
        self.pending = (giver, taker), source

    @precondition(lambda self: self.pending is not None)
    @rule(is_done=st.booleans())
    def end_handover(self, is_done: bool) -> None:
        """The zone changes hands, or does not."""
        if is_done:
            self._commit()
        else:
            (giver, _), outgoing = self.pending
            self.pending = None
            giver.authority.subtrees.roll_back(outgoing)

    def _commit(self) -> None:
        (giver, taker), outgoing = self.pending
        self.pending = None
        giver.sync()
        received_zone = ReceivedZone()
        for part in (*outgoing.bulk(), *outgoing.rest()):
            received_zone.merge(part)
        apex = outgoing.apex
        subtree = giver.table.subtree(apex)
        if giver.apex == apex:
            taker.table.release(apex, subtree)
            taker.authority.absorb(apex, received_zone)
            taker.authority.announce_end(apex, giver.epoch)
            for entry in subtree.delegations:
                taker.authority.announce(entry.cut)
            giver.table.forget_all()
            giver.holds = False
        else:
            taker.holds = True
            taker.epoch = giver.table.epoch_of(apex) + 1
            taker.table.replace_all(subtree)
            taker.authority.open(taker.epoch, received_zone)
            giver.table.commit(cut(apex, taker.epoch))
        giver.authority.subtrees.complete(outgoing)

    def _parent_of(self, apex: str) -> Owner | None:
        above = [self.owners[x] for x in APEXES if x != apex and (not x or apex.startswith(x))]
        serving = [owner for owner in above if owner.epoch and self._serves(owner)]
        return serving[-1] if serving else None

    def _serves(self, owner: Owner) -> bool:
        return owner.authority.serving

    # the end of the edge

    @rule(after=st.integers(0, 4))
    def kill_edge(self, after: int) -> None:
        """It dies some writes from now."""
        if not self.is_alive:
            return
        self.disk.writes_left = after
        if not after:
            self._die()

    @rule()
    def start_edge(self) -> None:
        """It is back, with what is in its folder."""
        if not self.is_alive:
            self._start_edge()

    def step(self, chance: Random) -> None:
        """One step, as likely as it is of use in a long schedule."""
        at = chance.randrange(3)
        name = chance.choices(tuple(LIKELY), tuple(LIKELY.values()))[0]
        if name == "publish":
            one = chance.choice(TOPICS)
            said = [
                (chance.choice((one, chance.choice(TOPICS))), chance.choice((0, 1, 1, 2)))
                for _ in range(chance.randint(1, 8))
            ]
            self.publish(at, said, chance.random() < 0.8)
        elif name == "leave":
            self.leave(at)
        elif name == "run":
            self.run(chance.randrange(1 << 16), chance.randint(1, 60))
        elif name == "break_link":
            self.break_link(at)
        elif name == "pass_time":
            self.pass_time(chance.choice((0.1, 2.0)))
        elif name == "kill_owner":
            self.kill_owner(at)
        elif name == "start_owner":
            self.start_owner(at)
        elif name == "kill_edge":
            self.kill_edge(chance.randint(0, 6))
        elif self.pending is None:
            self.hand_over(chance.choice(APEXES[1:]))
        else:
            self.end_handover(chance.random() < 0.8)
        if not self.is_alive and chance.random() < 0.7:
            self.start_edge()

    def _do(self, step: Callable[[], None]) -> None:
        if not self.is_alive:
            return
        try:
            step()
        except Killed:
            self._die()
            return
        for client in self.clients:
            if client.is_here:
                client.read()

    def _die(self) -> None:
        self.is_alive = False
        for link in self.links.values():
            link.owner_end.on_disconnect()
        self.links.clear()
        self.alarms = Alarms()
        for client in self.clients:
            client.gone()

    # the end

    def teardown(self) -> None:
        try:
            if self.incarnation:
                self._heal()
                self._check()
        finally:
            shutil.rmtree(self.folder)

    def _heal(self) -> None:
        if self.pending is not None:
            self._commit()
        for owner in self.owners.values():
            if not owner.is_alive:
                owner.is_alive = True
                owner.start()
        for _ in range(400):
            if not self.is_alive:
                self._start_edge()
            self._do(self._settle)
            if self.is_alive and self._is_quiet():
                return
        raise AssertionError(f"it does not come to rest: {self._describe()}")

    def _settle(self) -> None:
        for client in self.clients:
            if client.is_here:
                client.send()
        self._turn()
        self.disk.sync()
        for owner in self.owners.values():
            owner.sync()
        while self.asked:
            self._reach(0)
        for number in range(len(self.wanted)):
            if number < len(self.wanted):
                self._reach(number)
        for link in list(self.links.values()):
            self._carry(link, 100)
        self._pass_time(0.5)

    def _is_quiet(self) -> bool:
        return (
            all(client.is_done for client in self.clients)
            and self.disk.is_quiet
            and not self.is_work_due
            and not any(route.queue.is_draining for route in self.edge.zones)
            and all(owner.authority.is_settled for owner in self.owners.values())
        )

    def _check(self) -> None:
        for client in self.clients:
            got = [entry for entry in self.history.records if entry[0] == client.name]
            numbers: dict[tuple[str, int], list[int]] = {}
            for _, topic, qos, number in got:
                numbers.setdefault((topic, qos), []).append(number)
            assert client.finished >= client.published, "all is finished when all is whole"
            for topic, qos, number in client.finished:
                assert number in numbers.get((topic, qos), []), f"lost: {client.name} {number}"
            for (topic, qos), found in numbers.items():
                first = list(dict.fromkeys(found))
                assert first == sorted(first), f"order of {topic}: {first}"
                assert qos == 1 or len(found) == len(first), f"twice on {topic}: {found}"

    def _describe(self) -> str:
        lines = [f"wanted={[r.apex for r in self.wanted]} asked={[r.apex for r in self.asked]}"]
        for route in self.edge.zones:
            shown = ("waiting", "doubts", "is_behind_outbox", "held_by", "is_draining", "cuts")
            state = {name: getattr(route, name) for name in shown}
            lines.append(f"{route.apex!r} {route.state} {route.port} {state}")
            for drain in route.queue.drains:
                lines.append(f"   {vars(drain)}")
        lines += [str((c.name, c.is_here, c._open, c._released)) for c in self.clients]
        return "\n".join(lines)


@pytest.mark.timeout(600)
def test_nothing_is_lost_or_repeated() -> None:
    """Random schedules, each healed at its end."""
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def play(seed: int, steps: int) -> None:
    """A long schedule: more happens at once than a short one gets to."""
    chance = Random(seed)
    machine = Machine()
    try:
        machine.begin(chance.randint(0, 2), seed)
        for _ in range(steps):
            machine.step(chance)
    finally:
        machine.teardown()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(20))
def test_long_schedules(seed: int) -> None:
    """The same, with seeds."""
    play(seed, 120)
