"""
A new data folder before its first grant: what its node is told by clients is acknowledged later.

The parent may refuse the node, since another one of its name lives. What the node had acknowledged
by then would be in an outbox that nobody ever drains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import wire
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient

Make = Callable[..., NodeProcess]

QUIET = 2.0
"""Seconds in which an outbox would have taken a publish for an owner that refuses connections."""

ZONES = pytest.mark.parametrize("zone", ["a", None], ids=["owner", "pure edge"])


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as nodes:

        def node(name: str, folder: str = "first", **keys: object) -> NodeProcess:
            made = NodeProcess(tmp_path / folder, topology(name, **keys))  # type: ignore[arg-type]
            nodes.callback(made.close)
            return made

        yield node


def publish(client: RawClient) -> None:
    """One of each QoS to the node's own zone, or to what would be its zone; and to another."""
    client.send(
        wire.publish("a/1", b"1", qos=1, packet_id=1),
        wire.publish("a/2", b"2", qos=2, packet_id=2),
        wire.publish("hall/3", b"3", qos=1, packet_id=3),
    )


@ZONES
def test_second_node_of_a_name_acknowledges_nothing(make: Make, zone: str | None) -> None:
    """Its folder is new, and nobody can tell it yet that the first one lives."""
    root = make("root", zone="").start()
    first = make("a", zone=zone, parent=root.grpc).start()
    first.wait_event("join.granted")
    root.kill()
    second = make("a", "second", zone=zone, parent=root.grpc).start()

    with RawClient(second.mqtt) as client:
        client.connect("c")
        publish(client)
        assert not client.has_input(QUIET), client.receive()
        root.start()
        assert 1 == second.wait()
        client.expect_closed()
    assert second.has_event("node.refused")
    assert not second.has_event("outbox.opened")


@ZONES
def test_new_node_acknowledges_once_it_is_granted(make: Make, zone: str | None) -> None:
    """It starts before its parent; its client waits, and another one need not."""
    root = make("root", zone="").start()
    root.kill()
    node = make("a", zone=zone, parent=root.grpc).start()

    with RawClient(node.mqtt) as client:
        client.connect("c")
        publish(client)
        assert not client.has_input(QUIET), client.receive()
        root.start()
        node.wait_event("join.granted")
        for kind, packet_id in ((wire.PUBACK, 1), (wire.PUBREC, 2), (wire.PUBACK, 3)):
            client.wait_for(kind, packet_id)


@ZONES
def test_node_that_was_granted_once_acknowledges_without_its_parent(
    make: Make, zone: str | None
) -> None:
    """A site works on without its uplink, also after a restart."""
    root = make("root", zone="").start()
    node = make("a", zone=zone, parent=root.grpc).start()
    node.wait_event("join.granted")
    root.kill()
    for _ in range(2):
        with RawClient(node.mqtt) as client:
            client.connect("c")
            publish(client)
            for kind, packet_id in ((wire.PUBACK, 1), (wire.PUBREC, 2), (wire.PUBACK, 3)):
                client.wait_for(kind, packet_id)
        node.kill()
        node.start()
