"""
SHELL: provides the input of jobs that read history: rows of a notebook, or an archive.
"""

from __future__ import annotations

import os
from datetime import datetime
from typing import TypeAlias

from pyspark.sql import DataFrame, SparkSession

from txbroker.model.errors import PipelineError
from txbroker.pipeline.archives.archives import has_ledger, read_archive

Rows: TypeAlias = "DataFrame | str | os.PathLike[str]"
"""Rows, or the path of an archive."""


def history(
    messages: Rows,
    ledger: Rows | None = None,
    *,
    filter: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> tuple[DataFrame, DataFrame | None]:
    """
    Return message rows, and rows of the delivery ledger if any exist.

    An archive's own ledger is used unless `ledger` is given. The other arguments select messages of
    an archive, as in `read_archive`. Of the ledger only `since` selects rows: they name no topics,
    and come later than messages. Paths need an active Spark session. Raises `PipelineError`.
    """
    if ledger is None and not isinstance(messages, DataFrame):
        ledger = messages if has_ledger(messages) else None
    if not isinstance(messages, DataFrame):
        messages = read_archive(_session(), messages, filter=filter, since=since, until=until)
    if ledger is not None and not isinstance(ledger, DataFrame):
        ledger = read_archive(_session(), ledger, ledger=True, since=since)
    return messages, ledger


def journals(spark: SparkSession, root: str, topics: str | None = None) -> DataFrame:
    """Return the messages of an MQTT filter in the journals of the nodes about `root` (gRPC)."""
    reader = spark.read.format("txbroker").option("root", root)
    if topics is not None:
        reader = reader.option("filter", topics)
    return reader.load()


def _session() -> SparkSession:
    session = SparkSession.getActiveSession()
    if session is None:
        raise PipelineError("an archive is read by a Spark session; start one first")
    return session
