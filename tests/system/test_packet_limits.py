"""Nodes of one tree that let their clients send packets of different sizes: nothing gets stuck."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import wire
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient

from .commands import run, wait_until
from .strangers import counter

BIG = b"x" * 300_000
SMALL = {"limits": {"packet": "2KiB"}}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[NodeProcess, NodeProcess, NodeProcess]]:
    """A root and an edge that take small packets only, and an owner (`z`) that takes large ones."""
    root = NodeProcess(tmp_path, topology("root", zone="", **SMALL))
    large = NodeProcess(tmp_path, topology("large", zone="z", parent=root.grpc))
    small = NodeProcess(tmp_path, topology("small", parent=root.grpc, **SMALL))
    with root, large, small:
        for node in (large, small):
            node.wait_event("join.granted")
        wait_until(lambda: run("tree", root.grpc).returncode == 0, what="a whole tree")
        yield root, large, small


def links(node: NodeProcess) -> int:
    """How many links it has opened."""
    return sum(event["event"] == "link.opened" for event in node.events)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_one_node_has_taken_the_others_carry(
    nodes: tuple[NodeProcess, NodeProcess, NodeProcess], qos: int
) -> None:
    """
    To an owner and to an edge whose own clients could not send it; live, retained, and read from a
    journal by a session that was away. The links stay, and others' messages come as before.
    """
    root, large, small = nodes
    with RawClient(small.mqtt) as sub, RawClient(small.mqtt) as away, RawClient(large.mqtt) as pub:
        for client, name in ((sub, "sub"), (away, "away")):
            client.connect(name, clean=False)
            client.subscribe(("z/#", qos), ("r/#", qos))
        pub.connect("pub")
        pub.publish("warm", qos=1)
        away.disconnect()
        topics = ["z/small", "z/large", "r/large", "r/small"]
        opened = links(small), links(large)
        for topic in topics:
            payload = BIG if topic.endswith("large") else b"s"
            pub.publish(topic, payload, qos=qos, retain=True)
        by_zone = {m.topic: len(m.payload) for m in sub.take(4)}
        assert {t: len(BIG) if t.endswith("large") else 1 for t in topics} == by_zone
        assert opened == (links(small), links(large)), "a link was closed"
        with RawClient(small.mqtt) as again, RawClient(small.mqtt) as late:
            again.connect("away", clean=False)
            assert by_zone == {m.topic: len(m.payload) for m in again.take(4)}
            late.connect("late")
            late.subscribe(("r/large", 0))
            assert BIG == late.expect_publish("r/large", retain=True).payload
    assert 0 == counter(small, "link.refused") == counter(root, "link.refused")


def test_the_limit_is_that_of_the_publishers_node(
    nodes: tuple[NodeProcess, NodeProcess, NodeProcess],
) -> None:
    """Its connection is closed, with the limit's name; what it said before arrives."""
    _, large, small = nodes
    with RawClient(large.mqtt) as sub, RawClient(small.mqtt) as pub:
        sub.connect("sub")
        sub.subscribe(("z/#", 1))
        pub.connect("pub")
        pub.publish("z/x", b"before", qos=1)
        pub.send(wire.publish("z/x", BIG, qos=1, packet_id=9))
        pub.expect_closed()
        small.wait_event("client.violation", rule="limits.packet", client_id="pub")
        assert [b"before"] == [m.payload for m in sub.take(1)]
        sub.ping()
    assert 1 == counter(small, "packet.over_limit")
