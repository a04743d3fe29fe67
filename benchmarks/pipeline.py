"""
How fast Spark reads the history of a node: `python -m benchmarks.pipeline`.

A node gets so many records, put there by the store's own classes; Spark counts them with the data
source `txbroker`. Two others run in the same run, on the same cores. One is a data source that only
hands over the same number of rows in Arrow batches: so much Spark can take at all. The other is a
collector with paho, which is how users bring MQTT to Spark without this. The must is 1,000,000
rows/s, or 0.5 of the bare source where that is less.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from benchmarks.node import Node
from benchmarks.processes import anonymous_memory
from benchmarks.startup import fill
from txbroker.mqtt.wire.message import Message

ROOT = Path(__file__).resolve().parents[1]
TOPICS = 100
BATCH = 500
AHEAD = 10_000
"""Publishes that wait in paho; of more than 65,535 it drops what has no packet id."""
SAMPLE = 0.1
"""Seconds between two looks at the memory."""


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a payload")
    parser.add_argument("--batch", type=int, default=BATCH, help="records that came at once")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--collected", type=int, default=200_000, help="messages for paho")
    parser.add_argument("--folder", default=None, help="where the data is made")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="txbroker-bench-", dir=given.folder))
    try:
        print(json.dumps(measure(folder, given)), flush=True)
    finally:
        shutil.rmtree(folder)


def measure(folder: Path, given: argparse.Namespace) -> dict[str, object]:
    """All figures; rates are records a second, memory is in MiB."""
    node = Node(folder, retention={"size": "1024GiB"}, durability="memory")
    node.start()
    node.end(signal.SIGTERM)
    payload = b"x" * given.size
    messages = [
        Message(f"home/kitchen/sensor{number}", payload, 1, False, f"sensor{number % 10}")
        for number in range(TOPICS)
    ]
    fill(folder / "data", given.records, given.batch, messages)
    node.start()
    try:
        figures = read(node, given)
        figures["paho_rate"] = round(collect(node, given.collected, payload))
    finally:
        node.end(signal.SIGTERM)
    return figures


def read(node: Node, given: argparse.Namespace) -> dict[str, object]:
    """Let Spark read the node and the bare source in turn; return the figures."""
    spark = start_spark(given.master)
    try:
        root = str(node.document["grpc"])
        history = spark.read.format("txbroker").option("root", root).load()
        partitions = history.rdd.getNumPartitions()
        sized = {"records": given.records, "size": given.size, "partitions": partitions}
        bare = spark.read.format("bare").options(**sized).load()
        processes = {"node": node.pid, "java": spark.sparkContext._gateway.proc.pid}
        rates: dict[str, list[float]] = {"txbroker": [], "bare": []}
        peaks: list[dict[str, int]] = []
        for _ in range(given.runs + 1):
            with watched(processes) as peak:
                rates["txbroker"].append(rate(history.count, given.records))
            peaks.append({name: size >> 10 for name, size in peak.items()})
            rates["bare"].append(rate(bare.count, given.records))
    finally:
        spark.stop()
    # The first one of each starts workers and compiles: it is shown, not counted.
    medians = {name: statistics.median(some[1:]) for name, some in rates.items()}
    return {
        "records": given.records,
        "partitions": partitions,
        "rate": round(medians["txbroker"]),
        "bare_rate": round(medians["bare"]),
        "ratio": round(medians["txbroker"] / medians["bare"], 3),
        "rates": {name: [round(one) for one in some] for name, some in rates.items()},
        "memory": peaks,
    }


def start_spark(master: str) -> Any:
    """A session with both sources."""
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    )
    from benchmarks.bare import Bare
    from txbroker.pipeline.spark.spark_session import session

    spark = session(master, "txbroker benchmark")
    spark.dataSource.register(Bare)
    return spark


def rate(count: Callable[[], int], records: int) -> float:
    """Records a second; all of them have to be counted."""
    begin = time.monotonic()
    found = count()
    seconds = time.monotonic() - begin
    assert found == records, f"{found} of {records} records"
    return records / seconds


@contextmanager
def watched(processes: dict[str, int]) -> Iterator[dict[str, int]]:
    """The most memory (KiB) that each process has during the block."""
    peak = dict.fromkeys(processes, 0)
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(SAMPLE):
            for name, pid in processes.items():
                peak[name] = max(peak[name], anonymous_memory(pid))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield peak
    finally:
        is_over.set()
        watcher.join()


def collect(node: Node, messages: int, payload: bytes) -> float:
    """Messages a second that a collector takes with paho, published beside it by another."""
    taken = threading.Event()
    rows: list[tuple[str, bytes, float]] = []

    def on_message(_: object, __: object, message: mqtt.MQTTMessage) -> None:
        rows.append((message.topic, message.payload, time.time()))
        if len(rows) == messages:
            taken.set()

    collector = client("collector", node)
    collector.on_message = on_message
    is_subscribed = threading.Event()
    collector.on_subscribe = lambda *_: is_subscribed.set()
    collector.subscribe("collect/#", 1)
    assert is_subscribed.wait(10), "no SUBACK"
    publisher = client("publisher", node)
    begin = time.monotonic()
    sent: list[mqtt.MQTTMessageInfo] = []
    for number in range(messages):
        sent.append(publisher.publish(f"collect/{number % TOPICS}", payload, 1))
        if number >= AHEAD:
            sent[number - AHEAD].wait_for_publish(60)
    assert taken.wait(600), f"{len(rows)} of {messages} messages"
    seconds = time.monotonic() - begin
    sent[-1].wait_for_publish(10)
    for one in (publisher, collector):
        one.disconnect()
        one.loop_stop()
    return messages / seconds


def client(name: str, node: Node) -> mqtt.Client:
    """A client that works in a thread of its own."""
    made = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=name)
    made.max_inflight_messages_set(1000)
    made.connect("127.0.0.1", node.port)
    made.loop_start()
    return made


if __name__ == "__main__":
    main()
