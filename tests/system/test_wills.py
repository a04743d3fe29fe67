"""
Wills of clients whose node dies, with real processes: each once, after the delay, whoever is left.

The tree: root, a (zone `a`), and the pure edges b and c; all four keep client entries. The clients
are at b; a watcher is at a node that lives. A will's payload is its client's id.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support import wire
from tests.support.nodes import NodeProcess, free_port, topology
from tests.support.rawclient import RawClient

from .commands import as_json, run, wait_until

AFTER = 3.0
"""Seconds: `will_after` of all nodes, where a test does not need more."""


@dataclass
class Tree:
    """Four nodes, and the clients that tests connect; `watcher` hears all wills."""

    root: NodeProcess
    a: NodeProcess
    b: NodeProcess
    c: NodeProcess
    clients: ExitStack
    after: float = AFTER
    wills: Counter[str] = field(default_factory=Counter)
    watcher: RawClient = field(init=False)

    @property
    def nodes(self) -> tuple[NodeProcess, ...]:
        return (self.root, self.a, self.b, self.c)

    def client(
        self, name: str, node: NodeProcess | None = None, *, clean: bool = True, **will: object
    ) -> RawClient:
        """One at b, or another node; with a will where `topic`, `qos`, `retain` are given."""
        patience = 15.0 + self.after
        client = self.clients.enter_context(RawClient((node or self.b).mqtt, timeout=patience))
        testament = wire.Will(payload=name.encode(), **will) if will else None  # type: ignore[arg-type]
        client.connect(name, clean=clean, will=testament)
        return client

    def watch(self, node: NodeProcess) -> None:
        """Hear the wills at this node."""
        self.watcher = self.client("watcher", node)
        self.watcher.subscribe(("wills/#", 2), ("a/wills/#", 2))

    def hear(self, count: int) -> None:
        """The next wills."""
        for message in self.watcher.take(count):
            self.wills[message.payload.decode()] += 1

    def hear_no_more(self) -> None:
        """Nothing comes in all the time in which it could."""
        assert not self.watcher.has_input(2 * self.after + 1.0), self.watcher.receive()

    def wait_registered(self, *names: str) -> None:
        """Until the other nodes have been told of these clients."""
        wait_until(lambda: run("tree", self.root.grpc).returncode == 0, what="a whole tree")
        wait_told(self.root)


def wait_told(node: NodeProcess) -> None:
    """
    Until what the nodes of its tree know of clients stays as it is: a node tells the keepers at
    once, or at the next beat of its heart, later on a busy machine, which is slower to look, too.
    """
    seen: list[list[object]] = []
    while len(seen) < 3 or seen[-1] != seen[-3] or seen[-2] != seen[-3]:
        time.sleep(0.6)
        rows = as_json("tree", node.grpc, "-v")
        seen.append([row["tables"].get("directory.entries") for row in rows])


@contextmanager
def a_tree(directory: Path, after: float = AFTER) -> Iterator[Tree]:
    """All four, joined and known to each other."""
    common = {"will_after": f"{after:.0f}s", "roaming": "fresh", "roaming_wait": "200ms"}

    def keys() -> dict[str, object]:
        return {"mqtt": [f"tcp:{free_port()}:interface=127.0.0.1"], **common}

    root = NodeProcess(directory, topology("root", zone="", **keys()))
    a = NodeProcess(directory, topology("a", zone="a", parent=root.grpc, **keys()))
    b = NodeProcess(directory, topology("b", parent=root.grpc, **keys()))
    c = NodeProcess(directory, topology("c", parent=root.grpc, **keys()))
    with ExitStack() as clients:
        tree = Tree(root=root, a=a, b=b, c=c, clients=clients, after=after)
        try:
            for node in tree.nodes:
                node.start()
            for node in (a, b, c):
                node.wait_event("join.granted", 30.0)
            yield tree
        finally:
            clients.close()
            for node in reversed(tree.nodes):
                node.close()


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    """See `a_tree`."""
    with a_tree(tmp_path) as tree:
        yield tree


def topic(number: int) -> str:
    """In the root's zone, or in that of a."""
    return f"{'a/' if number % 2 else ''}wills/{number}"


def many(tree: Tree, count: int, lowest_qos: int = 0) -> Counter[str]:
    """So many clients with wills of all kinds at b; each of them once."""
    for number in range(count):
        tree.client(
            f"c{number}",
            clean=bool(number // 2 % 2),
            topic=topic(number),
            qos=max(number % 3, lowest_qos),
            retain=bool(number // 4 % 2),
        )
    tree.wait_registered()
    return Counter({f"c{number}": 1 for number in range(count)})


def test_each_once_after_the_delay(tree: Tree) -> None:
    """Of kept and clean sessions, all QoS, retained or not; not again when the node is back."""
    tree.watch(tree.root)
    tree.client("well", topic="wills/well", qos=1).disconnect()
    expected = many(tree, 24)
    killed = time.monotonic()
    tree.b.kill()
    early = tree.watcher.has_input(max(killed + AFTER - 1.5 - time.monotonic(), 0.0))
    assert not early or time.monotonic() - killed > AFTER - 1.0, "before the delay was over"

    tree.hear(24)

    assert expected == tree.wills
    retained = tree.client("late", tree.c)
    retained.subscribe(("wills/#", 1), ("a/wills/#", 1))
    kept = {f"c{number}" for number in range(24) if number // 4 % 2}
    assert kept == {m.payload.decode() for m in retained.take(len(kept)) if m.retain}
    tree.b.start()
    tree.hear_no_more()


@pytest.mark.timeout(400)
def test_not_of_clients_that_are_elsewhere(tmp_path: Path) -> None:
    """Before the delay is over; a will that they have there is another one."""
    for after in (AFTER, 8 * AFTER, 32 * AFTER):
        with a_tree(tmp_path / f"{after:.0f}", after) as tree:
            tree.watch(tree.root)
            for name in ("clean", "kept", "stays"):
                tree.client(name, clean=name != "kept", topic="wills/x", qos=1)
            tree.wait_registered()
            killed = time.monotonic()
            tree.b.kill()
            tree.client("clean", tree.c)
            elsewhere = tree.client("kept", tree.a, clean=False, topic="wills/new", qos=1)
            if time.monotonic() - killed > after - 1.0:
                continue

            tree.hear(1)
            assert {"stays": 1} == tree.wills
            tree.hear_no_more()
            elsewhere.drop()
            (will,) = tree.watcher.take(1)
            assert ("wills/new", b"kept") == (will.topic, will.payload)
            tree.b.start()
            tree.hear_no_more()
            return
    pytest.fail("the clients were never elsewhere in time")


def test_a_keeper_dies_in_the_middle(tree: Tree) -> None:
    """The next one goes on, and nothing of what the first had published comes again."""
    tree.watch(tree.root)
    expected = many(tree, 120)
    tree.b.kill()
    tree.hear(10)
    tree.c.kill()

    tree.hear(110)

    assert expected == tree.wills
    for node in (tree.c, tree.b):
        node.start()
    tree.hear_no_more()


def test_all_who_know_of_them_die(tree: Tree) -> None:
    """All nodes at once: they are there again with their data, and each will comes once."""
    expected = many(tree, 24, lowest_qos=1)  # QoS 0 is dropped where its zone is away
    for node in tree.nodes:
        node.kill()
    tree.root.start()
    tree.watch(tree.root)
    for node in tree.nodes[1:]:
        node.start()

    tree.hear(24)

    assert expected == tree.wills
    tree.hear_no_more()


def restart(tree: Tree) -> bool:
    """Kill and start the node with the clients; whether it was heard of in time."""
    killed = time.monotonic()
    tree.b.kill()
    tree.b.start()
    return time.monotonic() - killed < tree.after - 1.0  # it is asked once a second


@pytest.mark.timeout(400)
def test_a_node_that_is_quickly_back_sends_them_itself(tmp_path: Path) -> None:
    """
    Not of those who are back with it; nor twice, where it dies again. What is quick depends on what
    else the machine does: where it is too slow the nodes wait for longer.
    """
    for after in (2 * AFTER, 8 * AFTER, 32 * AFTER):
        with a_tree(tmp_path / f"{after:.0f}", after) as tree:
            tree.watch(tree.c)
            many(tree, 8)
            killed = time.monotonic()
            restart(tree)
            tree.client("c0", clean=False)
            tree.client("c3", topic=topic(3), qos=1)
            restart(tree)
            # The others may not have heard of it in between, nor in the two seconds around that.
            if time.monotonic() - killed > after - 2.0:
                continue

            tree.hear(7)

            assert {f"c{number}": 1 for number in range(1, 8)} == tree.wills
            tree.hear_no_more()
            return
    pytest.fail("the node was never back in time")


@pytest.mark.timeout(400)
def test_a_node_that_is_back_for_a_moment_only(tmp_path: Path) -> None:
    """The keepers send what it had no time to send itself: those of kept sessions, at least."""
    for after in (2 * AFTER, 8 * AFTER, 32 * AFTER):
        with a_tree(tmp_path / f"{after:.0f}", after) as tree:
            tree.watch(tree.c)
            many(tree, 8)
            is_quick = restart(tree)
            started = time.monotonic()
            tree.wait_registered()
            tree.b.kill()
            if not (is_quick and time.monotonic() - started < after - 0.5):  # before its own turn
                continue

            tree.hear(4)

            assert {"c0", "c1", "c4", "c5"} == tree.wills.keys()
            tree.hear_no_more()
            tree.b.start()
            tree.hear(4)
            assert {f"c{number}": 1 for number in range(8)} == tree.wills
            tree.hear_no_more()
            return
    pytest.fail("the node was never back in time")


def test_a_node_that_was_only_frozen(tree: Tree) -> None:
    """
    It counts as dead, and its clients' wills are sent. They are used up by that: when it goes on,
    its clients are still there, and one that is lost then has no other will before it reconnects.
    """
    tree.watch(tree.root)
    lost, stays = (
        tree.client(name, clean=name == "lost", topic=topic(number), qos=1)
        for number, name in enumerate(("lost", "stays"))
    )
    tree.wait_registered()
    tree.b.pause()
    tree.hear(2)
    tree.b.resume()
    lost.drop()

    stays.ping()
    assert {"lost": 1, "stays": 1} == tree.wills
    tree.hear_no_more()
    stays.drop()
    tree.hear_no_more()
    tree.client("stays", clean=False, topic=topic(1), qos=1).drop()
    tree.hear(1)
    assert {"lost": 1, "stays": 2} == tree.wills


def test_the_root_is_dead_too(tree: Tree) -> None:
    """Wills for its zone wait in outboxes, the others come; then they come too, once."""
    tree.watch(tree.a)
    tree.client("warm", tree.c).publish(
        "a/warm", qos=1
    )  # without the root nobody finds a zone that is not known
    expected = many(tree, 12, lowest_qos=1)
    for node in (tree.root, tree.b):
        node.kill()

    tree.hear(6)
    assert {f"c{number}" for number in range(1, 12, 2)} == tree.wills.keys()
    tree.root.start()
    tree.hear(6)

    assert expected == tree.wills
    tree.b.start()
    tree.hear_no_more()


def test_a_node_that_is_stopped_in_good_order(tree: Tree) -> None:
    """It discards them, and the others do not publish them either."""
    tree.watch(tree.root)
    many(tree, 24)
    tree.b.terminate()

    tree.hear_no_more()
    tree.b.start()
    tree.hear_no_more()
