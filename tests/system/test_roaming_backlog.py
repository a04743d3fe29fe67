"""
A durable session that roams while its zone's owner trims: real processes, killed on the way.

400 acknowledged messages wait for it; its client comes to one node after the other and stays
nowhere long enough to take them, until it does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.nodes import NodeProcess, fixed_node
from tests.support.rawclient import RawClient

COUNT = 400

TRIMMED = 11.0
"""Seconds in which every node has trimmed once."""


@pytest.fixture(
    params=[{"journal": "none"}, {"retention": {"size": "1MiB"}}], ids=["none", "small"]
)
def nodes(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[NodeProcess]]:
    """The owner of the root zone, and three pure edges."""

    make = partial(fixed_node, tmp_path, **request.param)
    root = make("root", zone="")
    edges = [make(name, parent=root.grpc) for name in ("a", "b", "c")]
    started = [root, *edges]
    try:
        for node in started:
            node.start()
        for node in edges:
            node.wait_event("join.granted", 30.0)
        yield started
    finally:
        for node in reversed(started):
            node.close()


def traffic(root: NodeProcess, seconds: float) -> None:
    """Nobody wants it, and the journal grows by some MiB."""
    with RawClient(root.mqtt) as publisher:
        publisher.connect("traffic")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for _ in range(20):
                publisher.publish("traffic", bytes(10_000), qos=1)
            time.sleep(0.1)


def visit(node: NodeProcess) -> None:
    """The client is here for a moment and takes nothing."""
    with RawClient(node.mqtt) as client:
        assert client.connect("x", clean=False)


def test_backlog_of_a_session_that_roams(nodes: list[NodeProcess]) -> None:
    """Over kills of the node that had it, and of the one that has it."""
    root, a, b, c = nodes
    with RawClient(a.mqtt) as client:
        client.connect("x", clean=False)
        client.subscribe(("t/#", 1))
    with RawClient(root.mqtt) as publisher:
        publisher.connect("p")
        for number in range(COUNT):
            publisher.publish("t/x", b"%d " % number + bytes(2_000), qos=1)
    visit(b)
    a.kill()
    a.start()
    traffic(root, TRIMMED)
    visit(c)
    c.kill()
    c.start()
    traffic(root, TRIMMED)
    with RawClient(c.mqtt) as client:
        assert client.connect("x", clean=False)
        got: set[int] = set()
        while len(got) < COUNT:
            got.add(int(client.take(1)[0].payload.split()[0]))
