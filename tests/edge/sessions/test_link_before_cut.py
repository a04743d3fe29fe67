"""
A link to a zone may be there before the stream of the zone above announces the cut.

A publish needs it, or the zone is this node's own. Its owner holds all records for the claim that
follows the cut. Whenever clients leave, and the edge ends, sessions get them once.
"""

from __future__ import annotations

import pytest

from tests.edge.sessions.test_catch_up_after_moves import bench_of, everything, subscribed
from tests.edge.sessions.test_session_cursors import ROOT, A, in_journal, root_says, told
from tests.support.edge_bench import Client, EdgeBench
from tests.support.recorders import cut
from txbroker.edge.routing.zone_claims import StreamPosition
from txbroker.edge.sessions.journal_read_cache import RETRY
from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.log_position import LogPosition
from txbroker.mqtt.wire.message import Message

COME = 3
"""The last record of the root before the cut."""

HELD = 4
"""The last record of the child that waits for the claim."""


def link_before_cut(bench: EdgeBench) -> None:
    """The child is connected; its records wait for the claim, and its position passes them."""
    left, entered = LogPosition(ROOT, COME), LogPosition(A, 0)
    passage = EpochTransition(apex="a", left=left, entered=entered)
    bench.journals.passages.append(passage)
    route = bench.edge.zones.add(cut("a"))
    bench.edge.on_owner(route, 1, left, [passage])
    bench.online("a")
    in_journal(bench, A, "child", 1, HELD)
    route.reach(HELD)


def claimed(bench: EdgeBench, first: int, last: int) -> None:
    """These records have waited for the claim, and come."""
    route = bench.route("a")
    for offset in range(first, last + 1):
        bench.edge.on_message(route, Message("a/x", f"child {offset}".encode(), 1), offset)


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("leaves", ["before", "at the cut", "amid", "after"])
def test_client_that_leaves_misses_nothing_that_waits_for_the_claim(
    leaves: str, is_restarted: bool
) -> None:
    """The edge may end as well, after its positions are durable."""
    bench = bench_of()
    client = subscribed(bench, "a/x")
    root_says(bench, 1, COME)
    came = everything(client)
    link_before_cut(bench)
    for moment in ("before", "at the cut", "amid", "after"):
        match moment:
            case "at the cut":
                bench.edge.cuts.on_cut(bench.route(""), cut("a"))
            case "amid":
                claimed(bench, 1, HELD - 1)
            case "after":
                claimed(bench, HELD, HELD)
                bench.edge.on_claimed(bench.route("a"), ["a"], lambda: None)
        if moment == leaves:
            came += [] if leaves != "after" else everything(client)
            client.leave()
    bench.edge.cursors.checkpoint()
    bench.settle()
    if is_restarted:
        bench = bench.restart()
        bench.online("", "a", offset=COME)
        bench.online("a", offset=HELD)
    client = Client(bench, "c", clean=False)

    assert told("root", 1, COME) + told("child", 1, HELD) == came + everything(client)


@pytest.mark.parametrize("is_away", [False, True])
def test_edge_that_ends_before_it_hears_of_the_cut_has_no_position_there(is_away: bool) -> None:
    """Nothing of the child has come to its sessions."""
    bench = bench_of()
    client = subscribed(bench, "a/x")
    root_says(bench, 1, COME)
    came = everything(client)
    link_before_cut(bench)
    if is_away:
        client.leave()
    bench.edge.cursors.checkpoint()
    bench.settle()
    bench = bench.restart()
    route = bench.edge.zones.add(cut("a"))
    bench.edge.on_owner(route, 1, LogPosition(ROOT, COME))
    bench.online("", "a", offset=COME)
    bench.online("a", offset=HELD)
    client = Client(bench, "c", clean=False)

    assert told("root", 1, COME) + told("child", 1, HELD) == came + everything(client)


def test_client_that_stays_gets_what_waited_once_and_then_what_is_live() -> None:
    """It reads the journal; what the claim brings meanwhile is the same."""
    bench = bench_of()
    client = subscribed(bench, "a/x")
    root_says(bench, 1, COME)
    link_before_cut(bench)
    bench.edge.cuts.on_cut(bench.route(""), cut("a"))
    came = everything(client)
    claimed(bench, 1, HELD)
    bench.deliver("a", "a/x", f"child {HELD + 1}", HELD + 1)
    bench.edge.on_claimed(bench.route("a"), ["a"], lambda: None)
    bench.clock.advance(RETRY)
    came += everything(client)
    bench.deliver("a", "a/x", f"child {HELD + 2}", HELD + 2)

    assert told("root", 1, COME) + told("child", 1, HELD + 2) == came + everything(client)
    assert {} == client.session.places.behind


@pytest.mark.parametrize("is_online", [False, True])
@pytest.mark.parametrize("is_away", [False, True])
def test_cut_that_is_resolved_as_the_stream_from_above_is_away(
    is_away: bool, is_online: bool
) -> None:
    """The child's owner had said where it begins, as that stream was still there."""
    bench = bench_of()
    client = subscribed(bench, "a/x")
    root_says(bench, 1, COME)
    came = everything(client)
    if is_online:
        link_before_cut(bench)
    else:
        route = bench.edge.zones.add(cut("a"))
        bench.edge.on_owner(route, 1, LogPosition(ROOT, COME))
        in_journal(bench, A, "child", 1, HELD)
    if is_away:
        client.leave()
    bench.lose("")
    bench.edge.on_resolved(bench.route(""), cut(""), [cut("a")], 30.0)
    if not is_online:
        bench.online("a", offset=0)
    claimed(bench, 1, HELD)
    bench.edge.on_claimed(bench.route("a"), ["a"], lambda: None)
    bench.settle()
    if is_away:
        client = Client(bench, "c", clean=False)

    assert told("root", 1, COME) + told("child", 1, HELD) == came + everything(client)


def test_zone_below_is_followed_that_was_cut_as_the_link_said_hello() -> None:
    """The cut of the zone above came between the owner's answer and its stream."""
    bench = bench_of()
    subscribed(bench, "a/b/x")
    route = bench.edge.zones.add(cut("a"))
    bench.edge.on_owner(route, 1, LogPosition(ROOT, 0))
    bench.edge.cuts.on_cut(bench.route(""), cut("a"))
    bench.online("a", "a/b")
    bench.settle()

    assert StreamPosition(epoch=1, offset=0) == bench.route("a/b").position
