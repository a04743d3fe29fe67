"""
The brokers that are measured: txbroker as its users launch it, Mosquitto from Debian's package.

Each runs as a process of its own on a free loopback port, with its data in a folder that goes away.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import attrs

READY = 20.0
"""Seconds until a broker has to accept connections."""


@attrs.frozen(kw_only=True)
class Running:
    """A broker that accepts connections on `port`; `pid` for its CPU time."""

    name: str
    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """User and system time that the process has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Node:
    """A txbroker that is started several times on the data in one folder; `pid` of its process."""

    def __init__(self, folder: Path, keys: str) -> None:
        """`keys` are lines of its topology file beside the usual ones."""
        self.folder = folder
        self.port = free_port()
        Path(folder, "bench.yaml").write_text(
            f"node: bench\nzone: ''\nmqtt: [tcp:{self.port}:interface=127.0.0.1]\n"
            f"grpc: 127.0.0.1:{free_port()}\ndata: data\n{keys}\n"
        )

    def start(self) -> float:
        """Seconds from the launch until it said `node.ready`."""
        twistd = str(Path(sys.executable).with_name("twistd"))
        command = [twistd, "--pidfile=", "--reactor=asyncio", "-n", "txbroker", "--topology"]
        begin = time.monotonic()
        self._process = subprocess.Popen(
            [*command, "bench.yaml"], cwd=self.folder, stderr=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid
        assert self._process.stderr is not None
        said = []
        for line in self._process.stderr:
            said.append(line)
            if '"node.ready"' in line:
                return time.monotonic() - begin
        raise SystemExit("".join(said))

    def end(self, number: signal.Signals) -> None:
        """Have it end by a signal."""
        self._process.send_signal(number)
        self._process.communicate()


@contextlib.contextmanager
def txbroker(durability: str) -> Iterator[Running]:
    """One node that owns the root zone; as Mosquitto, it lets a subscriber be far behind."""
    with tempfile.TemporaryDirectory(prefix="txbroker-bench-") as folder:
        port = free_port()
        topology = Path(folder, "bench.yaml")
        topology.write_text(
            f"node: bench\nzone: ''\nmqtt: [tcp:{port}:interface=127.0.0.1]\n"
            f"grpc: 127.0.0.1:{free_port()}\ndata: data\ndurability: {durability}\n"
            "limits: {inflight: 65535}\nsession_limits: {messages: 100000000}\n"
        )
        twistd = Path(sys.executable).with_name("twistd")
        arguments = ["--pidfile=", "--reactor=asyncio", "-n", "txbroker", "--topology"]
        with _process([str(twistd), *arguments, str(topology)], folder, port) as pid:
            yield Running(name=f"txbroker {durability}", port=port, pid=pid)


@contextlib.contextmanager
def mosquitto(*, no_delay: bool) -> Iterator[Running]:
    """Mosquitto without limits for a subscriber that is behind; it syncs nothing."""
    program = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        raise SystemExit("mosquitto is not installed; apt-get install mosquitto")
    with tempfile.TemporaryDirectory(prefix="mosquitto-bench-") as folder:
        port = free_port()
        config = Path(folder, "mosquitto.conf")
        config.write_text(
            f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_inflight_messages 0\n"
            f"max_queued_messages 0\nset_tcp_nodelay {str(no_delay).lower()}\n"
        )
        with _process([program, "-c", str(config)], folder, port) as pid:
            name = "mosquitto nodelay" if no_delay else "mosquitto"
            yield Running(name=name, port=port, pid=pid)


@contextlib.contextmanager
def _process(command: list[str], folder: str, port: int) -> Iterator[int]:
    with Path(folder, "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        _await(process, folder, port)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def _await(process: subprocess.Popen[bytes], folder: str, port: int) -> None:
    deadline = time.monotonic() + READY
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.02)
    raise SystemExit(f"{process.args}: not ready: {Path(folder, 'log').read_text()[-500:]}")
