"""
`txbroker reclaim`: an operator takes a dead node's zone back at its parent.

Without it nobody gets a zone whose node has lost what it had: not another node, not the same node
with an empty `data`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient
from txbroker.link.frames import LINK_VERSION
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2_grpc import ControlStub

from .commands import as_json, failure, output, wait_until, wrong_usage


class Line:
    """root, below it a (zone `a`), below that ab (`a/b`), and a pure edge at the root."""

    def __init__(self, directory: Path) -> None:
        self.root = NodeProcess(directory, topology("root", zone=""))
        self.a = NodeProcess(directory, topology("a", zone="a", parent=self.root.grpc))
        self.ab = NodeProcess(directory, topology("ab", zone="a/b", parent=self.a.grpc))
        self.edge = NodeProcess(directory, topology("edge", parent=self.root.grpc))

    def start(self, *nodes: NodeProcess) -> None:
        """Start these, and wait until they have joined."""
        for node in nodes:
            node.start(ready=False)
        for node in nodes:
            node.wait_event("node.ready" if node is self.root else "join.granted", 30.0)

    def rows(self, status: int = 0) -> dict[str, dict[str, Any]]:
        """The tree by zone."""
        return {r["zone"]: r for r in as_json("tree", self.root.grpc, status=status)}

    def owners(self) -> dict[str, str]:
        """Zone to node, of a tree that is whole."""
        return {zone: row["node"] for zone, row in self.rows().items()}

    def close(self) -> None:
        """End all."""
        for node in (self.edge, self.ab, self.a, self.root):
            node.close()
        for node in (self.edge, self.ab, self.a, self.root):
            for text in node.lines:
                assert "Traceback" not in text, text


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    line = Line(tmp_path)
    yield line
    line.close()


def talk(node: NodeProcess, at: NodeProcess, topic: str) -> None:
    """A message from a client of one node to a client of another."""
    with RawClient(at.mqtt) as sub, RawClient(node.mqtt) as pub:
        sub.connect(f"sub-{topic}")
        sub.subscribe((topic, 1))
        pub.connect(f"pub-{topic}")
        pub.publish(topic, b"hello", qos=1)
        assert sub.take(1)[0].payload == b"hello"


def ask(node: NodeProcess, call: str, request: Any) -> Any:
    """One call to a node's control plane."""
    with grpc.insecure_channel(node.grpc) as channel:
        return getattr(ControlStub(channel), call)(request, timeout=30)


def test_empty_data_is_refused_until_the_zone_is_reclaimed(line: Line) -> None:
    """
    An empty folder is a mistake (a wrong path, a lost disk): the node ends with one line, its zone
    is served by nobody, until an operator says that what was there is given up.
    """
    line.start(line.root, line.a)
    line.a.terminate()
    shutil.rmtree(line.a.data)

    for _ in range(2):
        line.a.start(ready=False)
        assert 1 == line.a.wait()
        refused = [e for e in line.a.events if e["event"] == "node.refused"][-1]["reason"]
        assert "comes with an empty `data`" in refused
        assert refused.endswith(f"txbroker reclaim {line.root.grpc} a")
        assert not line.rows(status=1)["a"]["alive"]

    said = output("reclaim", line.root.grpc, "a")

    assert "zone a is served by node root now\n" == said
    talk(line.root, line.root, "a/x")
    line.start(line.a)
    assert {"": "root", "a": "a"} == line.owners()
    assert line.rows()["a"]["epoch"] == 3
    talk(line.a, line.root, "a/x")


def test_zones_below_stand_and_have_a_new_parent(line: Line) -> None:
    """The node between is dead; the one below serves on, and joins the node above."""
    line.start(line.root, line.edge, line.a, line.ab)
    talk(line.ab, line.edge, "a/b/x")
    line.a.kill()

    output("reclaim", line.root.grpc, "a")

    wait_until(lambda: line.root.has_event("child.joined", zone="a/b"), what="ab joins the root")
    assert {"": "root", "a/b": "ab"} == line.owners()
    assert "root" == line.rows()["a/b"]["parent"]
    talk(line.edge, line.ab, "a/b/x")
    talk(line.ab, line.edge, "a/x")
    line.ab.terminate()
    line.start(line.ab)  # also after a restart
    assert {"": "root", "a/b": "ab"} == line.owners()


@pytest.mark.parametrize("at", ["root", "edge", "a"])
@pytest.mark.parametrize("is_away", [True, False])
def test_sessions_go_on_after_a_reclaim_at_a_parent_that_is_not_the_root(
    line: Line, at: str, is_away: bool
) -> None:
    """
    Wherever they are: with what the parent took before, and with all since. What the dead node had
    for them is with it; no further ancestor's "never heard of it" makes them wait for ever.
    """
    line.start(line.root, line.a, line.ab, line.edge)
    node: NodeProcess = getattr(line, at)
    sub = RawClient(node.mqtt, timeout=30.0)
    sub.connect("sub", clean=False)
    sub.subscribe(("a/#", 1))
    with RawClient(line.a.mqtt) as pub:
        pub.connect("pub")
        publish(pub, ("a/y", b"0"), ("a/b/x", b"0"))
        assert {("a/y", b"0"), ("a/b/x", b"0")} == taken(sub, 2)
        if is_away:
            sub.drop()
            publish(pub, ("a/b/x", b"with the dead node"))
        publish(pub, ("a/y", b"1"))
        line.ab.kill()
        line.a.wait_event("child.disconnected", peer="ab")
        output("reclaim", line.a.grpc, "a/b")
        publish(pub, ("a/b/x", b"2"), ("a/y", b"3"))
        if is_away:
            sub = RawClient(node.mqtt, timeout=30.0)
            assert sub.connect("sub", clean=False)
        assert {("a/y", b"1"), ("a/b/x", b"2"), ("a/y", b"3")} == taken(sub, 3)
        publish(pub, ("a/b/x", b"4"), ("a/y", b"5"))
        assert {("a/b/x", b"4"), ("a/y", b"5")} == taken(sub, 2)
    sub.close()


def publish(client: RawClient, *said: tuple[str, bytes]) -> None:
    for topic, payload in said:
        client.publish(topic, payload, qos=1)


def taken(client: RawClient, count: int) -> set[tuple[str, bytes]]:
    return {(message.topic, message.payload) for message in client.take(count)}


def test_node_that_comes_back_is_fenced_and_its_branch_kept(line: Line) -> None:
    """What it had is another branch of the zone: neither served nor thrown away."""
    line.start(line.root, line.edge, line.a, line.ab)
    line.a.kill()
    output("reclaim", line.root.grpc, "a")
    wait_until(lambda: line.root.has_event("child.joined", zone="a/b"), what="ab joins the root")

    line.a.start()
    fenced = line.a.wait_event("zone.divergent", zone="a", epoch=1)
    assert f"txbroker divergent list {line.a.grpc} a" in fenced["reason"]
    line.a.wait_event("zone.fenced", zone="a")
    assert {"": "root", "a/b": "ab"} == line.owners()
    assert line.root.has_event("child.joined", zone="a/b")
    talk(line.a, line.edge, "a/x")  # it is an edge still
    talk(line.edge, line.a, "a/b/x")
    # ... and asks for it no more as if it were new, not even after a restart.
    line.a.terminate()
    line.a.start()
    line.a.wait_event("zone.divergent", zone="a", epoch=1)
    assert {"": "root", "a/b": "ab"} == line.owners()
    assert "root" == line.rows()["a/b"]["parent"]


def test_frozen_node_is_fenced_at_first_contact(line: Line) -> None:
    """It slept while its zone was taken: it stops to serve it when it hears."""
    line.start(line.root, line.edge, line.a)
    talk(line.edge, line.edge, "a/x")
    line.a.pause()
    try:
        line.root.wait_event("child.disconnected", peer="a", timeout=20)
        output("reclaim", line.root.grpc, "a")
    finally:
        line.a.resume()
    line.a.wait_event("zone.fenced", zone="a", timeout=20)
    line.a.wait_event("zone.divergent", zone="a", epoch=1)
    assert {"": "root"} == line.owners()
    talk(line.edge, line.a, "a/x")
    talk(line.a, line.edge, "a/x")


def test_zone_of_a_living_node_is_not_taken(line: Line) -> None:
    """It can give it back itself."""
    line.start(line.root, line.a)

    said = failure("reclaim", line.root.grpc, "a")

    assert f"node 'a' at {line.a.grpc} is alive" in said
    assert f"txbroker retire {line.a.grpc}" in said
    assert {"": "root", "a": "a"} == line.owners()


def test_what_cannot_be_reclaimed(line: Line) -> None:
    """One line each, and who can be asked instead."""
    line.start(line.root, line.edge, line.a, line.ab)

    below = failure("reclaim", line.root.grpc, "a/b/c")
    assert f"lies below zone 'a' of node 'a'; ask that node for it: {line.a.grpc}" in below
    assert "zone 'x' is not delegated from here" in failure("reclaim", line.root.grpc, "x")
    assert "'edge' serves no zone" in failure("reclaim", line.edge.grpc, "x")
    assert "ZONE: 'a/#'" in wrong_usage("reclaim", line.root.grpc, "a/#")


def test_calls_about_a_zone_are_for_its_present_epoch(line: Line) -> None:
    """Whoever has an older one has looked at a tree that is no more."""
    line.start(line.root, line.a)
    output("retire", line.a.grpc)
    line.a.wait()
    line.start(line.a)
    epoch = line.rows()["a"]["epoch"]
    assert epoch == 3

    retire = ask(line.a, "Retire", control_pb2.RetireRequest(zone="a", epoch=1))
    assert not retire.done and "is held at epoch 3 now" in retire.reason
    line.a.kill()
    reclaim = ask(line.root, "Reclaim", control_pb2.ReclaimRequest(zone="a", epoch=1))
    assert not reclaim.done and "delegated at epoch 3, not 1" in reclaim.reason
    line.start(line.a)
    link = control_pb2.OpenLinkRequest(
        edge="e", incarnation=1, zone="a", epoch=epoch + 1, link_version=LINK_VERSION
    )
    assert not ask(line.a, "OpenLink", link).authoritative
    link.epoch = epoch
    assert ask(line.a, "OpenLink", link).authoritative
