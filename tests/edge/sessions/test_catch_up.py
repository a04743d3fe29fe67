"""What waits for owners: dropped, bounded, and who is not read meanwhile."""

from __future__ import annotations

import pytest

from tests.edge.routing.test_publisher import LIMIT, Bench, client, from_client, publishes
from txbroker.edge.routing.client_backpressure import CONGESTED, HOPE
from txbroker.edge.routing.publication import Publication
from txbroker.edge.routing.publisher import QOS0_WAITING
from txbroker.mqtt.wire.message import Message

# -- owners that cannot be reached


def test_qos0_is_dropped_for_an_unreachable_owner() -> None:
    """Counted; QoS 1 and 2 wait, and stay in their order."""
    bench = Bench()
    bench.publish("x=1", qos=0)
    bench.publish("x=2", "x=3")
    bench.publish("x=4", qos=0)
    before = bench.waiting("")
    bench.publisher.on_unreachable(bench.route(""))
    bench.publish("x=5", qos=0)
    bench.publish("x=6", qos=2)

    assert (["1", "2", "3", "4"], ["2", "3", "6"]) == (before, bench.waiting(""))
    assert {"publish.dropped.unreachable": 3} == bench.counters.snapshot()


def test_zone_that_nobody_knows_is_unreachable() -> None:
    """Without an address there is nobody to ask; what may wait waits for one."""
    bench = Bench()
    bench.route("").learn_cut(None)
    bench.publish("x=1", qos=0)
    bench.publish("x=2")

    assert (["2"], []) == (bench.waiting(""), bench.events)
    assert bench.counters.get("publish.dropped.unreachable") == 1


def test_qos0_waits_for_a_first_link_within_limits() -> None:
    """For a second as much as the pauses let in; then up to a limit, dropped and counted."""
    bench = Bench()
    message = Message("x", bytes(QOS0_WAITING // 4))
    for _ in range(8):
        bench.publisher.publish(Publication(message))
    hopeful = len(bench.route("").queue.waiting)
    bench.clock.advance(HOPE)
    bench.publisher.publish(Publication(message))

    assert (8, 8) == (hopeful, len(bench.route("").queue.waiting))
    assert {"publish.dropped.connecting": 1} == bench.counters.snapshot()


# -- who is not read


def test_only_clients_of_whom_something_waits_are_paused() -> None:
    """A zone that does not take holds back those who publish to it, and nobody else."""
    bench = Bench("a")
    bench.connect("")
    bench.connect("a").credit = False
    (busy, _), (other, _) = client("busy"), client("other")
    bench.publisher.publish(from_client(busy, "a/x", 1, CONGESTED))
    bench.publisher.publish(from_client(other, "b", 1, CONGESTED))

    assert (True, False) == (
        bench.congestion.is_too_much(busy),
        bench.congestion.is_too_much(other),
    )


def test_paused_client_goes_on_when_there_is_room() -> None:
    """Once, when the backlog is half of what paused it."""
    bench = Bench()
    port = bench.connect("")
    port.credit = False
    session, _ = client()
    for packet_id in (1, 2):
        bench.publisher.publish(from_client(session, "x", packet_id, CONGESTED))
    assert bench.congestion.is_too_much(session)
    bench.congestion.when_room(session, lambda: bench.events.append(("go on",)))
    bench.publisher.use_freed_room()
    before = publishes(bench.events)
    port.credit = True
    bench.publisher.flush(bench.route(""))
    bench.publisher.use_freed_room()

    assert ([], 1) == (before, bench.events.count(("go on",)))
    assert not bench.congestion.is_too_much(session)


def test_client_that_left_is_not_called() -> None:
    """Its pause is forgotten."""
    bench = Bench()
    session, _ = client()
    bench.congestion.when_room(session, lambda: bench.events.append(("go on",)))
    bench.congestion.forget(session)
    bench.publisher.use_freed_room()

    assert [] == bench.events


@pytest.mark.parametrize(("total", "is_paused"), [(LIMIT - 4096, False), (LIMIT + 1, True)])
def test_unreachable_zone_pauses_at_the_outbox_limit(total: int, is_paused: bool) -> None:
    """What waits for nobody-knows-when may take memory up to `limits.outbox`."""
    bench = Bench()
    bench.publisher.on_unreachable(bench.route(""))
    session, _ = client()
    bench.publisher.publish(from_client(session, "x", 1, total))

    assert is_paused == bench.congestion.is_too_much(session)


def test_backlog_counts_what_waits() -> None:
    """In each zone, for each client, and in all; back to nothing when all has gone."""
    bench = Bench("a")
    session, _ = client()
    sizes = []
    for packet_id, topic in ((1, "a/x"), (2, "b")):
        publication = from_client(session, topic, packet_id, 1000)
        sizes.append(publication.message.size)
        bench.publisher.publish(publication)
    held = session.held_size
    bench.connect("a")
    bench.connect("")

    assert held == sum(sizes)
    assert (0, 0, 0) == (
        session.held_size,
        bench.zones.backlog.size,
        bench.route("a").queue.waiting_size,
    )
