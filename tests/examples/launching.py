"""
What the tests of the demos share: free ports, and the demo as a process of its own.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "examples" / "home_topology" / "run.py"
PIPELINE = RUN.with_name("pipeline.py")
TIMEOUT = 300
Start = Callable[..., subprocess.Popen[str]]


def is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        output, errors = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.terminate()  # it stops its nodes
        output, errors = process.communicate()
        pytest.fail(f"still running after {TIMEOUT} s\n{output}\n{errors}")
    return process.returncode, output, errors
