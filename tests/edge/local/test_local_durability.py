"""The node's own zone when its journal has to wait for the disk."""

from __future__ import annotations

from tests.edge.local.test_local_link import OwnBench
from tests.support.edge_bench import Client
from tests.support.journal import authority_of
from tests.support.recorders import cut
from txbroker.delegation.zone_snapshot import EdgeInterest, ReceivedZone
from txbroker.edge.local.local_link import LocalLink
from txbroker.mqtt.wire.message import Message


def lazy_bench(apex: str = "") -> OwnBench:
    bench = OwnBench(apex)
    bench.authority, bench.journal = authority_of(apex, bench.table, lazy=True)
    bench.own = LocalLink(bench.edge, bench.authority, bench.pressure)
    bench.open()
    return bench


def test_own_clients_are_acknowledged_when_it_is_durable() -> None:
    """After the delivery to others; each as far as it is, in order; QoS 0 waits for nothing."""
    bench = lazy_bench()
    subscriber, publisher = Client(bench, "s"), Client(bench, "p")
    subscriber.subscribe("#")
    subscriber.got()
    publisher.publish("x", "1")
    publisher.publish("x", "2", 2)
    publisher.publish("x", "3", 0)
    before = (subscriber.got(), publisher.got())
    bench.journal.sync(1)
    between = (subscriber.got(), publisher.got())
    bench.journal.sync()

    assert (["3"], []) == before
    assert (["1"], ["Puback"]) == between
    assert (["2"], ["Pubrec"]) == (subscriber.got(), publisher.got())


def test_subscription_is_answered_in_its_place() -> None:
    """With what was retained when it was made."""
    bench = lazy_bench()
    client = Client(bench, "c")
    bench.authority.publish(Message("x", b"old", 1, True))
    client.subscribe("x")
    bench.authority.publish(Message("x", b"new", 1, True))
    before = client.got()
    bench.journal.sync()

    assert ([], ["Suback", "r:old", "new"]) == (before, client.got())


def test_publish_waits_while_the_end_of_the_zone_is_on_its_way() -> None:
    """The zone takes nothing more, and its end is told behind what it had taken."""
    bench = lazy_bench("a")
    bench.edge.zones.add(cut("a"))
    client = Client(bench, "c")
    client.publish("a/x", "1")
    bench.authority.close()
    client.publish("a/x", "2")
    client.publish("a/x", "3")
    before = client.got()
    bench.journal.sync()
    after = client.got()
    bench.online("")

    assert ([], ["Puback"]) == (before, after)
    assert [("", "publish", "2"), ("", "publish", "3")] == [
        event for event in bench.events if "publish" in event
    ]


def test_what_an_epoch_left_unanswered_goes_into_the_next() -> None:
    """It was not safe; and its offsets do not hold up what comes then."""
    bench = lazy_bench("a")
    client = Client(bench, "c")
    for _ in range(10):
        bench.authority.publish(Message("a/x", b"another's", 1))
    for text in ("1", "2", "3"):
        client.publish("a/x", text)
    bench.authority.close()
    bench.authority.open(2)
    bench.another_edge("#")
    bench.own.open(cut("a", 2))
    client.publish("a/x", "4")
    bench.journal.sync()

    assert ["Puback"] * 4 == client.got()
    assert ["1", "2", "3", "4"] == [event[3] for event in bench.events if "deliver" in event]


def test_claim_is_finished_when_it_was_made() -> None:
    """No link can break in the middle: nothing is kept of it."""
    bench = lazy_bench()
    client = Client(bench, "c")
    client.subscribe("#")
    received_zone = ReceivedZone()
    received_zone.interests.append(EdgeInterest(edge="edge", incarnation=1, filters=("#",)))
    bench.authority.absorb("z", received_zone)
    bench.authority.publish(Message("z/a", b"1", 1))
    bench.journal.sync()
    before = client.got()
    bench.authority.announce_end("z", 1)
    bench.authority.publish(Message("z/a", b"2", 1))
    bench.journal.sync()
    peer = bench.authority.peers.get("edge")
    assert peer is not None

    assert (["Suback"], ["1", "2"]) == (before, client.got())
    assert ({}, {}, {}) == (peer.unclaimed, peer.claiming, bench.route("").claims.claiming)


def test_runs_that_become_durable_together() -> None:
    """Each client is answered for its own, behind the deliveries."""
    bench = lazy_bench()
    subscriber, one, two = (Client(bench, name) for name in ("s", "1", "2"))
    subscriber.subscribe("#", qos=2)
    one.publish("x", "0")  # the first one of a client does not come in a run
    two.publish("x", "0")
    bench.journal.sync()
    assert (["Suback", "0", "0"], ["Puback"]) == (subscriber.got(), one.got())
    two.got()

    one.publish_all(("x", "1", 1), ("y", "2", 2))
    two.publish_all(("x", "3", 1))
    two.publish_all(("x", "4", 1))
    before = (subscriber.got(), one.got(), two.got())
    bench.journal.sync(5)
    between = (subscriber.got(), one.got(), two.got())
    bench.journal.sync()

    assert ([], [], []) == before
    assert (["1", "2", "3"], ["Puback", "Pubrec"], ["Puback"]) == between
    assert (["4"], [], ["Puback"]) == (subscriber.got(), one.got(), two.got())
