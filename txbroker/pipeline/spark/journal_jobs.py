"""
SHELL: a job that follows the journals: rows of the data source `txbroker` in batches, each handed
on with its name, so that what takes it can do so once.

A job has a folder, with its results, the checkpoint of its query (`_checkpoint`) and a lock: of two
jobs in a folder the second one does not begin.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from txbroker.model.errors import PipelineError
from txbroker.pipeline.archives.manifest import ArchiveState
from txbroker.pipeline.source.error_reasons import is_slow_start, told_at
from txbroker.pipeline.source.positions import ZonePosition, positions_to
from txbroker.pipeline.spark.checkpoints import check_checkpoint
from txbroker.storage.files import make_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CHECKPOINT = "_checkpoint"
LOCK = "_lock"
INTERVAL = "10 seconds"
"""Between two batches of a job that runs on."""

STARTS = 5
"""How often a query is started whose Python does not begin in Spark's ten seconds."""

_WATCH = 1

Report = Callable[[str, Mapping[str, Any]], None]
"""Told of what a job does: a short constant name, and fields."""
TakeBatch = Callable[["DataFrame", str, int], None]
"""Does something with a batch: its rows, the id of its query and its number."""


def no_report(event: str, fields: Mapping[str, Any]) -> None:
    """For callers who do not want to know."""


class JobLock:
    """Held by the one job that writes to a folder; the system frees it when the process ends."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        """Raises `PipelineError` when another job has it."""
        try:
            make_folder(self._path.parent)
            file = open(self._path, "a+")
        except FileExistsError as error:
            raise PipelineError(f"{error.filename}: is not a folder; give another one") from None
        except OSError as error:
            raise self._unusable(error) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            holder = self._path.read_text().strip() or "another process"
            raise PipelineError(
                f"{self._path.parent}: {holder} runs a job in this folder; stop that one first"
            ) from None
        try:
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
        except OSError as error:
            raise self._unusable(error) from None
        self._file = file
        return self

    def _unusable(self, error: OSError) -> PipelineError:
        return PipelineError(
            f"{self._path}: {error.strerror}; give a folder that can be written to, with space"
        )

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def source(
    spark: SparkSession,
    root: str,
    topics: str | None,
    folder: Path,
    state: ArchiveState,
    options: Mapping[str, str],
) -> DataFrame:
    """
    The journals as a stream. Where the folder has no checkpoint (any more), it begins with what the
    results in it say was read: nothing comes twice.
    """
    chosen = {"root": root, "startingOffsets": "earliest", **options}
    if topics is not None:
        chosen["filter"] = topics
    if state.positions and not (folder / CHECKPOINT).exists():
        positions = {zone: ZonePosition(*place) for zone, place in state.positions.items()}
        chosen["startingOffsets"] = json.dumps(positions_to(positions))
    return spark.readStream.format("txbroker").options(**chosen).load()


def follow(
    rows: DataFrame,
    folder: Path,
    take: TakeBatch,
    *,
    once: bool,
    interval: str = INTERVAL,
    is_stopping: Callable[[], bool] = lambda: False,
    between: Callable[[], None] = lambda: None,
) -> None:
    """
    Hand a stream's batches to `take` until all that there was at the beginning is read (`once`), or
    until `is_stopping`, asked every second. A batch that was not taken to its end comes again
    under its name, in the next run. `between` is called every second too, but never while a batch
    is taken.

    Raises what `take` or `between` raised, or `PipelineError`; of what Spark says, in a line.
    """
    for left in reversed(range(STARTS)):
        check_checkpoint(folder / CHECKPOINT)
        try:
            with told_at(folder):
                _follow(rows, folder, take, once, interval, is_stopping, between)
            break
        except PipelineError as error:
            if not left or not is_slow_start(error.__cause__):
                raise
    if not is_stopping() and not (once and _is_complete(folder / CHECKPOINT)):
        raise PipelineError(f"{folder}: Spark's query ended before its work was done; run it again")


# internal


def _follow(
    rows: DataFrame,
    folder: Path,
    take: TakeBatch,
    once: bool,
    interval: str,
    is_stopping: Callable[[], bool],
    between: Callable[[], None],
) -> None:
    """The query from one start to its end."""
    failures: list[Exception] = []
    taking = threading.Lock()
    has_ended = threading.Event()

    def on_batch(batch: DataFrame, number: int) -> None:
        with taking:
            if has_ended.is_set():
                raise RuntimeError("the job has ended; the batch comes again")
            try:
                take(batch, _query_id(folder), number)
            except Exception as error:
                failures.append(error)
                raise

    def between_batches() -> None:
        with taking:
            between()

    checkpoint = f"file:{(folder / CHECKPOINT).resolve()}"
    writer = rows.writeStream.foreachBatch(on_batch).option("checkpointLocation", checkpoint)
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=interval)
    query = writer.start()
    try:
        # A query whose batch failed may die while Spark puts that into words, and say nothing.
        _await(query, lambda: bool(failures) or is_stopping(), between_batches)
        with taking:  # the batch that it is at is taken to its end
            has_ended.set()
    except Exception:
        with taking:
            has_ended.set()
        if not failures:
            raise
    finally:
        query.stop()
    if failures:
        raise failures[0]


def _await(
    query: StreamingQuery, is_stopping: Callable[[], bool], between: Callable[[], None]
) -> None:
    while not query.awaitTermination(_WATCH):
        if is_stopping():
            return
        between()


def _is_complete(checkpoint: Path) -> bool:
    """Whether every batch that was begun is committed."""
    begun, committed = (
        {path.name for path in (checkpoint / name).glob("[0-9]*")}
        for name in ("offsets", "commits")
    )
    return begun == committed


def _query_id(folder: Path) -> str:
    """Of the query that the checkpoint belongs to; a new checkpoint is a new query."""
    return str(json.loads((folder / CHECKPOINT / "metadata").read_text())["id"])
