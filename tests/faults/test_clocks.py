"""A clock that steps: what a process sees of it, and what not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .clocks import Clock, build
from .disks import compiler

DAY = 86_400.0

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C compiler")

PROGRAM = """
import sys, threading, time
from datetime import UTC, datetime

def say():
    of_day = time.time(), datetime.now(UTC).timestamp(), time.clock_gettime(time.CLOCK_REALTIME)
    print(*of_day, time.monotonic(), flush=True)

say()
for line in sys.stdin:
    begun = time.monotonic()
    threading.Event().wait(0.2)
    assert 0.2 <= time.monotonic() - begun < 5.0
    say()
"""

WAITING = """
import time
import grpc

channel = grpc.insecure_channel("127.0.0.1:1")
begun = time.monotonic()
try:
    channel.unary_unary("/x/y")(b"", timeout=1.0, wait_for_ready=True)
except grpc.RpcError as error:
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
print(time.monotonic() - begun)
"""


def test_process_sees_each_step(tmp_path: Path) -> None:
    """While it runs; the monotonic clock, and waiting, go on."""
    clock = Clock(tmp_path / "clock", build(tmp_path))
    clock.set(-3 * DAY)
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=clock.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        readings = [[float(word) for word in process.stdout.readline().split()]]
        for _ in range(3):
            clock.step(DAY)
            process.stdin.write("next\n")
            process.stdin.flush()
            readings.append([float(word) for word in process.stdout.readline().split()])
        process.stdin.close()

    assert 0 == process.returncode and 0.0 == clock.offset
    for *of_day, _ in readings:
        assert max(of_day) - min(of_day) < 1.0
    for before, after in zip(readings, readings[1:], strict=False):
        assert DAY < after[0] - before[0] < DAY + 10.0
        assert 0.2 <= after[-1] - before[-1] < 10.0


@pytest.mark.parametrize("offset", [-8 * DAY, 8 * DAY])
def test_waiting_in_grpc_takes_as_long_as_ever(tmp_path: Path, offset: float) -> None:
    """What waits for a time of day waits for ours; the kernel knows of no step."""
    clock = Clock(tmp_path / "clock", build(tmp_path))
    clock.set(offset)
    command = [sys.executable, "-c", WAITING]
    done = subprocess.run(
        command, env=clock.environment(), stdout=subprocess.PIPE, text=True, timeout=30.0
    )

    assert 0.9 < float(done.stdout) < 5.0
