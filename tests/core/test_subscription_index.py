"""The subscription index against plain comparison of every filter."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.topics import EVERY_STEP, filters_of, topics_of
from txbroker.core import subscription_index as index_module
from txbroker.core.subscription_index import SubscriptionIndex
from txbroker.model.topics import matches

LEVELS = ["a", "b", "", "$a"]
topics = topics_of(LEVELS)
filters = filters_of(LEVELS)
keys = st.integers(0, 2)


def test_key_is_new_once_per_filter_and_its_value_is_replaced() -> None:
    index: SubscriptionIndex[str, int] = SubscriptionIndex()

    assert index.add("a/+", "me", 0)
    assert index.add("a/b", "me", 1)
    assert not index.add("a/+", "me", 2)
    assert sorted(index.match("a/b")) == [("me", 1), ("me", 2)]
    assert (len(index), sorted(index.filters())) == (2, ["a/+", "a/b"])


def test_answers_follow_every_change() -> None:
    index: SubscriptionIndex[str, int] = SubscriptionIndex()
    answers = [index.match("a")]
    for change in (
        lambda: index.add("a/#", "me", 0),
        lambda: index.add("a/#", "me", 1),
        lambda: index.add("a", "you", 2),
        lambda: index.remove("a/#", "me"),
    ):
        change()
        answers.append(index.match("a"))

    assert answers == [
        (),
        (("me", 0),),
        (("me", 1),),
        (("you", 2), ("me", 1)),
        (("you", 2),),
    ]


def test_removing_what_is_not_there_changes_nothing() -> None:
    index: SubscriptionIndex[str, int] = SubscriptionIndex()
    index.add("a/b", "me", 0)

    assert not index.remove("a", "me")
    assert not index.remove("a/b", "you")
    assert not index.remove("a/b/c", "me")
    assert index.match("a/b") == (("me", 0),)


def test_empty_branches_are_pruned() -> None:
    index: SubscriptionIndex[str, int] = SubscriptionIndex()
    names = ["a", "a/b/c", "a/b/#", "a/+/c", "#"]
    for name in names:
        index.add(name, "me", 0)
    for name in names:
        assert index.remove(name, "me")

    assert not index._root.children
    assert (len(index), list(index.filters())) == (0, [])


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([0, 1, 100]),
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), filters, keys),
            st.tuples(st.just("remove"), filters, keys),
            st.tuples(st.just("match"), topics, keys),
        ),
        max_size=40,
    ),
)
def test_match_agrees_with_brute_force(limit: int, steps: list[tuple[str, str, int]]) -> None:
    """Whatever was added, removed, replaced and asked before, cached or not."""
    index: SubscriptionIndex[int, int] = SubscriptionIndex(limit)
    model: dict[tuple[str, int], int] = {}
    for count, (step, text, key) in enumerate(steps):
        if step == "add":
            assert index.add(text, key, count) is ((text, key) not in model)
            model[text, key] = count
        elif step == "remove":
            assert index.remove(text, key) is (model.pop((text, key), None) is not None)
        for topic in [text, *EVERY_STEP] if step == "match" else EVERY_STEP:
            expected = [(k, value) for (name, k), value in model.items() if matches(name, topic)]
            assert sorted(expected) == sorted(index.match(topic))
            assert sorted(expected) == sorted(index.match(topic))
    assert (len(index), set(index.filters())) == (len(model), {name for name, _ in model})


def test_cached_answers_are_bounded_in_number() -> None:
    index: SubscriptionIndex[str, int] = SubscriptionIndex(10)
    index.add("#", "me", 0)
    for number in range(25):
        index.match(f"a/{number}")

    assert len(index._answers) == 10


def test_cached_answers_are_bounded_in_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_CACHE_BYTES", 4000)
    index: SubscriptionIndex[str, int] = SubscriptionIndex()
    index.add("#", "me", 0)
    for number in range(50):
        index.match(f"{number:092}")  # some 350 bytes with the answer

        assert len(index._answers) <= 12
    for number in range(300):
        index.add(f"x{number}/#", "me", 0)
        index.add("y/+", str(number), 0)  # an answer of some 2,500 bytes
    assert len(index.match("y/y")) == 301
    assert not len(index._answers)


def test_filters_of_tens_of_thousands_of_levels() -> None:
    index: SubscriptionIndex[str, int] = SubscriptionIndex()
    deep = "+/" * 30_000 + "#"
    index.add(deep, "me", 0)

    assert index.match("/" * 40_000) == (("me", 0),)
    assert index.remove(deep, "me")
    assert not index._root.children


def test_many_wildcards_cost_no_more_than_the_branches_there_are() -> None:
    """All 4,096 filters of a twelve-level topic match it, each found once."""
    index: SubscriptionIndex[str, int] = SubscriptionIndex()
    for levels in itertools.product("a+", repeat=12):
        index.add("/".join(levels), "me", 0)

    assert len(index.match("/".join("a" * 12))) == 4096
