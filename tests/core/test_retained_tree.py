"""The tree of retained values against plain comparison of every topic."""

from __future__ import annotations

import random
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.test_subscription_index import filters, topics
from txbroker.core.retained_tree import LOAD, RetainedTree
from txbroker.model.topics import is_within, matches


def tree_of(*names: str) -> RetainedTree[str]:
    tree: RetainedTree[str] = RetainedTree()
    for name in names:
        tree.set(name, name.upper())
    return tree


def test_value_is_set_replaced_and_removed() -> None:
    tree = tree_of("a/b")

    assert tree.get("a/b") == "A/B"
    tree.set("a/b", "new")
    assert (tree.get("a/b"), len(tree)) == ("new", 1)
    assert tree.remove("a/b") == "new"
    assert (tree.get("a/b"), len(tree)) == (None, 0)
    assert tree.remove("a/b") is None


def test_node_on_the_way_is_no_value() -> None:
    tree = tree_of("a/b/c")

    assert (tree.get("a/b"), tree.remove("a/b")) == (None, None)
    assert list(tree.match("a/b")) == []
    assert list(tree.match("a/b/#")) == [("a/b/c", "A/B/C")]


def test_order_is_that_of_bytes() -> None:
    """A topic comes before those below it; other levels may come in between."""
    tree = tree_of("z/1", "a/2", "z", "a", "z/0", "$x", "a-b/c", "a-b", "a0", "?")
    tree.set("z/1", "later")
    all_of_them = ["?", "a", "a-b", "a-b/c", "a/2", "a0", "z", "z/0", "z/1"]

    assert [topic for topic, _ in tree.match("#")] == all_of_them
    assert [topic for topic, _ in tree.match("+/+")] == ["a-b/c", "a/2", "z/0", "z/1"]
    assert [topic for topic, _ in tree.match("+")] == ["?", "a", "a-b", "a0", "z"]
    assert [topic for topic, _ in tree.match("+/#")] == all_of_them
    assert [topic for topic, _ in tree.match("a/#")] == ["a", "a/2"]


def test_root_zone_covers_dollar_topics_too() -> None:
    tree = tree_of("$SYS/x", "a")

    assert [topic for topic, _ in tree.within("")] == ["$SYS/x", "a"]
    assert [topic for topic, _ in tree.within("b")] == []


def test_tree_may_change_during_a_walk() -> None:
    tree = tree_of("a/1", "a/2", "a/3")
    seen = []
    for topic, _ in tree.match("a/#"):
        seen.append(topic)
        tree.remove("a/2")
        tree.set("a/4", "x")

    assert seen == ["a/1", "a/3", "a/4"]
    assert len(tree) == 3


def test_lists_are_split_and_go() -> None:
    """Whatever order topics come in."""
    names = [f"{n % 7}/{n}" for n in range(10 * LOAD)]
    for order in (names, names[::-1], sorted(names), random.Random(1).sample(names, len(names))):
        tree = tree_of(*order)
        assert sorted(names) == [topic for topic, _ in tree.match("#")]
        assert [topic for topic, _ in tree.match("3/+")] == sorted(n for n in names if n[0] == "3")
        for name in order[: 9 * LOAD]:
            assert name.upper() == tree.remove(name)
        assert sorted(order[9 * LOAD :]) == [topic for topic, _ in tree.match("#")]
        assert [name for name in names if tree.get(name)] == [
            name for name in names if name in set(order[9 * LOAD :])
        ]


def test_what_a_topic_costs() -> None:
    """No more than two places in lists beside its name and its value."""
    names = [f"house/{n}/temperature" for n in range(20_000)]
    random.Random(1).shuffle(names)
    encoded = [name.encode() for name in names]
    tracemalloc.start()
    try:
        tree: RetainedTree[None] = RetainedTree()
        for name in encoded:
            tree.put(name, None)
        assert tracemalloc.get_traced_memory()[0] / len(names) < 32
    finally:
        tracemalloc.stop()


def test_subtrees_are_taken_out() -> None:
    tree = tree_of("a", "a/b/c", "a/b", "/", "x//y")

    assert tree.discard_within("a") == 3
    assert tree.discard_within("") == 2
    assert 0 == len(tree) == len(tree._names)


@settings(max_examples=150, deadline=None)
@given(st.lists(topics, max_size=12), st.lists(topics, max_size=4), filters)
def test_match_agrees_with_brute_force(put: list[str], taken: list[str], wanted: str) -> None:
    tree = tree_of(*put)
    for topic in taken:
        tree.remove(topic)
    kept = set(put) - set(taken)
    found = list(tree.match(wanted))

    assert sorted((name, name.upper()) for name in kept if matches(wanted, name)) == sorted(found)


@settings(max_examples=100, deadline=None)
@given(st.lists(topics, max_size=12), st.sampled_from(["", "a", "a/b", "b//a"]))
def test_zones_agree_with_brute_force(put: list[str], apex: str) -> None:
    tree = tree_of(*put)
    inside = {topic for topic in put if is_within(topic, apex)}

    assert sorted(inside) == sorted(topic for topic, _ in tree.within(apex))
    assert len(inside) == tree.discard_within(apex)
    assert set(put) - inside == {topic for topic, _ in tree.within("")}


def test_topics_of_thousands_of_levels() -> None:
    tree = tree_of("/" * 5_000)

    assert len(list(tree.match("#"))) == 1
    assert len(list(tree.match("+/" * 5_000 + "+"))) == 1
    assert tree.discard_within("") == 1
