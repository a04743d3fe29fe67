"""
A cut of which the resolver tells first: the stream of the zone above is away, and so is the child.

The filters move to the child at once. The rest of the part above comes by no stream.
"""

from __future__ import annotations

import pytest

from tests.edge.sessions.test_catch_up_after_moves import bench_of, everything, say, subscribed
from tests.edge.sessions.test_link_before_cut import claimed
from tests.edge.sessions.test_session_cursors import ROOT, A, in_journal, root_says, told
from tests.support.edge_bench import Client, EdgeBench
from tests.support.recorders import cut
from txbroker.edge.sessions.journal_read_cache import RETRY
from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.wire.message import Message

AB = JournalId("a/b", 1)

COME = 3
"""The last record of the root that its stream has brought."""

HELD = 2
"""The last record of the child that waits for the claim."""


def passage_at(offset: int) -> EpochTransition:
    return EpochTransition(apex="a", left=LogPosition(ROOT, offset), entered=LogPosition(A, 0))


def linked_root(bench: EdgeBench, passage: EpochTransition, offset: int) -> None:
    bench.edge.on_owner(bench.route(""), 1, None, [passage])
    bench.online("", "a", offset=offset)


def linked_child(bench: EdgeBench, passage: EpochTransition) -> None:
    """It sends what has waited for the claim."""
    bench.edge.on_owner(bench.route("a"), 1, passage.left, [passage])
    claimed(bench, 1, HELD)
    bench.online("a", offset=HELD)
    bench.edge.on_claimed(bench.route("a"), ["a"], lambda: None)


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("order", ["child", "root child", "child root"])
@pytest.mark.parametrize("last", [COME, COME + 2])
@pytest.mark.parametrize("others", ["", "b/x", "#"])
@pytest.mark.parametrize("leaves", ["never", "before", "after"])
def test_rest_of_the_part_above_comes_first(
    leaves: str, others: str, last: int, order: str, is_restarted: bool
) -> None:
    """Whether other filters stay with the zone above, and whichever link is back first."""
    bench = bench_of()
    client = subscribed(bench, "a/x")
    if others:
        subscribed(bench, others, name="other")
    root_says(bench, 1, COME)
    came = everything(client)
    bench.lose("")
    passage = passage_at(last)
    bench.journals.passages.append(passage)
    in_journal(bench, ROOT, "root", COME + 1, last)
    in_journal(bench, A, "child", 1, HELD)
    if leaves == "before":
        client.leave()
    bench.edge.on_resolved(bench.route(""), cut(""), [cut("a")], 30.0)
    bench.settle()
    if leaves == "after":
        client.leave()
    bench.edge.cursors.checkpoint()
    bench.settle()
    if is_restarted:
        bench = bench.restart()
        bench.edge.zones.add(cut("a"))
    for which in order.split():
        if which == "root":
            linked_root(bench, passage, last)
        else:
            linked_child(bench, passage)
        bench.settle()
    if is_restarted or leaves != "never":
        client = Client(bench, "c", clean=False)
    came += everything(client)
    bench.clock.advance(RETRY)
    bench.deliver("a", "a/x", f"child {HELD + 1}", HELD + 1)

    assert told("root", 1, last) + told("child", 1, HELD + 1) == came + everything(client)


@pytest.mark.parametrize("is_away", [False, True])
@pytest.mark.parametrize("order", ["a/b", "a a/b", "a/b a", "root a/b"])
def test_rest_of_all_parts_above_comes_first(is_away: bool, order: str) -> None:
    """The resolver walks on to a zone below the child, before any link is back."""
    bench = bench_of()
    client = subscribed(bench, "a/b/x")
    say(bench, 1, 2)
    bench.lose("")
    parts = ROOT, A, AB
    for number, part in enumerate(parts):
        for offset in range(1, 5):
            payload = f"{number} {offset}".encode()
            if part != ROOT or offset > 2:
                bench.journals.add(part, offset, Message("a/b/x", payload, 1))
    first = EpochTransition(apex="a", left=LogPosition(ROOT, 4), entered=LogPosition(A, 0))
    second = EpochTransition(apex="a/b", left=LogPosition(A, 4), entered=LogPosition(AB, 0))
    bench.journals.passages += [first, second]
    bench.edge.on_resolved(bench.route(""), cut(""), [cut("a")], 30.0)
    bench.settle()
    bench.edge.on_resolved(bench.route("a"), cut("a"), [cut("a/b")], 30.0)
    bench.settle()
    if is_away:
        client.leave()
    for which in order.split():
        if which == "root":
            linked_root(bench, first, 4)
        elif which == "a":
            bench.edge.on_owner(bench.route("a"), 1, first.left, [first, second])
            bench.online("a", "a/b", offset=4)
        else:
            bench.edge.on_owner(bench.route("a/b"), 1, second.left, [first, second])
            bench.online("a/b", offset=4)
            bench.edge.on_claimed(bench.route("a/b"), ["a/b"], lambda: None)
        bench.settle()
    if is_away:
        client = Client(bench, "c", clean=False)
    came = everything(client)
    bench.clock.advance(RETRY)
    came += everything(client)
    bench.clock.advance(RETRY)

    expected = [
        "0 3",
        "0 4",
        *(f"{number} {offset}" for number in (1, 2) for offset in range(1, 5)),
    ]
    assert expected == came + everything(client)
