"""Nothing of clients that came and went amid faults stays behind, in two sites."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.client_life import FIVE, Life

SITES = {"a": "one", "b": "one", "c": "one", "d": "two", "e": "two"}

ORDERS: dict[str, dict[str, Any]] = {
    "sites": {"all_die": 0.1},
    "lost in a site": {"is_one_lost": True, "doubled": 0.1, "all_die": 0.1},
    "late in sites": {"late": 2, "doubled": 0.1, "all_die": 0.1},
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("order", ORDERS)
def test_nothing_stays_in_orders_of_two_sites(order: str, seed: int) -> None:
    """Each site has keepers of its own, and asks those of the other one."""
    life = Life(seed, nodes=FIVE, sites=SITES, **ORDERS[order])
    life.run()

    assert [] == life.left_over()
