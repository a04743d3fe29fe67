"""A small file system for a node's data, and how it gets full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from txbroker.storage.disk_watermark import measure


@contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """A file system of 64 MiB; skips the test where that takes more rights than there are."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, free: int) -> Path:
    """A file that leaves so many bytes."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, measure(disk)[0] - free)
    return ballast
