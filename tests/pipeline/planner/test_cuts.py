"""What to delegate to whom: on trees small enough to try everything, and on random ones."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.workload import HARMONIC
from txbroker.pipeline.planner.cuts import (
    LoadTree,
    PlannedCuts,
    choose_cuts,
    host_loads,
    may_be_zone,
    own_loads,
)


def tree_of(topics: Mapping[str, float], zones: Mapping[str, str] | None = None) -> LoadTree:
    """A tree out of the loads of topics alone."""
    loads: dict[str, float] = {}
    for topic, load in topics.items():
        levels = topic.split("/")
        for top in {"/".join(levels[:n]) for n in range(len(levels) + 1)}:
            loads[top] = loads.get(top, 0.0) + load
    return LoadTree(loads=loads, zones=zones or {"": "old"})


def loads_after(
    topics: Mapping[str, float], tree: LoadTree, cuts: Mapping[str, str]
) -> dict[str, float]:
    """The load of each host, topic by topic: the longest apex wins."""
    zones = {**tree.zones, **cuts}
    loads = dict.fromkeys(zones.values(), 0.0)
    for topic, load in topics.items():
        apex = max((a for a in zones if a in ("", topic) or topic.startswith(f"{a}/")), key=len)
        loads[zones[apex]] += load
    return loads


def check(
    topics: Mapping[str, float], tree: LoadTree, cuts: PlannedCuts, hosts: list[str], most: int
) -> None:
    """What holds for every choice."""
    after = loads_after(topics, tree, cuts.hosts)
    assert max(after.values()) == pytest.approx(cuts.busiest)
    for host in hosts:
        own = [apex for apex, at in cuts.hosts.items() if at == host]
        assert len(own) <= most
        assert sum(cuts.loads[apex] for apex in own) == pytest.approx(after.get(host, 0.0))
    before = host_loads(tree)
    assert all(after[host] <= load * (1 + 1e-9) for host, load in before.items())
    assert all(may_be_zone(apex) and apex not in tree.zones for apex in cuts.hosts)


ZIPF = {f"plant/s{rank:04}": 1 / rank / HARMONIC for rank in range(1, 1001)}


@pytest.mark.parametrize(
    ("zones", "busiest"), [(1, 0.756), (8, 0.52), (16, 0.43), (64, 0.265)], ids=str
)
def test_skewed_siblings(zones: int, busiest: float) -> None:
    """The skewed workload: three hosts more, and what limits the number of zones there."""
    tree = tree_of(ZIPF)
    cuts = choose_cuts(tree, ["b", "c", "d"], zones=zones)

    check(ZIPF, tree, cuts, ["b", "c", "d"], zones)
    assert busiest >= cuts.busiest


def test_one_zone_a_host_can_do_no_more() -> None:
    """With one zone on each of three hosts, the rest of 1,000 siblings stays where it is."""
    cuts = choose_cuts(tree_of(ZIPF), ["b", "c", "d"], zones=1)

    assert {"plant/s0001", "plant/s0002", "plant/s0003"} == set(cuts.hosts)
    assert 1 - (1 + 1 / 2 + 1 / 3) / HARMONIC == pytest.approx(cuts.busiest)


def test_a_branch_goes_with_one_cut() -> None:
    """Not topic by topic."""
    topics = {f"{area}/{number}": 1.0 for area in ("north", "south") for number in range(50)}
    cuts = choose_cuts(tree_of(topics), ["b"], zones=16)

    assert 1 == len(cuts.hosts) and {"north", "south"} > set(cuts.hosts)
    assert 50.0 == cuts.busiest


def test_a_branch_that_is_too_heavy_goes_in_parts() -> None:
    """Its heaviest part to one host, and the rest of it, less that part, to another."""
    topics = {"a/x/1": 40.0, "a/y/1": 20.0, "a/z/1": 15.0, "b/1": 25.0}
    cuts = choose_cuts(tree_of(topics), ["h1", "h2"], zones=1, slack=0.0)

    assert {"a/x", "a"} == set(cuts.hosts) and 2 == len(set(cuts.hosts.values()))
    assert {"a/x": 40.0, "a": 35.0} == cuts.loads


def test_zones_of_today_stay_and_are_no_part_of_what_is_cut() -> None:
    """What a host owns already is taken from it only where it has too much."""
    topics = {"a/k/1": 30.0, "a/l/1": 10.0, "a/m/1": 10.0, "b/1": 50.0}
    tree = tree_of(topics, {"": "old", "a/k": "kitchen"})

    assert {"": 70.0, "a/k": 30.0} == own_loads(tree)
    cuts = choose_cuts(tree, ["new"], zones=4, slack=0.0)
    assert {"b": "new"} == cuts.hosts or {"b/1": "new"} == cuts.hosts
    assert 50.0 == cuts.busiest


def test_what_cannot_be_a_zone_is_left_or_opened() -> None:
    """Empty levels, and topics of the root that start with a dollar."""
    topics = {"/a/b": 10.0, "c//d": 10.0, "$share/x": 10.0, "c/e": 5.0}
    cuts = choose_cuts(tree_of(topics), ["h1", "h2", "h3"], zones=3)

    assert {"c"} == set(cuts.hosts) or {"c/e"} == set(cuts.hosts)


def test_nothing_to_gain_is_no_cut() -> None:
    """A single topic cannot be halved, and moving it would help nobody."""
    cuts = choose_cuts(tree_of({"a": 10.0, "b": 0.001}), ["h1"], zones=4)

    assert 10.0 == pytest.approx(cuts.busiest, rel=1e-3)
    assert len(cuts.hosts) <= 1


topics_of_trees = st.dictionaries(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join),
    st.integers(1, 50).map(float),
    min_size=1,
    max_size=7,
)


@settings(max_examples=150, deadline=None)
@given(topics_of_trees, st.integers(1, 3), st.integers(1, 3))
def test_near_the_best_there_is(topics: dict[str, float], count: int, most: int) -> None:
    """Never above the load of today, and within a half of the best of all choices."""
    tree = tree_of(topics)
    hosts = [f"h{number}" for number in range(count)]
    cuts = choose_cuts(tree, hosts, zones=most, slack=0.0)

    check(topics, tree, cuts, hosts, most)
    apexes = [top for top in tree.loads if top]
    best = sum(topics.values())
    for number in range(min(len(apexes), count * most) + 1):
        if len(apexes) > 7 and number > 2:
            break
        for chosen in itertools.combinations(apexes, number):
            for at in itertools.product(hosts, repeat=number):
                if all(at.count(host) <= most for host in hosts):
                    after = loads_after(topics, tree, dict(zip(chosen, at, strict=True)))
                    best = min(best, max(after.values()))
    assert cuts.busiest <= best * 1.5 + 1e-6


@settings(max_examples=100, deadline=None)
@given(topics_of_trees, st.sets(st.sampled_from(["a", "a/b", "b", "c/a", "c"]), max_size=3))
def test_any_zones_of_today(topics: dict[str, float], apexes: set[str]) -> None:
    """Nested or not, on one host or on two."""
    zones = {"": "old"} | {apex: f"z{len(apex) % 2}" for apex in apexes}
    tree = tree_of(topics, zones)
    cuts = choose_cuts(tree, ["h1", "h2"], zones=2)

    check(topics, tree, cuts, ["h1", "h2"], 2)
    assert sum(topics.values()) == pytest.approx(sum(own_loads(tree).values()))
