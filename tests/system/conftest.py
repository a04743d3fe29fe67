"""A tree of five nodes that the tests of a file share; who stops one starts it again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.nodes import NodeProcess, free_port, topology
from txbroker.v1 import control_pb2_grpc

from .commands import run, wait_until
from .disks import mounted
from .fake_broker import FakeBroker
from .strangers import assert_json, is_fine


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """root (the root zone), a (zone `a`), below it ab (`a/b`), b (`b`), and a pure edge."""

    root: NodeProcess
    a: NodeProcess
    ab: NodeProcess
    b: NodeProcess
    edge: NodeProcess

    @property
    def nodes(self) -> tuple[NodeProcess, ...]:
        return (self.root, self.a, self.ab, self.b, self.edge)

    def wait_whole(self) -> None:
        """Until every zone is served and nothing is pending."""
        wait_until(lambda: run("tree", self.root.grpc).returncode == 0, what="a whole tree")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Five processes, joined."""
    directory = tmp_path_factory.mktemp("house")
    root = NodeProcess(directory, topology("root", zone=""))
    a = NodeProcess(directory, topology("a", zone="a", parent=root.grpc))
    ab = NodeProcess(directory, topology("ab", zone="a/b", parent=a.grpc))
    b = NodeProcess(directory, topology("b", zone="b", parent=root.grpc))
    edge = NodeProcess(directory, topology("edge", parent=root.grpc))
    house = House(root=root, a=a, ab=ab, b=b, edge=edge)
    try:
        for node in house.nodes:
            node.start(ready=False)
        for node in house.nodes[1:]:
            node.wait_event("join.granted", 30.0)
        house.wait_whole()
        yield house
    finally:
        for node in reversed(house.nodes):
            node.close()


StartFake = Callable[..., str]


@pytest.fixture
def fake_node() -> Iterator[StartFake]:
    """
    Start a control service that says what a test wants: one function for each call that it answers,
    request to reply. Gives its address.
    """
    servers: list[grpc.Server] = []

    def start(**calls: Callable[[Any], Any]) -> str:
        server = grpc.server(futures.ThreadPoolExecutor(4))
        servicer = control_pb2_grpc.ControlServicer()
        for name, reply in calls.items():
            setattr(servicer, name, lambda request, context, reply=reply: reply(request))
        control_pb2_grpc.add_ControlServicer_to_server(servicer, server)
        address = f"127.0.0.1:{free_port()}"
        server.add_insecure_port(address)
        server.start()
        servers.append(server)
        return address

    yield start
    ended: list[threading.Event] = [server.stop(None) for server in servers]
    for event in ended:
        event.wait(5.0)


@pytest.fixture
def fake_broker() -> Iterator[type[FakeBroker]]:
    """Makes fake brokers that are closed after the test."""
    made: list[FakeBroker] = []

    class Made(FakeBroker):
        def __init__(self, *answers: bytes, stay: bool = False) -> None:
            super().__init__(*answers, stay=stay)
            made.append(self)

    yield Made
    for broker in made:
        broker.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NodeProcess, NodeProcess]]:
    """
    A root and a child `a` that everything here must leave in order; at the end all that they said
    is JSON, whole, and without a traceback.
    """
    folder = tmp_path_factory.mktemp("pair")
    root = NodeProcess(folder, topology("root", zone=""))
    limits = {"connect_timeout": "1s", "packet": "1MiB"}
    a = NodeProcess(folder, topology("a", zone="a", parent=root.grpc, limits=limits))
    with root, a:
        a.wait_event("join.granted")
        yield root, a
        is_fine(root, a)
    for node in (root, a):
        assert_json(node)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB."""
    with mounted(tmp_path / "disk") as folder:
        yield folder
