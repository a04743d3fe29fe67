"""Which core runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import txbroker.core

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "import txbroker.core as core; print(core.KIND, core.Router.__module__)"


def kind_with(**environment: str) -> list[str]:
    inherited = {k: v for k, v in os.environ.items() if k != "TXBROKER_PURE"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={**inherited, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.split()


def test_tests_do_not_run_on_the_reference_unseen() -> None:
    """Where the extension is missing, `make install` warned of it; here it fails."""
    expected = "python" if os.environ.get("TXBROKER_PURE") == "1" else "compiled"

    assert expected == txbroker.core.KIND


def test_reference_runs_when_it_is_asked_for() -> None:
    assert ["python", "txbroker.core.reference.router"] == kind_with(TXBROKER_PURE="1")


def test_both_cores_have_the_same_classes() -> None:
    for name in txbroker.core.__all__:
        assert hasattr(txbroker.core, name)
