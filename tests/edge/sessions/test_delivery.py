"""What becomes of packet writers that a run has filled."""

from __future__ import annotations

from typing import Any

import attrs

from tests.support.clock import Clock
from txbroker.core import HIGH_MARK, Router
from txbroker.edge.sessions import delivery
from txbroker.edge.sessions.delivery import Delivery
from txbroker.model.log_position import JournalId


@attrs.define
class Connection:
    """Takes what is in its packet writer, which takes it some time."""

    clock: Clock
    packet_writer: Any
    takes: float
    flushes: int = 0

    def flush(self) -> None:
        """What much of a run does to a connection."""
        self.packet_writer.dequeue()
        self.clock.advance(self.takes)
        self.flushes += 1


def flushes(takes: float, count: int = 20) -> list[int]:
    """How often each of so many full ones was written after one run; the next run is after that."""
    clock = Clock()
    router = Router(lambda: None)
    none: Any = None
    tested = Delivery(none, none, router, now=clock.now)
    connections = []
    for _ in range(count):
        packet_writer = router.make_packet_writer()
        packet_writer.connection = Connection(clock, packet_writer, takes)
        packet_writer.send(bytes(HIGH_MARK))
        connections.append(packet_writer.connection)
    tested.deliver_left(none, JournalId("", 1), [])
    return [connection.flushes for connection in connections]


def test_those_that_a_run_has_filled_are_written_before_the_next() -> None:
    """Whoever reads fast loses no QoS 0."""
    assert [1] * 20 == flushes(0.0)


def test_a_crowd_that_takes_long_is_written_in_turns_of_its_own() -> None:
    """32 that read nothing took 170 ms, in which nobody else was served."""
    assert [1, 1] + [0] * 18 == flushes(0.6 * delivery.FULL_FOR)
