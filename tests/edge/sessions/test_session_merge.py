"""Two sessions of one client become one: nothing is missing, nothing comes twice."""

from __future__ import annotations

import pytest

from tests.edge.sessions.test_catch_up_after_moves import bench_of, everything, say, subscribed
from tests.support.edge_bench import Client, EdgeBench
from tests.support.recorders import cut
from txbroker.edge.sessions.session_merge import merge_into
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.cursor import Cursor, Subscription
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.window import OutboundMessage
from txbroker.mqtt.wire.message import Message

ROOT, A = JournalId("", 1), JournalId("a", 1)


def newer(bench: EdgeBench, *filters: str) -> Client:
    """The session that is here began after record 5, and was given 6 to 8."""
    say(bench, 1, 5)
    client = Client(bench, "c", clean=False)
    client.subscribe(*filters)
    for topic_filter in filters:
        bench.answer("", topic_filter)
    bench.settle()
    client.got()
    say(bench, 6, 8)
    return client


def older(bench: EdgeBench, offset: int, *filters: str) -> Session:
    """The other one was given all up to an offset."""
    session = bench.edge.clients.new_session("c")
    for topic_filter in filters:
        session.subscriptions[topic_filter] = Subscription(topic_filter, 1)
    session.places.add(Cursor(ROOT, offset))
    return session


def merge(bench: EdgeBench, client: Client, other: Session, *in_flight: int) -> None:
    """As it is when the other node's session arrives."""
    added = other.subscriptions.keys() - client.session.subscriptions.keys()
    confirmed = merge_into(client.session, other, [_entry(offset) for offset in in_flight])
    bench.edge.clients.adopt(client.session, added, confirmed)
    for topic_filter in added:
        bench.answer("", topic_filter)


def _entry(offset: int) -> OutboundMessage:
    return OutboundMessage(
        message=None, qos=1, retain=False, place=LogPosition(ROOT, offset), number=0
    )


def test_what_the_older_one_waited_for_comes_and_nothing_else() -> None:
    """Also what was in flight to its client, and not what that had acknowledged behind it."""
    bench = bench_of()
    client = newer(bench, "x")
    before = everything(client)
    merge(bench, client, older(bench, 3, "x"), 2)

    assert ["6", "7", "8"] == before
    assert ["2", "4", "5"] == everything(client)
    say(bench, 9, 9)
    assert ["9"] == everything(client)


def test_what_the_older_one_had_beyond_the_newer_one_is_not_read_again() -> None:
    """It went on where it was, while the newer one had nothing."""
    bench = bench_of()
    client = newer(bench, "y")
    merge(bench, client, older(bench, 7, "x"))

    assert ["8"] == everything(client)


def test_a_crash_in_the_middle_repeats_nothing() -> None:
    """What either had is as durable as where they stand."""
    bench = bench_of(inflight=1)
    client = newer(bench, "x")
    assert ["6", "7", "8"] == everything(client)
    merge(bench, client, older(bench, 3, "x"), 2)
    assert ["2"] == everything(client)[:1]
    bench.settle()
    bench = bench.restart()
    bench.online("", offset=8)
    client = Client(bench, "c", clean=False)

    assert not {"3", "6", "7", "8"} & set(everything(client))


def test_what_either_had_is_forgotten_when_it_is_behind() -> None:
    """A session that is done with it costs what every session costs."""
    bench = bench_of()
    client = newer(bench, "x")
    merge(bench, client, older(bench, 3, "x"), 2)
    everything(client)
    client.leave()

    assert {} == client.session.places.had


def test_what_a_zone_confirmed_to_the_older_one_counts_from_there() -> None:
    """The newer one has asked, and has no answer yet."""
    bench = bench_of()
    say(bench, 1, 5)
    client = Client(bench, "c", clean=False)
    client.subscribe("x")
    bench.settle()
    merge(bench, client, older(bench, 3, "x"))
    bench.answer("", "x")
    say(bench, 6, 6)

    assert ["4", "5", "6"] == [one for one in everything(client) if one != "Suback"]


# -- sessions that move


def test_part_that_had_ended_before_the_session_came_is_read_first() -> None:
    """Its zone is its parent's again, as far as the node knows: that goes on behind it."""
    bench = bench_of()
    for offset in (1, 2):
        bench.journals.add(A, offset, Message("a/x", f"child {offset}".encode(), 1))
        bench.journals.add(ROOT, offset, Message("a/x", f"root {offset}".encode(), 1))
    bench.journals.closed.add(A)
    bench.route("").reach(2)
    moved = bench.edge.clients.new_session("c")
    moved.subscriptions["#"] = Subscription("#", 1)
    moved.places.behind = {ROOT: Cursor(ROOT, 0), A: Cursor(A, 0)}
    bench.edge.clients.adopt(moved, ["#"])
    bench.answer("", "#")
    client = Client(bench, "c", clean=False)

    assert ["child 1", "child 2", "root 1", "root 2"] == everything(client)


def test_what_lies_before_the_cut_comes_before_a_part_that_had_ended() -> None:
    """Neither waits for the other for ever."""
    bench = bench_of()
    bench.journals.add(ROOT, 1, Message("a/x", b"before", 1))
    bench.journals.add(A, 1, Message("a/x", b"child", 1))
    bench.journals.add(ROOT, 2, Message("a/x", b"after", 1))
    bench.journals.closed.add(A)
    bench.route("").reach(2)
    moved = bench.edge.clients.new_session("c")
    moved.subscriptions["#"] = Subscription("#", 1)
    moved.places.behind = {A: Cursor(A, 0, after=LogPosition(ROOT, 1)), ROOT: Cursor(ROOT, 0)}
    bench.edge.clients.adopt(moved, ["#"])
    bench.answer("", "#")
    client = Client(bench, "c", clean=False)

    assert ["before", "child", "after"] == everything(client)


# -- a zone that was not known when the newer one subscribed


@pytest.mark.parametrize("is_here", [True, False])
def test_what_the_older_one_waits_for_in_a_zone_that_is_found_comes(is_here: bool) -> None:
    """The newer one subscribed where nobody knew of the zone, and follows it since it is known."""
    bench = bench_of()
    client = subscribed(bench, "a/x")
    if not is_here:
        client.leave()
    for offset in range(1, 6):
        bench.journals.add(A, offset, Message("a/x", str(offset).encode(), 1))
    bench.edge.cuts.on_forgotten_cut(bench.route(""), cut("a"))
    bench.edge.cursors.on_forgotten_cut(bench.route(""), cut("a"), None)
    bench.edge.on_owner(bench.route("a"), 1, None)
    bench.online("a", offset=5)
    say(bench, 6, 7, "a/x")
    before = everything(client) if is_here else []
    other = bench.edge.clients.new_session("c")
    other.subscriptions["a/x"] = Subscription("a/x", 1)
    other.places.add(Cursor(A, 2))
    merge(bench, client, other)
    if not is_here:
        client = Client(bench, "c", clean=False)

    came = ["3", "4", "5", "6", "7"]
    assert (["6", "7"] if is_here else []) == before
    assert came == sorted([*before, *everything(client)])


def test_a_session_that_moved_here_begins_in_a_zone_where_that_answers() -> None:
    """The zone was cut while the session was on its way: all of it is the session's."""
    bench = bench_of()
    for offset in (1, 2):
        bench.journals.add(A, offset, Message("a/x", str(offset).encode(), 1))
    moved = bench.edge.clients.new_session("c")
    moved.subscriptions["a/x"] = Subscription("a/x", 1)
    moved.places.add(Cursor(ROOT, 0))
    bench.know("", "a")
    bench.edge.clients.adopt(moved, ["a/x"])
    client = Client(bench, "c", clean=False)
    bench.edge.on_owner(bench.route("a"), 1, None)
    bench.online("a", offset=2)
    bench.answer("a", "a/x")

    assert ["1", "2"] == everything(client)
