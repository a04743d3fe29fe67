"""What an edge gets from its node."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from txbroker.core import Router
from txbroker.edge.routing.connector import Connector
from txbroker.model.counters import Counters
from txbroker.model.reporter import Reporter
from txbroker.model.timers import Timers


@attrs.frozen(kw_only=True)
class EdgeParts:
    """
    The node's parts that an edge uses.

    `name` and `incarnation`: those of the edge. `again` calls `Edge.work` in another turn.
    """

    name: str
    incarnation: int
    router: Router
    connector: Connector
    timers: Timers
    counters: Counters
    reporter: Reporter
    again: Callable[[], None]
