"""Many deadlines on few delayed calls; no time passes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs
import pytest

from tests.support.clock import Clock
from txbroker.runtime.deadlines import GRAIN, RING_FOR, Deadlines


@attrs.define(eq=False)
class Waiting:
    """It notes when it was called."""

    clock: Clock
    called: list[float] = attrs.field(factory=list)
    then: Callable[[], object] = lambda: None

    def on_deadline(self) -> None:
        self.called.append(self.clock.now())
        self.then()


def pump(clock: Clock, pauses: list[float]) -> None:
    """Time passes bit by bit."""
    for pause in pauses:
        clock.advance(pause)


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.1, 1.0, 1.55, 90.0])
def test_never_early_and_hardly_late(delay: float) -> None:
    """Once, within a grain of the moment."""
    clock = Clock()
    clock.advance(12.34)
    deadlines, who = Deadlines(clock), Waiting(clock)
    deadlines.set(who, delay)
    pump(clock, [GRAIN / 4] * int(delay / GRAIN * 4 + 8))
    (moment,) = who.called
    assert delay <= moment - 12.34 + 1e-9
    assert moment - 12.34 <= delay + 1.25 * GRAIN + 1e-9
    assert not clock.alarms


def test_one_call_for_all() -> None:
    """The earliest is due, whatever the order in which they are set."""
    clock = Clock()
    deadlines = Deadlines(clock)
    several = [Waiting(clock) for _ in range(300)]
    for number, who in enumerate(several):
        deadlines.set(who, (number * 7 % 5) + 1.0)
        assert 1 == len(clock.alarms)
    pump(clock, [GRAIN] * 12)
    assert [who for who in several if who.called] == several[::5]
    pump(clock, [GRAIN] * 50)
    assert all(len(who.called) == 1 for who in several)


def test_a_crowd_with_one_deadline_is_called_in_many_turns() -> None:
    """Thousands of clients with one keep-alive went silent: the node was deaf as it closed them."""
    clock = Clock()
    deadlines = Deadlines(clock)

    def work() -> None:
        clock._now += RING_FOR / 3.5

    crowd = [Waiting(clock, then=work) for _ in range(20)]
    for who in crowd:
        deadlines.set(who, 1.0)
    later = Waiting(clock)
    deadlines.set(later, 1.0 + GRAIN)
    turns = []
    clock.advance(1.0 - GRAIN)
    clock._now += GRAIN * 1.5
    while clock.alarms and not later.called:
        (alarm,) = clock.alarms
        if alarm.due > clock.now():
            clock._now = alarm.due
        alarm.cancel()
        alarm.action()
        turns.append(sum(len(who.called) for who in crowd))
    assert turns[:5] == [4, 8, 12, 16, 20]
    assert len(later.called) == 1 and not clock.alarms


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
    assert not clock.alarms


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
    pump(clock, [GRAIN] * 25)
    assert 1 <= len(one.called) + len(other.called) <= 2
    assert not clock.alarms


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
    pump(clock, [1.0] * 3_001)
    assert ([], 1) == (goes.called, len(stays.called))


def test_each_is_called_at_its_time() -> None:
    clock = Clock()
    deadlines = Deadlines(clock)
    called: list[tuple[int, float]] = []

    def call(number: int) -> None:
        called.append((number, clock.now()))

    for number in range(5):
        deadlines.call_later(2.0, partial(call, number))
        clock.advance(0.5)
    clock.advance(10.0)

    assert [(number, 2.0 + number / 2) for number in range(5)] == called
    deadlines.call_later(2.0, partial(call, 9))
    clock.advance(2.0)
    assert (9, 14.5) == called[-1]


def test_who_has_cancelled_is_not_called() -> None:
    clock = Clock()
    deadlines = Deadlines(clock)
    called: list[int] = []
    waits = [deadlines.call_later(1.0, partial(called.append, number)) for number in range(4)]
    for number in (0, 3, 3):
        waits[number].cancel()

    clock.advance(1.0)
    for wait in waits:
        wait.cancel()

    assert [1, 2] == called


def test_an_error_of_one_action_is_not_of_the_others() -> None:
    clock = Clock()
    deadlines = Deadlines(clock)
    called: list[int] = []
    deadlines.call_later(1.0, lambda: 1 / 0 and None)
    deadlines.call_later(1.0, partial(called.append, 1))

    with pytest.raises(ZeroDivisionError):
        clock.advance(1.0)
    clock.advance(0.0)

    assert [1] == called


def test_who_waits_anew_when_called_waits_as_long_again() -> None:
    clock = Clock()
    deadlines = Deadlines(clock)
    called: list[float] = []

    def again() -> None:
        called.append(clock.now())
        deadlines.call_later(1.0, again)

    deadlines.call_later(1.0, again)
    for _ in range(6):
        clock.advance(0.5)

    assert [1.0, 2.0, 3.0] == called
