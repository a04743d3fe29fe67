"""Zones that share clients come together, and nobody gets more than it may have."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from txbroker.pipeline.planner.grouping import regroup

HOSTS = ("h1", "h2", "h3")


def within(hosts: dict[str, str], ties: dict[tuple[str, str], float]) -> float:
    """The ties whose zones are on one host."""
    return sum(
        tie
        for (one, other), tie in ties.items()
        if one in hosts and other in hosts and hosts[one] == hosts[other]
    )


def test_pairs_come_together_by_exchange() -> None:
    """Hosts are full, so nothing can move by itself."""
    hosts = {"a": "h1", "b": "h2", "c": "h1", "d": "h2"}
    ties = {("a", "b"): 5.0, ("c", "d"): 5.0, ("a", "c"): 1.0}
    loads = dict.fromkeys(hosts, 1.0)

    found = regroup(hosts, loads, ties, HOSTS[:2], capacity=2.0, zones=2)
    assert found["a"] == found["b"] != found["c"] == found["d"]


def test_a_zone_moves_to_where_its_ties_are() -> None:
    """If there is room."""
    hosts = {"a": "h1", "b": "h2"}
    loads = {"a": 1.0, "b": 2.0}
    ties = {("a", "b"): 1.0}

    assert {"h2"} == set(regroup(hosts, loads, ties, HOSTS, capacity=3.0, zones=2).values()) or {
        "h1"
    } == set(regroup(hosts, loads, ties, HOSTS, capacity=3.0, zones=2).values())
    assert hosts == regroup(hosts, loads, ties, HOSTS, capacity=2.5, zones=2)
    assert hosts == regroup(hosts, loads, ties, HOSTS, capacity=3.0, zones=1)


@given(st.data())
def test_limits_hold_and_ties_only_grow(data: st.DataObject) -> None:
    """Whatever the loads, the ties and the limits."""
    apexes = [f"z{number}" for number in range(data.draw(st.integers(1, 8)))]
    hosts = {apex: data.draw(st.sampled_from(HOSTS)) for apex in apexes}
    loads = {apex: float(data.draw(st.integers(1, 20))) for apex in apexes}
    pairs = st.tuples(st.sampled_from(apexes), st.sampled_from([*apexes, "elsewhere"]))
    drawn = data.draw(st.dictionaries(pairs, st.integers(1, 30), max_size=12))
    ties = {
        pair: float(tie)
        for pair, tie in drawn.items()
        if pair[::-1] not in drawn or pair[0] < pair[1]
    }
    most = max(list(hosts.values()).count(host) for host in HOSTS)
    capacity = float(data.draw(st.integers(1, 60)))
    before = {host: sum(loads[a] for a in apexes if hosts[a] == host) for host in HOSTS}

    found = regroup(hosts, loads, ties, HOSTS, capacity=capacity, zones=most)
    after = {host: sum(loads[a] for a in apexes if found[a] == host) for host in HOSTS}
    own = {pair: tie for pair, tie in ties.items() if pair[0] != pair[1]}

    assert set(apexes) == set(found)
    assert max(after.values()) <= max(capacity, *before.values()) + 1e-9
    assert all(list(found.values()).count(host) <= most for host in HOSTS)
    assert within(found, own) >= within(hosts, own) - 1e-9
