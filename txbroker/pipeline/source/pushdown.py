"""
What Spark wants of the rows, in the terms of journals: zones, epochs, offsets, times, a filter.

Only what is handled exactly is taken off Spark's hands. What merely narrows the reading is left to
it as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import attrs
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from txbroker.model.topics import TopicError, matches, validate_topic_name
from txbroker.pipeline.source.ranges import ReadSpan
from txbroker.pipeline.source.source_options import microseconds

NEVER_NULL = {"zone", "epoch", "offset", "topic", "payload", "qos", "retain", "created"}
COMPARISONS = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
_MOST = 2**63


@attrs.frozen(kw_only=True)
class ReadInterval:
    """The whole numbers from `low` on, below `high`."""

    low: int = 0
    high: int = _MOST

    @property
    def is_bounded(self) -> bool:
        """Whether it ends."""
        return self.high < _MOST

    def narrowed(self, wanted: Filter, number: object) -> ReadInterval | None:
        """Those that a comparison with a number allows, too; None where it is no comparison."""
        if not isinstance(wanted, COMPARISONS) or not isinstance(number, int):
            return None
        low, high = self.low, self.high
        if isinstance(wanted, (EqualTo, EqualNullSafe)):
            low, high = max(low, number), min(high, number + 1)
        elif isinstance(wanted, GreaterThan):
            low = max(low, number + 1)
        elif isinstance(wanted, GreaterThanOrEqual):
            low = max(low, number)
        elif isinstance(wanted, LessThan):
            high = min(high, number)
        else:
            high = min(high, number + 1)
        return ReadInterval(low=low, high=high)


@attrs.frozen(kw_only=True)
class ReadFilter:
    """
    Which records are read: those in `zones` (None: all) whose epoch, offset and time (UTC,
    microseconds) are in these intervals and whose topic matches `filter` ("": any).
    """

    filter: str = ""
    zones: frozenset[str] | None = None
    epochs: ReadInterval = ReadInterval()
    offsets: ReadInterval = ReadInterval()
    times: ReadInterval = ReadInterval()
    is_nothing: bool = False

    def clip(self, span: ReadSpan) -> ReadSpan | None:
        """What of the span is wanted; None for nothing."""
        if self.is_nothing or (self.zones is not None and span.zone not in self.zones):
            return None
        if not self.epochs.low <= span.epoch < self.epochs.high:
            return None
        start = max(span.start, self.offsets.low)
        end = min(span.end, self.offsets.high)
        return attrs.evolve(span, start=start, end=end) if start < end else None


def push(wanted: ReadFilter, filters: Iterable[Filter]) -> tuple[ReadFilter, list[Filter]]:
    """What is wanted with these filters, too, and those of them that Spark has to apply itself."""
    left = []
    for one in filters:
        narrowed, is_exact = _narrow(wanted, one)
        wanted = narrowed
        if not is_exact:
            left.append(one)
    return wanted, left


def _narrow(wanted: ReadFilter, one: Filter) -> tuple[ReadFilter, bool]:
    """What is wanted with one more filter, and whether that says all of it."""
    path: tuple[str, ...] = getattr(one, "attribute", ())
    value = getattr(one, "value", None)
    column = path[0] if len(path) == 1 else ""
    if isinstance(one, IsNotNull):
        return wanted, column in NEVER_NULL
    result: ReadFilter | None = None
    if column == "zone":
        result = _by_zone(wanted, one)
    elif column == "topic":
        if isinstance(one, StringStartsWith):
            return _by_prefix(wanted, one.value), False
        result = _by_topic(wanted, one)
    elif column == "epoch":
        epochs = wanted.epochs.narrowed(one, value)
        result = None if epochs is None else attrs.evolve(wanted, epochs=epochs)
    elif column == "offset":
        offsets = wanted.offsets.narrowed(one, value)
        result = None if offsets is None else attrs.evolve(wanted, offsets=offsets)
    elif column == "created":
        result = _by_time(wanted, one)
    return (wanted, False) if result is None else (result, True)


def _by_zone(wanted: ReadFilter, one: Filter) -> ReadFilter | None:
    if isinstance(one, (EqualTo, EqualNullSafe)):
        zones = frozenset([one.value])
    elif isinstance(one, In):
        zones = frozenset(one.value)
    else:
        return None
    both = zones if wanted.zones is None else zones & wanted.zones
    return attrs.evolve(wanted, zones=both)


def _by_topic(wanted: ReadFilter, one: Filter) -> ReadFilter | None:
    if not isinstance(one, (EqualTo, EqualNullSafe)):
        return None
    try:
        validate_topic_name(one.value)
    except (TopicError, TypeError):
        return attrs.evolve(wanted, is_nothing=True)
    if wanted.filter and not matches(wanted.filter, one.value):
        return attrs.evolve(wanted, is_nothing=True)
    return attrs.evolve(wanted, filter=one.value)


def _by_prefix(wanted: ReadFilter, prefix: str) -> ReadFilter:
    """Fewer topics, if not only those: filters stand for whole levels."""
    levels = prefix.rpartition("/")[0]
    if wanted.filter or not levels or "+" in levels or "#" in levels or "\0" in levels:
        return wanted
    return attrs.evolve(wanted, filter=f"{levels}/#")


def _by_time(wanted: ReadFilter, one: Filter) -> ReadFilter | None:
    moment = getattr(one, "value", None)
    if not isinstance(moment, datetime):
        return None
    # Spark hands times over without a zone in the local time of its Python processes.
    interval = wanted.times.narrowed(one, microseconds(moment.astimezone()))
    if interval is None:
        return None
    return attrs.evolve(wanted, times=interval, is_nothing=wanted.is_nothing or interval.high <= 0)
