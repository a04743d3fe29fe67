"""The reserve of a node's state: a start on a full disk has room for a state of any size."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from tests.support.recorders import cut
from txbroker.delegation.delegation_table import Delegation, DelegationState
from txbroker.delegation.grant_state import NodeState
from txbroker.delegation.state.node_state import RESERVE, DataFolder

SMALL = NodeState(node="garage", zone="home/garage")
LARGE = attrs.evolve(
    SMALL,
    table=DelegationState(
        delegations=tuple(Delegation(cut=cut(f"home/garage/{n}")) for n in range(1000)),
    ),
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def folder(data: Path) -> Iterator[DataFolder]:
    folder = DataFolder(data)
    yield folder
    folder.close()


def test_the_reserve_grows_with_the_state(folder: DataFolder, data: Path) -> None:
    """The room of a small state is too little for the file of a large one."""
    folder.save(SMALL)
    folder.save(LARGE)

    size = (data / "state.json").stat().st_size
    assert size > 64 * 1024
    assert 2 * size == (data / RESERVE).stat().st_size


def test_a_reserve_that_cannot_grow_is_kept(
    folder: DataFolder, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is nearly full: without the old reserve the next start would fail for good."""
    folder.save(SMALL)
    kept = (data / RESERVE).stat().st_size

    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        folder.save(LARGE)
    assert kept == (data / RESERVE).stat().st_size > 0


def test_a_disk_without_room_gets_no_reserve(
    folder: DataFolder, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty file would look like one; the next save makes it, where there is room again."""

    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        folder.save(SMALL)
    assert not (data / RESERVE).exists()
    folder.save(SMALL)
    assert (data / RESERVE).exists()
