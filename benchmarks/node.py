"""
A node of txbroker as its users launch it: by twistd, with a topology file.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.processes import BrokerFailed, end, free_port, launch, wait_until_ready

TWISTD = Path(sys.executable).with_name("twistd")


class Node:
    """A node that may be started several times on the data in one folder."""

    def __init__(self, folder: Path, **keys: Any) -> None:
        """`keys` of its topology file; the defaults are those of a root on free loopback ports."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.document: dict[str, Any] = {
            "node": "bench",
            "mqtt": [f"tcp:{self.port}:interface=127.0.0.1"],
            "grpc": f"127.0.0.1:{free_port()}",
            "data": "data",
            **({} if "parent" in keys else {"zone": ""}),
            **keys,
        }
        Path(folder, "bench.yaml").write_text(yaml.safe_dump(self.document, sort_keys=False))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of its process; only while it runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Seconds from the launch until it logged `node.ready`; `BrokerFailed` if it does not."""
        begin = time.monotonic()
        self.launch()
        self.wait("node.ready")
        return time.monotonic() - begin

    def launch(self) -> None:
        """Start its process, and do not wait for it."""
        command = [str(TWISTD), "--pidfile=", "--reactor=asyncio", "-n", "txbroker"]
        self._process = launch([*command, "--topology", "bench.yaml"], self.folder)

    def wait(self, event: str) -> None:
        """Return when it has logged this event; `BrokerFailed` if it does not."""
        assert self._process is not None
        said = f'"{event}"'
        wait_until_ready(
            self._process, self.folder / "log", lambda log: said in log.read_text(errors="replace")
        )

    def core(self) -> str | None:
        """Which core runs, as `node.ready` says it."""
        for line in Path(self.folder, "log").read_text().splitlines():
            if '"node.ready"' in line:
                core: str | None = json.loads(line).get("core")
                return core
        raise BrokerFailed(f"no node.ready in {self.folder}")

    def end(self, number: signal.Signals) -> None:
        """Have it end by a signal."""
        if self._process is not None:
            end(self._process, number)
