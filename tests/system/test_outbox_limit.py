"""
`limits.outbox`, hit with real processes: publishers stop and are not skipped, then all goes on.

The tree: root, a (zone `a`), and a pure edge with the publishers; the reader is at the root.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import wire
from tests.support.nodes import NodeProcess, free_port, topology
from tests.support.rawclient import RawClient
from tests.support.wire import PUBACK, PUBREC
from tests.support.writers import Reader, Writer

from .commands import wait_until
from .strangers import counter
from .test_outbox import check

WINDOW = 20
LIMIT = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The nodes; the reader, and the writers at the edge: QoS 1 and 2 for a's zone."""

    root: NodeProcess
    a: NodeProcess
    edge: NodeProcess
    reader: Reader
    writers: list[Writer]

    def wait_stopped(self) -> None:
        """Until no writer gets any more acknowledgements, for a second."""
        before = -1
        deadline = time.monotonic() + 60.0
        while before != (before := sum(len(w.acknowledged) for w in self.writers)):
            assert time.monotonic() < deadline, "publishers go on"
            time.sleep(1.0)
        assert all(writer.is_stuck for writer in self.writers)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    """Three processes, joined, and the clients."""

    def port() -> dict[str, list[str]]:
        return {"mqtt": [f"tcp:{free_port()}:interface=127.0.0.1"]}

    root = NodeProcess(tmp_path, topology("root", zone="", **port()))
    a = NodeProcess(tmp_path, topology("a", zone="a", parent=root.grpc, **port()))
    edge = NodeProcess(
        tmp_path, topology("edge", parent=root.grpc, limits={"outbox": "64KiB"}, **port())
    )
    with root, a, edge, ExitStack() as clients:
        for node in (a, edge):
            node.wait_event("join.granted")
        reader = clients.enter_context(Reader(lambda: root.mqtt, "reader", ("#", 2)))
        reader.wait_subscribed()
        writers = [
            clients.enter_context(
                Writer(lambda: edge.mqtt, f"w{n}", f"a/w{n}", 1 + n % 2, window=WINDOW)
            )
            for n in range(4)
        ]
        for writer in writers:
            writer.wait_acknowledged(20)
        yield Tree(root=root, a=a, edge=edge, reader=reader, writers=writers)


@pytest.mark.parametrize("victim", ["nobody", "edge"])
def test_publishers_stop_at_the_limit_and_go_on(tree: Tree, victim: str) -> None:
    """
    One event names the limit, one count. Nothing more is acknowledged, and all that was is there:
    in order, before what was held up; also where the edge is killed meanwhile. Others go on.
    """
    edge = tree.edge
    tree.a.kill()
    edge.wait_event("outbox.full", 60.0, limit="limits.outbox", value=LIMIT, zone="a")
    tree.wait_stopped()
    assert 1 == counter(edge, "outbox.full")
    assert 1 == sum(event["event"] == "outbox.full" for event in edge.events)
    with RawClient(edge.mqtt) as other:
        other.connect("other", keep_alive=1)
        other.subscribe(("r", 2))
        for qos in (0, 1, 2):
            other.publish("r", b"1", qos=qos)
            other.take(1)
        for number, qos in ((901, 1), (902, 2), (903, 1)):
            other.send(wire.publish("a/other", b"%d" % number, qos=qos, packet_id=number))
        assert not other.has_input(0.5), "acknowledged"
        other.send(wire.publish("r", b"2", qos=1, packet_id=904))
        assert not other.has_input(2.5), "it is read, or closed as its keep-alive is over"
        if victim == "edge":
            edge.kill()
            edge.start()
            tree.wait_stopped()

        tree.a.start()

        edge.wait_event("outbox.drained", 60.0, zone="a")
        for writer in tree.writers:
            writer.wait_acknowledged(WINDOW + 50)
        if victim == "nobody":
            other.wait_for(PUBACK, 901)
            other.wait_for(PUBREC, 902)
            other.wait_for(PUBACK, 903)
            other.wait_for(PUBACK, 904)
    check(tree.reader, tree.writers)
    if victim == "nobody":
        tree.reader.wait_for("a/other", 903)
        assert [901, 902, 903] == tree.reader.got["a/other"]


def test_more_room_is_given_while_publishers_wait(tree: Tree) -> None:
    """By SIGHUP; the owner is still away."""
    from .test_limits import reload

    tree.a.kill()
    tree.edge.wait_event("outbox.full", 60.0, limit="limits.outbox")
    tree.wait_stopped()

    reload(tree.edge, limits={"outbox": "1GiB"})

    for writer in tree.writers:
        writer.wait_acknowledged(WINDOW + 50)
    wait_until(lambda: counter(tree.edge, "outbox.full") == 1, what="counted once")
    tree.a.start()
    check(tree.reader, tree.writers)
