"""
The audit of a real tree: after sessions and zones have moved and nodes were killed nothing is lost,
and what is made to be lost is found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.clock import Clock
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient
from tests.system.commands import output, run, wait_until
from txbroker.pipeline.jobs.audit import compare, count
from txbroker.pipeline.ledgers.evidence import gather
from txbroker.storage.commit_ports import CommitEvents, CommitPorts
from txbroker.storage.committer import Committer, Durability
from txbroker.storage.log import SegmentLog
from txbroker.storage.tables import LogTables


class Tree:
    """A root, a pure edge, and a child that comes and goes; all keep ledgers."""

    def __init__(self, directory: Path) -> None:
        self.root = NodeProcess(directory, topology("root", zone="", ledger=True))
        common = {"parent": self.root.grpc, "ledger": True}
        self.child = NodeProcess(directory, topology("a", zone="a", **common))
        self.edge = NodeProcess(directory, topology("edge", **common))

    def publish(self, count: int) -> None:
        """To topics of both zones, at QoS 1 and 2; and what is owed to nobody."""
        with RawClient(self.root.mqtt) as client:
            client.connect("publisher")
            for number in range(count):
                for topic in ("a/x", "b/x"):
                    client.publish(topic, b"%d" % number, qos=1 + number % 2)
            client.publish("a/x", b"", qos=0)
            client.publish("$odd/x", b"", qos=1)
            client.disconnect()

    def close(self) -> None:
        for node in (self.edge, self.child, self.root):
            node.close()


def subscribe(node: NodeProcess, name: str, topic_filter: str, *, qos: int = 1) -> None:
    with RawClient(node.mqtt) as client:
        client.connect(name, clean=False)
        client.subscribe((topic_filter, qos))
        client.disconnect()


def take(node: NodeProcess, name: str, count: int) -> None:
    with RawClient(node.mqtt) as client:
        client.connect(name, clean=False)
        client.take(count)
        client.disconnect()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    """
    What has happened: `steady` has got all of it at the edge, `roams` has got all that is in zone
    `a` at two nodes, `away` waits for all since the beginning; `quits` and `ends` have left.
    """
    tree = Tree(tmp_path_factory.mktemp("tree"))
    try:
        tree.root.start()
        tree.edge.start().wait_event("join.granted")
        subscribe(tree.edge, "steady", "#", qos=2)
        subscribe(tree.root, "roams", "a/#")
        subscribe(tree.root, "quits", "b/+")
        subscribe(tree.edge, "ends", "b/x")
        subscribe(tree.edge, "away", "+/x")
        subscribe(tree.edge, "lowest", "#", qos=0)
        tree.publish(4)
        take(tree.root, "roams", 4)
        tree.child.start().wait_event("join.granted", zone="a")
        tree.publish(3)
        take(tree.edge, "steady", 14)
        take(tree.edge, "roams", 3)
        with RawClient(tree.edge.mqtt) as client:
            client.connect("quits", clean=False)
            client.take(2)
            client.unsubscribe("b/+")
            client.take(5)  # on their way by then
            client.disconnect()
        with RawClient(tree.edge.mqtt) as client:
            client.connect("ends")
        tree.edge.kill()
        tree.edge.start()
        output("retire", tree.child.grpc)
        assert 0 == tree.child.wait()
        tree.publish(2)
        take(tree.edge, "steady", 4)
        take(tree.edge, "roams", 2)
        yield tree
    finally:
        tree.close()


def messages_of(spark: SparkSession, tree: Tree) -> DataFrame:
    return spark.read.format("txbroker").option("root", tree.root.grpc).load()


EXPECTED = {
    ("steady", "delivered"): 18,
    ("roams", "delivered"): 9,
    ("quits", "delivered"): 7,
    ("ends", "dropped"): 7,
    ("away", "pending"): 18,
}


def test_nothing_is_lost_in_a_tree_that_lives(spark: SparkSession, tree: Tree) -> None:
    """Each message for each session, by its status; then without a row that was there."""
    evidence, notes = gather(spark, tree.root.grpc, messages_of(spark, tree))
    rows = compare(evidence).cache()
    found = Counter((row.client_id, row.status) for row in rows.collect())
    ledger = evidence.ledger.where(
        "not (kind = 'delivery' and client_id = 'roams' and zone = 'a' and offset = 2)"
    )
    counts, lost = count(compare(attrs.evolve(evidence, ledger=ledger)), 10)

    assert () == notes
    assert EXPECTED == found
    assert 1 == counts["lost"]
    assert [("roams", "a/#", "a", 1, 2, "a/x")] == [tuple(one.values())[:6] for one in lost]


def test_the_command_names_what_is_lost(spark: SparkSession, tree: Tree) -> None:
    """A session whose place on the disk is gone goes on where its node is: it misses the rest."""
    tree.edge.terminate()
    forget_window(tree.edge.data, b"away")
    tree.edge.start()
    wait_until(lambda: 0 == run("tree", tree.root.grpc).returncode, what="a whole tree")

    # Not in this process: gRPC would have events for the command's loop after the loop's end, and a
    # later test that runs nodes here would log them as errors.
    done = run("pipeline", "audit", "--root", tree.root.grpc, timeout=240)

    told = [line.split() for line in done.stdout.splitlines()]
    assert 1 == done.returncode, done.stderr
    assert [["STATUS", "MESSAGES"], ["delivered", "34"], ["pending", "0"]] == told[:3]
    assert ["lost", "18"] == told[5]
    assert {"away"} == {line[0] for line in told[8:]}
    assert 18 == len(told[8:])


def forget_window(data: Path, name: bytes) -> None:
    """Take from a stopped node's disk how far a session has come."""
    committer = Committer(
        durability=Durability.SYNC,
        sync_interval=0.1,
        ports=CommitPorts(
            mark_dirty=lambda _: None,
            in_thread=lambda work, done: None,
            timers=Clock(),
            end_turn=lambda: None,
        ),
        events=CommitEvents(
            on_full=lambda is_full, _: None,
            on_failed=lambda error: None,
        ),
    )
    log = SegmentLog(data / "tables", on_trimmed=lambda *_: None)
    tables = LogTables(log, committer, lambda: 0)
    assert tables.table("windows").get(name)
    tables.table("windows").delete(name)
    committer.close()
    log.close()
