"""The filters of a zone and the zones of a filter say the same, whatever is known of the tree."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.recorders import cut
from txbroker.core import Router
from txbroker.core.sorted_filters import SortedFilters
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.routing.zone_interest import wanted, wanted_within
from txbroker.model.topics import is_filter_within, is_sys, is_within, may_match_within

APEXES = st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map("/".join)
FILTERS = st.builds(
    lambda levels, end: "/".join([*levels, *end]),
    st.lists(st.sampled_from("ab+"), min_size=1, max_size=4),
    st.sampled_from([[], ["#"]]),
)


@st.composite
def maps(draw: st.DrawFn) -> ResolverCache:
    """Zones that are known, and cuts that they told: maybe not all, maybe of another time."""
    zones = ResolverCache(Router(lambda: None))
    for apex in draw(st.sets(APEXES, max_size=7)):
        zones.add(cut(apex))
    for route in zones:
        below = [one.apex for one in zones if one is not route and is_within(one.apex, route.apex)]
        near = [apex for apex in below if zones.enclosing(apex) is route]
        told = draw(st.sampled_from([None, near, below]))
        if told is not None:
            route.learn_cuts({a: cut(a) for a in told if draw(st.integers(0, 4))})
    return zones


@settings(max_examples=100, deadline=None)
@given(maps(), st.sets(FILTERS, max_size=15))
def test_both_sides_agree(zones: ResolverCache, filters: set[str]) -> None:
    """Of each zone, of each pair, and below each apex."""
    filters |= {"#", "+", "$a/b"}
    known = SortedFilters()
    for text in filters:
        known.add(text)
    cover = {text: zones.cover(text) for text in filters}
    for route in zones:
        expected = {text for text in filters if route in cover[text]}

        assert expected == wanted(zones, known, route)
        assert expected == {text for text in filters if zones.is_covered(text, route)}
        for below in zones.within(route.apex):
            within = {text for text in expected if is_filter_within(text, below.apex)}
            assert within == wanted_within(zones, known, route, below.apex)


@settings(max_examples=50, deadline=None)
@given(maps(), st.sets(FILTERS, max_size=10), APEXES)
def test_zone_or_what_stands_for_it_concerns(
    zones: ResolverCache, filters: set[str], apex: str
) -> None:
    """Known or not."""
    for text in filters:
        expected = (
            not is_sys(text)
            and may_match_within(text, apex)
            and any(
                route.apex == apex or (route.cuts is None and is_within(apex, route.apex))
                for route in zones.cover(text)
            )
        )

        assert expected == zones.may_concern(text, apex)
