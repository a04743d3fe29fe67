"""Rollups through a real Spark, against windows computed one by one in plain Python."""

from __future__ import annotations

import csv
import json
import math
import os
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.pipeline.rows import Published, Row, message, shuffled, table
from tests.pipeline.site import publish, publishers
from tests.pipeline.test_archive import feed, frame, parquet_stream
from tests.support.nodes import NodeProcess, topology
from txbroker.model.errors import PipelineError
from txbroker.pipeline import rollup
from txbroker.pipeline.archives.archives import write_batch
from txbroker.pipeline.archives.commits import Commits
from txbroker.pipeline.jobs import rollup as rollup_module
from txbroker.pipeline.jobs.rollup import read_rollup
from txbroker.pipeline.report_page.windows import Windows, rollup_rows
from txbroker.pipeline.source.row_schema import PROPERTIES

START = datetime(2026, 3, 1, 23, 50, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("TXBROKER_DATA", ROOT.parent / "shared" / "data"))
NINE_ROOMS = DATA / "home-9-rooms" / "energydata_complete.csv"

Window = tuple[str, datetime]


class Expected:
    """One window, one value after the other in the order of the journal."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.other = 0

    def add(self, text: str | None) -> None:
        try:
            value = float(text) if text is not None else math.nan
        except ValueError:
            value = math.nan
        if math.isfinite(value):
            self.values.append(value)
        else:
            self.other += 1

    def row(self) -> tuple[Any, ...]:
        if not self.values:
            return (0, None, None, None, None, self.other)
        mean = math.fsum(self.values) / len(self.values)
        least, most = min(self.values), max(self.values)
        return (len(self.values), least, mean, most, self.values[-1], self.other)


def start_of(moment: datetime, length: timedelta) -> datetime:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return moment - (moment - epoch) % length


def computed(rows: Iterable[Row], length: timedelta) -> dict[Window, tuple[Any, ...]]:
    """The windows of rows whose payloads are plain numbers or not."""
    windows: dict[Window, Expected] = defaultdict(Expected)
    for row in sorted(rows, key=lambda row: (row["epoch"], row["offset"])):
        window = windows[row["topic"], start_of(row["created"], length)]
        window.add(row["payload"].decode(errors="replace"))
    return {key: window.row() for key, window in windows.items()}


def collected(windows: DataFrame) -> dict[Window, tuple[Any, ...]]:
    names = ("count", "min", "mean", "max", "last", "other")
    found = {}
    for row in windows.collect():
        key = (row["topic"], row["start"].astimezone(UTC))
        assert key not in found
        found[key] = tuple(row[name] for name in names)
    return found


def assert_same(
    expected: dict[Window, tuple[Any, ...]], found: dict[Window, tuple[Any, ...]]
) -> None:
    """Exactly, but for the order in which Spark adds for the mean."""
    assert expected.keys() == found.keys()
    for key, row in expected.items():
        mean, got = row[2], found[key][2]
        assert row[:2] + row[3:] == found[key][:2] + found[key][3:], key
        assert mean == got or math.isclose(mean, got, rel_tol=1e-12), key


PAYLOADS = [
    *(b"1", b"-2.5", b"+.5", b"3.", b"1e3", b"6.60E+00", b" 7\n", b"0", b"-0.0", b"123456789.125"),
    *(b"NaN", b"inf", b"-Infinity", b"1e999", b"on", b"", b"{}", b"\xff\xfe1", b"1,5", b"0x10"),
    *("٣".encode(), b"1_000", b"1 2", b"1\x00"),
]
"""Numbers, and what is none."""


def generated(count: int, seed: int = 0) -> list[Row]:
    """Readings of two zones over some minutes, across a midnight."""
    chosen = random.Random(seed)
    rows = []
    for offset in range(1, count + 1):
        zone = chosen.choice(["", "home"])
        number = chosen.uniform(-50, 50)
        payload = chosen.choice([repr(number).encode(), f"{number:.3e}".encode()] * 8 + PAYLOADS)
        created = START + timedelta(seconds=offset * 0.7 + chosen.uniform(-2, 0))
        topic = f"{zone or 'yard'}/{chosen.choice('abc')}"
        rows.append(message(zone, offset, topic=topic, payload=payload, created=created))
    return rows


def plain(text: bytes) -> float | None:
    """A payload as Spark has to read it; what Python alone takes for a number is none."""
    if text.strip() != text.strip(b" \t\r\n") or b"_" in text or not text.isascii():
        return None
    try:
        return float(text) if math.isfinite(float(text)) else None
    except ValueError:
        return None


def test_numbers_and_what_is_none(spark: SparkSession) -> None:
    """Each payload alone."""
    rows = [
        message("", offset, topic=f"t{offset}", payload=payload)
        for offset, payload in enumerate(PAYLOADS, 1)
    ]
    found = {row["topic"]: row for row in rollup_rows(frame(spark, rows)).collect()}

    for offset, payload in enumerate(PAYLOADS, 1):
        row, value = found[f"t{offset}"], plain(payload)
        assert (value, int(value is not None)) == (row["last"], row["count"]), payload
        assert 1 == row["count"] + row["other"]


def test_numbers_in_json(spark: SparkSession) -> None:
    """At a path of names and places; what is no number there is counted."""
    payloads = {
        '{"state": {"temp": [1, 21.5]}}': 21.5,
        '{"state": {"temp": ["x", "-3"]}}': -3.0,
        '{"state": {"temp": [1, null]}}': None,
        '{"state": {"temp": [1, true]}}': None,
        '{"state": {"temp": 5}}': None,
        '{"state"': None,
        "17": None,
    }
    rows = [
        message("", offset, topic=f"t{offset}", payload=payload.encode())
        for offset, payload in enumerate(payloads, 1)
    ]
    found = rollup_rows(frame(spark, rows), field="state.temp.1").collect()

    assert payloads == {list(payloads)[int(row["topic"][1:]) - 1]: row["last"] for row in found}
    with pytest.raises(PipelineError, match=r"field 'a\.\.b': names joined by dots"):
        rollup_rows(frame(spark, rows), field="a..b")


def test_windows_are_those_of_plain_python(spark: SparkSession) -> None:
    """Whatever order the rows come in; `last` is by their place in the journal."""
    rows = [row for row in generated(3000) if plain(row["payload"]) is not None]
    others = [message("", n, topic="yard/a", payload=b"on", created=START) for n in (4001, 4002)]
    expected = computed(rows + others, MINUTE)

    assert_same(expected, collected(rollup_rows(frame(spark, shuffled(rows + others), 4))))


def test_its_own_topics_are_left_out(spark: SparkSession) -> None:
    """Of any window, and only those."""
    topics = ["a/rollup/1m", "rollup/90s", "a/rollup/1m/b", "a/rollup/x", "rollup", "scrollup/1m"]
    rows = [message("", n, topic=topic, payload=b"1") for n, topic in enumerate(topics, 1)]

    assert set(topics[2:]) == {row["topic"] for row in rollup_rows(frame(spark, rows)).collect()}


def test_a_topic_that_moved_within_a_window(spark: SparkSession) -> None:
    """Offsets of two zones do not compare: the zone that received something last has the last."""
    rows = [
        message("", 900, epoch=7, topic="home/t", payload=b"1", created=START),
        message("home", 1, topic="home/t", payload=b"2", created=START + timedelta(seconds=5)),
        message("home", 2, topic="home/t", payload=b"3", created=START + timedelta(seconds=4)),
    ]

    assert [(3, 3.0)] == [
        (row["count"], row["last"]) for row in rollup_rows(frame(spark, rows)).collect()
    ]


def test_an_archive_is_rolled_up_bit_by_bit(spark: SparkSession, tmp_path: Path) -> None:
    """Each message once, however often it runs; windows that reach into the next run, too."""
    archive, out = tmp_path / "archive", tmp_path / "out"
    rows = [row for row in generated(900, seed=1) if plain(row["payload"]) is not None]
    for batch, (first, behind) in enumerate([(0, 450), (450, 900)]):
        write_batch(frame(spark, rows[first:behind]), archive, "q", batch)
        rollup(spark, archive=archive, out=out)
        assert_same(computed(rows[:behind], MINUTE), collected(read_rollup(spark, out)))
    version = Commits(out).load().version
    rollup(spark, archive=archive, out=out)

    assert version == Commits(out).load().version
    until = START + timedelta(minutes=4)
    some = read_rollup(spark, out, filter="home/+", since=START + MINUTE, until=until)
    assert {
        key for key in computed(rows, MINUTE) if "home" in key[0] and START < key[1] < until
    } == collected(some).keys()
    with pytest.raises(PipelineError, match='rolled up with window "1m", not "5m"; give another'):
        rollup(spark, archive=archive, out=out, window=5 * MINUTE)


def test_a_stream_is_rolled_up_and_published(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Each window is published when its zone is past it, once; a late message counts in the files. A
    batch whose commit fails is published again, the same.
    """
    given, out = tmp_path / "given", tmp_path / "out"
    monkeypatch.setattr(rollup_module, "source", lambda *_: parquet_stream(spark, given))
    topics = Published()
    monkeypatch.setattr(rollup_module, "SinkTopics", topics)
    published = topics.messages

    def at(zone: str, offset: int, seconds: float) -> Row:
        created = START + timedelta(seconds=seconds)
        return message(zone, offset, topic=f"{zone}/t", payload=b"%d" % offset, created=created)

    def run() -> None:
        rollup(spark, root="x:1", out=out, publish="x:1", once=True)

    feed(given, [[at("a", 1, 0), at("a", 2, 30), at("b", 1, 3)], [at("a", 3, 65)]])
    run()
    assert [] == published  # five seconds past the window are fewer than ten
    feed(given, [[at("a", 4, 70)], [at("b", 2, 400), at("a", 5, 50)]])
    with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError):
        patch.setattr(Commits, "commit", fail)
        run()
    once = list(published)
    published.clear()
    run()

    assert [("a/t/rollup/1m", 2, 1.0, 1.5, 2.0, 2.0, "2026-03-01T23:50:00.000Z")] == [
        (topic, *(value[name] for name in ("count", "min", "mean", "max", "last", "start")))
        for topic, value in once
    ]
    assert once == published[:1]
    assert [("b/t/rollup/1m", 1)] == [(topic, value["count"]) for topic, value in published[1:]]
    found = collected(read_rollup(spark, out))
    assert (3, 1.0, 8 / 3, 5.0, 5.0, 0) == found["a/t", START]
    assert (1, 2.0, 2.0, 2.0, 2.0, 0) == found["b/t", START + 6 * MINUTE]


def test_windows_are_published_once_whatever_happens(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    To a real node: with batches that come again, before and after the commit of their windows, and
    a node that was killed in between. What the node remembers of them is gone afterwards.
    """
    with NodeProcess(tmp_path, topology("house", zone="")) as node:

        def send(*seconds: int) -> None:
            at = ((START + timedelta(seconds=number)).isoformat() for number in seconds)
            publish(node, [("home/t", json.dumps({"at": moment, "v": 1})) for moment in at])

        def run() -> None:
            arguments: dict[str, Any] = {"field": "v", "time_field": "at", "once": True}
            rollup(spark, root=node.grpc, out=tmp_path / "out", publish=node.grpc, **arguments)

        def published() -> list[float]:
            rows = spark.read.format("txbroker").option("root", node.grpc)
            rows = rows.option("filter", "home/+/rollup/#").load().orderBy("offset").collect()
            starts = (json.loads(row["payload"])["start"] for row in rows)
            return [(datetime.fromisoformat(start) - START) / MINUTE for start in starts]

        send(0, 30, 75, 135)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError):
            patch.setattr(Commits, "commit", fail)
            run()
        assert ([0, 1], 1) == (published(), len(publishers(node)))
        node.kill()
        node.start()
        run()
        assert ([0, 1], []) == (published(), publishers(node))
        last = max((tmp_path / "out" / "_checkpoint" / "commits").glob("[0-9]*"))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink()
        send(195)
        run()
        assert ([0, 1, 2], []) == (published(), publishers(node))


def fail(*_: object) -> None:
    raise OSError("no disk")


@pytest.mark.parametrize(
    ("length", "label"), [(1, "1s"), (60, "1m"), (90, "90s"), (7200, "2h"), (86_400, "1d")]
)
def test_windows_have_labels(length: int, label: str) -> None:
    """As they stand in topics."""
    assert label == Windows(length=timedelta(seconds=length)).label


@pytest.mark.parametrize("length", [0, -60, 0.5, 1.5])
def test_windows_are_whole_seconds(length: float) -> None:
    """Others are refused in a line."""
    with pytest.raises(PipelineError, match="whole seconds are wanted"):
        Windows(length=timedelta(seconds=length))


# -- the nine rooms

Reading = tuple[str, datetime, str]


def readings_of_nine_rooms() -> Iterator[Reading]:
    """Topic, time and text of every reading, in the order of the file."""
    with NINE_ROOMS.open(newline="") as file:
        for line in csv.DictReader(file):
            moment = datetime.strptime(line.pop("date"), "%Y/%m/%d %H:%M").replace(tzinfo=UTC)
            for column, text in line.items():
                yield f"home/{column}", moment, text


def generated_readings() -> Iterator[Reading]:
    """The same kind of thing, where the file is not there."""
    chosen = random.Random(5)
    for step in range(400):
        for column in ("T1", "RH_1", "lights"):
            moment = START + step * timedelta(minutes=10)
            yield f"home/{column}", moment, f"{chosen.uniform(-5, 60):.9g}"


@pytest.mark.parametrize("name", ["nine rooms", "generated"])
def test_the_rollup_of_readings_is_exact(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Through an archive in two batches, every hour of every topic."""
    if name == "nine rooms" and not NINE_ROOMS.exists():
        pytest.skip(f"{NINE_ROOMS} is missing: the data of the nine rooms lies beside the clone")
    readings = list(readings_of_nine_rooms() if name == "nine rooms" else generated_readings())
    hour = timedelta(hours=1)
    expected: dict[Window, Expected] = defaultdict(Expected)
    for topic, moment, text in readings:
        expected[topic, moment.replace(minute=0)].add(text)
    half = len(readings) // 2 + 1
    for batch in range(2):
        rows = as_rows(readings[batch * half : (batch + 1) * half], batch * half)
        write_batch(spark.createDataFrame(rows), tmp_path / "archive", "q", batch)
        rollup(spark, archive=tmp_path / "archive", out=tmp_path / "out", window=hour)

    assert_same(
        {key: window.row() for key, window in expected.items()},
        collected(read_rollup(spark, tmp_path / "out")),
    )


def as_rows(readings: Sequence[Reading], before: int) -> pa.Table:
    """Readings as a journal has them, in one zone."""
    one = table([message("home", 1)]).schema
    count = len(readings)
    constant = {
        "zone": "home",
        "epoch": 1,
        "qos": 1,
        "retain": False,
        "client_id": "c",
        "node": "n",
    }
    columns: dict[str, Any] = {name: [value] * count for name, value in constant.items()}
    columns["offset"] = range(before + 1, before + count + 1)
    columns["topic"] = [topic for topic, _, _ in readings]
    columns["payload"] = [text.encode() for _, _, text in readings]
    columns["created"] = [moment for _, moment, _ in readings]
    columns.update({name: [None] * count for name in PROPERTIES})
    return pa.Table.from_pydict({name: columns[name] for name in one.names}, schema=one)
