"""
SHELL: runs a job that follows the journals: batches of rows of the data source `txbroker`.

Each batch has a name, so that its receiver can process it exactly once. A job has a folder with its
results, the checkpoint of its query (`_checkpoint`) and a lock. The lock refuses a second job in
the same folder.
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
from txbroker.pipeline.source.error_reasons import converted_errors, is_slow_start
from txbroker.pipeline.source.positions import ZonePosition, positions_to
from txbroker.pipeline.spark.checkpoints import check_checkpoint
from txbroker.storage.files import make_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CHECKPOINT = "_checkpoint"
LOCK = "_lock"
INTERVAL = "10 seconds"
"""Interval between two batches of a continuous job."""

STARTS = 5
"""Maximum starts of a query whose Python workers miss Spark's ten seconds."""

_WATCH = 1

Report = Callable[[str, Mapping[str, Any]], None]
"""Callback for a job's events: a short constant name, and fields."""
TakeBatch = Callable[["DataFrame", str, int], None]
"""Callback that processes a batch: its rows, the id of its query and its number."""


def no_report(event: str, fields: Mapping[str, Any]) -> None:
    """Ignore an event."""


class JobLock:
    """The lock of the job that writes to a folder; the system frees it when the process ends."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        """Take the lock; raises `PipelineError` if another job holds it."""
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
    Return the journals as a stream.

    Without a checkpoint in the folder, the stream begins behind the records that the results record
    as read. So no record comes twice.
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
    Pass a stream's batches to `take`, until `is_stopping`, which is polled every second.

    With `once`, the call ends when all records present at its start are read. A batch that `take`
    did not finish is repeated under the same name in the next run. `between` is called every
    second, but never during `take`.

    Raises the errors of `take` and `between`, and `PipelineError`, with a line for Spark's errors.
    """
    for left in reversed(range(STARTS)):
        check_checkpoint(folder / CHECKPOINT)
        try:
            with converted_errors(folder):
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
    """Run the query from one start to its end."""
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
        # Spark may die while it formats the failure of a batch, and report nothing: check here.
        _await(query, lambda: bool(failures) or is_stopping(), between_batches)
        with taking:  # Stopping within a batch would leave it unfinished.
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
    """True if every batch that was begun is committed."""
    begun, committed = (
        {path.name for path in (checkpoint / name).glob("[0-9]*")}
        for name in ("offsets", "commits")
    )
    return begun == committed


def _query_id(folder: Path) -> str:
    """Return the id of the checkpoint's query; a new checkpoint is a new query."""
    return str(json.loads((folder / CHECKPOINT / "metadata").read_text())["id"])
