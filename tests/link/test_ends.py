"""The two ends of a link talk to each other in memory; bytes arrive split anywhere."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from tests.support.property_lists import user_property
from txbroker.edge.routing.route_state import RouteState
from txbroker.edge.routing.stored_outbox import OutboxEntry
from txbroker.edge.sessions.edge import Edge
from txbroker.link.batch_headers import CREDIT_BYTES
from txbroker.link.delivery_receiver import STEPS
from txbroker.link.delivery_sender import WINDOW
from txbroker.link.frames import (
    LINK_VERSION,
    FrameReader,
    LinkError,
    encode_frame,
    packets_of,
)
from txbroker.link.link_server import HELD_AT_ONCE
from txbroker.model.errors import PeerError
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import Publish
from txbroker.v1 import link_pb2, types_pb2
from txbroker.v1.link_pb2 import LinkFrame

ROOT = ZoneCut(apex="", epoch=1, node="root", grpc="h:1")


class Bench:
    """One edge, one owner of the root zone, and links between them."""

    def __init__(self, *cuts: ZoneCut) -> None:
        self.alarms = Alarms()
        self.recorder = Recorder()
        self.edge: Edge = make_edge(self.alarms, self.recorder)
        self.route = self.edge.zones.add(ROOT)
        self.route.learn_cuts({})
        self.authority = make_authority("", 1, *cuts)
        self.host = Host(self.authority, self.alarms)
        self.link = self.connect()

    def connect(self) -> Link:
        """A link that is online."""
        self.link = Link(self.edge, self.route, self.host).open()
        return self.link

    def filters(self) -> set[str]:
        """What the owner takes the edge to want."""
        peer = self.authority.peers.get("edge")
        assert peer is not None
        return peer.filters


def test_publishes_that_were_held_are_taken_in_turns() -> None:
    """In order, while others have theirs."""
    bench = Bench()
    client = Client(bench.edge, "c")
    client.subscribe(("x", 1))
    bench.link.pump()
    bench.host.backpressure.raise_("somebody", lambda: 1, has_drained=True)
    payloads = [b"%d" % number for number in range(2 * HELD_AT_ONCE)]
    for payload in payloads:
        client.publish("x", payload, 1)
        bench.link.pump()  # each is a batch of its own
    assert 0 == bench.authority.offset
    bench.host.backpressure.lower("somebody")
    bench.link.owner_end.flush()
    taken = bench.authority.offset
    bench.link.pump()

    assert 0 < taken <= HELD_AT_ONCE
    assert payloads == client.payloads


def test_deliveries_that_have_waited_are_taken_in_turns() -> None:
    """The same at the other end."""
    bench = Bench()
    client = Client(bench.edge, "c")
    client.subscribe(("x", 0))
    bench.link.pump()
    bench.link.pressure.raise_("somebody", lambda: 1, has_drained=True)
    payloads = [b"%d" % number for number in range(2 * STEPS)]
    for payload in payloads:
        bench.authority.publish(Message("x", payload, 1))
        bench.link.pump()
    assert [] == client.payloads
    bench.link.pressure.lower("somebody")
    bench.link.edge_end.flush()
    taken = len(client.payloads)
    bench.link.pump()

    assert 0 < taken <= STEPS
    assert payloads == client.payloads


def test_publish_is_acknowledged_when_it_is_taken() -> None:
    """Not when it is sent."""
    bench = Bench()
    client = Client(bench.edge, "c")
    first = client.publish("x", b"1")
    second = client.publish("x", b"2", 2)
    assert client.acknowledged == []
    bench.link.pump()

    assert client.acknowledged == [first, second]
    assert bench.authority.offset == 2


def test_subscription_round_trip() -> None:
    """SUBACK after the answer, the retained message after that, then live ones."""
    bench = Bench()
    bench.authority.publish(Message("x", b"old", 1, True))
    client = Client(bench.edge, "c")
    request = client.subscribe(("x", 1))
    assert client.subacks == []
    bench.link.pump()
    bench.authority.publish(Message("x", b"new", 1))
    bench.link.pump()

    assert client.subacks == [request]
    assert client.payloads == [b"old", b"new"]


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(), largest=st.sampled_from([1, 2, 7, 64, 500]))
def test_split_anywhere(seed: int, largest: int) -> None:
    """The same deliveries, whatever a read takes."""
    generator = random.Random(seed)
    bench = Bench()
    bench.link.split = lambda: generator.randint(1, largest)
    client = Client(bench.edge, "c")
    client.subscribe(("#", 2))
    bench.link.pump()
    payloads = [b"%d" % n + bytes(generator.randrange(300)) for n in range(30)]
    for number, payload in enumerate(payloads):
        client.publish(f"t{number % 3}", payload, number % 3)
        if generator.random() < 0.3:
            bench.link.pump()
    bench.link.pump()

    assert client.payloads == payloads
    assert bench.route.queue.sent == type(bench.route.queue.sent)()


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(), cuts=st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_cut_anywhere(seed: int, cuts: list[int]) -> None:
    """Each publish is taken once and delivered once, wherever the link breaks."""
    generator = random.Random(seed)
    bench = Bench()
    client = Client(bench.edge, "c")
    client.subscribe(("x", 1))
    bench.link.pump()
    sent = []
    for after in cuts:
        bench.link.split = lambda: generator.randint(1, 80)
        for _ in range(generator.randrange(12)):
            sent.append(b"%d" % len(sent))
            client.publish("x", sent[-1])
        for number, _ in enumerate(bench.link.steps()):
            if number == after:
                break
        bench.link.cut()
        fresh = Link(bench.edge, bench.route, bench.host)
        fresh.split = lambda: generator.randint(1, 80)
        fresh.edge_end.start(b"token")
        bench.link = fresh
    bench.link.pump()

    assert bench.authority.offset == len(sent)
    assert client.payloads == sent
    assert client.acknowledged == list(range(2, len(sent) + 2))
    assert bench.edge.counters.get("link.missed") == 0


def test_filter_that_changed_between_hello_and_online() -> None:
    """The owner's view of the interest is the edge's when the link is online."""
    bench = Bench()
    client = Client(bench.edge, "c")
    client.subscribe(("gone", 1), ("stays", 1))
    bench.link.pump()
    bench.link.cut()
    link = Link(bench.edge, bench.route, bench.host)
    link.edge_end.start(b"token")
    client.unsubscribe("gone")
    link.pump()

    assert bench.filters() == {"stays"}


def test_refused_publish_follows_the_cut() -> None:
    """What lies under a cut comes back, in order, and waits for the child's link."""
    child = ZoneCut(apex="a", epoch=1, node="n", grpc="h:2")
    bench = Bench(child)
    bench.route.learn_cuts({})
    bench.edge.zones.get("a")
    client = Client(bench.edge, "c")
    below = bench.edge.zones.get("a")
    assert below is not None  # told by Online
    bench.edge.zones.remove(below)  # as if it had been forgotten
    for number in range(3):
        client.publish("a/x", b"%d" % number)
        client.publish("b", b"%d" % number)
    bench.link.pump()

    assert bench.authority.offset == 3
    below = bench.edge.zones.get("a")
    assert below is not None
    assert [p.message.payload for p in below.queue.waiting] == [b"0", b"1", b"2"]
    assert len(client.acknowledged) == 3


def test_qos_0_that_a_refusal_finds_unsent_leaves_before_what_is_sent_again() -> None:
    """All of it in one batch, which begins at the sequence that the restart names."""
    bench = Bench(ZoneCut(apex="a", epoch=1, node="n", grpc="h:2"))
    below = bench.edge.zones.get("a")
    assert below is not None
    bench.edge.zones.remove(below)
    client = Client(bench.edge, "c")
    client.subscribe(("b", 1))
    bench.link.pump()
    client.publish("a/x", b"refused")
    next(bench.link.steps())
    bench.link.owner_end.flush()
    said = [client.publish("b", b"%d" % qos, qos) for qos in (1, 0, 0, 2)]
    receive(bench.link.edge_end, bytes(bench.link.down))
    bench.link.edge_end.check()
    bench.link.down.clear()
    bench.link.pump()

    assert client.payloads == [b"0", b"0", b"1", b"2"]
    assert client.acknowledged == [said[0], said[3]]


def test_publish_during_a_fence_waits_and_is_tried_again() -> None:
    """A rolled-back handover: nothing is lost, order holds."""
    bench = Bench()
    client = Client(bench.edge, "c")
    client.subscribe(("#", 1))
    bench.link.pump()
    source = bench.authority.subtrees.prepare("a")
    bench.authority.subtrees.fence(source)
    for number in range(3):
        client.publish("a/x", b"%d" % number)
    bench.link.pump()
    assert client.payloads == []
    bench.authority.subtrees.roll_back(source)
    bench.link.pump()

    assert client.payloads == [b"0", b"1", b"2"]


def test_interest_during_a_fence_is_answered_after_it() -> None:
    """The new owner's snapshot would not have it (protocol rule 12)."""
    bench = Bench()
    client = Client(bench.edge, "c")
    source = bench.authority.subtrees.prepare("a")
    bench.authority.subtrees.fence(source)
    client.subscribe(("a/#", 1))
    other = client.subscribe(("b", 1))
    bench.link.pump()
    assert client.subacks == [other]
    bench.authority.subtrees.roll_back(source)
    bench.link.pump()

    assert len(client.subacks) == 2


def test_interest_given_up_during_a_fence() -> None:
    """It does not come back when the fence is lifted."""
    bench = Bench()
    client = Client(bench.edge, "c")
    source = bench.authority.subtrees.prepare("a")
    bench.authority.subtrees.fence(source)
    client.subscribe(("a/#", 1))
    bench.link.pump()
    client.unsubscribe("a/#")
    bench.link.pump()
    bench.authority.subtrees.roll_back(source)
    bench.link.pump()

    assert bench.filters() == set()


def test_credit_stops_the_edge_not_the_answers() -> None:
    """No more than the window is on its way; it moves on when the owner has read."""
    bench = Bench()
    client = Client(bench.edge, "c")
    big = bytes(100_000)
    for _ in range(WINDOW // len(big) + 20):
        client.publish("x", big, 0)
    assert bench.route.queue.waiting
    assert len(bench.link.up) <= WINDOW + 2 * len(big)
    bench.link.pump()

    assert not bench.route.queue.waiting
    assert bench.authority.offset == WINDOW // len(big) + 20


def test_credit_is_told_of_when_it_is_much_or_after_a_second() -> None:
    """In both directions: a lone message costs no frame back."""
    bench = Bench()
    client = Client(bench.edge, "c")
    client.subscribe(("x", 0))
    bench.link.pump()
    for size, is_told in ((1, False), (CREDIT_BYTES, True), (1, False)):
        client.publish("y", bytes(size), 0)
        assert is_told == bool(answered(bench.link, bench.link.up))
        bench.link.pump()
        bench.authority.publish(Message("x", bytes(size)))
        bench.link.owner_end.flush()
        assert is_told == bool(answered(bench.link, bench.link.down))
        bench.link.pump()
    for end, other in (
        (bench.link.owner_end, bench.link.down),
        (bench.link.edge_end, bench.link.up),
    ):
        end.beat()
        end.flush()
        assert other
        bench.link.pump()
        end.beat()
        end.flush()
        assert not other


def answered(link: Link, sent: bytearray) -> bytes:
    """What an end says to what is on its way to it."""
    end, said = (link.owner_end, link.down) if sent is link.up else (link.edge_end, link.up)
    link.edge_end.flush()
    data = bytes(sent)
    assert data
    sent.clear()
    receive(end, data)
    end.flush()
    return bytes(said)


def test_deliveries_stop_without_credit() -> None:
    """An edge that does not read holds back its own deliveries only."""
    bench = Bench()
    client = Client(bench.edge, "c")
    client.subscribe(("x", 0))
    bench.link.pump()
    payload = bytes(100_000)
    for _ in range(100):
        bench.authority.publish(Message("x", payload, 1))
    bench.link.owner_end.flush()
    assert len(bench.link.down) <= WINDOW + 2 * 13_000_000
    bench.link.pump()

    assert len(client.payloads) == 100


def test_newer_link_of_the_same_edge_takes_over() -> None:
    """The older one is closed."""
    bench = Bench()
    first = bench.link
    second = Link(bench.edge, bench.route, bench.host)
    second.edge_end.start(b"token")
    second.pump()

    assert first.closed and not second.closed


# -- properties


def rewrite(pieces: bytearray, change: Callable[[LinkFrame], None]) -> bytes:
    """What is on its way, as a node of another version says it."""
    reader = FrameReader()
    frames = [one for one in reader.read(bytes(pieces)) if isinstance(one, LinkFrame)]
    pieces.clear()
    for frame in frames:
        change(frame)
    return b"".join(map(encode_frame, frames))


def open_among(bench: Bench, older: str) -> None:
    """A link on which one end does not say that it reads properties."""

    def forget(frame: LinkFrame) -> None:
        frame.hello.reads_properties = False

    def forget_too(frame: LinkFrame) -> None:
        if frame.HasField("welcome"):
            frame.welcome.reads_properties = False

    bench.link.cut()
    bench.link = link = Link(bench.edge, bench.route, bench.host)
    link.edge_end.start(b"token")
    if older == "edge":
        link.up.extend(rewrite(link.up, forget))
    hello = bytes(link.up)
    link.up.clear()
    receive(link.owner_end, hello)
    if older == "owner":
        link.down.extend(rewrite(link.down, forget_too))
    link.pump()


class StreamUserRecorder:
    """An outbox that nothing is refused of."""

    def __init__(self) -> None:
        self.taken = 0

    def on_accepted(self, sequence: int) -> None:
        self.taken = sequence

    def on_refused(self, sequence: int, cut: ZoneCut | None, *, retry: bool) -> None:
        raise AssertionError(sequence)


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("older", ["none", "edge", "owner"])
def test_properties_pass_to_nodes_that_read_them(older: str, qos: int) -> None:
    """Others would end the link at once, and again when it is sent anew."""
    bench = Bench()
    open_among(bench, older)
    client = Client(bench.edge, "c")
    client.subscribe(("#", 1))
    bench.link.pump()
    properties = user_property("name", "value") + b"\x01\x01"
    packet_id = 90 if qos else None
    said = Publish("up", b"1", qos, True, False, packet_id, properties=properties)
    bench.edge.clients.publish(client.session, said)
    bench.link.pump()
    retained = bench.authority.retained.get("up")
    assert retained is not None
    assert (b"1", b"" if older == "owner" else properties) == (
        retained.payload,
        retained.properties,
    )

    waited = Message("outbox", b"0", 1, True, properties=properties)
    stream = bench.link.edge_end.open_stream(("edge", 1, "", 99), StreamUserRecorder())
    stream.send([OutboxEntry(1, waited, None)])
    bench.link.pump()
    drained = bench.authority.retained.get("outbox")
    assert drained is not None and drained.properties == retained.properties

    before = len(bench.link.went_down)
    bench.authority.publish(Message("down", b"2", qos, properties=properties))
    bench.link.pump()
    assert [b"1", b"0", b"2"] == client.payloads
    assert (older != "edge") is (properties in bench.link.went_down[before:])
    assert not bench.link.closed


# -- what breaks the rules


def hello(**fields: object) -> bytes:
    """A Hello that would be accepted, but for these fields."""
    values = {
        "version": LINK_VERSION,
        "token": b"token",
        "edge": "edge",
        "incarnation": 1,
        "stream": 1,
    }
    return encode_frame(LinkFrame(hello=link_pb2.Hello(**{**values, **fields})))


def batch(**fields: object) -> bytes:
    """A batch of one publish."""
    values = {"epoch": 1, "stream": 1, "first": 1, "count": 1, "clients": ["c"], "client": [0]}
    return encode_frame(LinkFrame(batch=link_pb2.Batch(**{**values, **fields})))


PUBLISH = b"".join(packets_of([Message("x", b"1", 1)]))
BAD_FOR_AN_OWNER = {
    "no hello": batch() + PUBLISH,
    "heartbeat first": encode_frame(LinkFrame(heartbeat=link_pb2.Heartbeat())),
    "wrong token": hello(token=b"guess"),
    "newer version": hello(version=LINK_VERSION + 1),
    "older version": hello(version=LINK_VERSION - 1),
    "two hellos": hello() + hello(),
    "publish without a batch": hello() + PUBLISH,
    "more than the batch says": hello() + batch() + PUBLISH + PUBLISH,
    "batch of deliveries": hello() + batch(kind=link_pb2.Batch.LIVE),
    "client out of range": hello() + batch(client=[1]),
    "client for each": hello() + batch(client=[]),
    "another stream": hello() + batch(stream=2),
    "a gap": hello() + batch(first=2),
    "restart elsewhere": hello()
    + encode_frame(LinkFrame(restart=link_pb2.Restart(stream=1, sequence=7))),
    "an MQTT packet": b"\xc0\x00",
    "not protobuf": b"\x00\x03\xff\xff\xff",
    "length without end": b"\x00\xff\xff\xff\xff\xff",
    "long client id": hello() + batch(clients=["x" * 70_000]) + PUBLISH,
    "long sequence": hello() + batch(first=1 << 62) + PUBLISH,
    "bad topic": hello() + batch() + b"\x30\x05\x00\x01#\x00\x00",
}


@pytest.mark.parametrize("data", BAD_FOR_AN_OWNER.values(), ids=list(BAD_FOR_AN_OWNER))
def test_owner_refuses(data: bytes) -> None:
    """A `PeerError`, and the zone is as it was."""
    alarms = Alarms()
    host = Host(make_authority(""), alarms)
    link = Link(make_edge(alarms, Recorder()), make_route(), host)
    with pytest.raises(PeerError):
        receive(link.owner_end, data)

    assert host.authority.offset <= 1


def make_route() -> object:
    """A route that nothing was said on."""
    edge = make_edge(Alarms(), Recorder())
    return edge.zones.add(ROOT)


def welcome(**fields: object) -> bytes:
    """A Welcome for the root zone."""
    values = {"version": LINK_VERSION, "zone": "", "epoch": 1, "credit": 1000}
    return encode_frame(LinkFrame(welcome=link_pb2.Welcome(**{**values, **fields})))


ONLINE = encode_frame(LinkFrame(online=link_pb2.Online()))
BAD_FOR_AN_EDGE = {
    "no welcome": ONLINE,
    "two welcomes": welcome() + welcome(),
    "another zone": welcome(zone="a"),
    "no epoch": welcome(epoch=0),
    "newer version": welcome(version=LINK_VERSION + 1),
    "older version": welcome(version=LINK_VERSION - 1),
    "delivery without a batch": welcome() + ONLINE + PUBLISH,
    "a publish batch": welcome() + ONLINE + batch(kind=link_pb2.Batch.PUBLISH),
    "no offsets": welcome() + ONLINE + batch(kind=link_pb2.Batch.LIVE),
    "another epoch": welcome() + ONLINE + batch(kind=link_pb2.Batch.LIVE, epoch=2, offsets=[1]),
    "retained out of the blue": welcome() + ONLINE + batch(kind=link_pb2.Batch.RETAINED) + PUBLISH,
    "an MQTT packet": b"\xd0\x00",
}


@pytest.mark.parametrize("data", BAD_FOR_AN_EDGE.values(), ids=list(BAD_FOR_AN_EDGE))
def test_edge_refuses(data: bytes) -> None:
    """`LinkError`."""
    bench = Bench()
    bench.link.cut()
    link = Link(bench.edge, bench.route, bench.host)
    with pytest.raises(LinkError):
        receive(link.edge_end, data)


FRAMES = st.sampled_from(
    [
        hello(),
        batch(),
        batch(first=0, count=0, client=[], clients=[]),
        PUBLISH,
        welcome(),
        ONLINE,
        encode_frame(LinkFrame()),
        encode_frame(LinkFrame(taken=link_pb2.Taken(stream=1, sequence=1 << 60))),
        encode_frame(LinkFrame(credit=link_pb2.Credit(consumed=1 << 60))),
        encode_frame(LinkFrame(answer=link_pb2.InterestAnswer(request=5, retained=1))),
        encode_frame(LinkFrame(refusal=link_pb2.Refusal(stream=1, sequence=1 << 60))),
        encode_frame(LinkFrame(gone=types_pb2.Gone(apex="a", epoch=1))),
        encode_frame(LinkFrame(cut=types_pb2.Cut(apex="a", epoch=1, node="n", grpc="h:1"))),
        encode_frame(LinkFrame(cut=types_pb2.Cut(apex="", epoch=9, node="n", grpc="h:1"))),
        encode_frame(LinkFrame(sync=link_pb2.InterestSync(filters=["a/#/b", ""]))),
        encode_frame(LinkFrame(interest=link_pb2.InterestRequest(request=1, filter="#/#"))),
        encode_frame(LinkFrame(interest=link_pb2.InterestRequest(filter="x", remove=True))),
        encode_frame(LinkFrame(position=link_pb2.Position(offset=1, consumed=1 << 62))),
        encode_frame(LinkFrame(restart=link_pb2.Restart(stream=1, sequence=1))),
    ]
)
GARBAGE = st.lists(st.one_of(FRAMES, st.binary(max_size=60)), max_size=12).map(b"".join)


@settings(max_examples=300, deadline=None)
@given(data=GARBAGE)
def test_garbage_raises_nothing_but_what_closes_the_link(data: bytes) -> None:
    """At either end, whatever comes."""
    bench = Bench()
    fresh = Link(bench.edge, bench.route, bench.host)
    for end in (bench.link.owner_end, bench.link.edge_end, fresh.owner_end, fresh.edge_end):
        try:
            receive(end, data)
            end.flush()
        except PeerError:
            pass


def test_edge_counts_what_it_does_not_know() -> None:
    """A frame of a newer owner is ignored."""
    bench = Bench()
    receive(bench.link.edge_end, encode_frame(LinkFrame()))

    assert bench.edge.counters.get("link.unknown_frame") == 1
    assert bench.route.state is RouteState.ONLINE


def test_a_short_disk_holds_what_must_be_kept() -> None:
    """And no credit comes back; QoS 0 passes until it would overtake, deliveries pass."""
    bench = Bench()
    client = Client(bench.edge, "c")
    client.subscribe(("#", 1))
    bench.link.pump()
    bench.host.is_disk_short = True

    client.publish("x", b"0", 0)
    bench.link.pump()
    assert client.payloads == [b"0"]
    first = client.publish("x", b"1", 1)
    client.publish("x", b"2", 0)
    bench.link.pump()
    bench.authority.publish(Message("x", b"other", 1))
    bench.link.pump()
    assert (client.payloads, client.acknowledged) == ([b"0", b"other"], [])

    bench.host.is_disk_short = False
    bench.host.mark_dirty(bench.link.owner_end)
    bench.link.pump()
    assert client.payloads == [b"0", b"other", b"1", b"2"]
    assert client.acknowledged == [first]


def test_a_short_disk_gives_no_credit() -> None:
    """An edge sends no more than a window, and all of it once there is room."""
    bench = Bench()
    client = Client(bench.edge, "c")
    bench.link.pump()
    bench.host.is_disk_short = True
    size = WINDOW // 16

    for _ in range(32):
        client.publish("x", b"x" * size, 1)
        bench.link.pump()
    assert 16 == len(bench.route.queue.waiting)

    bench.host.is_disk_short = False
    bench.host.mark_dirty(bench.link.owner_end)
    bench.link.pump()
    assert (bench.authority.offset, len(bench.route.queue.waiting)) == (32, 0)
