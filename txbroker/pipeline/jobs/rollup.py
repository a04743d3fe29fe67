"""
SHELL: rolls numbers in messages up to windows per topic: count, min, mean, max and last.

A batch of messages becomes *partial* rows, one for each zone, topic and window in it. Partial rows
are committed like the rows of an archive. Partial rows of a window add up, whenever they came. So a
late message from an unreachable zone still counts in its window. So the files are the only state,
and a read is always exact (`read_rollup`).

A window has an end by the messages' own times. A window *closes* when its zone has a message from
at least `watermark` behind that end. A closed window is published if wanted. A later message of a
closed window counts in the files, and is not published.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txbroker.model.errors import PipelineError
from txbroker.pipeline.archives.archives import microseconds, read_archive, read_files, write_files
from txbroker.pipeline.archives.commits import Commits
from txbroker.pipeline.archives.manifest import (
    ArchiveState,
    ChangeVerdict,
    DataFile,
    FilesWanted,
    select,
)
from txbroker.pipeline.archives.upkeep import ArchiveUpkeep, KeepRules
from txbroker.pipeline.report_page.windows import (
    FINISHED,
    MINUTE,
    PARTIALS,
    UNTIMED,
    Windows,
    added_up,
    finished_rows,
    partial_rows,
)
from txbroker.pipeline.source import topic_filters
from txbroker.pipeline.source.lookups import looked_up
from txbroker.pipeline.source.sink import SinkTopics
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

WATERMARK = timedelta(seconds=10)
FOR_EVER = KeepRules(age=timedelta(days=100_000))

_NEVER = -(2**62)


def read_rollup(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    filter: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """
    Return the windows of a rollup as `finished_rows`; raises `PipelineError`.

    The windows begin from `since` on and before `until`; `filter` is an MQTT filter of their
    topics.
    """
    from pyspark.sql import functions as F

    state = Commits(path).load_existing(PARTIALS.kind)
    # A range of times must exclude messages without a time, which have a time before 1970.
    first = None if until is None else 0
    wanted = FilesWanted(
        topics=filter,
        since=first if since is None else microseconds(since),
        until=microseconds(until),
    )
    partials = read_files(spark, Path(path), select(state.files.values(), wanted), PARTIALS)
    if filter is not None:
        partials = partials.where(topic_filters.matches(F.col("topic"), filter))
    if wanted.since is not None:
        partials = partials.where(F.col("start") >= F.timestamp_micros(F.lit(wanted.since)))
    if wanted.until is not None:
        partials = partials.where(F.col("start") < F.timestamp_micros(F.lit(wanted.until)))
    return finished_rows(partials, _windows_of(state))


def rollup(
    spark: SparkSession,
    *,
    out: str | os.PathLike[str],
    root: str | None = None,
    archive: str | os.PathLike[str] | None = None,
    filter: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    window: timedelta = MINUTE,
    field: str | None = None,
    time_field: str | None = None,
    watermark: timedelta = WATERMARK,
    publish: str | None = None,
    once: bool = False,
    interval: str = INTERVAL,
    options: Mapping[str, str] | None = None,
    report: Report = no_report,
    is_stopping: Callable[[], bool] = lambda: False,
) -> None:
    """
    Roll messages up into the folder `out`.

    With `archive`, the job rolls up the part of the archive that no earlier run has, and returns.
    With `root`, the job follows the journals of the nodes about `root`. `once`, `interval` and
    `is_stopping` then have the meaning of the job `archive`.

    `publish` is the gRPC address of a node. Closed windows are published there before the commit,
    as `publishable` encodes them. A window of the journals is published once; a window of an
    archive, after a crash, perhaps twice. All rollups in a folder have the same window, field,
    filter and range of time; others are refused. Raises `PipelineError`, and Spark's errors.
    """
    if (root is None) == (archive is None):
        raise PipelineError("rollup reads either an archive or the nodes about a root; name one")
    folder = Path(out)
    windows = Windows(length=window, field=field, time_field=time_field)
    settings = {
        "window": windows.label,
        "field": field,
        "time_field": time_field,
        "filter": filter,
        "since": microseconds(since),
        "until": microseconds(until),
        "source": "journals" if archive is None else "archive",
    }
    with JobLock(folder):
        commits = Commits(folder)
        state = commits.load()
        _check_settings(folder, state, settings)
        topics = None if publish is None else SinkTopics(publish)
        job = _Job(commits, windows, settings, watermark, topics, report)
        if archive is not None:
            rows = read_archive(
                spark, archive, filter=filter, since=since, until=until, start=state.positions
            )
            job.roll_up(rows, "", 0)
        else:
            assert root is not None
            rows = source(spark, root, filter, folder, state, options or {})
            take = functools.partial(_take_between, job, since, until)
            follow(rows, folder, take, once=once, interval=interval, is_stopping=is_stopping)
        ArchiveUpkeep(spark, commits, PARTIALS, FOR_EVER).all()


def publishable(windows: DataFrame, label: str) -> DataFrame:
    """Encode windows as retained messages: JSON, to TOPIC/rollup/LABEL."""
    from pyspark.sql import functions as F

    times = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"}
    values = [name for name in windows.columns if name != "topic"]
    return windows.select(
        F.concat("topic", F.lit(f"/rollup/{label}")).alias("topic"),
        F.to_json(F.struct(*values), times).cast("binary").alias("payload"),
        F.lit(1).cast("byte").alias("qos"),
        F.lit(True).alias("retain"),
    )


# internal


def _take_between(
    job: _Job,
    since: datetime | None,
    until: datetime | None,
    batch: DataFrame,
    query: str,
    number: int,
) -> None:
    from pyspark.sql import functions as F

    for bound, is_lower in ((microseconds(since), True), (microseconds(until), False)):
        if bound is not None:
            limit = F.timestamp_micros(F.lit(bound))
            batch = batch.where(F.col("created") >= limit if is_lower else F.col("created") < limit)
    job.roll_up(batch, query, number)


class _Job:
    """Rolls batches of messages up into one folder."""

    def __init__(
        self,
        commits: Commits,
        windows: Windows,
        settings: Mapping[str, Any],
        watermark: timedelta,
        topics: SinkTopics | None,
        report: Report,
    ) -> None:
        self._commits = commits
        self._windows = windows
        self._settings = settings
        self._watermark = watermark // timedelta(microseconds=1)
        self._topics = topics
        self._report = report

    def roll_up(self, rows: DataFrame, query: str, number: int) -> None:
        """Roll a batch up, once."""
        state = self._commits.load()
        # Another watermark closes other windows: under the same name the sink would drop them.
        name = f"{query}-{number}-{self._watermark}" if query else ""
        if query and state.has_batch(query, number):
            self._forget(name)
            return
        # More tasks would make more files; partial rows are far fewer than messages.
        partials = partial_rows(rows, self._windows).repartition(1)
        files = write_files(partials, self._commits.archive, PARTIALS)
        if not files:
            return
        change = self._commits.change(
            added=tuple(files), query=query, batch=number, settings=self._settings
        )
        if self._topics is not None:
            closed = self._closed(rows.sparkSession, state, state.apply(change), files)
            self._topics.publish(publishable(closed, self._windows.label), name)
        if self._commits.commit(change, PARTIALS.kind) is ChangeVerdict.LOST:
            raise PipelineError(
                f"{self._commits.archive}: another process changed the files of batch {number};"
                " run the job again"
            )
        self._forget(name)
        told = {"batch": number, "rows": sum(file.rows for file in files)}
        untimed = self._untimed(rows.sparkSession, files)
        self._report("batch", {**told, "untimed": untimed} if untimed else told)

    def _forget(self, name: str) -> None:
        if self._topics is not None and name:
            self._topics.forget(name)

    def _untimed(self, spark: SparkSession, files: Iterable[DataFile]) -> int:
        """Return the number of a batch's messages without a time."""
        from pyspark.sql import functions as F

        of_them = [file for file in files if file.latest == UNTIMED]
        if not of_them:
            return 0
        partials = read_files(spark, self._commits.archive, of_them, PARTIALS)
        return int(partials.agg(F.sum(F.col("count") + F.col("other"))).collect()[0][0])

    def _closed(
        self,
        spark: SparkSession,
        before: ArchiveState,
        after: ArchiveState,
        files: Iterable[DataFile],
    ) -> DataFrame:
        """
        Return the windows that this batch closes, complete, in one partition.

        The order is always the same: otherwise a repeated batch would be published twice.
        """
        from pyspark.sql import functions as F

        behind = self._watermark + self._windows.microseconds
        zones = sorted({file.zone for file in files})
        low = {zone: before.times.get(zone, _NEVER) - behind for zone in zones}
        high = {zone: after.times[zone] - behind for zone in zones}
        wanted = FilesWanted(since=min(low.values()))
        chosen = list(select(after.files.values(), wanted))
        partials = read_files(spark, self._commits.archive, chosen, PARTIALS)
        start = F.unix_micros("start")
        before_it, with_it = (looked_up(of, "bigint", F.col("zone")) for of in (low, high))
        return (
            added_up(partials.where(start > F.lit(wanted.since)), self._windows)
            .where((start > before_it) & (start <= with_it))
            .select(*FINISHED)
            .repartition(1)
            .sortWithinPartitions("start", "topic")
        )


def _check_settings(folder: Path, state: ArchiveState, settings: Mapping[str, Any]) -> None:
    for name, value in settings.items() if state.version else ():
        found = state.settings.get(name)
        if found != value:
            raise PipelineError(
                f"{folder}: rolled up with {name} {json.dumps(found)}, not {json.dumps(value)};"
                " give another folder"
            )


def _windows_of(state: ArchiveState) -> Windows:
    label = str(state.settings["window"])
    units = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
    length = timedelta(**{units[label[-1]]: int(label[:-1])})
    settings = state.settings
    return Windows(length=length, field=settings["field"], time_field=settings.get("time_field"))
