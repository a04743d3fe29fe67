"""
Whatever happens to clients, links, reads and the process: what was promised comes, once, in order.

A state machine drives one edge with three zones. Its model is what the owners' journals hold and
what the durable sessions were promised; clients behave as MQTT clients do, over crashes, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import groupby
from types import ModuleType

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import txbroker.core
from tests.support import edge_bench
from tests.support.connects import connect
from tests.support.edge_bench import EdgeBench
from tests.support.keeping import CommitRecorder, JournalsRecorder
from tests.support.reads import Reads
from tests.support.recorders import OwnerRecorder, SinkRecorder, take
from txbroker.core import Router
from txbroker.core.reference import packet_writer, router
from txbroker.edge.routing.edge_limits import EdgeLimits
from txbroker.edge.routing.zone_claims import StreamPosition
from txbroker.edge.sessions import catch_up, journal_read_cache
from txbroker.edge.sessions.journal_read_cache import RETRY, ReadFailure
from txbroker.model.log_position import JournalId
from txbroker.model.topics import matches
from txbroker.mqtt.session import window
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.window import SessionLimits
from txbroker.mqtt.wire.encoder import encode
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import Connect, Puback, Pubcomp, Publish, Pubrec, Pubrel, Subscribe
from txbroker.v1 import state_pb2

ZONES = ("", "a", "b")
TOPICS = ("x", "y", "a/x", "a/y", "b/x")
FILTERS = ("#", "+/x", "a/#", "x", "b/x")
KEPT = ("one", "two", "three")
NAMES = (*KEPT, "clean")
QOS = st.sampled_from((1, 1, 2, 2, 0))


def zone_of(topic: str) -> str:
    return topic.partition("/")[0] if "/" in topic else ""


class Wire(SinkRecorder):
    """A client's connection: what was sent is looked at before it is taken."""

    def __init__(self, user: User, router: Router) -> None:
        super().__init__(router)
        self.user = user
        self.is_open = True
        self.inbox: deque[object] = deque()

    def look(self) -> None:
        """What was sent since the last time has left by now."""
        for packet in take(self.events):
            self.user.check_sent(packet)
            self.inbox.append(packet)

    def close(self, reason: str, code: int) -> None:
        self.is_open = False

    def flush(self) -> None:
        """Much waits for it."""


def flows_in(window: bytes) -> dict[int, state_pb2.StoredFlow]:
    """What a stored window has in flight, by packet id; the flows of a run share one value."""
    return {
        packet_id: flow
        for flow in state_pb2.StoredWindow.FromString(window).flows
        for packet_id in range(flow.packet_id, flow.packet_id + 1 + len(flow.steps))
    }


@attrs.define(eq=False)
class User:
    """A client and what it knows, whatever becomes of its connections and of the broker."""

    name: str
    machine: Machine
    wire: Wire | None = None
    session: Session | None = None
    seen: dict[str, int] = attrs.Factory(dict)  # payload: packet id of its PUBLISH
    order: list[str] = attrs.Factory(list)
    open: dict[int, str] = attrs.Factory(dict)  # QoS 2, received and not released
    owed: list[tuple[str, int]] = attrs.Factory(list)  # answers that it has not sent yet
    finished: dict[int, str] = attrs.Factory(dict)  # answered for good, the broker knows
    settled: set[str] = attrs.Factory(set)  # and the broker has made that durable
    reads: Reads | None = None

    def forget(self) -> None:
        """It knows nothing of an earlier connection."""
        self.owed.clear()
        if self.name == "clean":
            for known in (self.seen, self.order, self.open, self.finished, self.settled):
                known.clear()
            self.machine.promised[self.name].clear()

    def check_sent(self, packet: object) -> None:
        """Nothing leaves before its flow is durable (rule 17)."""
        if isinstance(packet, Publish | Pubrel) and packet.packet_id is not None:
            flow = self.machine.durable_flow(self.name, packet.packet_id)
            is_known = self.name == "clean" or flow is not None
            if isinstance(packet, Publish):
                assert is_known, f"{self.name}: {packet} left before it was durable"
            elif packet.packet_id in self.open and self.name != "clean":
                assert flow is not None and flow.released, f"{self.name}: {packet} left too early"

    def take(self) -> None:
        """Read one packet."""
        assert self.wire is not None
        packet = self.wire.inbox.popleft()
        if isinstance(packet, Pubrel):
            self.open.pop(packet.packet_id, None)
            self.owed.append(("comp", packet.packet_id))
        elif isinstance(packet, Publish) and packet.packet_id is not None:
            self._take_publish(packet, packet.packet_id)

    def _take_publish(self, packet: Publish, packet_id: int) -> None:
        payload = packet.payload.decode()
        known = self.seen.get(payload)
        if known is None:
            self.seen[payload] = packet_id
            self.order.append(payload)
        else:
            assert self.name != "clean", f"{payload} twice in one session"
            assert known == packet_id, f"{self.name}: {payload} under {known} and {packet_id}"
            assert packet.dup, f"{self.name}: {payload} again without DUP"
            assert payload not in self.settled, f"{self.name}: {payload} again after its end"
        if packet.qos == 1:
            self.owed.append(("ack", packet_id))
        else:
            self.open[packet_id] = payload
            self.owed.append(("rec", packet_id))

    def answer(self, index: int) -> None:
        """Send one of the answers that are due."""
        kind, packet_id = self.owed.pop(index % len(self.owed))
        assert self.reads is not None
        answer = {"ack": Puback, "rec": Pubrec, "comp": Pubcomp}[kind]
        self.reads.feed(encode(answer(packet_id=packet_id)))
        if kind != "rec":
            for payload, known in self.seen.items():
                if known == packet_id:
                    self.finished[packet_id] = payload


class Owner(OwnerRecorder):
    """The owner of a zone: its journal, and what is on its way to the edge."""

    def __init__(self, apex: str) -> None:
        super().__init__()
        self.apex = apex
        self.part = JournalId(apex, 1)
        self.offset = 0
        self.stream: deque[tuple[str, int]] = deque()
        self.filters: set[str] = set()

    def add_interest(self, topic_filter: str, request: int, *, retained: bool = True) -> None:
        self.filters.add(topic_filter)
        self.stream.append(("answer", request))

    def remove_interest(self, topic_filter: str) -> None:
        self.filters.discard(topic_filter)


class Machine(RuleBasedStateMachine):
    """See the module's text."""

    def __init__(self) -> None:
        super().__init__()
        self.journals = JournalsRecorder()
        self.journals.limit = 3
        self.owners = {apex: Owner(apex) for apex in ZONES}
        self.users = {name: User(name, self) for name in NAMES}
        self.is_in_runs = True
        self.promised: dict[str, set[str]] = {name: set() for name in NAMES}
        self.records: dict[str, tuple[str, int]] = {}
        self.at: dict[str, dict[int, int]] = {}
        self.crashes = 0
        self.commit = CommitRecorder()
        self.bench = self.start()

    # the process

    def start(self) -> EdgeBench:
        """A process over what is durable."""
        limits = EdgeLimits(session=SessionLimits(inflight=2), suback_wait=1.0)
        bench = EdgeBench("a", "b", limits=limits, commit=self.commit, journals=self.journals)
        bench.edge.load()
        for owner in self.owners.values():
            owner.stream.clear()
        bench.edge.interests.refresh()
        return bench

    def durable_flow(self, name: str, packet_id: int) -> state_pb2.StoredFlow | None:
        value = self.commit.durable(self.commit.windows).get(name.encode(), b"")
        return flows_in(value).get(packet_id)

    def promise(self, topic: str, payload: str, offset: int) -> None:
        """Who has a durable subscription that the zone has confirmed is to get it."""
        part = JournalId(zone_of(topic), 1)
        clean = self.bench.edge.clients.sessions.get("clean")
        for now in () if clean is None else clean.subscriptions.values():
            is_in_force = part.zone not in now.pending and now.held is None and now.qos > 0
            since = now.starts.get(part, offset)
            if is_in_force and since < offset and matches(now.topic_filter, topic):
                self.promised["clean"].add(payload)
        for name in KEPT:
            value = self.commit.durable(self.commit.sessions).get(name.encode())
            session = self.bench.edge.clients.sessions.get(name)
            if value is None or session is None:
                continue
            for kept in state_pb2.StoredSession.FromString(value).subscriptions:
                now = session.subscriptions.get(kept.filter)
                if now is None or part.zone in kept.pending or part.zone in now.pending:
                    continue
                if now.held is not None:
                    continue  # no SUBACK has left: another filter's QoS counts yet
                starts = {(s.part.zone, s.part.epoch): s.offset for s in kept.starts}
                since = max(starts.get(part, offset), now.starts.get(part, offset))
                if min(now.qos, kept.qos) and since < offset and matches(kept.filter, topic):
                    self.promised[name].add(payload)

    # owners

    @rule(topic=st.sampled_from(TOPICS), qos=QOS, count=st.integers(1, 9))
    def publish(self, topic: str, qos: int, count: int) -> None:
        """An owner takes messages."""
        owner = self.owners[zone_of(topic)]
        for _ in range(count):
            owner.offset += 1
            payload = f"{owner.apex}:{owner.offset}"
            self.records[payload] = topic, qos
            self.journals.add(owner.part, owner.offset, Message(topic, payload.encode(), qos))
            if qos:
                self.promise(topic, payload, owner.offset)
            if self.bench.route(owner.apex).port is not None:
                owner.stream.append(("record", owner.offset))

    @rule(apex=st.sampled_from(ZONES), count=st.integers(1, 12))
    def stream(self, apex: str, count: int) -> None:
        """What an owner sent arrives."""
        owner, route = self.owners[apex], self.bench.route(apex)
        come: list[int] = []
        for _ in range(min(count, len(owner.stream))):
            kind, value = owner.stream.popleft()
            if kind == "record":
                come.append(value)
                continue
            self.arrive(apex, come)
            come = []
            first = min((o for k, o in owner.stream if k == "record"), default=None)
            at = owner.offset if first is None else first - 1
            self.bench.edge.interests.on_answer(route, value, at, [])
        self.arrive(apex, come)

    @rule(is_in_runs=st.booleans())
    def gather(self, is_in_runs: bool) -> None:
        """What arrives comes in runs, or one by one."""
        self.is_in_runs = is_in_runs

    def arrive(self, apex: str, offsets: Iterable[int]) -> None:
        route = self.bench.route(apex)
        records = {r.offset: r.message for r in self.journals.parts.get(JournalId(apex, 1), ())}
        wanted = [
            (offset, records[offset])
            for offset in offsets
            if any(matches(one, records[offset].topic) for one in route.interest.filters)
        ]
        for is_kept, group in groupby(wanted, key=lambda one: one[1].qos > 0):
            those = list(group)
            if self.is_in_runs:
                run = self.bench.make_run([message for _, message in those])
                run.offsets = [offset if is_kept else 0 for offset, _ in those]
                self.bench.edge.on_runs(route, [run])
            else:
                for offset, message in those:
                    self.bench.edge.on_message(route, message, offset if is_kept else 0)

    @rule(apex=st.sampled_from(ZONES))
    def link(self, apex: str) -> None:
        """A link is lost; or it is there again, with what was missed first."""
        owner, route = self.owners[apex], self.bench.route(apex)
        if route.port is not None:
            owner.stream.clear()
            self.bench.lose(apex)
            return
        self.bench.edge.on_owner(route, 1, None)
        if route.position is not None:
            self.arrive(apex, range(route.position.offset + 1, owner.offset + 1))
        below = [z for z in ZONES if z] if not apex else []
        cuts = [self.bench.route(z).cut for z in below]
        self.bench.edge.on_online(
            route,
            owner,
            marks={},
            cuts=[cut for cut in cuts if cut is not None],
            position=StreamPosition(epoch=1, offset=owner.offset),
        )

    # the disk, and reads of journals

    @rule()
    def write(self) -> None:
        self.commit.write()

    @rule()
    def sync(self) -> None:
        self.commit.sync()
        for name, user in self.users.items():
            value = self.commit.durable(self.commit.windows).get(name.encode(), b"")
            ids = flows_in(value)
            done = [packet_id for packet_id in user.finished if packet_id not in ids]
            user.settled.update(user.finished.pop(packet_id) for packet_id in done)

    @rule(is_late=st.booleans())
    def read_late(self, is_late: bool) -> None:
        """Reads of journals take their time."""
        self.journals.late = is_late

    @rule(count=st.integers(1, 3))
    def read(self, count: int) -> None:
        self.journals.answer(count)

    @rule(apex=st.sampled_from(ZONES), fails=st.booleans())
    def fail(self, apex: str, fails: bool) -> None:
        """Reads of a part come to nothing."""
        if fails:
            self.journals.missing[JournalId(apex, 1)] = ReadFailure.UNREACHABLE
        else:
            self.journals.missing.pop(JournalId(apex, 1), None)

    @rule(limit=st.integers(1, 5))
    def cut_short(self, limit: int) -> None:
        self.journals.limit = limit

    @rule()
    def work(self) -> None:
        self.bench.work()

    @rule()
    def tick(self) -> None:
        """A second passes."""
        self.bench.clock.advance(1.0)
        self.bench.edge.cursors.checkpoint()

    @precondition(lambda self: self.crashes < 4)
    @rule()
    def crash(self) -> None:
        """The process dies, and what was not durable with it."""
        self.crashes += 1
        self.commit = self.commit.crash()
        for user in self.users.values():
            user.wire = user.session = None
            user.forget()
            user.finished.clear()
        self.journals.drop_questions()
        self.bench = self.start()

    # clients

    @initialize(filters=st.lists(st.sampled_from(FILTERS), min_size=4, max_size=4))
    def begin(self, filters: list[str]) -> None:
        for apex in ZONES:
            self.link(apex)
        for name, topic_filter in zip(NAMES, filters, strict=True):
            self.connect(name)
            self.settle()
            self.subscribe(name, topic_filter, 2)
        self.settle()

    @rule(
        said=st.lists(st.tuples(st.sampled_from(TOPICS), QOS), min_size=1, max_size=12),
        is_committed=st.booleans(),
        is_taken=st.booleans(),
    )
    def traffic(self, said: list[tuple[str, int]], is_committed: bool, is_taken: bool) -> None:
        """A usual moment."""
        for topic, qos in said:
            self.publish(topic, qos, 1)
        for apex in ZONES:
            self.stream(apex, 10)
        self.bench.work()
        if is_committed:
            self.write()
            self.sync()
        if is_taken:
            for name in NAMES:
                self.take(name, 3)
                self.answer(name, 0, 3)

    @rule(name=st.sampled_from(NAMES))
    def return_soon(self, name: str) -> None:
        """A client loses its connection and is back at once."""
        self.disconnect(name)
        self.connect(name)
        self.write()
        self.sync()

    @rule(name=st.sampled_from(NAMES))
    def connect(self, name: str) -> None:
        user = self.users[name]
        if user.wire is not None:
            return
        wire = user.wire = Wire(user, self.bench.router)
        user.forget()

        def accept(session: Session, present: bool) -> None:
            if user.wire is not wire:
                return
            assert present or not self.promised[name], "its session is gone"
            user.session = session
            edge = self.bench.edge
            assert edge.clients.attach(session, wire)
            user.reads = Reads(edge, self.bench.router, session, wire.packet_writer)

        packet = Connect(client_id=name, clean_session=name == "clean")
        connect(self.bench.edge, packet, accept)

    @rule(name=st.sampled_from(NAMES))
    def disconnect(self, name: str) -> None:
        user = self.users[name]
        wire, session = user.wire, user.session
        user.wire = user.session = None
        user.forget()
        if wire is not None and session is not None:
            self.bench.edge.clients.disconnect(session, wire, will=False)

    @rule(name=st.sampled_from(NAMES), topic_filter=st.sampled_from(FILTERS), qos=st.integers(0, 2))
    def subscribe(self, name: str, topic_filter: str, qos: int) -> None:
        user = self.users[name]
        if user.session is None:
            return
        if qos == 0:
            self.forgive(user)
        known = user.session.subscriptions.get(topic_filter)
        if known is not None and known.qos == 0 and qos:
            return  # what came at QoS 0 has no place, and may come again
        packet = Subscribe(1, ((topic_filter, qos),))
        self.bench.edge.subscriptions.subscribe(user.session, packet, lambda: None)

    @rule(name=st.sampled_from(NAMES), topic_filter=st.sampled_from(FILTERS))
    def unsubscribe(self, name: str, topic_filter: str) -> None:
        user = self.users[name]
        if user.session is not None and topic_filter in user.session.subscriptions:
            self.forgive(user)
            self.bench.edge.subscriptions.unsubscribe(user.session, [topic_filter], lambda: None)

    def forgive(self, user: User) -> None:
        """What has not come yet need not come once a filter is given up."""
        self.promised[user.name] &= set(user.seen)

    @invariant()
    def look(self) -> None:
        """Each packet is looked at while what is durable is what it was when it left."""
        for user in self.users.values():
            if user.wire is not None:
                user.wire.look()

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 5))
    def take(self, name: str, count: int) -> None:
        user = self.users[name]
        for _ in range(count):
            if user.wire is not None and user.wire.inbox:
                user.take()

    @rule(name=st.sampled_from(NAMES), index=st.integers(0, 5), count=st.integers(1, 4))
    def answer(self, name: str, index: int, count: int) -> None:
        user = self.users[name]
        for _ in range(count):
            if user.session is not None and user.owed:
                user.answer(index)

    @rule(name=st.sampled_from(NAMES), has_room=st.booleans())
    def clog(self, name: str, has_room: bool) -> None:
        user = self.users[name]
        if user.wire is not None:
            user.wire.room = has_room
            if has_room and user.session is not None:
                user.session.sender.pump()

    # what holds

    @invariant()
    def order(self) -> None:
        for user in self.users.values():
            for zone in ZONES:
                offsets = [int(p.partition(":")[2]) for p in user.order if p.startswith(zone + ":")]
                assert offsets == sorted(offsets), f"{user.name}: {offsets} of zone {zone!r}"

    @invariant()
    def absent_sessions_hold_no_queue(self) -> None:
        for user in self.users.values():
            if user.wire is None:
                session = self.bench.edge.clients.sessions.get(user.name)
                assert session is None or user.name != "clean"
                assert session is None or not session.durable_sender.first_queued()

    def settle(self) -> None:
        """Everything that can happen without a fault happens."""
        for _ in range(300):
            for _ in range(3):
                self.look()
                self.commit.commit()
                self.look()
                self.journals.answer(10)
                self.bench.work()
            is_moved = any(owner.stream for owner in self.owners.values())
            for apex in ZONES:
                self.stream(apex, 1000)
            for user in self.users.values():
                while user.wire is not None and user.wire.inbox:
                    user.take()
                    is_moved = True
                while user.session is not None and user.owed:
                    user.answer(0)
                    is_moved = True
            self.bench.clock.advance(RETRY)
            if not is_moved and self.commit.is_quiet and not self.is_behind():
                return
        pytest.fail("it does not come to rest")

    def is_behind(self) -> bool:
        return any(session.places.behind for session in self.bench.edge.clients.sessions.values())

    def teardown(self) -> None:
        """All is healed: what was promised has come."""
        self.journals.late = False
        self.journals.missing.clear()
        for apex in ZONES:
            if self.bench.route(apex).port is None:
                self.link(apex)
        for name, user in self.users.items():
            self.clog(name, True)
            if user.wire is None:
                self.connect(name)
        self.settle()
        self.order()
        for name, user in self.users.items():
            missing = self.promised[name] - set(user.seen)
            assert not missing, f"{name} never got {sorted(missing)}"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything that is counted in hundreds is a few here, so that borders are met."""
    monkeypatch.setattr(window, "QUEUE_MESSAGES", 3)
    monkeypatch.setattr(packet_writer, "QUEUE_MESSAGES", 3)
    monkeypatch.setattr(journal_read_cache, "SPAN", 4)
    monkeypatch.setattr(journal_read_cache, "CHUNKS", 2)
    monkeypatch.setattr(catch_up, "TURN", 2)
    yield


@pytest.mark.timeout(300)
@pytest.mark.parametrize("core", [txbroker.core, router], ids=["core", "reference"])
def test_what_was_promised_comes_once_and_in_order(
    core: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random schedules; the queues of a clean session are short in the reference only."""
    monkeypatch.setattr(edge_bench, "Router", core.Router)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=150,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_all_filters_are_told_after_a_crash_amid_a_subscribe() -> None:
    """The zones that one session still waits for hear what the sessions after it want, too."""
    machine = Machine()
    machine.begin(filters=["x", "x", "+/x", "#"])
    machine.subscribe("one", "#", 1)
    machine.unsubscribe("one", "x")  # which keeps all subscriptions
    machine.write()
    machine.sync()
    machine.crash()
    for apex in ZONES:
        assert machine.bench.route(apex).interest.filters == {"#", "+/x"} | (
            set() if apex else {"x"}
        )
    machine.teardown()
