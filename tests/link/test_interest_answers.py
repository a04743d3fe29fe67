"""An owner's answers with very many retained messages, over a link: in shares, and still exact."""

from __future__ import annotations

from collections import deque

from tests.link.link_bench import ROOT
from tests.support.pair import Alarms, Client, Host, Link, Recorder, make_authority, make_edge
from txbroker.link.delivery_sender import SHOWN
from txbroker.link.interest_answers import AT_ONCE, LOOK, WAITING
from txbroker.mqtt.wire.message import Message
from txbroker.runtime.fair_shares import ShareWorker


class SlowHost(Host):
    """A node on which others come first: work is done when the test says so, a little at a time."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self.late: deque[ShareWorker] = deque()
        self.turns = 0

    def serve(self, worker: ShareWorker) -> None:
        if worker not in self.late:
            self.late.append(worker)

    def is_over(self) -> bool:
        return True

    def work(self) -> bool:
        """One turn of one of them; False: nobody waits."""
        if not self.late:
            return False
        worker = self.late.popleft()
        self.turns += 1
        if worker.work():
            self.late.append(worker)
        return True


class Bench:
    """An edge, and an owner that retains `count` messages, of t/0000 and so on."""

    def __init__(self, count: int) -> None:
        alarms = Alarms()
        self.edge = make_edge(alarms, Recorder())
        self.route = self.edge.zones.add(ROOT)
        self.route.learn_cuts({})
        self.authority = make_authority("", 1)
        self.host = SlowHost(self.authority, alarms)
        self.count = count
        for number in range(count):
            self.say(f"t/{number:04}", f"{number}")
        self.link = Link(self.edge, self.route, self.host).open()

    def say(self, topic: str, payload: str) -> None:
        """A retained message."""
        self.authority.publish(Message(topic, payload.encode(), 0, True))

    def settle(self) -> None:
        """Until nothing is left."""
        self.link.pump()
        while self.host.work():
            self.link.pump()


def test_an_answer_is_gathered_in_shares() -> None:
    """Each of few steps; the messages of it leave in several turns, too."""
    bench = Bench(3_000)
    client = Client(bench.edge, "c")
    client.subscribe(("t/#", 0))
    bench.link.pump()
    assert [] == client.payloads and 1 == len(bench.host.late)
    bench.settle()

    assert bench.host.turns >= (3_000 - AT_ONCE) // LOOK
    assert [f"{number}".encode() for number in range(3_000)] == client.payloads
    assert 1 == len(client.subacks)


def test_few_messages_are_given_at_once() -> None:
    """As nobody is held up by them."""
    bench = Bench(AT_ONCE // 2)
    client = Client(bench.edge, "c")
    client.subscribe(("t/#", 0))
    bench.link.pump()

    assert not bench.host.late
    assert AT_ONCE // 2 == len(client.payloads)


def test_what_changes_meanwhile_is_as_at_the_answer() -> None:
    """Whoever waits for it misses nothing, and sees nothing that is older than what it saw."""
    bench = Bench(2_000)
    client = Client(bench.edge, "c")
    client.subscribe(("t/#", 0))
    bench.link.pump()
    for _ in range(20):
        bench.host.work()
    bench.say("t/0001", "new")  # the walk was there
    bench.say("t/0002", "")
    bench.say("t/0000x", "late")
    bench.say("t/1999", "ahead")
    bench.settle()
    bench.say("t/0001", "newer")
    bench.settle()

    payloads = [payload.decode() for payload in client.payloads]
    expected = ["0", "new", *map(str, range(3, 1_999)), "ahead", "late", "newer"]
    assert expected == payloads


def test_a_live_message_follows_the_retained_ones() -> None:
    """Though they leave in turns."""
    bench = Bench(2 * SHOWN)
    client = Client(bench.edge, "c")
    client.subscribe(("t/#", 0))
    bench.link.pump()
    while bench.host.work():
        pass
    bench.link.owner_end.flush()
    assert SHOWN == bench.link.owner_end._deliveries.retained
    bench.say("t/0000", "live")
    bench.settle()

    assert 2 * SHOWN + 1 == len(client.payloads)
    assert b"live" == client.payloads[-1]


def test_no_more_is_gathered_than_leaves() -> None:
    """Else each request of a client would keep all messages once more."""
    bench = Bench(WAITING + 100)
    clients = [Client(bench.edge, name) for name in ("c", "d", "e")]
    for client in clients:
        client.subscribe(("t/#", 0))
    while bench.link.up:  # nothing leaves
        data = bytes(bench.link.up)
        bench.link.up.clear()
        bench.link.owner_end.reader.packet_reader.feed(data)
        bench.link.owner_end.work()
    while bench.host.work():
        pass
    waiting = bench.link.owner_end._deliveries.retained
    while bench.host.late or bench.link.up or bench.link.down or bench.host.dirty:
        bench.host.work()
        for _ in bench.link.steps():
            told = [len(client.payloads) for client in clients]  # they read

    assert WAITING + 100 == waiting
    assert [WAITING + 100] * 3 == told
    assert [1] * 3 == [len(client.subacks) for client in clients]


def test_a_link_that_breaks_while_messages_come() -> None:
    """They are asked for again; nothing is gathered for a link that is gone."""
    bench = Bench(1_000)
    client = Client(bench.edge, "c")
    client.subscribe(("t/#", 0))
    bench.link.split = lambda: 500
    while not bench.host.late:
        next(bench.link.steps())
    bench.host.work()
    bench.link.cut()
    assert not bench.authority.retained._gathered
    while bench.host.work():
        pass
    bench.link = Link(bench.edge, bench.route, bench.host).open()
    bench.settle()

    assert {f"{number}".encode() for number in range(1_000)} == set(client.payloads)
    assert 1 == len(client.subacks)


def test_messages_are_given_as_they_come() -> None:
    """The edge keeps no list of them; a SUBACK that has left does not wait for the last one."""
    bench = Bench(1_000)
    client = Client(bench.edge, "c")
    packet_id = client.subscribe(("t/#", 0))
    (subscribing,) = bench.edge.interests.of(client.session)
    subscribing.finish()
    bench.link.split = lambda: 500
    while not client.payloads:
        bench.host.work()
        next(bench.link.steps(), None)

    assert [packet_id] == client.subacks
    assert 0 < len(client.payloads) < 100
    bench.settle()
    assert 1_000 == len(client.payloads)
