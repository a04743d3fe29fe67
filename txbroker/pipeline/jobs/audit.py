"""
SHELL: audits every acknowledged message for every durable session that was to receive it.

`compare` works on DataFrames: messages (of an archive or the journals), ledger rows, and the
sessions' cursors. The comparison matches distinct topics with distinct filters once, and joins the
rest on equal values. So an audit costs what the deliveries cost. `evidence.py` gathers ledger rows
and cursors from the nodes of a tree. docs/pipeline/audit.md defines the statuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa

from txbroker.core.subscription_index import SubscriptionIndex
from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.errors import PipelineError
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.pipeline.ledgers.coverage import Coverage, SubscriptionEvent, covered
from txbroker.pipeline.ledgers.evidence import Evidence, gather
from txbroker.pipeline.ledgers.verdicts import judge
from txbroker.pipeline.source.lookups import looked_up
from txbroker.pipeline.source.row_schema import AUDIT_ARROW, AUDIT_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STATUSES = ("delivered", "pending", "dropped", "unknown", "lost")

_KEY = ("client_id", "zone", "epoch", "offset")
_COVERED = (
    "client_id string, filter string, zone string, epoch long, since long, until long,"
    " within string, said long"
)
_COVERED_ARROW = pa.schema(
    [
        ("client_id", pa.string()),
        ("filter", pa.string()),
        ("zone", pa.string()),
        ("epoch", pa.int64()),
        ("since", pa.int64()),
        ("until", pa.int64()),
        ("within", pa.string()),
        ("said", pa.int64()),
    ]
)
_MATCHED = "zone string, epoch long, offset long, topic string, created timestamp, filter string"

_ROWS = 10_000
"""Approximate rows of a batch that a worker returns."""


def audit(spark: SparkSession, root: str, messages: DataFrame | None = None) -> DataFrame:
    """
    Return the audit of messages for every durable session, as `row_schema.AUDIT_COLUMNS`.

    Without `messages`, those in the journals of the tree of `root` are audited. Raises
    `PipelineError`, also if anything limits the audit; `gather` returns such limits as lines
    instead.
    """
    if messages is None:
        messages = spark.read.format("txbroker").option("root", root).load()
    evidence, notes = gather(spark, root, messages)
    if notes:
        raise PipelineError("; ".join(notes))
    return compare(evidence)


def compare(evidence: Evidence) -> DataFrame:
    """
    Return a row of `AUDIT_COLUMNS` for each message of QoS 1 or 2 and each session due to receive
    it.

    The session is durable, and its subscription has QoS 1 or 2.
    """
    from pyspark.sql import functions as f

    transitions = _passages(evidence.ledger)
    books = _books(evidence.ledger)
    held = _covered(evidence.ledger, transitions).cache()
    told = _told(_owed(evidence.messages, held, books), evidence.ledger).cache()
    done = told.where("delivered").withColumn("status", f.lit("delivered"))
    rest = _judged(_explained(told.where("not delivered"), evidence), evidence, transitions, books)
    return done.select(*AUDIT_ARROW.names).union(rest)


def count(rows: DataFrame, shown: int) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """
    Count the rows of an audit by status, and return the first `shown` lost messages.

    All statuses occur in the counts. Lost messages are ordered by client and position; `created` is
    in ISO 8601.
    """
    kept = rows.cache()
    found = {row.status: row["count"] for row in kept.groupBy("status").count().collect()}
    counts = {status: found.get(status, 0) for status in STATUSES}
    if not counts["lost"]:
        return counts, []
    lost = rows.where("status = 'lost'").drop("status").orderBy(*_KEY).limit(shown).toArrow()
    return counts, [{**row, "created": row["created"].isoformat()} for row in lost.to_pylist()]


@attrs.frozen(kw_only=True)
class _Book:
    """
    A ledger: the time of its first row, whether earlier rows are missing, the last gap's time.

    Times are in microseconds UTC.
    """

    node: str
    began: int
    is_cut: bool
    gap: int | None


def _books(ledger: DataFrame) -> tuple[_Book, ...]:
    from pyspark.sql import functions as f

    time = f.unix_micros("time")
    rows = (
        ledger.groupBy("node", "ledger")
        .agg(
            f.min("number").alias("first"),
            f.min_by(time, f.col("number")).alias("began"),
            f.max(f.when(f.col("kind") == "gap", time)).alias("gap"),
        )
        .collect()
    )
    return tuple(
        _Book(node=row.node, began=row.began, is_cut=row["first"] > 1, gap=row.gap) for row in rows
    )


# -- what was owed


def _passages(ledger: DataFrame) -> tuple[EpochTransition, ...]:
    rows = (
        ledger.where("kind = 'passage'")
        .select("filter", "left_zone", "left_epoch", "through", "zone", "epoch", "offset")
        .collect()
    )
    found = (
        EpochTransition(
            apex=row.filter,
            left=LogPosition(JournalId(row.left_zone, row.left_epoch), row.through),
            entered=LogPosition(JournalId(row.zone, row.epoch), row.offset),
        )
        for row in rows
    )
    return tuple(dict.fromkeys(found))  # Several nodes may write the same passage.


def _covered(ledger: DataFrame, transitions: tuple[EpochTransition, ...]) -> DataFrame:
    """Return the ranges in which subscriptions held (`_COVERED`)."""
    from pyspark.sql import functions as f

    says_qos = f.when(f.col("kind") == "start", f.col("qos")).alias("qos")
    events = ledger.where("kind in ('start', 'end')").select(
        *_KEY, "filter", says_qos, f.unix_micros("time").alias("time"), "number"
    )
    return (
        events.repartition("client_id")
        .sortWithinPartitions("client_id", "filter")
        .mapInArrow(_cover(transitions), _COVERED)
    )


def _cover(transitions: tuple[EpochTransition, ...]) -> Callable[[Iterable[pa.RecordBatch]], Any]:
    """Return a worker function: grouped start and end rows become rows of `_COVERED`."""

    def cover(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in batch.to_pylist())
        found: list[dict[str, Any]] = []
        for (client, text), some in groupby(rows, lambda row: (row["client_id"], row["filter"])):
            for span in covered(text, map(_event, some), transitions):
                found.append(_row(client, text, span))
            if len(found) >= _ROWS:
                yield pa.RecordBatch.from_pylist(found, schema=_COVERED_ARROW)
                found = []
        yield pa.RecordBatch.from_pylist(found, schema=_COVERED_ARROW)

    return cover


def _row(client_id: str, topic_filter: str, span: Coverage) -> dict[str, Any]:
    return {
        "client_id": client_id,
        "filter": topic_filter,
        "zone": span.part.zone,
        "epoch": span.part.epoch,
        "since": span.since,
        "until": span.until,
        "within": span.within,
        "said": span.time,
    }


def _event(row: dict[str, Any]) -> SubscriptionEvent:
    return SubscriptionEvent(
        part=JournalId(row["zone"], row["epoch"]),
        offset=row["offset"],
        qos=row["qos"],
        time=row["time"],
        number=row["number"],
    )


def _owed(messages: DataFrame, held: DataFrame, books: tuple[_Book, ...]) -> DataFrame:
    """Return the messages due to sessions, by key, with topic, filter and times."""
    from pyspark.sql import functions as f

    # Older messages are left out: a deleted ledger row would look like a loss.
    since = max((book.began for book in books if book.is_cut), default=None)
    wanted = messages.where("qos > 0").select("zone", "epoch", "offset", "topic", "created")
    if since is not None:
        wanted = wanted.where(f.unix_micros("created") > since)
    filters = [row.filter for row in held.select("filter").distinct().collect()]
    within = f.col("within")
    is_below = f.col("topic").startswith(f.concat(within, f.lit("/")))
    is_within = (within == "") | (f.col("topic") == within) | is_below
    return (
        wanted.mapInArrow(_match(filters), _MATCHED)
        .join(held, ["filter", "zone", "epoch"])
        .where((f.col("offset") > f.col("since")) & (f.col("offset") <= f.col("until")))
        .where(is_within)
    )


def _match(filters: list[str]) -> Callable[[Iterable[pa.RecordBatch]], Any]:
    """Return a worker function: messages become pairs of message and matching filter."""

    def match(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        index: SubscriptionIndex[str, str] = SubscriptionIndex()
        for topic_filter in filters:
            index.add(topic_filter, topic_filter, topic_filter)
        for batch in batches:
            topics = batch.column("topic").dictionary_encode()
            matched = [
                [one for _, one in index.match(name)] for name in topics.dictionary.to_pylist()
            ]
            places = topics.indices.to_pylist()
            rows = [row for row, place in enumerate(places) for _ in matched[place]]
            found = pa.array([one for place in places for one in matched[place]], pa.string())
            yield batch.take(pa.array(rows, pa.int64())).append_column("filter", found)

    return match


def _told(owed: DataFrame, ledger: DataFrame) -> DataFrame:
    """Return a row for each message and session, with the ledgers' evidence of delivery."""
    from pyspark.sql import functions as f

    wanted = owed.select(*_KEY, "topic", "filter", "created", "said", f.lit(False).alias("done"))
    nothing = f.lit(None)
    deliveries = ledger.where("kind = 'delivery'").select(
        *_KEY,
        nothing.cast("string").alias("topic"),
        nothing.cast("string").alias("filter"),
        nothing.cast("timestamp").alias("created"),
        nothing.cast("long").alias("said"),
        f.lit(True).alias("done"),
    )
    return (
        wanted.union(deliveries)
        .groupBy(*_KEY)
        .agg(
            f.max("topic").alias("topic"),
            f.min("filter").alias("filter"),
            f.max("created").alias("created"),
            f.max("said").alias("said"),
            f.max("done").alias("delivered"),
        )
        .where("topic is not null")
    )


# -- what became of the rest


def _explained(rows: DataFrame, evidence: Evidence) -> DataFrame:
    """Add the status that drops and cursors of the same session and part prove, else null."""
    from pyspark.sql import functions as f

    part = _KEY[:3]
    dropped = evidence.ledger.where("kind = 'dropped'").select(
        *part, f.struct(f.col("offset").alias("first"), "through").alias("range")
    )
    cursors = evidence.cursors.select(
        *part, f.struct(f.col("offset").alias("come"), "open").alias("cursor")
    )
    known = rows.join(
        dropped.groupBy(*part).agg(f.collect_list("range").alias("dropped")), list(part), "left"
    ).join(
        cursors.groupBy(*part).agg(f.collect_list("cursor").alias("cursors")), list(part), "left"
    )
    offset = f.col("offset")
    is_dropped = f.exists("dropped", lambda one: offset.between(one["first"], one["through"]))
    is_to_come = f.exists(
        "cursors", lambda one: (offset > one["come"]) | f.array_contains(one["open"], offset)
    )
    status = f.when(is_dropped, "dropped").when(is_to_come, "pending")
    return known.withColumn("status", status).drop("dropped", "cursors")


def _judged(
    rows: DataFrame,
    evidence: Evidence,
    transitions: tuple[EpochTransition, ...],
    books: tuple[_Book, ...],
) -> DataFrame:
    """Return the rows with a status for each, as `AUDIT_COLUMNS`."""
    from pyspark.sql import functions as f

    sessions = evidence.cursors.groupBy("client_id").agg(
        f.min("kept").alias("kept"),
        f.collect_list(f.struct("zone", "epoch", f.col("offset").alias("come"))).alias("parts"),
    )
    known = rows.join(sessions, "client_id", "left")
    known = known.withColumn("parts", f.when(f.col("status").isNull(), f.col("parts")))
    gaps: dict[str, int] = {}
    for book in books:
        if book.gap is not None:
            gaps[book.node] = max(book.gap, gaps.get(book.node, 0))
    if gaps:
        nodes = evidence.ledger.where(f.col("node").isin(list(gaps))).where("client_id is not null")
        told = looked_up(gaps, "bigint", f.col("node"))
        known = known.join(
            nodes.groupBy("client_id").agg(f.max(told).alias("gap")), "client_id", "left"
        )
    else:
        known = known.withColumn("gap", f.lit(None).cast("long"))
    return known.mapInArrow(judge(transitions, is_whole=evidence.is_whole), AUDIT_COLUMNS)
