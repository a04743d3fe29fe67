"""
Nodes that are late, killed or away: what waits, what goes on, and how all comes back by itself.

Real processes. `house` is root, a, below it a/b, b, and a pure edge; who stops one starts it again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import wire
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient
from tests.support.wire import PUBACK, PUBREC, SUBACK, Publish

from .commands import as_json, wait_until
from .conftest import House

SUBACK_WAIT = 2.0
"""Seconds; the default of the topology file."""

DROPPED = "txbroker/count/publish.dropped.unreachable"


class Clients:
    """Connected clients that are closed with the test."""

    def __init__(self) -> None:
        self._open: list[RawClient] = []

    def at(self, node: NodeProcess, *filters: tuple[str, int]) -> RawClient:
        """A new client of this node, with these subscriptions."""
        client = RawClient(node.mqtt, timeout=30)
        self._open.append(client)
        client.connect(f"{node.name}-{len(self._open)}")
        if filters:
            client.subscribe(*filters)
        return client

    def close(self) -> None:
        """Close all."""
        for client in self._open:
            client.close()


@pytest.fixture
def clients() -> Iterator[Clients]:
    """Clients of any node."""
    clients = Clients()
    yield clients
    clients.close()


def send(client: RawClient, topic: str, numbers: range, *, retain: bool = False) -> None:
    """QoS 1 publishes whose acknowledgements nobody waits for: packet id and payload, a number."""
    for number in numbers:
        payload = b"%d" % number
        client.send(wire.publish(topic, payload, qos=1, packet_id=number, retain=retain))


def payloads(numbers: range) -> list[bytes]:
    """What `send` sends."""
    return [b"%d" % number for number in numbers]


def take_live(client: RawClient, payload: bytes, count: int) -> list[Publish]:
    """So many messages with this payload; what was retained earlier is passed over."""
    found: list[Publish] = []
    while len(found) < count:
        found += [message for message in client.take(1) if message.payload == payload]
    return found


def node_row(house: House, zone: str, status: int) -> dict[str, Any]:
    """A zone's row of `txbroker tree --json`, which exits with this status."""
    rows = as_json("tree", house.root.grpc, status=status)
    return next(row for row in rows if row["zone"] == zone)


def known_epochs(node: NodeProcess) -> dict[str, int]:
    """Zone to epoch, for all that the node has delegated, as on its disk."""
    state = json.loads((node.data / "state.json").read_text())
    entries = [entry["cut"] for entry in state["table"]["delegations"]]
    return {cut["apex"]: cut["epoch"] for cut in entries}


def sys_value(clients: Clients, node: NodeProcess, topic: str) -> str:
    """A value of another node's `$SYS`, fetched now."""
    asking = clients.at(node, (topic, 0))
    return asking.expect_publish(topic=topic).payload.decode()


# -- late


ORDERS = [("cams", "outside", "root"), ("outside", "cams", "root"), ("cams", "root", "outside")]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_start_order_does_not_matter(
    tmp_path: Path, clients: Clients, order: tuple[str, ...]
) -> None:
    """
    Three levels in any order. Clients that came before their zone's parent lose nothing: their
    publishes are acknowledged later, their subscriptions confirmed.
    """
    root = NodeProcess(tmp_path, topology("root", zone="", suback_wait="200ms"))
    outside = NodeProcess(
        tmp_path, topology("outside", zone="home/outside", parent=root.grpc, suback_wait="200ms")
    )
    cams = NodeProcess(
        tmp_path,
        topology("cams", zone="home/outside/cams", parent=outside.grpc, suback_wait="200ms"),
    )
    nodes = {node.name: node for node in (root, outside, cams)}
    topics = ["home/x", "home/outside/x", "home/outside/cams/x"]
    try:
        early: dict[str, RawClient] = {}
        for name in order:
            early[name] = clients.at(nodes[name].start(), ("home/#", 1))
            for packet_id, topic in enumerate(topics, 101):
                early[name].send(
                    wire.publish(
                        f"{topic}/{name}", b"kept", qos=1, packet_id=packet_id, retain=True
                    )
                )
        outside.wait_event("join.granted", zone="home/outside")
        cams.wait_event("join.granted", zone="home/outside/cams")
        for client in early.values():
            for packet_id in (101, 102, 103):
                client.wait_for(PUBACK, packet_id)
        expected = {f"{topic}/{name}" for topic in topics for name in order}
        for node in nodes.values():
            late = clients.at(node, ("#", 1))
            assert expected == {message.topic for message in late.take(len(expected))}
        for client in early.values():
            found: set[str] = set()
            while found != expected:
                found |= {message.topic for message in client.take(1)}
    finally:
        for node in nodes.values():
            node.close()


def test_parent_is_not_there(tmp_path: Path, clients: Clients) -> None:
    """
    CONNECT and SUBSCRIBE are answered; the node's own zone is not served before the grant, and is
    as soon as there is one. So with a pure edge, which has nothing of its own at all.
    """
    root = NodeProcess(tmp_path, topology("root", zone=""))
    short = {"parent": root.grpc, "suback_wait": "300ms"}
    child = NodeProcess(tmp_path, topology("z", zone="z", **short))
    edge = NodeProcess(tmp_path, topology("edge", **short))
    try:
        for node in (child, edge):
            node.start(ready=False)
        talking = []
        for node in (child, edge):
            node.wait_event("join.failed", parent=root.grpc)
            start = time.monotonic()
            client = clients.at(node, ("z/#", 1), ("r", 1))
            assert time.monotonic() - start > 0.25
            node.wait_event("interest.pending", filter="z/#")
            client.send(wire.publish(f"z/{node.name}", b"0", qos=0))
            client.send(wire.publish(f"z/{node.name}", b"1", qos=1, packet_id=901))
            client.send(wire.publish(f"z/{node.name}", b"2", qos=2, packet_id=902))
            client.ping()  # neither acknowledged nor delivered
            talking.append(client)
        assert not child.has_event("join.granted")

        root.start()
        child.wait_event("join.granted", zone="z")
        edge.wait_event("join.granted", zone=None)
        for node, client in zip((child, edge), talking, strict=True):
            client.wait_for(PUBACK, 901)
            client.wait_for(PUBREC, 902)
            node.wait_event("interest.confirmed", filter="z/#")
            node.wait_event("interest.confirmed", filter="r")
        talking[1].publish("r", b"end", qos=1)
        talking[1].publish("z/end", b"end", qos=1)
        for client in talking:
            found: set[str] = set()
            while not {"r", "z/end"} <= found:
                found |= {message.topic for message in client.take(1)}
        # One line says that the parent does not answer, however long it is away.
        for node in (child, edge):
            assert 1 == sum(event["event"] == "join.failed" for event in node.events)
    finally:
        for node in (child, edge, root):
            node.close()


# -- a node is killed and comes back


def test_killed_node_comes_back(house: House, clients: Clients) -> None:
    """
    What a killed node's zone gets meanwhile is acknowledged, in order, from the outbox of the node
    that it goes to, or counted (QoS 0). Back again, it is joined and subscribed without anybody's
    doing, and each message that was acknowledged comes once, in order.
    """
    sub = clients.at(house.root, ("b/#", 1))
    pub = clients.at(house.a)
    pub.publish("b/x", b"before", qos=1)
    assert [b"before"] == [message.payload for message in sub.take(1)]
    epochs = known_epochs(house.root)

    house.b.kill()
    house.root.wait_event("child.disconnected", peer="b")
    send(pub, "b/x", range(501, 521))
    send(pub, "b/y", range(521, 541))
    house.a.wait_event("outbox.opened", zone="b")
    for number in range(501, 541):
        pub.expect(PUBACK, number)  # in the order in which they were sent
    for _ in range(3):
        pub.send(wire.publish("b/x", b"lost"))
    for packet_id, topic in enumerate(("a/x", "r", "a/b/x"), 101):
        pub.send(wire.publish(topic, b"other", qos=1, packet_id=packet_id))
        pub.expect(PUBACK, packet_id)
    pub.ping()
    dropped = sys_value(clients, house.root, f"$SYS/federation/a/{DROPPED}")
    assert 3 == int(dropped)

    house.b.start()
    house.b.wait_event("join.granted", zone="b")
    pub.publish("b/x", b"after", qos=1)
    house.a.wait_event("outbox.drained", zone="b")
    found = [m.payload for m in sub.take_until(lambda m: m.payload == b"after")]
    assert payloads(range(501, 541)) == found
    assert epochs == known_epochs(house.root)
    house.wait_whole()


def test_killed_node_has_its_subscriptions_again(house: House, clients: Clients) -> None:
    """The killed node's clients come back to it and hear the others, who know nothing of it."""
    pub = clients.at(house.a)
    clients.at(house.b, ("a/#", 1))
    house.b.kill()
    house.b.start()
    back = clients.at(house.b, ("a/#", 1), ("a/b/#", 2))
    for topic in ("a/x", "a/b/x"):
        pub.publish(topic, b"heard", qos=2)
    assert {"a/x", "a/b/x"} == {message.topic for message in back.take(2)}
    back.publish("b/x", b"own", qos=1)
    house.wait_whole()


def test_subscribing_while_a_zone_is_away(house: House, clients: Clients) -> None:
    """
    SUBACK within the bound, the missing zone pending and shown; the others' retained messages and
    live ones come; the zone's own come when it confirms.
    """
    keeper = clients.at(house.b)
    for topic in ("b/kept", "a/kept", "kept"):
        keeper.publish(topic, b"old", qos=1, retain=True)
    sub = clients.at(house.edge)  # has no link to b: nobody there asked for it
    house.b.pause()
    try:
        start = time.monotonic()
        sub.send(wire.subscribe(7, ("+/kept", 1), ("kept", 1)))
        assert [1, 1] == sub.wait_for(SUBACK, 7).codes
        assert time.monotonic() - start > SUBACK_WAIT - 0.1
        house.edge.wait_event("interest.pending", filter="+/kept", zone="b")
        assert {"a/kept", "kept"} == {m.topic for m in sub.take(2) if m.retain}
        clients.at(house.a).publish("a/kept", b"live", qos=1)
        assert b"live" == sub.take(1)[0].payload
        sub.ping()
        assert not house.edge.has_event("interest.confirmed", filter="+/kept")
    finally:
        house.b.resume()
    house.edge.wait_event("interest.confirmed", filter="+/kept")
    (kept,) = sub.take(1)
    assert ("b/kept", b"old", True) == (kept.topic, kept.payload, kept.retain)
    clients.at(house.root).publish("b/kept", b"new", qos=1)
    assert ("b/kept", b"new", False) == (lambda m: (m.topic, m.payload, m.retain))(sub.take(1)[0])
    house.wait_whole()


def test_tree_shows_who_is_away(house: House, clients: Clients) -> None:
    """Not alive, with what waits for it, status 1; a second SUBACK does not wait again."""
    sub = clients.at(house.a, ("b/#", 1))
    house.b.kill()
    try:
        house.a.wait_event("zone.unreachable", zone="b", after=house.a.mark() - 1)
        row = node_row(house, "b", status=1)
        assert row["alive"] is False and row["pending"] > 0
        assert node_row(house, "a", status=1)["alive"] is True
        sub.subscribe(("b/y", 0))
        sub.subscribe(("b/z", 0))
    finally:
        house.b.start()
    house.wait_whole()
    for topic in ("b/y", "b/z"):
        house.a.wait_event("interest.confirmed", filter=topic)
    wait_until(lambda: 0 == node_row(house, "b", status=0)["pending"], what="nothing pending")
    assert node_row(house, "b", status=0)["alive"] is True


# -- the root


def test_root_is_killed(house: House, clients: Clients) -> None:
    """
    Paths between others go on: publishes, new subscriptions in known zones, new clients; so does
    what is a node's own. What is the root's waits, and comes when it is back.
    """
    sub = clients.at(house.b, ("a/#", 2), ("a/b/#", 1))
    pub = clients.at(house.ab)
    clients.at(house.ab, ("b/warm", 0))
    pub.publish("b/x", b"warm", qos=1)
    pub.publish("a/x", b"warm", qos=1)
    take_live(sub, b"warm", 1)

    house.root.kill()
    try:
        for node in (house.a, house.b, house.edge):
            node.wait_event("join.disconnected")
        pub.publish("a/x", b"1", qos=2)
        pub.publish("a/b/x", b"2", qos=1)
        assert [b"1", b"2"] == sorted(message.payload for message in sub.take(2))
        fresh = clients.at(house.ab, ("b/new", 1), ("a/b/new", 1), ("a/new", 1))
        for topic in ("b/new", "a/b/new", "a/new"):
            fresh.publish(topic, b"3", qos=1)
            assert topic == fresh.take(1)[0].topic
        fresh.send(wire.publish("r", b"waits", qos=1, packet_id=900))
        house.ab.wait_event("zone.unreachable", zone="")
        fresh.ping()
    finally:
        house.root.start()
    fresh.wait_for(PUBACK, 900)
    for node in (house.a, house.b, house.edge):
        wait_until(
            lambda node=node: node.has_event("join.granted", after=last_loss(node)),
            what=f"{node.name} has joined again",
        )
    house.wait_whole()
    again = clients.at(house.root, ("#", 1))
    pub.publish("a/b/x", b"4", qos=1)
    pub.publish("b/x", b"4", qos=1)
    assert {"a/b/x", "b/x"} == {m.topic for m in take_live(again, b"4", 2)}


def last_loss(node: NodeProcess) -> int:
    """Where the node's log says last that the parent is gone."""
    return max(n for n, event in enumerate(node.events) if event["event"] == "join.disconnected")


def test_root_restarts_while_a_child_is_away(house: House, clients: Clients) -> None:
    """
    It refers to the child and never serves its zone: a publish waits for the child, in the root's
    outbox. Epochs on disk stay as they are.
    """
    before = known_epochs(house.root)
    house.b.kill()
    house.root.kill()
    house.root.start()
    pub = clients.at(house.root, ("b/#", 1))
    house.root.wait_event("interest.pending", filter="b/#", zone="b")
    send(pub, "b/x", range(501, 506), retain=True)
    for number in range(501, 506):
        pub.expect(PUBACK, number)
    pub.publish("r", b"own", qos=2)
    steps = as_json("resolve", house.root.grpc, "b/x", status=1)["steps"]
    assert "b" in [step["zone"] for step in steps]
    reader = clients.at(house.root, ("r", 1))
    reader.ping()
    pub.ping()

    house.b.start()
    house.b.wait_event("join.granted", zone="b", epoch=before["b"])
    house.root.wait_event("outbox.drained", zone="b", messages=5)
    take_live(pub, b"505", 1)
    assert before == known_epochs(house.root)
    house.wait_whole()


def test_both_ends_are_killed(house: House, clients: Clients) -> None:
    """A node that held its zone serves it at once, also without the parent; then all is whole."""
    epoch = known_epochs(house.root)["a"]
    house.root.kill()
    house.a.kill()
    house.a.start()
    assert json.loads((house.a.data / "state.json").read_text())["epoch"] == epoch
    own = clients.at(house.a, ("a/x", 1))
    own.publish("a/x", b"own", qos=2)
    assert b"own" == own.take(1)[0].payload
    deeper = clients.at(house.ab, ("a/x", 1))
    own.publish("a/x", b"heard", qos=1)
    assert b"heard" == deeper.take(1)[0].payload
    own.publish("a/b/x", b"1", qos=1)
    house.root.start()
    house.a.wait_event("join.granted", zone="a", epoch=epoch)
    house.wait_whole()


# -- the pure edge


def test_pure_edge(house: House, clients: Clients) -> None:
    """It owns nothing and serves clients as any node does, also after it was killed."""
    for _ in range(2):
        sub = clients.at(house.edge, ("#", 2))
        pub = clients.at(house.edge)
        far = clients.at(house.ab, ("r", 1), ("a/b/x", 1))
        topics = ["r", "a/x", "a/b/x", "b/x"]
        for topic in topics:
            pub.publish(topic, b"edge", qos=2)
        found = [message.topic for message in take_live(sub, b"edge", len(topics))]
        assert sorted(topics) == sorted(found)
        assert {"r", "a/b/x"} == {m.topic for m in take_live(far, b"edge", 2)}
        house.edge.kill()
        house.edge.start()
        house.edge.wait_event("join.granted", zone=None, epoch=0)


# -- for all that happened here


def test_no_node_said_anything_but_json(house: House) -> None:
    """And none of it was a mistake of the program."""
    for node in house.nodes:
        for text in node.lines:
            event = json.loads(text)
            assert {"time", "level", "event", "node"} <= event.keys(), text
            assert "traceback" not in event and "Traceback" not in text, text


def test_wills_that_wait_for_a_zone_are_bounded(tmp_path: Path) -> None:
    """
    A client that comes and vanishes, with a large will for a zone that is away: not more than may
    wait in memory. Others begin, and so does it when the zone is back.
    """
    keys = {"unreachable": "hold", "suback_wait": "200ms"}
    root = NodeProcess(tmp_path, topology("root", zone="", **keys))
    away = NodeProcess(tmp_path, topology("a", zone="a", parent=root.grpc))
    large = wire.Will(topic="a/w", payload=b"x" * 65_000, qos=1)
    with root, away:
        away.wait_event("join.granted")
        away.kill()

        def code_of(will: wire.Will | None) -> int:
            with RawClient(root.mqtt, timeout=30) as client:
                client.send(wire.connect("c", will=will))
                return client.receive().body[1]

        most = 64 * 1024 * 1024 // 65_000
        codes = [code_of(large) for _ in range(most + 20)]
        assert (0, 3) == (codes[0], codes[-1])
        assert most - 20 < codes.count(0) < most + 10
        assert [0, 0] == [code_of(other) for other in (None, wire.Will(topic="w", qos=1))]

        away.start()
        wait_until(lambda: code_of(large) == 0, what="room for a will")
