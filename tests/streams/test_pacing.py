"""When the node waits for company."""

from __future__ import annotations

from select import EPOLLIN

from txbroker.streams.pacing import LONGEST, MANY, PAUSE, RATE, WINDOW, Pacing


def woken(pacing: Pacing, times: int, *, rate: float, different: int, start: float = 0.0) -> float:
    """So many times, by one of so many connections each time; when the last was."""
    now = start
    for number in range(times):
        now += 1 / rate
        pacing.note([(10 + number % different, EPOLLIN)], now)
    return now


def test_many_that_come_fast_wait_for_company() -> None:
    pacing = Pacing()
    assert 0.0 == pacing.pause
    woken(pacing, 3 * WINDOW, rate=2 * RATE, different=1000)
    assert PAUSE == pacing.pause


def test_a_few_never_wait_however_fast_they_are() -> None:
    pacing = Pacing()
    woken(pacing, 100 * WINDOW, rate=20 * RATE, different=MANY - 1)
    assert 0.0 == pacing.pause


def test_many_that_come_slowly_never_wait() -> None:
    pacing = Pacing()
    woken(pacing, 100 * WINDOW, rate=RATE / 2, different=1000)
    assert 0.0 == pacing.pause


def test_several_at_a_time_count_each() -> None:
    """As they come when there has been a pause."""
    pacing = Pacing()
    now = 0.0
    for number in range(3 * WINDOW):
        now += 4 / (2 * RATE)
        pacing.note([(10 + 4 * (number % 25) + n, EPOLLIN) for n in range(4)], now)
    assert PAUSE == pacing.pause


def test_it_ends_soon_after_they_have_gone() -> None:
    pacing = Pacing()
    now = woken(pacing, 3 * WINDOW, rate=2 * RATE, different=1000)
    pacing.note([(10, EPOLLIN)], now + 2 * LONGEST)
    assert 0.0 == pacing.pause
