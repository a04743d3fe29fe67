"""
Converts Spark's filters to limits on journals: zones, epochs, offsets, times, a topic filter.

Spark need not apply a filter that the limits express exactly. Spark still applies a filter that
merely narrows the reading.
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
        """True if the interval has an end."""
        return self.high < _MOST

    def narrowed(self, wanted: Filter, number: object) -> ReadInterval | None:
        """Return the numbers that a comparison also allows; None if `wanted` is no comparison."""
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
    The records to read.

    A record is read if its zone is in `zones` (None: any) and its topic matches `filter` ("": any).
    Also its epoch, offset and time (UTC, microseconds) must be in the intervals.
    """

    filter: str = ""
    zones: frozenset[str] | None = None
    epochs: ReadInterval = ReadInterval()
    offsets: ReadInterval = ReadInterval()
    times: ReadInterval = ReadInterval()
    is_nothing: bool = False

    def clip(self, span: ReadSpan) -> ReadSpan | None:
        """Return the wanted part of a span, or None."""
        if self.is_nothing or (self.zones is not None and span.zone not in self.zones):
            return None
        if not self.epochs.low <= span.epoch < self.epochs.high:
            return None
        start = max(span.start, self.offsets.low)
        end = min(span.end, self.offsets.high)
        return attrs.evolve(span, start=start, end=end) if start < end else None


def push(wanted: ReadFilter, filters: Iterable[Filter]) -> tuple[ReadFilter, list[Filter]]:
    """Add Spark's filters; return the result and the filters that Spark must apply itself."""
    left = []
    for one in filters:
        narrowed, is_exact = _narrow(wanted, one)
        wanted = narrowed
        if not is_exact:
            left.append(one)
    return wanted, left


def _narrow(wanted: ReadFilter, one: Filter) -> tuple[ReadFilter, bool]:
    """Add one filter; return the result, and True if the result expresses the filter exactly."""
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
    """Narrow the topics by a prefix, inexactly: filters express whole levels."""
    levels = prefix.rpartition("/")[0]
    if wanted.filter or not levels or "+" in levels or "#" in levels or "\0" in levels:
        return wanted
    return attrs.evolve(wanted, filter=f"{levels}/#")


def _by_time(wanted: ReadFilter, one: Filter) -> ReadFilter | None:
    moment = getattr(one, "value", None)
    if not isinstance(moment, datetime):
        return None
    # Spark passes a time without a zone, in the local time of its Python processes.
    interval = wanted.times.narrowed(one, microseconds(moment.astimezone()))
    if interval is None:
        return None
    return attrs.evolve(wanted, times=interval, is_nothing=wanted.is_nothing or interval.high <= 0)
