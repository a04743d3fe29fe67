"""Who waits for a slow consumer, and for how long."""

from __future__ import annotations

from tests.support.pair import Alarms
from txbroker.pressure import Pressure


class Bench:
    """Pressure with a patience of one second; `relieved` counts."""

    def __init__(self) -> None:
        self.alarms = Alarms()
        self.pressure = Pressure(self.alarms, patience=1.0)
        self.relieved = 0
        self.pressure.when_relieved(self.count)

    def count(self) -> None:
        """One more."""
        self.relieved += 1


def test_busy_target_is_waited_for() -> None:
    """Until it has come down; relief comes with the last one."""
    bench = Bench()
    bench.pressure.raise_("a")
    bench.pressure.raise_("b")
    bench.pressure.raise_("a")
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
    bench.pressure.raise_("a")
    bench.alarms.advance(0.9)
    assert bench.pressure.active
    bench.alarms.advance(0.2)
    assert not bench.pressure.active and bench.pressure.is_slow("a")
    assert bench.relieved == 1
    bench.pressure.raise_("a")
    assert not bench.pressure.active
    bench.pressure.lower("a")
    bench.pressure.raise_("a")
    assert not bench.pressure.active and bench.pressure.is_slow("a")
    bench.pressure.lower("a")
    bench.alarms.advance(20)
    bench.pressure.raise_("a")

    assert bench.pressure.active and not bench.pressure.is_slow("a")


def test_target_that_takes_its_time_each_time_stalls_others_less_and_less() -> None:
    """It drains within its patience, always; in the long run a tenth of the time is its."""
    bench = Bench()
    held_up = 0.0
    for _ in range(100):
        bench.pressure.raise_("a")
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
        bench.pressure.raise_("a")
        assert bench.pressure.active
        bench.alarms.advance(0.05)
        bench.pressure.lower("a")


def test_debts_go_with_who_has_them() -> None:
    """Another client may have the same place later."""
    bench = Bench()
    bench.pressure.raise_("a")
    bench.alarms.advance(2)
    bench.pressure.forget("a")
    bench.alarms.advance(5)  # the node's budget
    bench.pressure.raise_("a")

    assert bench.pressure.active


def test_lowering_what_was_not_raised() -> None:
    """Nothing happens."""
    bench = Bench()
    bench.pressure.lower("a")

    assert not bench.relieved


def test_node_waits_for_all_new_targets_together_a_tenth_of_the_time() -> None:
    """However many come that never drain anything; each has what is left."""
    bench = Bench()
    held_up = 0.0
    for number in range(400):
        bench.pressure.raise_(f"stuck {number}")
        for _ in range(50):
            held_up += 0.005 * bench.pressure.active
            bench.alarms.advance(0.005)

    assert held_up < 1 + 0.12 * 100


def test_proven_target_is_waited_for_when_the_budget_is_gone() -> None:
    """For a short time: a consumer that is merely busy loses nothing to those that are stuck."""
    bench = Bench()
    bench.pressure.raise_("busy")
    bench.alarms.advance(0.05)
    bench.pressure.lower("busy")
    for number in range(20):
        bench.pressure.raise_(f"stuck {number}")
        bench.alarms.advance(0.2)
        bench.pressure.forget(f"stuck {number}")
    bench.pressure.raise_("stuck")
    bench.pressure.raise_("busy")

    assert bench.pressure.active and not bench.pressure.is_slow("busy")
    bench.alarms.advance(0.05)
    bench.pressure.lower("busy")
    assert not bench.pressure.is_slow("busy")
