"""
SHELL: writes Arrow batches to the data files of an archive, in Spark's workers.

A `RowWriter` accepts batches in any order, of any zones (see `FileLayout`) and days. Each file has
ordered rows of one zone and one day. Rows in order, as from a journal, make one file per zone and
day. A row that belongs before written rows begins another file.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, TypeAlias

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from txbroker.model.errors import PipelineError
from txbroker.pipeline.archives.manifest import DataFile, Position, zone_folder
from txbroker.pipeline.source.row_schema import LEDGER_ARROW, MESSAGE_ARROW, PROPERTIES
from txbroker.storage.files import make_folder, sync_folder

ROWS_OF_GROUP = 131_072
BYTES_OF_GROUP = 32 * 1024 * 1024
"""Waiting rows, or bytes, at which a row group is written."""
BYTES_WAITING = 128 * 1024 * 1024
"""Waiting bytes of all row groups together."""
OPEN_FILES = 32
COMPRESSION_LEVEL = 3

_DAY = 86_400_000_000
_DICTIONARY = (
    *("zone", "topic", "client_id", "node", "ledger", "kind", "filter", "left_zone"),
    *("expiry", "content_type", "response_topic"),
    *(f"user_properties.list.element.{name}" for name in ("name", "value")),
)
_DELTA = ("epoch", "offset", "created", "number", "time")
# No query selects these by their order.
_UNSEEN = ("payload", "correlation_data", "user_properties")
_MAKE_FOLDER_TRIES = 5

_Integers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


@attrs.frozen(kw_only=True, slots=True)
class FileLayout:
    """
    The kind of rows, and their layout in files.

    The column `zone` groups rows by `zone_folder`; its values are the manifest's zones. A row's
    place in its group is the columns `epoch` (None: always 0) and `offset`. A row's day is the UTC
    date of the column `day`. The manifest stores for a file the earliest time in `day` and the
    latest in `latest`. Files of older versions may lack the columns `added`.
    """

    kind: str
    schema: pa.Schema
    zone: str = "zone"
    epoch: str | None = "epoch"
    offset: str = "offset"
    day: str = "created"
    latest: str = "created"
    added: tuple[str, ...] = ()

    def laid_out(self, rows: pa.Table) -> pa.Table:
        """Return rows with the columns of the layout; missing ones of `added` are null."""
        for name in self.added:
            if name not in rows.column_names:
                field = self.schema.field(name)
                rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        return rows.select(self.schema.names).cast(self.schema)

    def position_at(self, rows: pa.Table, index: int) -> Position:
        """Return the place of a row."""
        epoch = 0 if self.epoch is None else rows.column(self.epoch)[index].as_py()
        return epoch, rows.column(self.offset)[index].as_py()

    def in_order(self, rows: pa.Table) -> pa.Table:
        """Return the rows in order of place."""
        epochs, offsets = self._places(rows)
        steps = np.diff(epochs)
        if ((steps > 0) | ((steps == 0) & (np.diff(offsets) >= 0))).all():
            return rows
        return rows.take(np.lexsort((offsets, epochs)))

    def rows_up_to(self, rows: pa.Table, limit: Position) -> int:
        """Return how many of some ordered rows are at or before this place."""
        epochs, offsets = self._places(rows)
        epoch, offset = limit
        return int(((epochs < epoch) | ((epochs == epoch) & (offsets <= offset))).sum())

    def _places(self, rows: pa.Table) -> tuple[_Integers, _Integers]:
        offsets = _integers(rows, self.offset)
        if self.epoch is None:
            return np.zeros_like(offsets), offsets
        return _integers(rows, self.epoch), offsets


MESSAGES = FileLayout(kind="messages", schema=MESSAGE_ARROW, added=PROPERTIES)
LEDGER = FileLayout(
    kind="ledger",
    schema=LEDGER_ARROW,
    zone="ledger",
    epoch=None,
    offset="number",
    day="time",
    latest="time",
)
"""
Layout of delivery ledgers, with the rows of one ledger as a group.

So the position of a "zone" is the number of the next row to read of that ledger.
"""


class RowWriter:
    """Writes the files of one task; readers see them only after a commit."""

    def __init__(self, archive: str, layout: FileLayout) -> None:
        self._archive = Path(archive)
        self._layout = layout
        self._parts: dict[tuple[str, int], _Part] = {}
        self._open: dict[_Part, None] = {}  # in order of age, oldest first
        self._done: list[DataFile] = []

    def write(self, table: pa.Table) -> None:
        """Append rows with the columns of the layout."""
        for zone, day, rows in _split(self._layout.laid_out(table), self._layout):
            part = self._parts.get((zone, day))
            if part is None:
                part = self._parts[zone, day] = _Part(self._archive, self._layout, zone, day)
            part.take(rows)
            if part.is_full():
                self._flush(part)
        while sum(part.waiting_bytes for part in self._parts.values()) > BYTES_WAITING:
            self._flush(max(self._parts.values(), key=lambda part: part.waiting_bytes))

    def finish(self) -> list[DataFile]:
        """Write waiting rows, make all files durable, and return the files."""
        for part in list(self._parts.values()):
            part.flush(self._done)
            part.close(self._done)
        return self._done

    def _flush(self, part: _Part) -> None:
        part.flush(self._done)
        self._open[part] = None
        if len(self._open) > OPEN_FILES:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.close(self._done)


def write_rows(
    archive: str, layout: FileLayout, batches: Iterable[pa.RecordBatch]
) -> list[DataFile]:
    """Write all rows of some batches; raises `PipelineError` if files cannot be written."""
    writer = RowWriter(archive, layout)
    try:
        for batch in batches:
            writer.write(pa.Table.from_batches([batch]))
        return writer.finish()
    except OSError as error:
        raise PipelineError(
            f"{error.filename or archive}: cannot be written: {error.strerror or error}; check"
            " space and rights there"
        ) from None


# internal


class _Part:
    """The rows of one zone and day: some wait, some are in the file that is being written."""

    def __init__(self, archive: Path, layout: FileLayout, zone: str, day: int) -> None:
        self.waiting_bytes = 0
        self._waiting: list[pa.Table] = []
        self._rows = 0
        self._archive = archive
        self._layout = layout
        self._zone = zone
        self._day = str(np.datetime64(day, "D"))
        self._file: _File | None = None

    def take(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self.waiting_bytes += rows.nbytes

    def is_full(self) -> bool:
        return self._rows >= ROWS_OF_GROUP or self.waiting_bytes >= BYTES_OF_GROUP

    def flush(self, done: list[DataFile]) -> None:
        """Write a row group of the waiting rows."""
        if not self._waiting:
            return
        rows = self._layout.in_order(pa.concat_tables(self._waiting))
        self._waiting, self._rows, self.waiting_bytes = [], 0, 0
        if self._file is not None and self._layout.position_at(rows, 0) < self._file.last:
            self.close(done)
        if self._file is None:
            self._file = _File(self._archive, self._layout, self._zone, self._day)
        self._file.write(rows)

    def close(self, done: list[DataFile]) -> None:
        """Close the file, if open."""
        if self._file is not None:
            done.append(self._file.close())
            self._file = None


class _File:
    """A Parquet file that is being written."""

    def __init__(self, archive: Path, layout: FileLayout, zone: str, day: str) -> None:
        self.last: Position = (0, 0)
        self._first: Position | None = None
        self._layout = layout
        self._zone, self._day = zone, day
        self._archive = archive
        of_zone = archive / zone_folder(zone, layout.zone)
        self._path = of_zone / f"day={day}" / f"{uuid.uuid4().hex}.parquet"
        self._rows = 0
        self._times: list[tuple[int, int]] = []
        self._output = _create(self._path)
        names = set(layout.schema.names)
        self._writer = pq.ParquetWriter(
            self._output,
            layout.schema,
            compression="zstd",
            compression_level=COMPRESSION_LEVEL,
            use_dictionary=[name for name in _DICTIONARY if name.partition(".")[0] in names],
            column_encoding={name: "DELTA_BINARY_PACKED" for name in _DELTA if name in names},
            write_statistics=[name for name in layout.schema.names if name not in _UNSEEN],
        )

    def write(self, rows: pa.Table) -> None:
        """Append one row group."""
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._rows += rows.num_rows
        if self._first is None:
            self._first = self._layout.position_at(rows, 0)
        self.last = self._layout.position_at(rows, rows.num_rows - 1)
        earliest = int(_integers(rows, self._layout.day).min())
        self._times.append((earliest, int(_integers(rows, self._layout.latest).max())))

    def close(self) -> DataFile:
        self._writer.close()
        self._output.flush()
        os.fsync(self._output.fileno())
        size = self._output.tell()
        self._output.close()
        sync_folder(self._path.parent)
        assert self._first is not None
        return DataFile(
            path=str(self._path.relative_to(self._archive)),
            zone=self._zone,
            day=self._day,
            rows=self._rows,
            bytes=size,
            first=self._first,
            last=self.last,
            earliest=min(earliest for earliest, _ in self._times),
            latest=max(latest for _, latest in self._times),
        )


def _create(path: Path) -> IO[bytes]:
    for _ in range(_MAKE_FOLDER_TRIES):
        make_folder(path.parent)
        try:
            return open(path, "xb")
        except FileNotFoundError:
            pass  # A vacuum has just removed the empty folder.
    return open(path, "xb")


def _integers(rows: pa.Table, name: str) -> _Integers:
    column = rows.column(name)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return column.to_numpy()  # type: ignore[no-any-return]


def _split(rows: pa.Table, layout: FileLayout) -> Iterator[tuple[str, int, pa.Table]]:
    """Split rows by zone and day, each part in order."""
    if not rows.num_rows:
        return
    days = _integers(rows, layout.day) // _DAY
    zones = rows.column(layout.zone).combine_chunks().dictionary_encode()
    names = zones.dictionary.to_pylist()
    first = int(days.min())
    keys = zones.indices.to_numpy() * (int(days.max()) - first + 1) + (days - first)
    if len(names) == 1 and not keys.any():
        yield names[0], first, rows
        return
    for key in np.unique(keys):
        chosen = np.flatnonzero(keys == key)
        zone = names[zones.indices[int(chosen[0])].as_py()]
        yield zone, int(days[chosen[0]]), rows.take(chosen)
