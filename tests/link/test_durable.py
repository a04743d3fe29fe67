"""What is answered when, over a link whose owner has to wait for its disk."""

from __future__ import annotations

from tests.link.test_life import Pair, refuse, taken, watch
from tests.support.pair import Link, receive
from tests.support.recorders import cut
from txbroker.edge.routing.route_state import RouteState
from txbroker.link.delivery_sender import OVERFLOW
from txbroker.link.frames import encode_frame
from txbroker.link.link_port import HIGH_MARK
from txbroker.v1 import link_pb2
from txbroker.v1.link_pb2 import LinkFrame


def to_owner(pair: Pair) -> None:
    """What the edge has to say arrives, and no answer gets through."""
    pair.link.edge_end.flush()
    receive(pair.link.owner_end, bytes(pair.link.up))
    pair.link.up.clear()


def start(pair: Pair) -> Link:
    pair.link = Link(pair.edge, pair.route, pair.host)
    pair.link.edge_end.start(b"token")
    return pair.link


# -- acknowledgements


def test_acknowledged_when_durable_and_in_order() -> None:
    """As far as it is; QoS 2 like QoS 1."""
    pair = Pair(lazy=True)
    for number, qos in enumerate((1, 2, 1), 1):
        pair.client.publish("x", b"%d" % number, qos)
        pair.link.pump()
    acknowledged = [pair.client.acknowledged]
    for offset in (2, 3):
        pair.journal.sync(offset)
        pair.link.pump()
        acknowledged.append(pair.client.acknowledged)

    assert [[], [1, 2], [1, 2, 3]] == acknowledged


def test_what_comes_over_a_link_names_its_edge() -> None:
    """For the record, at every QoS."""
    pair = Pair(lazy=True)
    for qos in (0, 1, 2):
        pair.client.publish("x", b"1", qos)
    to_owner(pair)

    assert ["edge"] * 3 == [record.message.edge for record in pair.journal.records]


def test_link_breaks_between_append_and_sync() -> None:
    """The next one's Welcome waits for the disk, and then nothing is sent again."""
    pair = Pair(lazy=True)
    port = watch(pair)
    for number in range(3):
        pair.client.publish("x", b"%d" % number)
    to_owner(pair)
    pair.link.cut()
    link = start(pair)
    link.pump()
    before = (pair.route.state, pair.client.acknowledged)
    pair.journal.sync()
    link.pump()
    pair.journal.sync()

    assert (RouteState.CONNECTING, []) == before
    assert (RouteState.ONLINE, [1, 2, 3]) == (pair.route.state, pair.client.acknowledged)
    assert ["0", "1", "2"] == taken(port)


def test_link_that_waits_for_the_disk_stays() -> None:
    """Both ends show signs of life meanwhile."""
    pair = Pair(lazy=True)
    pair.client.publish("x", b"1")
    to_owner(pair)
    pair.link.cut()
    link = start(pair)
    link.pump()
    heartbeat = encode_frame(LinkFrame(heartbeat=link_pb2.Heartbeat()))
    receive(link.owner_end, heartbeat)
    receive(link.edge_end, heartbeat)
    pair.journal.sync()
    link.pump()

    assert ([], True) == (link.closed, link.edge_end.was_online)


def test_link_that_breaks_while_it_waits_for_the_disk_is_forgotten() -> None:
    """Its answer has nowhere to go; the next one is answered."""
    pair = Pair(lazy=True)
    pair.client.publish("x", b"1")
    to_owner(pair)
    pair.link.cut()
    first = start(pair)
    first.pump()
    first.cut()
    second = start(pair)
    second.pump()
    pair.journal.sync()
    second.pump()

    assert (b"", True) == (bytes(first.down), second.edge_end.was_online)
    assert [1] == pair.client.acknowledged


def test_bytes_of_an_earlier_link_come_late() -> None:
    """They are not looked at: their publishes are sent again by the new link."""
    pair = Pair(lazy=True)
    port = watch(pair)
    earlier = pair.link
    for number in range(4):
        pair.client.publish("x", b"%d" % number + bytes(50))
    earlier.edge_end.flush()
    half = len(earlier.up) // 2
    receive(earlier.owner_end, bytes(earlier.up[:half]))
    earlier.edge_end.on_disconnect()
    link = start(pair)
    link.pump()  # Hello is there, and waits
    receive(earlier.owner_end, bytes(earlier.up[half:]))
    earlier.owner_end.flush()
    for _ in range(2):
        pair.journal.sync()
        link.pump()

    assert ["0", "1", "2", "3"] == [payload.rstrip("\0") for payload in taken(port)]
    assert [1, 2, 3, 4] == pair.client.acknowledged


def test_hello_of_an_earlier_link_comes_late() -> None:
    """It would take the newer link's place, and forget its marks."""
    pair = Pair()
    pair.link.cut()
    earlier = start(pair)
    earlier.edge_end.on_disconnect()
    link = start(pair)
    link.pump()
    receive(earlier.owner_end, bytes(earlier.up))
    pair.client.publish("x", b"1")
    link.pump()

    assert (1, []) == (len(earlier.closed), link.closed)
    assert [1] == pair.client.acknowledged
    assert 1 == pair.host.counters.get("link.refused")


# -- refusals


def test_refusal_waits_for_what_was_taken_before() -> None:
    """It says that all of that is taken, and the edge acknowledges it."""
    pair = Pair(lazy=True)
    refuse(pair)
    pair.client.publish("b", b"1")
    pair.client.publish("a/x", b"2")
    pair.link.pump()
    before = pair.client.acknowledged
    pair.journal.sync()
    pair.link.pump()
    below = pair.edge.zones.get("a")
    assert below is not None

    assert ([], [1]) == (before, pair.client.acknowledged)
    assert [b"2"] == [publication.message.payload for publication in below.queue.waiting]


def test_refusal_after_a_fence_waits_as_well() -> None:
    """The same where the publish was parked first."""
    pair = Pair(lazy=True)
    outgoing = pair.authority.subtrees.prepare("a")
    pair.authority.subtrees.fence(outgoing)
    pair.client.publish("b", b"1")
    pair.client.publish("a/x", b"2")
    pair.link.pump()
    pair.table.commit(cut("a"))
    pair.authority.subtrees.complete(outgoing)
    pair.link.pump()
    before = pair.client.acknowledged
    pair.journal.sync()
    pair.link.pump()

    assert ([], [1]) == (before, pair.client.acknowledged)


# -- deliveries


def test_subscription_has_its_place_among_what_is_not_durable_yet() -> None:
    """SUBACK and retained message come when all that was taken before is durable."""
    pair = Pair(lazy=True)
    pair.say("x", b"old", retain=True)
    pair.client.subscribe(("x", 0))
    pair.link.pump()
    pair.say("x", b"new")
    pair.link.pump()
    before = (pair.client.subacks[:], pair.client.payloads)
    pair.journal.sync()
    pair.link.pump()

    assert ([], []) == before
    assert ([1], [b"old", b"new"]) == (pair.client.subacks, pair.client.payloads)


def test_nobody_waits_for_an_edge_that_reads_the_journal() -> None:
    """What is live then costs nothing, and QoS 0 has a limit of its own."""
    pair = Pair()
    pair.client.subscribe(("x", 0))
    pair.link.pump()
    pair.link.cut()
    for _ in range(20):
        pair.say("x", bytes(HIGH_MARK))
    start(pair)
    to_owner(pair)  # the catch-up is more than the window lets through
    for _ in range(2):
        pair.say("x", bytes(HIGH_MARK))
        pair.say("x", bytes(HIGH_MARK), 0)
    is_raised = pair.host.backpressure.active
    pair.link.pump()

    assert (False, 24) == (is_raised, len(pair.client.payloads))


def test_qos0_beyond_the_queue_is_dropped_and_counted() -> None:
    """Whether or not somebody waits for the edge."""
    pair = Pair()
    pair.client.subscribe(("x", 0))
    pair.link.pump()
    for _ in range(OVERFLOW // HIGH_MARK + 3):
        pair.say("x", bytes(HIGH_MARK), 0)
    dropped = pair.host.counters.get("link.dropped.qos0")
    pair.link.pump()

    assert (3, OVERFLOW // HIGH_MARK) == (dropped, len(pair.client.payloads))


def test_nothing_follows_the_end_of_the_zone() -> None:
    """Also where it is served again before the link has gone: the edge comes back for that."""
    pair = Pair("a", lazy=True)
    pair.client.subscribe(("a/x", 0))
    pair.link.pump()
    pair.say("a/x", b"last")
    pair.authority.suspend()
    pair.authority.open(1)
    pair.say("a/x", b"after")
    pair.journal.sync()
    pair.link.owner_end.beat()
    pair.link.pump()

    assert [b"last"] == pair.client.payloads
    assert pair.edge.zones.get("a") is None
