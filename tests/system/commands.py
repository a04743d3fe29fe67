"""
The command `txbroker` as a process of its own, forked where all is imported already.

`run` waits for its end, `Running` watches one that goes on. Both prove on the way that there is
never a traceback.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from click.testing import CliRunner

from tests.support.nodes import ROOT, Address
from tests.support.nursery import Forked
from txbroker.cli import main

TIMEOUT = 40.0  # seconds; only a failing test ever waits that long


def line(*arguments: object) -> list[str]:
    """The command line, with this interpreter."""
    return [sys.executable, "-m", "txbroker.cli", *map(str, arguments)]


def environment() -> dict[str, str]:
    """This checkout is the one under test."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def run(*arguments: object, timeout: float = TIMEOUT) -> subprocess.CompletedProcess[str]:
    """The command from start to end."""
    process = _forked(*arguments)
    out, said = process.communicate(timeout)
    done = subprocess.CompletedProcess(line(*arguments), process.wait(), out, said)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def _forked(*arguments: object) -> Forked:
    words = ["txbroker", *map(str, arguments)]
    return Forked("txbroker", words, folder=Path.cwd(), environment=environment())


def output(*arguments: object, status: int = 0) -> str:
    """What the command prints; its exit status is this one."""
    done = run(*arguments)
    assert status == done.returncode, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def as_json(*arguments: object, status: int = 0) -> Any:
    """What the command prints with --json."""
    return json.loads(output(*arguments, "--json", status=status))


def failure(*arguments: object) -> str:
    """The one line with which the command fails, status 1; nothing on stdout."""
    done = run(*arguments)
    assert (1, "") == (done.returncode, done.stdout), f"{done.stdout}\n{done.stderr}"
    assert 1 == len(done.stderr.splitlines()), done.stderr
    return done.stderr.rstrip("\n")


def wrong_usage(*arguments: object) -> str:
    """The one line of a command that was typed wrongly, status 2; quick, without a process."""
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert (2, "") == (done.exit_code, done.stdout), f"{done.stdout}\n{done.stderr}"
    assert 1 == len(done.stderr.splitlines()), done.stderr
    return done.stderr.rstrip("\n")


def at(address: Address) -> str:
    """An address as it is typed."""
    return f"{address[0]}:{address[1]}"


def wait_until(condition: Callable[[], object], timeout: float = 90.0, what: str = "") -> None:
    """Fails unless the condition holds within so many seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


class Running:
    """A command that goes on; `lines` is what it printed so far."""

    def __init__(self, *arguments: object) -> None:
        self.lines: list[str] = []
        self.process = _forked(*arguments)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(5.0)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def wait_lines(self, count: int) -> list[str]:
        """The first lines, once there are so many."""
        wait_until(lambda: len(self.lines) >= count, what=f"{count} lines, got {self.lines}")
        return self.lines[:count]

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def end(self, timeout: float = TIMEOUT) -> tuple[int, str]:
        """Wait for its end: status and what is on stderr."""
        status = self.process.wait(timeout)
        self._reader.join(5.0)
        assert self.process.stderr is not None
        said = self.process.stderr.read()
        assert "Traceback" not in said, said
        return status, said

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            self.lines.append(text.rstrip("\n"))
