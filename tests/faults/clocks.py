"""
A node's time of day, which steps: NTP that corrects it, a board without a battery, an operator.

Nodes run with `clock.c` preloaded, which adds what a file says to each reading of the time of day,
in Python and in gRPC's core; the monotonic clock goes on. The file outlives the node's processes.
"""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

from .disks import compiler

SOURCE = Path(__file__).with_name("clock.c")
NANOSECOND = 1e-9

_OFFSET = struct.Struct("=q")


def build(folder: Path) -> Path:
    """Compile what is preloaded."""
    library = folder / "clock.so"
    command = [str(compiler()), "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library)]
    subprocess.run([*command, str(SOURCE), "-ldl", "-lpthread"], check=True)
    return library


class Clock:
    """The time of day of one node, kept in `file`; `library` None: no compiler, no steps."""

    def __init__(self, file: Path, library: Path | None) -> None:
        self._file = file.resolve()
        self._library = library
        self._file.write_bytes(_OFFSET.pack(0))

    def environment(self) -> dict[str, str]:
        """What the node's process gets."""
        if self._library is None:
            return {}
        return {"LD_PRELOAD": str(self._library), "FAULTS_CLOCK": str(self._file)}

    @property
    def offset(self) -> float:
        """Seconds by which it is ahead."""
        return float(_OFFSET.unpack(self._file.read_bytes())[0] * NANOSECOND)

    def set(self, seconds: float) -> None:
        """Ahead by so many seconds from now on; the bytes change in place, as they are mapped."""
        fd = os.open(self._file, os.O_WRONLY)
        try:
            os.pwrite(fd, _OFFSET.pack(round(seconds / NANOSECOND)), 0)
        finally:
            os.close(fd)

    def step(self, seconds: float) -> None:
        """Set it forward, or back."""
        self.set(self.offset + seconds)
