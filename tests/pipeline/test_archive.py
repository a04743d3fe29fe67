"""The archive through a real Spark."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.pipeline.rows import START, Row, in_order, message, messages, shuffled, table
from txbroker.errors import PipelineError
from txbroker.pipeline.archive import read_archive, write_batch
from txbroker.pipeline.commits import Commits
from txbroker.pipeline.rows import MESSAGE_COLUMNS

ZONES = ["", "home", "home/kitchen", "50% off/[a]*?{x}\\ü .", "a" * 300]


def frame(spark: SparkSession, rows: list[Row], partitions: int = 2) -> DataFrame:
    """Rows as a source would give them, a partition after the other."""
    return spark.createDataFrame(table(rows)).repartition(partitions, "zone")


def test_what_is_written_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """All columns of all rows, whatever the zones and the folder are called, in any order."""
    archive = tmp_path / "my [arch]ive 50%{a}*"
    rows = messages(ZONES, range(200))
    rows.append(message("home", 200, payload=b"", topic="home", qos=2, retain=True, client_id="ü"))

    assert write_batch(frame(spark, shuffled(rows)), archive, "q", 0)
    found = read_archive(spark, archive)

    assert in_order(rows) == in_order(found.collect())
    expected = spark.createDataFrame([], MESSAGE_COLUMNS)
    assert expected.dtypes == found.dtypes
    folders = {path.parent.parent.name for path in archive.rglob("*.parquet")}
    assert {"zone=%2E", "zone=home", "zone=home%2Fkitchen"} < folders
    assert {"day=2026-03-01", "day=2026-03-02"} == {
        path.parent.name for path in archive.rglob("*.parquet")
    }


def test_a_batch_is_written_once(spark: SparkSession, tmp_path: Path) -> None:
    """The same batch again does nothing; another query's of that number does."""
    rows = frame(spark, messages(["home"], range(10)))

    assert write_batch(rows, tmp_path, "q", 3)
    assert not write_batch(rows, tmp_path, "q", 3)
    assert not write_batch(rows, tmp_path, "q", 2)
    assert 10 == read_archive(spark, tmp_path).count()
    assert write_batch(frame(spark, messages(["home"], range(10, 15))), tmp_path, "other", 3)
    assert 15 == read_archive(spark, tmp_path).count()
    assert {"home": (1, 15)} == Commits(tmp_path).load().positions


def test_files_are_of_a_zone_and_day_and_ordered(spark: SparkSession, tmp_path: Path) -> None:
    """One for each, and what the manifest says of it is so."""
    import pyarrow.parquet as pq

    write_batch(frame(spark, messages(["", "home"], range(300))), tmp_path, "q", 0)
    files = Commits(tmp_path).load().files

    assert {("", "2026-03-01"), ("", "2026-03-02"), ("home", "2026-03-01")} <= {
        (file.zone, file.day) for file in files.values()
    }
    assert 4 == len(files)
    for file in files.values():
        rows = pq.ParquetFile(tmp_path / file.path).read().to_pylist()
        positions = [(row["epoch"], row["offset"]) for row in rows]
        times = [int(row["created"].timestamp() * 1_000_000) for row in rows]
        assert sorted(positions) == positions
        assert (file.first, file.last, file.rows) == (positions[0], positions[-1], len(rows))
        assert (file.earliest, file.latest) == (min(times), max(times))
        assert {(file.zone, file.day)} == {
            (row["zone"], row["created"].date().isoformat()) for row in rows
        }
        assert file.bytes == (tmp_path / file.path).stat().st_size


@pytest.mark.parametrize(
    ("arguments", "expected_files", "keeps"),
    [
        ({"zones": ["home"]}, 2, lambda row: row["zone"] == "home"),
        ({"filter": "home/+/t1"}, 3, lambda row: row["topic"] == "home/kitchen/t1"),
        ({"filter": "home/t2"}, 4, lambda row: row["topic"] == "home/t2"),
        ({"since": START + timedelta(minutes=150)}, 3, lambda row: row["offset"] >= 150),
        ({"until": START + timedelta(minutes=100)}, 3, lambda row: row["offset"] < 100),
        (
            {"start": {"home": (1, 130)}, "end": {"": (1, 7)}},
            4,
            lambda row: (
                not (row["zone"] == "home" and row["offset"] < 130)
                and not (row["zone"] == "" and row["offset"] >= 7)
            ),
        ),
    ],
)
def test_arguments_leave_out_rows_and_files(
    spark: SparkSession,
    many: Path,
    arguments: dict[str, object],
    expected_files: int,
    keeps: object,
) -> None:
    """By zone, filter, time and position; files without such rows are not opened."""
    rows = [row for row in messages(["", "home", "home/kitchen"], range(240)) if keeps(row)]  # type: ignore[operator]
    found = read_archive(spark, many, **arguments)  # type: ignore[arg-type]

    assert in_order(rows) == in_order(found.collect())
    if "filter" not in arguments:
        assert len(found.inputFiles()) == expected_files


@pytest.fixture(scope="module")
def many(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of three zones and two days."""
    folder = tmp_path_factory.mktemp("many")
    write_batch(frame(spark, messages(["", "home", "home/kitchen"], range(240))), folder, "q", 0)
    return folder


def test_no_archive_is_told_in_a_line(spark: SparkSession, tmp_path: Path) -> None:
    """With the path."""
    with pytest.raises(PipelineError, match=r"nowhere: nothing was written there") as told:
        read_archive(spark, tmp_path / "nowhere")

    assert "\n" not in str(told.value)
