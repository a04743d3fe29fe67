"""
The load generator of `benchmarks/load/`: made when its sources are newer, and run.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "build" / "load"

LONGEST = 300.0
"""Seconds after which a run is given up that does not end by itself."""

Figures = dict[str, float]
Arguments = Mapping[str, object]


class RunFailed(Exception):
    """The run does not count: the generator's lines say what was lost, doubled or reordered."""


def build() -> None:
    """Make the generator if its sources are newer."""
    subprocess.run(["make", "--quiet", "-C", str(ROOT), "build/load"], check=True)


def command_of(arguments: Arguments, pids: Sequence[int] = ()) -> list[str]:
    """The generator's command line; sequences become lists with commas."""
    command = [str(PROGRAM)]
    for name, value in {**arguments, "pids": pids}.items():
        text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        if text:
            command += [f"--{name}", text]
    return command


def run(arguments: Arguments, pids: Sequence[int] = ()) -> Figures:
    """
    A run of the generator; `pids` are the processes whose CPU time counts. `RunFailed` if it does
    not count.
    """
    done = subprocess.run(
        command_of(arguments, pids), capture_output=True, text=True, timeout=LONGEST
    )
    if done.returncode:
        raise RunFailed(_one_line(done.stderr) or f"the generator ended with {done.returncode}")
    figures: Figures = json.loads(done.stdout)
    return figures


@contextlib.contextmanager
def idle(arguments: Arguments) -> Iterator[Figures]:
    """Connections that stay until the end of the block."""
    process = subprocess.Popen(
        command_of({**arguments, "mode": "idle"}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RunFailed(_one_line(process.communicate()[1]))
        yield json.loads(line)
    finally:
        process.communicate()


def _one_line(text: str) -> str:
    return "; ".join(line.removeprefix("load: ") for line in text.splitlines())
