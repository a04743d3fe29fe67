"""Converts MQTT filters to predicates on a topic column, which Spark pushes down to Parquet."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from txbroker.model.topics import literal_prefix

if TYPE_CHECKING:
    from pyspark.sql import Column


def matches(topic: Column, topic_filter: str) -> Column:
    """
    Return the predicate for a valid filter, equal to `txbroker.model.topics.matches`.
    """
    prefix = literal_prefix(topic_filter)
    if prefix == topic_filter:
        return topic == prefix
    if topic_filter == (f"{prefix}/#" if prefix else "#"):
        return _is_within(topic, prefix)
    return _is_within(topic, prefix) & topic.rlike(pattern(topic_filter))


def _is_within(topic: Column, prefix: str) -> Column:
    if prefix:
        return (topic == prefix) | topic.startswith(f"{prefix}/")
    # [MQTT-4.7.2-1]
    return ~topic.startswith("$")


def pattern(topic_filter: str) -> str:
    """Return a regular expression, valid in Java and Python, for the topics of the filter."""
    levels = topic_filter.split("/")
    rest = ""
    if levels[-1] == "#":
        levels.pop()
        rest = "(?:/.*)?" if levels else ".*"
    text = "/".join("[^/]*" if level == "+" else re.escape(level) for level in levels)
    return f"(?s)^{text}{rest}(?![\\s\\S])"
