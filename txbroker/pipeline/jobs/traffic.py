"""
SHELL: counts the traffic of each subtree of topics, by window of time.

The command `traffic` shows this aggregation, and the jobs *plan* and *report* begin with it. An
unknown number (deliveries without a ledger, or an owner that is not named) is null, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from txbroker.pipeline.archives.inputs import Rows, history

TRAFFIC_COLUMNS = (
    "start timestamp, end timestamp, subtree string, messages long, bytes long, publishers long,"
    " deliveries long, fan_out double, copies long, cross_publishes long, cross_deliveries long,"
    " cross_share double"
)
"""
Columns of the traffic of a subtree in a window, in Spark's DDL.

- `start`, `end`: the window's; without windows, those of all messages read.
- `subtree`: the first levels of the topics.
- `messages`: publishes; `bytes`: their payloads; `publishers`: distinct client ids.
- `deliveries`: deliveries of the window's messages, at any time; `fan_out`: deliveries per message.
- `copies`: messages, counted once per node other than the owner that delivered them: the load of
  links.
- `cross_publishes`: publishes received at another node than the owner's. `cross_deliveries`:
  deliveries made at another node. `cross_share`: the share of both in all publishes and deliveries,
  or in publishes alone where deliveries are null.
"""

MESSAGE_KEY = ["zone", "epoch", "offset"]


def traffic(
    messages: Rows,
    ledger: Rows | None = None,
    *,
    depth: int = 2,
    window: float | None = None,
    owners: Mapping[str, str] | None = None,
) -> DataFrame:
    """
    Return the traffic per subtree and window: rows of `TRAFFIC_COLUMNS`, by start and subtree.

    `messages` are message rows, `ledger` rows of the delivery ledger, or None if none was kept. The
    path of an archive stands for its messages and ledger (see `history`). `depth` is the number of
    levels of a subtree (0: all topics in one), `window` the seconds of a window. `owners` has the
    node of each zone (apex). Cross-node columns are null for subtrees with a message of any other
    zone.
    """
    messages, ledger = history(messages, ledger)
    rows = messages.withColumn("subtree", subtree("topic", depth))
    rows = with_owner(rows, owners or {})
    if ledger is None:
        rows = rows.withColumns({name: F.lit(None).cast("long") for name in _DELIVERED})
    else:
        rows = rows.join(_delivered(deliveries(ledger), owners or {}), MESSAGE_KEY, "left")
    keys: list[Column | str] = ["subtree"]
    if window is not None:
        milliseconds = max(1, round(window * 1000))
        keys.append(F.window("created", f"{milliseconds} milliseconds").alias("window"))
    grouped = rows.groupBy(*keys).agg(*_sums(has_ledger=ledger is not None))
    if window is None:
        ends = messages.agg(F.min("created").alias("start"), F.max("created").alias("end"))
        grouped = grouped.crossJoin(ends)
    else:
        grouped = grouped.withColumns({"start": F.col("window.start"), "end": F.col("window.end")})
    return _shares(grouped).orderBy("start", "subtree")


def subtree(topic: str, depth: int) -> Column:
    """Return the first `depth` levels of the column `topic`, or all of a shorter topic."""
    return F.substring_index(topic, "/", depth)


def deliveries(ledger: DataFrame) -> DataFrame:
    """Return the ledger's rows of kind `delivery`."""
    return ledger.where(F.col("kind") == "delivery")


def with_owner(rows: DataFrame, owners: Mapping[str, str]) -> DataFrame:
    """Add the column `owner`: the node of the row's zone, null where `owners` lacks the zone."""
    if not owners:
        return rows.withColumn("owner", F.lit(None).cast("string"))
    known = rows.sparkSession.createDataFrame(sorted(owners.items()), "zone string, owner string")
    return rows.join(F.broadcast(known), "zone", "left")


_DELIVERED = ("deliveries", "copies", "cross_deliveries")


def _delivered(made: DataFrame, owners: Mapping[str, str]) -> DataFrame:
    """Return `_DELIVERED` of each delivered message; without an owner the last two are null."""
    at_node = made.groupBy(*MESSAGE_KEY, "node").agg(F.count("*").alias("made"))
    is_elsewhere = F.col("node") != F.col("owner")
    return (
        with_owner(at_node, owners)
        .groupBy(*MESSAGE_KEY)
        .agg(
            F.sum("made").alias("deliveries"),
            F.sum(is_elsewhere.cast("long")).alias("copies"),
            F.sum(is_elsewhere.cast("long") * F.col("made")).alias("cross_deliveries"),
        )
    )


def _sums(*, has_ledger: bool) -> list[Column]:
    """Return a group's sums; one message without a known owner makes cross-node sums null."""
    is_known = F.count("owner") == F.count("*")

    def if_known(value: Column) -> Column:
        return F.when(is_known, value)

    def delivered(name: str) -> Column:
        # A message without a row in the ledger has no delivery: without coalesce, it would be null.
        return F.sum(F.coalesce(name, F.lit(0))) if has_ledger else F.lit(None).cast("long")

    return [
        F.count("*").alias("messages"),
        F.sum(F.octet_length("payload").cast("long")).alias("bytes"),
        F.countDistinct("client_id").alias("publishers"),
        delivered("deliveries").alias("deliveries"),
        if_known(delivered("copies")).alias("copies"),
        if_known(F.sum((F.col("node") != F.col("owner")).cast("long"))).alias("cross_publishes"),
        if_known(delivered("cross_deliveries")).alias("cross_deliveries"),
    ]


def _shares(grouped: DataFrame) -> DataFrame:
    events = F.col("messages") + F.coalesce("deliveries", F.lit(0))
    crossing = F.col("cross_publishes") + F.coalesce("cross_deliveries", F.lit(0))
    names = [column.split()[0] for column in TRAFFIC_COLUMNS.split(", ")]
    return grouped.withColumns(
        {"fan_out": F.col("deliveries") / F.col("messages"), "cross_share": crossing / events}
    ).select(*names)
