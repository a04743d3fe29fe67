"""
Durable sessions that are discarded at another node, at once: nothing of them stays anywhere.

One to three processes. A session begins at one, roams or does not, its client says goodbye or just
goes, and comes back with clean session 1 elsewhere, after 0 to 300 ms.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient
from tests.system.commands import run

EACH = 6
"""Ways to begin: at each node, with and without a goodbye."""

ROAMING_WAIT = 2.9
"""Seconds: who waits for `roaming_wait`, which is 3 s, does not wait for less."""


@pytest.fixture
def nodes(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[NodeProcess]]:
    """The root and two children, or those of them that a test names."""
    root = NodeProcess(tmp_path, topology("root", zone="")).start()
    made = [root]
    try:
        for name in getattr(request, "param", ("a", "b")):
            node = NodeProcess(tmp_path, topology(name, zone=name, parent=root.grpc)).start()
            made.append(node)
            node.wait_event("join.granted", 30.0)
        wait_settled(made)
        yield made
    finally:
        for node in reversed(made):
            node.close()


def wait_settled(nodes: list[NodeProcess]) -> None:
    """Until a kept session begins at each within the turn of a few calls."""
    for node in nodes:
        with RawClient(node.mqtt) as client:
            client.connect("settled", clean=False)
    with RawClient(nodes[0].mqtt) as client:
        client.connect("settled", clean=True)


def sessions(node: NodeProcess) -> set[str]:
    """The client ids of the sessions that the node lists."""
    listed = run("sessions", node.grpc, "--json")
    assert listed.returncode == 0, listed.stderr
    return {row["client_id"] for row in json.loads(listed.stdout)}


def begin(path: list[NodeProcess], client_id: str, gap: float, *, is_polite: bool) -> None:
    """A session begins at the first node and goes to the others."""
    for number, node in enumerate(path):
        with RawClient(node.mqtt) as client:
            assert client.connect(client_id, clean=False) == (number > 0)
            if not number:
                client.subscribe(("t/#", 1))
            if is_polite:
                client.disconnect()
        time.sleep(gap)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "nodes", [(), ("a",), ("a", "b")], ids=["one", "two", "three"], indirect=True
)
def test_discarded_session_is_nowhere(nodes: list[NodeProcess]) -> None:
    """
    When its CONNACK is there, at no node, whichever way it took. Each gap and each number of steps
    meets each node to begin at, and clients that say goodbye as well as those that do not.
    """
    for place, gap in enumerate((0.0, 0.02, 0.05, 0.1, 0.3)):
        for steps in (1, 2, 3):
            for number in range((place + steps) % 2, EACH, 2):
                client_id = f"{steps}-{gap}-{number}"
                path = [nodes[(number + step) % len(nodes)] for step in range(steps)]
                begin(path, client_id, gap, is_polite=number < EACH // 2)
                with RawClient(nodes[(number + steps) % len(nodes)].mqtt) as client:
                    assert not client.connect(client_id, clean=True)

    left = {node.name: sessions(node) for node in nodes}
    assert {node.name: set() for node in nodes} == left


def test_connection_elsewhere_is_closed_when_connack_is_there(nodes: list[NodeProcess]) -> None:
    """Kept or clean."""
    for number in range(12):
        is_clean = number % 2 == 0
        with RawClient(nodes[number % 3].mqtt) as before:
            before.connect("x", clean=is_clean)
            with RawClient(nodes[(number + 1) % 3].mqtt) as after:
                assert not after.connect("x", clean=True)
                before.expect_closed(0.05)


def test_session_whose_node_is_away_is_discarded_when_it_is_back(
    nodes: list[NodeProcess],
) -> None:
    """CONNACK comes after `roaming_wait`, also where the node that remembers dies meanwhile."""
    root, a, b = nodes
    begin([a], "x", 0.0, is_polite=True)
    a.kill()
    began = time.monotonic()
    with RawClient(b.mqtt, timeout=30.0) as client:
        assert not client.connect("x", clean=True)
    assert time.monotonic() - began >= ROAMING_WAIT
    b.kill()
    b.start()
    a.start()
    until = time.monotonic() + 60.0
    while sessions(a):
        assert time.monotonic() < until, "it stays"
        time.sleep(0.2)
    assert not sessions(root) | sessions(b)


def test_in_a_house_of_two_the_one_that_is_left_discards(tmp_path: Path) -> None:
    """What the other one holds ends when it is back; nobody waits for it meanwhile."""
    with (
        NodeProcess(tmp_path, topology("root", zone="")) as root,
        NodeProcess(tmp_path, topology("a", zone="a", parent=root.grpc)) as a,
    ):
        a.wait_event("join.granted", 30.0)
        wait_settled([root, a])
        begin([a], "x", 0.0, is_polite=True)
        a.kill()
        until = time.monotonic() + 60.0
        waited = 10.0
        while waited >= ROAMING_WAIT:
            assert time.monotonic() < until, f"CONNACK takes {waited} s"
            began = time.monotonic()
            with RawClient(root.mqtt, timeout=30.0) as client:
                assert not client.connect("x", clean=True)
            waited = time.monotonic() - began
        root.kill()
        root.start()
        a.start()
        until = time.monotonic() + 60.0
        while sessions(a):
            assert time.monotonic() < until, "it stays"
            time.sleep(0.2)
        assert not sessions(root)


def test_a_node_that_is_cut_off_does_not_wait_for_each_client(nodes: list[NodeProcess]) -> None:
    """Most nodes of its site are known to be away: clients that begin anew are accepted at once."""
    root, a, b = nodes
    begin([a], "x", 0.0, is_polite=True)
    a.kill()
    b.kill()
    until = time.monotonic() + 60.0
    waited = 10.0
    while waited >= ROAMING_WAIT:
        assert time.monotonic() < until, f"CONNACK takes {waited} s"
        began = time.monotonic()
        with RawClient(root.mqtt, timeout=30.0) as client:
            assert not client.connect("y", clean=True)
        waited = time.monotonic() - began
    with RawClient(root.mqtt, timeout=30.0) as client:
        assert not client.connect("x", clean=True)
    a.start()
    b.start()
    until = time.monotonic() + 60.0
    while sessions(a) | sessions(b):
        assert time.monotonic() < until, "it stays"
        time.sleep(0.2)
