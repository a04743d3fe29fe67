"""What is remembered for topics: how much, for how long, and what it takes."""

from __future__ import annotations

import tracemalloc

import pytest

from txbroker.core.topic_cache import LONGEST, TopicCache

MIB = 1024 * 1024


def look(known: TopicCache[str], topic: str) -> bool:
    """True if the topic was known; it is now."""
    if known.young.get(topic) or known.again(topic):
        return True
    known.put(topic, "value")
    return False


def test_topic_that_is_used_outlives_those_that_come_once() -> None:
    """However many these are."""
    known: TopicCache[str] = TopicCache(100)
    look(known, "used")
    hits = 0
    for number in range(1, 3001):
        assert not look(known, f"once/{number}")
        hits += not number % 20 and look(known, "used")

    assert hits == 150


def test_number_is_bounded() -> None:
    """And what goes is counted."""
    known: TopicCache[str] = TopicCache(10)
    for number in range(100):
        look(known, str(number))
        assert len(known) <= 10

    assert known.forgotten == 18  # generations of five, but for the last two


@pytest.mark.parametrize("length", [40, LONGEST])
def test_hundred_thousand_topics_take_at_most_16_mib(length: int) -> None:
    """Long ones as well: then they are fewer."""
    known: TopicCache[str] = TopicCache(100_000)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(110_000):
            look(known, f"{number:0{length}}")
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert taken < 16 * MIB
    assert len(known) > (45_000 if length <= 40 else 10_000)


def test_topics_that_are_very_long_are_not_kept() -> None:
    """And none where none is to be."""
    known: TopicCache[str] = TopicCache(10)
    none: TopicCache[str] = TopicCache(0)

    assert [False, False] == [look(known, "x" * (LONGEST + 1)) for _ in range(2)]
    assert [False, False] == [look(none, "x") for _ in range(2)]
    assert (0, 0) == (len(known), len(none))


def test_values_count_with_their_size() -> None:
    """Which their owner knows."""
    known: TopicCache[str] = TopicCache(1000, 10_000, size_of=len)
    for number in range(100):
        known.put(str(number), "x" * 1000)
    known.put("large", "x" * 6000)

    assert 0 < len(known) <= 10
    assert "large" not in known.young


def test_nothing_is_left_after_a_change() -> None:
    """Of either generation."""
    known: TopicCache[str] = TopicCache(10)
    young = known.young
    for number in range(8):
        look(known, str(number))
    known.clear()

    assert not any(look(known, str(number)) for number in range(8))
    assert known.young is young
