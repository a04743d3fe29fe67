"""Replays of an archive into a real node."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from pyspark.sql import SparkSession

from tests.pipeline.rows import START, Row, message, shuffled
from tests.pipeline.test_archive import frame
from tests.support.nodes import NodeProcess, free_port, topology
from txbroker.model.errors import PipelineError
from txbroker.pipeline import replay
from txbroker.pipeline.archives.archives import read_archive, write_batch
from txbroker.pipeline.jobs.replay import ordered_rows

TIMEOUT = 20.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("node")
    with NodeProcess(folder, topology("solo", zone="")) as running:
        yield running


class Listener:
    """Subscribes to all, and has what came in its order."""

    def __init__(self, node: NodeProcess, topics: str) -> None:
        self.got: list[tuple[str, int, bool]] = []
        self.at: list[float] = []
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2)
        self._client.on_message = self._on_message
        ready = threading.Event()
        self._client.on_subscribe = lambda *_: ready.set()
        self._client.connect(*node.mqtt)
        self._client.subscribe(topics, 1)
        self._client.loop_start()
        assert ready.wait(TIMEOUT)

    def _on_message(self, client: Any, data: Any, got: mqtt.MQTTMessage) -> None:
        self.got.append((got.topic, int(got.payload), got.retain))
        self.at.append(time.monotonic())

    def wait_for(self, count: int) -> list[tuple[str, int, bool]]:
        deadline = time.monotonic() + TIMEOUT
        while len(self.got) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.got

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def address(node: NodeProcess) -> str:
    host, port = node.mqtt
    return f"{host}:{port}"


@pytest.fixture(scope="module")
def many(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Row]]:
    """Two zones, a second between two messages, and in one of them a clock that is set back."""
    folder = tmp_path_factory.mktemp("archive")
    rows = []
    for offset in range(1, 301):
        for zone in ("home", "yard"):
            seconds = offset - (100 if zone == "yard" and offset > 150 else 0)
            created = START + timedelta(seconds=seconds, milliseconds=zone == "yard")
            topic = f"{zone}/t{offset % 3}"
            rows.append(message(zone, offset, topic=topic, created=created, retain=offset == 7))
    write_batch(frame(spark, shuffled(rows)), folder, "q", 0)
    return folder, rows


def expected_topics(rows: list[Row], prefix: str = "") -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in sorted(rows, key=lambda row: row["offset"]):
        found.setdefault(prefix + row["topic"], []).append(row["offset"])
    return found


def by_topic(got: list[tuple[str, int, bool]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, number, _ in got:
        found.setdefault(topic, []).append(number)
    return found


def test_all_comes_again_in_order(
    spark: SparkSession, node: NodeProcess, many: tuple[Path, list[Row]]
) -> None:
    """As fast as possible, below a prefix; a clock that was set back changes no topic's order."""
    folder, rows = many
    with Listener(node, "again/#") as listener:
        count = replay(spark, archive=folder, mqtt=address(node), prefix="again", speed=None)
        got = listener.wait_for(len(rows))

    assert len(rows) == count
    assert expected_topics(rows, "again/") == by_topic(got)
    assert not any(retained for _, _, retained in got)


def test_zones_are_interleaved_by_time(spark: SparkSession, many: tuple[Path, list[Row]]) -> None:
    """Each row is due when it came, or with one before it in its zone."""
    folder, rows = many
    found = ordered_rows(read_archive(spark, folder), 60_000, None)
    assert 4 == found.rdd.getNumPartitions()
    latest = {"home": 0.0, "yard": 0.0}
    due = []
    for row in sorted(rows, key=lambda row: row["offset"]):
        zone = row["zone"]
        latest[zone] = max(latest[zone], row["created"].timestamp())
        due.append((round(latest[zone] * 1e6), zone, 1, row["offset"]))

    places = [(row.due, row.zone, row.epoch, row.offset) for row in found.toLocalIterator()]
    assert sorted(due) == places
    rest = ordered_rows(read_archive(spark, folder), 100, places[200])
    assert places[201:] == [(r.due, r.zone, r.epoch, r.offset) for r in rest.toLocalIterator()]


def test_a_range_at_a_multiple_of_the_speed(
    spark: SparkSession, node: NodeProcess, many: tuple[Path, list[Row]]
) -> None:
    """Five seconds in half a second; with `retain`, what was retained is so again."""
    folder, _ = many
    with Listener(node, "home/#") as listener:
        count = replay(
            spark,
            archive=folder,
            mqtt=address(node),
            filter="home/#",
            since=START + timedelta(seconds=5),
            until=START + timedelta(seconds=11),
            speed=10,
            retain=True,
        )
        got = listener.wait_for(6)
    assert 6 == count
    assert [5, 6, 7, 8, 9, 10] == [number for _, number, _ in got]
    assert 0.3 < listener.at[-1] - listener.at[0] < 5
    with Listener(node, "home/#") as late:
        assert [("home/t1", 7, True)] == late.wait_for(1)


def test_it_goes_on_where_it_ended(
    spark: SparkSession, node: NodeProcess, many: tuple[Path, list[Row]], tmp_path: Path
) -> None:
    """Nothing is left out; the file is gone at the end, and of no use to another replay."""
    folder, rows = many
    state = tmp_path / "state.json"
    published = 0

    def count(event: str, fields: Any) -> None:
        nonlocal published
        published = fields["messages"] if event == "acknowledged" else published

    calls = iter(range(1000))
    arguments: dict[str, Any] = {"mqtt": address(node), "speed": None, "resume": state}
    with Listener(node, "twice/#") as listener:
        first = replay(
            spark,
            archive=folder,
            prefix="twice",
            report=count,
            is_stopping=lambda: next(calls) >= 250,
            **arguments,
        )
        assert 250 == first == published
        assert {"home", "yard"} >= {json.loads(state.read_text())["place"][1]}
        with pytest.raises(PipelineError, match="the state of another replay"):
            replay(spark, archive=folder, prefix="other", **arguments)
        second = replay(spark, archive=folder, prefix="twice", **arguments)
        got = listener.wait_for(len(rows))

    assert len(rows) == first + second
    assert expected_topics(rows, "twice/") == by_topic(got)
    assert not state.exists()


def test_mistakes_are_told_in_a_line(
    spark: SparkSession, many: tuple[Path, list[Row]], tmp_path: Path
) -> None:
    """What, where and the remedy."""
    folder, _ = many
    closed = f"127.0.0.1:{free_port()}"
    with pytest.raises(PipelineError, match=rf"{closed}: cannot be reached: .* MQTT address\?"):
        replay(spark, archive=folder, mqtt=closed)
    with pytest.raises(PipelineError, match="replay needs a node"):
        replay(spark, archive=folder)
    with pytest.raises(PipelineError, match=r"prefix 'a/\+': A topic name has no wildcards"):
        replay(spark, archive=folder, mqtt=closed, prefix="a/+")
    with pytest.raises(PipelineError, match="speed 0: a number above 0 is wanted"):
        replay(spark, archive=folder, mqtt=closed, speed=0)
    (tmp_path / "x").write_text("[]")
    with pytest.raises(PipelineError, match="x: not the state of a replay"):
        replay(spark, archive=folder, mqtt=closed, resume=tmp_path / "x")
