"""
Real nodes for tests: one twistd process each, with the words of the documented command line.

The module picks ports, writes a topology file, and starts and stops the process. Most processes are
forked where all is imported already (see nursery.py). The module reads the node's log (one JSON
object a line on stderr) and waits for an event in it. It knows neither MQTT nor gRPC. Every wait
has a deadline and fails with the end of the node's log.

    with NodeProcess(tmp_path, topology("solo", zone="")) as node:
        host, port = node.mqtt
        node.wait_event("join.granted", zone="home")
"""

from __future__ import annotations

import atexit
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import yaml

from .nursery import ROOT, Forked

READY_TIMEOUT = 60.0

TIMEOUT = 30.0
"""Seconds; only a failing test ever waits that long."""

Address = tuple[str, int]
Event = dict[str, Any]

_given_ports: set[int] = set()
_alive: weakref.WeakSet[NodeProcess] = weakref.WeakSet()


class NodeFailed(AssertionError):
    """
    The node ended, or did not say what was waited for; the message holds the end of its log.
    """


def free_port(host: str = "127.0.0.1") -> int:
    """
    A TCP port on `host` that nothing listens on now, never the same one twice in this process.

    The ports are below Linux's ephemeral range (32768 and up). So no outgoing connection of another
    test can occupy one between this call and the node's bind. Test processes that run side by side
    have ports of their own.
    """
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    most = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    for _ in range(1000):
        port = random.SystemRandom().randrange(20_000 + own, 32_000, most)
        if port in _given_ports:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
        _given_ports.add(port)
        return port
    raise NodeFailed(f"no free port on {host}")


def close_all(nodes: Iterable[NodeProcess]) -> None:
    """End these nodes, one after the other; none of them may have said a traceback."""
    closed = list(nodes)
    for node in closed:
        node.close()
    for node in closed:
        for line in node.lines:
            assert "Traceback" not in line, line


def parse_address(text: str) -> Address:
    """
    `host:port` or `[v6 host]:port` as (host, port).
    """
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def topology(
    node: str, *, zone: str | None = None, parent: str | None = None, **keys: Any
) -> dict[str, Any]:
    """
    A topology document on loopback: MQTT on a port that the kernel picks, gRPC on a free one.

    `zone` None leaves the key out (a pure edge). `parent` is a gRPC address. `keys` are added as
    they are and win, e.g. `limits={"connect_timeout": "300ms"}`.
    """
    document: dict[str, Any] = {"node": node}
    if zone is not None:
        document["zone"] = zone
    if parent is not None:
        document["parent"] = parent
    document["mqtt"] = ["tcp:0:interface=127.0.0.1"]
    document["grpc"] = f"127.0.0.1:{free_port()}"
    document["data"] = f"data-{node}"
    document.update(keys)
    return document


class NodeProcess:
    """
    A node: its topology file in `directory`, its process, its log.

    `document` is written to `directory/NODE.yaml` at each start, so a test may change
    `node.document` between two runs. Thread-safe for waiting; start and stop from one thread.
    """

    forked = True
    """True if it may be a fork; never one with an environment or a command line of its own."""

    def __init__(
        self,
        directory: Path,
        document: Mapping[str, Any],
        *,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = Path(directory)
        self.document = dict(document)
        self.env = dict(env or {})
        self.lines: list[str] = []  # stderr of all runs, in order
        self.stdout: list[str] = []
        self.events: list[Event] = []  # those lines that are JSON objects
        self._process: subprocess.Popen[str] | Forked | None = None
        self._readers: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._run_start = 0  # index into events where the present run begins

    # life

    def start(self, *, ready: bool = True, timeout: float = READY_TIMEOUT) -> Self:
        """Start the process; `ready` waits for `node.ready`. May be called again after an end."""
        assert not self.running, f"{self.name} is running"
        self._collect()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.file.write_text(yaml.safe_dump(self.document, sort_keys=False))
        with self._changed:
            self._run_start = len(self.events)
        self._process = self._launch()
        _alive.add(self)
        assert self._process.stdout is not None and self._process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=(self._process.stderr, True), daemon=True),
            threading.Thread(target=self._read, args=(self._process.stdout, False), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        if ready:
            self.wait_event("node.ready", timeout)
        return self

    def command(self) -> list[str]:
        """
        The launch line of the documentation, with the twistd that belongs to this interpreter.
        """
        twistd = str(Path(sys.executable).with_name("twistd"))
        flags = ["--pidfile=", "--reactor=asyncio", "-n"]
        return [twistd, *flags, "txbroker", "--topology", str(self.file)]

    def terminate(self, timeout: float = TIMEOUT) -> int:
        """
        SIGTERM; the exit status (negative for a signal, as in subprocess) once it has ended.
        """
        return self._end(signal.SIGTERM, timeout)

    def interrupt(self, timeout: float = TIMEOUT) -> int:
        """
        SIGINT, as Ctrl-C sends it; the exit status once it has ended.
        """
        return self._end(signal.SIGINT, timeout)

    def kill(self) -> int:
        """
        SIGKILL: no good-bye, nothing flushed; the exit status.
        """
        return self._end(signal.SIGKILL, TIMEOUT)

    def pause(self) -> None:
        """Freeze it (SIGSTOP): its sockets stay open and silent, as on a cut network."""
        self.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen process go on."""
        self.send_signal(signal.SIGCONT)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to this one process."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, timeout: float = TIMEOUT) -> int:
        """
        Wait until the process ends by itself; its exit status. Fails when it goes on running.
        """
        assert self._process is not None
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise NodeFailed(f"{self.name} still runs after {timeout} s\n{self.tail()}") from None
        self._collect()
        return status

    # what it said

    def wait_event(
        self,
        name: str,
        timeout: float = TIMEOUT,
        *,
        after: int | None = None,
        **fields: Any,
    ) -> Event:
        """
        The first log event `name` whose fields equal `fields`, waiting for it up to `timeout` s.

        Looks from the beginning of the present run, or from the mark `after` (see `mark`). Fails at
        once when the process has ended without it.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            position = self._run_start if after is None else after
            while True:
                for event in self.events[position:]:
                    position += 1
                    if _is_event(event, name, fields):
                        return event
                ended = not self.running and not any(r.is_alive() for r in self._readers)
                left = deadline - time.monotonic()
                if ended and position >= len(self.events):
                    raise NodeFailed(f"{self.name} ended before {name} {fields}\n{self.tail()}")
                if left <= 0:
                    raise NodeFailed(f"{self.name}: no {name} {fields}\n{self.tail()}")
                self._changed.wait(min(left, 0.5))

    def has_event(self, name: str, *, after: int | None = None, **fields: Any) -> bool:
        """
        True if the present run (or what came after the mark) has logged such an event so far.
        """
        with self._changed:
            start = self._run_start if after is None else after
            return any(_is_event(event, name, fields) for event in self.events[start:])

    def mark(self) -> int:
        """
        A place in the log, for `after`: only what is logged from now on counts.
        """
        with self._changed:
            return len(self.events)

    def hear(self, event: Event) -> None:
        """Note an event of the node; called in a thread."""

    def tail(self, count: int = 40) -> str:
        """
        The last lines of the log, for the message of a failure.
        """
        return "\n".join(["--- " + self.name, *self.stdout[-5:], *self.lines[-count:], "---"])

    # what it is

    @property
    def name(self) -> str:
        return str(self.document["node"])

    @property
    def file(self) -> Path:
        return self.directory / f"{self.name}.yaml"

    @property
    def data(self) -> Path:
        return self.directory / str(self.document["data"])

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def mqtt_addresses(self) -> list[Address]:
        """
        Every MQTT listener that is bound, in the order of the topology file.
        """
        value = self.wait_event("node.ready", READY_TIMEOUT)["mqtt"]
        return [parse_address(text) for text in ([value] if isinstance(value, str) else value)]

    @property
    def mqtt(self) -> Address:
        """
        Where MQTT clients connect (the first listener).
        """
        return self.mqtt_addresses[0]

    @property
    def grpc(self) -> str:
        """
        The control address as it stands in the topology file: a child's `parent`.
        """
        return str(self.document["grpc"])

    @property
    def link(self) -> str:
        """
        The message address that is bound.
        """
        return str(self.wait_event("node.ready", READY_TIMEOUT)["link"])

    # internal

    def __enter__(self) -> Self:
        try:
            return self if self.running else self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop it if it runs, by force when it does not listen. Never fails."""
        if not self.running:
            self._collect()
            return
        self.resume()
        try:
            self.terminate(5.0)
        except NodeFailed:
            self.kill()

    def _launch(self) -> subprocess.Popen[str] | Forked:
        if self.forked and not self.env and type(self).command is NodeProcess.command:
            return Forked("twistd", self.command(), folder=self.directory, environment=os.environ)
        return subprocess.Popen(
            self.command(),
            cwd=self.directory,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def _environment(self) -> dict[str, str]:
        # This checkout is the one under test, whatever else is installed.
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return {**os.environ, "PYTHONPATH": path, **self.env}

    def _end(self, number: signal.Signals, timeout: float) -> int:
        if self.running:
            self.send_signal(number)
        return self.wait(timeout)

    def _read(self, stream: IO[str], is_log: bool) -> None:
        for line in stream:
            text = line.rstrip("\n")
            with self._changed:
                (self.lines if is_log else self.stdout).append(text)
                event = _parse(text) if is_log else None
                if event is not None:
                    self.hear(event)
                    self.events.append(event)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _collect(self) -> None:
        """
        Wait until the last lines of an ended process are read, and close its pipes.
        """
        for reader in self._readers:
            reader.join(5.0)
        self._readers = []
        if self._process is not None:
            for stream in (self._process.stdout, self._process.stderr):
                if stream is not None:
                    stream.close()


def fixed_node(
    directory: Path,
    name: str,
    *,
    env: Mapping[str, str] | None = None,
    **keys: Any,
) -> NodeProcess:
    """A node that has the same MQTT port after a restart; `keys` as for `topology`."""
    mqtt = [f"tcp:{free_port()}:interface=127.0.0.1"]
    return NodeProcess(directory, topology(name, mqtt=mqtt, **keys), env=env)


def _parse(line: str) -> Event | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _is_event(event: Event, name: str, fields: Mapping[str, Any]) -> bool:
    return event.get("event") == name and all(
        key in event and event[key] == value for key, value in fields.items()
    )


@atexit.register
def _kill_leftovers() -> None:
    """
    An aborted test run leaves no node behind.
    """
    for node in list(_alive):
        if node.running:
            node.send_signal(signal.SIGKILL)
