"""
Histories of one durable session, at random: none of its messages is lost.

Its client comes and leaves, with packets on their way. Links break, the edge's process dies between
two steps of a commit, and the session moves to other edges. Other sessions change meanwhile.
"""

from __future__ import annotations

import random
from typing import Final

import pytest

from tests.support.edge_bench import Client, EdgeBench
from tests.support.keeping import JournalsRecorder, MemoryTable
from tests.support.recorders import OwnerRecorder, cut
from txbroker.edge.routing.edge_limits import EdgeLimits
from txbroker.edge.routing.zone_claims import StreamPosition
from txbroker.edge.sessions.journal_read_cache import RETRY, ReadFailure
from txbroker.edge.sessions.session_connect import PublishBarrier
from txbroker.edge.sessions.session_transfer import SessionTransfer
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.window import SessionLimits
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import Publish, Pubrel

PARTS: Final = {"": JournalId("", 1), "a": JournalId("a", 1)}
TOPICS: Final = {"": "x", "a": "a/x"}
STILL: Final = 12
"""Rounds without a message after which no more comes."""


class History:
    """What happens to the session, its edge and the two zones."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.said: list[str] = []
        self.got: set[str] = set()
        self.ends = dict.fromkeys(PARTS, 0)
        self.linked: set[str] = set()
        self.journals = JournalsRecorder()
        self.bench = self._make_bench()
        for apex in PARTS:
            self.find(apex)
        self.client: Client | None = self._subscribed("c", "#", qos=2)
        self.others: list[Client | None] = [
            self._subscribed(f"other {number}", rng.choice(["a/#", "#", "x"]))
            for number in range(rng.choice([0, 1, 20]))
        ]
        self.bench.settle()
        self.read(1.0)

    def step(self) -> None:
        """One of the things that may happen."""
        rng, bench = self.rng, self.bench
        match rng.randrange(20):
            case 0 | 1 | 2 | 3:
                self.say(rng.choice(["", "a"]), rng.randrange(1, 5))
            case 4:
                self.lose(rng.choice(["", "a"]))
            case 5 | 6:
                self.find(rng.choice(["", "a"]))
            case 7:
                self.leave()
            case 8:
                self.come()
            case 9:
                bench.commit.write()
            case 10:
                bench.commit.sync()
            case 11:
                bench.edge.cursors.checkpoint()
            case 12:
                bench.work()
            case 13:
                self.read(rng.choice([0.0, 0.5, 1.0]))
            case 14:
                self.journals.answer(rng.randrange(3))
                self.journals.late = rng.random() < 0.5
            case 15 if rng.random() < 0.25:
                self.crash()
            case 15:
                bench.clock.advance(RETRY)
            case 19 if rng.random() < 0.15:
                self.move()
            case _:
                self.change_another()

    # zones

    def say(self, apex: str, count: int) -> None:
        """The zone's owner accepts messages."""
        known = self.ends[apex]
        for _ in range(count):
            self.ends[apex] += 1
            self.said.append(str(len(self.said)))
            message = Message(TOPICS[apex], self.said[-1].encode(), self.rng.choice([1, 2]))
            self.journals.add(PARTS[apex], self.ends[apex], message)
        if apex in self.linked:
            self._deliver(apex, known)

    def lose(self, apex: str) -> None:
        """The link to the owner breaks."""
        if apex in self.linked:
            self.linked.discard(apex)
            self._see_what_is_readable()
            self.bench.lose(apex)

    def find(self, apex: str) -> None:
        """The edge reaches the owner, which sends what the edge has missed."""
        if apex in self.linked:
            return
        self.linked.add(apex)
        self._see_what_is_readable()
        edge, route = self.bench.edge, self.bench.route(apex)
        edge.on_owner(route, 1, LogPosition(PARTS[""], 0) if apex else None)
        if route.position is not None:
            self._deliver(apex, route.position.offset)
        edge.on_online(
            route,
            OwnerRecorder(),
            marks={},
            cuts=[] if apex else [cut("a")],
            position=StreamPosition(epoch=1, offset=self.ends[apex]),
        )
        self._answer()

    # the client

    def come(self) -> None:
        """The client connects, if it is away."""
        if self.client is None:
            self.client = Client(self.bench, "c", clean=False)
            assert self.client.present

    def leave(self) -> None:
        """The client is gone, with all that it has not read."""
        if self.client is not None:
            self.client.leave()
            self.client = None

    def read(self, share: float) -> None:
        """The client reads all packets, and answers a share of them."""
        if self.client is None:
            return
        sender, events = self.client.session.sender, self.client.events
        while events:
            packet, is_answered = events.pop(0), self.rng.random() < share
            if isinstance(packet, Publish):
                self.got.add(packet.payload.decode())
                if is_answered and packet.packet_id is not None:
                    if packet.qos == 1:
                        sender.on_pubacks((packet.packet_id,))
                    else:
                        sender.on_pubrec(packet.packet_id)
            elif isinstance(packet, Pubrel) and is_answered:
                sender.on_pubcomp(packet.packet_id)

    def change_another(self) -> None:
        """Another client comes, leaves or reads."""
        if not self.others:
            return
        number = self.rng.randrange(len(self.others))
        other = self.others[number]
        if other is None:
            self.others[number] = Client(self.bench, f"other {number}", clean=False)
        elif self.rng.random() < 0.3:
            other.leave()
            self.others[number] = None
        else:
            other.got()

    # the edge

    def crash(self) -> None:
        """The edge's process dies, and another one begins with what was durable."""
        self.client = None
        self.others = [None] * len(self.others)
        self._part()
        self.bench = self.bench.restart()

    def move(self) -> None:
        """The session moves to another edge, which may reach some zones later."""
        self.leave()
        state = _transfer(self.bench).freeze("c")
        assert state is not None
        self.others = []
        self._part()
        self.bench = self._make_bench()
        for apex in PARTS:
            if self.rng.random() < 0.7:
                self.find(apex)
        _transfer(self.bench).adopt("c", state, 2, 1.0)
        self.bench.commit.commit()
        self._answer()

    def end(self) -> set[str]:
        """All is well again; the messages that the client has never got."""
        self.journals.late = False
        while self.journals.open:
            self.journals.answer()
        for apex in PARTS:
            self.find(apex)
        self.leave()
        self.come()
        still = 0
        while still < STILL:
            known = len(self.got)
            self.bench.clock.advance(RETRY)
            self.bench.settle()
            self._answer()
            self.read(1.0)
            still = still + 1 if known == len(self.got) else 0
        return {*self.said} - self.got

    # internal

    def _make_bench(self) -> EdgeBench:
        limits = EdgeLimits(session=SessionLimits(inflight=self.rng.choice([1, 2, 5, 20])))
        return EdgeBench("a", limits=limits, journals=self.journals)

    def _subscribed(self, name: str, topic_filter: str, qos: int = 1) -> Client:
        client = Client(self.bench, name, clean=False)
        client.subscribe(topic_filter, qos=qos)
        self._answer()
        return client

    def _part(self) -> None:
        self.linked.clear()
        self._see_what_is_readable()
        self.journals.drop_questions()

    def _see_what_is_readable(self) -> None:
        missing = self.journals.missing
        missing.clear()
        missing.update(
            {PARTS[apex]: ReadFailure.UNREACHABLE for apex in PARTS if apex not in self.linked}
        )

    def _deliver(self, apex: str, known: int) -> None:
        """The stream brings the records behind an offset, in pieces."""
        route = self.bench.route(apex)
        records = self.journals.parts.get(PARTS[apex], [])[known:]
        if records and "#" not in route.interest.filters:
            route.reach(records[-1].offset)
            return
        while records:
            count = self.rng.randrange(1, 4)
            some, records = records[:count], records[count:]
            if self.rng.random() < 0.5:
                for record in some:
                    self.bench.edge.on_message(route, record.message, record.offset)
            else:
                run = self.bench.make_run([record.message for record in some])
                run.first = some[0].offset
                self.bench.edge.on_runs(route, [run])

    def _answer(self) -> None:
        """The owners that are reached answer what they were asked."""
        for route in self.bench.edge.zones:
            if route.apex in self.linked:
                if route.claims.claiming:
                    self.bench.edge.on_claimed(route, list(route.claims.claiming), lambda: None)
                for topic_filter, _ in list(route.interest.requests.values()):
                    self.bench.answer(route.apex, topic_filter)


def _transfer(bench: EdgeBench) -> SessionTransfer:
    return SessionTransfer(bench.edge, PublishBarrier(), MemoryTable(), MemoryTable())


@pytest.mark.parametrize("seed", range(200))
def test_no_history_loses_a_message(seed: int) -> None:
    """Whatever comes in between: at the end the client has got each message."""
    rng = random.Random(seed)
    history = History(rng)
    for _ in range(rng.randrange(5, 70)):
        history.step()

    assert set() == history.end()
