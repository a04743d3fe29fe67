"""
Processes that are measured: started on free loopback ports, waited for, ended again.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

READY = 20.0
"""Seconds until a process has to be ready."""

END = 20.0
"""Seconds that it has to end after SIGTERM."""

_given_ports: set[int] = set()


class BrokerFailed(Exception):
    """A broker did not start, or ended; the message has the end of its log."""


def free_port() -> int:
    """
    A loopback port that nothing listens on now, never the same one twice.

    From below Linux's ephemeral range, so that no outgoing connection occupies it before the bind.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        if port in _given_ports:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _given_ports.add(port)
            return port


def find_program(name: str, package: str) -> str:
    """Path of a program of a Debian package; `BrokerFailed` says which package is missing."""
    program = shutil.which(name, path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        raise BrokerFailed(f"{name} is not installed; apt-get install {package}")
    return program


@contextlib.contextmanager
def running(
    command: Sequence[str], folder: Path, is_ready: Callable[[Path], bool]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in `folder`, from when `is_ready(its log)` until the end of the block."""
    process = launch(command, folder)
    try:
        wait_until_ready(process, folder / "log", is_ready)
        yield process
    finally:
        end(process, signal.SIGTERM)


def launch(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start a process that writes what it says to `folder/log`."""
    with Path(folder, "log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ
        )


def wait_until_ready(
    process: subprocess.Popen[bytes], log: Path, is_ready: Callable[[Path], bool]
) -> None:
    """Return when `is_ready(log)`; `BrokerFailed` when it ends before, or after `READY`."""
    deadline = time.monotonic() + READY
    while process.poll() is None and time.monotonic() < deadline:
        if is_ready(log):
            return
        time.sleep(0.005)
    raise BrokerFailed(f"{process.args!r} is not ready: {log.read_text()[-1000:]}")


def come_first() -> None:
    """
    Have this process, and all that it starts from now on, scheduled before whatever else the
    machine does. They take turns with one another. Raises `BrokerFailed` where that is not allowed.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError as error:
        raise BrokerFailed(f"--realtime is for root: {error.strerror}") from error


def end(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Have a process end by a signal; one that does not is killed."""
    process.send_signal(number)
    try:
        process.wait(END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def listens(port: int) -> Callable[[Path], bool]:
    """A check for `running`: True once something accepts connections on this port."""

    def check(_: Path) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    return check


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def anonymous_memory(pid: int) -> int:
    """RssAnon of a process in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
