"""Rollups by the time that payloads say, through a real Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.pipeline.rows import Published, Row, message
from tests.pipeline.test_archive import feed, frame, parquet_stream
from txbroker.model.errors import PipelineError
from txbroker.pipeline import rollup
from txbroker.pipeline.jobs import rollup as rollup_module
from txbroker.pipeline.jobs.rollup import read_rollup
from txbroker.pipeline.report_page.windows import rollup_rows

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
RECEIVED = NOON + timedelta(days=2)
MINUTE = timedelta(minutes=1)


def micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


TIMES: dict[str, timedelta | None] = {
    '"2026-03-01T12:00:01Z"': timedelta(seconds=1),
    '"2026-03-01 12:00:01"': timedelta(seconds=1),
    '"2026-03-01T12:00:01.250009Z"': timedelta(seconds=1, microseconds=250_009),
    '"2026-03-01T14:00:01+02:00"': timedelta(seconds=1),
    '"2026-03-01T10:30:01-0130"': timedelta(seconds=1),
    '"2026-03-01T13:00:01+01"': timedelta(seconds=1),
    f"{micros(NOON) // 1_000_000}": timedelta(),
    f"{micros(NOON) // 1_000_000}.5": timedelta(seconds=0.5),
    f'"{micros(NOON) // 1_000_000}"': timedelta(),
    f"{micros(NOON) // 1_000 + 7}": timedelta(milliseconds=7),
    f"{micros(NOON) / 1e6:.4e}": timedelta(seconds=1_772_400_000 - 1_772_366_400),
    "0": -timedelta(microseconds=micros(NOON)),
    "99999999999": timedelta(days=2),
    '"2026-03-04T12:00:00Z"': timedelta(days=2),
    '"2026-03-01"': None,
    '"2026-03-01T12:00Z"': None,
    '"2026-02-30T12:00:00Z"': None,
    '"12:00:01"': None,
    '"1969-12-31T23:59:59Z"': None,
    "-1": None,
    "1e14": None,
    '"yesterday"': None,
    '""': None,
    "null": None,
    "true": None,
    "[1]": None,
}
"""What stands in JSON, and what time it is after noon; never later than the receipt."""


def test_times_and_what_is_none(spark: SparkSession) -> None:
    """Each alone, whatever Spark's time zone is; who says none is in the row without a start."""
    payloads = [f'{{"at": [{text}], "v": 1}}' for text in TIMES] + ['{"v": 1}', "1", "{", ""]
    rows = [
        message("", n, topic=f"t{n}", payload=text.encode(), created=RECEIVED)
        for n, text in enumerate(payloads)
    ]
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        windows = rollup_rows(frame(spark, rows), timedelta(seconds=1), "v", "at.0")
        found = {
            row["topic"]: row
            for row in windows.selectExpr("*", "unix_micros(start) AS at").collect()
        }
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)

    for n, text in enumerate(payloads):
        after = list(TIMES.values())[n] if n < len(TIMES) else None
        expected = None if after is None else micros(NOON + after) // 1_000_000 * 1_000_000
        row = found[f"t{n}"]
        assert expected == row["at"], text
        assert int('"v"' in text) == row["count"] == 1 - row["other"], text


def reading(zone: str, offset: int, said: float | None, value: float | str) -> Row:
    """A message that says so many seconds after noon."""
    at = {} if said is None else {"at": (NOON + timedelta(seconds=said)).isoformat()}
    return message(
        zone,
        offset,
        topic=f"{zone}/t",
        payload=json.dumps({**at, "v": value}).encode(),
        created=RECEIVED + timedelta(seconds=offset),
    )


def of(windows: DataFrame) -> set[tuple[Any, ...]]:
    """Topic, seconds after noon, count, last and other."""
    names = ("count", "last", "other")
    return {
        (
            row["topic"],
            None
            if row["start"] is None
            else (row["start"].astimezone(UTC) - NOON) // timedelta(seconds=1),
            *(row[name] for name in names),
        )
        for row in windows.collect()
    }


def test_the_last_number_is_that_of_the_latest_time(spark: SparkSession) -> None:
    """In whatever order they come; of the same time the one that came last. Without: by place."""
    rows = [
        *(reading("a", 1, 30, 3), reading("a", 2, 10, 1), reading("a", 3, 59, "on")),
        *(reading("b", 1, 10, 1), reading("b", 2, 10, 2), reading("b", 3, None, 3)),
    ]

    assert {("a/t", 0, 2, 3, 1), ("b/t", 0, 2, 2, 0), ("b/t", None, 1, 3, 0)} == of(
        rollup_rows(frame(spark, rows), field="v", time_field="at")
    )
    with pytest.raises(PipelineError, match="time field 'at': .* no plain number; give the field"):
        rollup_rows(frame(spark, rows), time_field="at")
    with pytest.raises(PipelineError, match=r"field 'a\.\.b': names joined by dots"):
        rollup_rows(frame(spark, rows), field="v", time_field="a..b")


def test_a_stream_by_what_payloads_say(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Windows close by the times that are said. One that comes behind the watermark counts in the
    files, and is not published; those that say no time are counted, told, and close nothing.
    """
    given, out = tmp_path / "given", tmp_path / "out"
    monkeypatch.setattr(rollup_module, "source", lambda *_: parquet_stream(spark, given))
    topics = Published()
    monkeypatch.setattr(rollup_module, "SinkTopics", topics)
    untimed: list[int] = []

    def report(event: str, fields: Any) -> None:
        untimed.append(fields.get("untimed", 0))

    def run(*batches: Iterable[Row]) -> list[tuple[str, float, int]]:
        feed(given, [list(batch) for batch in batches])
        untimed.clear()
        topics.messages.clear()
        rollup(
            spark,
            root="x:1",
            out=out,
            field="v",
            time_field="at",
            once=True,
            publish="x:1",
            report=report,
        )
        return [
            (topic, (datetime.fromisoformat(value["start"]) - NOON) / MINUTE, value["count"])
            for topic, value in topics.messages
        ]

    published = run([reading("a", 1, 0, 1), reading("a", 2, None, 5), reading("b", 1, None, 5)])
    assert ([2], []) == (untimed, published)
    published = run([reading("a", 3, 69, 2)], [reading("a", 4, 50, 2), reading("a", 5, 70, 2)])
    assert ([0, 0], [("a/t/rollup/1m", 0, 2)]) == (untimed, published)
    published = run([reading("a", 6, 20, 9), reading("a", 7, 140, 3), reading("b", 2, 0, 1)])
    assert [("a/t/rollup/1m", 1, 2)] == published

    assert {
        ("a/t", 0, 3, 2, 0),
        ("a/t", 60, 2, 2, 0),
        ("a/t", 120, 1, 3, 0),
        ("a/t", None, 1, 5, 0),
        ("b/t", 0, 1, 1, 0),
        ("b/t", None, 1, 5, 0),
    } == of(read_rollup(spark, out))
    early = read_rollup(spark, out, until=NOON + MINUTE)
    assert {("a/t", 0, 3, 2, 0), ("b/t", 0, 1, 1, 0)} == of(early)
    with pytest.raises(PipelineError, match='rolled up with time_field "at", not null'):
        rollup(spark, root="x:1", out=out, field="v", once=True)
