"""
What passes between the nodes, counted on the links themselves.

Four processes, each owner's links through a counting proxy. Topics are a test's own, so that what
others left on the way does not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.nodes import NodeProcess, topology
from tests.support.proxy import LinkProxy, Passed, behind_proxy
from tests.support.rawclient import RawClient

from .commands import wait_until


class Site:
    """root, a (zone `a`), ab below it (`a/b`), and a pure edge; their links can be counted."""

    def __init__(self, nodes: dict[str, NodeProcess], proxies: list[LinkProxy]) -> None:
        self.nodes = nodes
        self.proxies = proxies
        self._clients: list[RawClient] = []

    def client(self, node: str, *filters: tuple[str, int]) -> RawClient:
        """A connected client with these subscriptions."""
        client = RawClient(self.nodes[node].mqtt)
        self._clients.append(client)
        client.connect(f"{node}-{len(self._clients)}")
        if filters:
            client.subscribe(*filters)
        return client

    def passed(self, topic: str) -> list[Passed]:
        """All messages on this topic, over all links."""
        return [one for proxy in self.proxies for one in list(proxy.passed) if one.topic == topic]

    def opened(self) -> int:
        """Links opened so far."""
        return sum(proxy.opened for proxy in self.proxies)

    def close_clients(self) -> None:
        """All of them."""
        for client in self._clients:
            client.close()
        self._clients.clear()


NODES = ("root", "a", "ab", "edge")

OWNERS = {"r": "root", "a": "a", "a/b": "ab"}
"""Where a test's topics are (`<base>/...`), and whose they are."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Four processes and three proxies."""
    folder = tmp_path_factory.mktemp("copies")
    documents = {"root": behind_proxy("root", zone="")}
    documents["a"] = behind_proxy("a", zone="a", parent=documents["root"]["grpc"])
    documents["ab"] = behind_proxy("ab", zone="a/b", parent=documents["a"]["grpc"])
    proxies = [LinkProxy(document) for document in documents.values()]
    documents["edge"] = topology("edge", parent=documents["root"]["grpc"])
    nodes = {name: NodeProcess(folder, document) for name, document in documents.items()}
    try:
        for node in nodes.values():
            node.start(ready=False)
        for name in ("a", "ab", "edge"):
            nodes[name].wait_event("join.granted", 30)
        yield Site(nodes, proxies)
    finally:
        for node in reversed(nodes.values()):
            node.close()
        for proxy in proxies:
            proxy.close()


@pytest.fixture
def site(running: Site) -> Iterator[Site]:
    """The processes; the clients end with the test."""
    yield running
    running.close_clients()


def test_one_copy_for_twenty_subscribers(site: Site) -> None:
    """Whatever their filters and QoS: each message passes the link once."""
    filters = ["a/many/#", "a/+/x", "#", "a/many/x"]
    subscribers = [site.client("edge", (filters[n % 4], n % 3)) for n in range(20)]
    pub = site.client("a")
    sent = [b"%d" % number for number in range(30)]
    for number, payload in enumerate(sent):
        pub.publish("a/many/x", payload, qos=number % 3)
    for subscriber in subscribers:
        assert sent == [message.payload for message in subscriber.take(len(sent))]
    passed = site.passed("a/many/x")
    assert [("a", "edge", False, payload) for payload in sent] == [
        (one.owner, one.edge, one.is_publish, one.payload) for one in passed
    ]


def test_no_copy_without_a_matching_client(site: Site) -> None:
    """An edge with other filters gets nothing; one whose last client left gets no more."""
    other = site.client("edge", ("a/other", 1))
    sub = site.client("root", ("a/this/+", 1))
    leaving = site.client("ab", ("a/this/#", 1), ("a/other", 1))
    pub = site.client("a")
    pub.publish("a/this/1", b"", qos=1)
    pub.publish("a/other", b"1", qos=1)
    for client, count in ((other, 1), (sub, 1), (leaving, 2)):
        client.take(count)
    leaving.unsubscribe("a/this/#")
    leaving.publish("a/behind", b"", qos=1)  # on the same link: the owner has taken both
    pub.publish("a/this/2", b"", qos=1)
    pub.publish("a/other", b"2", qos=1)
    for client in (other, sub, leaving):
        client.take(1)
    # The last one came on the same links, after whatever else there was.
    edges = [(one.topic, one.edge) for t in ("a/this/1", "a/this/2") for one in site.passed(t)]
    assert {("a/this/1", "root"), ("a/this/1", "ab"), ("a/this/2", "root")} == set(edges)
    assert 3 == len(edges)
    assert Counter({"edge": 2, "ab": 2}) == Counter(p.edge for p in site.passed("a/other"))


def test_two_hops_and_nothing_else(site: Site) -> None:
    """
    Everybody hears everything, from every node to every zone: a message passes to its owner (not
    where it came in there) and from it to each other node, once; who received it sends it nowhere.
    """
    subscribers = {name: site.client(name, ("+/hops/#", 2), ("a/b/hops/#", 1)) for name in NODES}
    topics = [f"{base}/hops/{name}" for base in OWNERS for name in NODES]
    for name in NODES:
        pub = site.client(name)
        for base in OWNERS:
            pub.publish(f"{base}/hops/{name}", b"", qos=1)
    for subscriber in subscribers.values():
        assert sorted(topics) == sorted(m.topic for m in subscriber.take(len(topics)))
    # A second message behind each proves that nothing was still on its way.
    for name in NODES:
        for base in OWNERS:
            site.client(name).publish(f"{base}/hops/end", b"", qos=1)
    for subscriber in subscribers.values():
        subscriber.take(len(topics))
    for base, owner in OWNERS.items():
        for name in NODES:
            found = Counter(
                (one.owner, one.edge, one.is_publish) for one in site.passed(f"{base}/hops/{name}")
            )
            expected = Counter((owner, edge, False) for edge in NODES if edge != owner)
            if name != owner:
                expected[owner, name, True] += 1
            assert expected == found, f"{name} -> {base}"


def test_a_nodes_own_zone_needs_no_link(site: Site) -> None:
    """Publisher, subscriber and owner at one node: nothing passes anywhere."""
    sub, pub = site.client("ab", ("a/b/own", 1)), site.client("ab")
    pub.publish("a/b/own", b"", qos=2)
    sub.take(1)
    assert [] == site.passed("a/b/own")


def has_joined(node: NodeProcess) -> bool:
    """True if the last that it said of its parent is that it is there."""
    said = [event["event"] for event in list(node.events)]
    return "join.granted" == [name for name in said if name.startswith("join.")][-1]


def test_killing_the_root_changes_no_path(site: Site) -> None:
    """The same links carry the same packets: one to the owner, one to the subscriber's node."""
    sub, pub = site.client("edge", ("a/b/path/#", 1)), site.client("a")

    def path(topic: str) -> list[tuple[str, str, bool]]:
        pub.publish(topic, b"", qos=1)
        assert topic == sub.take(1)[0].topic
        return [(one.owner, one.edge, one.is_publish) for one in site.passed(topic)]

    before = path("a/b/path/1")
    assert [("ab", "a", True), ("ab", "edge", False)] == before
    opened = site.opened()
    root = site.nodes["root"]
    root.kill()
    try:
        for name in ("a", "edge"):
            site.nodes[name].wait_event("join.disconnected")
        assert before == path("a/b/path/2")
        late = site.client("edge", ("a/b/path/3", 1))
        assert before == path("a/b/path/3")
        assert "a/b/path/3" == late.take(1)[0].topic
        assert opened == site.opened()
    finally:
        root.start()
    for name in ("a", "edge"):
        wait_until(lambda name=name: has_joined(site.nodes[name]), what=f"{name} joins again")
    assert before == path("a/b/path/4")
