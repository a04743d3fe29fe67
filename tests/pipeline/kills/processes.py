"""The processes below one, by what is said of them in /proc."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import attrs


@attrs.frozen(kw_only=True)
class Process:
    """One that runs now, with its arguments in one line."""

    pid: int
    parent: int
    command: str


def below(pid: int) -> list[Process]:
    """All descendants of a process, itself left out."""
    children: dict[int, list[Process]] = {}
    for process in _all():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    waiting = [pid]
    while waiting:
        inner = children.get(waiting.pop(), [])
        found += inner
        waiting += [process.pid for process in inner]
    return found


def kill(*pids: int) -> None:
    """Kill them at once; who is gone already is gone."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def is_executor(process: Process) -> bool:
    """True if it runs Spark's tasks in a process of its own."""
    return "CoarseGrainedExecutorBackend" in process.command


def _all() -> list[Process]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # The name in brackets may hold anything; the parent is the second field behind it.
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (OSError, UnicodeDecodeError):
            continue
        found.append(Process(pid=int(folder.name), parent=parent, command=command))
    return found
