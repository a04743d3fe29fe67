"""A storm of strangers' calls on the gRPC port of a node: who else calls it is answered."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.history import History
from tests.support.nodes import ROOT, NodeProcess, topology
from tests.support.rawclient import RawClient

from .attacks import command
from .commands import as_json
from .innocents import Newcomer, quantile, work_of

SECONDS = 5.0


@pytest.fixture
def pairs(tmp_path: Path) -> Iterator[list[tuple[NodeProcess, NodeProcess]]]:
    """Two roots with a child each: the second pair shows what a busy machine adds."""
    with ExitStack() as stack:
        made = []
        for name in ("stormed", "twin"):
            node = NodeProcess(tmp_path / name, topology(name, zone=""))
            stack.enter_context(node)
            child = NodeProcess(
                tmp_path / name, topology(f"{name}-child", zone="child", parent=node.grpc)
            )
            stack.enter_context(child)
            child.wait_event("join.granted")
            made.append((node, child))
        yield made


def newcomers(node: NodeProcess, child: NodeProcess) -> Newcomer:
    """Clients of the child whose sessions are kept: it asks the node for each."""
    return Newcomer(
        address=child.mqtt, name="kept", pause=0.1, clean=False, worked=work_of(node, child)
    )


def test_a_childs_calls_wait_for_none_of_them(
    pairs: list[tuple[NodeProcess, NodeProcess]],
) -> None:
    """
    A session at the child began half a second late, behind all calls of the storm. What both nodes
    work until then is measured, as a busy machine makes everything late.
    """
    stormed, twin = (newcomers(*pair) for pair in pairs)
    with stormed, twin:
        began = time.monotonic()
        subprocess.run(command("calls-members", pairs[0][0], SECONDS), cwd=ROOT, check=True)
        ended = time.monotonic()
    during, usual = (one.work_between(began, ended) for one in (stormed, twin))
    assert len(during) >= 3
    assert quantile(during, 0.5) < 10 * quantile(usual, 0.5) + 0.05


def test_a_tree_and_a_history_are_told_meanwhile(
    pairs: list[tuple[NodeProcess, NodeProcess]],
) -> None:
    """Connections take turns: one call of it comes after few of the storm's."""
    node, _ = pairs[0]
    with RawClient(node.mqtt) as client:
        client.connect("writer")
        client.publish("kept", qos=1)
    with subprocess.Popen(command("calls-members", node, 60.0), cwd=ROOT) as storm:
        try:
            for _ in range(3):
                found = as_json("tree", node.grpc)
                assert [row["zone"] for row in found] == ["", "child"]
                assert all(row["alive"] for row in found)
                with History(node.grpc) as history:
                    assert [row.topic for row in history.read("", 1)] == ["kept"]
            assert storm.poll() is None
        finally:
            storm.kill()
