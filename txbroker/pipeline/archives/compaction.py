"""
Merges small files of a zone and day into larger ones, without disturbing readers.

The larger file is written first; then one commit names it in place of the small files. `TIER` files
of about equal size are merged at a time. So a row is rewritten a few times at most, however small
the batches are. A past day ends up with as few files as `TARGET` allows.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from txbroker.pipeline.archives.commits import Commits
from txbroker.pipeline.archives.manifest import ChangeVerdict, DataFile, Position
from txbroker.pipeline.archives.writer import FileLayout, RowWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIER = 8
SMALLEST = 64 * 1024
"""Files up to this size, in bytes, are of the first tier."""
TARGET = 128 * 1024 * 1024
"""Files of this size in bytes are not merged."""

_ROWS = 65_536


def plan_merges(files: Iterable[DataFile], before: str = "") -> list[list[DataFile]]:
    """
    Return the groups of files to merge; pure.

    A group has `TIER` files of one zone, day and tier. Of a day before `before` (`YYYY-MM-DD`), all
    small files are merged, from two on.
    """
    groups: dict[tuple[str, str, int], list[DataFile]] = defaultdict(list)
    for file in files:
        if file.bytes < TARGET:
            tier = -1 if file.day < before else _tier(file.bytes)
            groups[file.zone, file.day, tier].append(file)
    return [
        part
        for (_, _, tier), group in groups.items()
        if len(group) >= (2 if tier < 0 else TIER)
        for part in _parts(sorted(group, key=lambda file: file.first))
    ]


def compact(spark: SparkSession, commits: Commits, layout: FileLayout, before: str = "") -> int:
    """
    Merge the groups of `plan_merges`, each in one commit; return the decrease in files.
    """
    groups = plan_merges(commits.load().files.values(), before)
    if not groups:
        return 0
    merge = functools.partial(merge_files, str(commits.archive.resolve()), layout)
    merged = spark.sparkContext.parallelize(groups, len(groups)).map(merge).collect()
    fewer = 0
    for group, files in zip(groups, merged, strict=True):
        removed = tuple(file.path for file in group)
        change = commits.change(added=tuple(files), removed=removed)
        if commits.commit(change, layout.kind) is ChangeVerdict.FITS:
            fewer += len(group) - len(files)
    return fewer


def merge_files(archive: str, layout: FileLayout, files: Sequence[DataFile]) -> list[DataFile]:
    """Write new files with the rows of `files`, in order; runs in Spark's workers."""
    writer = RowWriter(archive, layout)
    for rows in merged_rows(Path(archive), layout, files):
        writer.write(rows)
    return writer.finish()


def merged_rows(archive: Path, layout: FileLayout, files: Sequence[DataFile]) -> Iterator[pa.Table]:
    """
    Return the rows of ordered files, in order.

    A file is opened when its turn comes. So consecutive files need no more memory than one file.
    """
    due = sorted(files, key=lambda file: file.first)
    heads: list[_Head] = []
    while due or heads:
        if not heads:
            heads.append(_Head(archive / due.pop(0).path, layout))
        limit = min(head.last for head in heads)
        while due and due[0].first <= limit:
            heads.append(_Head(archive / due.pop(0).path, layout))
            limit = min(limit, heads[-1].last)
        yield layout.in_order(pa.concat_tables([head.dequeue(limit) for head in heads]))
        heads = [head for head in heads if not head.is_over]


# internal


class _Head:
    """A file in the course of reading, with its next rows in memory."""

    def __init__(self, path: Path, layout: FileLayout) -> None:
        self.is_over = False
        self._layout = layout
        self._file = pq.ParquetFile(path)
        self._batches = self._file.iter_batches(_ROWS)
        self._rows = layout.schema.empty_table()
        self._advance()

    @property
    def last(self) -> Position:
        """Position of the last row in memory."""
        return self._layout.position_at(self._rows, self._rows.num_rows - 1)

    def dequeue(self, limit: Position) -> pa.Table:
        """Remove and return the rows in memory up to and including this position."""
        count = self._layout.rows_up_to(self._rows, limit)
        taken, self._rows = self._rows.slice(0, count), self._rows.slice(count)
        self._advance()
        return taken

    def _advance(self) -> None:
        while not self._rows.num_rows and not self.is_over:
            batch = next(self._batches, None)
            if batch is None:
                self.is_over = True
                self._file.close()
            else:
                self._rows = self._layout.laid_out(pa.Table.from_batches([batch]))


def _tier(size: int) -> int:
    return max(0, math.ceil(math.log(max(size, 1) / SMALLEST, TIER)))


def _parts(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    """Group neighbours up to a total of `TARGET` bytes."""
    part: list[DataFile] = []
    size = 0
    for file in files:
        part.append(file)
        size += file.bytes
        if size >= TARGET:
            yield part
            part, size = [], 0
    if len(part) > 1:
        yield part
