"""Sessions that are behind: what they get when they can take it, in which order, how often."""

from __future__ import annotations

import pytest

from tests.support.edge_bench import Client, EdgeBench
from txbroker.edge.routing.edge_limits import EdgeLimits
from txbroker.edge.sessions.journal_read_cache import RETRY, ReadFailure
from txbroker.model.log_position import JournalId
from txbroker.mqtt.session import window
from txbroker.mqtt.session.cursor import Cursor, Subscription
from txbroker.mqtt.session.window import SessionLimits
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import Publish, Pubrel

ROOT, A = JournalId("", 1), JournalId("a", 1)


def bench_of(*apexes: str, **limits: int) -> EdgeBench:
    """An edge whose zones are online."""
    bench = EdgeBench(*apexes, limits=EdgeLimits(session=SessionLimits(**limits)))
    bench.online("", *apexes)
    for apex in apexes:
        bench.online(apex)
    return bench


def subscribed(
    bench: EdgeBench, *filters: str, name: str = "c", qos: int = 1, clean: bool = False
) -> Client:
    """A client whose subscriptions all zones have confirmed."""
    client = Client(bench, name, clean=clean)
    client.subscribe(*filters, qos=qos)
    for topic_filter in filters:
        for route in bench.edge.zones.cover(topic_filter):
            bench.answer(route.apex, topic_filter)
    assert ["Suback"] == client.got()
    return client


def everything(client: Client) -> list[str]:
    """All that comes, as long as it is acknowledged."""
    told: list[str] = []
    while more := client.got():
        told += more
    return told


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last + 1)]


def say(bench: EdgeBench, first: int, last: int, topic: str = "x", qos: int = 1) -> None:
    """Live messages that say their offsets."""
    apex = topic.partition("/")[0] if "/" in topic else ""
    for offset in range(first, last + 1):
        bench.deliver(apex, topic, str(offset), offset, qos)


# -- away


def test_session_that_is_away_costs_a_position_for_each_zone() -> None:
    """However much there is for it, and nothing is written for it."""
    bench = bench_of("a", "b")
    client = subscribed(bench, "#", "x")
    client.leave()
    bench.settle()
    puts = bench.commit.windows.puts
    say(bench, 1, 500)
    say(bench, 1, 500, "a/x")
    bench.settle()

    session = client.session
    assert {("", 0), ("a", 0), ("b", 0)} == {
        (p.zone, c.offset) for p, c in session.places.behind.items()
    }
    assert (None, puts) == (session.sender.window, bench.commit.windows.puts)
    assert [] == bench.journals.reads


def test_what_came_meanwhile_comes_in_order_before_what_is_live() -> None:
    """Also while reads take their time."""
    bench = bench_of()
    client = subscribed(bench, "x", qos=2)
    client.leave()
    say(bench, 1, 3)
    say(bench, 4, 6, qos=2)
    bench.journals.late = True
    client = Client(bench, "c", clean=False)
    say(bench, 7, 8)
    before = client.got()
    bench.journals.answer()
    bench.settle()
    say(bench, 9, 9)
    bench.journals.late = False
    bench.journals.answer()

    assert ([], numbers(1, 9)) == (before, everything(client))


def test_overlapping_subscriptions_give_one_copy_with_the_higher_qos() -> None:
    """[MQTT-3.3.5-1] also from the journal; QoS 0 is not queued."""
    bench = bench_of()
    client = subscribed(bench, "x", qos=1)
    client.subscribe("#", qos=2)
    bench.answer("", "#")
    client.subscribe("+", qos=0)
    bench.answer("", "+")
    client.got()
    client.leave()
    bench.deliver("", "x", "1", 1, 2)
    bench.deliver("", "x", "2", 2, 1)
    bench.deliver("", "x", "none", 3, 0)
    client = Client(bench, "c", clean=False)
    bench.settle()

    sent = [packet for packet in client.events if isinstance(packet, Publish)]
    assert [(b"1", 2), (b"2", 1)] == [(packet.payload, packet.qos) for packet in sent]


def test_client_that_does_not_keep_up_reads_on_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Window and queue are full, the rest waits in the journal: nothing is lost, or comes twice."""
    monkeypatch.setattr(window, "QUEUE_MESSAGES", 4)
    bench = bench_of(inflight=2)
    client = subscribed(bench, "x")
    say(bench, 1, 20)
    assert client.session.sender.queued == 4
    assert [6] == [cursor.offset for cursor in client.session.places.behind.values()]

    assert numbers(1, 20) == everything(client)
    assert {} == client.session.places.behind
    say(bench, 21, 21)
    assert ["21"] == client.got()


def test_clean_session_reads_on_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a cursor that nobody keeps."""
    monkeypatch.setattr(window, "QUEUE_MESSAGES", 4)
    bench = bench_of(inflight=2)
    client = subscribed(bench, "x", clean=True)
    say(bench, 1, 20)

    assert numbers(1, 20) == everything(client)
    assert {} == bench.commit.windows.values


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_chunks_that_are_cut_short_go_on_where_they_ended(limit: int) -> None:
    """By their size, or at a border."""
    bench = bench_of()
    bench.journals.limit = limit
    client = subscribed(bench, "x")
    client.leave()
    say(bench, 1, 10)
    client = Client(bench, "c", clean=False)

    assert numbers(1, 10) == everything(client)


def test_journal_may_be_ahead_of_what_is_live() -> None:
    """What was read there does not come a second time, also when the client leaves in between."""
    bench = bench_of()
    client = subscribed(bench, "x", qos=2)
    client.leave()
    say(bench, 1, 3)
    position = bench.route("").position
    say(bench, 4, 6)
    bench.route("")._position = position  # the link is slower than the journal
    client = Client(bench, "c", clean=False)
    first = everything(client)
    client.leave()
    client = Client(bench, "c", clean=False)
    second = everything(client)
    bench.journals.parts[ROOT] = bench.journals.parts[ROOT][:3]
    say(bench, 4, 7)

    assert (numbers(1, 6), []) == (first, second)
    assert ["7"] == everything(client)


def test_sessions_share_what_is_read() -> None:
    """A hundred of them cost what one does."""
    bench = bench_of()
    clients = [subscribed(bench, "x", name=f"c{number}") for number in range(100)]
    for client in clients:
        client.leave()
    say(bench, 1, 100)
    clients = [Client(bench, client.session.client_id, clean=False) for client in clients]

    assert all(numbers(1, 100) == everything(client) for client in clients)
    assert len(bench.journals.reads) <= 2


# -- reads that fail


def test_read_that_fails_is_tried_again() -> None:
    """And holds back nobody else's messages."""
    bench = bench_of("a")
    client = subscribed(bench, "#")
    client.leave()
    say(bench, 1, 3)
    say(bench, 1, 3, "a/x")
    bench.journals.missing[A] = ReadFailure.UNREACHABLE
    client = Client(bench, "c", clean=False)
    at_first = everything(client)
    say(bench, 4, 4)
    say(bench, 4, 4, "a/x")
    meanwhile = everything(client)
    del bench.journals.missing[A]
    bench.clock.advance(RETRY)

    assert (numbers(1, 3), ["4"], numbers(1, 4)) == (at_first, meanwhile, everything(client))


def test_part_that_nobody_keeps_is_given_up() -> None:
    """Counted; what is live comes again."""
    bench = bench_of()
    client = subscribed(bench, "x")
    client.leave()
    say(bench, 1, 3)
    bench.journals.missing[ROOT] = ReadFailure.GONE
    client = Client(bench, "c", clean=False)
    before = everything(client)
    say(bench, 4, 4)

    assert ([], ["4"]) == (before, everything(client))
    assert 1 == bench.counters.get("session.part_gone")


def test_what_the_journal_has_no_more_is_counted() -> None:
    """The rest comes."""
    bench = bench_of()
    client = subscribed(bench, "x")
    client.leave()
    say(bench, 1, 10)
    bench.journals.trim(ROOT, 4)
    client = Client(bench, "c", clean=False)

    assert numbers(5, 10) == everything(client)
    assert 4 == bench.counters.get("session.missed")


# -- subscriptions that change meanwhile


def test_subscription_takes_nothing_from_before_it_was_confirmed() -> None:
    """Added by a client that has not caught up yet."""
    bench = bench_of(inflight=1)
    client = subscribed(bench, "x")
    client.leave()
    say(bench, 1, 2)
    say(bench, 3, 3, "a")
    client = Client(bench, "c", clean=False)
    client.subscribe("#")
    say(bench, 4, 4, "a")
    bench.answer("", "#")
    say(bench, 5, 5, "a")
    say(bench, 6, 6)

    told = everything(client)
    assert "Suback" in told
    assert ["1", "2", "5", "6"] == [each for each in told if each != "Suback"]


def test_subscription_that_is_given_up_takes_nothing_more() -> None:
    """What waits in the journal for it is not read for anybody [MQTT-3.10.4-2]."""
    bench = bench_of(inflight=1)
    client = subscribed(bench, "x", "y")
    client.leave()
    say(bench, 1, 2)
    say(bench, 3, 4, "y")
    bench.journals.late = True
    client = Client(bench, "c", clean=False)
    client.unsubscribe("x")
    bench.journals.late = False
    bench.journals.answer(9)

    assert ["Unsuback", "3", "4"] == everything(client)


# -- in flight when the client left


def test_what_came_since_does_not_pass_what_was_in_flight_and_cannot_be_read() -> None:
    """It came live, before the zone's node could be reached no more."""
    bench = bench_of("a")
    client = subscribed(bench, "#")
    say(bench, 1, 2)
    say(bench, 1, 2, "a/x")
    bench.settle()
    bench = bench.restart()
    bench.online("", "a", offset=2)
    bench.journals.late = True
    client = Client(bench, "c", clean=False)
    say(bench, 3, 4)
    say(bench, 3, 4, "a/x")
    bench.journals.missing[ROOT] = ReadFailure.UNREACHABLE
    bench.journals.late = False
    bench.journals.answer(9)
    at_first = everything(client)
    say(bench, 5, 5)
    meanwhile = everything(client)
    del bench.journals.missing[ROOT]
    bench.clock.advance(RETRY)

    assert (numbers(1, 4), []) == (at_first, meanwhile)
    assert numbers(1, 5) == everything(client)


def test_what_was_in_flight_is_read_again_and_sent_first() -> None:
    """After a start: with its packet identifiers, in order, before anything else [MQTT-4.4.0-1]."""
    bench = bench_of("a", inflight=3)
    client = subscribed(bench, "#", qos=2)
    say(bench, 1, 1)
    say(bench, 1, 1, "a/x", qos=2)
    say(bench, 2, 4)
    bench.settle()
    sent = [packet for packet in client.events if isinstance(packet, Publish)]
    client.session.sender.on_pubrec(2)
    bench.settle()
    bench = bench.restart()
    client = Client(bench, "c", clean=False)
    bench.online("", "a", offset=4)
    bench.online("a", offset=1)
    bench.settle()

    assert [1, 2, 3] == [packet.packet_id for packet in sent]
    assert [
        Publish("x", b"1", 1, False, True, 1),
        Pubrel(2),
        Publish("x", b"2", 1, False, True, 3),
    ] == client.events
    client.session.sender.on_pubcomp(2)
    assert ["1", "Pubrel", "2", "3", "4"] == everything(client)


def test_zone_that_cannot_be_read_holds_back_its_own_messages_only() -> None:
    """What is in flight from another zone is sent again, and what is behind that comes."""
    bench = bench_of("a")
    client = subscribed(bench, "#")
    say(bench, 1, 2, "a/x")
    say(bench, 1, 2)
    bench.settle()
    client.leave()
    say(bench, 3, 3, "a/x")
    say(bench, 3, 3)
    bench.settle()
    bench = bench.restart()
    bench.journals.missing[A] = ReadFailure.UNREACHABLE
    client = Client(bench, "c", clean=False)
    bench.online("", "a", offset=3)
    bench.online("a", offset=3)
    bench.settle()
    first = [(p.payload, p.packet_id) for p in client.events if isinstance(p, Publish)]
    bench.deliver("a", "a/x", "4", 4)
    del bench.journals.missing[A]
    client.events.clear()
    bench.clock.advance(RETRY)
    bench.settle()
    second = [(p.payload, p.packet_id) for p in client.events if isinstance(p, Publish)]

    assert [(b"1", 3), (b"2", 4), (b"3", 5)] == first
    assert [(b"1", 1), (b"2", 2), (b"3", 6), (b"4", 7)] == second


def test_what_is_in_flight_is_sent_once_on_a_connection_whoever_was_told_what_meanwhile() -> None:
    """The client left before it was known that its zone cannot be read, and came back."""
    bench = bench_of("a")
    client = subscribed(bench, "#")
    say(bench, 1, 2, "a/x")
    bench.settle()
    bench = bench.restart()
    bench.online("", "a")
    bench.journals.missing[A] = ReadFailure.UNREACHABLE
    bench.journals.late = True
    client = Client(bench, "c", clean=False)
    bench.settle()
    client.leave()
    bench.journals.answer(9)
    bench.journals.late = False
    client = Client(bench, "c", clean=False)
    del bench.journals.missing[A]
    bench.clock.advance(RETRY)

    assert ["1", "2"] == everything(client)


def test_what_was_in_flight_and_is_kept_no_longer_is_dropped() -> None:
    """And counted; the rest goes on."""
    bench = bench_of()
    client = subscribed(bench, "x")
    say(bench, 1, 3)
    bench.settle()
    bench = bench.restart()
    bench.journals.trim(ROOT, 2)
    client = Client(bench, "c", clean=False)
    bench.online("", offset=3)

    assert ["3"] == everything(client)
    assert 2 == client.session.sender.dropped


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_was_answered_behind_a_message_in_flight_does_not_come_again(
    is_restarted: bool,
) -> None:
    """The part was cut off as that message was to be sent again, and is back."""
    bench = bench_of("a")
    client = subscribed(bench, "a/x", qos=2)
    say(bench, 1, 3, "a/x", qos=2)
    bench.settle()
    for packet_id in (2, 3):
        client.session.sender.on_pubrec(packet_id)
        bench.settle()
        client.session.sender.on_pubcomp(packet_id)
    bench.edge.cursors.checkpoint()
    bench.settle()
    bench = bench.restart()
    bench.online("", "a")
    bench.journals.missing[A] = ReadFailure.CUT_OFF
    client = Client(bench, "c", clean=False)
    nothing = everything(client)
    client.leave()
    bench.settle()
    if is_restarted:
        bench = bench.restart()
    client = Client(bench, "c", clean=False)
    nothing += everything(client)
    bench.journals.add(A, 4, Message("a/x", b"4", 2))
    del bench.journals.missing[A]
    bench.edge.backlog.poll_cut_off([client.session])

    assert ([], ["1", "4"]) == (nothing, everything(client))


def test_messages_in_flight_leave_the_memory_of_a_client_that_stays_away() -> None:
    """They are read again when it is back."""
    bench = bench_of()
    client = subscribed(bench, "x")
    say(bench, 1, 2)
    bench.settle()
    client.leave()
    for _ in range(62):
        bench.clock.advance(1.0)
        bench.edge.low_water.send_marks()
    held = [entry.message for _, entry in client.session.sender.flows()]
    client = Client(bench, "c", clean=False)

    assert ([None, None], numbers(1, 2)) == (held, everything(client))


# -- limits


def test_newest_messages_are_kept() -> None:
    """Exactly as many as `session_limits` say; QoS 0 does not wait, and does not count."""
    bench = bench_of(messages=10)
    client = subscribed(bench, "x")
    client.leave()
    for offset in range(1, 26):
        bench.deliver("", "x", str(offset), offset, 1)
        bench.deliver("", "x", "nothing", 0, 0)
    client = Client(bench, "c", clean=False)

    assert numbers(16, 25) == everything(client)
    assert 15 == client.session.sender.dropped == bench.counters.get("session.dropped.queue_full")
    assert 1 == sum(event[0] == "session.messages_dropped" for event in bench.reporter.events)


def test_newest_bytes_are_kept() -> None:
    """Few messages may be too much as well."""
    bench = bench_of(size=1_000_000)
    client = subscribed(bench, "x")
    client.leave()
    for offset in range(1, 31):
        bench.deliver("", "x", str(offset) * 40_000, offset)
    client = Client(bench, "c", clean=False)
    told = everything(client)

    sizes = [len(each) + 65 for each in told]
    assert sum(sizes) <= 1_000_000 < sum(sizes) + 80_065
    assert told[-1] == "30" * 40_000


def test_nothing_is_counted_where_it_cannot_be_too_much() -> None:
    """By offsets and bytes: a large backlog is read once."""
    bench = bench_of(messages=1000)
    client = subscribed(bench, "x")
    client.leave()
    say(bench, 1, 1000)
    client = Client(bench, "c", clean=False)
    everything(client)

    assert sorted({after for _, after, _ in bench.journals.reads}) == [
        after for _, after, _ in bench.journals.reads
    ]


def test_what_others_get_does_not_count() -> None:
    """A session's limits are about what it would get."""
    bench = bench_of(messages=10)
    client = subscribed(bench, "x")
    other = subscribed(bench, "y", name="other")
    client.leave()
    say(bench, 1, 50, "y")
    say(bench, 51, 60)
    client = Client(bench, "c", clean=False)

    assert numbers(51, 60) == everything(client)
    assert 0 == client.session.sender.dropped
    assert 50 == len(everything(other))


def test_limits_hold_for_a_client_that_is_here_and_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When it goes on, it gets what was in flight, and of what waited behind that the newest."""
    monkeypatch.setattr(window, "QUEUE_MESSAGES", 2)
    bench = bench_of(messages=10, inflight=1)
    client = subscribed(bench, "x")
    say(bench, 1, 100)

    assert [*numbers(1, 3), *numbers(91, 100)] == everything(client)
    assert 87 == client.session.sender.dropped


def test_dropping_is_told_again_when_the_client_had_caught_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once for each time that it was too much."""
    monkeypatch.setattr(window, "QUEUE_MESSAGES", 2)
    bench = bench_of(messages=10, inflight=1)
    client = subscribed(bench, "x")
    say(bench, 1, 100)
    everything(client)
    say(bench, 101, 200)
    everything(client)

    assert 2 == sum(event[0] == "session.messages_dropped" for event in bench.reporter.events)


def test_zone_of_which_nothing_is_wanted_any_more_is_left_at_its_end() -> None:
    """What the session wants is served below by now: nobody here follows the zone above."""
    bench = bench_of("a")
    client = subscribed(bench, "a/x")
    client.leave()
    bench.journals.add(ROOT, 1, Message("a/x", b"before the cut", 1))
    client.session.places.add(Cursor(ROOT, 0))
    bench.edge.clients.session_store.save(client.session, urgent=False)
    bench.edge.cursors.checkpoint()
    bench.settle()
    bench = bench.restart()
    bench.online("a")
    client = Client(bench, "c", clean=False)

    assert ["before the cut"] == everything(client)
    assert ROOT not in client.session.places.behind


def test_session_that_moved_here_before_its_zone_could_be_asked_goes_on_with_its_answer() -> None:
    """And not only when the client says something the next time."""
    bench = EdgeBench()
    moved = bench.edge.clients.new_session("c")
    moved.subscriptions["x"] = Subscription("x", 1)
    bench.edge.clients.adopt(moved, ["x"])
    bench.clock.advance(60.0)
    bench.settle()
    client = Client(bench, "c", clean=False)
    bench.journals.add(ROOT, 1, Message("x", b"before", 1))
    bench.online("", offset=1)
    bench.answer("", "x")
    say(bench, 2, 2)

    assert ["before", "2"] == everything(client)


def test_filter_that_was_pending_begins_no_place_for_the_others_of_a_session_that_moved() -> None:
    """Its zone was cut off during the move, so the session has no place there."""
    bench = bench_of("a")
    moved = bench.edge.clients.new_session("c")
    moved.add(Subscription("a/x", 1))
    moved.add(Subscription("a/y", 1, pending=frozenset({"a"})))
    say(bench, 1, 3, "a/x")
    bench.edge.clients.adopt(moved, moved.subscriptions)
    route = bench.route("a")
    for request in sorted(route.interest.requests):
        bench.edge.interests.on_answer(route, request, 3, ())
    client = Client(bench, "c", clean=False)
    say(bench, 4, 4, "a/y")

    assert numbers(1, 4) == everything(client)


def test_qos0_that_a_session_had_before_it_moved_is_not_given_again() -> None:
    """The stream of the new node is behind that of the old one."""
    bench = EdgeBench()
    bench.online("", offset=3)
    moved = bench.edge.clients.new_session("c")
    moved.subscriptions["x"] = Subscription("x", 1)
    moved.places.add(Cursor(ROOT, 5))
    bench.edge.clients.adopt(moved, ["x"])
    bench.answer("", "x")
    client = Client(bench, "c", clean=False)
    before = everything(client)
    bench.deliver("", "x", "stale", qos=0)
    for offset in (4, 5):
        bench.deliver("", "x", str(offset), offset)
    bench.deliver("", "x", "new", qos=0)
    say(bench, 6, 6)

    assert ([], ["new", "6"]) == (before, everything(client))


def test_a_live_run_fills_the_window_then_the_queue_then_waits_in_the_journal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a session that is up to date; in its order, once, with one save before it leaves."""
    monkeypatch.setattr(window, "QUEUE_MESSAGES", 3)
    bench = bench_of(inflight=2)
    client = subscribed(bench, "#")
    deliver_runs(bench, [Message("x", str(number).encode(), 1) for number in range(1, 8)], 7)

    assert [] == client.events
    assert 5 == client.session.places.behind[ROOT].offset
    assert 3 == client.session.sender.queued
    assert numbers(1, 7) == everything(client)
    assert not client.session.is_behind


def test_a_live_run_brings_each_session_its_own() -> None:
    """At the QoS of its best subscription."""
    bench = bench_of()
    one = subscribed(bench, "#", name="1", qos=2)
    two = subscribed(bench, "y", "+", name="2")
    run = bench.make_run([Message("x", b"1", 1), Message("y", b"2", 2), Message("y/z", b"3", 1)])
    run.first = 1

    bench.edge.on_runs(bench.route(""), [run])
    bench.settle()

    assert [1, 2, 1] == [packet.qos for packet in one.events if isinstance(packet, Publish)]
    assert [1, 1] == [packet.qos for packet in two.events if isinstance(packet, Publish)]
    assert ["1", "2", "3"] == one.got()
    assert ["1", "2"] == two.got()
    assert 3 == one.session.places.taken[ROOT]
    assert 2 == two.session.places.taken[ROOT]


def deliver_runs(bench: EdgeBench, messages: list[Message], count: int) -> None:
    """Live, in runs of so many; the journal has them all."""
    route = bench.route("")
    for first in range(0, len(messages), count):
        for number, message in enumerate(messages[first : first + count], first + 1):
            bench.journals.add(route.part, number, message)
        run = bench.make_run(messages[first : first + count])
        run.first = first + 1
        bench.edge.on_runs(route, [run])


@pytest.mark.parametrize("count", [1, 7, 100])
def test_runs_for_a_session_that_is_behind_count_as_what_comes_one_by_one(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """As `test_limits_hold_for_a_client_that_is_here_and_takes_nothing`; half is for others."""
    monkeypatch.setattr(window, "QUEUE_MESSAGES", 2)
    bench = bench_of(messages=10, inflight=1)
    client = subscribed(bench, "x")
    subscribed(bench, "y", name="other")
    topics = ("x", "y")
    deliver_runs(bench, [Message(topics[n % 2], str(n).encode(), 1) for n in range(200)], count)

    assert [*numbers(0, 4)[::2], *numbers(180, 198)[::2]] == everything(client)
    assert 87 == client.session.sender.dropped


def test_what_a_session_that_is_behind_wants_at_qos_0_comes_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not read from the journal, whatever was published."""
    monkeypatch.setattr(window, "QUEUE_MESSAGES", 2)
    bench = bench_of(inflight=1)
    client = subscribed(bench, "x")
    client.subscribe("y", qos=0)
    bench.answer("", "y")
    assert ["Suback"] == client.got()
    messages = [Message(topic, str(n).encode(), 1) for n, topic in enumerate("xxxxyx", 1)]
    deliver_runs(bench, messages, 4)

    came = everything(client)
    assert ["1", "2", "3", "4", "6"] == [payload for payload in came if payload != "5"]
    assert 1 == came.count("5")
