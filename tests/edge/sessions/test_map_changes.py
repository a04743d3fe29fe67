"""
A change of the zone map: what it costs, that it is done in slices, and what holds meanwhile.

Time passes only in steps: each look at the clock is a millisecond, so that a turn does few steps.
"""

from __future__ import annotations

import time
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.clock import Clock
from tests.support.edge_bench import Client, EdgeBench
from tests.support.recorders import Events, cut
from txbroker.core.sorted_filters import SortedFilters
from txbroker.edge.routing.route import Route
from txbroker.edge.routing.zone_interest import wanted
from txbroker.edge.sessions.cursor_placement import CursorPlacement
from txbroker.link.link_client import LinkClient
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.runtime.slices import LONGEST
from txbroker.v1.link_pb2 import LinkFrame

PROMPT = 0.001
"""Seconds that pass with each look at a busy clock."""


class BusyClock(Clock):
    """A clock on which work takes time."""

    def now(self) -> float:
        self._now += PROMPT
        return self._now


def busy_bench(*apexes: str) -> EdgeBench:
    """An edge that does about three zones in one turn."""
    with mock.patch("tests.support.edge_bench.Clock", BusyClock):
        return EdgeBench(*apexes)


def zones(count: int) -> list[str]:
    return [f"z{number}" for number in range(count)]


def learn(bench: EdgeBench, *apexes: str) -> None:
    """The root's stream tells of these cuts, one by one or all at once."""
    bench.edge.cuts.replace_cuts(bench.route(""), [cut(apex) for apex in apexes], follow=True)
    bench.edge.interests.refresh()


def work_off(bench: EdgeBench) -> int:
    """Let it work until nothing is left; how many turns that took."""
    turns = 0
    while bench.edge.slices.is_busy(bench.edge.interests):
        turns += 1
        bench.work()
        assert turns < 10_000
    return turns


def is_right(bench: EdgeBench) -> bool:
    """True if each zone has the filters whose cover has it, and more only where that is allowed."""
    cover = {f: set(bench.edge.zones.cover(f)) for f in bench.edge.interests._counts}
    for route in bench.edge.zones:
        expected = {f for f, routes in cover.items() if route in routes}
        is_dim = any(above.cuts is None for above in bench.edge.zones.above(route.apex))
        if not (
            expected <= route.interest.filters if is_dim else expected == route.interest.filters
        ):
            return False
    return True


# -- what it costs


def test_cut_costs_the_filters_that_meet_it() -> None:
    """Not the filters that there are, and not the zones."""
    names = zones(200)
    bench = EdgeBench(*names)
    client = Client(bench, "c")
    client.subscribe(*(f"{apex}/x/{n}" for apex in names for n in range(5)), "+/y", "new/z")
    seen: list[str] = []
    taken: list[Route] = []
    touching = SortedFilters.starting

    def counted(self: SortedFilters, prefix: str) -> Any:
        for texts in touching(self, prefix):
            seen.extend(texts)
            yield texts

    def noted(zones: Any, filters: SortedFilters, route: Route) -> set[str]:
        taken.append(route)
        return wanted(zones, filters, route)

    with (
        mock.patch.object(SortedFilters, "starting", counted),
        mock.patch("txbroker.edge.sessions.interests.wanted", noted),
    ):
        bench.edge.cuts.on_cut(bench.route(""), cut("new"))
        assert {"+/y", "new/z"} == bench.route("new").interest.filters
        assert ["new"] == [route.apex for route in taken]
        bench.edge.cuts.on_zone_end(bench.route("new"), is_whole=True)
        bench.edge.on_resolved(bench.route("z7"), cut("z7"), [cut("z7/x")], 30)

    # Each look sees a filter at the most: some four looks for each change, at `new` and in `z7/x`.
    assert len(seen) < 50
    assert {"+/y", *(f"z7/x/{n}" for n in range(5))} >= bench.route("z7").interest.filters
    assert is_right(bench)


def test_zone_that_comes_online_costs_itself() -> None:
    """However many there are: none of the others is looked at."""
    bench = EdgeBench(*zones(100))
    client = Client(bench, "c")
    client.subscribe(*(f"+/{n}" for n in range(100)))
    with mock.patch("txbroker.edge.sessions.interests.wanted") as taken:
        bench.online("z1")
        bench.online("", *zones(100))

    assert not taken.called


def test_sessions_are_gone_through_once_for_all_cuts() -> None:
    """However many an owner tells of; who is behind follows each of them that it wants."""
    bench = EdgeBench()
    bench.online("")
    clients = [Client(bench, name, clean=False) for name in "ab"]
    for client in clients:
        client.subscribe("+/x")
        bench.answer("", "+/x")
    clients[0].leave()
    bench.settle()
    looks: list[int] = []
    everybody = CursorPlacement.all

    def counted(placement: CursorPlacement) -> Any:
        looks.append(1)
        return everybody(placement)

    with mock.patch.object(CursorPlacement, "all", counted):
        learn(bench, *zones(300))

    assert len(looks) < 5
    behind = clients[0].session.places.behind
    assert {"", *zones(300)} == {part.zone for part in behind}
    assert all(c.after is not None for part, c in behind.items() if part.zone)


# -- that it is done in slices


def test_many_zones_are_worked_off_in_turns() -> None:
    """Each of which does a few steps."""
    bench = busy_bench()
    bench.online("")
    client = Client(bench, "c")
    client.subscribe("+/x", "z3/y")
    for topic_filter in ("+/x", "z3/y"):
        bench.answer("", topic_filter)
    learn(bench, *zones(50))
    before = sum(bool(bench.route(apex).interest.filters) for apex in zones(50))
    turns = work_off(bench)

    assert before < 10 < turns < 100
    assert is_right(bench)


def test_no_turn_is_long() -> None:
    """Of real time: 300 zones come at once, and 3,000 filters concern each of them."""
    bench = EdgeBench()
    bench.online("")
    client = Client(bench, "c")
    client.subscribe(*(f"+/x{n}" for n in range(3000)))
    for request in list(bench.route("").interest.requests):
        bench.edge.interests.on_answer(bench.route(""), request, 0, [])
    turns: list[float] = []
    with mock.patch.object(bench.edge.slices, "_now", time.thread_time):
        while not turns or bench.edge.slices.is_busy(bench.edge.interests):
            start = time.thread_time()
            if turns:
                bench.work()
            else:
                learn(bench, *zones(300))
            turns.append(time.thread_time() - start)

    assert {3000} == {len(route.interest.filters) for route in bench.edge.zones}
    assert len(turns) > 3
    assert sorted(turns)[-2] < 10 * LONGEST  # but for one that a collection of garbage falls into


def test_change_while_another_is_worked_off_is_not_lost() -> None:
    """Whatever is brought up already is looked at again where that is needed."""
    bench = busy_bench()
    bench.online("")
    client = Client(bench, "c")
    client.subscribe("+/x", "z1/#")
    learn(bench, *zones(20))
    bench.work()
    bench.edge.cuts.on_cut(bench.route(""), cut("new"))
    bench.edge.cuts.on_zone_end(bench.route("z5"), is_whole=True)
    client.subscribe("new/+")
    client.unsubscribe("z1/#")
    work_off(bench)

    assert is_right(bench)
    assert {"+/x", "new/+"} == bench.route("new").interest.filters


# -- what holds meanwhile


def test_hello_has_the_whole_interest() -> None:
    """Of a zone that waits for its turn as well: its owner would drop the rest of what it has."""
    bench = busy_bench()
    bench.online("")
    client = Client(bench, "c")
    client.subscribe("+/x", "+/y")
    learn(bench, *zones(50))
    last = bench.route("z49")
    assert set() == last.interest.filters
    frames: list[bytes] = []
    end = LinkClient(
        bench.edge,
        last,
        write=lambda *pieces: frames.append(b"".join(map(bytes, pieces))),
        close=lambda reason: None,
        flush_queue=FlushQueue(lambda _: None),
        backpressure=bench.pressure,
    )
    end.start(b"token")
    body = frames[0]
    hello = LinkFrame.FromString(body[2 + (body[1] > 127) :]).hello

    assert ["+/x", "+/y"] == list(hello.filters)
    assert ["z49"] == [claim.apex for claim in hello.claims]


def test_owner_hears_of_claims_with_the_whole_interest() -> None:
    """A zone that came back: its filters and the claim go in one frame."""
    bench = busy_bench(*zones(50))
    bench.online("", *zones(50))
    for apex in zones(50):
        bench.online(apex)
    client = Client(bench, "c")
    client.subscribe(*(f"{apex}/x" for apex in zones(50)))
    for apex in zones(50):
        bench.answer(apex, f"{apex}/x")
    work_off(bench)
    bench.take()
    for apex in zones(10):
        bench.edge.cuts.on_zone_end(bench.route(apex), is_whole=True)
    work_off(bench)
    syncs = [event for event in bench.take() if event[:2] == ("", "sync")]

    for _, _, filters, claims in syncs:
        assert {f"{apex}/x" for apex in claims} <= set(filters)
    assert zones(10) == sorted(syncs[-1][3])


def test_suback_waits_for_the_zones_that_are_new() -> None:
    """Though all zones that the SUBSCRIBE had asked have answered meanwhile."""
    bench = busy_bench()
    bench.online("")
    all_of_them, last = Client(bench, "c"), Client(bench, "d")
    all_of_them.subscribe("+/x")
    last.subscribe("z49/x")
    learn(bench, *zones(50))
    bench.answer("", "+/x")
    bench.answer("", "z49/x")
    assert set() == bench.route("z49").interest.filters
    early = [*all_of_them.events, *last.events]
    work_off(bench)
    before = [*all_of_them.events, *last.events]
    for apex in zones(50):
        bench.know(apex)
        bench.online(apex)
        work_off(bench)
        bench.answer(apex, "+/x", f"{apex}/x=r")
    bench.answer("z49", "z49/x", "z49/x=r")

    assert ([], []) == (early, before)
    assert ["Suback", "r:r"] == last.got()
    assert "Suback" in all_of_them.got()


def test_retained_comes_before_live_of_a_zone_that_waits_for_its_turn() -> None:
    """Though another client has the same filter there already (protocol rule 9)."""
    bench = busy_bench(*zones(50))
    for apex in zones(50):
        bench.online(apex)
    bench.route("").learn_cuts({})
    bench.edge.interests.refresh()
    work_off(bench)
    bench.online("")
    one = Client(bench, "one")
    one.subscribe("+/x")
    last = bench.route("z49")
    bench.route("").learn_cuts({apex: cut(apex) for apex in zones(50)})
    bench.edge.interests.refresh()
    assert "+/x" not in last.interest.filters
    two = Client(bench, "two")
    two.subscribe("+/x")  # asks the zone now
    bench.deliver("z49", "z49/x", "live", qos=0)
    assert [] == one.events
    work_off(bench)
    asked: Events = [event for event in bench.take() if event[:2] == ("z49", "add")]
    assert len(asked) == 2
    for apex in ("", *zones(50)):
        for _ in range(2):
            bench.answer(apex, "+/x", *([f"{apex}/x=r"] if apex == "z49" else []))
    bench.deliver("z49", "z49/x", "later", qos=0)

    assert ["Suback", "r:r", "later"] == one.got()


class Story:
    """Anything that may happen to a map, and sessions, while work is left; then it is at rest."""

    APEXES = ("a", "b", "a/a", "a/b", "b/a", "a/b/a")
    FILTERS = ("#", "+", "+/x", "a/+", "a/#", "a/b/x", "+/b/#", "b/a", "a/a/x", "c")

    def __init__(self) -> None:
        self.bench = busy_bench()
        self.clients = [Client(self.bench, name) for name in ("c", "d")]
        self._epoch = 1

    def step(self, kind: int, one: int, two: int) -> None:
        """One of the things, chosen by numbers."""
        bench, client = self.bench, self.clients[two % 2]
        apex = self.APEXES[one % len(self.APEXES)]
        topic_filter = self.FILTERS[one % len(self.FILTERS)]
        route = bench.edge.zones.get(apex)
        self._epoch += 1
        if kind == 0:
            client.subscribe(topic_filter)
        elif kind == 1:
            client.unsubscribe(topic_filter)
        elif kind == 2:
            above = bench.edge.zones.enclosing(apex)
            bench.edge.cuts.on_cut(above, cut(apex, self._epoch))
        elif kind == 3 and route is not None:
            bench.edge.cuts.on_zone_end(route, is_whole=bool(two % 2))
        elif kind == 4 and route is not None and route.port is None:
            inside = [a for a in self.APEXES if a.startswith(apex + "/") and two % 3]
            bench.edge.on_resolved(route, cut(apex, route.epoch), [cut(a) for a in inside], 30)
        elif kind == 5 and route is not None and route.port is None:
            bench.online(apex, epoch=route.epoch)
        elif kind == 6 and route is not None and route.port is not None:
            bench.lose(apex)
        elif kind == 7:
            bench.work()
        elif kind == 8 and route is not None:
            bench.edge.cuts.on_cut_ended(bench.edge.zones.enclosing(apex), apex, route.epoch)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 59), st.integers(0, 5)), max_size=40))
def test_at_rest_all_is_as_if_it_were_worked_out_anew(steps: list[tuple[int, int, int]]) -> None:
    """Whatever happened before, in whatever turn."""
    story = Story()
    for step in steps:
        story.step(*step)
    story.bench.edge.interests.refresh()
    work_off(story.bench)

    assert is_right(story.bench)
