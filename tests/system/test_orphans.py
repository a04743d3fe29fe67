"""
An orphan is a session that the directory gives to another node, or to none.

The node that holds the session was frozen when its client went on elsewhere. The orphan ends within
a minute of the network being whole, and of the node being back where its client went.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient

from .commands import wait_until
from .test_discards import begin, sessions, wait_settled

ORPHAN = 60.0
"""Seconds in which an orphan ends, as promised."""

KEYS = {"roaming": "fresh", "roaming_wait": "1s"}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[NodeProcess]]:
    """The root and two children; a durable session is at the first child, its client has left."""
    with ExitStack() as stack:
        root = stack.enter_context(NodeProcess(tmp_path, topology("root", zone="", **KEYS)))
        made = [root]
        for name in ("a", "b"):
            node = NodeProcess(tmp_path, topology(name, zone=name, parent=root.grpc, **KEYS))
            made.append(stack.enter_context(node))
            node.wait_event("join.granted", 60.0)
        wait_settled(made)
        begin([made[1]], "x", 0.0, is_polite=True)
        assert {"x"} == sessions(made[1])
        yield made


def connect(node: NodeProcess, *, clean: bool) -> None:
    """The client begins anew there, and leaves."""
    with RawClient(node.mqtt, timeout=30.0) as client:
        assert not client.connect("x", clean=clean)


def test_session_that_another_node_has_by_now_ends(nodes: list[NodeProcess]) -> None:
    """It is merged into the one that its client began elsewhere."""
    _, a, b = nodes
    a.pause()
    connect(b, clean=False)
    a.resume()
    wait_until(lambda: not sessions(a), ORPHAN, "an end of the orphan")

    assert {"x"} == sessions(b)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_session_that_no_node_should_have_ends(
    nodes: list[NodeProcess], is_restarted: bool
) -> None:
    """Though the node that is to discard it was killed meanwhile."""
    root, a, b = nodes
    a.pause()
    connect(b, clean=True)
    if is_restarted:
        b.kill()
        b.start()
    a.resume()
    wait_until(lambda: not sessions(a), ORPHAN, "an end of the orphan")

    assert not sessions(root)
