"""
Full disks on either side of a link: publishes stop, nothing is skipped, reads go on, and all goes
on by itself when there is room again.

The tree: root, a (zone `a`), and a pure edge with the publishers; readers are at the edge, too.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import wire
from tests.support.nodes import NodeProcess, free_port, topology
from tests.support.rawclient import RawClient
from tests.support.wire import PUBACK, PUBREC, SUBACK

from .commands import wait_until
from .disks import fill
from .strangers import counter

MIB = 1 << 20
PAYLOAD = b"x" * 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The nodes; `pub` at the edge, and `sub` there with all that is published."""

    root: NodeProcess
    a: NodeProcess
    edge: NodeProcess
    pub: RawClient
    sub: RawClient

    def publish(self, *numbers: int, topic: str = "a/t") -> None:
        """QoS 1 and 2 by turns, packet id and beginning of the payload a number."""
        for number in numbers:
            payload = b"%d " % number + PAYLOAD
            qos = 2 - number % 2
            self.pub.send(wire.publish(topic, payload, qos=qos, packet_id=number))

    def expect_acknowledged(self, *numbers: int) -> None:
        """The next answers to the publisher."""
        for number in numbers:
            self.pub.expect(PUBACK if number % 2 else PUBREC, number)

    def expect_numbers(self, *numbers: int) -> None:
        """The next messages on a/t."""
        got = [int(message.payload.split()[0]) for message in self.sub.take(len(numbers))]
        assert got == list(numbers)

    def reads_go_on(self, node: NodeProcess) -> None:
        """Clients of this node: a session begins, QoS 0, what others publish, its end."""
        with RawClient(node.mqtt) as reader, RawClient(self.root.mqtt) as other:
            other.connect("other")
            reader.connect("reader", clean=False)
            reader.send(wire.subscribe(7, ("r", 1)))
            reader.wait_for(SUBACK, 7)
            for number, qos in enumerate((0, 1, 2)):
                other.publish("r", b"%d" % number, qos=qos)
                assert [b"%d" % number] == [m.payload for m in reader.take(1)]
            reader.publish("r", b"qos 0")
            assert [b"qos 0"] == [m.payload for m in reader.take(1)]
            reader.disconnect()
            reader.close()
        with RawClient(node.mqtt) as reader:
            assert reader.connect("reader", clean=False)
            reader.unsubscribe("r")


@contextmanager
def running(folder: Path, *, on_disk: str, disk: Path) -> Iterator[Tree]:
    """One node's data is on the small disk."""

    def keys(name: str) -> dict[str, object]:
        port = {"mqtt": [f"tcp:{free_port()}:interface=127.0.0.1"]}
        return port | ({"data": str(disk / "data")} if name == on_disk else {})

    root = NodeProcess(folder, topology("root", zone="", **keys("root")))
    a = NodeProcess(folder, topology("a", zone="a", parent=root.grpc, **keys("a")))
    edge = NodeProcess(folder, topology("edge", parent=root.grpc, **keys("edge")))
    with root, a, edge, ExitStack() as clients:
        for node in (a, edge):
            node.wait_event("join.granted")
        pub, sub = (clients.enter_context(RawClient(edge.mqtt, timeout=20.0)) for _ in "ps")
        pub.connect("pub", clean=False)
        sub.connect("sub", clean=False)
        sub.subscribe(("a/t", 2))
        tree = Tree(root=root, a=a, edge=edge, pub=pub, sub=sub)
        tree.publish(1, 2)
        tree.expect_acknowledged(1, 2)
        tree.expect_numbers(1, 2)
        yield tree


def test_the_owners_disk(tmp_path: Path, small_disk: Path) -> None:
    """Over a link, also one that breaks meanwhile because the owner is killed."""
    with running(tmp_path, on_disk="a", disk=small_disk) as tree:
        ballast = fill(small_disk, 2 * MIB)
        tree.a.wait_event("disk.short", limit="limits.disk_free")
        tree.publish(3, 4, 5)
        tree.reads_go_on(tree.a)
        tree.reads_go_on(tree.edge)
        assert not tree.pub.has_input(2.0), "acknowledged"
        tree.sub.ping()

        ballast.unlink()
        tree.a.wait_event("disk.ok")
        tree.expect_acknowledged(3, 4, 5)
        tree.expect_numbers(3, 4, 5)

        ballast = fill(small_disk, 2 * MIB)
        tree.a.wait_event("disk.short", after=tree.a.mark() - 1)
        tree.publish(6, 7)
        tree.a.kill()
        tree.expect_acknowledged(6, 7)  # by the edge: they are in its outbox
        tree.a.start()
        tree.publish(8, 9)
        tree.reads_go_on(tree.edge)
        assert not tree.sub.has_input(1.0)

        ballast.unlink()
        tree.a.wait_event("disk.ok")
        tree.expect_numbers(6, 7, 8, 9)


@pytest.mark.parametrize("first", ["room", "owner"])
def test_the_edges_disk_has_the_outbox(tmp_path: Path, small_disk: Path, first: str) -> None:
    """
    It takes what it can, in order. Room comes from elsewhere, or, as the owner is back, from what
    drains; publishes go on where they stopped.
    """
    with running(tmp_path, on_disk="edge", disk=small_disk) as tree:
        tree.a.kill()
        tree.edge.wait_event("zone.unreachable", zone="a")
        ballast = fill(small_disk, 14 * MIB)
        number = 3
        tree.publish(number)
        while tree.pub.has_input(1.0):
            tree.expect_acknowledged(number)
            number += 1
            tree.publish(number)
        tree.edge.wait_event("disk.short", limit="limits.disk_free")
        assert 20 < number < 100
        tree.publish(number + 1, number + 2)
        tree.reads_go_on(tree.edge)
        assert not tree.pub.has_input(2.0), "acknowledged"
        assert 1 == counter(tree.edge, "publish.refused.disk_free")

        if first == "room":
            ballast.unlink()
            tree.edge.wait_event("disk.ok")
            tree.expect_acknowledged(*range(number, number + 3))
        tree.a.start()
        if first == "owner":
            tree.edge.wait_event("disk.ok", 30.0)
            tree.expect_acknowledged(*range(number, number + 3))
        tree.expect_numbers(*range(3, number + 3))
        wait_until(lambda: not list((tree.edge.data / "outbox").glob("*/*")), what="it is empty")


def test_an_edge_that_is_killed_with_a_full_disk(tmp_path: Path, small_disk: Path) -> None:
    """It starts, has all it had acknowledged, and does not acknowledge more before it has room."""
    with running(tmp_path, on_disk="edge", disk=small_disk) as tree:
        tree.a.kill()
        tree.edge.wait_event("zone.unreachable", zone="a")
        tree.publish(*range(3, 13))
        tree.expect_acknowledged(*range(3, 13))
        ballast = fill(small_disk, 1 * MIB)
        tree.edge.wait_event("disk.short")
        tree.edge.kill()
        tree.edge.start()
        with RawClient(tree.edge.mqtt) as again, RawClient(tree.root.mqtt) as sub:
            again.connect("again", keep_alive=1)
            again.send(wire.publish("a/t", b"99 ", qos=1, packet_id=99))
            assert not again.has_input(2.0)
            sub.connect("sub", clean=False)
            tree.a.start()
            got = [int(message.payload.split()[0]) for message in sub.take(10)]
            assert got == list(range(3, 13))
            ballast.unlink()
            again.expect(PUBACK, 99)
            sub.expect_publish("a/t", b"99 ")
    assert shutil.disk_usage(small_disk).free


def test_nodes_that_are_killed_with_a_disk_full_to_the_last_byte(
    tmp_path: Path, small_disk: Path
) -> None:
    """They start: their state finds room, their logs wait for it; nothing acknowledged is lost."""
    keys = {"mqtt": [f"tcp:{free_port()}:interface=127.0.0.1"]}
    root = NodeProcess(tmp_path, topology("n", zone="", data=str(small_disk / "n"), **keys))
    a = NodeProcess(tmp_path, topology("a", zone="a", parent=root.grpc, data=str(small_disk / "a")))
    with root, a:
        a.wait_event("join.granted")
        with RawClient(root.mqtt) as sub, RawClient(root.mqtt) as pub:
            sub.connect("sub", clean=False)
            sub.subscribe(("#", 1))
            sub.disconnect()
            pub.connect("pub")
            for topic in ("t", "a/t"):
                pub.publish(topic, b"before", qos=1, retain=True)
        ballast = fill_to_the_last_byte(small_disk)
        for node in (a, root):
            node.kill()
        for _ in range(3):  # each start writes the state
            for node in (root, a):
                node.start()
            a.wait_event("join.granted")
            for node in (a, root):
                node.kill()
        for node in (root, a):
            node.start()
        with RawClient(root.mqtt) as pub:
            pub.connect("pub")
            pub.send(wire.publish("t", b"after", qos=1, packet_id=7))
            assert not pub.has_input(1.0), "acknowledged"
            ballast.unlink()
            pub.expect(PUBACK, 7)
        with RawClient(root.mqtt) as sub:
            assert sub.connect("sub", clean=False)
            got = {(message.topic, message.payload) for message in sub.take(3)}
            assert {("t", b"before"), ("a/t", b"before"), ("t", b"after")} == got


def test_qos_0_leaves_the_reserve(tmp_path: Path, small_disk: Path) -> None:
    """It is delivered on, and not kept: the last bytes of the disk do not go for it."""
    keys = {"data": str(small_disk / "n"), "mqtt": [f"tcp:{free_port()}:interface=127.0.0.1"]}
    with NodeProcess(tmp_path, topology("n", zone="", **keys)) as node:
        with RawClient(node.mqtt) as pub, RawClient(node.mqtt) as sub:
            pub.connect("pub")
            sub.connect("sub")
            sub.subscribe(("seen", 0))
            is_short = False
            for _ in range(200):  # some of it is left out for those who have just waited for a sync
                pub.send(wire.publish("t", PAYLOAD, qos=0) * 40)
                pub.ping()
                if is_short:
                    break
                is_short = node.has_event("disk.short")
            pub.publish("seen", b"yes", qos=0)
            assert [b"yes"] == [message.payload for message in sub.take(1)]
        node.wait_event("disk.short", limit="limits.disk_free")
        assert counter(node, "journal.left_out") > 10
        assert shutil.disk_usage(small_disk).free > 1 * MIB


def fill_to_the_last_byte(disk: Path) -> Path:
    """A file that leaves nothing."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        size = 1 * MIB
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2
    assert 0 == shutil.disk_usage(disk).free
    return ballast
