"""A link's life: what is resumed, what is counted, what a refusal leaves."""

from __future__ import annotations

import pytest

from tests.support.journal import authority_of, authority_over
from tests.support.keeping import CommitRecorder
from tests.support.pair import (
    Alarms,
    Client,
    Host,
    Link,
    Recorder,
    make_authority,
    make_edge,
    receive,
)
from tests.support.recorders import EdgeRecorder, cut
from txbroker.authority import edge_registry
from txbroker.authority.edge_peer import EdgeGreeting
from txbroker.delegation.delegation_table import DelegationTable
from txbroker.delegation.zone_snapshot import EdgeInterest, ReceivedZone, ZoneSnapshot
from txbroker.link.delivery_sender import OVERFLOW, WINDOW
from txbroker.link.frames import LinkError, encode_frame
from txbroker.link.link_port import HIGH_MARK
from txbroker.link.link_server import MANY_EDGES
from txbroker.link.publish_receiver import MANY_MARKS
from txbroker.mqtt.wire.message import Message
from txbroker.rpc.link_convert import mark_to_wire
from txbroker.v1 import link_pb2
from txbroker.v1.link_pb2 import LinkFrame


class Pair:
    """One edge, the owner of one zone, and the link between them."""

    def __init__(self, apex: str = "", *, lazy: bool = False) -> None:
        self.alarms = Alarms()
        self.commit = CommitRecorder()
        self.edge = make_edge(self.alarms, Recorder(), commit=self.commit)
        self.route = self.edge.zones.add(cut(apex))
        self.route.learn_cuts({})
        self.table = DelegationTable(apex)
        authority, self.journal = authority_of(apex, self.table, lazy=lazy)
        authority.open(1)
        self.host = Host(authority, self.alarms)
        self.client = Client(self.edge, "c")
        self.link = self.connect()

    @property
    def authority(self):  # type: ignore[no-untyped-def]
        return self.host.authority

    def connect(self) -> Link:
        self.link = Link(self.edge, self.route, self.host).open()
        return self.link

    def restart_owner(self, epoch: int = 1) -> None:
        """Its process begins anew; what was not durable is gone."""
        self.journal.crash()
        authority = authority_over(self.journal, self.authority.apex, self.table)
        authority.open(epoch)
        self.host = Host(authority, self.alarms)

    def say(self, topic: str, payload: bytes, qos: int = 1, *, retain: bool = False) -> None:
        self.authority.publish(Message(topic, payload, qos, retain))


def watch(pair: Pair) -> EdgeRecorder:
    """Another edge, which sees in which order the owner takes what."""
    port = EdgeRecorder()
    greeting = EdgeGreeting(edge="other", incarnation=1, filters=("#",))
    assert pair.authority.reception.connect(greeting, port)
    return port


def taken(port: EdgeRecorder) -> list[str]:
    return [event[2] for event in port.events if event[0] == "deliver"]


# -- order in the delivery stream


def test_answer_is_among_live_messages_where_it_was_given() -> None:
    """Older ones before, newer ones after, over as many batches as it takes."""
    pair = Pair()
    for number in range(130):
        pair.say(f"r/{number:03}", b"r%d" % number, retain=True)
    pair.client.subscribe(("live", 0))
    pair.link.pump()
    pair.client.subscribe(("r/+", 0))
    pair.say("live", b"before")
    pair.link.pump()
    pair.say("live", b"after")
    pair.say("r/000", b"newer")
    pair.link.pump()

    retained = [b"r%d" % number for number in range(130)]
    assert [b"before", *retained, b"after", b"newer"] == pair.client.payloads


def test_no_cut_overtakes_a_delivery() -> None:
    """The stream is one: the last message of the subtree, then the cut (rule 13)."""
    pair = Pair()
    pair.client.subscribe(("a/x", 1))
    pair.link.pump()
    pair.say("a/x", b"last")
    outgoing = pair.authority.subtrees.prepare("a")
    pair.authority.subtrees.fence(outgoing)
    pair.authority._table.commit(cut("a"))
    pair.authority.subtrees.complete(outgoing)
    pair.link.pump()

    assert [b"last"] == pair.client.payloads
    assert ({"a"}, {"a"}) == (set(pair.route.cuts or ()), pair.edge.zones.get("a").claims.apexes)


# -- reconnecting


def test_edge_resumes_where_it_was() -> None:
    """QoS 1 and 2 that came meanwhile; nothing twice."""
    pair = Pair()
    pair.client.subscribe(("x", 2))
    pair.link.pump()
    pair.say("x", b"1")
    pair.link.pump()
    pair.say("x", b"2", 2)
    pair.link.owner_end.flush()
    pair.link.cut()
    pair.say("x", b"not repeated", 0)
    pair.say("x", b"4")
    pair.connect()
    pair.say("x", b"5")
    pair.link.pump()

    assert [b"1", b"2", b"4", b"5"] == pair.client.payloads


def test_edge_that_lost_its_link_in_the_middle_of_a_batch_gets_the_rest() -> None:
    """The position is that of the last message, not of the last batch."""
    pair = Pair()
    pair.client.subscribe(("x", 1))
    pair.link.pump()
    for number in range(10):
        pair.say("x", b"%d" % number * 50)
    pair.link.owner_end.flush()
    receive(pair.link.edge_end, bytes(pair.link.down[:300]))
    got = len(pair.client.payloads)
    pair.link.cut()
    pair.connect()

    assert 0 < got < 10
    assert [b"%d" % number * 50 for number in range(10)] == pair.client.payloads


def test_publishes_in_doubt_are_sent_again_only_if_they_were_not_taken() -> None:
    """The owner's mark says which (rule 2)."""
    pair = Pair()
    port = watch(pair)
    for number in range(6):
        pair.client.publish("x", b"%d" % number)
    pair.link.edge_end.flush()
    receive(pair.link.owner_end, bytes(pair.link.up[: len(pair.link.up) // 2]))
    before = len(taken(port))
    pair.link.cut()
    pair.client.publish("x", b"6")
    pair.connect()

    assert 0 < before < 6
    assert [str(number) for number in range(7)] == taken(port)
    assert list(range(1, 8)) == pair.client.acknowledged


def test_owner_that_was_restarted_has_the_marks_of_what_was_durable() -> None:
    """What was not is sent to its new life; the rest is acknowledged without being sent."""
    pair = Pair(lazy=True)
    pair.client.publish("x", b"0")
    pair.link.edge_end.flush()
    receive(pair.link.owner_end, bytes(pair.link.up))
    pair.link.up.clear()
    pair.journal.sync()
    pair.client.publish("x", b"1")
    pair.link.edge_end.flush()
    receive(pair.link.owner_end, bytes(pair.link.up))
    pair.link.cut()
    pair.restart_owner()
    port = watch(pair)
    pair.connect()
    before = pair.client.acknowledged
    pair.journal.sync()
    pair.link.pump()

    assert [1] == before
    assert (["1"], [1, 2]) == (taken(port), pair.client.acknowledged)


@pytest.mark.parametrize(("epoch", "offset"), [(1, 7), (2, 2)])
def test_edge_gets_all_that_came_since_the_owner_was_restarted(epoch: int, offset: int) -> None:
    """The journal goes on, or begins anew with the epoch; no position hides a message of it."""
    pair = Pair()
    pair.client.subscribe(("x", 1))
    pair.link.pump()
    for number in range(5):
        pair.say("x", b"%d" % number)
    pair.link.pump()
    pair.link.cut()
    pair.restart_owner(epoch)
    known = EdgeGreeting(edge="edge", incarnation=1, filters=("x",))
    pair.authority.reception.connect(known, EdgeRecorder())
    pair.say("x", b"new")
    pair.connect()
    pair.say("x", b"live")
    pair.link.pump()

    assert [b"new", b"live"] == pair.client.payloads[5:]
    assert pair.route.position is not None
    assert (epoch, offset) == (pair.route.position.epoch, pair.route.position.offset)


def test_inherited_deliveries_come_when_they_are_claimed() -> None:
    """Claims travel in Hello; what the new owner kept is caught up before Online."""
    pair = Pair("a")
    pair.client.subscribe(("a/x", 1))
    pair.link.pump()
    pair.link.cut()
    received_zone = ReceivedZone()
    interest = EdgeInterest(edge="edge", incarnation=1, filters=("a/x",))
    received_zone.merge(ZoneSnapshot(interests=(interest,)))
    pair.host = Host(make_authority("a"), pair.alarms)
    pair.authority.open(2, received_zone)
    pair.say("a/x", b"kept")
    pair.route.claims.claim("a", is_read=False)
    pair.connect()
    pair.say("a/x", b"live")
    pair.link.pump()

    assert [b"kept", b"live"] == pair.client.payloads


def test_missed_deliveries_are_counted() -> None:
    """Beyond the journal there is a gap (rule 10)."""
    pair = Pair()
    pair.client.subscribe(("x", 0))
    pair.link.pump()
    pair.link.cut()
    for number in range(103):
        pair.say("x", b"%d" % number)
    pair.journal.trim(3)
    pair.connect()

    assert 3 == pair.edge.counters.get("link.missed")
    assert [b"3", b"102"] == [pair.client.payloads[0], pair.client.payloads[-1]]


# -- refusals


def refuse(pair: Pair, apex: str = "a") -> None:
    """The owner hands a subtree over, and the edge has not heard of it."""
    pair.authority._table.commit(cut(apex))
    pair.authority.open(pair.authority.epoch)  # what was worked out is forgotten


def test_refusal_stops_the_stream_until_the_restart() -> None:
    """Nothing behind the refused frame is taken before it is sent again (rule 1)."""
    pair = Pair()
    port = watch(pair)
    refuse(pair)
    for topic, payload in (("b", b"1"), ("a/x", b"2"), ("b", b"3"), ("a/x", b"4"), ("b", b"5")):
        pair.client.publish(topic, payload)
    pair.link.pump()

    assert ["1", "3", "5"] == taken(port)
    below = pair.edge.zones.get("a")
    assert below is not None
    assert [b"2", b"4"] == [p.message.payload for p in below.queue.waiting]
    assert [1, 3, 5] == pair.client.acknowledged


def test_refusal_costs_no_credit() -> None:
    """What was gathered and came back before it left does not count as sent."""
    pair = Pair()
    port = watch(pair)
    refuse(pair)
    big = bytes(WINDOW // 16)
    for number in range(40):
        pair.client.publish("a/x", b"refused")
        pair.link.edge_end.flush()
        receive(pair.link.owner_end, bytes(pair.link.up))
        pair.link.up.clear()
        pair.client.publish("b", big)  # gathered when the refusal comes
        pair.link.pump()
        below = pair.edge.zones.get("a")
        assert below is not None
        below.queue.take_waiting()
        pair.edge.zones.remove(below)
        assert number + 1 == len(taken(port))


def test_gathered_qos0_survives_a_refusal() -> None:
    """It is not repeated by anybody, so it stays in the batch."""
    pair = Pair()
    port = watch(pair)
    refuse(pair)
    pair.client.publish("a/x", b"refused")
    pair.link.edge_end.flush()
    receive(pair.link.owner_end, bytes(pair.link.up))
    pair.link.up.clear()
    for payload, qos in ((b"1", 1), (b"2", 0), (b"3", 1)):
        pair.client.publish("b", payload, qos)
    pair.link.pump()
    pair.client.publish("b", b"4", 1)
    pair.link.pump()

    assert ["1", "2", "3", "4"] == sorted(taken(port))
    assert [2, 4, 5] == pair.client.acknowledged


def test_zone_that_goes_keeps_the_edge_silent_until_its_last_words() -> None:
    """The refusal without a cut comes first, the end in the stream; then the zone above has it."""
    pair = Pair("a")
    pair.client.subscribe(("a/x", 1))
    pair.link.pump()
    pair.say("a/x", b"last")
    outgoing = pair.authority.subtrees.prepare("a")
    pair.authority.subtrees.fence(outgoing)
    pair.client.publish("a/x", b"parked")
    pair.link.edge_end.flush()
    receive(pair.link.owner_end, bytes(pair.link.up))
    pair.link.up.clear()
    pair.authority.subtrees.complete(outgoing)
    pair.link.pump()

    assert ([b"last"], []) == (pair.client.payloads, pair.client.acknowledged)
    assert pair.edge.zones.get("a") is None
    root = pair.edge.zones.find("a/x")
    assert [b"parked"] == [p.message.payload for p in root.queue.waiting]


def test_batch_of_another_epoch_takes_nothing() -> None:
    """Every frame carries the epoch (invariant 1)."""
    pair = Pair()
    port = watch(pair)
    pair.client.publish("x", b"1")
    pair.authority.epoch = 2
    pair.link.edge_end.flush()
    receive(pair.link.owner_end, bytes(pair.link.up))

    assert [] == taken(port)


# -- pressure


def test_link_that_does_not_drain_raises_the_pressure_and_leaves_the_rest_to_the_journal() -> None:
    """Publishers wait for a busy edge; one that takes nothing reads on when it is back."""
    pair = Pair()
    pair.client.subscribe(("x", 0))
    pair.link.pump()
    pair.link.owner_end._deliveries.consumed = 1
    payload = bytes(HIGH_MARK // 2)
    for _ in range(3):
        pair.say("x", payload)
    is_raised = pair.host.backpressure.active
    count = 3 + 2 * OVERFLOW // len(payload)
    for _ in range(3, count):
        pair.say("x", payload)
    queued = pair.link.owner_end._deliveries.queued
    pair.link.pump()

    assert is_raised
    assert OVERFLOW < queued < OVERFLOW + 2 * len(payload)
    assert (count, []) == (len(pair.client.payloads), pair.link.closed)
    assert not pair.host.backpressure.active


def test_nobody_waits_for_a_link_that_has_never_drained() -> None:
    """An edge that opens a link and takes nothing stalls nobody."""
    pair = Pair()
    pair.client.subscribe(("x", 0))
    pair.link.pump()
    for _ in range(3):
        pair.say("x", bytes(HIGH_MARK // 2))

    assert pair.link.owner_end._deliveries.queued > HIGH_MARK
    assert not pair.host.backpressure.active


def test_nothing_is_taken_under_pressure() -> None:
    """No more than a window comes in; all goes on, in order, when the pressure goes."""
    pair = Pair()
    port = watch(pair)
    pair.host.backpressure.raise_("busy", lambda: 1, has_drained=True)
    for number in range(WINDOW // 100_000 + 5):
        pair.client.publish("x", b"%06d" % number + bytes(100_000))
    pair.link.pump()
    before = (len(pair.route.queue.waiting) > 0, taken(port), pair.client.acknowledged)
    pair.host.backpressure.lower("busy")
    pair.host.mark_dirty(pair.link.owner_end)
    pair.link.pump()

    assert (True, [], []) == before
    assert [f"{n:06}" for n in range(number + 1)] == [payload[:6] for payload in taken(port)]
    assert number + 1 == len(pair.client.acknowledged)


def test_rule_broken_under_pressure_closes_that_link() -> None:
    """What was held is judged later, in somebody else's turn."""
    pair = Pair()
    pair.host.backpressure.raise_("busy", lambda: 1, has_drained=True)
    gap = link_pb2.Batch(epoch=1, stream=1, first=9, count=1, clients=["c"], client=[0], counts=[1])
    receive(pair.link.owner_end, encode_frame(LinkFrame(batch=gap)))
    before = pair.link.closed[:]
    pair.host.backpressure.lower("busy")
    pair.link.owner_end.flush()

    assert ([], ["a batch is not the next one of its stream"]) == (before, pair.link.closed)
    assert 1 == pair.host.counters.get("link.refused")


def test_at_the_limit_of_marks_no_stream_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """No mark goes for another one; an edge that comes again has closed its last stream."""
    monkeypatch.setattr(edge_registry, "MARKS", 2)
    pair = Pair()
    pair.authority.marks["other", 1, "", 1] = 5
    pair.client.publish("x", b"1")
    pair.link.pump()
    again = pair.connect()
    pair.client.publish("x", b"2")
    again.pump()
    assert ([], 2) == (again.closed, len(pair.authority.marks))

    pair.authority.marks["third", 1, "", 1] = 5
    opening = link_pb2.OpenStream(stream=9, mark=mark_to_wire((pair.edge.name, 1, "", 9), 0))
    with pytest.raises(LinkError, match="txbroker forget"):
        receive(again.owner_end, encode_frame(LinkFrame(open_stream=opening)))
    pair.authority.marks["fourth", 1, "", 1] = 5
    refused = pair.connect()
    assert [MANY_MARKS] == refused.closed

    for edge in ("third", "fourth"):
        pair.authority.reception.forget(edge)
    assert [] == pair.connect().closed


def test_streams_that_have_not_published_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many that began below the limit, each would leave a mark."""
    pair = Pair()
    begun = len(pair.authority.marks)
    monkeypatch.setattr(edge_registry, "MARKS", begun + 1)
    openings = [
        link_pb2.OpenStream(stream=number, mark=mark_to_wire((pair.edge.name, 1, "", number), 0))
        for number in (98, 99)
    ]
    receive(pair.link.owner_end, encode_frame(LinkFrame(open_stream=openings[0])))
    with pytest.raises(LinkError, match="txbroker forget"):
        receive(pair.link.owner_end, encode_frame(LinkFrame(open_stream=openings[1])))
    assert begun + 1 == len(pair.authority.marks)


def test_an_edge_for_which_no_marks_can_be_kept_gets_no_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor one that is known and whose marks are gone; one with marks may come again."""
    pair = Pair()
    marked = {pair.edge.name}
    monkeypatch.setattr(pair.journal, "has_room_for", marked.issuperset)
    assert [] == pair.connect().closed

    marked.clear()
    assert [MANY_EDGES] == pair.connect().closed
    assert pair.authority.peers.get(pair.edge.name) is not None


def test_nothing_is_held_for_a_stranger() -> None:
    """Without Hello there is no window."""
    pair = Pair()
    stranger = Link(pair.edge, pair.route, pair.host)
    pair.host.backpressure.raise_("busy", lambda: 1, has_drained=True)
    with pytest.raises(LinkError):
        receive(stranger.owner_end, Message("x", b"1", 1).link_packet)


def test_qos0_for_a_slow_edge_is_dropped_and_counted() -> None:
    """It had its turn (see `pressure`)."""
    pair = Pair()
    pair.client.subscribe(("x", 1))
    pair.link.pump()
    for _ in range(3):
        pair.say("x", bytes(HIGH_MARK // 2))
    pair.alarms.advance(2)
    pair.say("x", b"dropped", 0)
    pair.say("x", b"kept", 1)
    pair.link.pump()

    assert 1 == pair.host.counters.get("link.dropped.qos0")
    assert [b"kept"] == pair.client.payloads[3:]
