"""
The harness as a whole, with fixed seeds: a short set for every run of the tests. `make faults`
plays random ones for as long as wanted, `python -m tests.faults.mutants` shows that it finds bugs.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NETWORK = "cut,one-way,isolate,split,lose,freeze,stall,slow"


def play(tmp_path: Path, *arguments: str) -> None:
    """Fails with what was broken; the line to play it again is among it."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", "--keep", str(tmp_path), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "; ok" in done.stdout


@pytest.mark.timeout(150)
@pytest.mark.parametrize("network", ["auto", "relays"])
def test_broken_networks_lose_nothing(tmp_path: Path, network: str) -> None:
    """Cuts, losses, frozen nodes, while clients stay where they are."""
    arguments = ["--seed", "3", "--tree", "pair", "--rounds", "1", "--length", "8"]
    play(tmp_path, *arguments, "--at", "root,edge", "--faults", NETWORK, "--network", network)
