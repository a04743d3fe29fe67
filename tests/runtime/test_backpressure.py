"""Who waits for a slow consumer, and for how long."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.pair import Alarms
from txbroker.runtime.backpressure import (
    BUDGET,
    LIGHT,
    LOOK,
    PASSING,
    SHORT,
    TRIAL,
    WINDOW,
    Backpressure,
)


class Bench:
    """Pressure with a patience of one second; `relieved` counts."""

    def __init__(self, budget: float = 1.0) -> None:
        self.left = 1_000
        self.alarms = Alarms()
        self.pressure = Backpressure(self.alarms, patience=1.0, budget=budget)
        self.relieved = 0
        self.pressure.when_relieved(self.count)

    def raise_(self, target: str, *, has_drained: bool = True) -> None:
        """The target passed its high mark."""
        self.pressure.raise_(target, lambda: self.left, has_drained=has_drained)

    def count(self) -> None:
        """One more."""
        self.relieved += 1


def test_busy_target_is_waited_for() -> None:
    """Until it has come down; relief comes with the last one."""
    bench = Bench()
    bench.raise_("a")
    bench.raise_("b")
    bench.raise_("a")
    bench.pressure.lower("a")
    assert bench.pressure.active and not bench.relieved
    bench.pressure.lower("b")

    assert not bench.pressure.active
    assert bench.relieved == 1
    bench.alarms.advance(5)
    assert not bench.pressure.is_slow("a") and bench.relieved == 1


def test_stuck_target_has_its_turn_and_no_more() -> None:
    """After its patience it stalls nobody, until it has drained and is forgiven."""
    bench = Bench()
    bench.raise_("a")
    bench.alarms.advance(0.9)
    assert bench.pressure.active
    bench.alarms.advance(0.2)
    assert not bench.pressure.active and bench.pressure.is_slow("a")
    assert bench.relieved == 1
    bench.raise_("a")
    assert not bench.pressure.active
    bench.pressure.lower("a")
    bench.raise_("a")
    assert not bench.pressure.active and bench.pressure.is_slow("a")
    bench.pressure.lower("a")
    bench.alarms.advance(20)
    bench.raise_("a")

    assert bench.pressure.active and not bench.pressure.is_slow("a")


def test_target_that_takes_its_time_each_time_stalls_others_less_and_less() -> None:
    """It drains within its patience, always; in the long run a tenth of the time is its."""
    bench = Bench()
    held_up = 0.0
    for _ in range(100):
        bench.raise_("a")
        for _ in range(5):
            held_up += 0.1 * bench.pressure.active
            bench.alarms.advance(0.1)
        bench.pressure.lower("a")

    assert held_up < 1 + 0.15 * 50
    assert bench.relieved


def test_fast_target_is_never_in_debt() -> None:
    """However often it is full."""
    bench = Bench()
    for _ in range(1000):
        bench.raise_("a")
        assert bench.pressure.active
        bench.alarms.advance(0.05)
        bench.pressure.lower("a")


def test_debts_go_with_who_has_them() -> None:
    """Another client may have the same place later."""
    bench = Bench(budget=10.0)
    bench.raise_("a")
    bench.alarms.advance(2)
    bench.pressure.forget("a")
    bench.raise_("a")

    assert bench.pressure.active


def test_lowering_what_was_not_raised() -> None:
    """Nothing happens."""
    bench = Bench()
    bench.pressure.lower("a")

    assert not bench.relieved


def held_up(bench: Bench, seconds: float, step: float, act: Callable[[int], None]) -> float:
    """For how long publishers wait while `act` is called at each step."""
    waited = 0.0
    for number in range(round(seconds / step)):
        act(number)
        waited += step * bench.pressure.active
        bench.alarms.advance(step)
    return waited


def test_nobody_waits_for_strangers_that_read_nothing() -> None:
    """However many come, one after the other, whether they stay or leave again."""
    bench = Bench()

    def come(number: int) -> None:
        if number % 3:
            bench.pressure.forget(f"stranger {number - 1}")
        bench.raise_(f"stranger {number}", has_drained=False)

    assert held_up(bench, 3.0, 0.01, come) == 0
    bench.alarms.advance(TRIAL)
    assert bench.pressure.is_slow("stranger 299")


def test_stranger_that_begins_to_drain_has_its_patience() -> None:
    """It is busy, no more."""
    bench = Bench()
    bench.raise_("new", has_drained=False)
    assert not bench.pressure.active and not bench.pressure.is_slow("new")
    bench.alarms.advance(LOOK)
    bench.left -= 1
    bench.alarms.advance(LOOK)
    assert bench.pressure.active
    bench.alarms.advance(0.5)
    assert bench.pressure.active
    bench.pressure.lower("new")

    assert not bench.pressure.active and not bench.pressure.is_slow("new")


def test_all_waits_together_stay_within_the_budget() -> None:
    """Of many targets, each of which has drained before and is within its own patience."""
    bench = Bench(budget=BUDGET)

    def come(number: int) -> None:
        if number % 25 == 0:
            bench.pressure.lower(f"lazy {number - 25}")
            bench.raise_(f"lazy {number}")

    waited = held_up(bench, 30.0, 0.01, come)
    assert 0 < waited <= 30.0 / WINDOW * BUDGET + 0.5


def test_fast_target_is_waited_for_although_others_used_the_budget_up() -> None:
    """Flow control of one that drains at once takes nothing from anybody."""
    bench = Bench(budget=BUDGET)
    bench.raise_("fast", has_drained=False)
    bench.pressure.lower("fast")
    bench.raise_("stuck")
    bench.alarms.advance(0.5)
    assert not bench.pressure.active
    bench.raise_("stuck, too")
    assert not bench.pressure.active
    bench.raise_("fast")

    assert bench.pressure.active


def test_proven_target_is_waited_for_after_many_that_are_stuck() -> None:
    """For a short time: a consumer that is merely busy loses nothing to those that are stuck."""
    bench = Bench(budget=BUDGET)
    bench.raise_("busy")
    bench.alarms.advance(0.05)
    bench.pressure.lower("busy")
    for number in range(20):
        bench.raise_(f"stuck {number}")
        bench.alarms.advance(0.2)
        bench.pressure.forget(f"stuck {number}")
    bench.raise_("stuck")
    bench.raise_("busy")

    assert bench.pressure.active and not bench.pressure.is_slow("busy")
    bench.alarms.advance(0.05)
    bench.pressure.lower("busy")
    assert not bench.pressure.is_slow("busy")


def test_fast_target_is_waited_for_as_long_as_it_takes() -> None:
    """It drains much all the time; when it stops, it has its patience."""
    bench = Bench()
    bench.raise_("fast")
    for _ in range(50):
        bench.left -= 1
        bench.alarms.advance(SHORT)
        assert bench.pressure.active
    for _ in range(12):
        bench.alarms.advance(SHORT)

    assert not bench.pressure.active and bench.pressure.is_slow("fast")


def test_trial_of_a_target_whose_buffers_fill_up_is_a_wait() -> None:
    """Until the trial would have ended; what it drains meanwhile makes it one to wait for."""
    for drains in (False, True):
        bench = Bench()
        bench.pressure.hurry("fresh")
        bench.raise_("fresh", has_drained=False)
        bench.alarms.advance(LOOK / 2)
        assert not bench.pressure.active
        bench.pressure.hurry("fresh")
        assert bench.pressure.active
        bench.alarms.advance(TRIAL / 2)
        bench.left -= drains
        bench.alarms.advance(TRIAL / 2)

        assert drains == bench.pressure.active
        assert drains != bench.pressure.is_slow("fresh")


def test_light_publishes_pass_up_to_a_limit() -> None:
    """In each wait: thousands of light clients are as heavy as one flood."""
    bench = Bench()
    assert not bench.pressure.may_pass(1)
    for _ in range(2):
        bench.raise_("slow")
        assert not bench.pressure.may_pass(LIGHT + 1)
        passed = sum(bench.pressure.may_pass(LIGHT) for _ in range(1_000))
        assert passed == PASSING // LIGHT and not bench.pressure.may_pass(1)
        bench.pressure.lower("slow")
