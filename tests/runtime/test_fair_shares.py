"""Fair shares of a node's time."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from txbroker.runtime.fair_shares import (
    CREDIT,
    CROWD,
    ENOUGH,
    HURRIED,
    LIGHT,
    NEWCOMERS,
    SHARE,
    TURN,
    FairShare,
    FairShares,
)
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.runtime.slices import Slices


@attrs.define(eq=False)
class Bench:
    """Shares on a clock that goes on when somebody works."""

    time: float = 0.0
    later: list[Callable[[], None]] = attrs.Factory(list)
    done: list[str] = attrs.Factory(list)
    told: list[int] = attrs.Factory(list)
    shares: FairShares = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.shares = FairShares(
            later=self.later.append,
            now=lambda: self.time,
            worked=lambda: self.time,
            flush_queue=FlushQueue(lambda action: None),
            tell=self.told.append,
        )

    def turn(self) -> None:
        """The next turn of the event loop."""
        due, self.later[:] = list(self.later), []
        for action in due:
            action()

    def crowd(self) -> None:
        """Clients with more work than there is time for."""
        for number in range(50):
            self.shares.serve(Client(self, f"{number}", 1_000, HURRIED / 10))

    def fill(self, count: int) -> None:
        """So many newcomers come, and no more are wanted until the next turn."""
        for number in range(count):
            assert not self.shares.defers_newcomers()
            self.shares.serve(Newcomer(self, f"{number}", 1, SHARE))
        assert self.shares.defers_newcomers()
        self.turn()
        assert not self.shares.defers_newcomers()

    def measure_turn(self) -> float:
        """How long the next turn takes."""
        before = self.time
        self.turn()
        return self.time - before


@attrs.define(eq=False)
class Client:
    """Has so many steps to do, which take so long."""

    bench: Bench
    name: str
    steps: int
    takes: float = SHARE / 4
    share: FairShare | None = None
    states: list[bool] = attrs.Factory(list)
    error: Exception | None = None
    newcomer: Newcomer | None = None

    def work(self) -> bool:
        while self.steps:
            self.steps -= 1
            self.bench.time += self.takes
            self.bench.done.append(self.name)
            if self.error is not None:
                raise self.error
            if self.bench.shares.is_over:
                break
        return self.steps > 0

    def fail(self, error: Exception) -> None:
        self.bench.done.append(f"{self.name} failed")

    def on_late(self) -> None:
        assert self.share is not None
        self.states.append(self.share.is_late)


@attrs.define(eq=False)
class Newcomer(Client):
    """One that sends its first packet."""

    is_gone: bool = False
    comes_from: str = "host"

    def __attrs_post_init__(self) -> None:
        self.newcomer = self

    def drop_if_gone(self) -> bool:
        return self.is_gone

    def host(self) -> str:
        return self.comes_from


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_little_work_is_done_at_once(bench: Bench) -> None:
    client = Client(bench, "a", 2)
    bench.shares.serve(client)
    assert bench.done == ["a", "a"]
    assert client.states == []


def test_much_work_waits_when_a_share_is_used_up(bench: Bench) -> None:
    client = Client(bench, "a", 100)
    bench.shares.serve(client)
    assert len(bench.done) == 4
    assert client.states == [True]
    bench.turn()
    assert len(bench.done) == 4 + 4 * TURN / SHARE
    while bench.later:
        bench.turn()
    assert len(bench.done) == 100
    assert client.states[-1] is False


def test_whoever_asks_for_little_does_not_wait_for_others(bench: Bench) -> None:
    """Its work comes before all of theirs, which was there before."""
    for number in range(50):
        bench.shares.serve(Client(bench, f"much {number}", 1_000))
    while len(set(bench.done)) < 50:
        bench.turn()
    bench.done.clear()
    bench.shares.serve(Client(bench, "little", 1))
    bench.turn()
    bench.turn()
    assert bench.done.index("little") <= 4 * TURN / SHARE


def test_all_who_have_much_get_the_same(bench: Bench) -> None:
    clients = [Client(bench, f"{number}", 10_000, SHARE * (number + 1) / 4) for number in range(4)]
    for client in clients:
        bench.shares.serve(client)
    for _ in range(400):
        bench.turn()
    used = [bench.done.count(client.name) * client.takes for client in clients]
    assert max(used) - min(used) <= 4 * SHARE


def test_whoever_has_used_much_comes_behind_those_who_wait(bench: Bench) -> None:
    """Also with little work, and in a turn that has time left."""
    bench.shares.serve(Client(bench, "waits", 1_000))
    busy = Client(bench, "busy", 4)
    bench.shares.serve(busy)
    assert bench.done == 4 * ["waits"] + 4 * ["busy"]
    busy.steps = 1
    bench.shares.serve(busy)
    assert busy.steps
    while busy.steps:
        bench.turn()


def test_what_one_used_while_nobody_waited_is_forgotten(bench: Bench) -> None:
    """Else a crowd of others goes before it until each of them has used as much."""
    long_here = Client(bench, "long here", 0)
    for _ in range(10_000):
        long_here.steps = 2
        bench.shares.serve(long_here)
        bench.turn()
    for number in range(50):
        bench.shares.serve(Client(bench, f"much {number}", 1_000))
    bench.turn()
    bench.done.clear()
    long_here.steps = 1
    bench.shares.serve(long_here)
    for _ in range(20):
        bench.turn()
    assert "long here" in bench.done


def test_whoever_was_light_for_long_comes_before_those_who_have_just_come(bench: Bench) -> None:
    """In a storm of connections, each of them as light, it waited for dozens of turns."""
    for number in range(50):
        bench.shares.serve(Client(bench, f"much {number}", 1_000))
    known = Client(bench, "known", 1, CREDIT / 2, share=FairShare(0.0))
    for _ in range(400):
        bench.turn()
    for number in range(30):
        bench.shares.serve(Client(bench, f"new {number}", 1, TURN))
    came = []
    for _ in range(4):
        known.steps = 1
        bench.shares.serve(known)
        bench.done.clear()
        while known.steps:
            bench.turn()
        came.append(bench.done.index("known"))
    assert came[:2] == [0, 0]
    assert came[2] > 10  # the credit is used up


def test_a_crowd_of_light_workers_does_not_starve_one_that_used_more(bench: Bench) -> None:
    """Their steps were not counted: 1,200 clients that pinged held another up until they ended."""
    crowd = [Client(bench, f"light {number}", 0, LIGHT / 4) for number in range(200)]
    here = Client(bench, "here", 1, 3 * LIGHT)

    def turn() -> None:
        for one in crowd:
            if not one.steps:
                one.steps = 1
                bench.shares.serve(one)
        bench.turn()

    for _ in range(20):
        turn()
    bench.done.clear()
    for _ in range(3):
        here.steps = 1
        bench.shares.serve(here)
        while here.steps and len(bench.done) < 10_000:
            turn()
    assert bench.done.count("here") == 3
    # A step of `here` is as much as three of theirs.
    assert len(bench.done) < 15 * len(crowd)


def test_newcomers_do_not_stand_before_those_who_are_here(bench: Bench) -> None:
    """However many come: they have a part of the turn."""
    bench.shares.serve(Client(bench, "much", 1_000))
    for number in range(200):
        bench.shares.serve(Newcomer(bench, f"new {number}", 1, SHARE))
    bench.done.clear()
    bench.shares.serve(Client(bench, "here", 1))
    bench.turn()
    bench.turn()
    assert "here" in bench.done
    assert sum(name.startswith("new") for name in bench.done) < 10


def test_those_who_are_here_do_not_stand_before_a_newcomer(bench: Bench) -> None:
    """However many they are, and however little each has used."""
    for number in range(1_000):
        bench.shares.serve(Client(bench, f"much {number}", 1_000))
    bench.turn()
    bench.done.clear()
    bench.shares.serve(Newcomer(bench, "new", 1))
    bench.turn()
    assert "new" in bench.done


def test_hosts_of_newcomers_take_turns(bench: Bench) -> None:
    """A newcomer of another host waits for one of a crowd's, not for the crowd."""
    bench.shares.serve(Client(bench, "much", 100_000, TURN))
    for number in range(CROWD // 2):
        bench.shares.serve(Newcomer(bench, f"crowd {number}", 1, SHARE))
    bench.shares.serve(Newcomer(bench, "other", 1, SHARE, comes_from="elsewhere"))
    bench.done.clear()
    while "other" not in bench.done:
        bench.turn()
    assert [name for name in bench.done if name != "much"] == ["crowd 0", "other"]


def test_one_of_a_crowd_that_comes_and_goes_waits_for_few(bench: Bench) -> None:
    """Those who have gone are dropped, unless they are so few that it does not matter."""
    bench.shares.serve(Client(bench, "much", 100_000))
    gone = [Newcomer(bench, f"gone {n}", 1, SHARE, is_gone=True) for n in range(5_000)]
    here = Newcomer(bench, "new", 1, SHARE)
    for one in [*gone, here, *(Newcomer(bench, f"few {n}", 1, SHARE) for n in range(CROWD))]:
        bench.shares.serve(one)
    for _ in range(5):
        bench.turn()
    assert "new" in bench.done
    few = [Newcomer(bench, "one more", 1, SHARE, is_gone=True)]
    bench.shares.serve(few[0])
    for _ in range(2 * CROWD):
        bench.turn()
    assert "one more" in bench.done


def test_a_turn_that_becomes_short_ends_for_those_who_come(bench: Bench) -> None:
    """Else nobody new is let in until somebody works: a node with a slow disk was deaf."""
    bench.shares.serve(Client(bench, "some", 1, TURN / 3))
    bench.shares.await_sync(True)
    assert bench.shares.defers_newcomers()
    bench.turn()
    assert not bench.shares.defers_newcomers()


def test_a_newcomer_that_waits_is_read_until_it_brings_more(bench: Bench) -> None:
    """To stop and to begin again costs as much as its work; what more it brings stays with it."""
    bench.shares.serve(Client(bench, "much", 1_000, TURN))
    first, second = (Newcomer(bench, name, 1) for name in ("first", "second"))
    for one in (first, second):
        bench.shares.serve(one)
    assert first.states == second.states == []
    bench.shares.serve(second)
    assert (first.states, second.states) == ([], [True])
    for _ in range(3):
        bench.turn()
    assert second.states[-1] is False


def test_those_who_wait_in_a_crowd_are_not_read(bench: Bench) -> None:
    """Nor heard of if they leave: thousands of ends would hold up those who stay."""
    bench.shares.serve(Client(bench, "much", 1_000, TURN))
    new = [Newcomer(bench, f"new {number}", 1) for number in range(CROWD + 2)]
    for one in new:
        bench.shares.serve(one)
    assert [one.states for one in new[CROWD - 1 :]] == [[], [True], [True]]


def test_no_more_newcomers_are_asked_for_than_there_is_time_for(bench: Bench) -> None:
    """As long as nobody else has work, none has to wait here."""
    bench.fill(int(TURN / SHARE))


def test_newcomers_come_to_wait_while_others_have_work(bench: Bench) -> None:
    """Else those would use up each turn before a newcomer is heard of."""
    bench.shares.serve(Client(bench, "much", 100_000, TURN))
    bench.fill(ENOUGH)


def test_newcomers_have_their_part_of_a_turn_before_they_are_served_as_well(bench: Bench) -> None:
    """Otherwise their accepts alone make the turn of a client long."""
    bench.crowd()
    bench.turn()
    assert not bench.shares.defers_newcomers()
    bench.shares.charge_newcomers(TURN * NEWCOMERS)
    assert bench.shares.defers_newcomers()
    bench.turn()
    assert not bench.shares.defers_newcomers()


def test_an_error_is_of_one_alone(bench: Bench) -> None:
    wrong = Client(bench, "wrong", 100, error=None)
    bench.shares.serve(wrong)
    other = Client(bench, "other", 100)
    bench.shares.serve(other)
    wrong.error = ValueError()
    while bench.later:
        bench.turn()
    assert "wrong failed" in bench.done
    assert other.steps == 0


def test_turns_are_short_while_somebody_waits_for_many(bench: Bench) -> None:
    """And as long as ever when nobody does any more."""
    told: list[bool] = []
    bench.shares.when_hurried(told.append)
    bench.crowd()
    with bench.shares.hurry(), bench.shares.hurry():
        bench.measure_turn()
        assert bench.measure_turn() == pytest.approx(HURRIED, abs=HURRIED / 5)
    bench.measure_turn()
    assert bench.measure_turn() == pytest.approx(TURN, abs=HURRIED / 5)
    assert told == [True, False]


def test_turns_are_short_while_somebody_waits_for_a_sync(bench: Bench) -> None:
    """What is read at once is not less for that; others that wait are not forgotten."""
    read: list[bool] = []
    slices = Slices(lambda: 0.0, lambda: None)
    bench.shares.when_hurried(read.append)
    bench.shares.shorten(slices)
    bench.crowd()
    bench.shares.await_sync(True)
    bench.measure_turn()
    assert bench.measure_turn() == pytest.approx(HURRIED, abs=HURRIED / 5)
    assert (read, slices.is_short) == ([], True)
    with bench.shares.hurry():
        bench.shares.await_sync(False)
        bench.measure_turn()
        assert bench.measure_turn() == pytest.approx(HURRIED, abs=HURRIED / 5)
    bench.measure_turn()
    assert bench.measure_turn() == pytest.approx(TURN, abs=HURRIED / 5)
    assert (read, slices.is_short) == ([True, False], False)


def test_it_is_told_how_many_wait(bench: Bench) -> None:
    """So that they are read in smaller pieces."""
    for number in range(3):
        bench.shares.serve(Client(bench, f"{number}", 10))
    assert max(bench.told) == 3
    while bench.later:
        bench.turn()
    assert bench.told[-1] == 0
