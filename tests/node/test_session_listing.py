"""What operators see of an edge's sessions and limits, and what they may do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.support.edge_bench import Client, EdgeBench
from tests.support.recorders import cut
from txbroker.edge.routing.edge_limits import EdgeLimits
from txbroker.journal.history.held_journals import HeldBack
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.shared_subscription import SharedSubscription
from txbroker.mqtt.session.window import SessionLimits
from txbroker.node import session_listing
from txbroker.v1.control_pb2 import SessionInfo, SessionsReply

AGE = EdgeLimits().session_age


def sessions(bench: EdgeBench) -> Iterator[Session]:
    return iter(bench.edge.clients.sessions.values())


def pages(bench: EdgeBench, held: Mapping[str, HeldBack] | None = None) -> list[SessionsReply]:
    distance, lifetime = bench.edge.backlog.distance, bench.edge.clients.lifetime
    now = bench.clock.now()
    return list(session_listing.session_pages(sessions(bench), now, distance, lifetime, held or {}))


def test_a_session_that_is_deleted_is_gone() -> None:
    """With its subscriptions; a client that was there is disconnected."""
    bench = EdgeBench("x")
    bench.online("x")
    away, here = Client(bench, "away", clean=False), Client(bench, "here", clean=False)
    for client in (away, here):
        client.subscribe("x/t")
        bench.settle()
    away.leave()
    bench.take()

    assert bench.edge.clients.delete("away")
    assert [] == bench.take()  # the other one still has the filter
    assert bench.edge.clients.delete("here")
    assert not bench.edge.clients.delete("here")

    assert "close" == here.events[-1]
    assert [("x", "remove", "x/t")] == bench.take()
    assert [] == list(sessions(bench))
    assert not Client(bench, "away", clean=False).present


def test_what_is_listed_of_a_session() -> None:
    """In the order of client ids, whatever their size."""
    bench = EdgeBench("x", limits=EdgeLimits(session=SessionLimits(inflight=1)))
    bench.online("x")
    b = Client(bench, "b", clean=False)
    b.subscribe("x/t", "x/u")
    b.session.share(SharedSubscription("$share/g/x/t", 1, 1))
    for topic_filter in ("x/t", "x/u"):
        bench.answer("x", topic_filter)
    bench.settle()
    a = Client(bench, "a" * 60_000)
    b.leave()
    bench.clock.advance(7.5)
    for offset in (1, 2, 3):
        bench.deliver("x", "x/t", "missed", offset)
    a.session.level, a.session.expiry = 5, 0
    b.session.level, b.session.expiry = 4, None

    assert [
        SessionInfo(client_id=a.session.client_id, clean=True, connected=True, level=5, expiry=0),
        SessionInfo(client_id="b", away=7.5, subscriptions=3, waiting=3, level=4, expiry=AGE),
    ] == [info for page in pages(bench) for info in page.sessions]


def test_those_that_hold_most_come_first() -> None:
    """Then by client id; an owner that does not answer may keep more."""
    bench = EdgeBench()
    for client_id in ("a", "b", "c", "d"):
        Client(bench, client_id)
    held = {"c": HeldBack(size=9, age=7.0), "b": HeldBack(is_whole=False)}

    found = [info for page in pages(bench, held) for info in page.sessions]

    assert ["c", "a", "b", "d"] == [info.client_id for info in found]
    assert [(9, 7.0, False), (0, 0.0, False), (0, 0.0, True), (0, 0.0, False)] == [
        (info.held_size, info.held_age, info.held_unknown) for info in found
    ]


def test_pages_are_not_too_large() -> None:
    """A client id may have 65,535 bytes, and there may be many clients."""
    bench = EdgeBench()
    for number in range(20):
        Client(bench, f"{number:02}" + "x" * 60_000)

    found = pages(bench)

    assert 20 == sum(len(page.sessions) for page in found)
    assert all(page.ByteSize() < 2 * session_listing.PAGE_BYTES for page in found)


def test_the_worst_losses_are_named() -> None:
    """A hundred at the most, and nobody who lost nothing."""
    bench = EdgeBench()
    for number in range(session_listing.LOSSES_SHOWN + 20):
        Client(bench, str(number)).session.sender.dropped = number

    found = [(loss.client_id, loss.dropped) for loss in session_listing.losses(sessions(bench))]

    assert [(str(n), n) for n in range(119, 19, -1)] == found


def test_what_is_forgotten_for_room_is_counted_and_told_once() -> None:
    """Zones here."""
    bench = EdgeBench("x", limits=EdgeLimits(cache=2))
    for number in range(2):
        bench.edge.zones.add(cut(f"y{number}"))

    assert 2 == bench.counters.get("cache.full")
    assert [("cache.full", "limits.cache", 2)] == bench.reporter.events


def test_other_limits_count_for_sessions_that_are_there() -> None:
    """And for the cache."""
    bench = EdgeBench("x", limits=EdgeLimits(session=SessionLimits(inflight=1), cache=1))
    client = Client(bench, "c")

    bench.edge.set_limits(EdgeLimits(session=SessionLimits(inflight=3), cache=1000))
    client.subscribe("x/t")
    bench.online("x")
    bench.answer("x", "x/t")
    client.events.clear()
    for number in range(1, 5):
        bench.deliver("x", "x/t", str(number), number)
        bench.edge.zones.add(cut(f"y{number}"))

    assert 3 == len(client.events)
    assert 0 == bench.counters.get("cache.full")
    assert [("session.window_full", "c", "limits.inflight")] == bench.reporter.events


def test_a_full_window_is_told_once_and_counted_each_time() -> None:
    """By the number of messages, or by their bytes."""
    bench = EdgeBench("x", limits=EdgeLimits(session=SessionLimits(inflight=2, memory=500)))
    bench.online("x")
    client = Client(bench, "c")
    client.subscribe("x/t")
    bench.answer("x", "x/t")

    bench.deliver("x", "x/t", "1", 1)
    assert 0 == bench.counters.get("session.window_full")
    bench.deliver("x", "x/t", "2", 2)
    client.got()
    bench.deliver("x", "x/t", "3" * 600, 3)

    bench.edge.refresh_stale()
    assert 2 == bench.counters.get("session.window_full")
    assert [("session.window_full", "c", "limits.inflight")] == bench.reporter.events
