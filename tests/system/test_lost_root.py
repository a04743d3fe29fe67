"""
The root's disk is lost, and the root starts with an empty one.

Sessions elsewhere stand at offsets of the lost journal. A new journal that gave the same offsets at
the same epoch would pass for the old one, and what it has would be taken for what they had.
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
from tests.system.commands import as_json, run, wait_until
from txbroker.link.frames import LINK_VERSION
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2_grpc import ControlStub


class House:
    """root, below it a (zone `a`), below that ab (`a/b`)."""

    def __init__(self, directory: Path) -> None:
        # The port stays, as the root starts again by itself.
        self.root = fixed_node(directory, "root", zone="")
        self.a = NodeProcess(directory, topology("a", zone="a", parent=self.root.grpc))
        self.ab = NodeProcess(directory, topology("ab", zone="a/b", parent=self.a.grpc))
        self.nodes = (self.root, self.a, self.ab)
        self.root.start()
        for node in (self.a, self.ab):
            node.start()
            node.wait_event("join.granted")

    def lose_root(self) -> None:
        """Its process and its disk are gone."""
        self.root.kill()
        shutil.rmtree(self.root.directory / "data-root")

    def epoch(self) -> int:
        """The root's, as it says itself."""
        return next(int(row["epoch"]) for row in self.tree() if not row["zone"])

    def tree(self) -> list[dict[str, object]]:
        """As the root shows it."""
        rows: list[dict[str, object]] = as_json("tree", self.root.grpc)
        return rows

    def is_whole(self) -> bool:
        """True if each node has joined anew."""
        done = run("tree", self.root.grpc, "--json")
        rows = json.loads(done.stdout or "[]")
        return 3 == len(rows) and all(row["alive"] for row in rows)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    close_all(reversed(house.nodes))


def publish(node: NodeProcess, topic: str, first: int, count: int, qos: int = 1) -> list[bytes]:
    """Messages that are acknowledged when this returns."""
    payloads = [b"%d" % number for number in range(first, first + count)]
    with RawClient(node.mqtt) as client:
        client.connect(f"publisher {first}")
        for payload in payloads:
            client.publish(topic, payload, qos=qos)
    return payloads


def subscribe(node: NodeProcess, client_id: str, topic_filter: str, qos: int = 1) -> None:
    """A durable session, whose client leaves."""
    with RawClient(node.mqtt) as client:
        client.connect(client_id, clean=False)
        client.subscribe((topic_filter, qos))
        client.disconnect()


def take(node: NodeProcess, client_id: str, last: bytes) -> list[bytes]:
    """What waits for the session, up to that message."""
    with RawClient(node.mqtt) as client:
        assert client.connect(client_id, clean=False)
        found = client.take_until(lambda message: message.payload == last)
        client.disconnect()
    return [*(message.payload for message in found), last]


@pytest.mark.parametrize("count", [5, 50, 70])
def test_sessions_elsewhere_get_all_that_the_new_root_takes(house: House, count: int) -> None:
    """Before they are back, and after; by the child, and by a node below that."""
    for node in (house.a, house.ab):
        subscribe(node, f"at {node.name}", "x/#")
    had = publish(house.root, "x/y", 0, 50)
    for node in (house.a, house.ab):
        assert had == take(node, f"at {node.name}", had[-1])

    house.lose_root()
    for node in (house.a, house.ab):
        node.pause()
    house.root.start()
    early = publish(house.root, "x/y", 1000, count)
    for node in (house.a, house.ab):
        node.resume()
    wait_until(house.is_whole, what="all nodes joined again")
    late = publish(house.root, "x/y", 2000, 3)

    for node in (house.a, house.ab):
        assert early + late == take(node, f"at {node.name}", late[-1])
    assert 2 == house.epoch()


def test_nodes_that_were_down_meanwhile_get_all_that_the_new_root_takes(house: House) -> None:
    """Also where a client is there before the new root is; none of it comes twice."""
    for node in (house.a, house.ab):
        subscribe(node, f"at {node.name}", "x/#")
    had = publish(house.root, "x/y", 0, 50)
    for node in (house.a, house.ab):
        assert had == take(node, f"at {node.name}", had[-1])
    for node in (house.a, house.ab):
        node.kill()
    house.lose_root()
    house.a.start()
    with RawClient(house.a.mqtt) as client:
        assert client.connect("at a", clean=False)
        house.a.pause()
        house.root.start()
        early = publish(house.root, "x/y", 1000, 60)
        house.a.resume()
        house.ab.start()
        wait_until(house.is_whole, what="all nodes joined again")
        late = publish(house.root, "x/y", 2000, 3)

        found = client.take_until(lambda message: message.payload == late[-1])
        assert early + late == [*(message.payload for message in found), late[-1]]
    assert early + late == take(house.ab, "at ab", late[-1])


def test_the_lost_journal_is_not_read_from_the_new_one(house: House) -> None:
    """Its offsets are given again, until the root has heard of the lost one and takes its epoch."""
    for node in (house.a, house.ab):
        node.pause()
    house.lose_root()
    house.root.start()
    publish(house.root, "x/y", 0, 3)
    lost = control_pb2.Root(zone="", epoch=1, identity="lost")
    request = control_pb2.ReadRequest(zone="", epoch=1, through=10, root=lost)
    with (
        grpc.insecure_channel(house.root.grpc) as channel,
        pytest.raises(grpc.RpcError) as refused,
    ):
        ControlStub(channel).Read(request, timeout=30.0)
    house.root.wait_event("root.epoch_replaced")

    assert grpc.StatusCode.UNAVAILABLE is refused.value.code()


def test_a_node_that_only_links_to_the_root_is_known_by_that(house: House) -> None:
    """Its parent is away: the new root hears of the lost one when the link is opened."""
    subscribe(house.ab, "deep", "x/#")
    had = publish(house.root, "x/y", 0, 50)
    assert had == take(house.ab, "deep", had[-1])

    house.a.kill()
    house.ab.pause()  # the root starts again when it hears of the lost one, amid the publishes
    house.lose_root()
    house.root.start()
    news = publish(house.root, "x/y", 1000, 60)
    house.ab.resume()

    assert news == take(house.ab, "deep", news[-1])


def test_sessions_of_the_new_root_go_on(house: House) -> None:
    """They began before the new root heard of the lost one: each message once."""
    for node in (house.a, house.ab):
        node.pause()
    house.lose_root()
    house.root.start()
    subscribe(house.root, "own", "x/#", qos=2)
    news = publish(house.root, "x/y", 0, 20, qos=2)
    with RawClient(house.root.mqtt) as client:
        client.connect("own", clean=False)
        had = [packet.payload for packet in client.take(8)]
        client.disconnect()
    publish(house.root, "x/kept", 500, 1)
    with RawClient(house.root.mqtt) as client:
        client.connect("retainer")
        client.publish("x/retained", b"value", qos=1, retain=True)
    for node in (house.a, house.ab):
        node.resume()
    wait_until(house.is_whole, what="all nodes joined again")
    late = publish(house.root, "x/y", 1000, 1)

    rest = take(house.root, "own", late[-1])
    assert [*news, b"500", b"value", *late] == had + rest
    with RawClient(house.ab.mqtt) as client:
        client.connect("looks")
        client.subscribe(("x/retained", 1))
        assert b"value" == client.take(1)[0].payload
    house.root.kill()
    house.root.start()
    assert 2 == house.epoch()


def test_clients_that_stayed_get_all(house: House) -> None:
    """At a child, connected all the time; and what goes from the new root to the child's zone."""
    for _ in range(3):  # lives that owners know of
        house.root.terminate()
        house.root.start()
    with RawClient(house.a.mqtt) as stays:
        stays.connect("stays")
        stays.subscribe(("x/#", 1), ("a/#", 1))
        publish(house.root, "x/y", 0, 50)
        publish(house.root, "a/y", 100, 50, qos=2)
        assert 100 == len(stays.take(100))
        house.lose_root()
        house.root.start()
        wait_until(house.is_whole, what="all nodes joined again")

        publish(house.root, "x/y", 1000, 20)
        publish(house.root, "a/y", 2000, 20, qos=2)
        publish(house.a, "x/y", 3000, 20)

        found = sorted(int(packet.payload) for packet in stays.take(60))
        assert [*range(1000, 1020), *range(2000, 2020), *range(3000, 3020)] == found


def test_sessions_get_what_zones_take_that_the_new_root_does_not_know(
    house: House, tmp_path: Path
) -> None:
    """A link to the zone flows all the time, while its parent is away and nobody tells the root."""
    with NodeProcess(tmp_path, topology("edge", parent=house.root.grpc)) as edge:
        edge.wait_event("join.granted")
        with RawClient(edge.mqtt) as stays:
            stays.connect("stays", clean=False)
            stays.subscribe(("a/#", 1), ("x/y", 1))
            publish(house.ab, "a/b/y", 0, 1)
            stays.take(1)
            house.a.pause()
            house.lose_root()
            mark = edge.mark()
            house.root.start()
            edge.wait_event("link.opened", after=mark, zone="")
            news = publish(house.ab, "a/b/y", 100, 5)
            house.a.resume()
            house.root.wait_event("child.joined", 30.0, zone="a")
            news += publish(house.ab, "a/b/y", 200, 1)

            assert news == [packet.payload for packet in stays.take(len(news))]


def test_what_waits_elsewhere_for_a_client_that_begins_anew_comes(house: House) -> None:
    """It moved to the new root, which knew nobody; its sessions meet when all nodes are back."""
    subscribe(house.a, "moves", "a/x")
    waiting = publish(house.a, "a/x", 0, 5)
    for node in (house.a, house.ab):
        node.pause()
    house.lose_root()
    house.root.start()
    subscribe(house.root, "moves", "a/x")
    house.a.resume()
    house.root.wait_event("root.epoch_replaced")
    house.root.wait_event("child.joined", zone="a")
    # Until all members answer the two sessions do not hear of each other.
    with RawClient(house.root.mqtt) as follows:
        follows.connect("follows")
        follows.subscribe(("a/x", 1))
        waiting += publish(house.a, "a/x", 100, 2)
        follows.take(2)
    house.ab.resume()
    # Where it is goes by who hears of the other first.
    holders = (house.root, house.a)
    wait_until(
        lambda: 1 == sum(len(as_json("sessions", node.grpc)) for node in holders),
        what="the two sessions are one",
    )
    waiting += publish(house.a, "a/x", 200, 1)

    assert waiting == sorted(take(house.root, "moves", waiting[-1]), key=int)


def test_invented_roots_restart_the_root_some_times_only(house: House) -> None:
    """A node that lies about the root is refused at last, with the remedy; others go on."""
    with grpc.insecure_channel(house.root.grpc) as channel:
        stub = ControlStub(channel)
        details = ""
        for number in range(40):
            root = control_pb2.Root(zone="", epoch=1000 + number, identity=f"invented {number}")
            request = control_pb2.OpenLinkRequest(
                edge="liar", incarnation=1, zone="", root=root, link_version=LINK_VERSION
            )
            try:
                stub.OpenLink(request, timeout=30.0, wait_for_ready=True)
            except grpc.RpcError as error:
                details = error.details()
                if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                    break
            wait_until(house.is_whole, what="the root is back")

    assert "delete `data` of the node that says so" in details
    assert 8 == sum(event["event"] == "root.epoch_replaced" for event in house.root.events)
    wait_until(house.is_whole, what="all nodes joined again")
    subscribe(house.a, "works", "x/#")
    news = publish(house.root, "x/y", 0, 3)
    assert news == take(house.a, "works", news[-1])
