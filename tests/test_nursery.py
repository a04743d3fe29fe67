"""A forked command or node is like one that was started."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.nodes import NodeProcess, topology
from tests.support.nursery import Forked
from tests.system.commands import environment, line


@pytest.mark.parametrize("words", [["--version"], ["check", "missing.yaml"], ["tree"]])
def test_commands_say_and_end_alike(tmp_path: Path, words: list[str]) -> None:
    """In a folder of their own: done, failed, typed wrongly."""
    forked = Forked("txbroker", ["txbroker", *words], folder=tmp_path, environment=os.environ)
    said = forked.communicate(60.0)
    started = subprocess.run(
        line(*words), cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert (started.stdout, started.stderr) == said
    assert started.returncode == forked.returncode


def test_nodes_end_alike(tmp_path: Path) -> None:
    """By a signal: their own status, and nothing but JSON before."""
    node = NodeProcess(tmp_path, topology("n", zone=""))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
        with node:
            assert isinstance(node._process, Forked)
            node.send_signal(number)
            assert -number == node.wait()
    assert len(node.lines) == len(node.events)
