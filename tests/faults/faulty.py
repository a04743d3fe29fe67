"""A node as a process, with a place in the network, a disk and a clock of its own."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tests.support.nodes import NodeProcess
from txbroker.runtime.checked_turns import VARIABLE

from .clocks import Clock
from .conditions import Conditions
from .disks import Disk
from .networks import Place


class FaultyNode(NodeProcess):
    """In the world of these conditions."""

    def __init__(
        self,
        folder: Path,
        document: Mapping[str, Any],
        place: Place,
        disk: Disk,
        clock: Clock,
        conditions: Conditions,
    ) -> None:
        checks = {VARIABLE: "1" if conditions.is_checked else "0"}
        super().__init__(
            folder,
            {**document, **place.keys},
            env={**checks, **preloaded(disk.environment(), clock.environment())},
        )
        self.place = place
        self.disk = disk
        self.clock = clock
        self.should_run = False
        self.is_full = False
        files = conditions.files
        self._limit = () if files is None else ("prlimit", f"--nofile={files}:{files}")

    @property
    def zone(self) -> str | None:
        """Of its topology file."""
        zone: str | None = self.document.get("zone")
        return zone

    def command(self) -> list[str]:
        return [*self.place.prefix, *self._limit, *super().command()]

    def hear(self, event: dict[str, Any]) -> None:
        """Its times are ours, so that what several nodes say has an order."""
        if "time" in event:
            told = datetime.fromisoformat(event["time"])
            event["time"] = (told - timedelta(seconds=self.clock.offset)).isoformat()


def preloaded(*environments: Mapping[str, str]) -> dict[str, str]:
    """All of them; what one of them preloads does not take another's place."""
    libraries = [each["LD_PRELOAD"] for each in environments if "LD_PRELOAD" in each]
    found = {name: value for each in environments for name, value in each.items()}
    return {**found, "LD_PRELOAD": ":".join(libraries)} if libraries else found
