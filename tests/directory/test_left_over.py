"""Nothing of clients that came and went amid faults stays behind, in one site."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.client_life import FIVE, Life

HARDER: dict[str, dict[str, Any]] = {
    "doubled": {"doubled": 0.2, "all_die": 0.2},
    "delayed": {"delayed": 0.15},
    "delayed and doubled": {"nodes": FIVE, "late": 1, "delayed": 0.1, "doubled": 0.1},
    "late": {"nodes": FIVE, "late": 2, "doubled": 0.1},
    "lost": {"nodes": FIVE, "late": 1, "is_one_lost": True, "all_die": 0.1},
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("order", HARDER)
def test_nothing_stays_in_harder_orders(order: str, seed: int) -> None:
    """Nodes come late or go for good, all of them die, messages come twice or too late."""
    life = Life(seed, **HARDER[order])
    life.run()

    assert [] == life.left_over()


@pytest.mark.parametrize("seed", [0, 6, 9, 13])
def test_nothing_stays_of_clients_that_came_and_went_amid_faults(seed: int) -> None:
    """
    What was discarded is gone. Tombstones and moves end with what they are about; entries name who
    has the session.
    """
    life = Life(seed)
    life.run()

    assert [] == life.left_over()
