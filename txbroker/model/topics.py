"""
Topic names, topic filters and apexes: validity, matching and containment.

All three are plain `str`. A topic is a list of levels joined by `/`; levels may be empty, so `/a`
has two. An apex is the topmost prefix of a zone. An apex is a topic without wildcards, or `""` for
the root zone, which contains every topic.

Every function is pure and iterative. A topic of 65,535 slashes is legal and must cost time in
proportion to its length. Functions other than the `validate_*` ones expect valid arguments and do
not check them. Sections are those of the OASIS text of MQTT 3.1.1.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator

MAX_TOPIC_BYTES = 65_535
"""Longest topic name or filter, in bytes of UTF-8 (section 1.5.3)."""

LEVELS = 200
"""The default of `limits.levels`."""

_WILDCARD = re.compile("[+#]")


class TopicError(ValueError):
    """
    A topic name, topic filter or apex breaks a rule.

    The message is one sentence for an operator. `rule` is the clause of MQTT 3.1.1, or "" for a
    rule of our own.
    """

    def __init__(self, reason: str, rule: str = "") -> None:
        super().__init__(reason)
        self.rule = rule


# -- validation


def validate_topic_name(text: str) -> None:
    """Raise `TopicError` unless clients may publish to `text` (section 4.7)."""
    _validate_text(text)
    if "+" in text or "#" in text:
        # [MQTT-4.7.1-1]
        raise TopicError("A topic name has no wildcards (+ or #).", "MQTT-4.7.1-1")


def validate_topic_filter(text: str) -> None:
    """Raise `TopicError` unless clients may subscribe to `text` (section 4.7)."""
    _validate_text(text)
    hashes = text.count("#")
    if hashes and (hashes > 1 or not (text == "#" or text.endswith("/#"))):
        # [MQTT-4.7.1-2]
        raise TopicError(
            "The wildcard # fills the last level of a filter, as in a/#.", "MQTT-4.7.1-2"
        )
    if "+" in text and any("+" in level and level != "+" for level in text.split("/")):
        # [MQTT-4.7.1-3]
        raise TopicError(
            "The wildcard + fills a whole level of a filter, as in a/+/b.", "MQTT-4.7.1-3"
        )


def validate_apex(text: str) -> None:
    """Raise `TopicError` unless `text` may name a zone: `""`, or a topic such as `home/kitchen`."""
    if not text:
        return
    validate_topic_name(text)
    if text.startswith("/") or text.endswith("/"):
        raise TopicError("An apex neither starts nor ends with a slash.")
    if text.startswith("$"):
        raise TopicError("Topics that start with $ belong to each node and are never a zone.")


def _validate_text(text: str) -> None:
    if not text:
        # [MQTT-4.7.3-1]
        raise TopicError("A topic has at least one character.", "MQTT-4.7.3-1")
    if "\0" in text:
        # [MQTT-4.7.3-2]
        raise TopicError("A topic has no null character.", "MQTT-4.7.3-2")
    size = len(text)
    if not text.isascii():
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise TopicError("A topic has no unpaired surrogates.", "MQTT-1.5.3-1") from None
    if size > MAX_TOPIC_BYTES:
        # [MQTT-4.7.3-3]
        raise TopicError(f"A topic has at most {MAX_TOPIC_BYTES} bytes.", "MQTT-4.7.3-3")


# -- filters and topics


def matches(topic_filter: str, topic: str) -> bool:
    """True if a subscription to `topic_filter` gets messages on `topic`."""
    if topic.startswith("$") and topic_filter.startswith(("+", "#")):
        return False  # [MQTT-4.7.2-1]
    wanted = topic_filter.split("/")
    levels = topic.split("/")
    for want, level in zip(wanted, levels, strict=False):
        if want == "#":
            return True
        if want not in ("+", level):
            return False
    # Either both are at their end, or the filter has a final # left, which matches its parent
    # level, too.
    return len(wanted) == len(levels) or (len(wanted) == len(levels) + 1 and wanted[-1] == "#")


def literal_prefix(topic_filter: str) -> str:
    """
    Return the levels before the first wildcard, joined; `""` if the first level is a wildcard.
    """
    wildcard = _WILDCARD.search(topic_filter)
    if wildcard is None:
        return topic_filter
    return topic_filter[: max(wildcard.start() - 1, 0)]


def is_sys(topic: str) -> bool:
    """True if a topic or filter is in the node-local `$SYS` tree (docs/operations.md)."""
    return topic == "$SYS" or topic.startswith("$SYS/")


# -- topics, filters and zones


def is_within(topic: str, apex: str) -> bool:
    """True if `topic` is the apex itself or lies below it."""
    if not apex:
        return True
    return topic.startswith(apex) and topic[len(apex) : len(apex) + 1] in ("", "/")


def is_below(apex: str, above: str) -> bool:
    """True if the apex lies strictly below another one."""
    return apex != above and is_within(apex, above)


def is_filter_within(topic_filter: str, apex: str) -> bool:
    """True if every topic that the filter can match is at or below the apex."""
    return is_within(literal_prefix(topic_filter), apex)


def may_match_within(topic_filter: str, apex: str) -> bool:
    """
    True if the filter matches at least one topic at or below the apex.

    `home/+` does for `home/kitchen` (the apex is a topic too), `home` does not.
    """
    if not apex:
        return True
    wanted = topic_filter.split("/")
    levels = apex.split("/")
    for want, level in zip(wanted, levels, strict=False):
        if want == "#":
            return True
        if want not in ("+", level):
            return False
    # A filter with as many levels as the apex matches the apex; a longer one matches a topic below
    # it.
    return len(wanted) >= len(levels)


def may_meet(one: str, other: str) -> bool:
    """True if there is a topic that both filters match."""
    filters = (one, other)
    if any(f.startswith("$") for f in filters) and any(f.startswith(("+", "#")) for f in filters):
        return False  # [MQTT-4.7.2-1]
    levels, others = one.split("/"), other.split("/")
    for level, against in zip(levels, others, strict=False):
        if "#" in (level, against):
            return True
        if level != against and "+" not in (level, against):
            return False
    longer = max(levels, others, key=len)
    shorter = min(len(levels), len(others))
    return len(longer) == shorter or longer[shorter] == "#"


def apexes_around(topic: str) -> Iterator[str]:
    """Yield every apex that may contain the topic, except the root's, the deepest first."""
    end = len(topic)
    while end > 0:
        yield topic[:end]
        end = topic.rfind("/", 0, end)


def deepest_enclosing(
    topic: str, apexes: Container[str], *, longest: int = MAX_TOPIC_BYTES
) -> str | None:
    """
    Return the longest of `apexes` that contains `topic`, or None.

    Each level of the topic costs one look-up, the deepest first. `longest` is the length in
    characters of the caller's longest apex. With it, a topic of thousands of levels costs no more
    than an ordinary one.
    """
    end = len(topic)
    if end > longest:
        # A prefix ends before a slash; the last relevant slash follows `longest` characters.
        end = topic.rfind("/", 0, longest + 1)
    while end > 0:
        candidate = topic[:end]
        if candidate in apexes:
            return candidate
        end = topic.rfind("/", 0, end)
    return "" if "" in apexes else None
