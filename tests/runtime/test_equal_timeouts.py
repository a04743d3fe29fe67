"""One alarm for many who wait equally long; no time passes."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.clock import Clock
from txbroker.runtime.equal_timeouts import EqualTimeouts


def test_each_is_called_at_its_time() -> None:
    clock = Clock()
    patience = EqualTimeouts(clock)
    called: list[tuple[int, float]] = []

    def call(number: int) -> None:
        called.append((number, clock.now()))

    for number in range(5):
        patience.call_later(2.0, partial(call, number))
        clock.advance(0.5)
    clock.advance(10.0)

    assert [(number, 2.0 + number / 2) for number in range(5)] == called
    patience.call_later(2.0, partial(call, 9))
    clock.advance(2.0)
    assert (9, 14.5) == called[-1]


def test_who_has_cancelled_is_not_called() -> None:
    clock = Clock()
    patience = EqualTimeouts(clock)
    called: list[int] = []
    waits = [patience.call_later(1.0, partial(called.append, number)) for number in range(4)]
    for number in (0, 3, 3):
        waits[number].cancel()

    clock.advance(1.0)
    for wait in waits:
        wait.cancel()

    assert [1, 2] == called


def test_an_error_is_not_of_the_others() -> None:
    clock = Clock()
    patience = EqualTimeouts(clock)
    called: list[int] = []
    patience.call_later(1.0, lambda: 1 / 0 and None)
    patience.call_later(1.0, partial(called.append, 1))

    with pytest.raises(ZeroDivisionError):
        clock.advance(1.0)
    clock.advance(0.0)

    assert [1] == called


def test_who_waits_anew_when_called_waits_as_long_again() -> None:
    clock = Clock()
    patience = EqualTimeouts(clock)
    called: list[float] = []

    def again() -> None:
        called.append(clock.now())
        patience.call_later(1.0, again)

    patience.call_later(1.0, again)
    for _ in range(6):
        clock.advance(0.5)

    assert [1.0, 2.0, 3.0] == called
