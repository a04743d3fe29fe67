"""
Lost, duplicated and out of order, counted from (topic, sequence): with faults put in on purpose.
"""

from __future__ import annotations

import random

import pytest
from accounting import Arrival, Count, Ledger, Sequence, owner
from hypothesis import given
from hypothesis import strategies as st

ZONES = ("", "home/kitchen", "home/outside", "home/outside/cams")
BATH = "home/upstairs/bath/temperature"


def account(published: list[int], received: list[int], topic: str = BATH) -> Count:
    """
    The account of one topic: numbers acknowledged to the publisher, numbers as they arrived.
    """
    ledger = Ledger()
    for number in published:
        ledger.acknowledged(topic, number)
    for number in received:
        ledger.received(topic, number)
    return ledger.by_zone(ZONES)[""]


def test_a_clean_run_has_no_faults() -> None:
    expected = Count(published=5, received=5)

    assert account([1, 2, 3, 4, 5], [1, 2, 3, 4, 5]) == expected


@pytest.mark.parametrize(
    ("received", "lost"),
    [([2, 3, 4], 1), ([1, 3, 4], 1), ([1, 2, 3], 1), ([4], 3), ([], 4)],
    ids=["first", "middle", "last", "many", "all"],
)
def test_a_missing_number_is_lost(received: list[int], lost: int) -> None:
    count = account([1, 2, 3, 4], received)

    assert (count.lost, count.duplicated, count.out_of_order) == (lost, 0, 0)


def test_a_number_that_comes_twice_is_duplicated() -> None:
    count = account([1, 2, 3], [1, 2, 2, 3, 3, 3])

    assert count == Count(published=3, received=3, duplicated=3)


def test_a_repeated_stretch_is_duplicated_and_in_order() -> None:
    """
    MQTT lets a sender repeat what was not acknowledged, from there on: 1 2 3 2 3 4.
    """
    count = account([1, 2, 3, 4], [1, 2, 3, 2, 3, 4])

    assert count == Count(published=4, received=4, duplicated=2)


def test_a_first_arrival_behind_a_later_number_is_out_of_order() -> None:
    count = account([1, 2, 3, 4], [1, 3, 2, 4])

    assert count == Count(published=4, received=4, out_of_order=1)


def test_a_late_number_that_comes_again_is_out_of_order_once_and_duplicated_once() -> None:
    count = account([1, 2, 3], [1, 3, 2, 2])

    assert count == Count(published=3, received=3, duplicated=1, out_of_order=1)


def test_what_was_never_acknowledged_is_not_lost() -> None:
    """
    2 was published, its acknowledgement never came; that it did not arrive is no broken promise.
    """
    assert account([1, 3], [1, 3]) == Count(published=2, received=2)
    assert account([1], [1]) == Count(published=1, received=1)


def test_what_arrives_without_an_acknowledgement_is_received() -> None:
    assert account([1], [1, 2]) == Count(published=1, received=2)


def test_topics_do_not_mix() -> None:
    ledger = Ledger()
    for topic in ("home/kitchen/temperature", "home/kitchen/humidity"):
        ledger.acknowledged(topic, 1)
    ledger.received("home/kitchen/humidity", 1)

    assert ledger.lost() == [("home/kitchen/temperature", 1)]
    assert ledger.by_zone(ZONES)["home/kitchen"] == Count(published=2, received=1, lost=1)


def test_each_zone_has_its_own_account_also_without_traffic() -> None:
    ledger = Ledger()
    ledger.acknowledged("home/outside/cams/gate/motion", 1)
    ledger.acknowledged("home/outside/temperature", 1)

    expected = {
        "": Count(),
        "home/kitchen": Count(),
        "home/outside": Count(published=1, lost=1),
        "home/outside/cams": Count(published=1, lost=1),
    }

    assert ledger.by_zone(ZONES) == expected


@pytest.mark.parametrize(
    ("topic", "apex"),
    [
        ("home/kitchen", "home/kitchen"),
        ("home/kitchen/lamp", "home/kitchen"),
        ("home/kitchenette/lamp", ""),
        ("home/outside/cams/gate", "home/outside/cams"),
        ("home/outside/camshaft", "home/outside"),
        ("home", ""),
        ("/home/kitchen", ""),
    ],
)
def test_the_longest_apex_of_whole_levels_owns_a_topic(topic: str, apex: str) -> None:
    assert owner(ZONES, topic) == apex


def test_lag_counts_what_may_still_come_and_forgets_what_was_overtaken() -> None:
    ledger = Ledger()
    for number in range(1, 11):
        ledger.acknowledged(BATH, number)

    assert ledger.lag() == 10

    ledger.received(BATH, 9)  # 1..8 will not come in order any more

    assert ledger.lag() == 1
    assert len(ledger.lost()) == 9


def test_a_long_run_without_holes_takes_no_memory() -> None:
    sequence = Sequence()
    for number in range(1, 50_001):
        sequence.note(number)

    assert (len(sequence), sequence.missing) == (50_000, set())


def test_arrivals_are_told_apart() -> None:
    sequence = Sequence()
    told = [sequence.note(number) for number in (1, 3, 2, 2, 4)]

    fresh, late, repeated = Arrival.FRESH, Arrival.LATE, Arrival.REPEATED
    assert told == [fresh, fresh, late, repeated, fresh]


@given(
    total=st.integers(0, 60),
    dropped=st.sets(st.integers(1, 60)),
    repeated=st.lists(st.integers(1, 60), max_size=10),
    seed=st.randoms(use_true_random=False),
)
def test_planted_faults_are_found_exactly(
    total: int, dropped: set[int], repeated: list[int], seed: random.Random
) -> None:
    """
    Whatever is dropped, repeated and shuffled, the account equals one made with plain sets.
    """
    published = list(range(1, total + 1))
    arriving = [n for n in published if n not in dropped]
    arriving += [n for n in repeated if n <= total and n not in dropped]
    seed.shuffle(arriving)
    firsts = list(dict.fromkeys(arriving))
    late = sum(1 for i, n in enumerate(firsts) if n < max(firsts[:i], default=0))

    expected = Count(
        published=total,
        received=len(firsts),
        lost=len(dropped & set(published)),
        duplicated=len(arriving) - len(firsts),
        out_of_order=late,
    )

    assert account(published, arriving) == expected
