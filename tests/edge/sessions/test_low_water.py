"""What owners are told to keep, and when an edge may count on it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count

import pytest

from tests.edge.sessions.test_catch_up_after_moves import bench_of, say, subscribed
from tests.support.edge_bench import Client, EdgeBench
from tests.support.keeping import MemoryTable
from tests.support.recorders import cut
from txbroker.edge.sessions import low_water
from txbroker.edge.sessions.low_water import AGAIN, UNCONFIRMED
from txbroker.edge.sessions.session_connect import PublishBarrier
from txbroker.edge.sessions.session_transfer import SessionTransfer
from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.session import Session

ROOT, A, OLD = JournalId("", 1), JournalId("a", 1), JournalId("a", 0)


def look(bench: EdgeBench) -> dict[str, dict[JournalId, int]]:
    """A second passes: what owners are told, by zone."""
    bench.clock.advance(1.0)
    bench.edge.cursors.checkpoint()
    bench.take()
    bench.edge.low_water.send_marks()
    bench.settle()
    return {event[0]: event[2] for event in bench.take() if event[1] == "keep"}


def away(bench: EdgeBench, topic: str, through: int) -> Client:
    """A client that left after the first message of the topic; more came since."""
    client = subscribed(bench, topic)
    other = subscribed(bench, topic, name="other")
    say(bench, 1, 1, topic)
    client.got()
    client.leave()
    say(bench, 2, through, topic)
    other.got()
    return client


def test_marks_that_did_not_change_are_told_once() -> None:
    """Again where no answer came; and at once to an owner that is connected anew."""
    bench = EdgeBench()
    port = bench.online("")
    away(bench, "x", 5)
    first = look(bench)
    waiting = look(bench)
    bench.clock.advance(AGAIN)
    again = look(bench)
    port.kept()
    bench.clock.advance(AGAIN)
    answered = look(bench)
    bench.lose("")
    bench.online("", offset=5)

    assert ({"": {ROOT: 1}}, {}) == (first, waiting)
    assert ({"": {ROOT: 1}}, {}) == (again, answered)
    assert {"": {ROOT: 1}} == look(bench)


def test_marks_are_counted_on_when_nothing_on_its_way_is_above() -> None:
    """What was told before a session came may arrive after what is confirmed."""
    bench = EdgeBench()
    port = bench.online("")
    low = bench.edge.low_water
    session = subscribed(bench, "x")
    say(bench, 1, 3)
    session.got()
    look(bench)
    port.kept()
    before = low.is_kept([LogPosition(ROOT, 3)]), low.is_kept([LogPosition(ROOT, 2)])
    say(bench, 4, 9)
    session.got()
    look(bench)
    on_its_way = low.is_kept([LogPosition(ROOT, 3)])
    low.lower([LogPosition(ROOT, 2)])
    low.wire(lambda: [LogPosition(ROOT, 2)])
    look(bench)
    unanswered = low.is_kept([LogPosition(ROOT, 2)])
    port.kept()

    assert (True, False) == before
    assert not on_its_way
    assert not unanswered
    assert low.is_kept([LogPosition(ROOT, 2)])
    bench.lose("")
    assert not low.is_kept([LogPosition(ROOT, 2)])


def test_owner_that_never_answers_costs_a_few_tellings() -> None:
    """It may have an older txbroker; nothing is counted on."""
    bench = bench_of()
    session = subscribed(bench, "x")
    for offset in range(1, 3 * UNCONFIRMED):
        say(bench, offset, offset)
        session.got()
        look(bench)

    (told,) = bench.edge.low_water._told.values()
    assert len(told.sent) <= UNCONFIRMED
    assert not bench.edge.low_water.is_kept([LogPosition(ROOT, 1)])


def test_part_of_an_earlier_epoch_is_asked_of_every_owner_above() -> None:
    """It goes up with its zone, once or several times, and its marks are to be there before."""
    bench = bench_of("a")
    low = bench.edge.low_water
    low.wire(lambda: [LogPosition(OLD, 4), LogPosition(A, 7)])
    told = look(bench)
    bench.route("a").port.kept()  # type: ignore[union-attr]
    at_child = low.is_kept([LogPosition(OLD, 4)]), low.is_kept([LogPosition(A, 7)])
    bench.route("").port.kept()  # type: ignore[union-attr]

    assert told["a"][OLD] == told[""][OLD] == 4
    assert told[""][A] <= 7
    assert (False, True) == at_child
    assert low.is_kept([LogPosition(OLD, 4)])


def test_owner_that_nothing_else_is_wanted_of_is_connected_for_its_marks() -> None:
    """It may have a part that a session reads on in."""
    bench = EdgeBench("a")
    bench.online("a")
    bench.edge.low_water.wire(lambda: [LogPosition(ROOT, 4)])
    bench.take()
    bench.edge.low_water.send_marks()
    bench.settle()
    needed = bench.route("").is_needed
    connected = ("connect", "") in bench.take()
    bench.edge.low_water.wire(tuple)
    look(bench)

    assert needed and connected
    assert not bench.route("")._has_marks


def test_places_of_a_session_that_left_are_kept_until_its_move_is_resolved() -> None:
    """By token: a session that has come and gone again is another move."""
    bench = bench_of()
    table = MemoryTable()
    transfer = SessionTransfer(bench.edge, PublishBarrier(), MemoryTable(), table)
    bench.edge.wire(transfer.keys, transfer.places)
    away(bench, "x", 5)
    transfer.freeze("c")
    transfer.release("c", b"one")
    before = look(bench)[""]
    transfer.resolved("c", b"other")
    kept = list(SessionTransfer(bench.edge, PublishBarrier(), MemoryTable(), table).places())
    transfer.resolved("c", b"one")

    assert {ROOT: 1} == before
    assert [LogPosition(ROOT, 1)] == kept
    assert {ROOT: 5} == look(bench)[""]
    assert not table.values


def test_session_that_comes_while_others_are_looked_at_counts_at_once() -> None:
    """What is being worked out began before it came."""
    bench = bench_of()
    away(bench, "x", 5)
    low = bench.edge.low_water
    bench.edge.cursors.checkpoint()
    low.send_marks()
    low.lower([LogPosition(ROOT, 0)])
    bench.take()
    bench.settle()
    told = [event[2] for event in bench.take() if event[1] == "keep"]

    assert [{ROOT: 0}] == told


def test_session_that_leaves_while_others_are_looked_at_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its turn has not come, and what sessions left behind was looked at before."""
    monkeypatch.setattr(low_water, "STEP", 1)
    monkeypatch.setattr(low_water, "LOOKED_AT", 1)
    bench = bench_of()
    subscribed(bench, "y", name="first")
    transfer = SessionTransfer(bench.edge, PublishBarrier(), MemoryTable(), MemoryTable())
    bench.edge.wire(transfer.keys, transfer.places)
    away(bench, "x", 5)
    bench.edge.cursors.checkpoint()
    bench.edge.low_water.send_marks()
    transfer.freeze("c")
    transfer.release("c", b"one")

    told = [look(bench) for _ in range(3)]

    assert [{"": {ROOT: 1}}] == [marks for marks in told if marks][:1]


def test_very_many_sessions_are_looked_at_in_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one turn they kept all clients waiting."""
    monkeypatch.setattr(low_water, "STEP", 1)
    bench = bench_of()
    for number in range(20):
        subscribed(bench, "x", name=f"c{number}")
    looked: list[Session] = []
    needs = Session.needs

    def look_at(session: Session) -> Iterator[LogPosition]:
        looked.append(session)
        return needs(session)

    monkeypatch.setattr(Session, "needs", look_at)
    monkeypatch.setattr(bench.edge.slices, "_now", partial(next, count()))
    bench.edge.low_water.send_marks()
    at_once = len(looked)
    bench.edge.low_water.send_marks()  # the next second has come
    bench.settle()

    assert (at_once, len(looked)) == (1, 20)


def test_move_is_resolved_when_the_owners_keep_what_the_session_needs() -> None:
    """It came while marks were worked out: these must not be told as they were, nor counted on."""
    before = bench_of()
    away(before, "x", 5)
    state = SessionTransfer(before.edge, PublishBarrier(), MemoryTable(), MemoryTable()).freeze("c")
    assert state is not None
    bench = bench_of()
    transfer = SessionTransfer(bench.edge, PublishBarrier(), MemoryTable(), MemoryTable())
    other = subscribed(bench, "x", name="other")
    say(bench, 1, 5)
    other.got()
    port = bench.route("").port
    bench.edge.cursors.checkpoint()
    bench.take()
    bench.edge.low_water.send_marks()
    transfer.adopt("c", state, 2)
    bench.settle()
    told = [event[2] for event in bench.take() if event[1] == "keep"]
    bench.answer("", "x")
    unanswered = transfer.is_resolved("c", "before")
    port.kept()  # type: ignore[union-attr]

    assert [{ROOT: 1}] == told
    assert not unanswered
    assert transfer.is_resolved("c", "before")


def test_session_that_moved_here_is_owed_a_zone_that_its_earlier_node_did_not_know() -> None:
    """It reads the zone's part from the beginning, far behind what the marks let go of."""
    before = bench_of()
    subscribed(before, "#").leave()
    state = SessionTransfer(before.edge, PublishBarrier(), MemoryTable(), MemoryTable()).freeze("c")
    assert state is not None
    bench = bench_of("a")
    transfer = SessionTransfer(bench.edge, PublishBarrier(), MemoryTable(), MemoryTable())
    other = subscribed(bench, "#", name="other")
    say(bench, 1, 5, "a/x")
    other.got()
    earlier = look(bench)["a"]
    transfer.adopt("c", state, 2)
    for apex in ("", "a"):
        bench.answer(apex, "#")
    bench.edge.low_water.check()

    assert (5, 0) == (earlier[A], look(bench)["a"][A])


def test_places_of_a_session_that_left_go_on_where_a_zone_was_cut_since() -> None:
    """Its new node may not have heard of the cut, and this one claims what waits there."""
    bench = bench_of()
    transfer = SessionTransfer(bench.edge, PublishBarrier(), MemoryTable(), MemoryTable())
    bench.edge.wire(transfer.keys, transfer.places)
    other = subscribed(bench, "a/x", name="other")
    subscribed(bench, "a/x").leave()
    transfer.freeze("c")
    transfer.release("c", b"one")
    left = LogPosition(ROOT, 0)
    bench.edge.cuts.on_cut(bench.route(""), cut("a"))
    passage = EpochTransition(apex="a", left=left, entered=LogPosition(A, 0))
    bench.edge.on_owner(bench.route("a"), 1, left, [passage])
    bench.online("a")
    bench.edge.on_claimed(bench.route("a"), ["a"], lambda: None)
    say(bench, 1, 5, "a/x")
    other.got()

    assert 0 == look(bench)["a"][A]
    transfer.resolved("c", b"one")
    assert 5 == look(bench)["a"][A]
