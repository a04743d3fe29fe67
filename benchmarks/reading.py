"""
Readers of a node's history: `python -m benchmarks.reading`.

A publisher fills the journal of a node. A client reads it as fast as it can and throws it away,
once while nothing else happens. Then the generator's clients talk, each time without and with such
a reader beside them. The reader begins anew whenever it is through. Printed is one JSON object:
records that the reader got each second, and the generator's figures.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from benchmarks import generator
from benchmarks.catch_up import publish
from benchmarks.generator import Figures
from benchmarks.node import Node
from txbroker.pipeline.source.channel import open_channel
from txbroker.v1.journal_pb2 import PartsRequest, RecordsRequest
from txbroker.v1.journal_pb2_grpc import JournalStub

TEN = {"publishers": 10, "subscribers": 10, "seconds": 2.0}
LOADS: dict[str, dict[str, object]] = {
    "1,000 messages/s, QoS 0": {**TEN, "rate": 1000},
    "1,000 messages/s, QoS 1": {**TEN, "rate": 1000, "qos": 1},
    "20,000 messages/s, QoS 1": {**TEN, "rate": 20_000, "qos": 1},
    "as many as there can be, QoS 0": TEN,
    "as many as there can be, QoS 1": {**TEN, "qos": 1},
}
SHOWN = ("rate", "p50_us", "p99_us", "cpu_us")


def read(address: str, records: int) -> int:
    """Read the beginning of the root's journal, and throw it away; the records that came."""
    with open_channel(address) as channel:
        request = RecordsRequest(epoch=1, end=records + 1)
        replies = JournalStub(channel).Records(request)
        return sum(batch.count for reply in replies for batch in reply.batches)


@contextmanager
def reader(address: str, records: int) -> Iterator[list[float]]:
    """A process that reads all the time; the rate is there when it has ended."""
    command = [sys.executable, "-m", "benchmarks.reading", "--read", address]
    process = subprocess.Popen(
        [*command, "--records", str(records)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()  # it has begun
    found: list[float] = []
    try:
        yield found
    finally:
        process.send_signal(signal.SIGINT)
        found.append(float(process.communicate()[0]))


def read_on(address: str, records: int) -> None:
    """Read all the time until SIGINT; print the rate then."""
    count, begin = 0, time.monotonic()
    print("begun", flush=True)
    try:
        with open_channel(address) as channel:
            while True:
                for reply in JournalStub(channel).Records(RecordsRequest(epoch=1, end=records + 1)):
                    count += sum(batch.count for batch in reply.batches)
    except KeyboardInterrupt:
        print(count / (time.monotonic() - begin), flush=True)


def measure(folder: Path, records: int, size: int) -> dict[str, object]:
    """All figures."""
    node = Node(folder)
    node.start()
    try:
        address = str(node.document["grpc"])
        publish(node, records, size, 10_000)
        with grpc.insecure_channel(address) as channel:
            JournalStub(channel).Parts(PartsRequest())
        begin = time.monotonic()
        assert read(address, records) == records
        figures: dict[str, object] = {"idle": records / (time.monotonic() - begin)}
        for name, load in LOADS.items():
            given = {**load, "ports": [node.port]}
            without = generator.run(given, [node.pid])
            with reader(address, records) as rates:
                beside = generator.run(given, [node.pid])
            figures[name] = {
                "without": shown(without),
                "with": shown(beside),
                "reader": round(rates[0]),
            }
        return figures
    finally:
        node.end(signal.SIGTERM)


def shown(figures: Figures) -> Figures:
    """The printed part of the generator's figures."""
    return {name: round(figures[name], 1) for name in SHOWN if name in figures}


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reading", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=80)
    parser.add_argument("--read", metavar="ADDRESS", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read is not None:
        read_on(given.read, given.records)
        return
    generator.build()
    folder = Path(tempfile.mkdtemp(prefix="txbroker-reading-"))
    try:
        print(json.dumps(measure(folder, given.records, given.size), indent=1))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
