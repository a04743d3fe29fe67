"""
Computes windows of numbers per topic, as DataFrames: count, min, mean, max and last.

A batch of messages becomes *partial* rows, one for each zone, topic and window in it. Partial rows
of a window add up, whenever they came. So a rollup is exact, however late a message is read.

A message belongs to the window of its receipt. With a `time_field` it belongs to the window of the
time in its payload. Messages without such a time have a window of their own, whose start is null.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import attrs
import pyarrow as pa

from txbroker.model.errors import PipelineError
from txbroker.pipeline.archives.writer import FileLayout
from txbroker.pipeline.report_page.payload_numbers import is_own, numbers_in, times_in
from txbroker.pipeline.source.row_schema import TIME

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MINUTE = timedelta(minutes=1)

PARTIAL_ARROW = pa.schema(
    [
        ("zone", pa.string()),
        ("epoch", pa.int64()),
        ("offset", pa.int64()),
        ("topic", pa.string()),
        ("start", TIME),
        ("count", pa.int64()),
        ("other", pa.int64()),
        ("min", pa.float64()),
        ("max", pa.float64()),
        ("sum", pa.float64()),
        ("last", pa.float64()),
        ("created", TIME),
    ]
)
"""
Schema of partial rows: the part of a batch in one zone, topic and window.

`count` messages have numbers, and `other` messages have none. `epoch`, `offset` and `created` are
those of the last message; `last` is the last number.

With a `time_field`, `created` is the latest time in messages with a number. If no message has a
number, it is the latest time in any message. No such time is later than the message's receipt.
"""

UNTIMED = timedelta(days=-1) // timedelta(microseconds=1)
"""Start and time of partial rows of messages without a time; stated times are from 1970 on."""

FINISHED = ("topic", "start", "end", "count", "min", "mean", "max", "last", "other")

PARTIALS = FileLayout(kind="rollup", schema=PARTIAL_ARROW, day="start", latest="created")


@attrs.frozen(kw_only=True)
class Windows:
    """
    The definition of a rollup: windows of `length` of the numbers in payloads.

    `length` has whole seconds; windows begin at its multiples since 1970 UTC. The number is the
    payload itself, or is at `field` (`a.b.c`) in a payload of JSON. The time is that of receipt, or
    is at `time_field` in the same JSON.
    """

    length: timedelta = MINUTE
    field: str | None = None
    time_field: str | None = None

    def __attrs_post_init__(self) -> None:
        """Check the fields; raises `PipelineError`."""
        if self.length < timedelta(seconds=1) or self.length % timedelta(seconds=1):
            raise PipelineError(f"window {self.length}: whole seconds are wanted, such as 60s, 5m")
        if self.time_field is not None and self.field is None:
            raise PipelineError(
                f"time field {self.time_field!r}: a payload that has it is no plain number; give"
                " the field with the number, too"
            )

    @property
    def label(self) -> str:
        """The length in the form used in topics: `1m`, `90s`."""
        seconds = self.length // timedelta(seconds=1)
        for unit, name in ((86_400, "d"), (3_600, "h"), (60, "m")):
            if seconds % unit == 0:
                return f"{seconds // unit}{name}"
        return f"{seconds}s"

    @property
    def microseconds(self) -> int:
        """The length in microseconds."""
        return self.length // timedelta(microseconds=1)


def partial_rows(rows: DataFrame, windows: Windows) -> DataFrame:
    """Convert message rows to `PARTIAL_ARROW`; topics of rollups are left out."""
    from pyspark.sql import functions as F

    numbers = (
        _timed(rows.where(~is_own(F.col("topic"))), windows)
        .withColumn("value", numbers_in(F.col("payload"), windows.field))
        .withColumn("place", F.struct("epoch", "offset"))
    )
    has_value = F.col("value").isNotNull()
    latest = F.max("time")
    if windows.time_field is not None:
        latest = F.coalesce(F.max(F.when(has_value, F.col("time"))), latest)
    found = numbers.groupBy("zone", "topic", "start").agg(
        F.max("place").alias("place"),
        F.count("value").alias("count"),
        (F.count(F.lit(1)) - F.count("value")).alias("other"),
        F.min("value").alias("min"),
        F.max("value").alias("max"),
        F.sum("value").alias("sum"),
        F.max_by("value", F.when(has_value, _order(windows, "time", "place"))).alias("last"),
        latest.alias("created"),
    )
    found = found.withColumn("epoch", F.col("place.epoch"))
    return found.withColumn("offset", F.col("place.offset")).select(*PARTIAL_ARROW.names)


def _timed(rows: DataFrame, windows: Windows) -> DataFrame:
    """Add the time of each message, and the start of its window; both `UNTIMED` without a time."""
    from pyspark.sql import functions as F

    time = F.unix_micros("created")
    if windows.time_field is not None:
        rows = rows.withColumn("said", times_in(F.col("payload"), windows.time_field))
        # A time after the receipt would let one wrong clock close a window too early.
        time = F.when(F.col("said") >= 0, F.least("said", time)).otherwise(UNTIMED)
    start = F.col("micros") - F.pmod("micros", F.lit(windows.microseconds))
    return (
        rows.withColumn("micros", time)
        .withColumn(
            "start", F.timestamp_micros(F.when(F.col("micros") < 0, UNTIMED).otherwise(start))
        )
        .withColumn("time", F.timestamp_micros("micros"))
    )


def _order(windows: Windows, time: str, *place: str) -> Column:
    """Return the expression that orders messages or rows of a zone by age."""
    from pyspark.sql import functions as F

    return F.struct(*place) if windows.time_field is None else F.struct(time, *place)


def finished_rows(partials: DataFrame, windows: Windows) -> DataFrame:
    """
    Add partial rows up: `topic, start, end, count, min, mean, max, last, other`.

    The result has one row for each topic and window. A topic may belong to two zones in a window.
    Then the last number is that of the zone with the latest message. Messages without a time have a
    row whose start is null.
    """
    return added_up(partials, windows).select(*FINISHED)


def rollup_rows(
    rows: DataFrame,
    window: timedelta = MINUTE,
    field: str | None = None,
    time_field: str | None = None,
) -> DataFrame:
    """Roll message rows up to windows, as `finished_rows` does. Raises `PipelineError`."""
    windows = Windows(length=window, field=field, time_field=time_field)
    return finished_rows(partial_rows(rows, windows), windows)


def added_up(partials: DataFrame, windows: Windows) -> DataFrame:
    """Add partial rows up, with the zone of the latest message as `zone`."""
    from pyspark.sql import functions as F

    def added(order: Column) -> list[Column]:
        has_last = F.when(F.col("last").isNotNull(), order)
        return [
            F.sum("count").alias("count"),
            F.sum("other").alias("other"),
            F.min("min").alias("min"),
            F.max("max").alias("max"),
            F.sum("sum").alias("sum"),
            F.max_by("last", has_last).alias("last"),
            F.max("created").alias("created"),
        ]

    start = F.when(F.unix_micros("start") != UNTIMED, F.col("start"))
    # The repartition serves both groupings: each would cost an exchange of its own.
    by_zone = (
        partials.withColumn("start", start)
        .repartition("topic", "start")
        .groupBy("zone", "topic", "start")
        .agg(*added(_order(windows, "created", "epoch", "offset")))
    )
    latest = F.struct("created", "zone")
    found = by_zone.groupBy("topic", "start").agg(
        *added(latest), F.max_by("zone", latest).alias("zone")
    )
    end = F.timestamp_micros(F.unix_micros("start") + F.lit(windows.microseconds))
    return found.withColumn("end", end).withColumn("mean", F.col("sum") / F.col("count"))
