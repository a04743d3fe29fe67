"""A forked command or node is like one that was started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.nodes import NodeProcess, topology
from tests.support.nursery import Forked
from tests.system.commands import environment, line, wait_until

ENDS_BADLY = """
import os, pathlib, signal, sys
from tests.support.nursery import Forked
words = ["twistd", "--pidfile=", "-n", "txbroker", "--topology", "n.yaml"]
node = Forked("twistd", words, folder=pathlib.Path(sys.argv[1]), environment=os.environ)
print(node.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


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


def test_none_outlives_who_asked_for_it(tmp_path: Path) -> None:
    """However that ended."""
    (tmp_path / "n.yaml").write_text(yaml.safe_dump(topology("n", zone="")))
    done = subprocess.run(
        [sys.executable, "-c", ENDS_BADLY, str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert -signal.SIGKILL == done.returncode, done.stderr
    wait_until(lambda: not Path(f"/proc/{int(done.stdout)}").exists(), what="its end")
