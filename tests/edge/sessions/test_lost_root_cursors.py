"""
Cursors in zones that a new root did not know for a while, as it had lost its disk.

Nobody ended these zones: a session goes on where it was.
"""

from __future__ import annotations

import pytest

from tests.edge.sessions.test_catch_up_after_moves import bench_of, everything, subscribed
from tests.edge.sessions.test_session_cursors import ROOT, A, child_says, in_journal, told
from tests.support.edge_bench import Client, EdgeBench
from tests.support.keeping import MemoryTable
from tests.support.recorders import cut
from txbroker.edge.sessions.journal_read_cache import RETRY
from txbroker.edge.sessions.session_connect import PublishBarrier
from txbroker.edge.sessions.session_transfer import SessionTransfer
from txbroker.model.log_position import LogPosition


def forget(bench: EdgeBench) -> None:
    """The links broke, and the new root answers that it has no child."""
    bench.lose("a")
    bench.lose("")
    bench.edge.on_resolved(bench.route(""), cut(""), [], 30)


def connect(bench: EdgeBench, offset: int) -> None:
    """The zone's owner is found, and is connected; it has delivered up to the offset."""
    bench.edge.on_owner(bench.route("a"), 1, LogPosition(ROOT, 0))
    bench.online("a", offset=offset)


def remember(bench: EdgeBench) -> None:
    """The root knows the zone again."""
    bench.take()
    bench.online("", "a", epoch=2)
    bench.settle()


def read_on(bench: EdgeBench, client: Client) -> list[str]:
    """All that comes, and what another look at the journals finds."""
    found = everything(client)
    bench.clock.advance(RETRY)
    return found + everything(client)


def transfer_of(bench: EdgeBench) -> SessionTransfer:
    return SessionTransfer(bench.edge, PublishBarrier(), MemoryTable(), MemoryTable())


def test_what_the_zone_takes_while_the_root_does_not_know_it_comes() -> None:
    """The session had read the journal to its end."""
    bench = bench_of("a")
    client = subscribed(bench, "a/x")
    child_says(bench, 1, 2)
    forget(bench)
    found = read_on(bench, client)
    in_journal(bench, A, "child", 3, 4)
    remember(bench)
    connect(bench, 4)
    found += read_on(bench, client)
    child_says(bench, 5, 5)

    assert told("child", 1, 5) == found + read_on(bench, client)
    assert ({}, {}) == (client.session.places.behind, client.session.places.cut_off)


def test_link_of_the_time_when_the_zone_was_forgotten_is_replaced() -> None:
    """A publish had opened it, and its owner had none of our filters."""
    bench = bench_of("a")
    client = subscribed(bench, "a/x")
    child_says(bench, 1, 2)
    forget(bench)
    found = read_on(bench, client)
    bench.edge.on_lineage([cut(""), cut("a")])  # this node's parent has the zone
    in_journal(bench, A, "child", 3, 4)
    connect(bench, 4)
    found += read_on(bench, client)
    in_journal(bench, A, "child", 5, 6)
    remember(bench)
    assert [("a", "close")] == [event[:2] for event in bench.take() if "close" in event]
    in_journal(bench, A, "child", 7, 7)
    bench.lose("a")
    connect(bench, 7)
    found += read_on(bench, client)
    child_says(bench, 8, 8)

    assert told("child", 1, 8) == found + read_on(bench, client)
    assert ({}, {}) == (client.session.places.behind, client.session.places.cut_off)


def test_sessions_do_not_wait_for_the_forgotten_zone() -> None:
    """They get what the root has meanwhile; the zone may be away for long."""
    bench = bench_of("a")
    client = subscribed(bench, "#")
    child_says(bench, 1, 2)
    forget(bench)
    found = read_on(bench, client)
    bench.online("", epoch=1)
    bench.deliver("", "x", "root 1", 1)

    assert [*told("child", 1, 2), "root 1"] == found + read_on(bench, client)


@pytest.mark.parametrize("is_merged", [False, True])
def test_session_that_moved_meanwhile_reads_on_where_it_was(is_merged: bool) -> None:
    """The other node follows the zone all the time, maybe for an own session of the client."""
    bench, other = bench_of("a"), bench_of("a")
    client = subscribed(bench, "a/x")
    child_says(bench, 1, 2)
    forget(bench)
    found = read_on(bench, client)
    client.leave()
    child_says(other, 1, 3)
    own = subscribed(other, "a/x") if is_merged else None
    child_says(other, 4, 4)
    if own is not None:
        found += everything(own)
        own.leave()
    state = transfer_of(bench).freeze("c")
    assert state is not None
    transfer_of(other).adopt("c", state, 2)
    client = Client(other, "c", clean=False)
    for topic_filter, _ in list(other.route("a").interest.requests.values()):
        other.answer("a", topic_filter)
    child_says(other, 5, 5)
    found += read_on(other, client)
    other.edge.backlog.poll_cut_off(other.edge.clients.sessions.values())

    assert told("child", 1, 5) == sorted(found + read_on(other, client))
