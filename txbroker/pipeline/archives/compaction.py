"""
Small files of a zone and day into larger ones, without disturbing readers: the larger file is
written first, and one commit names it in place of the small ones.

Files are merged with others of about their size (`TIER` of them at a time), so a row is written
anew a few times at most, however small the batches are. A day that is over ends up with as few
files as `TARGET` allows.
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
"""Files up to this size are all of the first tier."""
TARGET = 128 * 1024 * 1024
"""A file of this size is left as it is."""

_ROWS = 65_536


def plan_merges(files: Iterable[DataFile], before: str = "") -> list[list[DataFile]]:
    """
    Which files to merge, group by group; pure.

    Those of a zone, a day and a tier where there are `TIER` of them; of a day earlier than `before`
    (`YYYY-MM-DD`) all that are small, from two on.
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
    Merge what `plan_merges` names, each group in a commit of its own; returns how many files fewer
    there are.
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
    """New files with the rows of `files`, in order; it runs in Spark's workers."""
    writer = RowWriter(archive, layout)
    for rows in merged_rows(Path(archive), layout, files):
        writer.write(rows)
    return writer.finish()


def merged_rows(archive: Path, layout: FileLayout, files: Sequence[DataFile]) -> Iterator[pa.Table]:
    """
    The rows of ordered files, ordered. A file is opened when its turn comes, so that files that
    follow one another cost no more memory than one.
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
        yield layout.in_order(pa.concat_tables([head.take(limit) for head in heads]))
        heads = [head for head in heads if not head.is_over]


# internal


class _Head:
    """A file that is being read: the rows of it that come next."""

    def __init__(self, path: Path, layout: FileLayout) -> None:
        self.is_over = False
        self._layout = layout
        self._file = pq.ParquetFile(path)
        self._batches = self._file.iter_batches(_ROWS)
        self._rows = pa.Table.from_batches([], self._file.schema_arrow)
        self._advance()

    @property
    def last(self) -> Position:
        """Of the rows that are in memory."""
        return self._layout.position_at(self._rows, self._rows.num_rows - 1)

    def take(self, limit: Position) -> pa.Table:
        """The rows in memory up to and with this position."""
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
                self._rows = pa.Table.from_batches([batch])


def _tier(size: int) -> int:
    return max(0, math.ceil(math.log(max(size, 1) / SMALLEST, TIER)))


def _parts(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    """Neighbours together, as many as make `TARGET`."""
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
