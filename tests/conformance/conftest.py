"""
The brokers that the conformance tests run against.

Without further ado: one node alone, one that keeps no QoS 0 (whose publishes take a shorter way
then), and a tree of three (root; `a` and `b` below it, which keep no QoS 0) in which the
publisher is connected to a, the subscriber to b, and the topics belong to a, to b or to the root.
TXBROKER_CONFORMANCE=HOST:PORT points the suite at a broker that runs already (any MQTT 3.1.1
broker): then the tree and the nodes with special limits are left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.nodes import NodeProcess, parse_address, topology
from tests.support.rawclient import Address

from .harness import Bench

EXTERNAL = os.environ.get("TXBROKER_CONFORMANCE")

# Who owns the topics, when the publisher is on node a and the subscriber on node b.
ZONES = {"first": "a", "second": "b", "third": ""}
ARRANGEMENTS = ["solo"] if EXTERNAL else ["solo", "qos12", *ZONES]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """
    Three nodes: the root zone's, and those of the zones `a` and `b` below it.
    """

    root: NodeProcess
    a: NodeProcess
    b: NodeProcess


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """
    A test that takes `brokers` runs on one node and on each kind of pair.
    """
    if "brokers" in metafunc.fixturenames:
        metafunc.parametrize("brokers", ARRANGEMENTS, indirect=True, scope="function")


@pytest.fixture(scope="session")
def solo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """
    The MQTT address of one node that owns everything, or of the broker that runs already.
    """
    if EXTERNAL:
        yield parse_address(EXTERNAL)
        return
    directory = tmp_path_factory.mktemp("solo")
    with NodeProcess(directory, topology("solo", zone="")) as node:
        yield node.mqtt


@pytest.fixture(scope="session")
def qos12(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """
    The MQTT address of a node that owns everything and keeps no QoS 0.
    """
    directory = tmp_path_factory.mktemp("qos12")
    with NodeProcess(directory, topology("qos12", zone="", journal="qos12")) as node:
        yield node.mqtt


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    """
    The tree of three, both children granted their zones.
    """
    if EXTERNAL:
        pytest.skip("a broker that runs already is one node")
    directory = tmp_path_factory.mktemp("tree")
    root = NodeProcess(directory, topology("root", zone=""))
    keys = {"parent": root.grpc, "journal": "qos12"}
    a = NodeProcess(directory, topology("a", zone="a", **keys))
    b = NodeProcess(directory, topology("b", zone="b", **keys))
    try:
        for node in (root, a, b):
            node.start(ready=False)
        for node in (root, a, b):
            node.wait_event("node.ready", 30.0)
        for node in (a, b):
            node.wait_event("join.granted", 30.0)
        yield Tree(root=root, a=a, b=b)
    finally:
        for node in (b, a, root):
            node.close()


@pytest.fixture(scope="session")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """
    A node with small limits: packets up to 64 KiB, 400 ms from connection to CONNECT, 10,000
    messages for a session.
    """
    if EXTERNAL:
        pytest.skip("a broker that runs already has its own limits")
    limits = {"packet": "64KiB", "connect_timeout": "400ms"}
    held = {"messages": 10_000}
    directory = tmp_path_factory.mktemp("tight")
    file = topology("tight", zone="", limits=limits, session_limits=held)
    with NodeProcess(directory, file) as node:
        yield node.mqtt


@pytest.fixture
def broker(solo: Address) -> Iterator[Bench]:
    """
    One node alone, for what concerns one connection only.
    """
    bench = Bench(solo, solo)
    yield bench
    bench.close()


@pytest.fixture
def brokers(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """
    One node alone, or publisher and subscriber on two nodes of the tree: for every delivery.
    """
    if request.param not in ZONES:
        address: Address = request.getfixturevalue(request.param)
        bench = Bench(address, address)
    else:
        nodes: Tree = request.getfixturevalue("tree")
        bench = Bench(nodes.a.mqtt, nodes.b.mqtt, ZONES[request.param])
    yield bench
    bench.close()
