"""
SHELL: reads archives through Spark, and writes batches to them.

`commits.py` names the files, `writer.py` writes them in Spark's workers. A worker returns only a
line of JSON for each file.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from txbroker.model.errors import PipelineError
from txbroker.pipeline.archives.commits import Commits
from txbroker.pipeline.archives.manifest import (
    ChangeVerdict,
    DataFile,
    FilesWanted,
    Position,
    select,
)
from txbroker.pipeline.archives.writer import LEDGER, MESSAGES, FileLayout, write_rows
from txbroker.pipeline.source import source_options as options_module
from txbroker.pipeline.source import topic_filters
from txbroker.pipeline.source.lookups import looked_up

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LEDGER_FOLDER = "_ledger"

_GLOB = str.maketrans({character: f"\\{character}" for character in "\\{}[]*?"})


# -- reading


def read_archive(
    spark: SparkSession,
    path: str | os.PathLike[str],
    ledger: bool = False,
    *,
    filter: str | None = None,
    zones: Iterable[str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    start: Mapping[str, Position] | None = None,
    end: Mapping[str, Position] | None = None,
) -> DataFrame:
    """
    Return the rows of an archive at its present version.

    Later commits and removals do not affect the DataFrame for an hour; after that, compacted files
    are deleted. Predicates on the DataFrame are pushed down to Parquet.

    With `ledger` the rows are those of the delivery ledgers beside the archive, and none if no node
    kept one. Their times are the times of writing, and only `since` and `until` select them. The
    other arguments leave out rows and whole files. `filter` is a valid MQTT filter; `until` and
    `end` are exclusive; `start` and `end` limit only the zones that they name. Raises
    `PipelineError`.
    """
    if ledger and not (filter is zones is start is end is None):
        raise PipelineError("of an archived ledger only `since` and `until` choose rows")
    wanted = FilesWanted(
        zones=None if zones is None else frozenset(zones),
        topics=filter,
        since=microseconds(since),
        until=microseconds(until),
        start=start,
        end=end,
    )
    if ledger and not has_ledger(path):
        Commits(path).load_existing(MESSAGES.kind)  # raises for a path without an archive
        return read_files(spark, Path(path), (), LEDGER)
    folder, layout = (Path(path, LEDGER_FOLDER), LEDGER) if ledger else (Path(path), MESSAGES)
    files = list(select(Commits(folder).load_existing(layout.kind).files.values(), wanted))
    rows = read_files(spark, folder, files, layout)
    for condition in _conditions(wanted, files, layout):
        rows = rows.where(condition)
    return rows


def has_ledger(path: str | os.PathLike[str]) -> bool:
    """True if the archive has, or had, rows of delivery ledgers."""
    return Commits(Path(path, LEDGER_FOLDER)).load().version > 0


def read_files(
    spark: SparkSession, folder: Path, files: Iterable[DataFile], layout: FileLayout
) -> DataFrame:
    """Return all rows of some files of an archive."""
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = from_arrow_schema(layout.schema)
    base = f"file:{folder.resolve()}".translate(_GLOB)
    paths = [f"{base}/{file.path}" for file in files]
    if not paths:
        return spark.createDataFrame([], schema)
    # Without a recursive lookup, Spark would take encoded folder names for columns.
    return spark.read.schema(schema).option("recursiveFileLookup", "true").parquet(*paths)


def microseconds(time: datetime | None) -> int | None:
    """Convert a time with its zone to microseconds since 1970; None stays None."""
    return None if time is None else options_module.microseconds(time)


def _conditions(
    wanted: FilesWanted, files: Sequence[DataFile], layout: FileLayout
) -> Iterator[Column]:
    """Return the conditions on rows that the choice of files does not ensure."""
    from pyspark.sql import functions as F

    time = F.col(layout.day)
    if wanted.zones is not None:
        yield F.col("zone").isin(sorted(wanted.zones))
    if wanted.topics is not None:
        yield topic_filters.matches(F.col("topic"), wanted.topics)
    if wanted.since is not None:
        yield time >= F.timestamp_micros(F.lit(wanted.since))
    if wanted.until is not None:
        yield time < F.timestamp_micros(F.lit(wanted.until))
    # A condition for every zone would be slow: only zones with a file on both sides need one.
    starts, ends = wanted.start or {}, wanted.end or {}
    cut = {file.zone for file in files if file.first < starts.get(file.zone, file.first)}
    if cut:
        yield ~_is_before({zone: starts[zone] for zone in cut}, is_otherwise=False)
    cut = {file.zone for file in files if file.zone in ends and file.last >= ends[file.zone]}
    if cut:
        yield _is_before({zone: ends[zone] for zone in cut}, is_otherwise=True)


def _is_before(positions: Mapping[str, Position], *, is_otherwise: bool) -> Column:
    """Return True for rows before their zone's position; `is_otherwise` for other zones."""
    from pyspark.sql import functions as F

    values = {
        zone: {"epoch": epoch, "offset": offset} for zone, (epoch, offset) in positions.items()
    }
    limit = looked_up(values, "struct<epoch:bigint,offset:bigint>", F.col("zone"))
    return F.coalesce(F.struct("epoch", "offset") < limit, F.lit(is_otherwise))


# -- writing


def write_batch(
    df: DataFrame,
    path: str | os.PathLike[str],
    query: str,
    batch: int,
    layout: FileLayout = MESSAGES,
) -> list[DataFile]:
    """
    Add the rows of `df` to the archive at `path` in one commit; create the archive if missing.

    `query` and `batch` name the batch, and a committed batch is not written again. Return the added
    files, so none for such a batch. Raises `PipelineError`.
    """
    commits = Commits(path)
    if commits.load().has_batch(query, batch):
        return []
    files = write_files(df, commits.archive, layout)
    if not files:
        return []
    change = commits.change(added=tuple(files), query=query, batch=batch)
    verdict = commits.commit(change, layout.kind)
    if verdict is ChangeVerdict.LOST:
        raise PipelineError(
            f"{path}: files of batch {batch} were deleted before it was committed, a day after they"
            " were written; run the job again"
        )
    return files if verdict is ChangeVerdict.FITS else []


def write_files(df: DataFrame, folder: Path, layout: FileLayout) -> list[DataFile]:
    """Write rows in Spark's workers; only a commit makes the files a part of the archive."""
    write = functools.partial(_write_partition, str(folder.resolve()), layout)
    lines = df.select(*layout.schema.names).mapInArrow(write, "file string").collect()
    return [DataFile.from_json(json.loads(line.file)) for line in lines]


def _write_partition(
    archive: str, layout: FileLayout, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    files = write_rows(archive, layout, batches)
    lines = [json.dumps(file.to_json()) for file in files]
    yield pa.RecordBatch.from_pydict({"file": pa.array(lines, pa.string())})
