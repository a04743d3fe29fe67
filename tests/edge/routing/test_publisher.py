"""From a client's publish to the owner of its topic: order, refusals, doubts, limits."""

from __future__ import annotations

from collections.abc import Iterable
from unittest.mock import patch

import pytest

from tests.support.clock import Clock
from tests.support.edge_bench import forget_cuts
from tests.support.edge_parts import edge_parts
from tests.support.keeping import CommitRecorder
from tests.support.outboxes import MemoryOutboxes
from tests.support.recorders import (
    ConnectorRecorder,
    Events,
    OwnerRecorder,
    ReporterRecorder,
    SinkRecorder,
    WatcherRecorder,
    cut,
    payloads,
    take,
)
from txbroker.core import Router, Run
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.edge.routing.client_backpressure import ClientBackpressure
from txbroker.edge.routing.outbox_manager import OutboxManager
from txbroker.edge.routing.publication import InDoubt, Item, Publication
from txbroker.edge.routing.publisher import Publisher
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.routing.route import Route
from txbroker.edge.routing.zone_claims import StreamPosition
from txbroker.model.counters import Counters
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.window import SessionLimits
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import Puback, Publish
from txbroker.mqtt.wire.property_list import property_list

LIMIT = 4 * 1024 * 1024
KEY: MarkKey = ("edge", 1, "", 1)


class Bench:
    """A publisher among recorders; `sent` are publishes and other calls on owners, in order."""

    def __init__(self, *apexes: str) -> None:
        self.events: Events = []
        self.clock = Clock()
        self.counters = Counters()
        self.zones = ResolverCache(Router(lambda: None))
        commit = CommitRecorder()
        parts = edge_parts(
            self.clock,
            ReporterRecorder(),
            connector=ConnectorRecorder(self.events),
            counters=self.counters,
        )
        outboxes = OutboxManager(
            parts,
            self.zones,
            MemoryOutboxes(commit),
            save_then=commit.keeper(self.clock).save_then,
            limit=LIMIT,
        )
        self.congestion = ClientBackpressure(
            self.zones, outboxes, held_limit=LIMIT, now=self.clock.now
        )
        self.publisher = Publisher(
            self.zones,
            parts,
            outboxes=outboxes,
            congestion=self.congestion,
            holds=True,
        )
        outboxes.wire(self.publisher)
        for apex in ("", *apexes):
            self.know(apex)

    def know(self, apex: str) -> Route:
        """A zone whose cuts are known."""
        route = self.zones.add(cut(apex))
        route.learn_cuts({})
        return route

    def route(self, apex: str) -> Route:
        route = self.zones.get(apex)
        assert route is not None
        return route

    def connect(self, apex: str, marks: dict[MarkKey, int] | None = None) -> OwnerRecorder:
        """The owner is online; its events begin with the apex."""
        route = self.route(apex)
        port = OwnerRecorder(self.events, apex)
        route.connect(port, StreamPosition(epoch=1, offset=0))
        told = {doubt.key: 0 for doubt in route.queue.doubts}
        self.publisher.on_marks(route, told | (marks or {}))
        return port

    def lose(self, apex: str, key: MarkKey = KEY) -> None:
        route = self.route(apex)
        route.lose()
        self.publisher.on_lost(route, key)

    def publish(self, *sayings: str, qos: int = 1) -> None:
        """`topic=payload`, from nobody."""
        for saying in sayings:
            topic, _, payload = saying.partition("=")
            self.publisher.publish(Publication(Message(topic, payload.encode(), qos)))

    def waiting(self, apex: str) -> list[str]:
        return payloads(p.message for p in self.route(apex).queue.waiting)


def client(name: str = "c") -> tuple[Session, SinkRecorder]:
    session = Session(name, clean=True, limits=SessionLimits(), watcher=WatcherRecorder())
    sink = SinkRecorder()
    session.sender.attach(sink)
    return session, sink


def from_client(session: Session, topic: str, packet_id: int, size: int = 0) -> Publication:
    flow = session.receiver.accept(Publish(topic, b"x" * size, 1, False, False, packet_id))
    assert flow is not None
    return Publication(Message(topic, b"x" * size, 1), session, flow)


def publishes(events: Iterable[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return [(event[0], event[-1]) for event in events if "publish" in event]


# -- on the way


def test_publish_goes_to_the_owner_of_its_topic() -> None:
    """Straight, where the owner is connected and has credit."""
    bench = Bench("a")
    bench.connect("")
    bench.connect("a")
    bench.publish("a/x=1", "b=2", "a=3")

    assert [("a", "publish", "1"), ("", "publish", "2"), ("a", "publish", "3")] == bench.events


def test_client_is_answered_when_the_owner_has_it() -> None:
    """Cumulatively, and not before (nothing is acknowledged that is not taken)."""
    bench = Bench()
    bench.connect("")
    session, sink = client()
    for packet_id in (7, 8, 9):
        bench.publisher.publish(from_client(session, "x", packet_id))
    before = sink.events[:]
    bench.publisher.on_accepted(bench.route(""), 2)

    assert ([], [Puback(7), Puback(8)]) == (before, sink.events)
    bench.publisher.on_accepted(bench.route(""), 2)
    assert [Puback(7), Puback(8)] == sink.events


def test_publish_waits_for_credit_and_goes_in_order() -> None:
    """Nothing overtakes what waits."""
    bench = Bench()
    port = bench.connect("")
    port.credit = False
    bench.publish("x=1", "x=2")
    port.credit = True
    bench.publish("x=3")

    assert [("", "1"), ("", "2"), ("", "3")] == publishes(bench.events)


def test_zone_with_unknown_cuts_is_asked_first() -> None:
    """The walk: ask for the cuts, then connect where the publish belongs."""
    bench = Bench("a")
    forget_cuts(bench.route(""))
    bench.publish("x=1", "a/x=2")

    assert [("resolve", ""), ("connect", "a")] == bench.events


# -- refusals (rule 13)


def test_refused_publishes_go_first() -> None:
    """What was sent and what waits goes back, in order, to where it belongs now."""
    bench = Bench()
    port = bench.connect("")
    bench.publish("a/x=1", "b=2", "a/x=3")
    port.credit = False
    bench.publish("a/x=4", "b=5")
    take(bench.events)
    port.credit = True

    bench.publisher.on_refused(bench.route(""), 1, cut("a", 2))
    bench.publish("a/x=6")

    assert [
        ("", "restart", 1),
        ("resolve", "a"),
        ("", "publish", "2"),
        ("", "publish", "5"),
        ("resolve", "a"),
    ] == bench.events
    assert ["1", "3", "4", "6"] == bench.waiting("a")


def test_refusal_says_what_was_taken_before_it() -> None:
    """Everything before the refused one has been taken."""
    bench = Bench()
    bench.connect("")
    session, sink = client()
    for packet_id in (1, 2, 3):
        bench.publisher.publish(from_client(session, "a", packet_id))
    bench.publisher.on_refused(bench.route(""), 3, cut("a"))

    assert [Puback(1), Puback(2)] == sink.events
    route = bench.route("")
    assert route.queue.first_sequence + len(route.queue.sent) == 3


def test_refusal_without_a_cut_is_tried_again() -> None:
    """A handover was rolled back: the same owner, the same order, a new start of the stream."""
    bench = Bench()
    bench.connect("")
    bench.publish("a=1", "b=2")
    take(bench.events)
    bench.publisher.on_refused(bench.route(""), 1, None)

    assert [("", "restart", 1), ("", "publish", "1"), ("", "publish", "2")] == bench.events


def test_publishes_below_a_cut_wait_for_what_is_in_flight() -> None:
    """The old owner answers each one first; those that it refuses go before the later ones."""
    bench = Bench()
    bench.connect("")
    bench.publish("a/x=1", "a/x=2", "b=3")
    bench.know("a")
    bench.publisher.move_below(bench.route(""), bench.route("a"))
    bench.connect("a")
    bench.publish("a/x=4", "b=5")
    bench.publisher.on_accepted(bench.route(""), 1)
    take(bench.events)

    bench.publisher.on_refused(bench.route(""), 2, cut("a"))

    assert [("", "3"), ("", "5"), ("a", "2"), ("a", "4")] == sorted(
        publishes(bench.events), key=lambda event: event[0] == "a"
    )


def test_cut_with_nothing_in_flight_holds_nothing() -> None:
    """What waits goes to the child at once, other topics stay."""
    bench = Bench()
    port = bench.connect("")
    bench.publish("b=1")
    port.credit = False
    bench.publish("a/x=2", "b=3")
    bench.know("a")
    bench.publisher.move_below(bench.route(""), bench.route("a"))

    assert (["2"], ["3"]) == (bench.waiting("a"), bench.waiting(""))
    assert bench.events[-1] == ("connect", "a")


def test_hold_ends_with_the_last_answer() -> None:
    """All taken by the old owner: the child may have the rest."""
    bench = Bench()
    bench.connect("")
    bench.publish("a/x=1", "b=2")
    bench.know("a")
    bench.publisher.move_below(bench.route(""), bench.route("a"))
    bench.connect("a")
    bench.publish("a/x=3")
    before = publishes(bench.events)
    bench.publisher.on_accepted(bench.route(""), 1)

    assert [("", "1"), ("", "2")] == before
    assert [("", "1"), ("", "2"), ("a", "3")] == publishes(bench.events)


def test_hold_lasts_over_a_broken_link() -> None:
    """Doubts are in flight, too, until the marks have settled them."""
    bench = Bench()
    bench.connect("")
    bench.publish("a/x=1", "a/x=2")
    bench.know("a")
    bench.publisher.move_below(bench.route(""), bench.route("a"))
    bench.connect("a")
    bench.publish("a/x=3")
    bench.lose("")
    before = publishes(take(bench.events))
    bench.connect("", {KEY: 1})

    assert [("", "1"), ("", "2")] == before
    assert [("a", "2"), ("a", "3")] == publishes(bench.events)


def test_hold_goes_over_to_whoever_inherits_the_doubts() -> None:
    """The zone went back to the one above it: that one's marks settle what was in flight."""
    bench = Bench("a")
    bench.connect("a")
    bench.publish("a/b/x=1")
    bench.know("a/b")
    bench.publisher.move_below(bench.route("a"), bench.route("a/b"))
    bench.connect("a/b")
    bench.publish("a/b/x=2")
    bench.lose("a")
    gone = bench.route("a")
    bench.zones.remove(gone)
    bench.route("").queue.add_doubts(gone.queue.take_doubts())
    bench.publisher.forget(gone, bench.route(""))
    before = publishes(take(bench.events))
    bench.connect("")

    assert [("a", "1")] == before
    assert [("a/b", "1"), ("a/b", "2")] == publishes(bench.events)


def test_zone_that_is_gone_without_doubts_holds_nothing() -> None:
    """Nobody has anything to answer any more."""
    bench = Bench("a")
    bench.connect("a")
    bench.publish("a/b/x=1")
    bench.know("a/b")
    bench.publisher.move_below(bench.route("a"), bench.route("a/b"))
    bench.connect("a/b")
    bench.publish("a/b/x=2")
    bench.route("a").queue.take_sent()
    bench.publisher.forget(bench.route("a"), bench.route(""))

    assert [("a", "1"), ("a/b", "2")] == publishes(bench.events)


# -- doubts (rule 2)


def test_marks_settle_what_was_in_doubt() -> None:
    """Taken ones are acknowledged; the others are sent again, numbered anew, before the rest."""
    bench = Bench()
    bench.connect("")
    session, sink = client()
    for packet_id in (1, 2, 3):
        bench.publisher.publish(from_client(session, "x", packet_id))
    bench.publisher.on_accepted(bench.route(""), 1)
    bench.lose("")
    bench.publish("x=later")
    take(bench.events)
    bench.connect("", {KEY: 2})

    assert [Puback(1), Puback(2)] == sink.events
    assert [("", ""), ("", "later")] == publishes(bench.events)
    bench.publisher.on_accepted(bench.route(""), 1)
    assert sink.events[-1] == Puback(3)


def test_doubts_of_several_streams_are_settled_in_order() -> None:
    """Each stream has its own mark; without one nothing of it was taken."""
    bench = Bench()
    below: MarkKey = ("edge", 1, "a", 1)
    of_a_zone_that_went = [Publication(Message("a/x", payload, 1)) for payload in (b"1", b"2")]
    doubt = InDoubt(key=below, first=7, publications=tuple(of_a_zone_that_went))
    bench.connect("")
    bench.publish("x=3", "x=4")
    bench.lose("")
    queue = bench.route("").queue
    queue.add_doubts([doubt, *queue.take_doubts()])
    take(bench.events)
    bench.connect("", {below: 7})

    assert [("", "2"), ("", "3"), ("", "4")] == publishes(bench.events)


def test_publish_waits_behind_what_is_in_doubt() -> None:
    """Also where the owner is connected, until it has told its marks."""
    bench = Bench()
    bench.connect("")
    bench.publish("x=1")
    bench.lose("")
    port = OwnerRecorder(bench.events, "")
    bench.route("").connect(port, StreamPosition(epoch=1, offset=0))
    take(bench.events)
    bench.publish("x=2")
    before = publishes(bench.events)
    bench.publisher.on_marks(bench.route(""), {KEY: 0})

    assert ([], [("", "1"), ("", "2")]) == (before, publishes(bench.events))


def test_mark_beyond_what_was_sent_settles_all_of_it() -> None:
    """A wrong mark breaks nothing."""
    bench = Bench()
    bench.connect("")
    bench.publish("x=1")
    bench.lose("")
    take(bench.events)
    bench.connect("", {KEY: 1 << 63})

    assert ([], False) == (bench.events, bench.route("").is_needed)


def test_nothing_overtakes_what_is_in_doubt() -> None:
    """A cut that is told with the new connection does not let later publishes go first."""
    bench = Bench()
    bench.connect("")
    bench.publish("x=1")
    bench.lose("")
    bench.publish("x=2", "a/x=3")
    take(bench.events)
    route = bench.route("")
    route.connect(OwnerRecorder(bench.events, ""), StreamPosition(epoch=1, offset=0))
    bench.know("a")
    bench.publisher.move_below(route, bench.route("a"))
    bench.publisher.on_marks(route, {KEY: 0})

    assert [("", "1"), ("", "2")] == publishes(bench.events)
    assert ["3"] == bench.waiting("a")


def test_redistribution_keeps_the_order_of_each_zone() -> None:
    """Groups go to the front, in their order, wherever they belong."""
    bench = Bench("a", "b")
    bench.publish("a/x=4", "b/x=5")
    sayings = ["a/x=1", "b/x=2", "a/y=3"]
    messages = [Message(*pair) for pair in ((s[:3], s[4:].encode()) for s in sayings)]

    bench.publisher.redistribute([Publication(message) for message in messages])

    assert (["1", "3", "4"], ["2", "5"]) == (bench.waiting("a"), bench.waiting("b"))


@pytest.mark.parametrize("qos", [0, 1])
def test_message_ages_while_it_waits(qos: int) -> None:
    """For credit, and in doubt after a broken link; it is never sent with more than is left."""
    bench = Bench()
    port = bench.connect("")
    port.credit = False
    message = Message("x", b"1", qos, properties=b"\x02\0\0\0\x0a")
    publication = Publication(message)
    bench.publisher.publish(publication)
    bench.clock.advance(3.5)
    port.credit = True
    bench.publisher.flush(bench.route(""))
    assert 7 == publication.message.expiry
    if qos:
        bench.lose("")
        bench.clock.advance(10.0)
        bench.connect("")
        assert 0 == publication.message.expiry
    assert [("", "1")] * (1 + qos) == publishes(bench.events)


def expiring_run(session: Session, count: int = 2, qos: int = 1) -> Run:
    """A client's publishes to x with an interval of 10 s."""
    router = Router(lambda: None)
    packet_writer = router.make_packet_writer()
    reader = router.make_packet_reader(packet_writer, 1000)
    flows = session.receiver.plain
    reader.open(session, session.client_id, flows, clean=True, level=5)
    reader.takes_qos12 = True
    for number in range(1, count + 1):
        listed = property_list(b"\2\0\0\0\x0a")
        packet_id = number.to_bytes(2) if qos else b""
        body = b"\0\1x" + packet_id + listed + b"%d" % number
        reader.feed(bytes((0x30 | qos << 1, len(body))) + body)
    assert reader.step() is None
    run = reader.qos12 if qos else reader.qos0
    assert run is not None
    return run


@pytest.mark.parametrize(("seconds", "left"), [(0.9, [10, 10]), (3.5, [7, 7]), (20.0, [0, 0])])
@pytest.mark.parametrize("qos", [0, 1])
def test_run_ages_while_it_waits(qos: int, seconds: float, left: list[int]) -> None:
    """After less than a second all of the interval is left, and the run stays one."""
    bench = Bench()
    port = bench.connect("")
    port.credit = False
    session, _ = client()
    bench.publisher.publish_run(expiring_run(session, qos=qos))
    bench.clock.advance(seconds)
    port.credit = True
    sent: list[Item] = []
    with (
        patch.object(port, "publish", sent.append),
        patch.object(port, "publish_run", sent.append),
    ):
        bench.publisher.flush(bench.route(""))

    assert (1 if seconds < 1 else 2) == len(sent)
    publications = [
        one if isinstance(one, Publication) else Publication(one.message(index))
        for one in sent
        for index in range(one.count)
    ]
    assert left == [publication.message.expiry for publication in publications]


def test_run_in_doubt_ages_from_its_arrival() -> None:
    """The link breaks under it, and it is sent again by another one."""
    bench = Bench()
    bench.connect("")
    session, _ = client()
    bench.publisher.publish_run(expiring_run(session))
    bench.clock.advance(3.5)
    bench.lose("")
    port = OwnerRecorder(bench.events, "")
    sent: list[Publication] = []
    with patch.object(port, "publish", sent.append):
        bench.route("").connect(port, StreamPosition(epoch=1, offset=0))
        bench.publisher.on_marks(bench.route(""), {KEY: 0})

    assert [7, 7] == [publication.message.expiry for publication in sent]
