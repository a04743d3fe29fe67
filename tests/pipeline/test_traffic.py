"""The job *traffic* against sums made by plain Python of the same rows."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.pipeline.workload import BEGIN, LEDGER_ARROW, Row, delivery, message, write
from txbroker.pipeline.jobs.traffic import TRAFFIC_COLUMNS, traffic

OWNERS = {"": "house", "home/kitchen": "kitchen"}
TOPICS = ("home/kitchen/temperature", "home/kitchen/oven/door", "home/hall/light", "clock", "/a/b")


@pytest.fixture(scope="module")
def rows() -> tuple[list[Row], list[Row]]:
    """Messages of two zones through three edges in ten minutes, and some deliveries of them."""
    dice = random.Random(11)
    messages, deliveries = [], []
    for number in range(400):
        topic = dice.choice(TOPICS)
        zone = "home/kitchen" if topic.startswith("home/kitchen") else ""
        row = message(
            number,
            topic,
            zone=zone,
            client_id=f"c{dice.randrange(6)}",
            node=dice.choice(("house", "kitchen", "porch")),
            payload=b"x" * dice.randrange(20),
            created=BEGIN + timedelta(seconds=dice.random() * 600),
        )
        messages.append(row)
        for client in range(dice.randrange(4)):
            node = dice.choice(("house", "kitchen", "porch"))
            # Later than the window of the message: it is the message that counts.
            deliveries.append(delivery(row, f"s{client}", node, after=dice.random() * 300))
    return messages, deliveries


@pytest.fixture(scope="module")
def frames(
    spark: SparkSession, rows: tuple[list[Row], list[Row]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[DataFrame, DataFrame]:
    """The same as Spark reads them from Parquet."""
    folder: Path = tmp_path_factory.mktemp("rows")
    messages = spark.read.parquet(write(folder / "messages.parquet", rows[0]))
    return messages, spark.read.parquet(write(folder / "deliveries.parquet", rows[1], LEDGER_ARROW))


def expected(
    messages: list[Row], deliveries: list[Row], depth: int, window: float
) -> dict[tuple[Any, str], dict[str, float]]:
    """The sums by window start and subtree, one row after the other."""
    made: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for row in deliveries:
        made[row["zone"], row["epoch"], row["offset"]].append(row["node"])
    sums: dict[tuple[Any, str], dict[str, Any]] = {}
    for row in messages:
        number = (row["created"] - BEGIN).total_seconds() // window
        start = BEGIN + timedelta(seconds=number * window)
        key = (start, "/".join(row["topic"].split("/")[:depth]))
        entry = sums.setdefault(key, defaultdict(int, clients=set()))
        owner = OWNERS[row["zone"]]
        nodes = made[row["zone"], row["epoch"], row["offset"]]
        away = [node for node in nodes if node != owner]
        entry["messages"] += 1
        entry["bytes"] += len(row["payload"])
        entry["clients"].add(row["client_id"])
        entry["deliveries"] += len(nodes)
        entry["copies"] += len(set(away))
        entry["cross_publishes"] += row["node"] != owner
        entry["cross_deliveries"] += len(away)
    for entry in sums.values():
        entry["publishers"] = len(entry.pop("clients"))
        crossing = entry["cross_publishes"] + entry["cross_deliveries"]
        entry["cross_share"] = crossing / (entry["messages"] + entry["deliveries"])
        entry["fan_out"] = entry["deliveries"] / entry["messages"]
    return sums


@pytest.mark.parametrize("depth", [1, 2, 9])
def test_sums_are_those_of_the_rows(
    rows: tuple[list[Row], list[Row]], frames: tuple[DataFrame, DataFrame], depth: int
) -> None:
    """Every column, for each subtree in each minute."""
    table = traffic(*frames, depth=depth, window=60, owners=OWNERS).toArrow().to_pylist()
    wanted = expected(*rows, depth, 60)

    assert sorted(wanted) == [(row["start"], row["subtree"]) for row in table]
    for row in table:
        assert row["start"] + timedelta(seconds=60) == row["end"]
        for name, value in wanted[row["start"], row["subtree"]].items():
            assert row[name] == pytest.approx(value), (name, row)


def test_without_windows_and_levels_it_is_one_row(
    rows: tuple[list[Row], list[Row]], frames: tuple[DataFrame, DataFrame]
) -> None:
    """Over the time from the first message to the last."""
    (row,) = traffic(*frames, depth=0, owners=OWNERS).toArrow().to_pylist()
    times = [message["created"] for message in rows[0]]

    assert ("", 400) == (row["subtree"], row["messages"])
    assert len(rows[1]) == row["deliveries"]
    assert (min(times), max(times)) == (row["start"], row["end"])


def test_what_nobody_knows_is_null(frames: tuple[DataFrame, DataFrame]) -> None:
    """No ledger: no deliveries. No owner of a zone: nothing said about nodes in its subtrees."""
    table = traffic(frames[0], depth=2, owners={"home/kitchen": "kitchen"})
    by_subtree = {row["subtree"]: row for row in table.toArrow().to_pylist()}

    kitchen, hall = by_subtree["home/kitchen"], by_subtree["home/hall"]
    assert {None} == {kitchen[name] for name in ("deliveries", "fan_out", "copies")}
    assert kitchen["cross_publishes"] / kitchen["messages"] == kitchen["cross_share"]
    assert {None} == {hall[name] for name in ("deliveries", "cross_publishes", "cross_share")}
    without_owners = traffic(*frames, depth=0).toArrow().to_pylist()[0]
    assert None is without_owners["copies"] and 0 < without_owners["deliveries"]


def test_columns_are_those_that_are_documented(frames: tuple[DataFrame, DataFrame]) -> None:
    """Names and types, with a ledger and without."""
    for deliveries in (None, frames[1]):
        table = traffic(frames[0], deliveries, window=1)
        spelled = ", ".join(
            f"{field.name} {field.dataType.simpleString().replace('bigint', 'long')}"
            for field in table.schema.fields
        )
        assert TRAFFIC_COLUMNS == spelled
