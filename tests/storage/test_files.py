"""Space that is taken ahead for a log's file."""

from __future__ import annotations

import errno
import os
import time
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


@pytest.mark.parametrize(
    ("pause", "steps"),
    [(files.QUICK / 3, [64, 192, 768, 3072, 4096]), (files.QUICK * 2, [64, 64, 64, 64, 64])],
    ids=["quick", "slow"],
)
def test_more_is_taken_ahead_at_once_while_it_is_used_up_quickly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause: float, steps: list[int]
) -> None:
    """A sync that comes upon new space may take long: a flood must not cause many of these."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    file = tmp_path / "log"
    tail = LogTail(file, is_new=True, step=64 * MIB)
    found = []
    for _ in steps:
        before = file.stat().st_size
        tail.write([b"x"], before, 128 * MIB)
        found.append((file.stat().st_size - before) // 1024)
        now[0] += pause

    assert steps == found


@pytest.mark.parametrize("is_unread", [False, True])
def test_space_that_is_taken_ahead_is_filled_where_syncs_are_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_unread: bool
) -> None:
    """Otherwise each sync waits until the file system has marked it as written."""
    written: list[range] = []
    real = os.pwritev

    def pwritev(fd: int, buffers: list[bytes], position: int, flags: int = 0) -> int:
        written.append(range(position, position + sum(map(len, buffers))))
        return real(fd, buffers, position)

    monkeypatch.setattr(os, "pwritev", pwritev)
    tail = LogTail(tmp_path / "log", is_new=True, step=64 * MIB)
    position, data = 0, b""
    for size in (1, 100, 10_000, 9_000, 46_500, 5):
        tail.write([bytes([1]) * size], position, 128 * MIB, is_unread=is_unread)
        data += bytes([1]) * size
        position += size

    kept = (tmp_path / "log").read_bytes()
    assert data == kept[:position] and not any(kept[position:])
    assert len(kept) > position
    reached = 0
    for some in sorted(written, key=lambda one: one.start):
        if some.start <= reached:
            reached = max(reached, some.stop)
    assert (reached == len(kept)) is not is_unread


def test_space_for_few_writes_is_not_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte of a flood of large records would go to the disk twice."""
    written: list[int] = []
    real = os.pwritev

    def pwritev(fd: int, buffers: list[bytes], position: int, flags: int = 0) -> int:
        written.append(sum(map(len, buffers)))
        return real(fd, buffers, position)

    monkeypatch.setattr(os, "pwritev", pwritev)
    tail = LogTail(tmp_path / "log", is_new=True, step=64 * MIB)
    for number in range(20):
        tail.write([bytes(2 * MIB)], number * 2 * MIB, 128 * MIB)

    assert written == [2 * MIB] * 20


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
