"""What an edge knows of the tree of zones, and what it makes of topics and filters."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.recorders import OwnerRecorder, cut
from txbroker.core import Router
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.routing.zone_claims import StreamPosition
from txbroker.model.topics import is_within


def map_of(*apexes: str, limit: int = 100) -> ResolverCache:
    zones = ResolverCache(Router(lambda: None), limit)
    for apex in apexes:
        zones.add(cut(apex))
    return zones


def tell(zones: ResolverCache, apex: str, *below: str) -> None:
    """The zone's node names all its cuts."""
    route = zones.get(apex)
    assert route is not None
    route.learn_cuts({known: cut(known) for known in below})


def covered(zones: ResolverCache, topic_filter: str) -> list[str]:
    return [route.apex for route in zones.cover(topic_filter)]


# -- find


def test_topic_goes_to_the_deepest_known_zone() -> None:
    """By levels, and to the root zone where nothing else is known."""
    zones = map_of("house", "house/garage")
    topics = ["house/garage/door", "house/garage", "house/garages", "houses", "$x", ""]

    found = {topic: zones.find(topic).apex for topic in topics}

    assert found == {
        "house/garage/door": "house/garage",
        "house/garage": "house/garage",
        "house/garages": "house",
        "houses": "",
        "$x": "",
        "": "",
    }


def test_topic_goes_elsewhere_after_a_change() -> None:
    """With the zone that is the deepest one now."""
    zones = map_of("a")
    before = zones.find("a/b/c").apex
    zones.add(cut("a/b"))
    with_cut = zones.find("a/b/c").apex
    known = zones.get("a/b")
    assert known is not None
    zones.remove(known)

    assert ["a", "a/b", "a"] == [before, with_cut, zones.find("a/b/c").apex]


def test_long_topics_are_found() -> None:
    """Without a look-up for each of their levels."""
    zones = map_of("a")
    topic = "a" + "/x" * 30_000

    assert zones.find(topic).apex == "a"


def test_zones_above_and_below_an_apex_are_found() -> None:
    """Above: the deepest one strictly above; below: all that are strictly below."""
    zones = map_of("a", "a/b", "a/b/c", "ab")

    assert ["a", "a", "", ""] == [zones.enclosing(apex).apex for apex in ("a/b", "a/x/y", "a", "")]
    assert ["a/b", "a/b/c"] == [route.apex for route in zones.within("a")]


# -- what was known when the node stopped


def test_zone_below_the_one_of_this_node_is_followed_before_that_is_served() -> None:
    """A restored node has the zone between the two, and no grant of it yet."""
    zones = map_of()
    whole = [("", ("a",)), ("a", ("a/b",)), ("a/b/c", ())]
    zones.restore((cut(apex), tuple(map(cut, below))) for apex, below in whole)
    zones.know_between()

    assert zones.may_concern("a/b/c", "a/b/c")
    assert zones.may_concern("#", "a/b/c")
    assert ["a/b/c"] == covered(zones, "a/b/c")
    assert ["", "a", "a/b"] == covered(zones, "#")


# -- epochs


def test_older_epoch_changes_nothing() -> None:
    """Epochs of one apex only grow; the same epoch may bring a new address."""
    zones = map_of()
    route = zones.add(cut("a", 3))
    zones.add(cut("a", 2, "old"))
    old = route.cut
    moved = attrs.evolve(cut("a", 3), grpc="elsewhere:2")
    zones.add(moved)

    assert (cut("a", 3), moved) == (old, route.cut)
    assert zones.add(cut("a", 4)) is route
    assert route.epoch == 4


def test_root_route_stays_without_an_address() -> None:
    """There is always a zone for a topic, though nobody may know where."""
    zones = map_of("")
    root = zones.find("x")
    assert root.epoch == 1
    zones.remove(root)

    assert (zones.find("x"), root.cut, root.epoch) == (root, None, 0)


# -- cover


def test_unknown_cuts_stand_for_all_below() -> None:
    """A zone that has not told its cuts is asked, and names them."""
    zones = map_of()

    assert [[""], [""]] == [covered(zones, "#"), covered(zones, "a/b")]


def test_filter_touches_the_zones_that_it_may_match_in() -> None:
    """With all cuts known; the zone itself counts unless a cut covers the filter."""
    zones = map_of("a", "a/b", "c")
    tell(zones, "", "a", "c")
    tell(zones, "a", "a/b")
    for apex in ("a/b", "c"):
        tell(zones, apex)

    found = {f: covered(zones, f) for f in ("#", "a", "a/#", "a/b/x", "+/b", "d", "c/+", "+")}

    assert found == {
        "#": ["", "a", "a/b", "c"],
        "a": ["a"],
        "a/#": ["a", "a/b"],
        "a/b/x": ["a/b"],
        # `+` has as many levels as these apexes, which are topics themselves.
        "+/b": ["", "a", "a/b", "c"],
        "d": [""],
        "c/+": ["c"],
        "+": ["", "a", "c"],
    }


def test_cut_is_covered_before_its_own_cuts_are_known() -> None:
    """Its route stands for what is below it."""
    zones = map_of("a", "a/b")
    tell(zones, "", "a")

    assert ["", "a"] == covered(zones, "#")


def test_cut_that_the_map_forgot_is_known_again() -> None:
    """The zone above still names it."""
    zones = map_of()
    tell(zones, "", "a")
    assert zones.get("a") is None

    assert ["a"] == covered(zones, "a/x")
    assert zones.get("a") is not None


def test_cut_counts_once_its_owners_stream_has_said_so() -> None:
    """
    What others told serves publishes; subscriptions go by the chain of streams (rule 13).
    """
    zones = map_of("a", "a/b")
    tell(zones, "", "a")
    tell(zones, "a")
    tell(zones, "a/b")
    before = (zones.find("a/b/x").apex, covered(zones, "a/b/x"), covered(zones, "a/b/#"))
    tell(zones, "a", "a/b")

    assert ("a/b", ["a"], ["a"]) == before
    assert ["a/b"] == covered(zones, "a/b/x")


def test_zone_below_one_that_is_not_known_is_trusted() -> None:
    """Nothing better is known than that somebody told of it."""
    zones = map_of("a", "a/b")
    tell(zones, "a", "a/b")
    tell(zones, "a/b")

    assert [["a/b"], ["a", "a/b"]] == [covered(zones, "a/b/x"), covered(zones, "a/#")]


@pytest.mark.parametrize("topic_filter", ["$app/#", "$app/a"])
def test_dollar_topics_are_the_root_zones(topic_filter: str) -> None:
    """No apex begins with a dollar (rule 26)."""
    zones = map_of("a")
    tell(zones, "", "a")

    assert [""] == covered(zones, topic_filter)


# -- the limit


def test_zone_that_nobody_needs_makes_room() -> None:
    """The number of zones is bounded; those in use stay."""
    zones = map_of("a", "b", limit=3)
    used = zones.get("a")
    assert used is not None
    used.connect(OwnerRecorder(), StreamPosition(epoch=1, offset=0))
    zones.add(cut("c"))

    assert ["", "a", "c"] == [route.apex for route in zones]
    wanted = zones.get("c")
    assert wanted is not None
    wanted.interest.add("c/#")
    zones.add(cut("d"))  # all are needed: a zone in use is worth more than the limit

    assert ["", "a", "c", "d"] == [route.apex for route in zones]


def test_topics_that_are_remembered_are_bounded() -> None:
    """Beyond the limit all are forgotten, and looked up again."""
    zones = map_of("a", limit=3)

    assert ["a"] * 10 == [zones.find(f"a/{n}").apex for n in range(10)]


# -- properties

APEXES = st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map("/".join)


@settings(max_examples=100, deadline=None)
@given(st.lists(APEXES, max_size=8), APEXES)
def test_find_is_the_longest_apex_that_encloses(apexes: list[str], topic: str) -> None:
    """Whatever is known, in whatever order it was told."""
    zones = map_of(*apexes)

    expected = max((a for a in ["", *apexes] if is_within(topic, a)), key=len)

    assert zones.find(topic).apex == expected


@settings(max_examples=100, deadline=None)
@given(st.sets(APEXES, max_size=8), APEXES)
def test_cover_of_a_topic_is_its_zone_when_all_is_known(apexes: set[str], topic: str) -> None:
    """Both views agree once every zone has told its cuts."""
    zones = map_of(*apexes)
    for route in zones:
        known = [a for a in apexes if a != route.apex and zones.enclosing(a) is route]
        route.learn_cuts({a: cut(a) for a in known})

    assert [zones.find(topic).apex] == covered(zones, topic)
