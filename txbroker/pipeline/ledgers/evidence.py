"""SHELL: what an audit compares, from the nodes of a tree, from an archive, or from both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pyarrow as pa

from txbroker.pipeline.source.row_schema import CURSOR_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NO_NODES = (
    "no node was asked: what waits for a client cannot be told from what was lost, and is unknown"
)


@attrs.frozen(kw_only=True)
class Evidence:
    """
    What an audit compares: DataFrames with `MESSAGE_COLUMNS`, `LEDGER_COLUMNS` and
    `CURSOR_COLUMNS`; a message may be there twice. `is_whole`: every node was asked for its
    sessions and its ledger.
    """

    messages: DataFrame
    ledger: DataFrame
    cursors: DataFrame
    is_whole: bool = True


def without_nodes(
    spark: SparkSession, messages: DataFrame, ledger: DataFrame
) -> tuple[Evidence, tuple[str, ...]]:
    """
    What the rows of ledgers have to say of messages by themselves, and the line that tells how far
    that goes: nothing is called lost.
    """
    cursors = spark.createDataFrame([], CURSOR_COLUMNS)
    evidence = Evidence(messages=messages, ledger=ledger, cursors=cursors, is_whole=False)
    return evidence, (NO_NODES,)


def gather(
    spark: SparkSession, root: str, messages: DataFrame, ledger: DataFrame | None = None
) -> tuple[Evidence, tuple[str, ...]]:
    """
    What the nodes of the tree of `root` have to say of `messages`, beyond rows of `ledger` that are
    known already: of each ledger, those behind the last of these are read. Raises `PipelineError`.
    With it one line for each thing that limits the audit.

    Sessions are asked before the ledgers are read, so that what was not with its client by then has
    its row, and after that: a session on its way from one node to another is found once.
    """
    from txbroker.pipeline.ledgers import ledgers as ledgers

    reached = {} if ledger is None else _reached(ledger)
    found, missing = ledgers.holders(root)
    before, away_before = ledgers.cursors(found)
    known = ledgers.ledgers_of(found, reached)
    after, away_after = ledgers.cursors(found)
    away = {one.node: one for one in (*missing, *away_before, *known.missing, *away_after)}
    rows = ledgers.read_spans(spark, known.spans).persist()  # else each use asks the nodes again
    notes = [
        f"node {one.node} at {one.grpc} cannot be asked: of sessions that may be there, nothing is"
        " called lost"
        for one in away.values()
    ]
    notes += [
        f"node {node} keeps no ledger: set `ledger: true` in its topology file"
        for node in known.without
    ]
    evidence = Evidence(
        messages=messages,
        ledger=rows if ledger is None else rows.unionByName(ledger),
        # Spark takes an empty chunk for the end.
        cursors=spark.createDataFrame(
            pa.concat_tables([before, after]).combine_chunks(), CURSOR_COLUMNS
        ),
        is_whole=not away,
    )
    return evidence, tuple(notes)


def _reached(ledger: DataFrame) -> dict[str, int]:
    """Of each ledger the row behind the last one that is there."""
    from pyspark.sql import functions as f

    last = ledger.groupBy("ledger").agg(f.max("number").alias("last")).collect()
    return {row["ledger"]: row["last"] + 1 for row in last}
