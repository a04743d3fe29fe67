"""
SHELL: how much passes through each subtree of topics, by window of time.

What lives here: the aggregation that the command `traffic` shows and that the jobs *plan* and
*report* begin with. What cannot be known (deliveries without a ledger, an owner that nobody names)
is null, never 0.
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
Traffic of a subtree in a window, in Spark's DDL.

`start` and `end` are the window's, or of all that was read where there are no windows. `subtree` is
the first levels of the topics. `messages` counts publishes, `bytes` their payloads, `publishers`
distinct client ids. `deliveries` counts those of the window's messages, whenever they were made;
`fan_out` is deliveries a message. `copies` counts messages once for each node other than the owner
that delivered them: what a link carried. `cross_publishes` came in at another node than the
owner's, `cross_deliveries` were made at one; `cross_share` is the part that the two have in all
publishes and deliveries (of publishes alone where deliveries are null).
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
    Traffic per subtree and window: rows of `TRAFFIC_COLUMNS`, ordered by start and subtree.

    `messages` are message rows, `ledger` rows of the delivery ledger, None where none was kept;
    the path of an archive stands for what it has of both (see `history`). `depth` is how many
    levels name a subtree (0: all topics in one), `window` its seconds. `owners` has the node of
    each zone (apex): cross-node columns are null for subtrees with a message of any other zone.
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
    """The first `depth` levels of the column `topic`; a topic of fewer levels stands for itself."""
    return F.substring_index(topic, "/", depth)


def deliveries(ledger: DataFrame) -> DataFrame:
    """The ledger's rows that say that a client has a message."""
    return ledger.where(F.col("kind") == "delivery")


def with_owner(rows: DataFrame, owners: Mapping[str, str]) -> DataFrame:
    """The rows and the column `owner`: the node of their zone, null where `owners` has none."""
    if not owners:
        return rows.withColumn("owner", F.lit(None).cast("string"))
    known = rows.sparkSession.createDataFrame(sorted(owners.items()), "zone string, owner string")
    return rows.join(F.broadcast(known), "zone", "left")


_DELIVERED = ("deliveries", "copies", "cross_deliveries")


def _delivered(made: DataFrame, owners: Mapping[str, str]) -> DataFrame:
    """`_DELIVERED` for each message that has a delivery; the last two null without its owner."""
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
    """The sums of a group; one message whose owner is unknown makes the cross-node ones null."""
    is_known = F.count("owner") == F.count("*")

    def if_known(value: Column) -> Column:
        return F.when(is_known, value)

    def delivered(name: str) -> Column:
        # A message that no row of the ledger names was delivered to nobody.
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
