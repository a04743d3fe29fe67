"""
A Spark cluster of several processes on this machine: a standalone master and two workers with one
core each, from the pip package. Loopback only; all of them end by their process ids.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from tests.pipeline.kills import processes
from tests.support.java_classes import java_options
from tests.support.nodes import ROOT, free_port
from txbroker.pipeline.spark.java import find_java

PATIENCE = 60.0  # seconds for a Java to begin, on a busy machine
WORKERS = 2
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
SETTINGS = f"""
spark.driver.extraJavaOptions {java_options()}
spark.executor.extraJavaOptions {java_options()}
spark.executor.memory 512m
spark.master.rest.enabled false
"""


class Standalone:
    """Started and ended with `with`; `url` is what `--master` takes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self.url = f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        conf = self._folder / "conf"
        conf.mkdir(parents=True)
        (conf / "spark-defaults.conf").write_text(SETTINGS)
        try:
            self._run("master", "master.Master", "--port", str(self._port))
            self._until("master", self._listens)
            for name in self._names():
                self._start_worker(name)
            for name in self._names():
                self._until(name, lambda name=name: self._is_registered(name))
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def environment(self) -> dict[str, str]:
        """What the programs that use it have in theirs: settings, this checkout, no other host."""
        return {
            **os.environ,
            "JAVA_HOME": str(find_java()),
            "PYTHONPATH": str(ROOT),
            "SPARK_CONF_DIR": str(self._folder / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": java_options(),
            "SPARK_LAUNCHER_OPTS": java_options(),
        }

    def executors(self) -> list[int]:
        """Process ids of what runs tasks."""
        return [pid for name in self._names() for pid in self._executors_of(name)]

    def kill_executor(self, chance: random.Random) -> bool:
        """Kill one, for which its worker starts another; False if there is none now."""
        running = self.executors()
        if running:
            processes.kill(chance.choice(running))
        return bool(running)

    def kill_worker(self, chance: random.Random) -> bool:
        """Kill a worker and its executors for good; False if no worker has one now."""
        busy = [name for name in self._names() if self._executors_of(name)]
        if busy:
            name = chance.choice(busy)
            processes.kill(self._started[name].pid, *self._executors_of(name))
            self._started.pop(name).wait()
        return bool(busy)

    def replace_workers(self) -> None:
        """Start those again that were killed."""
        for name in self._names():
            if name not in self._started:
                self._start_worker(name)

    # internal

    def _names(self) -> list[str]:
        return [f"worker-{number}" for number in range(WORKERS)]

    def _start_worker(self, name: str) -> None:
        size = ("--cores", "1", "--memory", "1g")
        self._run(name, "worker.Worker", *size, "--work-dir", str(self._folder / name), self.url)

    def _run(self, name: str, role: str, *arguments: str) -> None:
        """A daemon of Spark; the script makes way for its Java, so the process id stays."""
        common = ("--host", "127.0.0.1", "--webui-port", "0")
        with self._log(name).open("wb") as log:
            self._started[name] = subprocess.Popen(
                [SPARK_CLASS, f"org.apache.spark.deploy.{role}", *common, *arguments],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _executors_of(self, name: str) -> list[int]:
        if name not in self._started:
            return []
        inner = processes.below(self._started[name].pid)
        return [p.pid for p in inner if processes.is_executor(p)]

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def _is_registered(self, name: str) -> bool:
        return "Successfully registered with master" in self._log(name).read_text()

    def _until(self, name: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not is_so():
            is_running = self._started[name].poll() is None
            assert is_running and time.monotonic() < deadline, self._log(name).read_text()[-3000:]
            time.sleep(0.1)

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _close(self) -> None:
        for process in self._started.values():
            inner = [one.pid for one in processes.below(process.pid)]
            processes.kill(process.pid, *inner)
            process.wait()
        self._started.clear()
