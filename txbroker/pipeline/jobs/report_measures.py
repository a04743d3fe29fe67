"""
SHELL: counts the numbers of the report with Spark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from txbroker.model.errors import PipelineError
from txbroker.pipeline.jobs.traffic import MESSAGE_KEY, deliveries, subtree, traffic
from txbroker.pipeline.report_page.scales import step_of_time

WINDOWS = 120
"""Maximum number of time windows in the report."""
SUBTREES = 200
"""Maximum number of subtrees shown, those with most messages."""
PARTS = 40
"""Maximum number of parts of journals shown, those that miss most."""
HOLES = 200
"""Maximum number of gaps shown, the largest."""
A_DECADE = 3
"""Bars of the histogram for each power of ten."""
ACCURACY = 100_000
"""Percentiles are exact up to this many rows, and within 1 of this many ranks beyond."""

_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@attrs.frozen(slots=True, kw_only=True)
class Totals:
    """Totals of all messages; `first` and `last` are the times of receipt."""

    first: datetime
    last: datetime
    messages: int
    bytes: int
    publishers: int
    topics: int
    zones: int


@attrs.frozen(slots=True, kw_only=True)
class TimeWindow:
    """
    A window of time, with its publishes and deliveries (None: no ledger).

    `covered` is the number of its `window` seconds between the first message and the last.
    """

    start: datetime
    window: int
    covered: float
    messages: int
    bytes: int
    deliveries: int | None

    def rate(self, count: int | None) -> float | None:
        """Return a count per second; None if too little of the window is covered."""
        return None if count is None or self.covered * 2 < self.window else count / self.covered


@attrs.frozen(slots=True, kw_only=True)
class Latency:
    """
    Latencies of one subtree, in seconds; of all subtrees if `name` is None.

    A latency is the time from a message's receipt at its owner to the client's acknowledgement.
    """

    name: str | None
    count: int
    p50: float
    p95: float
    p99: float
    most: float


@attrs.frozen(slots=True, kw_only=True)
class Latencies:
    """
    Latencies of all deliveries, by subtree, and a histogram by third of a decade of seconds.

    `early` counts deliveries acknowledged before their receipt, by the clocks of two nodes. The
    histogram leaves these out.
    """

    whole: Latency | None
    subtrees: tuple[Latency, ...]
    histogram: Mapping[int, int]
    early: int


@attrs.frozen(slots=True, kw_only=True)
class MissingOffsets:
    """Missing offsets of a part, and the times of receipt of the messages around them."""

    zone: str
    epoch: int
    first: int
    last: int
    before: datetime
    after: datetime

    @property
    def count(self) -> int:
        """Number of missing offsets."""
        return self.last - self.first + 1


@attrs.frozen(slots=True, kw_only=True)
class MeasuredPart:
    """A part of a journal: its first and last offset, and the number missing between them."""

    zone: str
    epoch: int
    first: int
    last: int
    missing: int


@attrs.frozen(slots=True, kw_only=True)
class Measures:
    """
    All numbers of the report.

    `subtrees` are rows of traffic, those with most messages first. `others` has the totals of the
    remaining subtrees: subtrees, messages, bytes. `latencies` is None without a ledger.
    """

    totals: Totals
    window: int
    moments: tuple[TimeWindow, ...]
    subtrees: tuple[dict[str, Any], ...]
    others: tuple[int, int, int]
    latencies: Latencies | None
    parts: tuple[MeasuredPart, ...]
    holes: tuple[MissingOffsets, ...]
    whole_parts: int


def measure(
    messages: DataFrame,
    ledger: DataFrame | None,
    *,
    depth: int,
    owners: Mapping[str, str] | None,
) -> Measures:
    """Count everything; raises `PipelineError` if there are no messages."""
    totals = _totals(messages)
    span = (totals.last - totals.first).total_seconds()
    window = step_of_time(max(span, 1.0), WINDOWS)
    by_subtree = traffic(messages, ledger, depth=depth, owners=owners).localCheckpoint()
    subtrees = _rows(by_subtree.orderBy(F.desc("messages"), "subtree").limit(SUBTREES))
    parts = _parts(messages)
    return Measures(
        totals=totals,
        window=window,
        moments=_moments(traffic(messages, ledger, depth=0, window=window), totals, window),
        subtrees=tuple(subtrees),
        others=(
            by_subtree.count() - len(subtrees),
            totals.messages - sum(row["messages"] for row in subtrees),
            totals.bytes - sum(row["bytes"] for row in subtrees),
        ),
        latencies=None if ledger is None else _latencies(messages, ledger, depth),
        parts=parts[:PARTS],
        holes=_holes(messages) if any(part.missing for part in parts) else (),
        whole_parts=sum(not part.missing for part in parts),
    )


def _rows(table: DataFrame) -> list[dict[str, Any]]:
    """Return the rows as dictionaries, with times in UTC."""
    rows: list[dict[str, Any]] = table.toArrow().to_pylist()
    for row in rows:
        for name, value in row.items():
            if isinstance(value, datetime):
                row[name] = value.astimezone(UTC)
    return rows


def _totals(messages: DataFrame) -> Totals:
    (row,) = _rows(
        messages.agg(
            F.min("created").alias("first"),
            F.max("created").alias("last"),
            F.count("*").alias("messages"),
            F.sum(F.octet_length("payload").cast("long")).alias("bytes"),
            F.countDistinct("client_id").alias("publishers"),
            F.countDistinct("topic").alias("topics"),
            F.countDistinct("zone").alias("zones"),
        )
    )
    if not row["messages"]:
        raise PipelineError("no messages to report on; look at --from, --to and --filter")
    return Totals(**row)


def _moments(table: DataFrame, totals: Totals, window: int) -> tuple[TimeWindow, ...]:
    """Return every window from the first message to the last, also windows without messages."""
    names = ("messages", "bytes", "deliveries")
    found = {row["start"]: {name: row[name] for name in names} for row in _rows(table)}
    has_ledger = any(row["deliveries"] is not None for row in found.values())
    empty = {"messages": 0, "bytes": 0, "deliveries": 0 if has_ledger else None}
    moments = []
    at = min(found)
    while at <= totals.last:
        end = at + timedelta(seconds=window)
        covered = (min(end, totals.last) - max(at, totals.first)).total_seconds()
        counts = found.get(at, empty)
        moments.append(TimeWindow(start=at, window=window, covered=covered, **counts))
        at = end
    return tuple(moments)


def _latencies(messages: DataFrame, ledger: DataFrame, depth: int) -> Latencies:
    seconds = (F.unix_micros("time") - F.unix_micros("created")) / 1e6
    topics = messages.select(*MESSAGE_KEY, "created", subtree("topic", depth).alias("name"))
    made = deliveries(ledger).select(*MESSAGE_KEY, "time").join(topics, MESSAGE_KEY)
    made = made.select("name", seconds.alias("seconds")).localCheckpoint()
    third = F.when(F.col("seconds") > 0, F.floor(F.log10("seconds") * A_DECADE + 1e-9))
    thirds = {
        row["third"]: row["count"] for row in _rows(made.groupBy(third.alias("third")).count())
    }
    early = thirds.pop(None, 0)
    spread = _spread(made)
    return Latencies(
        whole=next((latency for latency in spread if latency.name is None), None),
        subtrees=tuple(latency for latency in spread if latency.name is not None),
        histogram=dict(sorted(thirds.items())),
        early=early,
    )


def _spread(made: DataFrame) -> list[Latency]:
    """Return count, percentiles and maximum of all and by name, most deliveries first."""
    spread = [
        F.percentile_approx("seconds", part, ACCURACY).alias(name)
        for name, part in _PERCENTILES.items()
    ]
    table = made.rollup("name").agg(
        F.count("*").alias("count"), *spread, F.max("seconds").alias("most")
    )
    # Without any rows, `rollup` still yields one row, with count 0.
    rows = _rows(table.where("count > 0").orderBy(F.desc("count"), "name").limit(SUBTREES))
    return [Latency(**row) for row in rows]


def _next_offsets(messages: DataFrame) -> DataFrame:
    """Return each record with the offset and the time of the next record of its part."""
    within = Window.partitionBy("zone", "epoch").orderBy("offset")
    return messages.select(
        "zone",
        "epoch",
        "offset",
        "created",
        F.lead("offset").over(within).alias("next"),
        F.lead("created").over(within).alias("after"),
    )


def _parts(messages: DataFrame) -> tuple[MeasuredPart, ...]:
    """Return all parts, those that miss most first."""
    offsets = messages.groupBy("zone", "epoch").agg(
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
        (F.max("offset") - F.min("offset") + 1 - F.countDistinct("offset")).alias("missing"),
    )
    rows = _rows(offsets.orderBy(F.desc("missing"), "zone", "epoch"))
    return tuple(MeasuredPart(**row) for row in rows)


def _holes(messages: DataFrame) -> tuple[MissingOffsets, ...]:
    """Return the largest gaps in order of size."""
    missing = F.col("next") - F.col("offset") - 1
    table = (
        _next_offsets(messages)
        .where(missing > 0)
        .orderBy(F.desc(missing), "zone", "epoch", "offset")
        .select(
            "zone",
            "epoch",
            (F.col("offset") + 1).alias("first"),
            (F.col("next") - 1).alias("last"),
            F.col("created").alias("before"),
            "after",
        )
    )
    return tuple(MissingOffsets(**row) for row in _rows(table.limit(HOLES)))


def third_of_decade(number: int) -> float:
    """Return the seconds at which a bar of the histogram begins."""
    return math.pow(10.0, number / A_DECADE)
