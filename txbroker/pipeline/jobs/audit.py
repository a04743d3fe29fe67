"""
SHELL: what became of every acknowledged message for every durable session that was to get it.

`compare` is the comparison itself, on DataFrames: messages (of an archive or the journals), rows of
the ledgers, and how far the sessions have come. It matches distinct topics with distinct filters
once, and joins the rest on equal values, so it costs what the deliveries cost. `evidence.py` brings
the latter two from the nodes of a tree. What each status means is said in docs/pipeline/audit.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa

from txbroker.delegation.passage import Passage
from txbroker.errors import PipelineError
from txbroker.matching.index import SubscriptionIndex
from txbroker.pipeline.coverage import Covered, Event, covered
from txbroker.pipeline.evidence import Evidence, gather
from txbroker.pipeline.rows import AUDIT_ARROW, AUDIT_COLUMNS
from txbroker.pipeline.verdicts import judge
from txbroker.place import PartKey, Place

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

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
_MATCHED = "topic string, filter string"

_ROWS = 10_000
"""Rows that a worker hands on at once, about."""


def audit(spark: SparkSession, root: str, messages: DataFrame | None = None) -> DataFrame:
    """
    What became of messages (those that the journals of the tree of `root` have, if none are given)
    for every durable session: `rows.AUDIT_COLUMNS`. Raises `PipelineError`, also where something
    limits what can be said (see `gather`, which tells it in lines instead).
    """
    if messages is None:
        messages = spark.read.format("txbroker").option("root", root).load()
    evidence, notes = gather(spark, root, messages)
    if notes:
        raise PipelineError("; ".join(notes))
    return compare(evidence)


def compare(evidence: Evidence) -> DataFrame:
    """
    One row for each message of QoS 1 or 2 and each durable session that was to get it at QoS 1 or 2
    (`AUDIT_COLUMNS`).
    """
    from pyspark.sql import functions as f

    passages = _passages(evidence.ledger)
    books = _books(evidence.ledger)
    held = _covered(evidence.ledger, passages).cache()
    told = _told(_owed(evidence.messages, held, books), evidence.ledger).cache()
    done = told.where("delivered").withColumn("status", f.lit("delivered"))
    open_ = told.where("not delivered")
    dropped = evidence.ledger.where("kind = 'dropped'").select(
        *_KEY[:3], f.col("offset").alias("first"), f.col("through").alias("last")
    )
    is_dropped = f.col("offset").between(f.col("first"), f.col("last"))
    gone = _where_any(open_, dropped, is_dropped, "dropped")
    left = _where_none(open_, dropped, is_dropped)
    cursors = evidence.cursors.select(*_KEY[:3], f.col("offset").alias("come"), "open")
    is_to_come = (f.col("offset") > f.col("come")) | f.expr("array_contains(open, offset)")
    pending = _where_any(left, cursors, is_to_come, "pending")
    suspects = _where_none(left, cursors, is_to_come)
    judged = _judged(suspects, evidence, passages, books)
    found = [frame.select(*AUDIT_ARROW.names) for frame in (done, gone, pending, judged)]
    return found[0].union(found[1]).union(found[2]).union(found[3])


def count(rows: DataFrame, shown: int) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """
    How many rows of an audit have which status, all of them named, and the first lost ones, so many
    at the most, by client and place; `created` as ISO 8601.
    """
    kept = rows.cache()
    found = {row.status: row["count"] for row in kept.groupBy("status").count().collect()}
    counts = {status: found.get(status, 0) for status in STATUSES}
    if not counts["lost"]:
        return counts, []
    lost = kept.where("status = 'lost'").drop("status").orderBy(*_KEY).limit(shown).toArrow()
    return counts, [{**row, "created": row["created"].isoformat()} for row in lost.to_pylist()]


@attrs.frozen(kw_only=True)
class _Book:
    """
    One ledger: the time of its first row, whether others came before it, and the time of its last
    gap. Times in microseconds UTC.
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


def _passages(ledger: DataFrame) -> tuple[Passage, ...]:
    rows = (
        ledger.where("kind = 'passage'")
        .select("filter", "left_zone", "left_epoch", "through", "zone", "epoch", "offset")
        .distinct()
        .collect()
    )
    return tuple(
        Passage(
            apex=row.filter,
            left=Place(PartKey(row.left_zone, row.left_epoch), row.through),
            entered=Place(PartKey(row.zone, row.epoch), row.offset),
        )
        for row in rows
    )


def _covered(ledger: DataFrame, passages: tuple[Passage, ...]) -> DataFrame:
    """From where to where subscriptions held (`_COVERED`)."""
    from pyspark.sql import functions as f

    says_qos = f.when(f.col("kind") == "start", f.col("qos")).alias("qos")
    events = ledger.where("kind in ('start', 'end')").select(
        *_KEY, "filter", says_qos, f.unix_micros("time").alias("time"), "number"
    )
    return (
        events.repartition("client_id")
        .sortWithinPartitions("client_id", "filter")
        .mapInArrow(_cover(passages), _COVERED)
    )


def _cover(passages: tuple[Passage, ...]) -> Callable[[Iterable[pa.RecordBatch]], Any]:
    """On a worker: rows of starts and ends, those of one subscription together, to `_COVERED`."""

    def cover(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in batch.to_pylist())
        found: list[dict[str, Any]] = []
        for (client, text), some in groupby(rows, lambda row: (row["client_id"], row["filter"])):
            for span in covered(text, map(_event, some), passages):
                found.append(_row(client, text, span))
            if len(found) >= _ROWS:
                yield pa.RecordBatch.from_pylist(found, schema=_COVERED_ARROW)
                found = []
        yield pa.RecordBatch.from_pylist(found, schema=_COVERED_ARROW)

    return cover


def _row(client_id: str, topic_filter: str, span: Covered) -> dict[str, Any]:
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


def _event(row: dict[str, Any]) -> Event:
    return Event(
        part=PartKey(row["zone"], row["epoch"]),
        offset=row["offset"],
        qos=row["qos"],
        time=row["time"],
        number=row["number"],
    )


def _owed(messages: DataFrame, held: DataFrame, books: tuple[_Book, ...]) -> DataFrame:
    """The keys of what sessions were to get, with topic, filter and times."""
    from pyspark.sql import functions as f

    # What is older is not looked at: nobody could tell a loss from a row that retention took.
    since = max((book.began for book in books if book.is_cut), default=None)
    wanted = messages.where("qos > 0").select("zone", "epoch", "offset", "topic", "created")
    if since is not None:
        wanted = wanted.where(f.unix_micros("created") > since)
    wanted = wanted.persist()  # else the nodes are read twice
    filters = [row.filter for row in held.select("filter").distinct().collect()]
    pairs = wanted.select("topic").distinct().mapInArrow(_match(filters), _MATCHED)
    within = f.col("within")
    is_below = f.col("topic").startswith(f.concat(within, f.lit("/")))
    is_within = (within == "") | (f.col("topic") == within) | is_below
    return (
        wanted.join(pairs, "topic")
        .join(held, ["filter", "zone", "epoch"])
        .where((f.col("offset") > f.col("since")) & (f.col("offset") <= f.col("until")))
        .where(is_within)
    )


def _match(filters: list[str]) -> Callable[[Iterable[pa.RecordBatch]], Any]:
    """On a worker: distinct topics to all pairs of a topic and a filter that matches it."""

    def match(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        index: SubscriptionIndex[str, str] = SubscriptionIndex(cache_limit=1)
        for topic_filter in filters:
            index.add(topic_filter, topic_filter, topic_filter)
        for batch in batches:
            found = [
                (topic, topic_filter)
                for topic in batch.column("topic").to_pylist()
                for _, topic_filter in index.match(topic)
            ]
            columns = [pa.array([one[place] for one in found], pa.string()) for place in (0, 1)]
            yield pa.RecordBatch.from_arrays(columns, names=["topic", "filter"])

    return match


def _told(owed: DataFrame, ledger: DataFrame) -> DataFrame:
    """One row for each message and session, with what the ledgers say of its delivery."""
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


def _where_any(rows: DataFrame, facts: DataFrame, condition: Column, status: str) -> DataFrame:
    """The rows for which some fact of the same session and part meets the condition."""
    from pyspark.sql import functions as f

    return _join(rows, facts, condition, "left_semi").withColumn("status", f.lit(status))


def _where_none(rows: DataFrame, facts: DataFrame, condition: Column) -> DataFrame:
    return _join(rows, facts, condition, "left_anti")


def _join(rows: DataFrame, facts: DataFrame, condition: Column, how: str) -> DataFrame:
    named = facts.toDF(*(f"fact_{name}" if name in _KEY else name for name in facts.columns))
    same = [rows[name] == named[f"fact_{name}"] for name in _KEY[:3]]
    for one in same:
        condition = condition & one
    return rows.join(named, condition, how)


def _judged(
    suspects: DataFrame,
    evidence: Evidence,
    passages: tuple[Passage, ...],
    books: tuple[_Book, ...],
) -> DataFrame:
    """What no fact about their very part explains."""
    from pyspark.sql import functions as f

    sessions = evidence.cursors.groupBy("client_id").agg(
        f.min("kept").alias("kept"),
        f.collect_list(f.struct("zone", "epoch", f.col("offset").alias("come"))).alias("parts"),
    )
    known = suspects.join(sessions, "client_id", "left")
    gaps: dict[str, int] = {}
    for book in books:
        if book.gap is not None:
            gaps[book.node] = max(book.gap, gaps.get(book.node, 0))
    if gaps:
        nodes = evidence.ledger.where(f.col("node").isin(list(gaps))).where("client_id is not null")
        told = f.coalesce(*(f.when(f.col("node") == node, gap) for node, gap in gaps.items()))
        known = known.join(
            nodes.groupBy("client_id").agg(f.max(told).alias("gap")), "client_id", "left"
        )
    else:
        known = known.withColumn("gap", f.lit(None).cast("long"))
    return known.mapInArrow(judge(passages, is_whole=evidence.is_whole), AUDIT_COLUMNS)
