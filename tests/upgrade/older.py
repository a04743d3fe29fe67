"""The code of an earlier version, out of this clone's history; its core is the one in Python."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from tests.support.nodes import ROOT

VERSIONS = ("2c524f0",)
"""
Versions whose folders and nodes are served, as git names them; the oldest first. Each has its data
folders in tests/data/, under the same name.
"""


def checkout(version: str) -> Path:
    """The folder with that version's package, to stand on PYTHONPATH; made once for a clone."""
    place = ROOT / "build" / "older" / version
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "made").exists():
            place.mkdir(exist_ok=True)
            paths = ["txbroker", "twisted", "proto", "setup.py", "setup.cfg", "README.md"]
            packed = subprocess.run(
                ["git", "archive", version, *paths], cwd=ROOT, check=True, capture_output=True
            )
            subprocess.run(["tar", "-x", "-C", str(place)], input=packed.stdout, check=True)
            generate = [sys.executable, "setup.py", "--quiet", "build_proto"]
            subprocess.run(generate, cwd=place, check=True, capture_output=True)
            (place / "made").touch()
    return place


def environment(version: str) -> dict[str, str]:
    """What a process needs to run that version's code."""
    path = filter(None, [str(checkout(version)), os.environ.get("PYTHONPATH")])
    return {"PYTHONPATH": os.pathsep.join(path)}
