"""Long values, in a file instead of memory."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from txbroker.model.errors import StoreError
from txbroker.model.stored_value import StoredValue
from txbroker.storage.value_file import LONG, ValueFile


def on_disk(attic: ValueFile) -> int:
    """Bytes of blocks that its file has."""
    return os.fstat(attic._file).st_blocks * 512


def test_long_values_are_in_a_file_without_a_name(tmp_path: Path) -> None:
    attic = ValueFile(tmp_path)
    values = [os.urandom(size) for size in (0, 1, LONG - 1, LONG, LONG + 1, 3 * LONG, 1_000_000)]
    kept = [attic.store(value) for value in values]

    assert values == [bytes(value) for value in kept]
    assert [len(value) for value in values] == [len(value) for value in kept]
    assert [isinstance(value, bytes) for value in kept] == [True] * 3 + [False] * 4
    assert kept[-1] is attic.store(kept[-1])
    assert not list(tmp_path.iterdir())
    assert on_disk(attic) >= 1_000_000


def test_the_place_of_a_value_that_nobody_knows_any_more_is_used_again(tmp_path: Path) -> None:
    attic = ValueFile(tmp_path)
    kept: list[StoredValue] = [attic.store(bytes([number]) * 50_000) for number in range(100)]
    held, used = attic.held, on_disk(attic)
    for number in range(1_000):
        kept[number % 99] = attic.store(bytes([number % 256]) * 50_000)

    assert held == attic.held
    assert on_disk(attic) < 1.5 * used
    assert bytes(kept[99]) == bytes([99]) * 50_000
    assert bytes(kept[10]) == bytes([(10 + 9 * 99) % 256]) * 50_000
    del kept[:]
    assert (0, 0) == (attic.held, on_disk(attic))


def test_a_disk_that_takes_nothing_leaves_a_value_in_memory(tmp_path: Path) -> None:
    value = bytes(LONG)
    assert ValueFile(tmp_path / "nowhere").store(value) is value


def test_nothing_is_read_after_the_end(tmp_path: Path) -> None:
    """The descriptor is another file's by then."""
    attic = ValueFile(tmp_path)
    kept = attic.store(bytes(LONG))
    attic.close()
    with pytest.raises(StoreError):
        bytes(kept)


@pytest.mark.parametrize("damage", ["flipped", "shorter", "broken"])
def test_a_damaged_value_is_never_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """The node ends: the next start takes the value from the log."""
    told: list[str] = []
    attic = ValueFile(tmp_path, on_failed=lambda error: told.append(str(error)))
    kept = attic.store(bytes(LONG))
    if damage == "flipped":
        os.pwrite(attic._file, b"\1", 100)
    elif damage == "shorter":
        os.ftruncate(attic._file, LONG - 1)
    else:
        monkeypatch.setattr(os, "pread", broken)

    with pytest.raises(StoreError) as raised:
        bytes(kept)
    assert [str(raised.value)] == told


def broken(fd: int, size: int, position: int) -> bytes:
    raise OSError(errno.EIO, os.strerror(errno.EIO))
