"""The brokers that the tests of level 5 run against: those of the folder above."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.conftest import ARRANGEMENTS, EXTERNAL, ZONES, Tree
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import Address

from .harness import Bench5


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `brokers5` runs on one node and on each kind of pair."""
    if "brokers5" in metafunc.fixturenames:
        metafunc.parametrize("brokers5", ARRANGEMENTS, indirect=True, scope="function")


@pytest.fixture
def broker5(solo: Address) -> Iterator[Bench5]:
    """One node alone, for what concerns one connection only."""
    bench = Bench5(solo, solo)
    yield bench
    bench.close()


@pytest.fixture(scope="session")
def strict5(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """A node that takes one topic alias, and few publishes at once."""
    if EXTERNAL:
        pytest.skip("a broker that runs already has its own limits")
    directory = tmp_path_factory.mktemp("strict5")
    file = topology("strict5", zone="", limits={"topic_aliases": 1, "receive_maximum": 3})
    with NodeProcess(directory, file) as node:
        yield node.mqtt


@pytest.fixture
def brokers5(request: pytest.FixtureRequest) -> Iterator[Bench5]:
    """One node alone, or publisher and subscriber on two nodes of the tree."""
    if request.param not in ZONES:
        address: Address = request.getfixturevalue(request.param)
        bench = Bench5(address, address)
    else:
        nodes: Tree = request.getfixturevalue("tree")
        bench = Bench5(nodes.a.mqtt, nodes.b.mqtt, ZONES[request.param])
    yield bench
    bench.close()
