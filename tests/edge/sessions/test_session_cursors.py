"""Cursors while the tree of zones changes: each part is read to its end before the next one."""

from __future__ import annotations

import attrs
import pytest

from tests.edge.sessions.test_catch_up_after_moves import bench_of, everything, subscribed
from tests.support.edge_bench import Client, EdgeBench
from tests.support.recorders import cut
from txbroker.edge.routing.zone_claims import StreamPosition
from txbroker.edge.sessions import session_cursors
from txbroker.edge.sessions.journal_read_cache import RETRY, ReadFailure
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.cursor import Cursor
from txbroker.mqtt.wire.message import Message

ROOT, A = JournalId("", 1), JournalId("a", 1)


def root_says(bench: EdgeBench, first: int, last: int) -> None:
    """Live messages of the root zone, on a topic that a cut may take away."""
    for offset in range(first, last + 1):
        bench.deliver("", "a/x", f"root {offset}", offset)


def child_says(bench: EdgeBench, first: int, last: int, epoch: int = 1) -> None:
    """The child's."""
    for offset in range(first, last + 1):
        bench.deliver("a", "a/x", f"child {offset}" + "'" * (epoch - 1), offset)


def told(name: str, first: int, last: int) -> list[str]:
    return [f"{name} {number}" for number in range(first, last + 1)]


def in_journal(bench: EdgeBench, part: JournalId, name: str, first: int, last: int) -> None:
    """Records that this edge has not been sent."""
    for offset in range(first, last + 1):
        bench.journals.add(part, offset, Message("a/x", f"{name} {offset}".encode(), 1))


@pytest.mark.parametrize("is_restarted", [False, True])
def test_session_that_is_away_reads_the_parent_up_to_the_cut_first(is_restarted: bool) -> None:
    """Then the child from its first record on (rule 13)."""
    bench = bench_of()
    client = subscribed(bench, "a/x")
    client.leave()
    root_says(bench, 1, 3)
    bench.edge.cuts.on_cut(bench.route(""), cut("a"))
    bench.online("a")
    child_says(bench, 1, 3)
    bench.edge.cursors.checkpoint()
    bench.settle()
    if is_restarted:
        bench = bench.restart()
        bench.online("", "a", offset=3)
        bench.online("a", offset=3)
    bench.journals.missing[ROOT] = ReadFailure.UNREACHABLE
    client = Client(bench, "c", clean=False)
    before = everything(client)
    del bench.journals.missing[ROOT]
    bench.clock.advance(RETRY)

    assert ([], told("root", 1, 3) + told("child", 1, 3)) == (before, everything(client))


def test_session_that_is_here_and_behind_waits_with_the_child() -> None:
    """What the child sends live does not overtake what the parent had."""
    bench = bench_of()
    client = subscribed(bench, "a/x")
    client.leave()
    root_says(bench, 1, 3)
    bench.journals.late = True
    client = Client(bench, "c", clean=False)
    bench.edge.cuts.on_cut(bench.route(""), cut("a"))
    bench.online("a")
    child_says(bench, 1, 2)
    before = client.got()
    bench.journals.late = False
    bench.journals.answer(9)

    assert ([], told("root", 1, 3) + told("child", 1, 2)) == (before, everything(client))


@pytest.mark.parametrize("last", [5, 6])
@pytest.mark.parametrize("followed", [2, 5])
def test_zone_that_was_cut_while_the_node_was_away_is_followed(followed: int, last: int) -> None:
    """
    Its journal says where it goes on from, whether the node had come there before or not; the zone
    above may have nothing newer, up to `last`, than the cut.
    """
    bench = bench_of()
    client = subscribed(bench, "a/x")
    root_says(bench, 1, followed)
    client.leave()
    bench.edge.cursors.checkpoint()
    bench.settle()
    in_journal(bench, ROOT, "root", followed + 1, 5)
    bench.journals.ends[ROOT] = last
    in_journal(bench, A, "child", 1, 4)
    bench = bench.restart()
    bench.edge.zones.add(cut("a"))
    bench.online("", "a", offset=last)
    bench.edge.on_owner(bench.route("a"), 1, LogPosition(ROOT, 5))
    bench.online("a", offset=4)
    client = Client(bench, "c", clean=False)

    assert told("root", 1, 5) + told("child", 1, 4) == everything(client)


@pytest.mark.parametrize("come", [0, 3])
def test_zone_that_was_cut_while_its_link_was_broken_is_followed(come: int) -> None:
    """Also where the node had come to the very place of the cut, and had never been elsewhere."""
    bench = bench_of()
    client = subscribed(bench, "a/x")
    root_says(bench, 1, come)
    before = everything(client)
    bench.lose("")
    in_journal(bench, A, "child", 1, 4)
    bench.edge.zones.add(cut("a"))
    bench.edge.on_owner(bench.route("a"), 1, LogPosition(ROOT, come))
    bench.online("a", offset=4)
    bench.online("", "a", offset=come)
    position = bench.route("a").began

    assert StreamPosition(epoch=1, offset=0) == position
    assert told("root", 1, come) == before


@pytest.mark.parametrize("is_noted", [True, False])
@pytest.mark.parametrize("is_here", [True, False])
def test_root_that_lost_its_disk_while_the_node_was_down_is_followed(
    is_here: bool, is_noted: bool
) -> None:
    """Its new epoch has nothing before it, and is the session's from its first record on."""
    bench = bench_of()
    client = subscribed(bench, "a/x")
    root_says(bench, 1, 3)
    assert told("root", 1, 3) == everything(client)
    client.leave()
    if is_noted:
        bench.edge.cursors.checkpoint()
    bench.settle()
    bench = bench.restart()
    in_journal(bench, JournalId("", 2), "new", 1, 4)
    bench.journals.missing[ROOT] = ReadFailure.GONE
    if is_here:
        client = Client(bench, "c", clean=False)
        assert [] == everything(client)
    bench.edge.on_owner(bench.route(""), 2, None)
    bench.online("", epoch=2, offset=4)
    if not is_here:
        client = Client(bench, "c", clean=False)

    assert told("new", 1, 4) == everything(client)


def test_zone_that_goes_back_is_read_to_its_end_first() -> None:
    """Before what its heir takes for it."""
    bench = bench_of("a")
    client = subscribed(bench, "a/x")
    client.leave()
    child_says(bench, 1, 3)
    bench.edge.cuts.on_zone_end(bench.route("a"), is_whole=True)
    root_says(bench, 1, 2)
    bench.journals.missing[A] = ReadFailure.UNREACHABLE
    client = Client(bench, "c", clean=False)
    before = everything(client)
    root_says(bench, 3, 3)
    del bench.journals.missing[A]
    bench.clock.advance(RETRY)

    assert ([], told("child", 1, 3) + told("root", 1, 3)) == (before, everything(client))


@pytest.mark.parametrize("is_here", [True, False])
def test_end_that_the_zone_could_not_say_itself(is_here: bool) -> None:
    """Its link broke before: what it had left is read from where it is kept."""
    bench = bench_of("a")
    client = subscribed(bench, "a/x")
    child_says(bench, 1, 2)
    assert told("child", 1, 2) == client.got()
    if not is_here:
        client.leave()
    bench.lose("a")
    in_journal(bench, A, "child", 3, 5)
    bench.journals.closed.add(A)
    bench.come_back("a")
    root_says(bench, 1, 2)
    if not is_here:
        client = Client(bench, "c", clean=False)

    assert told("child", 3, 5) + told("root", 1, 2) == everything(client)
    assert {} == client.session.places.behind


def test_zone_that_is_served_anew_is_read_from_where_the_earlier_part_ends() -> None:
    """The link was away while the zone changed hands."""
    bench = bench_of("a")
    client = subscribed(bench, "a/x")
    child_says(bench, 1, 2)
    assert told("child", 1, 2) == client.got()
    bench.lose("a")
    in_journal(bench, A, "child", 3, 4)
    bench.journals.closed.add(A)
    bench.edge.on_owner(bench.route("a"), 2, None)
    bench.online("a", epoch=2, offset=0)
    child_says(bench, 1, 2, epoch=2)

    assert [*told("child", 3, 4), "child 1'", "child 2'"] == everything(client)
    assert {} == client.session.places.behind


def test_zone_that_came_back_and_went_out_again_meanwhile_is_read_in_that_order() -> None:
    """The child's end, what the parent had of it, and only then the child again."""
    bench = bench_of("a")
    client = subscribed(bench, "#")
    root_says(bench, 1, 2)
    child_says(bench, 1, 3)
    before = everything(client)
    bench.lose("a")
    bench.lose("")
    in_journal(bench, A, "child", 4, 5)
    bench.journals.closed.add(A)
    in_journal(bench, ROOT, "root", 3, 4)
    in_journal(bench, JournalId("a", 3), "again", 1, 2)
    bench.edge.zones.add(attrs.evolve(cut("a"), epoch=3))
    bench.edge.on_owner(bench.route("a"), 3, LogPosition(ROOT, 4))
    bench.online("a", epoch=3, offset=2)
    first = everything(client)
    bench.online("", "a", offset=4)

    assert told("root", 1, 2) + told("child", 1, 3) == before
    assert told("child", 4, 5) + told("root", 3, 4) + told("again", 1, 2) == [
        *first,
        *everything(client),
    ]


@pytest.mark.parametrize("is_known", [True, False])
def test_part_that_ended_while_the_node_was_away_gates_its_heir(is_known: bool) -> None:
    """The owner above says from where on it has the zone: what is left of the part comes first."""
    bench = bench_of("a")
    client = subscribed(bench, "a/x")
    client.leave()
    child_says(bench, 1, 3)
    bench.edge.cursors.checkpoint()
    bench.settle()
    bench = bench.restart()
    bench.journals.closed.add(A)
    in_journal(bench, ROOT, "root", 1, 2)
    if not is_known:
        bench.edge.zones.remove(bench.route("a"))
    bench.edge.on_owner(bench.route(""), 1, None)
    bench.come_back("a", offset=0)
    bench.online("", offset=2)
    client = Client(bench, "c", clean=False)

    assert told("child", 1, 3) + told("root", 1, 2) == everything(client)
    assert {} == client.session.places.behind


def test_nothing_is_left_of_a_part_that_everybody_has() -> None:
    """Neither in sessions nor as a position: a later start does not look for it."""
    bench = bench_of("a")
    client = subscribed(bench, "a/x")
    child_says(bench, 1, 2)
    assert told("child", 1, 2) == client.got()
    bench.edge.cursors.checkpoint()
    bench.settle()
    bench.edge.cuts.on_zone_end(bench.route("a"), is_whole=True)
    bench.come_back("a")
    bench.edge.cursors.checkpoint()
    bench.settle()
    bench = bench.restart()

    session = bench.edge.clients.sessions["c"]
    assert A not in session.places.behind
    assert A not in bench.edge.cursors.followed


def test_a_crash_after_the_end_of_a_part_brings_nothing_again() -> None:
    """Where it goes on is not known yet, and how far it was followed was written a while before."""
    bench = bench_of("a")
    client = subscribed(bench, "a/x")
    child_says(bench, 1, 2)
    bench.edge.cursors.checkpoint()
    child_says(bench, 3, 5)
    assert told("child", 1, 5) == everything(client)
    bench.settle()
    bench.edge.cuts.on_zone_end(bench.route("a"), is_whole=True)
    bench.settle()
    bench = bench.restart()
    bench.journals.closed.add(A)
    client = Client(bench, "c", clean=False)

    assert [] == everything(client)


def test_ends_that_nobody_continues_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that announces and withdraws zones for ever fills neither memory nor disk."""
    monkeypatch.setattr(session_cursors, "ENDED", 2)
    bench = bench_of("a", "b", "c")
    for apex in ("a", "b", "c"):
        bench.deliver(apex, f"{apex}/x", "1")
    bench.edge.cursors.checkpoint()
    for apex in ("a", "b", "c"):
        bench.edge.cuts.on_zone_end(bench.route(apex), is_whole=True)
    bench.settle()
    bench.edge.cursors.check()

    followed = bench.restart().edge.cursors.followed
    assert {"b", "c"} == {part.zone for part in followed if part.zone}


def cut_off(bench: EdgeBench) -> Client:
    """A session here that had taken two of `a` when its owner died, and its zone was reclaimed."""
    client = subscribed(bench, "a/x")
    child_says(bench, 1, 2)
    assert told("child", 1, 2) == client.got()
    in_journal(bench, A, "child", 3, 5)
    bench.journals.missing[A] = ReadFailure.CUT_OFF
    bench.lose("a")
    bench.come_back("a")
    root_says(bench, 1, 2)
    return client


def look_again(bench: EdgeBench) -> None:
    """As is done now and then."""
    bench.edge.backlog.poll_cut_off(bench.edge.clients.sessions.values())
    bench.settle()


@pytest.mark.parametrize("is_restarted", [False, True])
def test_part_that_was_cut_off_is_read_when_it_is_back(is_restarted: bool) -> None:
    """From where the session was, and nobody waits for it meanwhile."""
    bench = bench_of("a")
    client = cut_off(bench)
    before = everything(client)
    look_again(bench)
    needed = min(place.offset for place in client.session.needs() if place.part == A)
    if is_restarted:
        client.leave()
        bench.edge.cursors.checkpoint()
        bench.settle()
        bench = bench.restart()
        bench.online("", offset=2)
        client = Client(bench, "c", clean=False)
    nothing = everything(client)
    del bench.journals.missing[A]
    bench.journals.closed.add(A)
    look_again(bench)

    assert (told("root", 1, 2), 2, []) == (before, needed, nothing)
    assert told("child", 3, 5) == everything(client)
    assert ({}, {}) == (client.session.places.behind, client.session.places.cut_off)


def test_part_that_was_cut_off_and_is_live_again_is_read_first() -> None:
    """Its node lives after all: nothing is passed over, and nothing that came live comes again."""
    bench = bench_of("a")
    client = cut_off(bench)
    everything(client)
    del bench.journals.missing[A]
    bench.edge.cuts.on_forgotten_cut(bench.route(""), cut("a", 1))
    bench.edge.on_owner(bench.route("a"), 1, None)
    bench.route("a").begin_part(1)
    bench.route("a").reach(5)
    child_says(bench, 6, 7)  # its link brings it up to date first
    bench.online("a", offset=7)
    found = everything(client)
    look_again(bench)

    assert told("child", 3, 7) == found + everything(client)
    assert {} == client.session.places.cut_off


def test_part_that_was_cut_off_and_dropped_is_forgotten() -> None:
    """Nobody looks for it again."""
    bench = bench_of("a")
    client = cut_off(bench)
    assert told("root", 1, 2) == everything(client)
    bench.journals.missing[A] = ReadFailure.UNREACHABLE
    look_again(bench)
    assert {A: 2} == client.session.places.cut_off
    bench.journals.missing[A] = ReadFailure.GONE
    look_again(bench)

    assert ([], {}, {}) == (
        everything(client),
        client.session.places.behind,
        client.session.places.cut_off,
    )


def test_part_that_was_read_to_its_end_is_not_read_again_after_a_restart() -> None:
    """Nothing of it is left, though it is still kept somewhere."""
    bench = bench_of("a")
    client = subscribed(bench, "a/x")
    client.leave()
    child_says(bench, 1, 3)
    bench.edge.cuts.on_zone_end(bench.route("a"), is_whole=True)
    bench.journals.closed.add(A)
    client = Client(bench, "c", clean=False)
    assert told("child", 1, 3) == everything(client)
    client.leave()
    bench.edge.cursors.checkpoint()
    bench.settle()
    bench = bench.restart()
    bench.online("")
    client = Client(bench, "c", clean=False)

    assert [] == everything(client)


def test_session_is_not_current_where_something_is_to_be_taken_first() -> None:
    """It stands where its node's stream is, and what comes live must not pass what it waits for."""
    bench = bench_of("a")
    client = subscribed(bench, "#")
    root_says(bench, 1, 2)
    child_says(bench, 1, 2)
    assert told("root", 1, 2) + told("child", 1, 2) == everything(client)
    bench.lose("a")
    bench.journals.missing[A] = ReadFailure.UNREACHABLE
    in_journal(bench, A, "child", 3, 4)
    bench.route("a").end_part(1)
    client.session.places.add(Cursor(A, 2))
    client.session.places.add(Cursor(ROOT, 2, stops=(LogPosition(A, 4),)))
    bench.edge.cursors.wake()
    bench.settle()
    root_says(bench, 3, 6)
    bench.clock.advance(RETRY)
    before = everything(client)
    del bench.journals.missing[A]
    bench.journals.closed.add(A)
    bench.clock.advance(RETRY)

    assert told("root", 3, 4) == before
    assert told("child", 3, 4) + told("root", 5, 6) == everything(client)
