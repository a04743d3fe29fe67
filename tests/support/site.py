"""
A site of nodes in memory: the directory's pure code, under a clock and a network of the test.

Everything that may happen in another order is drawn from one random generator: how long a message
takes, how long a sync takes, what a crash leaves of what was not synced. So a seed is a history.

What lives here: nodes, tables that forget what was not synced, sessions that hold pieces of
content, links that can be cut, processes that can be killed. What does not: what is expected.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
from collections.abc import Callable, Iterable
from typing import Any, cast

from tests.support.crash_store import Store
from txbroker.directory.directory import Directory, DirectorySettings, DirectoryTables, ShellPorts
from txbroker.directory.directory_ports import PendingPublishes
from txbroker.directory.effects import AwaitDurable, Pause, Procedure, SendRequest
from txbroker.directory.entry import DirectoryWill
from txbroker.directory.member_admission import MemberProbe
from txbroker.directory.members import Members
from txbroker.directory.node_lifetime import NodeLifetime
from txbroker.directory.reachability import SHORTEST
from txbroker.directory.requests import (
    OtherView,
    Register,
    Registered,
    Reply,
    Request,
    Take,
)
from txbroker.directory.session_ownership import OwnershipTables
from txbroker.edge.sessions.client_sessions import ClientSessions
from txbroker.edge.sessions.connect_procedure import ConnectProcedure, OpenedSession
from txbroker.edge.sessions.connect_runner import ConnectRunner
from txbroker.edge.sessions.session_connect import SessionConnect
from txbroker.model.machine_time import MachineTime
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.packets import Connect, Will

CALL_TIMEOUT = SHORTEST
BEAT = 0.05
TICK = 0.5


class Host:
    """The sessions of a node: sets of pieces; kept ones are in a table."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.table = node.store.table("sessions")
        self.kept: dict[str, set[str]] = {
            key.decode(): set(json.loads(value)) for key, value in self.table.items()
        }
        self.clean_sessions: dict[str, set[str]] = {}
        self.stopped: set[str] = set()
        self.connected: dict[str, Connection] = {}
        self.open_zones: dict[str, PendingPublishes] = {}
        self.awaited: dict[str, dict[str, PendingPublishes]] = {}
        self.forgotten: list[str] = []
        self.left_at = node.left_at
        self.left_at.update(dict.fromkeys(node.here_at_end, node.site.now))

    def save(self, client_id: str) -> None:
        self.table.put(client_id.encode(), json.dumps(sorted(self.kept[client_id])).encode())

    # SessionHost

    def clean(self) -> list[str]:
        return list(self.clean_sessions)

    def may_keep(self, client_id: str, beside: int) -> bool:
        return True

    def is_kept(self, client_id: str) -> bool:
        return client_id in self.kept

    def freeze(self, client_id: str) -> bytes | None:
        if client_id not in self.kept:
            return None
        self.close(client_id)
        self.stopped.add(client_id)
        return json.dumps(sorted(self.kept[client_id])).encode()

    def thaw(self, client_id: str) -> None:
        self.stopped.discard(client_id)

    def adopt(self, client_id: str, state: bytes, incarnation: int, away: float) -> None:
        if client_id not in self.kept:
            self.left_at[client_id] = self.node.site.now - away
        self.kept[client_id] = self.kept.get(client_id, set()) | set(json.loads(state))
        self.save(client_id)

    def discard(self, client_id: str, *, is_moved: bool) -> None:
        self.close(client_id)
        self.stopped.discard(client_id)
        if self.kept.pop(client_id, None) is not None:
            self.table.delete(client_id.encode())

    def close(self, client_id: str) -> None:
        connection = self.connected.get(client_id)
        if connection is not None:
            connection.lost(is_will_due=True)

    def is_quiet(self, client_id: str) -> bool:
        return True

    def idle(self, client_id: str) -> float:
        here = client_id in self.connected
        return 0.0 if here else self.node.site.now - self.left_at.get(client_id, 0.0)

    def release(self, client_id: str, token: bytes) -> None:
        self.discard(client_id, is_moved=True)

    def resolved(self, client_id: str, token: bytes) -> None:
        pass

    def moves(self) -> list[tuple[bytes, str]]:
        return []

    def is_resolved(self, client_id: str, node: str) -> bool:
        return True

    def forget_will(self, client_id: str) -> None:
        self.forgotten.append(client_id)

    def pending_publishes(self, client_id: str) -> PendingPublishes:
        return self.open_zones.get(client_id, PendingPublishes())

    def await_remains(self, client_id: str, node: str, pending_publishes: PendingPublishes) -> None:
        self.awaited.setdefault(client_id, {})[node] = pending_publishes

    def forget_remains(self, client_id: str) -> None:
        self.awaited.pop(client_id, None)

    def publish_will(
        self, client_id: str, node: str, directory_will: DirectoryWill, sent: Callable[[], None]
    ) -> None:
        self.node.site.publish_will(client_id, node, directory_will)
        sent()


class Clients:
    """The sessions of a node, as CONNECT sees them (`ClientSessions`)."""

    def __init__(self, node: Node) -> None:
        self.node = node

    @property
    def sessions(self) -> set[str]:
        return {*self.node.host.kept, *self.node.host.clean_sessions}

    def why_full(self, packet: Connect) -> str:
        return ""

    def make_way(self, client_id: str) -> None:
        """Nothing expires."""

    def open(self, packet: Connect, client: Connection) -> OpenedSession:
        """Of a clean session only its will is to be durable, and the end of what was kept here."""
        node, host, client_id = self.node, self.node.host, packet.client_id
        was_kept = client_id in host.kept
        is_known = node.store.may_survive(node.done, "sessions", client_id.encode())
        is_clean = packet.clean_session
        host.close(client_id)
        host.thaw(client_id)
        if is_clean:
            host.discard(client_id, is_moved=False)
            host.clean_sessions[client_id] = set()
        else:
            host.clean_sessions.pop(client_id, None)
            host.kept.setdefault(client_id, set())
            host.save(client_id)
        host.connected[client_id] = client
        node.directory.connected.connected(client_id, clean=is_clean, will=packet.will)
        is_durable = is_clean and packet.will is None and not is_known
        return OpenedSession(cast(Any, client), was_kept and not is_clean, is_durable, client)

    def confirm(self, opened: OpenedSession, packet: Connect) -> bool:
        return self.node.host.connected.get(packet.client_id) is opened.client

    def miss(self, session: Session) -> None:
        """What opened it is gone, so nothing is left of that."""


class Connection:
    """A client's connection to a node, from CONNECT on."""

    def __init__(self, node: Node, client_id: str, clean: bool, will: Will | None) -> None:
        self.node = node
        self.client_id = client_id
        self.clean = clean
        self.will = will
        self.is_open = True
        self.has_left = False
        self.present: bool | None = None
        self.refused: str | None = None
        self.content: set[str] = set()

    @property
    def is_answered(self) -> bool:
        return self.present is not None or self.refused is not None or not self.is_open

    def walk(self) -> ConnectProcedure[None]:
        """From CONNECT to CONNACK."""
        packet = Connect(client_id=self.client_id, clean_session=self.clean, will=self.will)
        found = yield from self.node.connects.connect(packet, self)
        if isinstance(found, OpenedSession):
            if not self.clean:
                self.content = set(self.node.host.kept[self.client_id])
            self._connack(found.present)
        elif found is not None:
            self.refused = found.reason
            self.is_open = False

    # as a connecting client

    def close(self, reason: str, code: int) -> None:
        self.lost(is_will_due=False)

    def drop_if_gone(self) -> bool:
        """True if the client has left since, unread; the connection is closed then."""
        if self.has_left:
            self.lost(is_will_due=False)
        return self.has_left

    def host(self) -> str:
        return ""

    def _connack(self, present: bool) -> None:
        if self.is_open:
            self.present = present

    def add(self, piece: str, acked: Callable[[], None]) -> None:
        """A SUBSCRIBE, say: acknowledged when durable."""
        host = self.node.host
        if not self.is_open or self.present is None:
            return
        if self.clean:
            host.clean_sessions[self.client_id].add(piece)
            return
        host.kept[self.client_id].add(piece)
        host.save(self.client_id)
        self.node.when_safe(lambda: acked() if self.is_open else None)

    def lost(self, *, is_will_due: bool) -> None:
        """The connection is gone, on both ends."""
        if not self.is_open:
            return
        self.is_open = False
        host, directory = self.node.host, self.node.directory
        if host.connected.get(self.client_id) is not self:
            return
        del host.connected[self.client_id]
        host.left_at[self.client_id] = self.node.site.now
        directory_will = directory.own_wills.get(self.client_id)
        directory.connected.disconnected(self.client_id, is_will_due=is_will_due)
        if is_will_due and directory_will is not None:
            host.publish_will(
                self.client_id,
                self.node.name,
                directory_will,
                lambda: directory.connected.will_is_sent(self.client_id, directory_will),
            )
        if self.clean:
            host.clean_sessions.pop(self.client_id, None)


class Alarm:
    """A time of a node; it dies with the process."""

    def __init__(self) -> None:
        self.is_due = True

    def cancel(self) -> None:
        self.is_due = False


class Node:
    """One node, through all its lives."""

    def __init__(
        self, site: Site, name: str, its_site: str, is_root: bool, **settings: Any
    ) -> None:
        self.site, self.name, self.its_site, self.is_root = site, name, its_site, is_root
        self.settings = settings
        self.store = Store()
        self.life = self.turns = 0
        self.is_up = False
        self.left_at: dict[str, float] = {}
        self.here_at_end: list[str] = []
        self.done = 0
        self.knows_tree = is_root

    def start(self) -> None:
        self.life += 1
        self.is_up = True
        self.done = 0
        self.pauses: list[Callable[[], None]] = []
        site, store = self.site, self.store
        self.host = Host(self)
        members = Members(self.name, self.its_site, store.table("members"), is_root=self.is_root)
        self.directory = Directory(
            members=members,
            tables=DirectoryTables(
                entries=store.table("entries"),
                sessions=OwnershipTables(
                    held=store.table("held"),
                    gone=store.table("gone"),
                    arriving=store.table("arriving"),
                ),
                wills=store.table("wills"),
                sent_wills=store.table("sent_wills"),
                discards=store.table("discards"),
                sites=store.table("sites"),
            ),
            host=self.host,
            life=NodeLifetime(
                number=self.life,
                now=lambda: site.now,
                lived=lambda: int(site.now * 1e6),
                moment=lambda: MachineTime("boot", int(site.now * 1000)),
            ),
            settings=DirectorySettings(**self.settings),
            shell=ShellPorts(
                spawn=self.run,
                wake=lambda: None,
                make_token=lambda: site.random.randbytes(8),
            ),
        )
        clients = cast(ClientSessions, Clients(self))
        runner = ConnectRunner(self, self.await_store, self)
        self.connects = SessionConnect(clients, self.directory, runner)
        members.announce(f"{self.name}:{self.life}")
        self.directory.start()
        if not self.is_root:
            site.after(site.delay(), self.guarded(self.join))
        self.every(BEAT, self.beat)
        self.every(TICK, self.directory.tick)
        self.store.end_turn()

    def kill(self, survivors: int = 0) -> None:
        self.is_up = False
        self.store.crash(self.done, survivors)
        self.here_at_end = list(self.host.connected)
        for connection in list(self.host.connected.values()):
            connection.is_open = False

    # life

    def guarded(self, action: Callable[[], object]) -> Callable[[], None]:
        """Only in this life of the process; a turn of its reactor."""
        life = self.life

        def run() -> None:
            if self.is_up and self.life == life:
                action()
                self.store.end_turn()
                self.turns += 1
                if self.turns % self.site.check_every == 0:
                    self.directory.check()

        return run

    def every(self, period: float, action: Callable[[], object]) -> None:
        def again() -> None:
            action()
            self.site.after(period * (0.8 + 0.4 * self.site.random.random()), self.guarded(again))

        self.site.after(period * self.site.random.random(), self.guarded(again))

    def when_safe(self, action: Callable[[], object]) -> None:
        mark = self.store.mark()

        def synced() -> None:
            self.done = self.store.sync(mark, self.done)
            action()

        if mark <= self.done:
            action()
        else:
            self.site.after(self.site.delay(), self.guarded(synced))

    def await_store(self, action: Callable[[], object]) -> None:
        """A step of a CONNECT: its changes become durable."""
        self.site.strike(self, "AwaitDurable")
        self.when_safe(action)

    def now(self) -> float:
        return self.site.now

    def call_later(self, delay: float, action: Callable[[], None]) -> Alarm:
        """What waits for its turn looks again."""
        alarm = Alarm()
        run = self.guarded(lambda: action() if alarm.is_due else None)
        self.site.after(delay, run)
        return alarm

    def join(self) -> None:
        """As over a join stream: the parent tells all it knows, and learns what is known here."""
        parent = self.site.nodes[self.site.root]
        if parent.is_up and self.site.is_linked(self.name, parent.name):
            told = self.directory.members.all
            parent.directory.admission.store_members(self.name, told, is_stream=True)
            parent.store.end_turn()
            self.directory.members.merge_list(parent.directory.members.all)
        self.site.after(0.2, self.guarded(self.join))

    def beat(self) -> None:
        """What is due to other nodes."""
        directory, site = self.directory, self.site
        for peer in directory.members.peers():
            batch = directory.replicator.batch(peer, site.now)
            if batch is not None:

                def answered(reply: Reply | None, peer: str = peer, batch: Any = batch) -> None:
                    if isinstance(reply, Registered):
                        directory.replicator.answered(peer, batch, reply, site.now)
                        directory.conflicts.on_registered(batch, reply)
                    else:
                        directory.replicator.failed(peer, batch, site.now)
                    for look in list(self.pauses):
                        look()

                self.call(peer, batch, answered)
        if directory.replicator.advance():
            site.after(0.001, self.guarded(self.beat))
        for asked in directory.admission.due():
            self.admit(asked)

    def admit(self, asked: MemberProbe) -> None:
        """Ask a node that another one tells of whether it is there."""
        site, other = self.site, self.site.nodes.get(asked.member.name)
        answered = self.directory.admission.answered

        def arrive() -> None:
            name = asked.member.name
            is_there = other is not None and other.is_up and site.is_linked(self.name, name)
            is_member = is_there and site.is_linked(name, self.name)
            back = self.guarded(lambda: answered(asked, is_member=is_member))
            site.after(site.delay() if is_member else CALL_TIMEOUT, back)

        site.after(site.delay(), arrive)

    # calls

    def call(self, node: str, request: Request, answered: Callable[[Reply | None], None]) -> None:
        """As the shell does it: a reply, or None after the timeout."""
        is_open, began = True, self.site.now

        def finish(reply: Reply | None) -> None:
            nonlocal is_open
            if not is_open:
                return
            is_open = False
            if node != self.name:
                if reply is None:
                    self.directory.reach.missed(node, began)
                else:
                    if not isinstance(request, Take):
                        self.directory.reach.answered(node, began)
                    self.directory.record_contact(node)
            if isinstance(reply, OtherView):
                share = self.directory.on_other_view(node, reply)
                if share is not None:
                    self.call(node, share, lambda reply: None)
                reply = None
            answered(reply)

        if node == self.name:
            finish(self.directory.handle(self.name, request))
            return
        back = self.guarded_with(finish)
        self.when_safe(lambda: self.site.send(self, node, request, back))
        reach = self.directory.reach
        if isinstance(request, Register):

            def late() -> None:
                if is_open:
                    self.directory.replicator.late(node, request, began)

            self.site.after(reach.patience(node), self.guarded(late))
        members = len(self.directory.members.places.names)
        timeout = reach.reply_wait(node, request, members)
        self.site.after(timeout, self.guarded(lambda: finish(None)))

    def guarded_with(self, action: Callable[[Any], object]) -> Callable[[Any], None]:
        values: list[Any] = []
        run = self.guarded(lambda: action(values.pop()))

        def take(value: Any) -> None:
            values.append(value)
            run()

        return take

    def run(
        self, procedure: Procedure[Any], finished: Callable[[Any], None] = lambda _: None
    ) -> None:
        """Run a procedure of the directory to its end, or to the end of the process."""

        def go_on() -> None:
            try:
                step = next(procedure)
            except StopIteration as stop:
                finished(stop.value)
                return
            self.site.strike(self, type(step).__name__)
            match step:
                case Pause(seconds=seconds, until=until):
                    self.pause(seconds, until, go_on)
                case AwaitDurable():
                    self.when_safe(go_on)
                case SendRequest(calls=calls, take=take):
                    self.ask(calls, take, go_on)

        go_on()

    def pause(self, seconds: float, until: Callable[[], bool], go_on: Callable[[], None]) -> None:
        is_over = False

        def end() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                self.pauses.remove(look)
                go_on()

        def look() -> None:
            if until():
                end()

        self.pauses.append(look)
        self.site.after(seconds, self.guarded(end))

    def ask(self, calls: Any, take: Any, go_on: Callable[[], None]) -> None:
        left = len(calls)
        is_done = False

        def answered(name: str, reply: Reply | None) -> None:
            nonlocal left, is_done
            if is_done:
                return
            left -= 1
            if take(name, reply) or left == 0:
                is_done = True
                go_on()

        for name, request in calls:
            self.call(name, request, lambda reply, name=name: answered(name, reply))

    # clients

    def connect(
        self, client_id: str, *, clean: bool = False, will: Will | None = None
    ) -> Connection:
        connection = Connection(self, client_id, clean, will)
        self.connects.runner.run(connection.walk())
        self.store.end_turn()
        return connection


class Site:
    """
    All nodes, and the network between them.

    A node checks its invariants after each `check_every` turns. A check reads all tables, so a
    history with many clients would spend most of its time there.
    """

    def __init__(
        self,
        names: Iterable[str],
        seed: int,
        *,
        sites: dict[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.random = random.Random(seed)
        self.doubled = self.delayed = 0.0
        self.check_every = 1
        self.now = 0.0
        self.cuts: set[tuple[str, str]] = set()
        self.wills: list[tuple[str, str, int, int]] = []
        self.watch: Callable[[], None] = lambda: None
        self.strike: Callable[[Node, str], None] = lambda node, step: None
        self.calls: list[tuple[str, str, Request]] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        names = list(names)
        self.root = names[0]
        self.nodes = {
            name: Node(self, name, (sites or {}).get(name, ""), name == self.root, **settings)
            for name in names
        }

    def start(self, count: int) -> None:
        """Start the first so many; the others may be started for the first time later."""
        for node in list(self.nodes.values())[:count]:
            node.start()

    def delay(self) -> float:
        """Of a message or a sync: mostly short."""
        return 0.001 + 0.05 * self.random.random() ** 3

    def passage(self) -> float:
        """How long a message takes: the share `delayed` comes when its call is over."""
        if self.delayed and self.random.random() < self.delayed:
            return CALL_TIMEOUT * self.random.uniform(1.0, 3.0)
        return self.delay()

    def after(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._count), action))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self._events and self._events[0][0] <= until:
            self.step()
        self.now = until

    def run_until(self, condition: Callable[[], bool], limit: float = 60.0) -> None:
        until = self.now + limit
        while not condition():
            assert self._events and self.now < until, "it did not come to that"
            self.step()

    def step(self) -> None:
        self.now, _, action = heapq.heappop(self._events)
        action()
        self.watch()

    # the network

    def is_linked(self, one: str, other: str) -> bool:
        return (one, other) not in self.cuts

    def cut(self, one: str, other: str, *, one_way: bool = False) -> None:
        self.cuts.add((one, other))
        if not one_way:
            self.cuts.add((other, one))

    def isolate(self, name: str) -> None:
        for other in self.nodes:
            if other != name:
                self.cut(name, other)

    def heal(self) -> None:
        self.cuts.clear()

    def send(
        self, source: Node, target: str, request: Request, answered: Callable[[Reply | None], None]
    ) -> None:
        node = self.nodes[target]
        self.calls.append((source.name, target, request))

        def arrive() -> None:
            if not node.is_up or not self.is_linked(source.name, target):
                return
            reply = node.directory.handle(source.name, request)
            node.when_safe(lambda: self.after(self.passage(), lambda: back(reply)))
            node.store.end_turn()

        def back(reply: Reply | None) -> None:
            if self.is_linked(target, source.name):
                answered(reply)

        self.after(self.passage(), arrive)
        if self.doubled and self.random.random() < self.doubled:
            self.after(self.passage(), arrive)

    # wills

    def publish_will(self, client_id: str, node: str, directory_will: DirectoryWill) -> None:
        self.wills.append((client_id, node, directory_will.life, directory_will.number))

    # looking

    def holders(self, client_id: str) -> list[str]:
        """Nodes that have the session and would serve it."""
        return [
            name
            for name, node in self.nodes.items()
            if node.is_up and client_id in node.directory.ownership.held
        ]
