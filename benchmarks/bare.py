"""
A data source of Spark that does nothing but hand over Arrow batches: what Spark itself can take.

Apart from `benchmarks.pipeline`, since Spark's workers import it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from txbroker.pipeline.source.row_schema import MESSAGE_ARROW, MESSAGE_COLUMNS

ROWS = 8_000
"""Of a batch: about as many as the nodes' replies have."""


class Bare(DataSource):
    """Options `records`, `size` (of the payload) and `partitions`."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def schema(self) -> str:
        return MESSAGE_COLUMNS

    def reader(self, schema: StructType) -> BareReader:
        return BareReader(*(int(self.options[key]) for key in ("records", "size", "partitions")))


class BareReader(DataSourceReader):
    """Yields the same rows again and again."""

    def __init__(self, records: int, size: int, partitions: int) -> None:
        self._records = records
        self._size = size
        self._partitions = partitions

    def partitions(self) -> Sequence[InputPartition]:
        each = self._records // self._partitions
        rest = self._records - each * (self._partitions - 1)
        return [InputPartition(each)] * (self._partitions - 1) + [InputPartition(rest)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        row = ("home/kitchen", 1, 1, "home/kitchen/temperature", b"x" * self._size, 1, False)
        values = (*row, "sensor", "kitchen", datetime.now(UTC))
        properties = [None] * (len(MESSAGE_ARROW) - len(values))
        arrays = [
            pa.repeat(pa.scalar(value, field.type), ROWS)
            for value, field in zip((*values, *properties), MESSAGE_ARROW, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=MESSAGE_ARROW)
        left: int = partition.value
        while left > 0:
            yield batch.slice(0, min(left, ROWS))
            left -= ROWS
