"""Damage is done where a node surely reads what it has."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from .damage import Damage, draw


def drawn(data: Path) -> list[Damage]:
    return [harm for seed in range(40) if (harm := draw(data, Random(seed))) is not None]


@pytest.mark.parametrize("folder", ["journal", "arriving"])
def test_journal_on_its_way_here_is_left_alone(tmp_path: Path, folder: str) -> None:
    """A start deletes it, or moves it to the journals; the damage could not be undone."""
    part = tmp_path / folder / "z" / "1"
    part.mkdir(parents=True)
    for name in ("00000000000000000001.log", "00000000000000000002.log", "part.json"):
        (part / name).write_bytes(b"x" * 100)
    kinds = {harm.kind for harm in drawn(tmp_path)}
    assert kinds == ({"log", "small"} if folder == "journal" else set())
