"""Nodes and folders of earlier versions: a tree of both works, folders are served for good."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient
from tests.support.rawclient5 import RawClient5
from tests.support.wire5 import USER_PROPERTY
from tests.system.commands import as_json, failure, output

from .__main__ import run
from .older import VERSIONS, environment


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", [6, 7])
def test_nothing_is_lost_or_doubled(tmp_path: Path, seed: int) -> None:
    """
    One play of a tree that begins with earlier versions, one of these beside this one. `python -m
    tests.upgrade` plays others.
    """
    play = run(seed, tmp_path, 8)
    assert play.number > 0


@pytest.fixture(params=VERSIONS)
def nodes(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[dict[str, NodeProcess]]:
    """A root of an earlier version; two zones and a node without one, of this version, below."""
    root = NodeProcess(tmp_path, topology("root", zone=""), env=environment(request.param))
    a = NodeProcess(tmp_path, topology("a", zone="a", parent=root.grpc))
    ab = NodeProcess(tmp_path, topology("ab", zone="a/b", parent=a.grpc))
    edge = NodeProcess(tmp_path, topology("edge", parent=root.grpc))
    with ExitStack() as stack:
        for node in (root, a, ab, edge):
            stack.callback(node.close)
            node.start(timeout=60.0)
        for node in (a, ab, edge):
            node.wait_event("join.granted", 60.0)
        yield {node.name: node for node in (root, a, ab, edge)}


def test_retiring_in_a_tree_with_an_earlier_root(nodes: dict[str, NodeProcess]) -> None:
    """
    It confirms no low-water mark, and the sessions of a zone's node leave all the same. It knows no
    retirement of a node without a zone, which is refused before anything leaves.
    """
    root, edge = nodes["root"], nodes["edge"]
    for name in ("ab", "edge"):
        with RawClient(nodes[name].mqtt) as client:
            client.connect(f"of {name}", clean=False)
            client.subscribe(("#", 1))
            client.disconnect()
    with RawClient(root.mqtt) as client:
        client.connect("p")
        client.publish("t", b"waits", qos=1)
    output("retire", nodes["ab"].grpc)
    assert 0 == nodes["ab"].wait(60.0)
    assert "runs an earlier txbroker" in failure("retire", edge.grpc)
    assert ["of edge"] == [row["client_id"] for row in as_json("sessions", edge.grpc)]
    for name in ("of ab", "of edge"):
        with RawClient(root.mqtt) as client:
            assert client.connect(name, clean=False)
            client.expect_publish("t", b"waits")


def test_shared_groups_beside_an_earlier_root(nodes: dict[str, NodeProcess]) -> None:
    """
    Groups of this version's zones work; one that the root would coordinate waits, as SUBACK and a
    line say, and begins when the root has this version.
    """
    root, edge = nodes["root"], nodes["edge"]
    with RawClient5(edge.mqtt, timeout=60.0) as member:
        member.connect("member", expiry=600)
        member.subscribe(("$share/g/a/#", 1))
        answer = member.ask_subscribe(("$share/g/+/x", 1))
        assert (USER_PROPERTY, ("pending-zone", "")) in answer.properties, answer
        assert "" == edge.wait_event("group.pending", filter="$share/g/+/x")["zone"]
        with RawClient(root.mqtt) as pub:
            pub.connect("pub")
            pub.publish("a/y", b"1", qos=1)
            pub.publish("c/x", b"for nobody", qos=1)
        assert "a/y" == member.take(1)[0].topic
        root.terminate()
        root.env = {}
        root.start(timeout=60.0)
        with RawClient(root.mqtt) as pub:
            pub.connect("pub")
            while not member.has_input(0.5):
                pub.publish("c/x", b"2", qos=1)
        assert "c/x" == member.take(1)[0].topic


@pytest.mark.parametrize("version", VERSIONS)
def test_there_is_no_way_back(tmp_path: Path, version: str) -> None:
    """The earlier version refuses a folder that this one has served, in one line."""
    node = NodeProcess(tmp_path, topology("solo", zone=""))
    with node:
        node.kill()
    node.env = environment(version)
    node.start(ready=False)
    assert 1 == node.wait(60.0), node.tail()
    (line,) = [event["reason"] for event in node.events if event["event"] == "node.refused"]
    assert "state.json" in line and "format" in line
