"""The topics that a node serves now, and the memory of what it has judged."""

from __future__ import annotations

import tracemalloc

from txbroker.authority.edge_peer import TAKEN
from txbroker.authority.zone_scope import ZoneScope
from txbroker.core import Router
from txbroker.delegation.delegation_table import DelegationTable

MOST = 2 * 1024 * 1024


def scope_of(apex: str) -> ZoneScope:
    return ZoneScope(apex, DelegationTable(apex), Router(lambda: None))


def test_topics_that_came_once_cost_little() -> None:
    """A zone does not grow with each topic that a stranger names."""
    scope = scope_of("home")
    tracemalloc.start()
    try:
        for number in range(40_000):
            assert scope.judge(f"home/v{number}/last") is TAKEN
        assert tracemalloc.get_traced_memory()[0] < MOST
    finally:
        tracemalloc.stop()


def test_topics_in_use_take_the_short_cut() -> None:
    """The others that come meanwhile do not push them out."""
    scope, judged = scope_of("home"), 0
    for number in range(40_000):
        if "home/lamp" not in scope.ours:
            scope.judge("home/lamp")
            judged += 1
        scope.judge(f"home/v{number}/last")
    assert judged <= 10
