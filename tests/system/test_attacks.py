"""
What strangers do on the ports of a node does not stop an innocent client of it.

Each attack lasts for a moment only; `python -m tests.system.attacks` does all of them for longer.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import wire
from tests.support.nodes import ROOT, NodeProcess, topology
from tests.support.rawclient import RawClient

from .attacks import command
from .innocents import Pair, quantile, resident, work_of


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """
    A node that is alone, and a little less important than the tests: an answer is seen when it
    comes, not when the node has done some more work after it.
    """
    with NodeProcess(tmp_path, topology("node", zone="")) as made:
        os.setpriority(os.PRIO_PROCESS, made.pid, os.getpriority(os.PRIO_PROCESS, 0) + 3)
        yield made


def test_subscribers_that_read_nothing_hold_nobody_up(node: NodeProcess, tmp_path: Path) -> None:
    """
    Four more of them each second, who want all that an innocent pair sends in bulk. What a busy
    machine adds to that shows at a second node, where nobody attacks.
    """
    with (
        NodeProcess(tmp_path / "other", topology("other", zone="")) as other,
        Pair(address=node.mqtt, topic="bulk", size=60_000, pause=0.0) as pair,
        Pair(address=other.mqtt, topic="bulk", size=60_000, pause=0.0) as twin,
    ):
        began = time.monotonic()
        subprocess.run(command("stuck-subscribers", node, 4.0), cwd=ROOT, check=True)
        ended = time.monotonic()
    during, usual = pair.between(began, ended), twin.between(began, ended)
    assert quantile(during, 0.5) < max(10 * quantile(usual, 0.5), 0.002)
    assert _held(during) < 2 * _held(usual) + 0.2 * (ended - began)


def _held(waits: list[float]) -> float:
    """The sum of those that are long."""
    return sum(taken for taken in waits if taken > 0.02)


@pytest.mark.parametrize(
    "name",
    [
        "subscribe-large",
        "small-subscribes",
        "qos1-unread",
        "pubrel-unread",
        "ping-unread",
        "identifiers",
        "group-storm",
    ],
)
def test_work_of_one_client_is_done_in_slices(node: NodeProcess, name: str) -> None:
    """
    The node answers others in between: it was deaf for one to three seconds at a time. What it
    works until then is measured, as a busy machine makes everything late.
    """
    with Pair(address=node.mqtt, topic="innocent", worked=work_of(node)) as pair:
        began = time.monotonic()
        subprocess.run(command(name, node, 2.0), cwd=ROOT, check=True)
        time.sleep(0.2)
    worked = pair.work_between(began, time.monotonic())
    assert quantile(worked, 0.99) < 0.1
    assert resident(node) < 500 * 2**20


def test_messages_without_end_are_few(node: NodeProcess) -> None:
    """gRPC keeps each until its last byte; of 80 streams a node reads 64."""
    most = 0
    with subprocess.Popen(command("streams-half", node, 8.0), cwd=ROOT) as attack:
        while attack.poll() is None:
            most = max(most, resident(node))
            time.sleep(0.05)
    assert 0 == attack.returncode
    assert most < 500 * 2**20


def test_a_retained_answer_is_given_in_slices(node: NodeProcess) -> None:
    """Of many thousand messages, to a client that asks for them again and again."""
    with RawClient(node.mqtt, timeout=30) as client:
        client.connect("many")
        for start in range(0, 30_000, 1_000):
            topics = (f"many/{number}" for number in range(start, start + 1_000))
            client.send(*(wire.publish(topic, b"x", retain=True) for topic in topics))
        client.ping()
        with Pair(address=node.mqtt, topic="innocent", worked=work_of(node)) as pair:
            time.sleep(0.3)
            for _ in range(3):
                client.subscribe(("many/#", 0))
                found = {message.topic for message in client.take(30_000)}
                assert len(found) == 30_000
    assert quantile(sorted(one.worked for one in pair.found), 0.99) < 0.2
