"""The two ends of a link talk to each other in memory; bytes arrive split anywhere."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.link.link_bench import Bench
from tests.support.pair import Client, Link, receive
from txbroker.link.batch_headers import CREDIT_BYTES
from txbroker.link.delivery_receiver import STEPS
from txbroker.link.delivery_sender import WINDOW
from txbroker.link.link_server import HELD_AT_ONCE
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.wire.message import Message


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
