"""
Durable sessions that are discarded while disks are slow, or full: nothing of them stays.

Sessions begin, roam and are discarded at one to three nodes, after 0 to 300 ms, while other clients
publish, and each sync takes 20 ms longer. And one is discarded whose node cannot write.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults import disks
from tests.faults.disks import Disk
from tests.support.nodes import NodeProcess, topology

from .commands import wait_until
from .disks import fill
from .test_discards import begin, sessions, wait_settled
from .test_discards_under_load import LEFT, discard, left_over, traffic, visit

SLOWER = 0.02
"""Seconds."""

WAIT = 60.0
"""Seconds: `roaming_wait`, so that slow disks and a busy machine refuse nobody."""


@pytest.mark.timeout(400)
@pytest.mark.skipif(disks.compiler() is None, reason="needs a C compiler")
@pytest.mark.parametrize("count", [1, 2, 3])
def test_nothing_stays_where_disks_are_slow(tmp_path: Path, count: int) -> None:
    """With a publisher at each node beside it."""
    library = disks.build(tmp_path)
    nodes: list[NodeProcess] = []
    with ExitStack() as stack:
        for name in ("root", "a", "b")[:count]:
            place = tmp_path / name
            disk = Disk(place / "disk", place / "control", library, mount=False, delay=SLOWER)
            keys = {"data": str(disk.data), "roaming_wait": f"{WAIT:.0f}s"}
            keys |= {"parent": nodes[0].grpc, "zone": name} if nodes else {"zone": ""}
            node = NodeProcess(tmp_path, topology(name, **keys), env=disk.environment())
            nodes.append(stack.enter_context(node))
            if len(nodes) > 1:
                node.wait_event("join.granted", 60.0)
        wait_settled(nodes)
        with traffic(nodes):
            visit(nodes, "visit")
        wait_until(lambda: not left_over(nodes), LEFT, "an end of all sessions")


def test_session_at_a_node_with_a_full_disk_is_discarded(tmp_path: Path, small_disk: Path) -> None:
    """Its end cannot be written there: CONNACK waits no longer than for a node that is away."""
    data = {"data": str(small_disk / "data")}
    root = NodeProcess(tmp_path, topology("root", zone=""))
    full = NodeProcess(tmp_path, topology("a", zone="a", parent=root.grpc, **data))
    with root, full:
        full.wait_event("join.granted", 30.0)
        wait_settled([root, full])
        for number in range(4):
            begin([full], f"x{number}", 0.0, is_polite=number % 2 == 0)
        ballast = fill(small_disk, 0)
        for number in range(4):
            discard(root, f"x{number}")
        full.kill()
        ballast.unlink()
        full.start()
        until = time.monotonic() + LEFT
        while left := sessions(full) | sessions(root):
            assert time.monotonic() < until, f"they stay: {left}"
            time.sleep(0.5)
