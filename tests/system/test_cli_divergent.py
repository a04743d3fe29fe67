"""
`txbroker divergent`: what a node had alone when its zone was reclaimed, after it has come back.

It is kept until somebody decides; a replay brings each session what it misses, once.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import wire
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient

from .commands import as_json, failure, output, run, wrong_usage


class Pair:
    """
    A root and a child with the zone `a`, which took five messages and was gone for good, it seemed.

    Three sessions, at the root or at a pure edge, want them: `sleeper` has seen none, `witness` the
    first three, and `waker` none before it comes by while the branch is cut off.
    """

    def __init__(self, directory: Path, at: str) -> None:
        self.root = NodeProcess(directory, topology("root", zone=""))
        self.child = NodeProcess(directory, topology("child", zone="a", parent=self.root.grpc))
        self.edge = NodeProcess(directory, topology("edge", parent=self.root.grpc))
        self.home = self.edge if at == "edge" else self.root

    def begin(self) -> None:
        """Take the zone from the child, with what only it has, and start it again."""
        self.root.start()
        self.child.start()
        self.edge.start()
        self.child.wait_event("join.granted")
        for name in ("sleeper", "waker"):
            with RawClient(self.home.mqtt) as client:
                client.connect(name, clean=False)
                client.subscribe(("a/#", 2))
                client.disconnect()
        with RawClient(self.home.mqtt) as witness:
            witness.connect("witness", clean=False)
            witness.subscribe(("a/#", 2))
            self._say(range(3))
            assert FIVE[:3] == [message.payload for message in witness.take(3)]
            witness.disconnect()
        self._say(range(3, 5))
        self.child.kill()
        output("reclaim", self.root.grpc, "a")
        self.publish(b"between")
        self.wake("waker", b"between")
        self.return_()

    def return_(self) -> None:
        """The child comes back, and is refused."""
        self.child.start()
        self.child.wait_event("zone.divergent", zone="a", epoch=1)

    def settled(self) -> None:
        """The child has its zone again, and something new is in it."""
        self.child.wait_event("join.granted", zone="a")
        self.publish(b"after")

    def listed(self) -> dict[str, int]:
        """Topic to number of messages of the branch."""
        found: dict[str, int] = as_json("divergent", "list", self.child.grpc, "a")["topics"]
        return found

    def wake(self, name: str, *expected: bytes) -> None:
        """The session gets these and no more, those of the branch in their order."""
        with RawClient(self.home.mqtt, timeout=30) as client:
            assert client.connect(name, clean=False)
            got = [message.payload for message in taken(client, len(expected))]
            assert sorted(expected) == sorted(got)
            assert [one for one in expected if one in FIVE] == [one for one in got if one in FIVE]
            client.ping()
            client.disconnect()

    def publish(self, payload: bytes) -> None:
        """Something new in the zone; at QoS 2, which no crash gives twice."""
        with RawClient(self.root.mqtt) as client:
            client.connect("other")
            client.publish("a/0", payload, qos=2)

    def _say(self, numbers: range) -> None:
        with RawClient(self.child.mqtt) as client:
            client.connect("publisher")
            for number in numbers:
                client.publish(f"a/{number % 2}", FIVE[number], qos=1 + number % 2)


def taken(client: RawClient, count: int) -> list[wire.Publish]:
    """So many messages; the last PUBCOMP before a kill may be forgotten, and PUBREL comes again."""
    found: list[wire.Publish] = []
    while len(found) < count:
        packet = client.receive()
        if packet.kind == wire.PUBREL:
            client.send(wire.ack(wire.PUBCOMP, packet.packet_id))
            continue
        found.append(wire.parse_publish(packet))
        client.acknowledge(found[-1])
    return found


FIVE = [str(number).encode() for number in range(5)]


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    pair = Pair(tmp_path, getattr(request, "param", "root"))
    try:
        pair.begin()
        yield pair
    finally:
        for node in (pair.edge, pair.child, pair.root):
            node.close()
    for node in (pair.edge, pair.child, pair.root):
        for text in node.lines:
            assert "Traceback" not in text, text


def test_branch_is_kept_and_shown(pair: Pair) -> None:
    """By the node itself, in the tree, in `$SYS`; also after restarts."""
    for _ in range(2):
        assert {"a/0": 3, "a/1": 2} == pair.listed()
        text = output("divergent", "list", pair.child.grpc, "a")
        assert text.startswith("zone a, epoch 1: 5 messages, ")
        rows = {row["zone"]: row for row in as_json("tree", "-v", pair.root.grpc)}
        assert rows[""]["reclaimed"] == [
            {"zone": "a", "epoch": 1, "node": "child", "grpc": pair.child.grpc, "is_kept": True}
        ]
        assert "kept by the node" in output("tree", "-v", pair.root.grpc)
        said = failure("retire", pair.child.grpc)
        assert said.endswith(f"branch first: txbroker divergent list {pair.child.grpc} a")
        assert b"1" == sys_value(pair.child, "zone/divergent")
        assert b"a" == sys_value(pair.root, "zone/reclaimed")
        pair.child.kill()
        assert "node does not answer" in output("tree", "-v", pair.root.grpc)
        pair.return_()


def sys_value(node: NodeProcess, name: str) -> bytes:
    """A value that the node tells of itself, when it is not empty any more."""
    with RawClient(node.mqtt, timeout=30) as client:
        client.connect("sys")
        client.subscribe((f"$SYS/txbroker/{name}", 0))
        while (payload := client.take(1)[0].payload) in (b"0", b""):
            pass
        return payload


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("pair", ["root", "edge"], indirect=True)
def test_replay_brings_each_session_what_it_misses(pair: Pair, dies: bool) -> None:
    """Once, and the node has its zone again; also where it dies as soon as it has said so."""
    said = output("divergent", "replay", pair.child.grpc, "a")
    assert "the branch of zone a, epoch 1, is being replayed\n" == said
    pair.child.wait_event("divergent.replayed", zone="a", epoch=1)
    if dies:
        pair.child.kill()
        pair.root.kill()
        pair.root.start()
        pair.child.start()
    pair.settled()

    pair.wake("sleeper", *FIVE, b"between", b"after")
    pair.wake("witness", *FIVE[3:], b"between", b"after")
    pair.wake("waker", *FIVE, b"after")
    for name in ("sleeper", "witness", "waker"):
        pair.wake(name)
    assert "has no divergent branch of zone 'a'" in failure(
        "divergent", "list", pair.child.grpc, "a"
    )
    rows = {row["zone"]: row for row in as_json("tree", "-v", pair.root.grpc)}
    assert ("child", []) == (rows["a"]["node"], rows[""]["reclaimed"])


def test_replayed_branch_goes_along_when_its_node_retires(pair: Pair) -> None:
    """It is a part of the zone's journal like others."""
    output("divergent", "replay", pair.child.grpc, "a")
    pair.settled()
    output("retire", pair.child.grpc)
    pair.child.wait()
    shutil.rmtree(pair.child.data)

    pair.wake("sleeper", *FIVE, b"between", b"after")
    pair.wake("waker", *FIVE, b"after")


def test_drop_gives_the_branch_up(pair: Pair) -> None:
    """And nothing else."""
    said = output("divergent", "drop", pair.child.grpc, "a")
    assert "the branch of zone a, epoch 1, is dropped\n" == said
    pair.child.wait_event("divergent.dropped", zone="a", epoch=1)
    pair.settled()

    pair.wake("sleeper", b"between", b"after")
    pair.wake("waker", b"after")
    assert "has no divergent branch" in failure("divergent", "replay", pair.child.grpc, "a")


def test_drop_tells_what_else_keeps_the_zone(pair: Pair, tmp_path: Path) -> None:
    """The data folder is older than the zone's last epoch; the remedy of the warning helps."""
    pair.child.kill()
    older = tmp_path / "older"
    shutil.copytree(pair.child.data, older)
    pair.return_()
    assert "" == run("divergent", "drop", pair.child.grpc, "a").stderr
    pair.settled()
    pair.child.kill()
    shutil.rmtree(pair.child.data)
    older.rename(pair.child.data)
    pair.return_()

    done = run("divergent", "drop", pair.child.grpc, "a")

    assert (0, "the branch of zone a, epoch 1, is dropped\n") == (done.returncode, done.stdout)
    said = (
        f"warning: {pair.child.grpc}: the zone is not granted yet: node 'child' has held zone 'a'"
    )
    assert done.stderr.startswith(said) and 1 == len(done.stderr.splitlines())
    reclaim = f"txbroker reclaim {pair.root.grpc} a"
    assert done.stderr.endswith(f"{reclaim}\n") and "`data` of epoch 1" in done.stderr
    pair.child.kill()
    output(*reclaim.split()[1:])
    pair.child.start()
    pair.settled()


def test_replay_tells_that_the_parent_is_away(pair: Pair) -> None:
    """The node goes on asking for its zone, and gets it then."""
    pair.root.pause()
    done = run("divergent", "replay", pair.child.grpc, "a")
    assert 0 == done.returncode and f"parent {pair.root.grpc} does not answer" in done.stderr
    pair.root.resume()
    pair.settled()


def test_what_is_no_branch(pair: Pair) -> None:
    """One line each; nobody has missed anything by it."""
    assert "node 'root' has no divergent branch of zone 'a'" in failure(
        "divergent", "drop", pair.root.grpc, "a"
    )
    assert "has no divergent branch of zone 'b'" in failure(
        "divergent", "list", pair.child.grpc, "b"
    )
    assert "ZONE: 'a/#'" in wrong_usage("divergent", "list", pair.child.grpc, "a/#")
    assert {"a/0": 3, "a/1": 2} == pair.listed()
