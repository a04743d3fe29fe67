"""Topics, filters and apexes: validity, matching, and what lies below what."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txbroker.model.topics import (
    TopicError,
    deepest_enclosing,
    is_filter_within,
    is_within,
    literal_prefix,
    matches,
    may_match_within,
    validate_apex,
    validate_topic_filter,
    validate_topic_name,
)

# -- validation


@pytest.mark.parametrize(
    "text",
    ["a", "/", "//", "a/b", "/a", "a/", " ", "$SYS/x", "ü\ufeff", "x" * 65_535, "a/" * 200],
)
def test_valid_topic_name(text: str) -> None:
    validate_topic_name(text)
    validate_topic_filter(text)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "MQTT-4.7.3-1"),
        ("a\0", "MQTT-4.7.3-2"),
        ("x" * 65_536, "MQTT-4.7.3-3"),
        ("ü" * 32_768, "MQTT-4.7.3-3"),
        ("\ud800", "MQTT-1.5.3-1"),
    ],
)
def test_text_that_is_neither_name_nor_filter(text: str, rule: str) -> None:
    for validate in (validate_topic_name, validate_topic_filter):
        with pytest.raises(TopicError) as caught:
            validate(text)

        assert rule == caught.value.rule
        assert str(caught.value).endswith(".")


@pytest.mark.parametrize("text", ["+", "#", "a/+", "a/#", "a+", "#a"])
def test_topic_name_has_no_wildcards(text: str) -> None:
    with pytest.raises(TopicError) as caught:
        validate_topic_name(text)

    assert caught.value.rule == "MQTT-4.7.1-1"


@pytest.mark.parametrize("text", ["#", "+", "/#", "+/+", "a/+/b/#", "/+", "+/", "$SYS/#"])
def test_valid_topic_filter(text: str) -> None:
    validate_topic_filter(text)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("a#", "MQTT-4.7.1-2"),
        ("#/a", "MQTT-4.7.1-2"),
        ("a/#/b", "MQTT-4.7.1-2"),
        ("#/#", "MQTT-4.7.1-2"),
        ("a/##", "MQTT-4.7.1-2"),
        ("+#", "MQTT-4.7.1-2"),
        ("a+", "MQTT-4.7.1-3"),
        ("+a/b", "MQTT-4.7.1-3"),
        ("a/++", "MQTT-4.7.1-3"),
        ("+/a+/#", "MQTT-4.7.1-3"),
    ],
)
def test_invalid_topic_filter(text: str, rule: str) -> None:
    with pytest.raises(TopicError) as caught:
        validate_topic_filter(text)

    assert rule == caught.value.rule


@pytest.mark.parametrize("text", ["", "home", "home/kitchen", "a//b", "home/$x"])
def test_valid_apex(text: str) -> None:
    validate_apex(text)


@pytest.mark.parametrize("text", ["/", "/a", "a/", "$SYS", "$x/a", "a/+", "#", "a\0"])
def test_invalid_apex(text: str) -> None:
    with pytest.raises(TopicError):
        validate_apex(text)


# -- matching, by the examples of section 4.7


@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("sport/#", "sports", False),
        ("#", "sport", True),
        ("#", "/", True),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("+/#", "a", True),
        ("a/+/#", "a", False),
        ("a/+/#", "a/b", True),
        ("a", "a", True),
        ("a", "A", False),
        ("a", "a/", False),
        ("a/", "a", False),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
        ("$SYS/#", "$SYS", True),
        ("$SYS/+", "$SYS/x", True),
        ("a/+", "a/$x", True),
        ("a/#", "a/$x", True),
    ],
)
def test_matches(topic_filter: str, topic: str, expected: bool) -> None:
    assert expected is matches(topic_filter, topic)


@pytest.mark.parametrize(
    ("topic_filter", "prefix"),
    [
        ("a/b", "a/b"),
        ("a/b/#", "a/b"),
        ("a/+/b", "a"),
        ("a//+", "a/"),
        ("/+", ""),
        ("+/a", ""),
        ("#", ""),
    ],
)
def test_literal_prefix(topic_filter: str, prefix: str) -> None:
    assert prefix == literal_prefix(topic_filter)


# -- zones


@pytest.mark.parametrize(
    ("topic", "apex", "expected"),
    [
        ("home/kitchen", "home/kitchen", True),
        ("home/kitchen/x", "home/kitchen", True),
        ("home/kitchen/", "home/kitchen", True),
        ("home/kitchens", "home/kitchen", False),
        ("home", "home/kitchen", False),
        ("anything", "", True),
        ("/", "", True),
        ("$SYS/x", "", True),
    ],
)
def test_is_within(topic: str, apex: str, expected: bool) -> None:
    assert expected is is_within(topic, apex)


@pytest.mark.parametrize(
    ("topic", "longest_apex"),
    [
        ("home/kitchen/oven/heat", "home/kitchen/oven"),
        ("home/kitchen/oven", "home/kitchen/oven"),
        ("home/kitchen/ovens", "home/kitchen"),
        ("home/kitchens", ""),
        ("home", ""),
        ("/", ""),
        ("$SYS/x", ""),
    ],
)
def test_deepest_enclosing(topic: str, longest_apex: str) -> None:
    apexes = {"", "home/kitchen", "home/kitchen/oven", "garden"}

    assert longest_apex == deepest_enclosing(topic, apexes)
    assert longest_apex == deepest_enclosing(topic, apexes, longest=len("home/kitchen/oven"))
    assert (longest_apex or None) == deepest_enclosing(topic, apexes - {""})


# -- properties; brute force over all topics of up to four levels of a small alphabet

LEVELS = ["a", "b", ""]
TOPICS = [
    "/".join(levels) for size in range(1, 5) for levels in itertools.product(LEVELS, repeat=size)
]
TOPICS = [topic for topic in TOPICS if topic]
APEXES = ["", "a", "b", "a/b", "a/a", "b//a", "a/b/b"]

filters = (
    st.tuples(
        st.lists(st.sampled_from([*LEVELS, "+"]), max_size=3),
        st.sampled_from(["a", "b", "+", "#"]),
    )
    .map(lambda parts: "/".join([*parts[0], parts[1]]))
    .filter(bool)
)


@settings(max_examples=200, deadline=None)
@given(filters, st.sampled_from(APEXES))
def test_filters_and_zones_agree_with_brute_force(topic_filter: str, apex: str) -> None:
    matching = [topic for topic in TOPICS if matches(topic_filter, topic)]
    inside = [topic for topic in matching if is_within(topic, apex)]

    assert may_match_within(topic_filter, apex) is bool(inside)
    assert is_filter_within(topic_filter, apex) is (inside == matching)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(TOPICS), st.sets(st.sampled_from(APEXES)))
def test_deepest_enclosing_agrees_with_brute_force(topic: str, apexes: set[str]) -> None:
    covering = [apex for apex in apexes if is_within(topic, apex)]

    assert max(covering, key=len, default=None) == deepest_enclosing(topic, apexes)


def test_filter_that_starts_with_dollar_is_within_the_root_only() -> None:
    assert may_match_within("$SYS/#", "")
    assert not may_match_within("$SYS/#", "home")


def test_topics_of_tens_of_thousands_of_levels_take_linear_time() -> None:
    topic = "/" * 65_535
    topic_filter = "+/" * 32_000 + "#"
    started = time.process_time()

    validate_topic_name(topic)
    validate_topic_filter(topic_filter)
    assert matches(topic_filter, topic)
    assert may_match_within(topic_filter, "/".join("x" * 30_000))
    assert deepest_enclosing(topic, {"home"}, longest=4) is None
    assert time.process_time() - started < 1
