"""A root and a child zone as processes, messages to them, and streams of what they keep."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.nodes import NodeProcess, topology

PATIENCE = 60.0


@contextmanager
def house(folder: Path, **keys: Any) -> Iterator[tuple[NodeProcess, NodeProcess]]:
    """The nodes root and kitchen, which has home/kitchen."""
    with NodeProcess(folder, topology("root", zone="", **keys)) as root:
        child = topology("kitchen", zone="home/kitchen", parent=root.grpc, **keys)
        with NodeProcess(folder, child) as kitchen:
            kitchen.wait_event("join.granted")
            yield root, kitchen


def publish(node: NodeProcess, rows: Iterable[tuple[str, str]], qos: int = 1) -> None:
    """Publish topics and payloads by one client, and wait for all answers."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="publisher")
    client.max_inflight_messages_set(0)
    client.connect(*node.mqtt)
    client.loop_start()
    sent = [client.publish(topic, payload, qos) for topic, payload in rows]
    for one in sent:
        one.wait_for_publish(PATIENCE)
    client.disconnect()
    client.loop_stop()


def numbered(topic: str, first: int, count: int) -> list[tuple[str, str]]:
    """Messages with numbers as their payloads."""
    return [(topic, str(number)) for number in range(first, first + count)]


def command(*words: str) -> str:
    """What a txbroker command prints; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "txbroker.cli", *words], capture_output=True, text=True, timeout=60
    )
    assert not done.returncode, done.stderr
    return done.stdout


def until(is_so: Callable[[], bool], what: str, timeout: float = PATIENCE) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + timeout
    while not is_so():
        assert time.monotonic() < deadline, f"not so after {timeout} s: {what}"
        time.sleep(0.1)


class Stream:
    """A streaming query from the source `txbroker` into Parquet files; restartable."""

    def __init__(self, spark: Any, folder: Path, root: str, **options: str) -> None:
        self._spark = spark
        self.checkpoint = folder / "checkpoint"
        self._out = folder / "out"
        self._options = {"root": root, "startingOffsets": "earliest", **options}
        self.query: Any = None

    def start(self, **trigger: Any) -> None:
        """Begin, or go on."""
        source = self._spark.readStream.format("txbroker").options(**self._options).load()
        writing = source.writeStream.format("parquet")
        writing = writing.option("checkpointLocation", str(self.checkpoint))
        writing = writing.option("path", str(self._out))
        if trigger:
            writing = writing.trigger(**trigger)
        self.query = writing.start()

    def stop(self) -> None:
        """End it wherever it is."""
        self.query.stop()

    def payloads(self) -> list[str]:
        """Everything that was written so far, sorted."""
        if not (self._out / "_spark_metadata").exists():
            return []
        written = self._spark.read.schema("payload binary").parquet(str(self._out))
        rows = written.collect()
        return sorted(row.payload.decode() for row in rows)

    def wait_for(self, numbers: range) -> None:
        """Wait until these are written, each once, and nothing else."""
        expected = sorted(map(str, numbers))
        deadline = time.monotonic() + PATIENCE
        while (found := self.payloads()) != expected:
            assert self.query.isActive, self.query.exception()
            assert time.monotonic() < deadline, f"{len(found)} of {len(expected)}"
            assert len(found) <= len(expected), "rows came twice"
            self.query.processAllAvailable()


def republish(spark: Any, folder: Path, node: NodeProcess) -> None:
    """Bring what comes in below `in` to another zone by the sink, as far as it is there."""
    source = spark.readStream.format("txbroker").option("root", node.grpc)
    source = source.option("startingOffsets", "earliest").option("filter", "in/#").load()
    rows = source.selectExpr("'home/kitchen/out' as topic", "payload")
    writing = rows.writeStream.format("txbroker").option("root", node.grpc)
    writing = writing.option("checkpointLocation", str(folder / "cp"))
    assert writing.trigger(availableNow=True).start().awaitTermination(90)


def publishers(node: NodeProcess) -> list[str]:
    """The sessions of sinks that the node holds."""
    words = command("sessions", node.grpc).split()
    return sorted(word for word in words if word.startswith("spark/"))
