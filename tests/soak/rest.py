"""What a node holds while no client is there, read from the kernel and from the node's commands."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import attrs

from tests.support.nodes import NodeProcess
from tests.system.commands import run

IDLE = 2.0
"""Seconds over which the CPU time of an idle node is taken."""

PATIENCE = 300.0
"""Seconds for a command, on a machine that does other things as well."""

MIB = 1024 * 1024

AT_REST = {
    "connections": 0,
    "directory.arriving": 0,
    "directory.connected": 0,
    "directory.discarded": 0,
    "directory.discards": 0,
    "directory.entries": 0,
    "directory.left": 0,
    "directory.moved": 0,
    "directory.own": 0,
    "directory.sites": 1,
    "directory.streams": 2,
    "directory.streams.served": 2,
    "directory.tombstones": 0,
    "edges": 3,
    "filters": 0,
    "filters.asked": 0,
    "journal.edges": 3,
    "marks": 32,
    "retained": 0,
    "sessions": 0,
    "timers": 2_000,
    "wills.own": 0,
    "wills.sent": 0,
    "zones": 3,
}
"""What is left in the tables of one of three nodes when all clients have gone, at most."""


@attrs.frozen(kw_only=True)
class Rest:
    """
    One node at rest: bytes of anonymous memory, of its journals, of all else in `data`, and of the
    log; CPU as a share.
    """

    memory: int
    descriptors: int
    threads: int
    journals: int
    tables: int
    log: int
    cpu: float

    def __str__(self) -> str:
        return (
            f"memory {self.memory / MIB:6.1f} MiB, disk {self.journals / MIB:.1f} "
            f"and {self.tables / MIB:.1f} MiB, "
            f"{self.descriptors} descriptors, {self.threads} threads, "
            f"idle CPU {self.cpu:.1%}, log {self.log / 1024:.0f} KiB"
        )


def measure(node: NodeProcess) -> Rest:
    """Takes `IDLE` seconds."""
    before = cpu_seconds(node)
    time.sleep(IDLE)
    cpu = (cpu_seconds(node) - before) / IDLE
    status = dict(
        line.split(":", 1)
        for line in Path(f"/proc/{node.pid}/status").read_text().splitlines()
        if ":" in line
    )
    return Rest(
        memory=int(status["RssAnon"].split()[0]) * 1024,
        descriptors=len(os.listdir(f"/proc/{node.pid}/fd")),
        threads=int(status["Threads"]),
        journals=_blocks(node.data / "journal"),
        tables=_blocks(node.data) - _blocks(node.data / "journal"),
        log=sum(map(len, node.lines)),
        cpu=cpu,
    )


def left_over(node: NodeProcess) -> dict[str, int]:
    """What is in the tables that have more than they should, by their names."""
    sizes = tables(node)
    return {name: sizes[name] for name, most in AT_REST.items() if sizes.get(name, 0) > most}


def tables(node: NodeProcess) -> dict[str, int]:
    """How many entries each table of the node has."""
    rows = asked("tree", node.grpc, "-v")
    (own,) = (row for row in rows if row["node"] == node.name)
    return {name: table["entries"] for name, table in own["tables"].items()}


def warnings(node: NodeProcess) -> list[str]:
    """The log's warnings and errors, such as the reasons for which clients were refused."""
    told = [event for event in node.events if event["level"] not in ("debug", "info")]
    return [json.dumps({k: v for k, v in event.items() if k != "node"}) for event in told]


def asked(*arguments: object) -> Any:
    """What a command prints with --json, however busy the machine is."""
    done = run(*arguments, "--json", timeout=PATIENCE)
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
    return json.loads(done.stdout)


def cpu_seconds(node: NodeProcess) -> float:
    """CPU time that the node's process has used."""
    fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _blocks(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
