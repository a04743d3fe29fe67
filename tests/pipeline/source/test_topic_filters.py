"""MQTT filters as Spark predicates mean what they mean to a broker."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from txbroker.model import topics
from txbroker.pipeline.source.topic_filters import matches, pattern

level = st.sampled_from(["", "a", "b", "$x", "a.b", "(", "\\E", "a\nb", "\u2028", "ü", " "])
topic_names = st.lists(level, min_size=1, max_size=4).map("/".join).filter(bool)


@st.composite
def topic_filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(level | st.just("+"), max_size=3))
    if draw(st.booleans()) or not any(levels):
        levels.append("#")
    return "/".join(levels)


@given(topic_filters(), topic_names)
def test_patterns_are_filters(topic_filter: str, topic: str) -> None:
    """But for the rule about topics that begin with $, which `matches` adds."""
    if not topic.startswith("$"):
        found = re.search(pattern(topic_filter), topic) is not None
        assert topics.matches(topic_filter, topic) == found


def test_spark_agrees(spark: SparkSession) -> None:
    """In one query, each filter against each topic; Java's regular expressions are others."""
    levels = ["a", "b/c", "/", "$x", "a.b", "\\E", "a\nb", "x\u2028"]
    names = [
        name for first in levels for rest in ("", "/a", "/", "/a/b\n") if (name := first + rest)
    ]
    filters = [
        "#",
        "+",
        "+/+",
        "a/#",
        "a/+",
        "$x/#",
        "+/a/#",
        "/#",
        "\\E/+",
        "a\nb/#",
        "a",
        "+/a/+",
    ]
    rows = spark.createDataFrame([(name,) for name in names], "topic string")
    columns = [matches(F.col("topic"), one).alias(str(n)) for n, one in enumerate(filters)]
    for row in rows.select("topic", *columns).collect():
        for n, one in enumerate(filters):
            assert topics.matches(one, row["topic"]) == row[str(n)], (one, row["topic"])
