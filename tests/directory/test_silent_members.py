"""Each member is watched by three; who watches hears of silence, and the others are told."""

from __future__ import annotations

import pytest

from tests.support.keeping import MemoryTable
from txbroker.directory.heartbeat import patience
from txbroker.directory.members import Member, Members
from txbroker.directory.silent_members import REPORTS, WATCHERS, SilentMembers

AFTER = 10.0
PATIENCE_OF_FIFTY = 50**2 / REPORTS


class Bench:
    """What each member of a site knows, under one clock."""

    def __init__(self, count: int) -> None:
        self.now = 100.0
        names = [f"n{number:02}" for number in range(count)]
        self.all: dict[str, SilentMembers] = {}
        for name in names:
            members = Members(name, "", MemoryTable(), is_root=True)
            members.merge(Member(name=n, grpc=f"{n}:1", site="", version=1) for n in names)
            self.all[name] = SilentMembers(members, AFTER, lambda: self.now)

    def watchers_of(self, name: str) -> set[str]:
        return {other for other, silence in self.all.items() if name in silence.watched}


@pytest.mark.parametrize("count", [2, 4, 5, 20])
def test_each_is_watched_by_three_which_it_knows(count: int) -> None:
    """Or by all others where these are fewer."""
    bench = Bench(count)
    for name, silence in bench.all.items():
        assert set(silence.watchers) == bench.watchers_of(name)
        assert min(WATCHERS, count - 1) == len(silence.watchers)


def test_who_watches_asks_who_is_silent() -> None:
    """After the patience; who does not watch asks when it is told, or much later."""
    bench = Bench(20)
    node = bench.all["n00"]
    watched = next(iter(node.watched))
    other = next(n for n in bench.all if n not in node.watched and n != "n00")
    bench.now += patience(AFTER) - 0.1
    assert [] == node.due() and not node.is_due(watched)
    bench.now += 0.2
    assert set(node.watched) == set(node.due())
    assert not node.is_due(other)
    node.store_report("n05", [other])
    assert node.is_due(other)
    node.record_contact(other)
    assert not node.is_due(other)
    bench.now += 31.0
    assert node.is_due(other)


def test_others_are_told_of_what_is_watched_only() -> None:
    """Each change is news; what another one told is not told on."""
    bench = Bench(20)
    node = bench.all["n00"]
    watched = next(iter(node.watched))
    node.store_report("n05", ["n07"])
    node.report()
    assert (0, ()) == (node.version, node.silent)
    node.missed(watched)
    node.missed(watched)
    assert (1, (watched,)) == (node.version, node.silent)
    node.record_contact(watched)
    bench.now += AFTER
    node.report()
    assert (2, ()) == (node.version, node.silent)


def test_reports_of_a_large_site_are_few() -> None:
    """Each goes to all members: a member that is busy comes and goes."""
    count = 50
    bench = Bench(count)
    node = bench.all["n00"]
    watched = sorted(node.watched)
    for number in range(600):
        bench.now += 0.1
        node.missed(watched[number % 3])
        node.record_contact(watched[(number + 1) % 3])
        node.report()

    assert node.version * count / 60 <= REPORTS / count * 1.2
    node.missed(watched[0])
    bench.now += AFTER + PATIENCE_OF_FIFTY
    node.report()
    assert set(node.silent) == set(node._seen)


def test_who_told_takes_it_back() -> None:
    """The member answers that one again."""
    bench = Bench(20)
    node = bench.all["n00"]
    other = next(n for n in bench.all if n not in node.watched and n != "n00")
    node.store_report("n05", [other])
    node.store_report("n05", [])

    assert not node.is_due(other)


@pytest.mark.parametrize("living", [1, 2, 5])
def test_many_that_die_at_once_are_found_by_the_others(living: int) -> None:
    """However few are left, and whoever they are: the living tell each other of all the dead."""
    bench = Bench(30)
    left = list(bench.all)[:: 30 // living][:living]
    dead = set(bench.all) - set(left)
    for _ in range(len(dead)):
        bench.now += patience(AFTER)
        for name in left:
            for other in left:
                bench.all[name].record_contact(other)
            for silent in set(bench.all[name].due()) & dead:
                bench.all[name].missed(silent)
        for name in left:
            for other in left:
                bench.all[other].store_report(name, bench.all[name].silent)

    for name in left:
        assert all(bench.all[name].is_due(one) for one in dead)
        assert not any(bench.all[name].is_due(one) for one in set(left) - {name})


def test_a_member_that_went_is_watched_by_nobody() -> None:
    """And is not told of."""
    bench = Bench(6)
    node = bench.all["n00"]
    watched = next(iter(node.watched))
    node.missed(watched)
    node._members.remove(watched)

    assert watched not in node.watched
    assert () == node.silent


def test_names_of_no_member_are_not_kept() -> None:
    """A liar's report has a thousand names, each as long as a message."""
    bench = Bench(6)
    node = bench.all["n00"]
    node.store_report("n01", ["x" * 60_000, "n02"])

    assert {"n01": frozenset({"n02"})} == node._told
