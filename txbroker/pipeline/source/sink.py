"""
SHELL: the sink `txbroker`: publishes rows, each once however often a task is repeated.

The rows of one (query, batch, partition) have client ids and durable sessions of their own. A
worker publishes each row with QoS 2 and the row's place as packet id, and never sends PUBREL. A
node accepts an open packet id once, durably, across restarts and session moves. So a repeated task
sends all rows again and adds none. The sessions of a batch end when the next batch begins: Spark
begins none before the last one is committed. docs/pipeline/design.md has the reasons.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from txbroker.model.errors import PipelineError
from txbroker.pipeline.source.source_options import SinkOptions, sink_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

CHUNK = 10_000
"""Rows of one session: packet ids end at 65,535, and a session is stored as a whole."""

NAMED = "batch"
"""Replaces the batch number of a stream in the client ids of a batch query."""

BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"

_NUMBER = {"tinyint", "smallint", "int", "bigint"}
COLUMNS = {
    "topic": {"string"},
    "payload": {"binary", "string"},
    "qos": _NUMBER,
    "retain": {"boolean"},
    "expiry": _NUMBER,
    "payload_format": _NUMBER,
    "content_type": {"string"},
    "response_topic": {"string"},
    "correlation_data": {"binary", "string"},
    "user_properties": {"array<struct<name:string,value:string>>"},
}
"""The columns and their types, as Spark spells these."""
NEEDED = {"topic", "payload"}


class SinkResult(WriterCommitMessage):
    """Result of a task of a query: the number of rows published, and of sessions used."""

    def __init__(self, query: str, partition: int, rows: int, sessions: int) -> None:
        self.query = query
        self.partition = partition
        self.rows = rows
        self.sessions = sessions


def writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkWriter:
    """Make the writer of a batch; raises `PipelineError`."""
    if overwrite:
        raise PipelineError("mode overwrite: what was published stays; use mode append")
    _check(schema)
    return SinkWriter(sink_options(options))


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> SinkStreamWriter:
    """Make the writer of a stream; raises `PipelineError`."""
    if overwrite:
        raise PipelineError("output mode complete: what was published stays; use append or update")
    _check(schema)
    given = sink_options(options)
    if given.query:
        raise PipelineError("option query: a stream has its own name; it is for batches")
    return SinkStreamWriter(given)


def client_id(query: str, batch: int | str, partition: int, chunk: int) -> str:
    """Return the id of the client that publishes one chunk of a partition."""
    return f"spark/{query}/{batch}/{partition}/{chunk}"


class SinkWriter(DataSourceArrowWriter):
    """
    Writes a batch.

    With the option `query`, the sessions stay for as long as `session_limits` allow. The same query
    written again then adds nothing. Without the option, the sessions end with the job.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._query = options.query or secrets.token_hex(8)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkResult:
        return _write(self._options, self._query, NAMED, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if not self._options.query:
            self._forget(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if not self._options.query:
            self._forget(messages)

    def _forget(self, messages: list[WriterCommitMessage | None]) -> None:
        from txbroker.pipeline.source.row_publisher import RowPublisher

        with RowPublisher(self._options) as publishing:
            for one in messages:
                if isinstance(one, SinkResult):
                    for chunk in range(one.sessions):
                        publishing.forget(client_id(self._query, NAMED, one.partition, chunk))


class SinkStreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream: each batch of the query once."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkResult:
        query, batch = _property(QUERY_ID), int(_property(BATCH_ID))
        if batch:
            _forget_partition(self._options, query, batch - 1, _partition())
        return _write(self._options, query, batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """
        End sessions of the last batch in partitions that this batch lacks; tasks end the rest.
        """
        written = [one for one in messages if isinstance(one, SinkResult)]
        partition = len(written)
        while (
            batchId
            and written
            and _forget_partition(self._options, written[0].query, batchId - 1, partition)
        ):
            partition += 1


@attrs.frozen
class SinkTopics:
    """
    Publishes named batches that a job commits itself, each once.

    `root` is a node's gRPC address.
    """

    root: str

    def publish(self, rows: DataFrame, name: str) -> None:
        """
        Publish rows (`COLUMNS`).

        A repeated call under the same name adds nothing. The repeat must have the same rows in the
        same order, in partitions of the same numbers. Without a name each call adds the rows.
        Raises Spark's errors.
        """
        named = {"query": name} if name else {}
        rows.write.format("txbroker").mode("append").options(root=self.root, **named).save()

    def forget(self, name: str) -> None:
        """End the sessions of a name whose batch is committed and will not be repeated."""
        partition = 0
        while _forget_partition(SinkOptions(root=self.root), name, NAMED, partition):
            partition += 1


def _property(name: str) -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    value = None if context is None else context.getLocalProperty(name)
    if value is None:
        raise PipelineError(f"Spark does not say its {name}; the sink needs Spark 4.3")
    return value


def _partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context.partitionId()


def _write(
    options: SinkOptions, query: str, batch: int | str, batches: Iterator[pa.RecordBatch]
) -> SinkResult:
    from txbroker.pipeline.source.row_publisher import RowPublisher, rows_of

    rows = rows_of(batches)
    partition = _partition()
    sessions = 0
    with RowPublisher(options) as publishing:
        for start in range(0, len(rows), CHUNK):
            name = client_id(query, batch, partition, sessions)
            publishing.publish(name, rows[start : start + CHUNK])
            sessions += 1
    return SinkResult(query, partition, len(rows), sessions)


def _forget_partition(options: SinkOptions, query: str, batch: int | str, partition: int) -> bool:
    """End the sessions of a committed batch; return True if there were any."""
    from txbroker.pipeline.source.row_publisher import RowPublisher

    chunk = 0
    with RowPublisher(options) as publishing:
        while publishing.forget(client_id(query, batch, partition, chunk)):
            chunk += 1
    return chunk > 0


def _check(schema: StructType) -> None:
    """Raise `PipelineError` unless the columns can be published."""
    found: dict[str, Any] = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name in sorted(NEEDED - found.keys()):
        raise PipelineError(f"column {name} is missing; the columns are {', '.join(COLUMNS)}")
    for name, kind in found.items():
        if name not in COLUMNS:
            raise PipelineError(f"column {name}: unknown; the columns are {', '.join(COLUMNS)}")
        if kind not in COLUMNS[name]:
            wanted = " or ".join(sorted(COLUMNS[name]))
            raise PipelineError(f"column {name} is of type {kind}; {wanted} is wanted")
