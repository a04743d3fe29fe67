"""
Members that are lost for good (`txbroker forget`), and a pure edge that goes (`txbroker retire`).

While too many members are away no durable client may begin a session. A command ends that; in a
site of two the node that is left does without.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.nodes import NodeProcess, free_port, topology
from tests.support.rawclient import RawClient
from tests.support.wire import CONNACK, connect

from .commands import failure, output, wait_until


class Family:
    """Nodes of one tree, by name: root; a, b and a pure edge below it; ab below a."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: dict[str, NodeProcess] = {}
        # The port stays, as a root that has lost its disk starts again by itself.
        self.add("root", zone="", mqtt=[f"tcp:{free_port()}:interface=127.0.0.1"])
        self.add("a", "root", zone="a")
        self.add("b", "root", zone="b")
        self.add("edge", "root")
        self.add("ab", "a", zone="a/b")

    def add(self, name: str, parent: str | None = None, **keys: Any) -> NodeProcess:
        above = None if parent is None else self.nodes[parent].grpc
        node = NodeProcess(self.folder, topology(name, parent=above, roaming_wait="1s", **keys))
        self.nodes[name] = node
        return node

    def __getitem__(self, name: str) -> NodeProcess:
        return self.nodes[name]

    def start(self, *names: str) -> None:
        """These, and until they have joined."""
        for name in names:
            self.nodes[name].start(ready=False)
        for name in names:
            self.nodes[name].wait_event("node.ready" if name == "root" else "join.granted", 30.0)

    def meet(self, *names: str) -> None:
        """Until a durable client is accepted at each."""
        for name in names:
            wait_until(lambda name=name: code(self[name], f"meets-{name}") == 0, what=name)

    def close(self) -> None:
        for node in reversed(self.nodes.values()):
            node.close()
        for node in self.nodes.values():
            for text in node.lines:
                assert "Traceback" not in text, text


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    family = Family(tmp_path)
    yield family
    family.close()


def code(node: NodeProcess, client_id: str) -> int:
    """The return code that a durable client gets."""
    with RawClient(node.mqtt) as client:
        client.send(connect(client_id, clean=False))
        _, found = client.expect(CONNACK).body
        return int(found)


def codes(node: NodeProcess, *client_ids: str) -> list[int]:
    return [code(node, client_id) for client_id in client_ids]


def test_two_of_three_are_lost_and_forgotten(family: Family) -> None:
    """New durable clients come again; that is remembered, and a new node has its share."""
    family.start("root", "a", "b")
    family.meet("root", "a", "b")
    family["a"].kill()
    family["b"].kill()
    assert code(family["root"], "refused") == 3

    assert "node a is no member any more\n" == output("forget", family["root"].grpc, "a")
    output("reclaim", family["root"].grpc, "b", "--forget")

    assert [0, 0] == codes(family["root"], "x", "y")
    family["root"].kill()
    family.start("root")
    assert [0, 0] == codes(family["root"], "x", "z")
    family.start("edge")
    family.meet("edge", "root")


def test_who_answers_is_not_forgotten(family: Family) -> None:
    """Nor a name that nobody has; one line, status 1."""
    family.start("root", "a")
    family.meet("a")

    alive = failure("forget", family["root"].grpc, "a")
    assert f"node 'a' at {family['a'].grpc} answers; let it go with: txbroker retire" in alive
    root = failure("forget", family["a"].grpc, "root")
    assert "answers; it has the root zone" in root and "retire" not in root
    unknown = failure("forget", family["root"].grpc, "attic")
    assert unknown.endswith("no member is called 'attic'; there are a, root")
    itself = failure("forget", family["root"].grpc, "root")
    assert "this is node 'root' itself; it has the root zone" in itself and "retire" not in itself
    assert "cannot be reached" in failure("forget", "127.0.0.1:1", "a")


def test_a_root_that_lost_its_disk_forgets_whom_only_others_know(family: Family) -> None:
    """It counts no member that has not answered it, but must not see others than they do."""
    family.start("root", "a", "b", "edge")
    family.meet("root", "a", "edge")
    family["b"].kill()
    family["root"].kill()
    shutil.rmtree(family["root"].data)
    family["root"].start(ready=False)
    wait_until(lambda: family["root"].has_event("members.unreachable"))
    wait_until(lambda: "there are a, edge, root" in failure("forget", family["root"].grpc, "x"))
    assert code(family["root"], "refused") == 3

    assert "node b is no member any more\n" == output("forget", family["root"].grpc, "b")

    family.meet("root", "a", "edge")


def test_a_member_that_is_away_hears_of_it_when_it_is_back(family: Family) -> None:
    """Also two levels below the node that was told."""
    family.start("root", "a", "ab", "edge")
    family.meet("ab", "edge")
    family["edge"].kill()
    family["ab"].terminate()

    output("forget", family["root"].grpc, "edge")

    known = "no member is called 'edge'; there are a, ab, root"
    for name in ("a", "ab"):
        if name == "ab":
            family.start("ab")
        wait_until(lambda at=name: failure("forget", family[at].grpc, "edge").endswith(known))
    family.meet("root", "a", "ab")


def test_one_that_was_forgotten_and_comes_back_joins_anew(family: Family) -> None:
    """It says so, and its sessions are merged with what was begun since."""
    family.start("root", "a", "b", "edge")
    family.meet("root", "edge")
    with RawClient(family["edge"].mqtt) as client:
        client.connect("roams", clean=False)
        client.subscribe(("a/then", 1))
    family["edge"].kill()
    assert code(family["root"], "roams") == 3
    output("forget", family["root"].grpc, "edge")
    with RawClient(family["root"].mqtt, timeout=30.0) as client:
        wait_until(lambda: code(family["root"], "roams") == 0)
        client.connect("roams", clean=False)
        client.subscribe(("a/now", 1))
        family.start("edge")
        family["edge"].wait_event("member.rejoined", 30.0)
    family.meet("edge")

    def has_both() -> bool:
        with RawClient(family["a"].mqtt) as pub, RawClient(family["b"].mqtt) as sub:
            pub.connect("pub")
            pub.publish("a/then", b"then", qos=1)
            pub.publish("a/now", b"now", qos=1)
            sub.send(connect("roams", clean=False))
            _, found = sub.expect(CONNACK).body
            if found:
                return False
            pub.publish("a/now", b"end", qos=1)
            got = sub.take_until(lambda message: message.payload == b"end")
            return {b"then", b"now"} <= {message.payload for message in got}

    wait_until(has_both, what="both sessions are one")


def test_a_pure_edge_retires(family: Family) -> None:
    """Its sessions are at its parent, its data may be deleted, and nobody counts on it."""
    family.start("root", "a", "edge")
    family.meet("root", "a", "edge")
    with RawClient(family["edge"].mqtt) as client:
        client.connect("stays", clean=False)
        client.subscribe(("a/x", 1))

    said = output("retire", family["edge"].grpc)

    assert "the sessions of node edge are at its parent; the node is stopping\n" == said
    assert 0 == family["edge"].wait()
    shutil.rmtree(family["edge"].data)
    assert "no member is called 'edge'" in failure("forget", family["root"].grpc, "edge")
    with RawClient(family["a"].mqtt) as pub, RawClient(family["a"].mqtt) as sub:
        pub.connect("pub")
        pub.publish("a/x", b"late", qos=1)
        assert sub.connect("stays", clean=False)
        assert [b"late"] == [message.payload for message in sub.take(1)]
    family["root"].kill()  # one of two that are left, not two of three
    wait_until(lambda: code(family["a"], "new") == 0, what="a begins a session alone")
    family.start("root", "edge")
    family.meet("edge")


def test_a_pure_edge_without_its_parent_stays(family: Family) -> None:
    """One line, status 1, and its clients come back."""
    family.start("root", "a", "edge")
    family.meet("root", "a", "edge")
    family["root"].kill()

    said = failure("retire", family["edge"].grpc)

    assert f"parent {family['root'].grpc} cannot be reached" in said
    family.meet("edge")


def test_in_a_house_of_two_one_goes_on_without_the_other(family: Family) -> None:
    """The one that is left begins sessions; the one that is back finds them."""
    family.start("root", "a")
    family.meet("root", "a")
    family["a"].kill()

    wait_until(lambda: code(family["root"], "new") == 0, what="a new durable client")

    family.start("a")
    with RawClient(family["a"].mqtt, timeout=30.0) as client:
        assert client.connect("new", clean=False)


def test_nodes_below_a_lost_one_go_to_the_node_above_it(family: Family) -> None:
    """One without a zone when its parent is forgotten; one that had given its zone back sooner."""
    family.add("under", "a")
    family.start("root", "a", "b", "edge", "ab", "under")
    output("retire", family["ab"].grpc)
    family["ab"].wait(30.0)
    marked = family["under"].mark()
    family["a"].kill()
    shutil.rmtree(family["a"].data)
    family["ab"].start(ready=False)
    output("reclaim", "--forget", family["root"].grpc, "a")

    family["ab"].wait_event("join.granted", 60.0)
    family["under"].wait_event("parent.lost", 60.0)
    family["under"].wait_event("join.granted", 60.0, after=marked)
    output("tree", family["root"].grpc)
    family.meet("root", "b", "edge", "ab", "under")
    for name in ("ab", "under"):  # as the tree said last, whatever the topology file names
        family[name].kill()
        family[name].start(ready=False)
        family[name].wait_event("join.granted", 30.0)
