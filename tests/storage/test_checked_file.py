"""A small file and its copy: which of the two `repair` believes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from txbroker.model.errors import StoreError
from txbroker.storage import checked_file

UNCHECKED, PRESENT = 3, 4
"""The last format without a checksum, and the present one."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Saved, with its copy beside it."""
    path = tmp_path / "state.json"
    checked_file.save(path, {"format": PRESENT, "epoch": 7})
    return path


def load(path: Path) -> dict[str, Any] | None:
    return checked_file.load(
        path, what="a state", known=PRESENT, unchecked=UNCHECKED, data=path.parent
    )


def repair(path: Path) -> list[str]:
    return checked_file.repair(path, unchecked=UNCHECKED)


def flip(path: Path) -> None:
    """The epoch is another one."""
    path.write_bytes(path.read_bytes().replace(b"7", b"6"))


@pytest.mark.parametrize("is_missing", [False, True])
def test_a_damaged_copy_is_not_put_back(file: Path, is_missing: bool) -> None:
    """The damage of both would be believed: the file has no other check. A backup is named."""
    if is_missing:
        file.unlink()
    else:
        flip(file)
    flip(file.with_suffix(".copy"))
    with pytest.raises(StoreError, match="restore the file from a backup"):
        load(file)
    before = file.exists() and file.read_bytes()

    with pytest.raises(StoreError, match=f"{file}: damaged, with no copy; restore the file"):
        repair(file)
    assert before == (file.exists() and file.read_bytes())


def test_a_whole_copy_is_put_back_and_named_before_that(file: Path) -> None:
    """Only then `repair` is the remedy."""
    flip(file)
    with pytest.raises(StoreError, match=f"put its copy back with: txbroker repair {file.parent}"):
        load(file)

    assert [f"{file}: put back from {file.with_suffix('.copy')}"] == repair(file)
    assert {"format": PRESENT, "epoch": 7} == load(file)
    assert [] == repair(file)


def test_a_whole_file_needs_no_copy(file: Path) -> None:
    """A crash of the machine may have taken or torn the copy, which is not synced."""
    flip(file.with_suffix(".copy"))
    assert [] == repair(file)
    file.with_suffix(".copy").unlink()
    assert [] == repair(file)
    assert {"format": PRESENT, "epoch": 7} == load(file)


@pytest.mark.parametrize(
    ("content", "is_fine"),
    [
        (b'{"format":3,"epoch":7}', True),
        (b'{"format":4,"epoch":7}', False),
        (b'{"checksum":"00000000","format":3,"epoch":7}', False),
        (b'{"epoch":7}', False),
        (b"", False),
        (b"[" * 100_000, False),
    ],
)
def test_only_files_from_before_checksums_have_none(
    file: Path, content: bytes, is_fine: bool
) -> None:
    """Such a file is no damage; one that has lost its checksum is."""
    file.with_suffix(".copy").unlink()
    file.write_bytes(content)

    if is_fine:
        assert [] == repair(file)
        assert {"format": 3, "epoch": 7} == load(file)
    else:
        with pytest.raises(StoreError, match="with no copy"):
            repair(file)
        with pytest.raises(StoreError):
            load(file)
