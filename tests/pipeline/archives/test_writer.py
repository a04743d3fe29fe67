"""Rows into files and files into larger ones, without Spark."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.pipeline.rows import Row, in_order, message, messages, shuffled, table
from txbroker.pipeline.archives import compaction, writer
from txbroker.pipeline.archives.compaction import merge_files, merged_rows
from txbroker.pipeline.archives.manifest import DataFile
from txbroker.pipeline.archives.writer import MESSAGES, write_rows

ANY = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

places = st.tuples(
    st.sampled_from(["", "home", "home/kitchen"]), st.integers(1, 3), st.integers(1, 40)
)


def row(place: tuple[str, int, int]) -> Row:
    zone, epoch, offset = place
    created = timedelta(hours=offset)
    base = message(zone, offset, epoch=epoch)
    return {**base, "created": base["created"] + created}


def read(archive: Path, file: DataFile) -> list[Row]:
    rows: list[Row] = pq.ParquetFile(archive / file.path).read().to_pylist()
    return rows


def assert_in_order(archive: Path, file: DataFile) -> None:
    """And of one zone and day."""
    rows = read(archive, file)
    positions = [(row["epoch"], row["offset"]) for row in rows]
    assert sorted(positions) == positions
    assert (file.first, file.last, file.rows) == (positions[0], positions[-1], len(rows))
    assert {(file.zone, file.day)} == {
        (row["zone"], row["created"].date().isoformat()) for row in rows
    }


@ANY
@given(st.lists(places, unique=True, min_size=1), st.integers(1, 7), st.data())
def test_files_hold_the_rows_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    given: list[tuple[str, int, int]],
    size: int,
    data: st.DataObject,
) -> None:
    """Whatever order and batches they come in, however little may wait, however few files open."""
    archive = tmp_path_factory.mktemp("archive")
    rows = [row(place) for place in given]
    batches = table(rows).to_batches(max_chunksize=size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "ROWS_OF_GROUP", data.draw(st.integers(1, 10)))
        patch.setattr(writer, "BYTES_WAITING", data.draw(st.sampled_from([0, 500, 10**9])))
        patch.setattr(writer, "OPEN_FILES", data.draw(st.integers(1, 3)))
        files = write_rows(str(archive), MESSAGES, batches)

    for file in files:
        assert_in_order(archive, file)
    assert in_order(rows) == in_order(row for file in files for row in read(archive, file))
    assert {file.path for file in files} == {
        str(path.relative_to(archive)) for path in archive.rglob("*.parquet")
    }


@ANY
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 30)), min_size=1), st.integers(1, 5))
def test_merging_keeps_rows_and_order(
    tmp_path_factory: pytest.TempPathFactory, given: list[tuple[int, int]], size: int
) -> None:
    """Of files that follow one another, overlap, or lie within one another."""
    archive = tmp_path_factory.mktemp("archive")
    parts: dict[int, list[Row]] = defaultdict(list)
    for number, (epoch, offset) in enumerate(given):
        parts[number % 4].append({**message("home", offset, epoch=epoch), "created": _noon()})
    files = [
        file
        for rows in parts.values()
        for file in write_rows(str(archive), MESSAGES, table(rows).to_batches())
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "_ROWS", size)
        merged = merge_files(str(archive), MESSAGES, files)

    assert 1 == len(merged)
    assert_in_order(archive, merged[0])
    rows = [row for part in parts.values() for row in part]
    assert in_order(rows) == in_order(read(archive, merged[0]))


def _noon() -> object:
    return message("home", 0)["created"].replace(hour=12)


def test_files_that_follow_one_another_are_opened_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that merging many of them costs the memory of one."""
    files = []
    for first in (40, 0, 20):
        batches = table(messages(["home"], range(first, first + 20))).to_batches()
        files += write_rows(str(tmp_path), MESSAGES, batches)
    opened: list[int] = []
    real = pq.ParquetFile

    def note(path: Path) -> pq.ParquetFile:
        file = real(path)
        opened.append(file.read().column("offset")[0].as_py())
        return file

    monkeypatch.setattr(compaction.pq, "ParquetFile", note)
    seen = []
    for rows in merged_rows(tmp_path, MESSAGES, files):
        seen.append((len(opened), rows.num_rows))

    assert [0, 20, 40] == opened
    assert [(1, 20), (2, 20), (3, 20)] == seen


def test_rows_in_order_become_one_file(tmp_path: Path) -> None:
    """With row groups of a sensible size; out of order they become several."""
    rows = messages(["home"], range(60))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "ROWS_OF_GROUP", 20)
        batches = table(rows).to_batches(max_chunksize=7)
        [file] = write_rows(str(tmp_path), MESSAGES, batches)
        groups = pq.ParquetFile(tmp_path / file.path).metadata.num_row_groups
        mixed = write_rows(str(tmp_path), MESSAGES, table(shuffled(rows)).to_batches(7))

    assert 3 == groups
    assert 1 < len(mixed) <= 4


def test_statistics_of_topics_and_times_are_there(tmp_path: Path) -> None:
    """For what Spark pushes down; payloads and what has no order have none."""
    batches = table(messages(["home"], range(30))).to_batches()
    [file] = write_rows(str(tmp_path), MESSAGES, batches)
    group = pq.ParquetFile(tmp_path / file.path).metadata.row_group(0)
    columns = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}

    assert {
        "payload",
        "correlation_data",
        *(f"user_properties.list.element.{name}" for name in ("name", "value")),
    } == {name for name, c in columns.items() if not c.is_stats_set}
    assert {"ZSTD"} == {column.compression for column in columns.values()}
    assert pa.schema(MESSAGES.schema) == pq.read_schema(tmp_path / file.path)
