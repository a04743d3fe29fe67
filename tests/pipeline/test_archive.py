"""The archive through a real Spark."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.pipeline.archives.test_commits import data_file
from tests.pipeline.rows import START, Row, in_order, message, messages, shuffled, table
from txbroker.model.errors import PipelineError
from txbroker.pipeline import archive
from txbroker.pipeline.archives.archives import read_archive, write_batch
from txbroker.pipeline.archives.commits import Commits
from txbroker.pipeline.archives.compaction import TARGET, plan_merges
from txbroker.pipeline.archives.upkeep import ArchiveUpkeep, KeepRules
from txbroker.pipeline.archives.writer import MESSAGES
from txbroker.pipeline.jobs.archive import archive_stream
from txbroker.pipeline.source.error_reasons import SLOW_START, converted_errors
from txbroker.pipeline.source.lookups import looked_up
from txbroker.pipeline.source.row_schema import MESSAGE_COLUMNS
from txbroker.pipeline.spark import journal_jobs
from txbroker.pipeline.spark.journal_jobs import JobLock

ROOT = Path(__file__).resolve().parents[2]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FOREVER = KeepRules(age=timedelta(days=100_000))
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


def test_a_plan_is_no_larger_for_more_zones(spark: SparkSession, tmp_path: Path) -> None:
    """However many have a file of which a part is wanted."""
    zones = [f"home/{number}" for number in range(40)]
    rows = messages(zones, range(1, 6))
    write_batch(frame(spark, rows, 1), tmp_path, "q", 0)

    def found(some: Sequence[str]) -> DataFrame:
        start, end = (dict.fromkeys(some, (1, offset)) for offset in (2, 4))
        return read_archive(spark, tmp_path, start=start, end=end)

    def depth(rows: DataFrame) -> int:
        return len(rows._jdf.queryExecution().analyzed().toString().splitlines())

    assert depth(found(zones[:1])) == depth(found(zones))
    assert in_order(row for row in rows if 2 <= row["offset"] < 4) == in_order(
        found(zones).collect()
    )


def test_values_are_looked_up_in_a_query(spark: SparkSession) -> None:
    """Thousands of them, under any text; null where there is none."""
    values = {"": {"n": 2**62}, "ü\"\\'/": {"n": -1}} | {f"k{n}": {"n": n} for n in range(3000)}
    keys = spark.createDataFrame([(key,) for key in [*values, "none"]], "key string")

    found = keys.select("key", looked_up(values, "struct<n:bigint>", F.col("key")).alias("value"))

    assert {**{key: value["n"] for key, value in values.items()}, "none": None} == {
        row["key"]: row["value"] and row["value"]["n"] for row in found.collect()
    }


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


# -- the job


def parquet_stream(spark: SparkSession, folder: Path) -> DataFrame:
    """A stream like the journals', a file each batch."""
    reader = spark.readStream.schema(MESSAGE_COLUMNS).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(folder))


def feed(folder: Path, batches: Sequence[list[Row]]) -> None:
    """Files for `parquet_stream`, in this order."""
    folder.mkdir(exist_ok=True)
    for rows in batches:
        number = len(list(folder.iterdir()))
        path = folder / f"{number:03}.parquet"
        pq.write_table(table(rows), path)
        os.utime(path, (1_800_000_000 + number, 1_800_000_000 + number))


def run_once(spark: SparkSession, given: Path, folder: Path, keep: KeepRules = FOREVER) -> None:
    archive_stream(parquet_stream(spark, given), folder, once=True, keep=keep)


def no_commit(*_: object) -> None:
    raise OSError("the disk is gone")


def test_a_job_goes_on_where_it_ended(spark: SparkSession, tmp_path: Path) -> None:
    """Batch after batch, run after run; what failed before its commit is written again."""
    given, archive = tmp_path / "given", tmp_path / "archive"
    batches = [messages(["home", ""], range(n * 20, n * 20 + 20)) for n in range(4)]
    feed(given, batches[:2])
    run_once(spark, given, archive)
    run_once(spark, given, archive)
    assert in_order(sum(batches[:2], [])) == in_order(read_archive(spark, archive).collect())

    feed(given, batches[2:])
    with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="the disk is gone"):
        patch.setattr(
            Commits, "commit", lambda *_: (_ for _ in ()).throw(OSError("the disk is gone"))
        )
        run_once(spark, given, archive)
    assert in_order(sum(batches[:2], [])) == in_order(read_archive(spark, archive).collect())
    run_once(spark, given, archive)

    assert in_order(sum(batches, [])) == in_order(read_archive(spark, archive).collect())
    named = set(Commits(archive).load().files)
    assert named < {str(path.relative_to(archive)) for path in archive.rglob("*.parquet")}


def test_a_query_that_dies_unnoticed_is_no_success(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark may end a query without an error; a batch that was begun and not committed tells."""
    given, archive = tmp_path / "given", tmp_path / "archive"
    feed(given, [messages(["home"], range(3))])

    def die(*_: object) -> None:
        (archive / "_checkpoint" / "commits" / "0").unlink()

    monkeypatch.setattr(journal_jobs, "_await", lambda query, *_: (query.awaitTermination(), die()))
    with pytest.raises(PipelineError, match="ended before its work was done; run it again"):
        run_once(spark, given, archive)


@pytest.mark.parametrize(("slow", "ends"), [(4, True), (5, False)])
def test_a_query_whose_python_is_slow_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: int, ends: bool
) -> None:
    """On a busy machine; not for ever, and not for any other reason."""
    outcomes: list[Exception | None] = [
        *[StreamingQueryException(f"{SLOW_START}. SQLSTATE: XXKST") for _ in range(slow)],
        None,
    ]
    asked = []

    def run(*_: object) -> None:
        asked.append(_)
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    monkeypatch.setattr(journal_jobs, "_follow", run)

    def follow() -> None:
        journal_jobs.follow(None, tmp_path, no_commit, once=True)  # type: ignore[arg-type]

    if ends:
        follow()
        outcomes.append(StreamingQueryException("all is lost"))
        with pytest.raises(PipelineError, match="all is lost"):
            follow()
    else:
        with pytest.raises(PipelineError, match="the machine is too busy"):
            follow()
    assert slow + (2 if ends else 0) == len(asked)


def test_what_stands_in_the_way_of_a_job_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """A file where a folder is to be, in the workers; a checkpoint that is damaged."""
    given, archive = tmp_path / "given", tmp_path / "archive"
    feed(given, [messages(["home"], range(3))])
    archive.mkdir()
    (archive / "zone=home").write_text("")

    with pytest.raises(PipelineError, match=r"/zone=home: cannot be written: .*; check space and"):
        run_once(spark, given, archive)
    (archive / "zone=home").unlink()
    run_once(spark, given, archive)
    (archive / "_checkpoint" / "commits" / "0").write_text("garbage")
    with pytest.raises(PipelineError, match=r"/_checkpoint/commits/0: damaged.*; delete .*: the j"):
        run_once(spark, given, archive)
    with pytest.raises(PipelineError, match=r"/given: It is gone."), converted_errors(given):
        raise PySparkException("It is gone.")


@pytest.mark.parametrize("folder", ["file", "file/inside", "/proc/none"])
def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(PipelineError, match=r"is not a folder; give another|; give a folder that"):
        JobLock(tmp_path / folder).__enter__()


@pytest.mark.timeout(300)
def test_killed_between_the_commits(spark: SparkSession, tmp_path: Path) -> None:
    """A kill -9 after the archive's commit and before the checkpoint's repeats nothing."""
    given, archive = tmp_path / "given", tmp_path / "archive"
    batches = [messages(["home", ""], range(n * 20, n * 20 + 20)) for n in range(2)]
    feed(given, batches)
    done = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.killed_job", str(given), str(archive), "0"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
    )
    assert -signal.SIGKILL == done.returncode, done.stdout
    checkpoint = archive / "_checkpoint"
    assert (checkpoint / "offsets" / "0").exists()
    assert not (checkpoint / "commits" / "0").exists()
    assert in_order(batches[0]) == in_order(read_archive(spark, archive).collect())

    run_once(spark, given, archive)
    assert in_order(sum(batches, [])) == in_order(read_archive(spark, archive).collect())


def test_of_two_jobs_one_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """Who has the folder, too."""
    with JobLock(tmp_path), pytest.raises(PipelineError) as told:
        archive(spark, root="127.0.0.1:1", archive=tmp_path)

    assert re.fullmatch(
        rf"{tmp_path}: process {os.getpid()} on \S+ runs a job in this folder; stop that one first",
        str(told.value),
    )
    with JobLock(tmp_path):
        pass


# -- upkeep


def test_small_files_are_merged(spark: SparkSession, tmp_path: Path) -> None:
    """Whoever reads meanwhile reads on; rows that came out of order stand in order."""
    rows: list[Row] = []
    for batch in range(9):
        offsets = range(batch, 180, 9)
        rows += messages(["home"], offsets)
        write_batch(frame(spark, messages(["home"], offsets), 1), tmp_path, "q", batch)
    before = read_archive(spark, tmp_path)
    commits = Commits(tmp_path)
    assert 18 == len(commits.load().files)

    assert 16 == ArchiveUpkeep(spark, commits, MESSAGES, FOREVER, grace=3600).after_batch().merged
    assert 2 == len(commits.load().files)
    assert in_order(rows) == in_order(before.collect())
    assert in_order(rows) == in_order(read_archive(spark, tmp_path).collect())
    for path in commits.load().files:
        offsets = pq.ParquetFile(tmp_path / path).read().column("offset").to_pylist()
        assert sorted(offsets) == offsets
    done = ArchiveUpkeep(spark, commits, MESSAGES, FOREVER, grace=0).all()
    assert 18 == done.deleted
    assert 2 == len(list(tmp_path.rglob("*.parquet")))
    assert in_order(rows) == in_order(read_archive(spark, tmp_path).collect())


def test_rows_are_kept_for_their_zones_age(spark: SparkSession, tmp_path: Path) -> None:
    """The positions stay, so that nothing is read again."""
    write_batch(frame(spark, messages(["home", "", "x"], range(240))), tmp_path, "q", 0)
    commits = Commits(tmp_path)
    age = timedelta(microseconds=commits.now()) - (START.replace(hour=0) - EPOCH)
    keep = KeepRules(age=age - timedelta(days=1), zones={"home": age, "x": age - timedelta(days=2)})

    assert 3 == ArchiveUpkeep(spark, commits, MESSAGES, keep).all().expired
    by_zone = read_archive(spark, tmp_path).groupBy("zone").agg(F.count("*").alias("n"))
    assert {("home", 240), ("", 120)} == {(row["zone"], row["n"]) for row in by_zone.collect()}
    assert dict.fromkeys(("home", "", "x"), (1, 240)) == commits.load().positions


def test_which_files_are_merged() -> None:
    """Of one size when there are many of them, of a day that is over all of them."""
    small = [data_file(str(n), offset=10 - n) for n in range(7)]
    large = attrs.evolve(small[0], bytes=10_000_000)

    assert [] == plan_merges([*small, large])
    assert [] == plan_merges([*small, data_file("z", zone="other")], before="2026-03-01")
    assert [[*reversed(small)]] == plan_merges(small, before="2026-03-02")
    eighth = data_file("8", offset=11)
    assert [[*reversed(small), eighth]] == plan_merges([*small, eighth, large])
    assert [] == plan_merges([attrs.evolve(file, bytes=TARGET) for file in small] * 2, "2026-03-02")
    halves = [attrs.evolve(file, bytes=TARGET // 2) for file in small]
    assert [2, 2, 2] == [len(group) for group in plan_merges(halves, "2026-03-02")]


def test_no_archive_is_told_in_a_line(spark: SparkSession, tmp_path: Path) -> None:
    """With the path."""
    with pytest.raises(PipelineError, match=r"nowhere: nothing was written there") as told:
        read_archive(spark, tmp_path / "nowhere")

    assert "\n" not in str(told.value)
