"""The `$SYS` tree on real nodes: local to each node, another node's below `$SYS/federation`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import wire
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient
from txbroker import __version__


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NodeProcess, NodeProcess]]:
    """A root, and one child that has joined."""
    folder: Path = tmp_path_factory.mktemp("sys")
    root = NodeProcess(folder, topology("root", zone=""))
    child = NodeProcess(folder, topology("a", zone="a", parent=root.grpc))
    with root, child:
        child.wait_event("join.granted")
        yield root, child


def values(address: tuple[str, int], topic_filter: str, count: int) -> dict[str, str]:
    """The first `count` values that a subscriber gets."""
    client = RawClient(address)
    try:
        client.connect("sys-reader")
        client.subscribe((topic_filter, 0))
        found: dict[str, str] = {}
        while len(found) < count:
            packet = client.expect_publish()
            found[packet.topic] = packet.payload.decode()
        return found
    finally:
        client.close()


def test_each_node_has_its_own(nodes: tuple[NodeProcess, NodeProcess]) -> None:
    """The same topic says something else at each node."""
    apexes = [values(node.mqtt, "$SYS/txbroker/zone/apex", 1) for node in nodes]

    topic = "$SYS/txbroker/zone/apex"
    assert apexes == [{topic: "(root)"}, {topic: "a"}]


def test_names_are_mosquittos(nodes: tuple[NodeProcess, NodeProcess]) -> None:
    """Tools that read Mosquitto's values find them."""
    found = values(nodes[1].mqtt, "$SYS/broker/version", 1)

    assert found == {"$SYS/broker/version": f"txbroker version {__version__}"}


def test_another_nodes_values(nodes: tuple[NodeProcess, NodeProcess]) -> None:
    """They are fetched from that node, in both directions of the tree."""
    root, child = nodes
    topic = "$SYS/federation/{}/broker/version"

    assert list(values(root.mqtt, topic.format("a"), 1)) == [topic.format("a")]
    assert list(values(child.mqtt, topic.format("root"), 1)) == [topic.format("root")]


def test_a_client_cannot_write_them(nodes: tuple[NodeProcess, NodeProcess]) -> None:
    """A publish is acknowledged and goes nowhere."""
    client = RawClient(nodes[0].mqtt)
    try:
        client.connect("sys-writer")
        client.subscribe(("$SYS/broker/mine", 1))
        client.send(wire.publish("$SYS/broker/mine", b"x", qos=1, packet_id=7))
        client.expect(wire.PUBACK, 7)
        client.ping()
    finally:
        client.close()
