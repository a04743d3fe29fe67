"""A zone whose node is dead and that its parent took: sessions go on in the parent's journal."""

from __future__ import annotations

import pytest

from tests.edge.sessions.test_catch_up_after_moves import bench_of, everything, subscribed
from tests.support.edge_bench import Client, EdgeBench
from txbroker.edge.routing.zone_claims import StreamPosition
from txbroker.edge.sessions.journal_read_cache import RETRY, ReadFailure
from txbroker.model.log_position import JournalId
from txbroker.mqtt.session.cursor import Subscription
from txbroker.mqtt.wire.message import Message

ROOT, A = JournalId("", 1), JournalId("a", 1)


def in_journal(bench: EdgeBench, first: int, last: int, topic: str = "a/x") -> None:
    """Records of the root that this edge has not been sent."""
    for offset in range(first, last + 1):
        bench.journals.add(ROOT, offset, Message(topic, str(offset).encode(), 1))


def reclaim(bench: EdgeBench, offset: int) -> None:
    """The root's stream says that it has `a` since this offset."""
    bench.journals.missing[A] = ReadFailure.CUT_OFF
    bench.edge.cuts.on_reclaimed(bench.route(""), "a", 1, StreamPosition(epoch=1, offset=offset))


def claimed(bench: EdgeBench) -> None:
    """The root's stream says that all that waited for the claim has come."""
    bench.edge.on_claimed(bench.route(""), ["a"], lambda: None)
    bench.clock.advance(RETRY)  # what was read last had nothing new
    bench.settle()


def waited(bench: EdgeBench, first: int, last: int) -> None:
    """What waited for the claim comes, behind newer messages of the zone."""
    for offset in range(first, last + 1):
        bench.edge.on_message(bench.route(""), Message("a/x", b"again", 1), offset)


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last + 1)]


@pytest.mark.parametrize("is_here", [False, True])
@pytest.mark.parametrize(("topic_filter", "first"), [("a/#", 6), ("#", 1)])
def test_edge_whose_link_to_the_parent_was_down_hears_when_it_is_up(
    topic_filter: str, first: int, is_here: bool
) -> None:
    """Sessions go on from where they were, or where the zone came back, and have all of it once."""
    bench = EdgeBench("a")
    bench.know("", "a")
    bench.online("a")
    if first == 1:
        bench.online("", "a")
    client = subscribed(bench, topic_filter)
    if first == 1:
        bench.lose("")
    if not is_here:
        client.leave()
    bench.lose("a")
    in_journal(bench, 1, 5, "y")
    in_journal(bench, 6, 9)
    reclaim(bench, 5)
    bench.online("", offset=9)
    if not is_here:
        client = Client(bench, "c", clean=False)
    told = everything(client)
    waited(bench, 6, 9)
    bench.deliver("", "a/x", "10", 10)
    claimed(bench)

    assert numbers(first, 10) == told + everything(client)
    assert ({}, {A: 0}) == (client.session.places.behind, client.session.places.cut_off)
    bench.deliver("", "a/x", "11", 11)
    assert ["11"] == everything(client)


def test_session_that_is_here_reads_until_the_claim_is_done() -> None:
    """Live messages ahead of what waits for the claim do not make it skip or repeat that."""
    bench = bench_of("a")
    client = subscribed(bench, "#")
    bench.lose("a")
    reclaim(bench, 0)
    in_journal(bench, 1, 2)
    bench.deliver("", "y", "3", 3)
    got = everything(client)
    waited(bench, 1, 2)
    claimed(bench)

    assert (numbers(1, 3), []) == (got, everything(client))
    assert ROOT not in client.session.places.behind


def test_who_subscribes_meanwhile_gets_nothing_older() -> None:
    """What waits for the claim is of before its time."""
    bench = bench_of("a")
    subscribed(bench, "#", name="first")
    bench.lose("a")
    reclaim(bench, 0)
    in_journal(bench, 1, 2)
    bench.deliver("", "y", "3", 3)
    second = subscribed(bench, "a/x", name="second")
    waited(bench, 1, 2)
    bench.deliver("", "a/x", "4", 4)

    assert ["4"] == everything(second)


def test_node_that_was_cut_off_is_not_listened_to_any_more() -> None:
    """It may live, and go on with a branch: nothing that it says from now on is of the zone."""
    bench = EdgeBench("a")
    bench.online("", "a")
    port = bench.online("a")
    port.close = lambda reason: bench.lose("a")  # type: ignore[method-assign]
    client = subscribed(bench, "a/#")
    client.publish("a/x", "1")
    reclaim(bench, 0)

    assert bench.edge.zones.get("a") is None
    doubts = [(doubt.key, doubt.last) for doubt in bench.route("").queue.doubts]
    assert [(("edge", 1, "a", 1), 1)] == doubts  # whether it had taken that is asked


def test_same_word_again_changes_nothing() -> None:
    """A link broke before the owner knew that it had come."""
    bench = bench_of("a")
    client = subscribed(bench, "#")
    bench.lose("a")
    in_journal(bench, 1, 2)
    for _ in range(2):
        reclaim(bench, 0)
        bench.online("", offset=2)
    claimed(bench)

    assert numbers(1, 2) == everything(client)
    assert {} == client.session.places.behind


def test_cursors_outlive_a_crash_before_the_owner_is_told() -> None:
    """The edge says that it needs the claim no more when they are safe."""
    bench = EdgeBench("a")
    bench.know("", "a")
    bench.online("a")
    client = subscribed(bench, "a/#")
    client.leave()
    bench.settle()
    bench.lose("a")
    reclaim(bench, 5)
    bench.online("", offset=9)
    done: list[bool] = []
    bench.edge.on_claimed(bench.route(""), ["a"], lambda: done.append(True))
    before = list(done)
    bench.settle()
    session = bench.restart().edge.clients.sessions["c"]

    assert ([], [True]) == (before, done)
    assert 5 == session.places.behind[ROOT].offset


@pytest.mark.parametrize(("topic_filter", "begins"), [("a/x", 5), ("#", 0)])
def test_session_that_moves_here_begins_where_the_zone_came_back(
    topic_filter: str, begins: int
) -> None:
    """What the journal has of the zone from before it was delegated was never for it."""
    bench = bench_of("a")
    bench.lose("a")
    reclaim(bench, 5)
    moved = bench.edge.clients.new_session("moved")
    moved.subscriptions[topic_filter] = Subscription(topic_filter, 1)
    bench.edge.clients.adopt(moved, [topic_filter])
    bench.answer("", topic_filter)

    assert begins == moved.places.behind[ROOT].offset
