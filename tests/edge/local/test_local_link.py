"""The node's own zone without a link, and the edge's way back when it goes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.core.cores import a_run, publish
from tests.support.edge_bench import Client, EdgeBench
from tests.support.journal import authority_of
from tests.support.recorders import EdgeRecorder, cut
from txbroker import core
from txbroker.authority.authority import Authority
from txbroker.authority.edge_peer import EdgeGreeting
from txbroker.delegation.delegation_table import DelegationTable
from txbroker.delegation.zone_snapshot import EdgeInterest, ReceivedZone, ZoneSnapshot
from txbroker.edge.local.local_link import LocalLink
from txbroker.model.log_position import JournalId
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import Puback, Will
from txbroker.runtime.backpressure import LIGHT


class OwnBench(EdgeBench):
    """An edge and the authority of one node."""

    def __init__(self, apex: str = "", *apexes: str) -> None:
        super().__init__(*apexes)
        self.table = DelegationTable(apex)
        self.authority, self.journal = authority_of(apex, self.table)
        self.own = LocalLink(self.edge, self.authority, self.pressure)
        self.port = EdgeRecorder(self.events, "other edge")

    def open(
        self, epoch: int = 1, received_zone: ReceivedZone | None = None, watched: str | None = None
    ) -> None:
        """The zone opens; with `watched`, another edge is there first."""
        self.authority.open(epoch, received_zone)
        if watched is not None:
            self.another_edge(watched)
        self.own.open(cut(self.authority.apex, epoch))

    def another_edge(self, *filters: str) -> None:
        """A recorder shows what the authority hands out."""
        greeting = EdgeGreeting(edge="other", incarnation=1, filters=filters)
        assert self.authority.reception.connect(greeting, self.port)

    def delegate(self, apex: str, epoch: int = 1) -> ZoneCut:
        source = self.authority.subtrees.prepare(apex)
        self.authority.subtrees.fence(source)
        given = cut(apex, epoch)
        self.table.commit(given)
        self.authority.subtrees.complete(source)
        return given


def test_publish_comes_back_to_the_nodes_own_clients() -> None:
    """Taken at once: acknowledged, delivered, retained."""
    bench = OwnBench()
    bench.open()
    client = Client(bench, "c")
    client.subscribe("#")
    client.publish("x", "1")
    acknowledged = client.events[-1]

    assert Puback(2) == acknowledged
    assert ["Suback", "1", "Puback"] == client.got()


def test_interest_from_before_the_zone_opened_counts() -> None:
    """A SUBSCRIBE that waits is answered when the zone opens."""
    bench = OwnBench()
    client = Client(bench, "c")
    client.subscribe("x")
    bench.open()
    client.publish("x", "1")

    assert ["Suback", "1", "Puback"] == client.got()


def test_publishes_that_wait_go_into_the_zone_when_it_opens() -> None:
    """In their order, before what comes later."""
    bench = OwnBench()
    client = Client(bench, "c")
    client.publish("x", "1")
    client.publish("x", "2")
    bench.open(watched="#")
    client.publish("x", "3")

    assert [("other edge", "deliver", n, str(n)) for n in (1, 2, 3)] == [
        event for event in bench.events if "deliver" in event
    ]


def test_publishes_wait_while_a_subtree_is_handed_over() -> None:
    """Parked, not answered; after the cut they are the child's, in order."""
    bench = OwnBench()
    bench.open()
    bench.another_edge("#")
    client = Client(bench, "c")
    source = bench.authority.subtrees.prepare("a")
    bench.authority.subtrees.fence(source)
    client.publish("a/x", "1")
    client.publish("b", "2")
    client.publish("a/x", "3")
    parked = (client.got(), bench.take())
    bench.table.commit(cut("a"))
    bench.authority.subtrees.complete(source)
    bench.know("a")

    assert ([], []) == parked
    assert ["Puback"] == client.got()
    assert [b"1", b"3"] == [p.message.payload for p in bench.route("a").queue.waiting]
    assert [("other edge", "cut", "a", 1), ("other edge", "deliver", 1, "2")] == [
        event for event in bench.events if event[1] in ("cut", "deliver")
    ]


def test_publishes_go_on_when_the_handover_came_to_nothing() -> None:
    """The fence is lifted: the same zone, the same order."""
    bench = OwnBench()
    bench.open()
    bench.another_edge("#")
    client = Client(bench, "c")
    source = bench.authority.subtrees.prepare("a")
    bench.authority.subtrees.fence(source)
    client.publish("a/x", "1")
    client.publish("b", "2")
    bench.authority.subtrees.roll_back(source)

    assert ["Puback", "Puback"] == client.got()
    assert [("other edge", "deliver", 1, "1"), ("other edge", "deliver", 2, "2")] == [
        event for event in bench.events if "deliver" in event
    ]


def test_topic_below_a_cut_goes_to_the_child() -> None:
    """Also when the edge hears of the cut by being refused."""
    bench = OwnBench()
    bench.open()
    bench.table.commit(cut("a"))
    bench.authority.open(bench.authority.epoch)  # it looks at its cuts, and tells nobody
    client = Client(bench, "c")
    client.publish("a/x", "1")

    assert [b"1"] == [p.message.payload for p in bench.route("a").queue.waiting]
    assert ("resolve", "a") in bench.events


def test_publishes_wait_while_somebody_has_to_be_waited_for() -> None:
    """Pressure holds local publishes back, and lets them go when it goes."""
    bench = OwnBench()
    bench.open()
    client = Client(bench, "c")
    bench.pressure.raise_("somebody slow", lambda: 1, has_drained=True)
    client.publish("x", "1" * LIGHT)
    before = client.got()
    bench.pressure.lower("somebody slow")

    assert ([], ["Puback"]) == (before, client.got())


def test_a_light_client_waits_for_nobody_slow() -> None:
    """A flood to consumers that read nothing delayed all clients by 0.3 s, again and again."""
    bench = OwnBench()
    bench.open()
    heavy, light = Client(bench, "heavy"), Client(bench, "light")
    light.subscribe("#")
    light.got()
    bench.pressure.raise_("somebody slow", lambda: 1, has_drained=True)
    heavy.publish("x", "h" * LIGHT)
    for text in ("1", "2"):
        light.publish("x", text)
        assert [text, "Puback"] == light.got()
    heavy.publish("x", "3")  # behind its own
    before = heavy.got(), light.got()
    bench.pressure.lower("somebody slow")

    assert ([], []) == before
    assert ["h" * LIGHT, "3"] == light.got()
    assert ["Puback", "Puback"] == heavy.got()


def test_zone_that_is_given_back_leaves_its_publishes_to_the_parent() -> None:
    """What was parked waits for the owner above, and so does the interest."""
    bench = OwnBench("a", "a")
    bench.open(4)
    client = Client(bench, "c")
    client.subscribe("a/x")
    source = bench.authority.subtrees.prepare("a")
    bench.authority.subtrees.fence(source)
    client.publish("a/x", "1")
    client.got()
    bench.authority.subtrees.complete(source)
    bench.online("")

    assert bench.edge.zones.get("a") is None
    assert [("", "publish", "1"), ("", "sync", ["a/x"], ["a"])] == [
        event for event in bench.events if event[1] in ("publish", "sync")
    ]


def test_own_clients_wait_for_the_earlier_owners_last_words() -> None:
    """While the parent's link is up, its stream says when its deliveries of the subtree end."""
    bench = OwnBench("a")
    bench.online("")
    client = Client(bench, "c")
    client.subscribe("a/x")
    bench.answer("", "a/x")
    received_zone = ReceivedZone()
    interest = EdgeInterest(edge="edge", incarnation=1, filters=("a/x",))
    received_zone.merge(ZoneSnapshot(interests=(interest,)))
    bench.open(1, received_zone)
    message = Message("a/x", b"child's", 1)
    bench.authority.publish(message)
    bench.journals.add(JournalId("a", 1), 1, message)
    bench.deliver("", "a/x", "parent's last")
    before = client.got()
    bench.edge.cuts.on_cut(bench.route(""), cut("a"))

    assert (["Suback", "parent's last"], ["child's"]) == (before, client.got())


def test_publishes_wait_for_what_is_in_flight_to_the_earlier_owner() -> None:
    """The own zone takes nothing before the parent has answered what it was sent (rule 13)."""
    bench = OwnBench("a")
    bench.online("")
    client = Client(bench, "c")
    client.publish("a/x", "1")
    bench.open()
    bench.another_edge("a/#")
    client.publish("a/x", "2")
    before = [event for event in bench.events if "deliver" in event]
    bench.edge.publisher.on_refused(bench.route(""), 1, cut("a"))

    assert [] == before
    assert [("other edge", "deliver", 1, "1"), ("other edge", "deliver", 2, "2")] == [
        event for event in bench.events if "deliver" in event
    ]
    assert ["Puback", "Puback"] == client.got()


def test_publishes_that_wait_for_the_earlier_owner_come_first() -> None:
    """They belong to the own zone now, before what comes later."""
    bench = OwnBench("a")
    bench.online("").credit = False
    client = Client(bench, "c")
    client.publish("a/x", "1")
    client.publish("b", "2")
    bench.open(watched="a/#")
    client.publish("a/x", "3")

    assert [b"2"] == [p.message.payload for p in bench.route("").queue.waiting]
    assert [("other edge", "deliver", 1, "1"), ("other edge", "deliver", 2, "3")] == [
        event for event in bench.events if "deliver" in event
    ]


def test_zone_between_that_is_heard_of_by_lineage_waits_for_what_is_in_flight() -> None:
    """By whatever way an edge learns of a cut, it holds publishes below it (rule 13)."""
    bench = EdgeBench()
    bench.online("")
    client = Client(bench, "c")
    client.publish("a/x", "1")
    bench.edge.on_lineage([cut(""), cut("a")])
    bench.know("a")
    bench.online("a")
    client.publish("a/x", "2")
    before = bench.take()
    bench.edge.publisher.on_refused(bench.route(""), 1, cut("a"))

    assert [("", "publish", "1")] == [event for event in before if "publish" in event]
    assert [("a", "publish", "1"), ("a", "publish", "2")] == [
        event for event in bench.take() if "publish" in event
    ]


def test_will_is_published_like_any_message() -> None:
    """Without a DISCONNECT, and once."""
    bench = OwnBench()
    bench.open()
    bench.another_edge("#")
    will = Will(topic="w", payload=b"gone", qos=1, retain=True)
    client = Client(bench, "c", will=will)
    client.leave(will=True)
    client.leave(will=True)

    assert [("other edge", "deliver", 1, "gone")] == bench.events
    assert bench.authority.retained.get("w") is not None


class StraightBench(OwnBench):
    """Everything is clear for QoS 0, which is not kept; `client` wants all."""

    def __init__(self) -> None:
        super().__init__()
        self.journal.stores_qos0 = False
        self.authority = Authority("", self.table, self.journal, self.router)
        self.journal.authority = self.authority
        self.own = LocalLink(self.edge, self.authority, self.pressure)
        self.open()
        self.client = Client(self, "c")
        self.client.subscribe("#")
        assert self.client.got() == ["Suback"]

    def keep_qos0(self) -> None:
        self.journal.stores_qos0 = True

    def press(self) -> None:
        self.pressure.raise_("somebody slow", lambda: 1, has_drained=True)

    def let_wait(self) -> None:
        self.press()
        self.client.publish("x", "0" * LIGHT)

    def watch(self) -> None:
        self.another_edge("x")

    def fence(self) -> None:
        self.authority.subtrees.fence(self.authority.subtrees.prepare("x"))

    def take_back(self) -> None:
        peer = self.authority.peers.get("edge")
        assert peer is not None
        peer.unclaimed["z"] = 0


def test_qos0_goes_straight_where_all_is_clear() -> None:
    """From here to here, without a step at the authority."""
    bench = StraightBench()
    assert bench.own.forward(a_run(core, publish(b"x", b"1"), publish(b"y", b"2")))
    assert ["1", "2"] == bench.client.got()
    assert not bench.journal.records


def test_qos0_that_is_kept_goes_straight_and_into_the_journal() -> None:
    bench = StraightBench()
    bench.keep_qos0()
    assert bench.own.forward(a_run(core, publish(b"x", b"1"), publish(b"y", b"2")))
    assert ["1", "2"] == bench.client.got()
    assert [b"1", b"2"] == [record.message.payload for record in bench.journal.records]
    assert bench.authority.offset == 2


def test_qos0_does_not_go_straight_to_whoever_has_to_be_looked_at() -> None:
    """That is done as with any other run."""
    bench = StraightBench()
    bench.client.session.start_subscribing()
    assert bench.own.forward(a_run(core, publish(b"x", b"1")))
    assert ["1"] == bench.client.got()


@pytest.mark.parametrize(
    "hinder",
    [
        StraightBench.press,
        StraightBench.let_wait,
        StraightBench.watch,
        StraightBench.fence,
        StraightBench.take_back,
    ],
)
def test_qos0_takes_each_step_where_something_is_in_its_way(
    hinder: Callable[[StraightBench], None],
) -> None:
    bench = StraightBench()
    hinder(bench)
    assert not bench.own.forward(a_run(core, publish(b"x", b"1")))
    assert [] == bench.client.got()


def test_link_to_an_earlier_owner_ends_when_the_zone_opens_here() -> None:
    """What it left unanswered is asked of this node's marks, and is sent to its own zone."""
    bench = OwnBench("a", "a")
    client = Client(bench, "c")
    port = bench.online("a")
    client.publish("a/x", "1")
    port.close = lambda reason: bench.lose("a")  # type: ignore[method-assign]
    before = client.got()
    bench.open(2)

    assert ([], ["Puback"]) == (before, client.got())
    assert bench.route("a").is_local
    assert bench.own is bench.route("a").port
