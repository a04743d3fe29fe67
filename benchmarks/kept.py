"""
The figures of all runs as they are kept in a file, with what they were measured on.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from pathlib import Path

import attrs

from benchmarks.figures import Results
from benchmarks.processes import find_program


@attrs.frozen(kw_only=True)
class Kept:
    """`facts` is a sentence about the machine and the versions."""

    facts: str
    results: Results

    def as_json(self) -> str:
        """For a file."""
        return json.dumps({"facts": self.facts, "results": self.results}, indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> Kept:
        """From a file."""
        return Kept(**json.loads(text))


def facts(core: str, runs: int, realtime: bool) -> str:
    """The facts of a measurement: what, on which machine, how, and how often."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return (
        f"Core of txbroker: {core}; Python {platform.python_version()}; "
        f"Mosquitto {version('mosquitto', '-h')}, nats-server {version('nats-server', '-v')}; "
        f"Linux {platform.release()}, {os.cpu_count()} × {model[1] if model else 'CPU'}"
        f"{', scheduled before all else (--realtime)' if realtime else ''}; "
        f"medians of {runs} {'run' if runs == 1 else 'runs'} (least–most)."
    )


def version(program: str, option: str) -> str:
    """The first number of versions that a program says."""
    path = find_program(program, program)
    said = subprocess.run([path, option], capture_output=True, text=True, check=False)
    found = re.search(r"\d+(\.\d+)+", said.stdout + said.stderr)
    return found[0] if found else "of an unknown version"
