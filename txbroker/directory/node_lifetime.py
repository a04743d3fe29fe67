"""The life of a node's process, and the clocks that the directory reads in it."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from txbroker.model.machine_time import UNKNOWN, MachineTime


@attrs.frozen(kw_only=True, eq=False)
class NodeLifetime:
    """
    The life of a process; the `number` of each start is greater.

    `now` returns seconds since some fixed moment, `lived` the node's lived time in microseconds,
    `moment` the machine's time.
    """

    number: int
    now: Callable[[], float]
    lived: Callable[[], int] = lambda: 0
    moment: Callable[[], MachineTime] = lambda: UNKNOWN
