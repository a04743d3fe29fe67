"""The code of an earlier commit, out of this clone's history; its core is the one in Python."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from tests.support.nodes import ROOT

FIRST = "2c524f0"
"""The oldest version whose folders and nodes are served."""


def checkout(commit: str = FIRST) -> Path:
    """The folder with that commit's package, to stand on PYTHONPATH; made once for a clone."""
    place = ROOT / "build" / "older" / commit
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f"{commit}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "made").exists():
            place.mkdir(exist_ok=True)
            paths = ["txbroker", "twisted", "proto", "setup.py", "setup.cfg", "README.md"]
            packed = subprocess.run(
                ["git", "archive", commit, *paths], cwd=ROOT, check=True, capture_output=True
            )
            subprocess.run(["tar", "-x", "-C", str(place)], input=packed.stdout, check=True)
            generate = [sys.executable, "setup.py", "--quiet", "build_proto"]
            subprocess.run(generate, cwd=place, check=True, capture_output=True)
            (place / "made").touch()
    return place


def environment(commit: str = FIRST) -> dict[str, str]:
    """What a process needs to run that commit's code."""
    path = filter(None, [str(checkout(commit)), os.environ.get("PYTHONPATH")])
    return {"PYTHONPATH": os.pathsep.join(path)}
