"""
A root that has forgotten a delegation serves the child's zone, too, until the child is back.

It began with an empty disk, or with a backup from before the delegation, and the child was cut off.
What it took for the zone meanwhile goes to the child, as publishes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.support.nodes import NodeProcess, close_all, fixed_node, topology
from tests.support.rawclient import RawClient
from tests.system.commands import output, run, wait_until
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2_grpc import ControlStub


class Pair:
    """root and its child `a`, which joins after a backup of the root was made."""

    def __init__(self, directory: Path, journal: str) -> None:
        self.root = fixed_node(directory, "root", zone="", journal=journal)
        self.a = NodeProcess(
            directory, topology("a", zone="a", parent=self.root.grpc, journal=journal)
        )
        self.backup = directory / "backup"
        self.root.start()

    def grow(self) -> None:
        """The zone `a` is delegated."""
        output("backup", self.root.grpc, self.backup)
        self.a.start()
        self.a.wait_event("join.granted")

    def lose_root(self, comes_back_with: str) -> None:
        """While the child is cut off the root begins with what it has."""
        self.a.pause()
        self.root.kill()
        shutil.rmtree(self.root.data)
        if comes_back_with == "backup":
            shutil.copytree(self.backup, self.root.data)
        self.root.start()

    def is_whole(self) -> bool:
        """True if the child has joined again."""
        done = run("tree", self.root.grpc, "--json")
        rows = json.loads(done.stdout or "[]")
        return 2 == len(rows) and all(row["alive"] for row in rows)

    def heal(self) -> None:
        """The child is back."""
        self.a.resume()
        wait_until(self.is_whole, what="the child joined again")


@pytest.fixture(params=["all", "none"])
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    pair = Pair(tmp_path, request.param)
    yield pair
    pair.a.resume()
    close_all((pair.a, pair.root))


def publish(node: NodeProcess, topic: str, *payloads: bytes, retain: bool = False) -> None:
    """Each is acknowledged when this returns."""
    with RawClient(node.mqtt) as client:
        client.connect(f"publisher of {payloads[0].decode()}")
        for payload in payloads:
            client.publish(topic, payload, qos=1, retain=retain)


def subscribe(node: NodeProcess, client_id: str, *filters: str) -> None:
    """A durable session, whose client leaves."""
    with RawClient(node.mqtt) as client:
        client.connect(client_id, clean=False)
        client.subscribe(*((topic_filter, 1) for topic_filter in filters))
        client.disconnect()


def take(node: NodeProcess, client_id: str, last: bytes) -> list[bytes]:
    """What waits for the session, up to that message."""
    with RawClient(node.mqtt) as client:
        assert client.connect(client_id, clean=False)
        found = client.take_until(lambda message: message.payload == last)
        client.disconnect()
    return [*(message.payload for message in found), last]


def retained(node: NodeProcess, topic: str) -> bytes | None:
    """The value that a new subscription gets."""
    with RawClient(node.mqtt) as client:
        client.connect("looks")
        client.subscribe((topic, 1))
        client.publish("looked/at", b"end", qos=0)
        return client.take(1)[0].payload


def is_serving(node: NodeProcess) -> bool:
    """True if the node says that it serves its zone."""
    with grpc.insecure_channel(node.grpc) as channel:
        return bool(ControlStub(channel).Status(control_pb2.StatusRequest(), timeout=30.0).serving)


@pytest.mark.parametrize("comes_back_with", ["nothing", "backup"])
def test_what_the_root_took_for_the_child_reaches_it(pair: Pair, comes_back_with: str) -> None:
    """Messages for the sessions at the child, and values for its retained topics."""
    publish(pair.root, "a/before", b"old", retain=True)
    pair.grow()
    publish(pair.a, "a/before", b"newer", retain=True)
    publish(pair.a, "a/x", *(b"early %d" % n for n in range(10)))
    subscribe(pair.a, "at a", "a/x", "a/value")

    pair.lose_root(comes_back_with)
    stray = [b"stray %d" % n for n in range(700)]
    publish(pair.root, "a/x", *stray)
    publish(pair.root, "a/value", b"set", retain=True)
    pair.heal()
    event = pair.root.wait_event("zone.strays_forwarded", zone="a")
    assert 701 == event["messages"]
    publish(pair.root, "a/x", b"last")

    assert [*stray, b"set", b"last"] == take(pair.a, "at a", b"last")
    for node in (pair.root, pair.a):
        assert b"set" == retained(node, "a/value")
        assert b"newer" == retained(node, "a/before")


@pytest.mark.parametrize("comes_back_with", ["nothing", "backup"])
def test_history_of_the_child_is_no_news_for_new_sessions(pair: Pair, comes_back_with: str) -> None:
    """They began at the new root, long after what the child has in its journal."""
    pair.grow()
    publish(pair.a, "a/x", *(b"early %d" % n for n in range(10)))
    pair.lose_root(comes_back_with)
    subscribe(pair.root, "new", "a/x")
    pair.heal()
    publish(pair.root, "a/x", b"last")

    assert [b"last"] == take(pair.root, "new", b"last")


def test_sessions_of_the_copy_get_the_history(pair: Pair) -> None:
    """They may have missed it; what the copy has comes before it, and what came since behind it."""
    subscribe(pair.root, "old", "a/x")
    early = [b"early %d" % n for n in range(3)]
    publish(pair.root, "a/x", *early)
    pair.grow()
    history = [b"history %d" % n for n in range(10)]
    publish(pair.a, "a/x", *history)
    pair.lose_root("backup")
    pair.heal()
    publish(pair.root, "a/x", b"last")

    assert [*early, *history, b"last"] == take(pair.root, "old", b"last")


@pytest.mark.parametrize("pair", ["all"], indirect=True)
def test_what_two_lives_of_the_root_took_for_the_child_reaches_it(
    pair: Pair, tmp_path: Path
) -> None:
    """The second one is restored from a copy of the first one, and neither knows of the child."""
    before = [b"before %d" % n for n in range(3)]
    publish(pair.root, "a/x", *before)  # of the root's own time: not handed on again
    pair.grow()
    subscribe(pair.a, "at a", "a/x")
    sent: list[bytes] = []
    for life in range(3):
        pair.lose_root("backup")
        strays = [b"stray %d %d" % (life, n) for n in range(50)]
        publish(pair.root, "a/x", *strays)
        sent += strays
        pair.backup = tmp_path / f"backup of life {life}"
        output("backup", pair.root.grpc, pair.backup)
    pair.heal()
    assert 150 == pair.root.wait_event("zone.strays_forwarded", zone="a")["messages"]
    publish(pair.root, "a/x", b"last")

    assert [*sent, b"last"] == take(pair.a, "at a", b"last")


@pytest.mark.parametrize("pair", ["all"], indirect=True)
def test_what_a_life_of_the_root_has_handed_on_is_not_handed_on_again(
    pair: Pair, tmp_path: Path
) -> None:
    """The child was there meanwhile, and says so; the next copy is from before that."""
    pair.grow()
    subscribe(pair.a, "at a", "a/x")
    pair.lose_root("backup")
    publish(pair.root, "a/x", b"first life")
    pair.backup = tmp_path / "backup of a life"
    output("backup", pair.root.grpc, pair.backup)
    pair.heal()
    assert 1 == pair.root.wait_event("zone.strays_forwarded", zone="a")["messages"]
    pair.lose_root("backup")
    publish(pair.root, "a/x", b"second life")
    pair.heal()
    assert 1 == pair.root.wait_event("zone.strays_forwarded", zone="a")["messages"]
    publish(pair.root, "a/x", b"last")

    assert [b"first life", b"second life", b"last"] == take(pair.a, "at a", b"last")


def test_a_root_that_dies_while_it_gives_them_away_goes_on(pair: Pair) -> None:
    """Killed at once: none is missing at the child; some may come again."""
    pair.grow()
    subscribe(pair.a, "at a", "a/x")
    pair.lose_root("backup")
    stray = [b"stray %d" % n for n in range(3000)]
    publish(pair.root, "a/x", *stray)
    pair.a.resume()
    pair.root.wait_event("zone.forgotten", zone="a")
    pair.root.kill()
    pair.root.start()
    wait_until(pair.is_whole, what="the child joined again")
    pair.root.wait_event("zone.strays_forwarded", zone="a")
    publish(pair.root, "a/x", b"last")

    assert {*stray, b"last"} == set(take(pair.a, "at a", b"last"))


def test_a_restored_child_waits_for_its_parent_or_an_operator(pair: Pair, tmp_path: Path) -> None:
    """Its zone may be another node's by now, which only the parent knows."""
    pair.grow()
    publish(pair.a, "a/r", b"kept", retain=True)
    pair.a.terminate()  # so that the copy has the value in its checkpoint
    pair.a.start()
    pair.a.wait_event("join.granted")
    output("backup", pair.a.grpc, tmp_path / "copy of a")
    pair.a.kill()
    pair.root.kill()
    shutil.rmtree(pair.a.data)
    shutil.copytree(tmp_path / "copy of a", pair.a.data)
    pair.a.start()
    pair.a.wait_event("join.failed")
    assert not is_serving(pair.a)
    publish(pair.a, "a/x", b"waits")

    said = output("reclaim", pair.a.grpc, "a")

    assert "zone a is served by node a now" in said
    pair.a.wait_event("zone.forced", zone="a")
    assert is_serving(pair.a)
    assert b"kept" == retained(pair.a, "a/r")
    pair.root.start()
    wait_until(pair.is_whole, what="the child joined again")
    assert b"kept" == retained(pair.root, "a/r")
