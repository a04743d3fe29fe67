"""SHELL: the job that copies journals and delivery ledgers to an archive and maintains it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from txbroker.pipeline.archives.archives import write_batch
from txbroker.pipeline.archives.commits import Commits
from txbroker.pipeline.archives.upkeep import ArchiveUpkeep, KeepRules, UpkeepResult
from txbroker.pipeline.archives.writer import MESSAGES, FileLayout
from txbroker.pipeline.ledgers.ledger_archive import KEPT, LedgerCopy
from txbroker.pipeline.spark.journal_jobs import (
    INTERVAL,
    JobLock,
    Report,
    follow,
    no_report,
    source,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def archive(
    spark: SparkSession,
    *,
    root: str,
    archive: str | os.PathLike[str],
    filter: str | None = None,
    once: bool = False,
    interval: str = INTERVAL,
    keep: KeepRules | None = None,
    keep_ledger: timedelta = KEPT,
    options: Mapping[str, str] | None = None,
    report: Report = no_report,
    is_stopping: Callable[[], bool] = lambda: False,
) -> None:
    """
    Copy the journals of all zones, and the ledgers of all nodes that keep one, to an archive.

    The copy starts at the journals' beginning. Each record and row is copied once, however often
    the job is ended or killed and restarted. `keep` is the retention of messages, `keep_ledger`
    that of ledger rows.

    `root` is the gRPC address of any node. With `once`, the job returns when all records present at
    its start are copied. Otherwise it copies a batch each `interval`, until `is_stopping`.
    `options` are further options of the data source. Raises `PipelineError`, and Spark's errors.
    """
    folder = Path(archive)
    with JobLock(folder):
        state = Commits(folder).load()
        rows = source(spark, root, filter, folder, state, options or {})
        ledgers = LedgerCopy(spark, root, folder, age=keep_ledger, report=report)
        archive_stream(
            rows,
            folder,
            once=once,
            interval=interval,
            keep=keep or KeepRules(),
            report=report,
            is_stopping=is_stopping,
            between=ledgers.between,
        )
        if once:
            ledgers.all()


def archive_stream(
    rows: DataFrame,
    folder: Path,
    *,
    once: bool,
    interval: str = INTERVAL,
    keep: KeepRules,
    layout: FileLayout = MESSAGES,
    report: Report = no_report,
    is_stopping: Callable[[], bool] = lambda: False,
    between: Callable[[], None] = lambda: None,
) -> None:
    """
    Archive the messages of any stream of message rows; the caller holds the folder's lock.

    `between` is called at times when no batch is being archived.
    """
    upkeep = ArchiveUpkeep(rows.sparkSession, Commits(folder), layout, keep)

    def take(batch: DataFrame, query: str, number: int) -> None:
        written = write_batch(batch, folder, query, number, layout)
        report("batch", {"batch": number, "rows": sum(file.rows for file in written)})
        _report_upkeep(report, upkeep.after_batch())

    follow(
        rows,
        folder,
        take,
        once=once,
        interval=interval,
        is_stopping=is_stopping,
        between=between,
    )
    _report_upkeep(report, upkeep.all())


def _report_upkeep(report: Report, done: UpkeepResult) -> None:
    if done != UpkeepResult():
        report("upkeep", attrs.asdict(done))
