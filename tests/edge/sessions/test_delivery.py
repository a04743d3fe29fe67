"""What becomes of outlets that a run has filled."""

from __future__ import annotations

from typing import Any

import attrs

from tests.support.clock import Clock
from txbroker.core import HIGH_MARK, Exchange
from txbroker.edge.sessions import delivery
from txbroker.edge.sessions.delivery import Delivery
from txbroker.model.log_position import JournalId


@attrs.define
class Connection:
    """Takes what is in its outlet, which takes it some time."""

    clock: Clock
    outlet: Any
    takes: float
    flushes: int = 0

    def flush(self) -> None:
        """What much of a run does to a connection."""
        self.outlet.take()
        self.clock.advance(self.takes)
        self.flushes += 1


def flushes(takes: float, count: int = 20) -> list[int]:
    """How often each of so many full ones was written after one run; the next run is after that."""
    clock = Clock()
    exchange = Exchange(lambda: None)
    none: Any = None
    tested = Delivery(none, none, exchange, now=clock.now)
    connections = []
    for _ in range(count):
        outlet = exchange.make_outlet()
        outlet.connection = Connection(clock, outlet, takes)
        outlet.send(bytes(HIGH_MARK))
        connections.append(outlet.connection)
    tested.deliver_left(none, JournalId("", 1), [])
    return [connection.flushes for connection in connections]


def test_those_that_a_run_has_filled_are_written_before_the_next() -> None:
    """Whoever reads fast loses no QoS 0."""
    assert [1] * 20 == flushes(0.0)


def test_a_crowd_that_takes_long_is_written_in_turns_of_its_own() -> None:
    """32 that read nothing took 170 ms, in which nobody else was served."""
    assert [1, 1] + [0] * 18 == flushes(0.6 * delivery.FULL_FOR)
