"""
Messages that expire while a node stands still (MQTT 5.0, section 3.3.2.3.3).

A message may come a second later than its interval for each node that held it, and never too early.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.harness import unique
from tests.support import wire5
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient5 import RawClient5
from tests.support.wire5 import MESSAGE_EXPIRY, Publish, first

Tree = dict[str, NodeProcess]

SHORT, LONG = 1, 100
"""Intervals in seconds: one passes while a node stands still, the other does not."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    """The owner of all topics, and two edges."""
    folder: Path = tmp_path_factory.mktemp("frozen")
    with NodeProcess(folder, topology("owner", zone="")) as owner:
        keys = {"parent": owner.grpc}
        with (
            NodeProcess(folder, topology("near", **keys)) as near,
            NodeProcess(folder, topology("far", **keys)) as far,
        ):
            for edge in (near, far):
                edge.wait_event("join.granted", 30.0)
            yield {"owner": owner, "near": near, "far": far}


def interval(message: Publish) -> int:
    """What is left of a message's interval."""
    left = first(message.properties, MESSAGE_EXPIRY)
    assert isinstance(left, int)
    return left


def stand_still(node: NodeProcess, seconds: float) -> None:
    """The node, which is frozen, goes on after these seconds."""
    time.sleep(seconds)  # the time itself is what is tested
    node.resume()


@pytest.mark.parametrize("seconds", [4.0, 7.0])
@pytest.mark.parametrize("frozen", ["owner", "far"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_node_stands_still(tree: Tree, frozen: str, seconds: float, qos: int) -> None:
    """What passed meanwhile does not come; the rest comes with what is left."""
    topic = f"t/{unique()}"
    node = tree[frozen]
    with RawClient5(tree["far"].mqtt) as sub, RawClient5(tree["near"].mqtt) as pub:
        sub.connect(unique(), expiry=60)
        sub.subscribe((f"{topic}/#", qos))
        pub.connect(unique(), expiry=60)
        pub.publish(f"{topic}/before", b"0", qos=1)
        sub.acknowledge(sub.expect_publish(f"{topic}/before"))
        node.pause()
        try:
            began = time.monotonic()
            for number, (name, expiry) in enumerate((("short", SHORT), ("long", LONG)), 100):
                pub.send(
                    wire5.publish(
                        f"{topic}/{name}",
                        b"1",
                        qos=qos,
                        packet_id=number,
                        properties=[(MESSAGE_EXPIRY, expiry)],
                    )
                )
            time.sleep(0.3)
        finally:
            stand_still(node, seconds)
        away = time.monotonic() - began
        marker = f"{topic}/marker"
        pub.publish(marker, b"2", qos=1)
        found = {}
        while (message := sub.expect_publish()).topic != marker:
            found[message.topic.rpartition("/")[2]] = message
            sub.acknowledge(message)
        assert "short" not in found, found
        if qos or "long" in found:
            assert LONG - away - 3 <= interval(found["long"]) <= LONG - away + 3
