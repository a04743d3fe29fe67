"""Space that is taken ahead for a log's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from txbroker.store import files
from txbroker.store.files import Tail

MIB = 1 << 20


@pytest.mark.parametrize(
    ("free", "most"), [(1 << 40, 4 * MIB), (16 * MIB, MIB), (0, 64 * 1024)], ids=str
)
def test_taken_ahead_is_a_small_part_of_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, most: int
) -> None:
    """And of the file: a disk's reserve is still there when the watermark is reached."""
    monkeypatch.setattr(files, "_free", lambda fd: free)
    file = tmp_path / "log"
    tail = Tail(file, is_new=True, step=64 * MIB)
    ahead = []
    for position in range(0, 80 * MIB, MIB // 2):
        tail.write([bytes(MIB // 2)], position, 128 * MIB)
        ahead.append(file.stat().st_size - position - MIB // 2)

    assert most // 2 <= max(ahead) <= most
