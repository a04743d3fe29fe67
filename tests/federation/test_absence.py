"""
Nodes that are late, away, killed or talked to by strangers: real processes, the documented command.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support import wire
from tests.support.nodes import NodeProcess, free_port, topology
from tests.support.rawclient import RawClient
from tests.support.wire import PUBACK, PUBLISH
from txbroker.link.frames import FrameReader, encode_frame
from txbroker.mqtt.packets import Publish
from txbroker.v1 import control_pb2, link_pb2
from txbroker.v1.control_pb2_grpc import ControlStub

Make = Callable[..., NodeProcess]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes nodes that are not started yet; all end with the test, and none wrote a traceback."""
    made: list[NodeProcess] = []

    def build(name: str, **keys: Any) -> NodeProcess:
        made.append(NodeProcess(tmp_path, topology(name, **keys)))
        return made[-1]

    yield build
    for node in reversed(made):
        node.close()
    for node in made:
        assert_clean(node)


def assert_clean(node: NodeProcess) -> None:
    """Every line is one JSON object, none of them an error of the program."""
    for line in node.lines:
        event = json.loads(line)
        assert "traceback" not in event and "Traceback" not in line, line


class Tree:
    """Root, `a` and `b` below it, started; clients by node."""

    def __init__(self, make: Make, **keys: Any) -> None:
        self.root = make("root", zone="", **keys)
        self.a = make("a", zone="a", parent=self.root.grpc, **keys)
        self.b = make("b", zone="b", parent=self.root.grpc, **keys)
        self.clients: list[RawClient] = []
        for node in (self.root, self.a, self.b):
            node.start(ready=False)
        for node in (self.a, self.b):
            node.wait_event("join.granted")

    def client(self, node: NodeProcess, *filters: tuple[str, int], **options: Any) -> RawClient:
        """A client with these subscriptions."""
        client = RawClient(node.mqtt)
        self.clients.append(client)
        client.connect(f"c{len(self.clients)}", **options)
        if filters:
            client.subscribe(*filters)
        return client


@pytest.fixture
def tree(make: Make) -> Iterator[Tree]:
    """The three nodes."""
    tree = Tree(make)
    yield tree
    for client in tree.clients:
        client.close()


def counters(node: NodeProcess) -> dict[str, int]:
    """The node's counters, as an operator asks for them."""
    with grpc.insecure_channel(node.grpc) as channel:
        return dict(ControlStub(channel).Status(control_pb2.StatusRequest(), timeout=5).counters)


def eventually(condition: Callable[[], object], timeout: float = 8.0) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


# -- coming and going


@pytest.mark.parametrize("order", list(itertools.permutations(("root", "a", "a-b"))), ids=" ".join)
def test_start_order_does_not_matter(make: Make, order: tuple[str, ...]) -> None:
    """Three nodes, one below the other, in all orders; each waits for the one before to be up."""
    root = make("root", zone="")
    a = make("a", zone="a", parent=root.grpc)
    a_b = make("a-b", zone="a/b", parent=a.grpc)
    nodes = {"root": root, "a": a, "a-b": a_b}
    for name in order:
        nodes[name].start()
    a.wait_event("join.granted", zone="a")
    a_b.wait_event("join.granted", zone="a/b")
    with RawClient(root.mqtt) as sub, RawClient(a_b.mqtt) as pub:
        sub.connect("sub")
        sub.subscribe(("#", 1))
        pub.connect("pub")
        topics = ["x", "a/x", "a/b/x"]
        for topic in topics:
            pub.publish(topic, b"1", qos=1)
        assert sorted(topics) == sorted(message.topic for message in sub.take(3))


def test_killed_node_comes_back_by_itself(tree: Tree) -> None:
    """Joined, resolved and subscribed again without a client's doing, both as owner and as edge."""
    far = tree.client(tree.root, ("b/#", 1))
    pub = tree.client(tree.a)
    pub.publish("b/x", b"before", qos=1)
    assert far.take(1)[0].payload == b"before"
    tree.b.kill()
    tree.b.start()
    tree.b.wait_event("join.granted", zone="b")
    pub.publish("b/x", b"after", qos=1)
    assert far.take(1)[0].payload == b"after"
    back = tree.client(tree.b, ("a/#", 1))
    pub.publish("a/x", b"edge", qos=1)
    assert back.take(1)[0].payload == b"edge"
    assert tree.root.has_event("child.away", peer="b")


def test_zone_that_is_away(tree: Tree) -> None:
    """Pending interest, QoS 0 counted, QoS 1 and 2 held; everything else works; then it is back."""
    pub = tree.client(tree.a)
    pub.publish("b/warm", b"", qos=1)
    tree.b.kill()

    sub = tree.client(tree.a)
    before = time.monotonic()
    sub.subscribe(("+/x", 1))
    assert time.monotonic() - before < 4
    tree.a.wait_event("zone.unreachable", zone="b")
    tree.a.wait_event("interest.pending", filter="+/x", zone="b")
    pub.publish("b/x", b"lost", qos=0)
    eventually(lambda: counters(tree.a).get("publish.dropped.unreachable", 0) >= 1)
    pub.send(wire.publish("b/x", b"held 1", qos=1, packet_id=901))
    pub.send(wire.publish("b/x", b"held 2", qos=2, packet_id=902))
    pub.ping()
    pub.publish("a/x", b"own", qos=1)
    pub.publish("r/x", b"root's", qos=2)
    assert {m.payload for m in sub.take(2)} == {b"own", b"root's"}
    other = tree.client(tree.root, ("r/y", 0))
    tree.client(tree.a).publish("r/y", b"still", qos=1)
    assert other.take(1)[0].payload == b"still"

    tree.b.start()
    tree.b.wait_event("join.granted")
    pub.wait_for(PUBACK, 901)
    pub.wait_for(wire.PUBREC, 902)
    tree.a.wait_event("interest.confirmed", filter="+/x")
    tree.client(tree.root).publish("b/x", b"back", qos=1)
    got = []
    while not got or got[-1].payload != b"back":
        got += sub.take(1)
    assert b"lost" not in [m.payload for m in got]


def test_subscription_from_before_gets_what_was_held(tree: Tree) -> None:
    """Confirmed subscribers of the zone get the held publishes once, in order, when it is back."""
    sub = tree.client(tree.root, ("b/#", 2))
    pub = tree.client(tree.a)
    pub.publish("b/x", b"0", qos=1)
    assert sub.take(1)[0].payload == b"0"
    tree.b.kill()
    for number in range(1, 21):
        pub.send(wire.publish("b/x", b"%d" % number, qos=1, packet_id=number))
    pub.ping()
    tree.a.wait_event("zone.unreachable", zone="b")
    tree.b.start()
    tree.b.wait_event("join.granted")
    for number in range(1, 21):
        pub.wait_for(PUBACK, number)
    sub2 = tree.client(tree.root, ("b/#", 1))
    pub.publish("b/x", b"end", qos=1)
    assert sub2.take(1)[0].payload == b"end"
    got = [m.payload for m in sub.take_until(lambda m: m.payload == b"end")]
    # The owner was new; what came before this edge was back is in the owner's recent journal.
    assert got == [b"%d" % number for number in range(1, 21)]


def test_root_is_stopped(tree: Tree) -> None:
    """Cached paths, the nodes' own zones and new clients go on."""
    sub = tree.client(tree.b, ("a/#", 1), ("b/#", 1))
    pub = tree.client(tree.a)
    pub.publish("b/x", b"1", qos=1)
    assert sub.take(1)[0].payload == b"1"
    status = tree.root.terminate()
    assert status in (0, 143, -15)
    tree.a.wait_event("join.lost")
    pub.publish("b/x", b"2", qos=2)
    pub.publish("a/x", b"3", qos=1)
    assert {m.payload for m in sub.take(2)} == {b"2", b"3"}
    late = tree.client(tree.a, ("a/y", 1), ("b/y", 1))
    late.publish("b/y", b"4", qos=1)
    late.publish("a/y", b"5", qos=1)
    assert {m.payload for m in late.take(2)} == {b"4", b"5"}
    tree.root.start()
    tree.a.wait_event("join.granted", after=tree.a.mark() - 1)
    tree.client(tree.root).publish("b/x", b"6", qos=1)
    assert sub.take(3)[-1].payload == b"6"


def test_children_restart_without_the_root(tree: Tree) -> None:
    """A node with a grant on disk serves its zone at once, and finds the others again."""
    tree.root.terminate()
    tree.a.kill()
    tree.a.start()
    client = tree.client(tree.a, ("a/#", 1))
    client.publish("a/x", b"own", qos=1)
    assert client.take(1)[0].payload == b"own"


def test_root_restarts_while_a_child_is_away(tree: Tree) -> None:
    """It goes on referring to the child and never serves its zone."""
    tree.b.kill()
    tree.root.kill()
    tree.root.start()
    client = tree.client(tree.root)
    client.send(wire.publish("b/x", b"held", qos=1, retain=True, packet_id=7))
    client.ping()
    sub = tree.client(tree.root, ("b/#", 1))
    tree.root.wait_event("interest.pending", zone="b")
    sub.ping()
    with grpc.insecure_channel(tree.root.grpc) as channel:
        request = control_pb2.ResolveRequest(question="b/x", zone="")
        reply = ControlStub(channel).Resolve(request, timeout=5)
    assert [cut.node for cut in reply.referrals] == ["b"]
    client.ping()  # still no PUBACK

    tree.b.start()
    client.wait_for(PUBACK, 7)
    assert sub.take(1)[0].payload == b"held"


def test_sigterm_ends_soon_and_sends_no_wills(tree: Tree) -> None:
    """Five seconds at the most; the zone stays delegated."""
    sub = tree.client(tree.b, ("#", 1))
    tree.client(tree.a, will=wire.Will(topic="b/will", payload=b"will", qos=1))
    tree.client(tree.a, ("b/#", 1)).publish("b/x", b"1", qos=1)
    assert sub.take(1)[0].payload == b"1"
    before = time.monotonic()
    status = tree.a.terminate()
    assert time.monotonic() - before < 5
    assert status in (143, -15)
    tree.root.wait_event("child.away", peer="a")
    tree.client(tree.b).publish("b/x", b"2", qos=1)
    assert sub.take(1)[0].payload == b"2"


def test_frozen_node_is_noticed(tree: Tree) -> None:
    """A node that is silent, its sockets open, counts as away within seconds, and is back after."""
    sub = tree.client(tree.root, ("b/#", 1))
    pub = tree.client(tree.a)
    pub.publish("b/x", b"1", qos=1)
    sub.take(1)
    tree.b.pause()
    try:
        pub.send(wire.publish("b/x", b"2", qos=1, packet_id=9))
        tree.a.wait_event("zone.unreachable", zone="b", timeout=20)
    finally:
        tree.b.resume()
    pub.wait_for(PUBACK, 9)
    assert sub.take(1)[0].payload == b"2"


# -- one copy on the link


class CountingProxy:
    """Listens on 127.0.0.2 and passes everything on to the same port of 127.0.0.1."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.down: list[Publish] = []
        self._listener = socket.create_server(("127.0.0.2", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """No more connections."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.port))
            for source, sink, is_down in ((near, far, False), (far, near, True)):
                threading.Thread(
                    target=self._pump, args=(source, sink, is_down), daemon=True
                ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_down: bool) -> None:
        reader = FrameReader(1 << 24)
        with source, sink:
            try:
                while data := source.recv(65_536):
                    if is_down and self.port_is_link:
                        self.down += [i for i in reader.read(data) if isinstance(i, Publish)]
                    sink.sendall(data)
                sink.shutdown(socket.SHUT_WR)
            except OSError:
                pass

    port_is_link = True


def test_one_copy_on_the_link_for_many_clients(make: Make) -> None:
    """Twenty clients of one edge: the owner sends each message once."""
    root = make("root", zone="").start()
    link = free_port()
    b = make(
        "b", zone="b", parent=root.grpc, link=f"127.0.0.1:{link}", advertise="127.0.0.2"
    ).start()
    proxy = CountingProxy(link)
    control = CountingProxy(int(b.grpc.rpartition(":")[2]))
    control.port_is_link = False
    b.wait_event("join.granted")
    clients = []
    try:
        for number in range(20):
            client = RawClient(root.mqtt)
            client.connect(f"c{number}")
            client.subscribe((("b/#", "b/+", "+/x")[number % 3], number % 3))
            clients.append(client)
        with RawClient(b.mqtt) as pub:
            pub.connect("pub")
            for number in range(50):
                pub.publish("b/x", b"%d" % number, qos=number % 3)
        for client in clients:
            assert [m.payload for m in client.take(50)] == [b"%d" % n for n in range(50)]
        assert [p.payload for p in proxy.down] == [b"%d" % n for n in range(50)]
    finally:
        for client in clients:
            client.close()
        proxy.close()
        control.close()


# -- strangers and mistakes


FOREIGN = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": bytes.fromhex("160301020001000001fc0303") + bytes(200),
    "mqtt": wire.connect("stranger") + wire.publish("a/x", b"1"),
    "hello": encode_frame(
        link_pb2.LinkFrame(hello=link_pb2.Hello(version=1, token=b"guess", edge="a", zone="a"))
    ),
    "batch": encode_frame(link_pb2.LinkFrame(batch=link_pb2.Batch(count=9))),
    "zeros": bytes(5000),
    "ones": b"\xff" * 5000,
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100),
}


def test_foreign_bytes_harm_nothing(tree: Tree) -> None:
    """Whatever comes on the MQTT, gRPC and link ports: the node goes on and says what happened."""
    address = tree.a.grpc.rpartition(":")
    ports = [tree.a.mqtt[1], int(address[2]), int(tree.a.link.rpartition(":")[2])]
    generator = random.Random(5)
    random_bytes = [generator.randbytes(generator.randrange(1, 4000)) for _ in range(20)]
    for port in ports:
        for data in [*FOREIGN.values(), *random_bytes]:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                try:
                    connection.sendall(data)
                except ConnectionError:
                    pass
    sub = tree.client(tree.a, ("b/#", 1), ("a/#", 1))
    tree.client(tree.b).publish("a/ok", b"1", qos=1)
    assert sub.take(1)[0].payload == b"1"
    assert counters(tree.a)["link.refused"] > 5


def assert_refused(node: NodeProcess, *words: str) -> None:
    """It ends with status 1 and one line that has these words."""
    before = len(node.lines)
    node.start(ready=False)
    assert node.wait(8) == 1, node.tail()
    lines = node.lines[before:]
    assert not any("Traceback" in line for line in lines), node.tail()
    found = [line for line in lines if all(word in line for word in words)]
    assert len(found) == 1, node.tail()
    # Nothing on the way but single events of level info.
    for line in lines:
        assert line == found[0] or json.loads(line)["level"] == "info", node.tail()


@pytest.mark.parametrize("key", ["mqtt", "grpc", "link"])
def test_port_in_use(make: Make, key: str) -> None:
    """One line, status 1."""
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        value: Any = f"127.0.0.1:{port}"
        node = make(
            "n", zone="", **{key: [f"tcp:{port}:interface=127.0.0.1"] if key == "mqtt" else value}
        )
        assert_refused(node, key, str(port))


def test_zone_claimed_twice(tree: Tree, make: Make) -> None:
    """The second one is refused and ends; the first goes on."""
    twin = make("twin", zone="a", parent=tree.root.grpc)
    assert_refused(twin, "'a'", "retire")
    outside = make("outside", zone="b/x", parent=tree.a.grpc)
    assert_refused(outside, "'b/x'")
    sub = tree.client(tree.b, ("a/#", 1))
    tree.client(tree.root).publish("a/x", b"1", qos=1)
    assert sub.take(1)[0].payload == b"1"


def test_parent_that_cannot_be_reached(make: Make) -> None:
    """The node answers clients, retries for ever, and its zone is unreachable until granted."""
    parent = f"127.0.0.1:{free_port()}"
    node = make("n", zone="z", parent=parent).start()
    node.wait_event("join.failed", parent=parent)
    with RawClient(node.mqtt) as client:
        client.connect("c")
        client.subscribe(("z/#", 1))
        client.send(wire.publish("z/x", b"1", qos=1, packet_id=3))
        client.ping()
        root = make("root", zone="", grpc=parent).start()
        node.wait_event("join.granted", zone="z")
        client.wait_for(PUBACK, 3)
        assert wire.parse_publish(client.expect(PUBLISH)).payload == b"1"
        assert root.has_event("child.joined", peer="n")
    failures = [e for e in node.events if e["event"] == "join.failed"]
    assert len(failures) == 1


def test_bad_file(make: Make, tmp_path: Path) -> None:
    """A mistake in the file is one line with file, key, value."""
    node = make("n", zone="z/+")
    assert_refused(node, "n.yaml", "zone", "z/+")
    node.document["zone"] = "z"
    node.document["colour"] = "blue"
    assert_refused(node, "n.yaml", "colour")


def test_data_of_another_process(make: Make) -> None:
    """A second process on the same `data` ends with status 1; the first goes on."""
    first = make("root", zone="").start()
    second = make("root", zone="", data=first.document["data"])
    assert_refused(second, os.path.basename(first.document["data"]), "in use")
    with RawClient(first.mqtt) as client:
        client.connect("c")
        client.subscribe(("x", 1))
        client.publish("x", b"1", qos=1)
        client.take(1)
