"""The dates of a log's entries, for messages that expire."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import Clock
from txbroker.storage.lived_time import MOST_MARKS, SECOND, STEP, LivedTime, RecordAges


class Table:
    """A table that nobody writes to a disk."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        return self.values.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self.values[key] = value


def clock_of(timers: Clock, wall: int = 1_000 * SECOND) -> LivedTime:
    return LivedTime(Table(), now=timers.now, wall=lambda: wall, last=0)  # type: ignore[arg-type]


def test_entries_of_this_process_age_by_its_clock() -> None:
    """Whatever the wall clock of their batch says."""
    timers = Clock()
    ages = RecordAges(clock_of(timers), 10)
    ages.note(11)
    timers.advance(5.0)
    ages.note(12)
    timers.advance(2.0)
    assert 7.0 - STEP / SECOND <= ages.age(11, 0) <= 7.0
    assert 2.0 - STEP / SECOND <= ages.age(12, 10**18) <= 2.0
    assert 0.0 == ages.age(13, 0)


def test_no_entry_is_younger_than_now() -> None:
    """Though time goes on between two looks at the clock: nothing is added to an interval."""
    looks = iter(range(1_000))
    clock = LivedTime(Table(), now=lambda: next(looks) / 1_000, wall=lambda: 0, last=0)  # type: ignore[arg-type]
    ages = RecordAges(clock, 0)
    ages.note(1)
    assert 0.0 <= ages.age(1, 0)
    assert 0.0 <= ages.age(2, 0)


def test_older_entries_age_by_the_wall_clock_until_the_start() -> None:
    """And by the process's own clock from there on; a clock that went back counts as nothing."""
    timers = Clock()
    ages = RecordAges(clock_of(timers), 10)
    timers.advance(3.0)
    assert 63.0 == ages.age(10, 940 * SECOND)
    assert 3.0 == ages.age(9, 2_000 * SECOND)


@given(pauses=st.lists(st.floats(0.0, 3.0), min_size=1, max_size=60))
def test_no_entry_is_dated_too_early(pauses: list[float]) -> None:
    """It may be dated a step too late: a message must not expire early."""
    timers = Clock()
    ages = RecordAges(clock_of(timers), 0)
    appended = []
    for entry, pause in enumerate(pauses, 1):
        timers.advance(pause)
        ages.note(entry)
        appended.append(timers.now())
    for entry, moment in enumerate(appended, 1):
        age = timers.now() - moment
        assert age - STEP / SECOND - 1e-5 <= ages.age(entry, 0) <= age + 1e-5


def test_entries_of_one_step_share_a_mark() -> None:
    """With a mark of its own each, a busy log would date its entries of a minute ago by seconds."""
    timers = Clock()
    ages = RecordAges(clock_of(timers), 0)
    seconds, a_second = 60, 1_000
    for entry in range(seconds * a_second):
        ages.note(entry + 1)
        timers.advance(1 / a_second)
    for second in range(seconds):
        age = seconds - second
        assert age - STEP / SECOND - 0.01 <= ages.age(second * a_second + 1, 0) <= age + 0.01


def test_marks_are_bounded() -> None:
    """Of old entries ever fewer have a mark of their own, and none is dated too early."""
    timers = Clock()
    ages = RecordAges(clock_of(timers), 0)
    for entry in range(1, 3 * MOST_MARKS):
        ages.note(entry)
        timers.advance(1.0)
    assert len(ages._ends) <= MOST_MARKS
    assert ages.age(1, 0) <= 3 * MOST_MARKS
    assert ages.age(3 * MOST_MARKS - 1, 0) >= 0.8
