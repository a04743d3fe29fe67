"""Filters and apexes in their order: which of them meet, and what a look costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txbroker.core import sorted_filters
from txbroker.core.sorted_filters import SortedApexes, SortedFilters, SortedTexts
from txbroker.model.topics import is_filter_within, may_match_within

# `!` sorts before a slash, `0` right behind it, the rest around them.
LEVELS = st.sampled_from(["a", "b", "a!", "a0", "", "ü"])
APEXES = st.lists(st.sampled_from(["a", "b", "a!", "a0"]), min_size=1, max_size=3).map("/".join)


def to_filter(levels: list[str], *, is_open: bool) -> str:
    return "/".join([*levels[:-1], "#"] if is_open else levels) or "a"


FILTERS = st.builds(
    to_filter, st.lists(LEVELS | st.just("+"), min_size=1, max_size=4), is_open=st.booleans()
)


@pytest.fixture(autouse=True)
def small_lists() -> Iterator[None]:
    """Lists that are split early."""
    with mock.patch.object(sorted_filters, "LOAD", 2):
        yield


def filled(known: SortedTexts, *contents: str) -> None:
    for text in contents:
        known.add(text)


def gathered(found: Iterable[list[str]]) -> list[str]:
    return sorted(chain.from_iterable(found))


@settings(max_examples=100, deadline=None)
@given(st.lists(FILTERS, max_size=20), st.lists(FILTERS, max_size=10), APEXES | st.just(""))
def test_filters_that_meet_an_apex_are_found(came: list[str], went: list[str], apex: str) -> None:
    """Each once, and no other; whatever came and went."""
    known = SortedFilters()
    filled(known, *came)
    for text in went:
        known.discard(text)
    left = set(came) - set(went)

    assert sorted(f for f in left if may_match_within(f, apex)) == gathered(known.touching(apex))
    assert sorted(f for f in left if is_filter_within(f, apex)) == gathered(known.within(apex))
    assert (len(left), left) == (len(known), {f for f in came if f in known})


@settings(max_examples=100, deadline=None)
@given(st.sets(APEXES, max_size=12), FILTERS)
def test_apexes_that_a_filter_meets_are_found(apexes: set[str], topic_filter: str) -> None:
    """Each once, and no other."""
    known = SortedApexes()
    filled(known, *apexes)

    expected = sorted(a for a in apexes if may_match_within(topic_filter, a))

    assert expected == sorted(known.met_by(topic_filter))


def test_look_costs_what_it_finds() -> None:
    """Not what there is."""
    known = SortedFilters()
    filled(known, *(f"z{n}/x" for n in range(5000)), *(f"+/y{n}" for n in range(5)))
    looks = 0
    seek = SortedFilters._seek

    def counted(self: SortedFilters, text: str) -> tuple[int, int]:
        nonlocal looks
        looks += 1
        return seek(self, text)

    with mock.patch.object(SortedFilters, "_seek", counted):
        assert ["+/y0", "+/y1", "+/y2", "+/y3", "+/y4", "z7/x"] == gathered(known.touching("z7"))
    assert looks < 20
