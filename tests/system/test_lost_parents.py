"""
Roots that come back with less than they had, in other orders: while several children are cut off,
along with a child that was restored as well.

What any of them acknowledges after that reaches every session that was subscribed before.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nodes import NodeProcess, close_all, fixed_node
from tests.support.rawclient import RawClient
from tests.system.commands import output, run, wait_until

pytestmark = pytest.mark.timeout(150)


class Village:
    """root; below it a (zone `a`) and b (zone `b`); below a ab (`a/b`)."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.number = 0
        self.root = self.make("root", "", None)
        self.a = self.make("a", "a", self.root)
        self.b = self.make("b", "b", self.root)
        self.ab = self.make("ab", "a/b", self.a)
        self.nodes = (self.root, self.a, self.b, self.ab)
        self.root.start()

    def make(self, name: str, zone: str, parent: NodeProcess | None) -> NodeProcess:
        # The port stays, as a root may start again by itself.
        above = None if parent is None else parent.grpc
        return fixed_node(self.directory, name, zone=zone, parent=above)

    def join(self, *nodes: NodeProcess) -> None:
        for node in nodes:
            node.start()
            node.wait_event("join.granted")

    def backup(self, node: NodeProcess) -> Path:
        self.number += 1
        target = self.directory / f"backup-{self.number}"
        output("backup", node.grpc, target)
        return target

    def lose(self, node: NodeProcess, copy: Path | None = None) -> None:
        """Its process and its disk; a new one with the copy, or nothing, begins."""
        node.kill()
        shutil.rmtree(node.data)
        if copy is not None:
            shutil.copytree(copy, node.data)
        node.start()

    def pause(self, *nodes: NodeProcess) -> None:
        for node in nodes:
            node.pause()

    def heal(self, *nodes: NodeProcess) -> None:
        for node in nodes:
            node.resume()
        wait_until(self.is_whole, 40.0, what="all nodes joined again")

    def is_whole(self) -> bool:
        rows = json.loads(run("tree", self.root.grpc, "--json").stdout or "[]")
        return len(self.nodes) == len(rows) and all(row["alive"] for row in rows)


@pytest.fixture
def village(tmp_path: Path) -> Iterator[Village]:
    village = Village(tmp_path)
    yield village
    close_all(reversed(village.nodes))


def publish(node: NodeProcess, topic: str, *payloads: bytes, retain: bool = False) -> list[bytes]:
    """Each is acknowledged when this returns; QoS 1 and 2 by turns."""
    with RawClient(node.mqtt) as client:
        client.connect(f"publisher {topic} {payloads[0].decode()}")
        for number, payload in enumerate(payloads):
            client.publish(topic, payload, qos=1 + number % 2, retain=retain)
    return list(payloads)


def some(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix} {number}".encode() for number in range(count)]


def subscribe(node: NodeProcess, client_id: str, *filters: str) -> None:
    """A durable session at QoS 2, whose client leaves."""
    with RawClient(node.mqtt) as client:
        client.connect(client_id, clean=False)
        client.subscribe(*((topic_filter, 2) for topic_filter in filters))
        client.disconnect()


def take(node: NodeProcess, client_id: str, wanted: list[bytes]) -> list[bytes]:
    """What waits for the session, until all that is wanted has come, and a moment longer."""
    found: list[bytes] = []
    missing = set(wanted)
    with RawClient(node.mqtt) as client:
        assert client.connect(client_id, clean=False)
        while missing or client.has_input(0.3):
            assert client.has_input(20.0), (
                f"{client_id} misses {len(missing)}: {sorted(missing)[:3]}"
            )
            found += [message.payload for message in client.take(1)]
            missing.discard(found[-1])
        client.disconnect()
    return found


def retained(node: NodeProcess, topic: str) -> bytes:
    """The value that a new subscription gets."""
    with RawClient(node.mqtt) as client:
        client.connect("looks")
        client.subscribe((topic, 1))
        client.publish("looked/at", b"end", qos=0)
        assert client.has_input(5.0), topic
        return client.take(1)[0].payload


@pytest.mark.parametrize(("order", "comes_back_with"), [("ab", "backup"), ("ba", "nothing")])
def test_two_children_are_cut_off(village: Village, order: str, comes_back_with: str) -> None:
    """They are back one after the other, in either order."""
    copy = village.backup(village.root)
    village.join(village.a, village.ab)
    village.join(village.b)
    for node in (village.a, village.b, village.ab):
        subscribe(node, f"at {node.name}", "a/#", "b/#")
    publish(village.a, "a/kept", b"old", retain=True)
    publish(village.b, "b/kept", b"old", retain=True)
    for node in (village.a, village.b, village.ab):
        take(node, f"at {node.name}", [b"old"])

    village.pause(village.a, village.b, village.ab)
    village.lose(village.root, None if comes_back_with == "nothing" else copy)
    sent = publish(village.root, "a/y", *some("a", 80))
    sent += publish(village.root, "b/y", *some("b", 80))
    sent += publish(village.root, "a/b/y", *some("ab", 80))
    for topic in ("a/set", "b/set", "a/b/set"):
        sent += publish(village.root, topic, topic.encode(), retain=True)
    nodes = {"a": village.a, "b": village.b}
    nodes[order[0]].resume()
    if order[0] == "a":
        village.ab.resume()
    nodes[order[0]].wait_event("join.granted", 30.0, after=0)
    # Not at the root, which may be starting again with another epoch.
    sent += publish(nodes[order[0]], f"{order[0]}/y", *some("between", 20))
    village.heal(village.a, village.b, village.ab)
    sent += publish(village.b, "a/y", b"last")

    for node in (village.a, village.b, village.ab):
        assert set(sent) == set(take(node, f"at {node.name}", sent)), node.name
    for topic in ("a/set", "b/set", "a/b/set"):
        assert topic.encode() == retained(village.root, topic)
    for topic in ("a/kept", "b/kept"):
        assert b"old" == retained(village.root, topic)


def test_root_and_child_are_restored(village: Village) -> None:
    """The root's copy knows no child, the child's copy knows no grandchild, which was cut off."""
    of_root = village.backup(village.root)
    village.join(village.a, village.b)
    publish(village.a, "a/kept", b"kept", retain=True)
    publish(village.a, "a/b/kept", b"older", retain=True)
    of_a = village.backup(village.a)
    village.join(village.ab)
    publish(village.ab, "a/b/kept", b"newer", retain=True)
    for node in (village.b, village.ab):
        subscribe(node, f"at {node.name}", "a/x", "a/b/x", "a/b/set")
    before = publish(village.root, "a/b/x", *some("before", 30))
    for node in (village.b, village.ab):
        assert before == take(node, f"at {node.name}", before)

    village.pause(village.b, village.ab)
    village.a.kill()
    village.lose(village.root, of_root)
    sent = publish(village.root, "a/x", *some("root a", 60))
    sent += publish(village.root, "a/b/x", *some("root ab", 60))
    shutil.rmtree(village.a.data)
    shutil.copytree(of_a, village.a.data)
    village.join(village.a)
    sent += publish(village.a, "a/x", *some("a", 60))
    sent += publish(village.a, "a/b/x", *some("ab", 60))
    sent += publish(village.root, "a/b/set", b"set", retain=True)
    village.heal(village.b, village.ab)
    sent += publish(village.b, "a/b/x", b"last")

    for node in (village.b, village.ab):
        assert set(sent) == set(take(node, f"at {node.name}", sent)), node.name
    assert b"set" == retained(village.b, "a/b/set")
    assert b"kept" == retained(village.b, "a/kept")
    assert b"newer" == retained(village.b, "a/b/kept")


@pytest.mark.parametrize("knows", ["no grandchild", "the grandchild"])
@pytest.mark.parametrize("grandchild", ["stays", "is cut off"])
def test_a_middle_node_is_restored_twice(village: Village, knows: str, grandchild: str) -> None:
    """From the same old copy; what goes on below it goes on, and sessions miss nothing new."""
    village.join(village.a, village.b)
    early = village.backup(village.a)
    village.join(village.ab)
    copy = early if knows == "no grandchild" else village.backup(village.a)
    for node in (village.root, village.b, village.ab):
        subscribe(node, f"at {node.name}", "a/x", "a/b/x")
    before = publish(village.root, "a/x", *some("before", 20))
    before += publish(village.root, "a/b/x", *some("before ab", 20))
    for node in (village.root, village.b, village.ab):
        assert set(before) == set(take(node, f"at {node.name}", before)), node.name

    for number in range(2):
        if grandchild == "is cut off":
            village.pause(village.ab)
        village.lose(village.a, copy)
        sent = publish(village.a, "a/x", *some(f"own {number}", 15 + number))
        if grandchild == "stays":
            sent += publish(village.b, "a/b/x", *some(f"below {number}", 15))
        village.heal(village.ab)
        sent += publish(village.ab, "a/b/x", f"last {number}".encode())
        sent += publish(village.b, "a/x", f"end {number}".encode())
        for node in (village.root, village.b, village.ab):
            assert sorted(sent) == sorted(take(node, f"at {node.name}", sent)), node.name
