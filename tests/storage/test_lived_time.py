"""What a node has lived: over its lives, and whatever its wall clock does."""

from __future__ import annotations

from random import Random

import pytest

from tests.support.keeping import MemoryTable
from txbroker.storage.lived_time import (
    LONGEST_GAP,
    NOTED_EVERY,
    SECOND,
    STEPS,
    EntryAges,
    LivedTime,
)

DAY = 86_400 * SECOND
BEGUN = 1_700_000_000 * SECOND


class World:
    """A monotonic clock and a wall clock, in microseconds; a table that outlives processes."""

    def __init__(self) -> None:
        self.table = MemoryTable()
        self.monotonic = 5 * SECOND
        self.wall = BEGUN

    def start(self, last: int = 0) -> LivedTime:
        """A process begins; `last` see `LivedTime`."""
        return LivedTime(
            self.table,  # type: ignore[arg-type]
            now=lambda: self.monotonic / SECOND,
            wall=lambda: self.wall,
            last=last,
        )

    def run(self, lived: LivedTime, seconds: int) -> None:
        """Time passes on both clocks, and the node looks each second."""
        for _ in range(seconds):
            self.monotonic += SECOND
            self.wall += SECOND
            lived.tick()


def test_new_node_begins_at_the_time_of_day() -> None:
    """Then it counts what passes."""
    world = World()
    lived = world.start()
    begun = lived()
    world.run(lived, 90)

    assert (BEGUN, BEGUN + 90 * SECOND) == (begun, lived())


@pytest.mark.parametrize("step", [120 * SECOND, -60 * SECOND, 8 * DAY, -8 * DAY])
def test_step_of_the_wall_clock_is_not_seen(step: int) -> None:
    """While the node runs; and what is noted after it does not bring it back at the next start."""
    world = World()
    lived = world.start()
    world.run(lived, 10)
    world.wall += step
    world.run(lived, 10)
    assert BEGUN + 20 * SECOND == lived()

    lived.store()
    assert BEGUN + 20 * SECOND == world.start()()


@pytest.mark.parametrize(
    ("gap", "counted"),
    [
        (30 * SECOND, 30 * SECOND),
        (8 * DAY, LONGEST_GAP),
        (-8 * DAY, 0),
        (3_600 * SECOND, LONGEST_GAP),
    ],
)
def test_gap_between_lives_is_bounded(gap: int, counted: int) -> None:
    """It is known from the wall clock alone."""
    world = World()
    lived = world.start()
    lived.store()
    before = lived()
    world.wall += gap
    world.monotonic = SECOND  # the machine started again

    assert before + counted == world.start()()


@pytest.mark.parametrize("step", [120 * SECOND, -60 * SECOND, 8 * DAY, -8 * DAY])
def test_moment_of_an_earlier_process_goes_by_the_wall_clock_at_the_start(step: int) -> None:
    """A step while the node runs would expire, or keep for long, what earlier processes wrote."""
    world = World()
    world.run(world.start(), 100)
    lived = world.start()
    written = BEGUN + 30 * SECOND
    world.run(lived, 10)
    before = lived.at(written)
    world.wall += step
    world.run(lived, 10)

    assert (written, written) == (before, lived.at(written))
    assert BEGUN + 100 * SECOND == lived.at(world.wall + 9 * DAY), "not from a time to come"


def test_killed_node_counts_what_it_had_not_noted() -> None:
    """A node that is killed each fifty seconds grows old as others do."""
    world = World()
    for _ in range(10):
        world.run(world.start(), 50)

    assert BEGUN + 500 * SECOND == world.start()()
    assert NOTED_EVERY <= LONGEST_GAP


def test_folder_of_an_earlier_version_goes_on_from_its_last_write() -> None:
    """Its times of day stay in the past, and none is far in it because of this start."""
    world = World()
    world.wall += 8 * DAY

    assert BEGUN + LONGEST_GAP == world.start(last=BEGUN)()


def test_readings_never_go_back() -> None:
    """Over any steps, kills and stops; a day of them counts no more than what passed and gaps."""
    rng = Random(9)
    world = World()
    last, passed, gaps = BEGUN, 0, 0
    for _ in range(300):
        lived = world.start()
        seconds = rng.randrange(200)
        world.run(lived, seconds)
        passed += seconds * SECOND
        world.wall += rng.choice((0, 1, -1)) * rng.randrange(10 * DAY)
        if rng.random() < 0.5:
            lived.store()
        else:
            gaps += NOTED_EVERY  # what is not noted may be missing, too
        assert lived() >= last - NOTED_EVERY
        last = lived()
        gaps += LONGEST_GAP
        assert abs(last - BEGUN - passed) <= gaps


def test_marks_of_a_log_are_few_and_never_early() -> None:
    """An entry is let go between its age and a 64th more; marks beyond the age go."""
    now = 0
    table = MemoryTable()
    ages = EntryAges(table, lambda: now)  # type: ignore[arg-type]
    age = 640.0
    for second in range(3_000):
        now = second * SECOND
        ages.mark(b"log", second + 1, age)
        gone = ages.through(b"log", age)
        oldest = second - int(age)  # the seconds up to here are as old as that
        assert gone <= max(oldest + 1, 0)
        assert gone >= oldest - age / STEPS - 1
    assert len(table.values[b"log"]) <= 16 * (STEPS + 2)

    puts = table.puts
    now += 10 * SECOND
    ages.mark(b"log", 3_001, age)
    for _ in range(5):
        now += 100 * SECOND
        ages.mark(b"log", 3_001, age)
    assert puts + 1 == table.puts, "a log that rests costs nothing"
