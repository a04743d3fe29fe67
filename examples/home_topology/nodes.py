"""
The six nodes as processes. The topology files are made ready for one run. The nodes are started
with the launch line of the documentation, watched through the log that they write, and stopped by
process id.
"""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import attrs
import yaml

HERE = Path(__file__).resolve().parent
NAMES = ("house", "kitchen", "living", "upstairs", "outside", "cams")
READY_TIMEOUT = 60.0  # six interpreters may start at once on one slow core
STOP_TIMEOUT = 5.0

Address = tuple[str, int]


class NodeError(Exception):
    """
    A node cannot be started; the text is one line that names it.
    """


@attrs.frozen(kw_only=True, slots=True)
class NodeFile:
    """
    A node of this run: its topology file and what the demo needs to know from it.
    """

    name: str
    zone: str
    path: Path
    mqtt: Address
    grpc: str
    is_root: bool


def prepare(run_directory: Path, ports_base: int | None = None, **keys: Any) -> list[NodeFile]:
    """
    Copy the six topology files into `run_directory`, parents first. As `data` is relative to the
    file, each run has its own. With `ports_base` every port is moved: MQTT to the base and up, gRPC
    to base + 10 and up, links to base + 20 and up. `keys` are added to each file.
    """
    documents = [{**yaml.safe_load((HERE / f"{name}.yaml").read_text()), **keys} for name in NAMES]
    if ports_base is not None:
        _move_ports(documents, ports_base)
    run_directory.mkdir(parents=True, exist_ok=True)
    return [_write(document, run_directory) for document in documents]


def _move_ports(documents: list[dict[str, Any]], base: int) -> None:
    moved: dict[str, str] = {}
    for index, document in enumerate(documents):
        old = document["grpc"]
        document["mqtt"] = [f"tcp:{base + index}:interface=127.0.0.1"]
        document["grpc"] = moved[old] = f"127.0.0.1:{base + 10 + index}"
        document["link"] = f"127.0.0.1:{base + 20 + index}"
        if "parent" in document:
            document["parent"] = moved[document["parent"]]


def _write(document: dict[str, Any], directory: Path) -> NodeFile:
    path = directory / f"{document['node']}.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    _, port, interface = document["mqtt"][0].split(":")
    return NodeFile(
        name=document["node"],
        zone=document["zone"],
        path=path,
        mqtt=(interface.removeprefix("interface="), int(port)),
        grpc=document["grpc"],
        is_root="parent" not in document,
    )


def launch_line(file: NodeFile) -> list[str]:
    """
    How a node is started, by this demo as by hand.
    """
    twistd = Path(sys.executable).with_name("twistd")
    flags = ["--pidfile=", "--reactor=asyncio", "-n"]
    return [str(twistd), *flags, "txbroker", "--topology", str(file.path)]


def tree(file: NodeFile, timeout: float = 20.0) -> str:
    """
    The output of `txbroker tree` for this node and all below it.
    """
    command = [sys.executable, "-m", "txbroker.cli", "tree", file.grpc]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, start_new_session=True
        )
    except subprocess.TimeoutExpired:
        return f"txbroker tree {file.grpc}: no answer in {timeout:.0f} s"
    return (done.stdout or done.stderr).rstrip()


class NodeProcess:
    """
    A running node and its log file, which takes both of its output streams.
    """

    def __init__(self, file: NodeFile, log: Path) -> None:
        self.file = file
        self._log = log
        self._read = 0
        self._events: set[str] = set()
        with log.open("wb") as output:
            # A session of its own: Ctrl-C reaches the demo alone, which stops the nodes last.
            self._process = subprocess.Popen(
                launch_line(file),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """
        None while the process runs, else its exit status (negative: the signal that ended it).
        """
        return self._process.poll()

    def is_ready(self) -> bool:
        """
        True if all listeners are bound and, below the root, the zone is granted. NodeError if
        the process has ended instead.
        """
        status = self.status  # before the log is read: so the last words are in it
        self._read_log()
        if status is not None:
            raise NodeError(
                f"{self.file.name} did not start (status {status}): {self.last_words()}"
            )
        needed = {"node.ready"} if self.file.is_root else {"node.ready", "join.granted"}
        return needed <= self._events

    def last_words(self) -> str:
        """
        Why it ended: the reason in its last event, or else the last line of its log.
        """
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line]
        reasons = [event["reason"] for event in map(_parse, lines) if "reason" in event]
        return str(reasons[-1]) if reasons else lines[-1] if lines else "it said nothing"

    def terminate(self) -> None:
        if self.status is None:
            self._process.terminate()

    def wait_or_kill(self, deadline: float) -> None:
        """
        Wait until the process has ended, by force once the deadline (monotonic) has passed.
        """
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read_log(self) -> None:
        with self._log.open("rb") as log:
            log.seek(self._read)
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                self._events.add(str(_parse(line).get("event")))


class Home:
    """
    All nodes of one run, from launch to stop; as a context manager it leaves none behind.
    """

    def __init__(self, files: Sequence[NodeFile], logs: Path) -> None:
        self.files = tuple(files)
        self._logs = logs
        self.processes: list[NodeProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def __getitem__(self, name: str) -> NodeFile:
        return next(file for file in self.files if file.name == name)

    def start(self, stop: threading.Event) -> bool:
        """
        Launch all nodes at once (the order does not matter) and wait until each is ready.
        False if `stop` was set meanwhile. NodeError if one ends or takes too long.
        """
        self._logs.mkdir(parents=True, exist_ok=True)
        for file in self.files:
            self.processes.append(NodeProcess(file, self._logs / f"{file.name}.log"))
        deadline = time.monotonic() + READY_TIMEOUT
        waiting = list(self.processes)
        while waiting and not stop.wait(0.05):
            waiting = [process for process in waiting if not process.is_ready()]
            if waiting and time.monotonic() > deadline:
                name, last = waiting[0].file.name, waiting[0].last_words()
                raise NodeError(f"{name} is not ready after {READY_TIMEOUT:.0f} s: {last}")
        return not stop.is_set()

    def ended(self) -> list[NodeProcess]:
        """
        The nodes that do not run any more.
        """
        return [process for process in self.processes if process.status is not None]

    def stop(self) -> None:
        """
        Ask every node to end, and end those by force that have not within five seconds.
        """
        for process in self.processes:
            process.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT
        for process in self.processes:
            process.wait_or_kill(deadline)


def _parse(line: str | bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


_PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    """
    In the child, before it becomes a node: have Linux send it a SIGTERM when the demo is killed.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
