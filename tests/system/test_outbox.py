"""
Outboxes with real processes: owners and edges that are killed, links that are cut.

The tree: root, a (zone `a`, below it a/b at ab), and a pure edge. Publishers of QoS 1 and 2 with
sessions that are not clean go on at the edge through everything; one at the root remembers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import wire
from tests.support.nodes import NodeProcess, free_port, topology
from tests.support.rawclient import RawClient
from tests.support.writers import Reader, Writer, first_seen

QOS = (1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """root, a (zone `a`), ab (`a/b`), edge; and what clients did."""

    root: NodeProcess
    a: NodeProcess
    ab: NodeProcess
    edge: NodeProcess
    clients: ExitStack

    @property
    def nodes(self) -> tuple[NodeProcess, ...]:
        return (self.root, self.a, self.ab, self.edge)

    def writers(self, *topics: str) -> list[Writer]:
        """Publishers at the edge: one for each topic and QoS."""
        return [
            self.clients.enter_context(
                Writer(lambda: self.edge.mqtt, f"w{qos}-{topic}", f"{topic}/q{qos}", qos)
            )
            for topic in topics
            for qos in QOS
        ]

    def reader(self) -> Reader:
        """A subscriber at the root that gets everything."""
        reader = Reader(lambda: self.root.mqtt, "reader", ("#", 2))
        self.clients.enter_context(reader)
        reader.wait_subscribed()
        return reader


def port() -> dict[str, list[str]]:
    """A client's port that is the same in each life of a node."""
    return {"mqtt": [f"tcp:{free_port()}:interface=127.0.0.1"]}


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    """Four processes, joined."""
    root = NodeProcess(tmp_path, topology("root", zone="", **port()))
    a = NodeProcess(tmp_path, topology("a", zone="a", parent=root.grpc, **port()))
    ab = NodeProcess(tmp_path, topology("ab", zone="a/b", parent=a.grpc, **port()))
    edge = NodeProcess(tmp_path, topology("edge", parent=root.grpc, **port()))
    with ExitStack() as clients:
        tree = Tree(root=root, a=a, ab=ab, edge=edge, clients=clients)
        try:
            for node in tree.nodes:
                node.start()
            for node in tree.nodes[1:]:
                node.wait_event("join.granted", 30.0)
            yield tree
        finally:
            clients.close()
            for node in reversed(tree.nodes):
                node.close()


def check(reader: Reader, writers: list[Writer]) -> None:
    """Nothing is lost, QoS 2 comes once, and each topic's publishes come in their order."""
    for writer in writers:
        writer.finish()
        reader.wait_for(writer.topic, writer.sent)
    for writer in writers:
        got = reader.got[writer.topic]
        assert sorted(set(got)) == list(range(1, writer.sent + 1)), missing(writer, got)
        assert first_seen(got) == sorted(first_seen(got)), f"{writer.topic} is out of order"
        if writer.qos == 2:
            assert len(got) == len(set(got)), f"{writer.topic}: {duplicates(got)} came twice"


def missing(writer: Writer, got: list[int]) -> str:
    lost = sorted(set(range(1, writer.sent + 1)) - set(got))
    return f"{writer.topic}: {len(lost)} of {writer.sent} are lost: {lost[:20]}"


def duplicates(numbers: list[int]) -> list[int]:
    return sorted({number for number in numbers if numbers.count(number) > 1})


Fault = Callable[[NodeProcess], object]


@pytest.mark.parametrize("fault", [NodeProcess.kill, NodeProcess.terminate], ids=["killed", "stop"])
def test_owner_is_away(tree: Tree, fault: Fault) -> None:
    """What is published meanwhile is acknowledged by the edge, and comes when the owner is back."""
    reader = tree.reader()
    writers = tree.writers("a", "a/b", "r")
    for writer in writers:
        writer.wait_acknowledged(50)
    fault(tree.a)
    tree.edge.wait_event("outbox.opened", zone="a")
    for writer in writers:
        writer.wait_acknowledged(200)
    tree.a.start()
    tree.edge.wait_event("outbox.drained", 30.0, zone="a")
    for writer in writers:
        writer.wait_acknowledged(50)
    check(reader, writers)
    assert not list((tree.edge.data / "outbox").glob("*/*"))


def test_edge_is_killed_when_it_has_put_down_what_a_session_left_there(tree: Tree) -> None:
    """Nobody but that edge knows that the publish in doubt is the entry of its outbox."""
    reader = tree.reader()
    with RawClient(tree.edge.mqtt) as before, RawClient(tree.root.mqtt, timeout=30.0) as after:
        before.connect("left", clean=False)
        before.publish("a/left", b"1", qos=2)
        tree.a.pause()
        before.send(wire.publish("a/left", b"2", qos=2, packet_id=77))
        before.ping()
        after.connect("left", clean=False)
        tree.a.kill()
        wait_entry(tree.edge, b"a/left")
        tree.edge.kill()
        tree.edge.start()
        tree.a.start()
        tree.edge.wait_event("outbox.drained", 30.0, zone="a")
        after.send(wire.publish("a/left", b"2", qos=2, packet_id=77, dup=True))
        after.expect(wire.PUBREC, 77)
        after.send(wire.ack(wire.PUBREL, 77))
        after.expect(wire.PUBCOMP, 77)
        after.publish("a/left", b"3", qos=2)

        assert after.session_present
        reader.wait_for("a/left", 3)
        assert [1, 2, 3] == reader.got["a/left"]


def wait_entry(node: NodeProcess, topic: bytes) -> None:
    """Until an outbox of the node has an entry on the topic, as a kill would leave it."""
    deadline = time.monotonic() + 10.0
    while not any(topic in log.read_bytes() for log in (node.data / "outbox").glob("*/*/*.log")):
        assert time.monotonic() < deadline, "nothing is put down"
        time.sleep(0.002)


def test_edge_is_killed_with_a_full_outbox(tree: Tree) -> None:
    """What its outbox holds is there again, and drains, once, before anything newer."""
    reader = tree.reader()
    writers = tree.writers("a", "r")
    for writer in writers:
        writer.wait_acknowledged(50)
    tree.a.kill()
    tree.edge.wait_event("outbox.opened", zone="a")
    for writer in writers:
        writer.wait_acknowledged(200)
    tree.edge.kill()
    tree.edge.start()
    for writer in writers:
        writer.wait_acknowledged(100)
    tree.edge.kill()
    tree.a.start()
    tree.edge.start()
    check(reader, writers)


def test_everything_is_killed_again_and_again(tree: Tree) -> None:
    """In the middle of drains, at either end."""
    reader = tree.reader()
    writers = tree.writers("a", "a/b")
    for round_ in range(4):
        for writer in writers:
            writer.wait_acknowledged(30)
        tree.a.kill()
        for writer in writers:
            writer.wait_acknowledged(150)
        tree.a.start()
        for writer in writers:
            writer.wait_acknowledged(5)
        node = (tree.edge, tree.a, tree.edge, tree.ab)[round_]
        node.kill()
        node.start()
    check(reader, writers)


def test_cold_cache_without_a_root(tree: Tree) -> None:
    """
    An edge that starts and reaches nobody puts all down for the root; what belongs to others goes
    to them as soon as it knows them.

    The sessions are begun before: too few keepers are left for new ones.
    """
    reader = tree.reader()
    topics = ("a", "a/b", "r")
    for client_id in (f"w{qos}-{topic}" for topic in topics for qos in QOS):
        with RawClient(tree.edge.mqtt) as client:
            client.connect(client_id, clean=False)
            client.disconnect()
    for node in (tree.edge, tree.a, tree.root):
        node.kill()
    tree.edge.start()
    writers = tree.writers(*topics)
    for writer in writers:
        writer.wait_acknowledged(100)
    tree.root.start()
    tree.a.start()
    for writer in writers:
        writer.wait_acknowledged(50)
    check(reader, writers)
