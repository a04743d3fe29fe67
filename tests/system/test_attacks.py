"""
What strangers do on the ports of a node does not stop an innocent client of it.

Each attack lasts for a moment only; `python -m tests.system.attacks` does all of them for longer.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nodes import ROOT, NodeProcess, topology

from .attacks import command
from .innocents import Pair, quantile


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node that is alone."""
    with NodeProcess(tmp_path, topology("node", zone="")) as made:
        yield made


def test_subscribers_that_read_nothing_hold_nobody_up(node: NodeProcess) -> None:
    """Four more of them each second, who want all that an innocent pair sends in bulk."""
    with Pair(address=node.mqtt, topic="bulk", size=60_000, pause=0.0) as pair:
        time.sleep(1.5)
        began = time.monotonic()
        subprocess.run(command("stuck-subscribers", node, 4.0), cwd=ROOT, check=True)
        ended = time.monotonic()
    before = pair.between(0, began)
    during = pair.between(began, ended)
    assert quantile(during, 0.5) < max(10 * quantile(before, 0.5), 0.002)
    held = sum(taken for taken in during if taken > 0.02)
    assert held < 0.2 * (ended - began)
