"""
The harness as a whole, with fixed seeds: a short set for every run of the tests, with every fault
and every tree. `make faults` plays random ones for as long as wanted, `python -m
tests.faults.mutants` shows that it finds bugs.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from .cast import draw
from .schedule import FAULTS, Step, plan
from .trees import TREES, Tree

ROOT = Path(__file__).resolve().parents[2]
KEEP = ROOT / "var" / "faults"


@attrs.frozen
class Run:
    """One round of faults: arguments of `python -m tests.faults`."""

    tree: str
    seed: int
    length: int
    faults: str
    network: str = "auto"

    @property
    def name(self) -> str:
        return f"{self.tree}-{self.network}-{self.seed}"


RUNS = (
    Run("single", 225, 12, "kill,power,fill,slow,stall,clock"),
    Run("pair", 5, 12, "kill,cut,lose,retire,broken-join"),
    Run("chain", 8, 12, "power,freeze,isolate,away,broken-retire,mute,deaf"),
    Run("wide", 195, 12, "kill-all,stop,unplug,roam,hop"),
    Run("wide", 2, 12, "kill,damage,reclaim,roam"),
    Run("pair", 11, 14, "kill,exchange,restore,clock"),
    Run("chain", 31, 12, "ruin,kill,cut,roam"),
    Run("pair", 2, 12, "void,kill"),
    Run("sites", 80, 12, "power-all,one-way,split,roam,retire"),
    Run("pair", 208, 8, "kill,cut,one-way,lose,freeze", "relays"),
)


@pytest.mark.timeout(150)
@pytest.mark.parametrize("run", RUNS, ids=[run.name for run in RUNS])
def test_no_promise_is_broken(run: Run) -> None:
    """What is printed ends with the line to play it again, and where the logs are."""
    arguments = ["--tree", run.tree, "--seed", str(run.seed), "--network", run.network]
    arguments += ["--rounds", "1", "--length", str(run.length), "--faults", run.faults]
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", "--keep", str(KEEP), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "; ok" in done.stdout


def test_set_has_every_fault_and_tree() -> None:
    """A change of what seeds mean asks for other seeds."""
    for run in RUNS:
        assert set(run.faults.split(",")) <= begun(run), run.name

    assert set(FAULTS) == {fault for run in RUNS for fault in run.faults.split(",")}
    assert set(TREES) == {run.tree for run in RUNS}


def begun(run: Run) -> set[str]:
    """The faults of a run's schedule."""
    tree = TREES[run.tree]
    faults = run.faults.split(",")
    (steps,) = plan(
        run.seed, tree, draw(run.seed, tree), faults, rounds=1, length=float(run.length)
    )
    return {_fault(step, tree) for step in steps}


def _fault(step: Step, tree: Tree) -> str:
    if step.verb in ("kill", "power") and set(step.targets) == set(tree.names) != {"root"}:
        return f"{step.verb}-all"
    if step.verb == "isolate" and len(step.targets) > 1:
        return "split"
    return step.verb
