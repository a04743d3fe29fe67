"""
How long a node takes from its start to `node.ready` after kill -9: `python -m benchmarks.startup`.

For each size a node gets durable sessions that are away and retained messages. The store's own
classes put most of the records behind that, since publishing them takes long. The last ones are
published to a node, which is then killed, so that a start has something to recover. Measured is the
whole process, from its launch by twistd, several times, killed again each time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import generator
from benchmarks.client import connect, subscribe
from benchmarks.node import Node
from txbroker.data.data_directory import DataDirectory, StoreSettings, wall
from txbroker.journal.store.record_format import encode_records
from txbroker.model.log_position import JournalId
from txbroker.mqtt.wire.message import Message
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.storage.commit_ports import CommitEvents
from txbroker.v1 import state_pb2

SIZES = (1_000_000, 50_000_000)
PAYLOAD = b"21.5 degrees C.."
SEGMENT_BYTES = 64 * 1024 * 1024
ZONE = JournalId("", 1)


class NoTimers:
    """Nothing rings while the journal is made."""

    def now(self) -> float:
        """Never later."""
        return 0.0

    def call_later(self, delay: float, action: Callable[[], None]) -> NoTimers:
        """Not called."""
        return self

    def cancel(self) -> None:
        """Nothing is to be taken back."""


def populate(node: Node, sessions: int, retained: int) -> None:
    """Durable sessions that want everything and are away, and retained messages."""
    for number in range(sessions):
        client = connect(node.port, f"away-{number}".encode(), clean=False)
        subscribe(client, b"#", 1)
        client.sendall(b"\xe0\x00")
        client.close()
    client = connect(node.port, b"publisher")
    for number in range(retained):
        topic = b"retained/%06d" % number
        body = len(topic).to_bytes(2) + topic + (number % 65_535 + 1).to_bytes(2) + PAYLOAD
        client.sendall(bytes([0x33, len(body)]) + body)
    wanted = 4 * retained
    while wanted:
        wanted -= len(client.recv(wanted))
    client.close()


def fill(data: Path, records: int, batch: int, messages: Sequence[Message] = ()) -> None:
    """
    Append records to the journal of the root zone, as a node that is up to date with them.

    A batch repeats these messages, or one of a sensor.
    """
    asyncio.set_event_loop(asyncio.new_event_loop())
    data_directory = DataDirectory(
        data,
        StoreSettings(
            durability="memory",
            sync_interval=0.1,
            segment_bytes=SEGMENT_BYTES,
        ),
        flush_queue=FlushQueue(lambda _: None),
        timers=NoTimers(),
        events=CommitEvents(
            on_full=lambda _, reason: sys.exit(reason),
            on_failed=lambda error: sys.exit(str(error)),
        ),
    )
    log = data_directory.journals.parts[ZONE].log
    some = messages or [Message("home/kitchen/temperature", PAYLOAD, 1, False, "sensor")]
    whole = [some[place % len(some)] for place in range(batch)]
    body = encode_records(whole, {("bench", 1, "", 0): 0}, "bench")
    last = 0
    for number in range(0, records, batch):
        last = log.append(body, batch, time=wall()) + batch - 1
        if number // batch % 1000 == 0:
            log.write()
            log.sync()
    point = state_pb2.Checkpoint(epoch=ZONE.epoch, offset=last).SerializeToString()
    data_directory.tables.table("zone").put(b"checkpoint", point)
    data_directory.tables.table("positions").put(b"", point)
    data_directory.close()


def measure(records: int, given: argparse.Namespace) -> dict[str, object]:
    """Start a node with so many records several times."""
    folder = Path(tempfile.mkdtemp(prefix="txbroker-bench-", dir=given.folder))
    try:
        node = Node(folder, retention={"size": "1024GiB"})
        node.start()
        populate(node, given.sessions, given.retained)
        node.end(signal.SIGTERM)
        fill(folder / "data", records, given.batch)
        node.start()
        generator.run({"ports": node.port, "qos": 1, "window": 1000, "seconds": 2})
        node.end(signal.SIGKILL)
        seconds = []
        for _ in range(given.runs):
            seconds.append(node.start())
            node.end(signal.SIGKILL)
        files = list((folder / "data").rglob("*"))
        return {
            "records": records,
            "bytes": sum(file.stat().st_size for file in files if file.is_file()),
            "seconds": [round(one, 3) for one in seconds],
            "median": round(statistics.median(seconds), 3),
        }
    finally:
        shutil.rmtree(folder)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--batch", type=int, default=20, help="records appended at once")
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--retained", type=int, default=5_000)
    parser.add_argument("--folder", default=None, help="where the data is made")
    parser.add_argument("sizes", type=int, nargs="*", default=SIZES)
    given = parser.parse_args()
    generator.build()
    for records in given.sizes:
        print(json.dumps(measure(records, given)), flush=True)


if __name__ == "__main__":
    main()
