"""Space that is taken ahead for a log's file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from txbroker.storage import files
from txbroker.storage.files import LogTail

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
    tail = LogTail(file, is_new=True, step=64 * MIB)
    ahead = []
    for position in range(0, 80 * MIB, MIB // 2):
        tail.write([bytes(MIB // 2)], position, 128 * MIB)
        ahead.append(file.stat().st_size - position - MIB // 2)

    assert most // 2 <= max(ahead) <= most


def test_what_nobody_reads_soon_is_not_kept_in_memory_where_the_system_can_do_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it cannot, it is asked once for each file."""
    asked: list[int] = []
    real = os.pwritev

    def pwritev(fd: int, buffers: list[bytes], position: int, flags: int = 0) -> int:
        asked.append(flags)
        if flags:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real(fd, buffers, position)

    monkeypatch.setattr(os, "pwritev", pwritev)
    tail = LogTail(tmp_path / "log", is_new=True, step=MIB)
    tail.write([b"a", b"b"], 0, MIB, is_unread=True)
    tail.write([b"c"], 2, MIB, is_unread=True)
    tail.write([b"d"], 3, MIB)

    assert asked[0] != 0
    assert [0, 0, 0] == asked[1:]
    assert (tmp_path / "log").read_bytes().startswith(b"abcd")
