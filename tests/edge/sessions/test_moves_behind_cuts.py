"""Sessions that move to a node that has followed a zone's passages, from one that has not."""

from __future__ import annotations

import pytest

from tests.edge.sessions.test_catch_up_after_moves import bench_of, everything, subscribed
from tests.edge.sessions.test_session_cursors import (
    ROOT,
    A,
    child_says,
    in_journal,
    root_says,
    told,
)
from tests.support.edge_bench import Client, EdgeBench
from tests.support.keeping import MemoryTable
from tests.support.recorders import cut
from txbroker.edge.sessions.journal_read_cache import RETRY
from txbroker.edge.sessions.session_connect import PublishBarrier
from txbroker.edge.sessions.session_transfer import SessionTransfer
from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.log_position import LogPosition


def transfer_of(bench: EdgeBench) -> SessionTransfer:
    return SessionTransfer(bench.edge, PublishBarrier(), MemoryTable(), MemoryTable())


def frozen(bench: EdgeBench) -> bytes:
    state = transfer_of(bench).freeze("c")
    assert state is not None
    return state


def cut_a(bench: EdgeBench, offset: int) -> EpochTransition:
    """The root's stream tells that the zone is cut behind this offset, and so does its owner."""
    left, entered = LogPosition(ROOT, offset), LogPosition(A, 0)
    passage = EpochTransition(apex="a", left=left, entered=entered)
    bench.journals.passages.append(passage)
    bench.edge.cuts.on_cut(bench.route(""), cut("a"))
    bench.edge.on_owner(bench.route("a"), 1, left, [passage])
    bench.online("a")
    bench.edge.on_claimed(bench.route("a"), ["a"], lambda: None)
    return passage


def answered(bench: EdgeBench) -> None:
    """The owners answer what they were asked."""
    for route in bench.edge.zones:
        for topic_filter, _ in list(route.interest.requests.values()):
            bench.answer(route.apex, topic_filter)


def read_in_the_end(bench: EdgeBench) -> list[str]:
    """What the client gets that comes now."""
    client = Client(bench, "c", clean=False)
    came = everything(client)
    bench.clock.advance(RETRY)
    return came + everything(client)


def before_the_cut(come: int) -> tuple[bytes, list[str]]:
    """A session whose node has not heard of the cut, and what it has got so far."""
    bench = bench_of()
    client = subscribed(bench, "a/x")
    root_says(bench, 1, come)
    came = everything(client)
    client.leave()
    return frozen(bench), came


def cut_bench(offset: int, child: int = 0) -> EdgeBench:
    """An edge that follows both zones: the root has come to this offset, and the child to its."""
    bench = EdgeBench("a")
    bench.online("", "a", offset=offset)
    bench.online("a", offset=child)
    return bench


def come_back(bench: EdgeBench) -> None:
    """The zone comes back, and its stream has told its end."""
    bench.come_back("a")
    bench.edge.cuts.on_zone_end(bench.route("a"), is_whole=True)


def behind_the_cut(
    topic_filter: str, come: int, *, has_come_back: bool = False
) -> tuple[bytes, list[str]]:
    """A session whose node follows the child, and what the session has got so far."""
    bench = cut_bench(2)
    client = subscribed(bench, topic_filter)
    child_says(bench, 1, come)
    if has_come_back:
        come_back(bench)
    came = everything(client)
    client.leave()
    return frozen(bench), came


@pytest.mark.parametrize("event", ["leaves", "restart", "leaves, restart"])
@pytest.mark.parametrize("come", [2, 4])
def test_client_that_leaves_before_a_zone_answers_misses_nothing_of_it(
    come: int, event: str
) -> None:
    """The zone is new to the session, and its stream has gone far on at this node."""
    state, came = before_the_cut(come)
    bench = bench_of()
    other = subscribed(bench, "#", name="other")
    root_says(bench, 1, 4)
    cut_a(bench, 4)
    child_says(bench, 1, 3)
    everything(other)
    transfer_of(bench).adopt("c", state, 2)
    bench.settle()
    if "leaves" in event:
        Client(bench, "c", clean=False).leave()
    bench.edge.cursors.checkpoint()
    bench.settle()
    if "restart" in event:
        bench = bench.restart()
        bench.online("", "a", offset=4)
        bench.online("a", offset=3)
    answered(bench)

    assert told("root", 1, 4) + told("child", 1, 3) == came + read_in_the_end(bench)


@pytest.mark.parametrize("is_here", [False, True])
def test_zone_whose_link_comes_after_the_session_is_read_from_its_beginning(is_here: bool) -> None:
    """The owner has gone far on, and the client is away before it answers."""
    state, _ = before_the_cut(4)
    bench = bench_of()
    bench.know("", "a")
    in_journal(bench, A, "child", 1, 3)
    transfer_of(bench).adopt("c", state, 2)
    if is_here:
        client = Client(bench, "c", clean=False)
    bench.edge.on_owner(bench.route("a"), 1, LogPosition(ROOT, 4))
    bench.online("a", offset=3)
    if is_here:
        client.leave()
    answered(bench)

    assert told("child", 1, 3) == read_in_the_end(bench)


@pytest.mark.parametrize("is_ended", [False, True])
def test_session_that_has_all_of_a_zone_gets_nothing_of_it_again(is_ended: bool) -> None:
    """It comes with the place of the cut in the part above, and leaves the zone aside."""
    before = cut_bench(4, 3)
    client = subscribed(before, "#")
    if is_ended:
        come_back(before)
    client.leave()
    state = frozen(before)
    bench = bench_of()
    other = subscribed(bench, "#", name="other")
    root_says(bench, 1, 4)
    cut_a(bench, 4)
    child_says(bench, 1, 3)
    everything(other)
    if is_ended:
        come_back(bench)
    transfer_of(bench).adopt("c", state, 2)
    bench.settle()
    answered(bench)

    assert [] == read_in_the_end(bench)


def test_move_is_not_resolved_before_all_zones_have_answered() -> None:
    """The earlier node may have places in a zone that this node has still to find."""
    state, _ = before_the_cut(4)
    bench = bench_of()
    transfer = transfer_of(bench)
    transfer.adopt("c", state, 2)
    bench.settle()
    bench.edge.low_water.send_marks()
    bench.settle()
    port = bench.route("").port
    port.kept()  # type: ignore[union-attr]
    before = transfer.is_resolved("c", "before")
    answered(bench)

    assert (False, True) == (before, transfer.is_resolved("c", "before"))


@pytest.mark.parametrize("event", ["stays", "leaves", "restart"])
@pytest.mark.parametrize("topic_filter", ["#", "a/x"])
def test_session_that_comes_from_a_node_that_missed_a_return_goes_on_behind_it(
    topic_filter: str, event: str
) -> None:
    """The stream has told of the return here, and no link has begun since."""
    state, came = behind_the_cut(topic_filter, 2)
    bench = bench_of()
    other = subscribed(bench, "#", name="other")
    root_says(bench, 1, 2)
    cut_a(bench, 2)
    child_says(bench, 1, 4)
    bench.journals.passages.append(
        EpochTransition(apex="a", left=LogPosition(A, 4), entered=LogPosition(ROOT, 2))
    )
    bench.journals.closed.add(A)
    bench.come_back("a")
    bench.lose("a")
    root_says(bench, 3, 5)
    everything(other)
    transfer_of(bench).adopt("c", state, 2)
    bench.settle()
    if event == "leaves":
        Client(bench, "c", clean=False).leave()
    bench.edge.cursors.checkpoint()
    bench.settle()
    if event == "restart":
        bench = bench.restart()
        bench.online("", offset=5)
    else:
        answered(bench)

    assert told("child", 1, 4) + told("root", 3, 5) == came + read_in_the_end(bench)


@pytest.mark.parametrize("topic_filter", ["#", "a/x"])
@pytest.mark.parametrize("leaves", [False, True])
def test_session_that_comes_from_a_node_that_is_ahead_gets_nothing_again(
    topic_filter: str, leaves: bool
) -> None:
    """It had all of a zone that has come back, of which this node has still to hear."""
    state, came = behind_the_cut(topic_filter, 4, has_come_back=True)
    bench = cut_bench(2)
    other = subscribed(bench, "#", name="other")
    child_says(bench, 1, 2)
    everything(other)
    passage = EpochTransition(apex="a", left=LogPosition(A, 4), entered=LogPosition(ROOT, 2))
    bench.journals.passages.append(passage)
    in_journal(bench, A, "child", 3, 4)
    bench.journals.closed.add(A)
    in_journal(bench, ROOT, "root", 3, 4)
    bench.lose("a")
    bench.lose("")
    transfer_of(bench).adopt("c", state, 2)
    bench.settle()
    if leaves:
        Client(bench, "c", clean=False).leave()
        bench.settle()
    bench.edge.on_owner(bench.route(""), 1, None, [passage])
    bench.online("", offset=4)
    bench.edge.on_claimed(bench.route(""), ["a"], lambda: None)
    bench.settle()
    answered(bench)

    assert told("child", 1, 4) + told("root", 3, 4) == came + read_in_the_end(bench)
