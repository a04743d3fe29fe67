"""
A handover, cut through at each of its messages by SIGKILL of one side or the other.

Whoever was killed is started again, and the command, where there was one, is repeated: at the end
one node serves the zone, everybody knows which, and what was retained is there. The steps and who
decides at each of them are in docs/handover.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.control_proxy import ControlProxy
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient
from tests.system.commands import as_json, output, run, wait_until


class Pair:
    """A root, a child whose way to it passes the proxy, and a retained message in the zone."""

    def __init__(self, directory: Path) -> None:
        self.root = NodeProcess(directory, topology("root", zone=""))
        self.proxy = ControlProxy(self.root.grpc)
        self.child = NodeProcess(directory, topology("child", zone="z", parent=self.proxy.address))

    def node(self, name: str) -> NodeProcess:
        """The one to be killed."""
        return self.root if name == "root" else self.child

    def keep(self, node: NodeProcess) -> None:
        """Retain something in the zone, by a client of this node."""
        with RawClient(node.mqtt) as client:
            client.connect("keeper")
            client.publish("z/kept", b"kept", qos=1, retain=True)

    def assert_kept(self, node: NodeProcess) -> None:
        """Whoever serves the zone has it."""
        with RawClient(node.mqtt) as client:
            client.connect("looker")
            client.subscribe(("z/kept", 1))
            assert client.take(1)[0].payload == b"kept"

    def owners(self) -> dict[str, str]:
        """Zone to node, of all that answers."""
        rows = run("tree", self.root.grpc, "--json")
        return {row["zone"]: row["node"] for row in json.loads(rows.stdout or "[]") if row["alive"]}

    def wait_owner(self, node: str) -> None:
        """The zone is served by this node alone, and it takes publishes."""
        expected = {"": "root"} if node == "root" else {"": "root", "z": "child"}
        wait_until(lambda: self.owners() == expected, what=f"{node} serves z: {expected}")
        with RawClient(self.root.mqtt) as client:
            client.connect("probe")
            client.subscribe(("z/probe", 1))
            client.publish("z/probe", b"1", qos=1)
            assert client.take(1)[0].payload == b"1"

    def epochs(self) -> list[int]:
        """Every epoch at which the zone was committed at the root."""
        return [
            event["epoch"] for event in self.root.events if event["event"] == "handover.committed"
        ]

    def close(self) -> None:
        """End all, and none of them has ever said something unexpected."""
        for node in (self.child, self.root):
            node.close()
        self.proxy.__exit__()
        for node in (self.child, self.root):
            for line in node.lines:
                assert "Traceback" not in line and not line.startswith("Exception"), line


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.close()


def kill_at(pair: Pair, step: str, victim: str, *, passes: bool) -> Any:
    """SIGKILL the victim when this message comes by; gives the event that says so."""
    return pair.proxy.on(step, lambda: pair.node(victim).kill(), passes=passes)


JOINING = [
    # step, victim, whether the message still arrives, whether the epoch is committed
    ("Join.snapshot", "child", False, False),
    ("Join.fence", "child", False, False),
    ("Join.received", "child", False, False),
    ("Join.granted", "child", False, True),
    ("Join.snapshot", "root", True, False),
    ("Join.fence", "root", True, False),
    ("Join.received", "root", False, False),
    ("Join.granted", "root", False, True),
    ("Join.granted", "root", True, True),
]


@pytest.mark.parametrize(("step", "victim", "passes", "is_committed"), JOINING)
def test_joining(pair: Pair, step: str, victim: str, passes: bool, is_committed: bool) -> None:
    """A crash before the parent's commit rolls back, one after it rolls forward."""
    pair.root.start()
    pair.keep(pair.root)
    killed = kill_at(pair, step, victim, passes=passes)
    pair.child.start()
    assert killed.wait(10), step
    pair.node(victim).wait()
    pair.node(victim).start()
    pair.child.wait_event("join.granted", timeout=20)
    pair.wait_owner("child")

    epochs = pair.epochs()
    assert len(epochs) == 1, epochs  # committed once, whoever died
    granted = [e["epoch"] for e in pair.child.events if e["event"] == "join.granted"]
    assert set(granted) == set(epochs)
    if victim == "child" or is_committed:
        pair.assert_kept(pair.child)


RETIRING = [
    ("HandBack.begin", "child", False, False),
    ("HandBack.ready", "child", False, False),
    ("HandBack.snapshot", "child", False, False),
    ("HandBack.fence", "child", False, False),
    ("HandBack.committed", "child", False, True),
    ("HandBack.begin", "root", False, False),
    ("HandBack.ready", "root", True, False),
    ("HandBack.snapshot", "root", False, False),
    ("HandBack.fence", "root", False, False),
    ("HandBack.committed", "root", False, True),
]


@pytest.mark.parametrize(("step", "victim", "passes", "is_committed"), RETIRING)
def test_retiring(pair: Pair, step: str, victim: str, passes: bool, is_committed: bool) -> None:
    """
    Only the parent's commit counts. The node that died asks its parent before it serves again; one
    that was left in doubt asks until it is answered.
    """
    pair.root.start()
    pair.child.start()
    pair.child.wait_event("join.granted")
    pair.keep(pair.child)
    killed = kill_at(pair, step, victim, passes=passes)
    retiring = RetireInBackground(pair)
    assert killed.wait(10), step
    pair.node(victim).wait()
    pair.node(victim).start()
    if victim == "root" and is_committed:
        assert retiring.end() == 0
        assert pair.child.wait() == 0
    elif victim == "root":
        assert retiring.end() == 1
        pair.wait_owner("child")
        pair.assert_kept(pair.child)
        output("retire", pair.child.grpc)
        assert pair.child.wait() == 0
    else:
        assert retiring.end() == 1
        pair.child.wait_event("join.granted", timeout=20)
        pair.wait_owner("child")
        if is_committed:
            pair.assert_kept(pair.child)  # it came back with the zone
        output("retire", pair.child.grpc)
        assert pair.child.wait() == 0
    pair.wait_owner("root")
    if victim == "root" and not is_committed:
        pair.assert_kept(pair.root)
    epochs = pair.epochs()
    assert sorted(set(epochs)) == epochs


class RetireInBackground:
    """`txbroker retire` of the child, while a test does something else."""

    def __init__(self, pair: Pair) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._pool = ThreadPoolExecutor(1)
        self._done = self._pool.submit(run, "retire", pair.child.grpc, timeout=60)

    def end(self) -> int:
        """Its status."""
        status = self._done.result(60).returncode
        self._pool.shutdown()
        return status


def test_parent_that_is_away_leaves_the_child_in_doubt(pair: Pair) -> None:
    """It serves nothing until somebody who knows has answered (rule 12)."""
    pair.root.start()
    pair.child.start()
    pair.child.wait_event("join.granted")
    killed = kill_at(pair, "HandBack.fence", "root", passes=False)
    retiring = RetireInBackground(pair)
    assert killed.wait(10)
    pair.child.wait_event("handback.in_doubt", zone="z")
    assert as_json("tree", pair.child.grpc, status=0)[0]["alive"]
    pair.child.kill()
    pair.child.start()
    rows = as_json("tree", pair.child.grpc, status=1)
    assert [(row["zone"], row["alive"]) for row in rows] == [("z", False)]
    assert retiring.end() == 1

    pair.root.start()
    pair.wait_owner("child")
