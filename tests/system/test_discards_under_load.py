"""
Durable sessions that are discarded while a tree of two sites is at work and a node is killed.

Sessions begin, roam and are discarded anywhere, after 0 to 300 ms, while other clients publish.
A node dies with clients connected, whose sessions are discarded elsewhere before it is back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient
from tests.system.test_discards import begin, sessions, wait_settled

GAPS = (0.0, 0.02, 0.05, 0.1, 0.3)

LEFT = 90.0
"""Seconds in which all is gone, a minute of them promised, when the network is whole."""

PAUSE = 0.005
"""Seconds between two publishes of a client."""


@contextmanager
def traffic(nodes: list[NodeProcess]) -> Iterator[None]:
    """A client at each node publishes at QoS 1, one after the other, until the node ends."""
    is_over = threading.Event()

    def run(node: NodeProcess) -> None:
        try:
            with RawClient(node.mqtt) as client:
                client.connect(f"traffic-{node.name}")
                while not is_over.wait(PAUSE):
                    client.publish("t/x", b"load", qos=1)
        except (AssertionError, OSError):
            pass  # the node was killed

    threads = [threading.Thread(target=run, args=(node,), daemon=True) for node in nodes]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join(30.0)


def wait_whole(nodes: list[NodeProcess]) -> None:
    """Until each node begins sessions again."""
    until = time.monotonic() + LEFT
    while True:
        try:
            return wait_settled(nodes)
        except AssertionError:
            assert time.monotonic() < until
            time.sleep(0.2)


def discard(node: NodeProcess, client_id: str) -> None:
    """The client begins anew."""
    with RawClient(node.mqtt, timeout=30.0) as client:
        assert not client.connect(client_id, clean=True)


def left_over(nodes: list[NodeProcess]) -> set[str]:
    """Sessions of clients that have gone, as `txbroker sessions` lists them."""
    listed = set[str]().union(*(sessions(node) for node in nodes))
    return {client_id for client_id in listed if not client_id.startswith("traffic-")}


def visit(nodes: list[NodeProcess], name: str) -> None:
    """With each gap and number of steps, a session roams and is discarded."""
    for place, gap in enumerate(GAPS):
        for steps in (1, 2, 3):
            path = [nodes[(place + step) % len(nodes)] for step in range(steps)]
            client_id = f"{name}-{gap}-{steps}"
            begin(path, client_id, gap, is_polite=steps % 2 == 0)
            discard(nodes[(place + steps) % len(nodes)], client_id)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("victim", ["root", "a", "b"])
def test_nothing_stays_where_a_node_is_killed(tmp_path: Path, victim: str) -> None:
    """Its own site is gone with it, or goes on; what it held is told it when it is back."""
    root = NodeProcess(tmp_path, topology("root", zone="", site="one", roaming_wait="500ms"))
    with ExitStack() as stack:
        nodes = [stack.enter_context(root)]
        for name, site in (("a", "one"), ("b", "two")):
            keys = {"site": site, "parent": root.grpc, "roaming_wait": "500ms"}
            node = NodeProcess(tmp_path, topology(name, zone=name, **keys))
            nodes.append(stack.enter_context(node))
            node.wait_event("join.granted", 30.0)
        wait_settled(nodes)
        dying = next(node for node in nodes if node.name == victim)
        others = [node for node in nodes if node is not dying]
        with traffic(nodes):
            visit(nodes, "before")
            with ExitStack() as here:
                for number, gap in enumerate(GAPS):
                    begin([*others[: number % 3], dying], f"left-{gap}", gap, is_polite=False)
                    client = here.enter_context(RawClient(dying.mqtt))
                    client.connect(f"there-{gap}", clean=False)
                    client.subscribe(("t/#", 1))
                dying.kill()
            for number, gap in enumerate(GAPS):
                discard(others[number % 2], f"left-{gap}")
                discard(others[(number + 1) % 2], f"there-{gap}")
                time.sleep(gap)
            dying.start()
            wait_whole(nodes)
            visit(nodes, "after")
            until = time.monotonic() + LEFT
            while left := left_over(nodes):
                assert time.monotonic() < until, f"they stay: {left}"
                time.sleep(0.5)
