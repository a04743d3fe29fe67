"""What a tested part of an edge gets from its node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from txbroker.core import Router
from txbroker.edge.routing.edge_parts import EdgeParts
from txbroker.model.counters import Counters
from txbroker.model.timers import Timers


def edge_parts(
    timers: Timers,
    reporter: Any,
    *,
    name: str = "edge",
    incarnation: int = 1,
    router: Router | None = None,
    connector: Any = None,
    counters: Counters | None = None,
    again: Callable[[], None] = lambda: None,
) -> EdgeParts:
    """Parts with these, and new ones where none are given; no connector connects."""
    return EdgeParts(
        name=name,
        incarnation=incarnation,
        router=router or Router(lambda: None),
        connector=cast(Any, connector),
        timers=timers,
        counters=counters or Counters(),
        reporter=reporter,
        again=again,
    )
