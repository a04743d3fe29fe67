"""
Nodes that are away for a while: what was held for them, what they know alone, how it is noticed.

Real processes; tests/system/test_absence.py has the plainer cases.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support import wire
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient
from tests.support.wire import PUBACK
from txbroker.storage import atomic_file
from txbroker.v1 import control_pb2, store_pb2
from txbroker.v1.control_pb2_grpc import ControlStub

Make = Callable[..., NodeProcess]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes nodes that are not started yet; all end with the test, and none wrote a traceback."""
    made: list[NodeProcess] = []

    def build(name: str, **keys: Any) -> NodeProcess:
        made.append(NodeProcess(tmp_path, topology(name, **keys)))
        return made[-1]

    yield build
    for node in reversed(made):
        node.close()
    for node in made:
        assert_clean(node)


def assert_clean(node: NodeProcess) -> None:
    """Every line is one JSON object, none of them an error of the program."""
    for line in node.lines:
        event = json.loads(line)
        assert "traceback" not in event and "Traceback" not in line, line


class Tree:
    """Root, `a` and `b` below it, started; clients by node."""

    def __init__(self, make: Make, **keys: Any) -> None:
        self.root = make("root", zone="", **keys)
        self.a = make("a", zone="a", parent=self.root.grpc, **keys)
        self.b = make("b", zone="b", parent=self.root.grpc, **keys)
        self.clients: list[RawClient] = []
        for node in (self.root, self.a, self.b):
            node.start(ready=False)
        for node in (self.a, self.b):
            node.wait_event("join.granted")

    def client(self, node: NodeProcess, *filters: tuple[str, int], **options: Any) -> RawClient:
        """A client with these subscriptions."""
        client = RawClient(node.mqtt)
        self.clients.append(client)
        client.connect(f"c{len(self.clients)}", **options)
        if filters:
            client.subscribe(*filters)
        return client


@pytest.fixture
def tree(make: Make) -> Iterator[Tree]:
    """The three nodes."""
    tree = Tree(make)
    yield tree
    for client in tree.clients:
        client.close()


def counters(node: NodeProcess) -> dict[str, int]:
    """The node's counters, as an operator asks for them."""
    with grpc.insecure_channel(node.grpc) as channel:
        return dict(ControlStub(channel).Status(control_pb2.StatusRequest(), timeout=30).counters)


def test_subscription_from_before_gets_what_was_held(tree: Tree) -> None:
    """Confirmed subscribers of the zone get the held publishes once, in order, when it is back."""
    sub = tree.client(tree.root, ("b/#", 2))
    pub = tree.client(tree.a)
    pub.publish("b/x", b"0", qos=1)
    assert sub.take(1)[0].payload == b"0"
    tree.b.kill()
    for number in range(1, 21):
        pub.send(wire.publish("b/x", b"%d" % number, qos=1, packet_id=number))
    pub.ping()
    tree.a.wait_event("zone.unreachable", zone="b")
    tree.b.start()
    tree.b.wait_event("join.granted")
    for number in range(1, 21):
        pub.wait_for(PUBACK, number)
    # The outbox acknowledges; who comes when the zone has all of it gets nothing of that.
    got = [message.payload for message in sub.take(20)]
    late = tree.client(tree.root, ("b/#", 1))
    pub.publish("b/x", b"end", qos=1)
    assert late.take(1)[0].payload == b"end"
    got += [m.payload for m in sub.take_until(lambda m: m.payload == b"end")]
    # The owner was new; what came before this edge was back is in the owner's recent journal.
    assert got == [b"%d" % number for number in range(1, 21)]


def test_children_restart_without_the_root(tree: Tree) -> None:
    """A node with a grant on disk serves its zone at once, and finds the others again."""
    tree.root.terminate()
    tree.a.kill()
    tree.a.start()
    client = tree.client(tree.a, ("a/#", 1))
    client.publish("a/x", b"own", qos=1)
    assert client.take(1)[0].payload == b"own"


def test_edge_restarts_without_the_root(tree: Tree, make: Make) -> None:
    """It reaches the zones that it knew, for publishes and subscriptions, its durable ones too."""
    edge = make("edge", parent=tree.root.grpc).start()
    with RawClient(edge.mqtt) as durable, RawClient(edge.mqtt) as pub:
        durable.connect("durable", clean=False)
        durable.subscribe(("b/#", 1))
        pub.connect("pub")
        pub.publish("a/x", b"0", qos=1)
        deadline = time.monotonic() + 30
        while known_zones(edge) != {"", "a", "b"}:
            assert time.monotonic() < deadline, known_zones(edge)
            time.sleep(0.05)
        tree.root.kill()
        edge.kill()
    edge.start()
    client = tree.client(edge, ("a/#", 1))
    client.publish("a/x", b"1", qos=1)
    assert client.take(1)[0].payload == b"1"
    tree.client(tree.b).publish("b/x", b"2", qos=1)
    with RawClient(edge.mqtt) as durable:
        assert durable.connect("durable", clean=False)
        assert durable.take(1)[0].payload == b"2"


def known_zones(node: NodeProcess) -> set[str]:
    """The apexes of zones whose cuts the node has on disk."""
    messages = atomic_file.from_frames(node.data / "zones") or [b""]
    stored = store_pb2.KnownZones.FromString(messages[0])
    return {entry.zone.apex for entry in stored.zones if entry.has_cuts}


def test_frozen_node_is_noticed(tree: Tree) -> None:
    """A node that is silent, its sockets open, counts as away within seconds, and is back after."""
    sub = tree.client(tree.root, ("b/#", 1))
    pub = tree.client(tree.a)
    pub.publish("b/x", b"1", qos=1)
    sub.take(1)
    tree.b.pause()
    try:
        pub.send(wire.publish("b/x", b"2", qos=1, packet_id=9))
        tree.a.wait_event("zone.unreachable", zone="b", timeout=20)
    finally:
        tree.b.resume()
    pub.wait_for(PUBACK, 9)
    assert sub.take(1)[0].payload == b"2"
