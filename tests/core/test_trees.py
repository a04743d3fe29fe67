"""Apexes and filters against plain comparison."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.cores import CORES, both
from tests.support.topics import EVERY_STEP, filters_of, topics_of
from txbroker.model.topics import deepest_enclosing, matches

LEVELS = ["a", "b", "", "$a", "\u00e9", "a level that is longer than most"]
topics = topics_of(LEVELS)
filters = filters_of(LEVELS)
keys = st.integers(0, 2)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(CORES),
    st.lists(
        st.tuples(st.sampled_from(["add", "add", "remove", "match"]), filters, topics, keys),
        max_size=40,
    ),
)
def test_filters_match_as_one_by_one(core: Any, steps: list[tuple[str, str, str, int]]) -> None:
    """Whatever was added, removed, replaced and asked before."""
    tree = core.Tree()
    model: dict[tuple[str, int], int] = {}
    for count, (step, name, topic, key) in enumerate(steps):
        if step == "add":
            assert tree.add(name, key, count) is ((name, key) not in model)
            model[name, key] = count
        elif step == "remove":
            assert tree.remove(name, key) is (model.pop((name, key), None) is not None)
        for asked in [topic, *EVERY_STEP]:
            expected = [(k, value) for (one, k), value in model.items() if matches(one, asked)]
            assert sorted(expected) == sorted(tree.match(asked))
        assert len(tree) == len(model)
        assert set(tree.filters()) == {one for one, _ in model}
    for name, key in model:
        assert tree.remove(name, key)
    assert 0 == getattr(tree, "levels", 0)


@both
def test_filters_of_tens_of_thousands_of_levels(core: Any) -> None:
    tree = core.Tree()
    deep = "+/" * 30_000 + "#"
    tree.add(deep, "me", 0)
    tree.add("/" * 65_535, "you", 1)

    assert (("me", 0),) == tree.match("/" * 40_000)
    assert (("me", 0), ("you", 1)) == tuple(sorted(tree.match("/" * 65_535)))
    assert tree.remove(deep, "me")
    assert tree.remove("/" * 65_535, "you")
    assert 0 == getattr(tree, "levels", 0)


@both
def test_many_wildcards_cost_no_more_than_the_branches_there_are(core: Any) -> None:
    tree = core.Tree()
    for levels in itertools.product("a+", repeat=12):
        tree.add("/".join(levels), "me", 0)

    assert 4096 == len(tree.match("/".join("a" * 12)))


@both
def test_many_keys_on_one_filter_and_many_filters(core: Any) -> None:
    tree = core.Tree()
    for number in range(3000):
        assert tree.add("all/of/them", number, number)
        assert tree.add(f"one/{number}/of/them", number, number)

    assert [(n, n) for n in range(3000)] == list(tree.match("all/of/them"))
    for number in range(0, 3000, 2):
        assert tree.remove("all/of/them", number)
        assert tree.remove(f"one/{number}/of/them", number)
    assert [(n, n) for n in range(1, 3000, 2)] == list(tree.match("all/of/them"))
    assert all(bool(tree.match(f"one/{n}/of/them")) is bool(n % 2) for n in range(3000))
    assert 3000 == len(tree)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(CORES),
    st.lists(st.tuples(st.booleans(), st.just("") | topics), max_size=12),
    st.lists(topics, min_size=1, max_size=5),
)
def test_the_deepest_apex_is_found(
    core: Any, changes: list[tuple[bool, str]], asked: list[str]
) -> None:
    apexes, model = core.Apexes(), dict[str, str]()
    for is_set, apex in changes:
        if is_set:
            apexes.set(apex, f"value of {apex}")
            model[apex] = f"value of {apex}"
        else:
            apexes.remove(apex)
            model.pop(apex, None)
        for topic in asked:
            found = deepest_enclosing(topic, model)
            assert apexes.find(topic) == (None if found is None else model[found])


@both
def test_a_hundred_thousand_apexes_and_a_topic_of_as_many_levels(core: Any) -> None:
    apexes = core.Apexes()
    for number in range(100_000):
        apexes.set(f"a/{number}", number)

    assert 99_999 == apexes.find("a/99999/x")
    assert apexes.find("a/100000/x") is None
    assert 5 == apexes.find("a/5" + "/" * 10_000)
    for number in range(100_000):
        apexes.remove(f"a/{number}")
    assert apexes.find("a/5") is None
