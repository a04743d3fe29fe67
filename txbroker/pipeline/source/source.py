"""
SHELL: the Spark data source `txbroker`.

Spark makes objects of these classes in several processes, pickles them, and calls `read` on its
workers. So the objects hold options, and nothing open. The module must be cheap to import and free
of gRPC, which is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from txbroker.model.errors import PipelineError
from txbroker.pipeline.source.pushdown import ReadFilter, push
from txbroker.pipeline.source.ranges import ReadSpan
from txbroker.pipeline.source.row_schema import MESSAGE_COLUMNS
from txbroker.pipeline.source.source_options import FORMAT, SourceOptions, source_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from txbroker.pipeline.source.following import StreamPlanner


def register(spark: SparkSession) -> None:
    """Register the source and the sink; `txbroker.pipeline.register` is the public function."""
    from txbroker.pipeline.source.error_notes import attach_lines

    spark.dataSource.register(MessageSource)
    attach_lines()
    # Spark's default is off, and then it refuses sources that accept filters.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


class SpanPartition(InputPartition):
    """A span that one task reads."""

    def __init__(self, span: ReadSpan, wanted: ReadFilter) -> None:
        super().__init__(span)
        self.span = span
        self.wanted = wanted


class MessageSource(DataSource):
    """Format `txbroker`: the messages of all zones of a tree of nodes."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return MESSAGE_COLUMNS

    def reader(self, schema: StructType) -> BatchReader:
        _check_schema(schema)
        options = source_options(self.options)
        return PushingReader(options) if options.push_down else BatchReader(options)

    def streamReader(self, schema: StructType) -> StreamReader:
        _check_schema(schema)
        options = source_options(self.options)
        if options.end is not None:
            raise PipelineError("option endingOffsets: streams have no end; it is for batches")
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from txbroker.pipeline.source.sink import writer

        return writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from txbroker.pipeline.source.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


def _check_schema(schema: StructType) -> None:
    """Raise `PipelineError` if a user asks for columns that the source lacks."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from txbroker.pipeline.source.row_schema import MESSAGE_ARROW

    asked, ours = (
        [(field.name, field.dataType.simpleString()) for field in one.fields]
        for one in (schema, from_arrow_schema(MESSAGE_ARROW))
    )
    if asked != ours:
        raise PipelineError(f"the columns of {FORMAT} are {MESSAGE_COLUMNS}; leave out schema()")


class BatchReader(DataSourceReader):
    """Reads a batch: all records between two bounds, as known at the planning of the query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._wanted = ReadFilter(filter=options.filter)

    def partitions(self) -> Sequence[InputPartition]:
        from txbroker.pipeline.source.batch_planning import plan_batch

        spans = plan_batch(self._options, self._wanted)
        return [SpanPartition(span, self._wanted) for span in spans]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


class PushingReader(BatchReader):
    """
    Reads a batch, with the query's filters applied by the nodes.

    Spark 4.3 stores the filters that it pushed last with the loaded DataFrame. Spark applies them
    to every use of that DataFrame: a use without filters, and both sides of a union. So this class
    serves a DataFrame that is used once, and only if the option `pushDown` says so.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._wanted, left = push(self._wanted, filters)
        return left


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream, whose offsets are positions by zone; `following.py` plans it."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._opened: StreamPlanner | None = None

    @property
    def _following(self) -> StreamPlanner:
        if self._opened is None:
            from txbroker.pipeline.source.following import StreamPlanner

            self._opened = StreamPlanner(self._options)
        return self._opened

    def initialOffset(self) -> dict[str, Any]:
        return self._following.start_positions()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_records)

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._following.latest(start, most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._following.stop_here()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._following.heads()

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        wanted = ReadFilter(filter=self._options.filter)
        return [SpanPartition(span, wanted) for span in self._following.plan(start, end)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()


def _read(options: SourceOptions, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    # Spark reads a batch without partitions as one partition of None, which must yield no rows.
    if not isinstance(partition, SpanPartition):
        return iter(())
    from txbroker.pipeline.source.span_reader import SpanReader

    return SpanReader(
        options.root, partition.span, partition.wanted, fail_on_loss=options.fail_on_loss
    ).batches()
