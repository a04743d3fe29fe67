"""The archive's streaming query, as a command that can be killed and started again."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.system import commands

from . import processes

PATIENCE = 240.0  # seconds for Spark to begin, on a busy machine


class QueryFailed(AssertionError):
    """The command ended by itself, or does nothing."""


class Query:
    """`txbroker pipeline archive` on the node at `root` into `archive`."""

    def __init__(
        self,
        root: str,
        archive: Path,
        log: Path,
        *,
        master: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._environment = environment or commands.environment()
        self._archive = archive
        self._log = log
        given = ("--root", root, "--archive", archive, "--master", master)
        self._line = commands.line("pipeline", "archive", *given)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, until it is stopped."""
        self._process = self._run()

    def finish(self) -> None:
        """Start it once more, for what there is now, and wait for its end."""
        self._wait_end(self._run("--once"))

    def kill(self) -> None:
        """Kill it and all that it started, Spark's Java with it."""
        if self._process is not None:
            inner = [process.pid for process in processes.below(self._process.pid)]
            processes.kill(self._process.pid, *inner)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Tell it to end, and wait until it has."""
        assert self._process is not None
        self._process.terminate()
        self._wait_end(self._process)
        self._process = None

    def kill_worker(self, chance: random.Random) -> bool:
        """Kill one of Spark's workers, an executor where it has any; False if none runs now."""
        assert self._process is not None
        inner = processes.below(self._process.pid)
        executors = [p for p in inner if processes.is_executor(p)]
        workers = executors or [
            p for p in inner if "pyspark" in p.command and "daemon" in p.command
        ]
        if workers:
            processes.kill(chance.choice(workers).pid)
        return bool(workers)

    def commits(self) -> set[str]:
        """The names of the archive's commits."""
        folder = self._archive / "_manifest"
        return {path.name for path in folder.glob("*.json")} if folder.exists() else set()

    def wait_commit(self, known: set[str]) -> None:
        """Until there is a commit that is not known; looks all the time."""
        self.wait(lambda: bool(self.commits() - known), "a commit")

    def wait(self, is_so: Callable[[], bool], what: str) -> None:
        """Until something is so; raises `QueryFailed` if it ends before that, or is too slow."""
        deadline = time.monotonic() + PATIENCE
        while not is_so():
            if self._process is not None and self._process.poll() is not None:
                raise QueryFailed(f"ended with {self._process.returncode}:\n{self._tail()}")
            if time.monotonic() > deadline:
                raise QueryFailed(f"no {what} in {PATIENCE} s:\n{self._tail()}")
            time.sleep(0.001)

    def has_begun(self, batch: int) -> bool:
        """True if Spark has planned the batch: its tasks run, or are about to."""
        return (self._archive / "_checkpoint" / "offsets" / str(batch)).exists()

    # internal

    def _wait_end(self, process: subprocess.Popen[bytes]) -> None:
        try:
            status = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise QueryFailed(f"still runs after {PATIENCE} s:\n{self._tail()}") from None
        finally:
            processes.kill(process.pid)
        if status:
            raise QueryFailed(f"ended with status {status}:\n{self._tail()}")

    def _run(self, *more: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*self._line, *more],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])
