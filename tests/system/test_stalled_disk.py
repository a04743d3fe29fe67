"""
A disk that stalls for seconds: publishers wait for it, at the node and over a link; memory does not
grow with what they have to say. Clients of whom nothing is to be kept come as ever.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.faults import disks
from tests.faults.disks import Disk
from tests.support import wire
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient
from tests.support.wire import PUBACK

from .test_grpc_limits import resident

MIB = 1 << 20
STALL = 5.0
PAYLOAD = bytes(65_536)
CLIENTS = 8
EACH = 1_000

pytestmark = pytest.mark.skipif(disks.compiler() is None, reason="needs a C compiler")


class Flood(threading.Thread):
    """A client that publishes as fast as it is read, and hears of each publish in the end."""

    def __init__(self, node: NodeProcess, number: int) -> None:
        super().__init__()
        self.client = RawClient(node.mqtt, timeout=60.0)
        self.client.connect(f"flood {number}")
        self.heard = 0

    def run(self) -> None:
        sender = threading.Thread(target=self._send)
        sender.start()
        for packet_id in range(1, EACH + 1):
            self.client.expect(PUBACK, packet_id)
            self.heard += 1
        sender.join()
        self.client.close()

    def _send(self) -> None:
        for packet_id in range(1, EACH + 1):
            self.client.send(wire.publish("a/t", PAYLOAD, qos=1, packet_id=packet_id))


@pytest.mark.parametrize("at", ["owner", "edge"])
def test_memory_is_bounded_while_the_disk_stalls(tmp_path: Path, at: str) -> None:
    """500 MiB are published; the owner holds a small part of them."""
    disk = Disk(tmp_path / "disk", tmp_path / "control", disks.build(tmp_path), mount=False)
    root = NodeProcess(tmp_path, topology("root", zone=""))
    a = NodeProcess(
        tmp_path,
        topology("a", zone="a", parent=root.grpc, data=str(disk.data), retention={"size": "8MiB"}),
        env=disk.environment(),
    )
    with root, a:
        a.wait_event("join.granted")
        nodes = (root, a)
        floods = [Flood(a if at == "owner" else root, number) for number in range(CLIENTS)]
        floods[0].client.publish("a/t", b"first", qos=1)
        before = [resident(node) for node in nodes]
        disk.slow(STALL)
        for flood in floods:
            flood.start()
        a.wait_event("disk.behind", timeout=30.0)
        disk.slow(0.0)
        for flood in floods:
            flood.join(90.0)
        assert [EACH] * CLIENTS == [flood.heard for flood in floods]
        grown = [(resident(node) - was) // MIB for node, was in zip(nodes, before, strict=True)]
        assert max(grown) < 250, f"{grown} MiB"


def test_newcomers_do_not_wait_for_what_others_have_to_keep(tmp_path: Path) -> None:
    """A client with a durable session changes it all the time; the directory says what it knew."""
    disk = Disk(tmp_path / "disk", tmp_path / "control", disks.build(tmp_path), mount=False)
    root = NodeProcess(
        tmp_path, topology("root", zone="", data=str(disk.data)), env=disk.environment()
    )
    a = NodeProcess(tmp_path, topology("a", zone="a", parent=root.grpc))
    with root, a:
        a.wait_event("join.granted")
        with RawClient(a.mqtt) as other:
            other.connect("other", clean=False)  # both nodes have agreed: they know each other
        with RawClient(root.mqtt, timeout=60.0) as busy, RawClient(root.mqtt) as newcomer:
            busy.connect("busy", clean=False)
            disk.slow(2 * STALL)
            busy.send(wire.subscribe(1, ("b", 1)))
            busy.send(wire.packet(wire.PINGREQ, 0))
            busy.expect(wire.PINGRESP)
            newcomer.connect("newcomer")
            assert not busy.has_input(0.0)
            disk.slow(0.0)
            busy.expect(wire.SUBACK, 1)
