"""
Retention beside a slow disk: what a batch alone says of retained values stays until a checkpoint.

Traffic never pauses, so the zone never settles: something always waits for the next sync.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import disks
from tests.support import wire
from tests.support.nodes import NodeProcess, free_port, topology
from tests.support.rawclient import RawClient
from tests.support.wire import PUBACK

pytestmark = pytest.mark.skipif(disks.compiler() is None, reason="slow disks need a C compiler")

VALUES = {f"kept/{number}": f"value {number}".encode() for number in range(20)}
DELAY = 0.02
CLIENTS = 4
WINDOW = 10


@pytest.fixture
def node(small_disk: Path) -> Iterator[NodeProcess]:
    """A node whose syncs take 20 ms longer, on a disk with segments of 4 MiB."""
    disk = disks.Disk(
        small_disk / "node",
        small_disk / "control",
        disks.build(small_disk),
        mount=False,
        delay=DELAY,
    )
    document = topology(
        "solo",
        zone="",
        mqtt=[f"tcp:{free_port()}:interface=127.0.0.1"],
        data=str(disk.data),
        retention={"size": "1MiB"},
    )
    with NodeProcess(small_disk, document, env=disk.environment()) as node:
        yield node


class Traffic(threading.Thread):
    """A client with `WINDOW` open QoS 1 publishes, all the time, until its node ends."""

    def __init__(self, node: NodeProcess, name: str, size: int) -> None:
        super().__init__(daemon=True)
        self._client = RawClient(node.mqtt)
        self._client.connect(name)
        self._payload = bytes(size)
        self.start()

    def run(self) -> None:
        for packet_id in range(1, WINDOW + 1):
            self._publish(packet_id)
        try:
            while True:
                self._publish(self._client.expect(PUBACK).packet_id)
        except (AssertionError, OSError):
            pass  # the node has ended, which is how this ends

    def _publish(self, packet_id: int) -> None:
        self._client.send(wire.publish("noise", self._payload, qos=1, packet_id=packet_id))

    def finish(self) -> None:
        """The node has ended."""
        self.join(10.0)
        self._client.close()


@pytest.mark.parametrize("size", [1_000, 65_536])
@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_retained_values_outlive_their_segment(node: NodeProcess, end: str, size: int) -> None:
    """The segment with the values is trimmed under load; a start has each of them."""
    with RawClient(node.mqtt) as client:
        client.connect("keeper")
        for topic, value in VALUES.items():
            client.publish(topic, value, qos=1, retain=True)
    traffic = [Traffic(node, f"traffic-{number}", size) for number in range(CLIENTS)]
    node.wait_event("journal.trimmed", 60.0)
    getattr(node, end)()
    for each in traffic:
        each.finish()
    node.start()

    with RawClient(node.mqtt) as client:
        client.connect("asker")
        client.subscribe(("kept/#", 1))
        found = {message.topic: message.payload for message in client.take(len(VALUES))}
    assert VALUES == found
