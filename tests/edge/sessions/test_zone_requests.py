"""
SUBSCRIBE packets with thousands of filters, on their way while zones come and go: piece by piece.

Each step takes a turn of its own here, so that what a turn does is what a step does.
"""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.edge.sessions.test_map_changes import Story, is_right, learn, work_off, zones
from tests.support.clock import Clock
from tests.support.edge_bench import Client, EdgeBench
from tests.support.recorders import OwnerRecorder, cut
from txbroker.edge.routing.filter_zone_pairs import FilterZonePairs
from txbroker.edge.sessions import zone_requests
from txbroker.edge.sessions.subscribe_request import SubscribeRequest
from txbroker.edge.sessions.zone_requests import PIECE
from txbroker.runtime.slices import LONGEST

MANY = 5 * PIECE


class SlowClock(Clock):
    """A clock on which each step takes all the time of a turn."""

    def now(self) -> float:
        self._now += LONGEST
        return self._now


class Turns:
    """The work on filters in each turn, from call to call."""

    def __init__(self, bench: EdgeBench) -> None:
        self._bench = bench
        self.done = 0
        self.each: list[int] = []

    def count(self, *_: object, **__: object) -> None:
        self.done += 1

    def work_off(self) -> None:
        """Let the edge work until nothing is left."""
        while self._bench.edge.slices.is_busy(self._bench.edge.interests):
            self._bench.work()
            self.each.append(self.done)
            self.done = 0


@pytest.fixture
def bench() -> EdgeBench:
    with mock.patch("tests.support.edge_bench.Clock", SlowClock):
        return EdgeBench()


@pytest.fixture
def turns(bench: EdgeBench) -> Iterator[Turns]:
    found = Turns(bench)
    counted = (
        (SubscribeRequest, "await_zone"),
        (SubscribeRequest, "drop_zone"),
        (OwnerRecorder, "add_interest"),
    )
    patches = [
        mock.patch.object(kind, name, _counting(getattr(kind, name), found))
        for kind, name in counted
    ]
    for patch in patches:
        patch.start()
    yield found
    for patch in patches:
        patch.stop()


def _counting(call: object, turns: Turns) -> object:
    def counted(self: object, *args: object, **options: object) -> object:
        turns.count()
        return call(self, *args, **options)  # type: ignore[operator]

    return counted


def test_filters_that_wait_join_and_leave_zones_in_pieces(bench: EdgeBench, turns: Turns) -> None:
    """10,000 of them took a tenth of a second for each zone."""
    bench.online("")
    client = Client(bench, "c")
    client.subscribe(*(f"+/x{number}" for number in range(MANY)))
    found = []
    for apexes in (zones(3), [], zones(3)):
        learn(bench, *apexes)
        turns.done, turns.each = 0, []  # a first slice has run at once
        turns.work_off()
        found.append(turns.each)
    (request,) = bench.edge.interests._pending.values()
    awaited = len(request.open.of("z1"))
    for apex in zones(3):
        bench.know(apex)
        bench.online(apex)
        turns.done, turns.each = 0, []
        turns.work_off()
        found.append(turns.each)

    assert MANY == awaited
    for each in found:
        assert 0 < max(each) <= PIECE
    assert all(sum(each) > 2 * MANY for each in found[:3])
    assert all(sum(each) >= MANY - PIECE for each in found[3:])
    assert is_right(bench)


def test_suback_comes_when_all_zones_that_joined_have_answered(bench: EdgeBench) -> None:
    """Whichever pieces came before which."""
    bench.online("")
    client = Client(bench, "c")
    filters = [f"+/x{number}" for number in range(2 * PIECE)]
    client.subscribe(*filters)
    learn(bench, "a", "b")
    for apex in ("", "a", "b"):
        if apex:
            bench.know(apex)
            bench.online(apex)
        bench.work()
        work_off(bench)
        assert [] == client.events
        for request in list(bench.route(apex).interest.requests):
            bench.edge.interests.on_answer(bench.route(apex), request, 0, [])
    work_off(bench)

    assert ["Suback"] == client.got()
    assert 3 * len(filters) == sum(event[1] == "add" for event in bench.events)


@pytest.mark.parametrize("is_known", [False, True])
def test_zone_that_goes_amid_its_pieces_is_awaited_no_more(
    bench: EdgeBench, is_known: bool
) -> None:
    """Its SUBACK would wait in vain; `is_known`: no cut leads to the zone, which is known still."""
    bench.online("")
    client = Client(bench, "c")
    client.subscribe(*(f"+/x{number}" for number in range(MANY)))
    learn(bench, "a")
    bench.work()
    (request,) = bench.edge.interests._pending.values()
    before = len(request.open.of("a"))
    if is_known:
        bench.route("").learn_cuts({})
        bench.edge.interests.refresh()
    else:
        bench.edge.cuts.on_zone_end(bench.route("a"), is_whole=True)
    work_off(bench)
    for number in list(bench.route("").interest.requests):
        bench.edge.interests.on_answer(bench.route(""), number, 0, [])
    work_off(bench)

    assert 0 < before < MANY
    assert ["Suback"] == client.got()
    assert is_right(bench)


def test_filters_that_go_amid_the_questions_are_asked_no_more(bench: EdgeBench) -> None:
    """The owner would serve for ever what nobody wants."""
    bench.online("")
    client = Client(bench, "c")
    filters = [f"+/x{number}" for number in range(MANY)]
    client.subscribe(*filters)
    learn(bench, "a")
    work_off(bench)
    bench.know("a")
    bench.online("a")
    bench.work()
    client.unsubscribe(*filters)
    asked = sum(event[:2] == ("a", "add") for event in bench.events)
    work_off(bench)

    assert asked == sum(event[:2] == ("a", "add") for event in bench.events) < MANY
    assert is_right(bench)


def test_zone_that_is_looked_at_early_is_asked(bench: EdgeBench) -> None:
    """Whoever looks at its filters first."""
    bench.online("", "a")
    bench.online("a")
    bench.route("").learn_cuts({})
    bench.edge.interests.refresh()
    work_off(bench)
    Client(bench, "c").subscribe("+/x")
    bench.route("").learn_cuts({"a": cut("a")})
    assert {"+/x"} == bench.edge.interests.of_zone(bench.route("a"))
    work_off(bench)

    assert ["+/x"] == [event[2] for event in bench.events if event[:2] == ("a", "add")]


def test_answers_count_for_a_zone_that_is_cut_then_and_for_itself_alone_later() -> None:
    """As one set, until one of the two changes."""
    pairs = FilterZonePairs()
    for pair in (("x", ""), ("y", ""), ("z", "a")):
        pairs.add(pair)
    for apex in ("a", "b", "c"):
        pairs.share("", apex)
    pairs.share("d", "e")
    pairs.add(("new", ""))
    pairs.discard(("x", "b"))
    pairs.discard(("none", "c"))
    pairs.remove({"y"})

    assert {("x", ""), ("new", ""), ("x", "a"), ("z", "a"), ("x", "c")} == set(pairs)
    assert not pairs.of("b") and "e" not in pairs.apexes()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 59), st.integers(0, 5)), max_size=40))
def test_at_rest_requests_await_the_zones_that_their_filters_touch(
    steps: list[tuple[int, int, int]],
) -> None:
    """Whatever comes between two pieces, which are of one filter here."""
    with mock.patch.object(zone_requests, "PIECE", 1):
        story = Story()
        for step in steps:
            story.step(*step)
        edge = story.bench.edge
        edge.interests.refresh()
        work_off(story.bench)

    assert is_right(story.bench)
    for request in edge.interests._pending.values():
        for topic_filter, apex in request.open:
            route = edge.zones.get(apex)
            assert route is not None
            is_dim = any(above.cuts is None for above in edge.zones.above(apex))
            assert is_dim or route in edge.zones.cover(topic_filter)
        for topic_filter in request.zoned & request.subscriptions.keys():
            for route in edge.zones.cover(topic_filter):
                pair = (topic_filter, route.apex)
                assert pair in request.open or pair in request.answered
                if pair in request.open and route.port is not None:
                    assert (topic_filter, request) in route.interest.requests.values()
