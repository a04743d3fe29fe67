"""Many deadlines on few delayed calls; no time passes."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
from twisted.internet.task import Clock

from txbroker.runtime.deadlines import GRAIN, Deadlines


@attrs.define(eq=False)
class Waiting:
    """It notes when it was called."""

    clock: Clock
    called: list[float] = attrs.field(factory=list)
    then: Callable[[], object] = lambda: None

    def on_deadline(self) -> None:
        self.called.append(self.clock.seconds())
        self.then()


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.1, 1.0, 1.55, 90.0])
def test_never_early_and_hardly_late(delay: float) -> None:
    """Once, within a grain of the moment."""
    clock = Clock()
    clock.advance(12.34)
    deadlines, who = Deadlines(clock), Waiting(clock)
    deadlines.set(who, delay)
    clock.pump([GRAIN / 4] * int(delay / GRAIN * 4 + 8))
    (moment,) = who.called
    assert delay <= moment - 12.34 + 1e-9
    assert moment - 12.34 <= delay + 1.25 * GRAIN + 1e-9
    assert not clock.getDelayedCalls()


def test_one_call_for_all() -> None:
    """The earliest is due, whatever the order in which they are set."""
    clock = Clock()
    deadlines = Deadlines(clock)
    several = [Waiting(clock) for _ in range(300)]
    for number, who in enumerate(several):
        deadlines.set(who, (number * 7 % 5) + 1.0)
        assert 1 == len(clock.getDelayedCalls())
    clock.pump([GRAIN] * 12)
    assert [who for who in several if who.called] == several[::5]
    clock.pump([GRAIN] * 50)
    assert all(len(who.called) == 1 for who in several)


def test_cancelled() -> None:
    """It is not called; with the last of them, nothing is due any more."""
    clock = Clock()
    deadlines, one, other = Deadlines(clock), Waiting(clock), Waiting(clock)
    slots = [deadlines.set(who, 1.0) for who in (one, other)]
    deadlines.cancel(one, slots[0])
    clock.advance(1.0 + GRAIN)
    assert ([], 1) == (one.called, len(other.called))
    deadlines.cancel(other, slots[1])
    deadlines.cancel(one, deadlines.set(one, 1.0))
    assert not clock.getDelayedCalls()


def test_set_and_cancelled_while_others_are_called() -> None:
    """Both work, also when the one that is cancelled was the last."""
    clock = Clock()
    deadlines, one, other = Deadlines(clock), Waiting(clock), Waiting(clock)
    slot = deadlines.set(other, 1.0)

    def change() -> None:
        deadlines.cancel(other, slot)
        one.then = lambda: None
        deadlines.set(one, 1.0)

    one.then = change
    other.then = lambda: deadlines.cancel(one, slot)
    deadlines.set(one, 1.0)
    clock.pump([GRAIN] * 25)
    assert 1 <= len(one.called) + len(other.called) <= 2
    assert not clock.getDelayedCalls()


def test_an_error_of_one_is_not_of_the_others() -> None:
    """They are called soon after."""
    clock = Clock()
    deadlines = Deadlines(clock)
    several = [Waiting(clock) for _ in range(5)]

    def fail() -> None:
        raise RuntimeError("a mistake")

    for who in several:
        deadlines.set(who, 1.0)
        who.then = fail
    for _ in several:
        with pytest.raises(RuntimeError):
            clock.advance(1.0 + GRAIN)
    assert all(len(who.called) == 1 for who in several)


def test_moments_for_which_nobody_waits_any_more() -> None:
    """Clients choose their keep-alive: many that come and go leave little behind."""
    clock = Clock()
    deadlines, stays, goes = Deadlines(clock), Waiting(clock), Waiting(clock)
    deadlines.set(stays, 3_000.0)
    for number in range(20_000):
        deadlines.cancel(goes, deadlines.set(goes, 1.0 + number))

    assert 1_500 >= len(deadlines)
    clock.pump([1.0] * 3_001)
    assert ([], 1) == (goes.called, len(stays.called))
