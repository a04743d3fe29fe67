"""SHELL: gathers the evidence of an audit from the nodes of a tree, an archive, or both."""

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
    The input of an audit: DataFrames of `MESSAGE_COLUMNS`, `LEDGER_COLUMNS`, `CURSOR_COLUMNS`.

    A message may occur twice. `is_whole`: True if every node has reported its sessions and ledger.
    """

    messages: DataFrame
    ledger: DataFrame
    cursors: DataFrame
    is_whole: bool = True


def without_nodes(
    spark: SparkSession, messages: DataFrame, ledger: DataFrame
) -> tuple[Evidence, tuple[str, ...]]:
    """
    Return the evidence of ledger rows alone, and the line that states its limit.

    The audit then calls no message lost.
    """
    cursors = spark.createDataFrame([], CURSOR_COLUMNS)
    evidence = Evidence(messages=messages, ledger=ledger, cursors=cursors, is_whole=False)
    return evidence, (NO_NODES,)


def gather(
    spark: SparkSession, root: str, messages: DataFrame, ledger: DataFrame | None = None
) -> tuple[Evidence, tuple[str, ...]]:
    """
    Gather the evidence about `messages` from the nodes of the tree of `root`.

    `ledger` has rows that are known already: of each ledger, only later rows are read. Return the
    evidence, and one line for each limit of the audit. Raises `PipelineError`.

    The nodes report their sessions before the ledgers are read. Otherwise a message delivered in
    between would have no row, and would count as lost. The nodes report again afterwards. Otherwise
    a session that moves between two nodes could be missed.
    """
    from txbroker.pipeline.ledgers import ledgers as ledgers

    reached = {} if ledger is None else _reached(ledger)
    found, missing = ledgers.holders(root)
    before, away_before = ledgers.cursors(found)
    known = ledgers.ledgers_of(found, reached)
    after, away_after = ledgers.cursors(found)
    away = {one.node: one for one in (*missing, *away_before, *known.missing, *away_after)}
    rows = ledgers.read_spans(spark, known.spans).persist()  # Unpersisted, each use asks the nodes.
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
        # Spark would take an empty chunk for the end of the table.
        cursors=spark.createDataFrame(
            pa.concat_tables([before, after]).combine_chunks(), CURSOR_COLUMNS
        ),
        is_whole=not away,
    )
    return evidence, tuple(notes)


def _reached(ledger: DataFrame) -> dict[str, int]:
    """Return the number of the next row to read of each ledger."""
    from pyspark.sql import functions as f

    last = ledger.groupBy("ledger").agg(f.max("number").alias("last")).collect()
    return {row["ledger"]: row["last"] + 1 for row in last}
