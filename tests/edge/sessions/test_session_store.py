"""What of sessions is durable, when, and what a process that starts makes of it."""

from __future__ import annotations

import pytest

from tests.edge.sessions.test_catch_up_after_moves import (
    bench_of,
    everything,
    numbers,
    say,
    subscribed,
)
from tests.support.clock import Clock
from tests.support.connects import connect
from tests.support.edge_bench import Client, EdgeBench
from tests.support.keeping import WALL
from txbroker.edge.routing.edge_limits import EdgeLimits
from txbroker.model.log_position import JournalId
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.window import SessionLimits
from txbroker.mqtt.wire.packets import Connect, Publish, Suback, Unsuback

ROOT = JournalId("", 1)


def rows(bench: EdgeBench) -> tuple[int, int, int]:
    """How many sessions, windows and messages by number are stored."""
    commit = bench.commit
    return len(commit.sessions.values), len(commit.windows.values), len(commit.messages.values)


# -- what waits for the disk


def test_durable_session_is_safe_before_its_connack() -> None:
    """A session that exists needs nothing; a clean one waits for nothing."""
    bench = EdgeBench()
    accepted: list[tuple[str, bool]] = []

    def come(name: str, *, clean: bool) -> None:
        def accept(session: Session, present: bool) -> None:
            accepted.append((name, present))

        connect(bench.edge, Connect(client_id=name, clean_session=clean), accept)

    come("durable", clean=False)
    come("clean", clean=True)
    before = accepted[:]
    bench.commit.commit()

    assert [("clean", False)] == before
    assert [("clean", False), ("durable", False)] == accepted
    assert {b"durable"} == set(bench.commit.durable(bench.commit.sessions))


def test_subscriptions_are_safe_before_they_are_acknowledged() -> None:
    """SUBACK and UNSUBACK; those of a clean session leave at once."""
    bench = bench_of()
    durable, clean = Client(bench, "durable", clean=False), Client(bench, "clean")
    for client in (durable, clean):
        client.subscribe("x")
    for _ in range(2):
        bench.answer("", "x")
    before = (durable.events[:], clean.events[:])
    bench.commit.write()
    written = durable.events[:]
    bench.commit.sync()
    after = durable.events[:]
    for client in (durable, clean):
        client.events.clear()
        client.unsubscribe("x")

    assert (([], [Suback(1, (1,))]), [], [Suback(1, (1,))]) == (before, written, after)
    assert ([], [Unsuback(2)]) == (durable.events, clean.events)
    bench.commit.commit()
    assert [Unsuback(2)] == durable.events


def test_publish_leaves_after_the_commit_that_has_its_flow() -> None:
    """What is put between the write and the sync waits for the next one."""
    bench = bench_of()
    client = subscribed(bench, "x")
    say(bench, 1, 1)
    bench.commit.write()
    say(bench, 2, 2)
    before = client.events[:]
    bench.commit.sync()
    first = client.events[:]
    bench.commit.commit()

    assert ([], [Publish("x", b"1", 1, False, False, 1)]) == (before, first)
    assert [b"1", b"2"] == [p.payload for p in client.events if isinstance(p, Publish)]


def test_one_commit_serves_all_that_arrived_meanwhile() -> None:
    """A session is written once for it, however often it changed."""
    bench = bench_of(inflight=50)
    client = subscribed(bench, "x")
    puts = bench.commit.windows.puts
    say(bench, 1, 50)
    bench.commit.commit()

    assert 50 == len(client.events)
    assert puts + 1 == bench.commit.windows.puts


# -- what cannot be read again


def test_retained_messages_for_a_client_that_has_just_left_are_kept() -> None:
    """Over a crash; each by itself, and gone when it was acknowledged."""
    bench = bench_of(inflight=1)
    client = Client(bench, "c", clean=False)
    client.subscribe("#")
    bench.commit.commit()
    client.leave()
    bench.answer("", "#", *(f"t{number}=r{number}" for number in range(3)))
    bench.settle()
    kept = rows(bench)
    bench = bench.restart()
    bench.online("")
    client = Client(bench, "c", clean=False)

    assert (1, 1, 3) == kept
    assert ["r:r0", "r:r1", "r:r2"] == everything(client)
    bench.edge.cursors.checkpoint()
    assert (1, 1, 0) == rows(bench)


def test_retained_messages_come_before_the_live_ones_behind_them() -> None:
    """Whatever was read or queued meanwhile: no stale value follows a newer one (rule 9)."""
    bench = bench_of(inflight=1)
    client = Client(bench, "c", clean=False)
    client.subscribe("x")
    bench.answer("", "x", "x=old", "x=older")
    bench.settle()
    say(bench, 1, 2)
    client.leave()
    say(bench, 3, 3)
    client = Client(bench, "c", clean=False)

    assert ["r:old", "r:older", "1", "2", "3"] == everything(client)


def test_what_waits_and_cannot_be_read_again_is_bounded_by_the_limits() -> None:
    """The oldest go, counted, on the disk as well."""
    bench = bench_of(messages=5)
    client = Client(bench, "c", clean=False)
    client.subscribe("#")
    client.leave()
    bench.answer("", "#", *(f"t{number}=r{number}" for number in range(8)))
    bench.settle()

    assert (3, (1, 1, 5)) == (client.session.sender.dropped, rows(bench))
    client = Client(bench, "c", clean=False)
    assert ["r:r3", "r:r4", "r:r5", "r:r6", "r:r7"] == everything(client)


def test_writing_does_not_grow_with_what_waits() -> None:
    """Each acknowledgement writes what changed, not all the retained messages behind it."""
    bench = bench_of(inflight=1)
    client = Client(bench, "c", clean=False)
    client.subscribe("#")
    bench.answer("", "#", *(f"topic/{number}=value" for number in range(500)))
    bench.settle()
    client.session.sender.on_pubacks((1,))
    bench.settle()

    assert len(bench.commit.windows.values[b"c"]) < 100


# -- a process that starts


def test_session_that_was_current_goes_on_where_it_was() -> None:
    """As far as the checkpoint says, or what it had taken since."""
    bench = bench_of()
    client = subscribed(bench, "x", qos=2)
    say(bench, 1, 2)
    assert numbers(1, 2) == [p for p in everything(client) if p != "Pubrel"]
    bench.edge.cursors.checkpoint()
    say(bench, 3, 4)
    bench.settle()
    bench = bench.restart()
    bench.online("", offset=4)
    client = Client(bench, "c", clean=False)

    assert numbers(3, 4) == everything(client)
    assert client.present


def test_second_crash_before_the_client_is_back_loses_nothing() -> None:
    """The positions go on with those that are here; it has stayed behind."""
    bench = bench_of()
    subscribed(bench, "x")
    bench.edge.cursors.checkpoint()
    bench.settle()
    bench = bench.restart()
    bench.settle()
    bench.online("", offset=0)
    subscribed(bench, "x", name="other")
    say(bench, 1, 5)
    bench.edge.cursors.checkpoint()
    bench.settle()
    bench = bench.restart()
    bench.online("", offset=5)
    client = Client(bench, "c", clean=False)

    assert numbers(1, 5) == everything(client)


def test_crash_right_after_the_suback_loses_nothing() -> None:
    """No checkpoint has been written yet: the subscription knows where it began."""
    bench = bench_of("a")
    say(bench, 1, 3, "a/x")
    subscribed(bench, "a/x")
    say(bench, 4, 6, "a/x")
    bench = bench.restart()
    bench.online("", "a")
    bench.online("a", offset=6)
    client = Client(bench, "c", clean=False)

    assert numbers(4, 6) == everything(client)


def test_queue_behind_a_full_window_survives() -> None:
    """It is read again from the journal, once."""
    bench = bench_of(inflight=1)
    client = subscribed(bench, "x", qos=1)
    say(bench, 1, 5)
    bench.settle()
    bench.edge.cursors.checkpoint()
    bench.settle()
    bench = bench.restart()
    bench.online("", offset=5)
    client = Client(bench, "c", clean=False)

    assert numbers(1, 5) == everything(client)


def test_zone_that_had_not_confirmed_is_asked_again() -> None:
    """And only that; what the others sent meanwhile comes."""
    bench = EdgeBench("a")
    bench.online("", "a")
    client = Client(bench, "c", clean=False)
    client.subscribe("#")
    bench.answer("", "#")
    bench.clock.advance(2.0)
    assert ["Suback"] == client.got()
    say(bench, 1, 2)
    bench = bench.restart()
    bench.take()
    bench.online("", "a", offset=2)
    say(bench, 3, 3)
    client = Client(bench, "c", clean=False)
    first = everything(client)
    bench.online("a", offset=7)
    asked = [event[:3] for event in bench.take() if event[1] == "add"]
    bench.answer("a", "#", "a/x=retained")
    say(bench, 8, 8, "a/x")

    assert (numbers(1, 3), [("a", "add", "#")]) == (first, asked)
    assert ["r:retained", "8"] == everything(client)


def test_late_confirmation_is_durable() -> None:
    """Of a client that is away, too: it misses nothing after it."""
    bench = EdgeBench("a")
    bench.online("", "a")
    client = Client(bench, "c", clean=False)
    client.subscribe("a/x")
    bench.clock.advance(2.0)
    assert ["Suback"] == client.got()
    client.leave()
    bench.online("a", offset=4)
    bench.answer("a", "a/x")
    bench.settle()
    say(bench, 5, 6, "a/x")
    bench = bench.restart()
    bench.online("", "a")
    bench.online("a", offset=6)
    client = Client(bench, "c", clean=False)

    assert numbers(5, 6) == everything(client)


@pytest.mark.parametrize("is_kept", [False, True])
def test_crash_before_a_client_that_left_is_written_loses_nothing(is_kept: bool) -> None:
    """What it has is known from what was written while it was here; it is away since the crash."""
    bench = bench_of()
    client = subscribed(bench, "x")
    say(bench, 1, 3, qos=2)
    assert numbers(1, 3) == client.got()
    bench.clock.advance(40.0)
    bench.edge.cursors.checkpoint()
    bench.settle()
    client.leave()
    if is_kept:
        bench.edge.cursors.checkpoint()
        bench.settle()
    bench.clock.advance(5.0)
    say(bench, 4, 5)
    bench = bench.restart()
    (session,) = bench.edge.clients.sessions.values()
    bench.online("", offset=5)

    assert session.away_since == pytest.approx(40.0 if is_kept else 45.0)
    assert numbers(4, 5) == everything(Client(bench, "c", clean=False))


@pytest.mark.parametrize(
    ("written_after", "passed", "away"), [(0, 60, 60), (30, 60, 90), (30, 0, 30), (0, -20, 0)]
)
def test_client_is_away_by_lived_time_since_it_left(
    written_after: int, passed: int, away: int
) -> None:
    """
    Each process has another monotonic clock, and the machine may have been off for weeks.

    `written_after`: seconds from its leave to the write; `passed`: lived seconds from there to the
    start. A node that was killed may start behind its last reading.
    """
    bench = bench_of()
    client = subscribed(bench, "x")
    bench.clock.advance(500.0)
    client.leave()
    bench.clock.advance(written_after)
    bench.edge.cursors.checkpoint()
    bench.settle()
    stored = bench.commit.crash()
    lived = WALL + int((bench.clock.now() + passed) * 1e6)
    session_store = stored.keeper(Clock(), lived=lambda: lived)
    (session,) = session_store.load(bench.edge.clients.new_session)

    assert session.away_since == pytest.approx(-away)


def test_a_client_that_left_before_its_session_was_durable_is_away() -> None:
    """Such sessions were never too old."""
    age = 100.0
    bench = EdgeBench(limits=EdgeLimits(session=SessionLimits(), session_age=age))
    packet = Connect(client_id="c", clean_session=False)
    connect(bench.edge, packet, lambda session, present: None)
    bench.settle()
    bench.clock.advance(age - 1)
    bench.edge.clients.expire_sessions()
    assert {"c"} == set(bench.edge.clients.sessions)

    bench.clock.advance(2)
    bench.edge.clients.expire_sessions()
    assert {} == bench.edge.clients.sessions


def test_session_whose_client_waits_for_the_disk_is_not_away() -> None:
    """It came in time."""
    age = 100.0
    bench = EdgeBench(limits=EdgeLimits(session=SessionLimits(), session_age=age))
    packet = Connect(client_id="c", clean_session=False)
    found: list[bool] = []
    connect(bench.edge, packet, lambda session, present: None)
    bench.settle()
    bench.clock.advance(age - 1)
    connect(bench.edge, packet, lambda session, present: found.append(present))
    bench.clock.advance(2)
    bench.edge.clients.expire_sessions()
    bench.settle()

    assert [True] == found
    assert {"c"} == set(bench.edge.clients.sessions)


def test_the_end_of_a_kept_session_is_durable_before_the_clean_one_is_told() -> None:
    """Or it would be back after a crash [MQTT-3.1.2-6]."""
    bench = EdgeBench()
    Client(bench, "c", clean=False).leave()
    bench.settle()
    told: list[bool] = []
    packet = Connect(client_id="c", clean_session=True)
    connect(bench.edge, packet, lambda session, present: told.append(present))

    assert [] == told
    assert {"c"} == set(bench.restart().edge.clients.sessions)
    bench.settle()
    assert [False] == told
    assert {} == bench.restart().edge.clients.sessions


def test_time_away_is_counted_from_when_the_client_left() -> None:
    """Not from an earlier time, nor while it is here; also over a start."""
    age = 100.0
    bench = EdgeBench(limits=EdgeLimits(session=SessionLimits(), session_age=age))
    client = Client(bench, "c", clean=False)
    client.leave()
    bench.settle()
    bench.clock.advance(age - 1)
    client = Client(bench, "c", clean=False)
    bench.settle()
    bench.clock.advance(age)
    bench.edge.clients.expire_sessions()
    bench = bench.restart()
    bench.edge.clients.expire_sessions()
    assert {"c"} == set(bench.edge.clients.sessions)

    bench.clock.advance(age + 1)
    bench.edge.clients.expire_sessions()
    assert {} == bench.edge.clients.sessions
    bench.settle()
    assert (0, 0, 0) == rows(bench)


@pytest.mark.parametrize("is_answered", [False, True])
def test_session_that_ends_leaves_nothing(is_answered: bool) -> None:
    """Whatever was on its way for it."""
    bench = bench_of()
    client = subscribed(bench, "x")
    say(bench, 1, 3)
    client.subscribe("#")
    if is_answered:
        bench.answer("", "#", "y=retained")
    client.leave()
    Client(bench, "c")
    bench.settle()
    if not is_answered:
        bench.clock.advance(5)
        bench.settle()

    assert (0, 0, 0) == rows(bench)


def test_sessions_that_ended_are_not_fed() -> None:
    """A chunk that comes late finds nobody."""
    bench = bench_of()
    client = subscribed(bench, "x")
    client.leave()
    say(bench, 1, 3)
    bench.journals.late = True
    client = Client(bench, "c", clean=False)
    bench.edge.clients.delete("c")
    bench.journals.answer(9)
    bench.settle()

    assert ["close"] == client.events
    assert (0, 0, 0) == rows(bench)


# -- what journals have to keep


def test_owners_are_told_what_sessions_need() -> None:
    """The lowest cursor, or what is in flight and may have to be read again."""
    bench = bench_of("a", inflight=2)
    here, away = subscribed(bench, "#"), subscribed(bench, "a/x", name="away")
    say(bench, 1, 2, "a/x")
    assert numbers(1, 2) == here.got()
    away.got()
    away.leave()
    say(bench, 3, 5, "a/x")
    say(bench, 1, 5)
    here.session.sender.on_pubacks((3,))
    bench.settle()
    bench.edge.cursors.checkpoint()
    bench.take()
    bench.edge.low_water.send_marks()
    bench.settle()
    told = {event[0]: event[2] for event in bench.take() if event[1] == "keep"}

    assert {JournalId("a", 1): 2} == told["a"]
    assert 2 == told[""][JournalId("a", 1)], "the zone may come back to the root at any time"
    assert told[""][ROOT] < 5


def test_message_in_flight_is_kept_by_its_owner() -> None:
    """Until the client has acknowledged it."""
    bench = bench_of()
    client = subscribed(bench, "x")
    say(bench, 1, 4)
    bench.settle()
    for packet_id in (1, 2, 4):
        client.session.sender.on_pubacks((packet_id,))
    bench.edge.cursors.checkpoint()
    bench.take()
    bench.edge.low_water.send_marks()
    bench.settle()

    assert [("", "keep", {ROOT: 2})] == bench.take()


# -- parts that have ended


@pytest.mark.parametrize("is_away", [False, True])
def test_part_that_has_ended_is_not_begun_again_after_a_crash(is_away: bool) -> None:
    """Neither by an old position of the node, nor by where a subscription began."""
    bench = bench_of("a")
    client = subscribed(bench, "a/x")
    bench.edge.cursors.checkpoint()
    bench.settle()
    if is_away:
        client.leave()
    for offset in (1, 2):
        bench.deliver("a", "a/x", str(offset), offset)
    bench.settle()
    bench.edge.cuts.on_zone_end(bench.route("a"), is_whole=True)
    bench.come_back("a")
    if is_away:
        client = Client(bench, "c", clean=False)
    before = everything(client)
    bench.settle()
    bench = bench.restart()

    assert ["1", "2"] == before
    assert JournalId("a", 1) not in bench.edge.clients.sessions["c"].places.behind


@pytest.mark.parametrize("is_heard", [False, True])
def test_part_that_was_read_to_its_end_is_not_read_again(is_heard: bool) -> None:
    """Whether the node has heard of that end, or not yet, when it crashes a second time."""
    part = JournalId("a", 1)
    bench = bench_of("a")
    client = subscribed(bench, "a/x")
    bench.edge.cursors.checkpoint()
    bench.settle()
    for offset in (1, 2):
        bench.deliver("a", "a/x", str(offset), offset)
    bench.settle()
    before = everything(client)
    bench.journals.closed.add(part)
    bench = bench.restart()
    if is_heard:
        bench.online("")
    everything(Client(bench, "c", clean=False))
    bench.settle()
    bench = bench.restart()
    client = Client(bench, "c", clean=False)
    bench.settle()
    new = [each for each in client.events if isinstance(each, Publish) and not each.dup]

    assert (["1", "2"], []) == (before, new)
