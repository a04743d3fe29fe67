"""SHELL: what the client connections of a node share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from txbroker.core import Exchange
from txbroker.counters import Counters
from txbroker.deadlines import Deadlines
from txbroker.edge.edge import Edge
from txbroker.edge.roaming import Roaming, Successions
from txbroker.net import Clock
from txbroker.pressure import Pressure
from txbroker.shares import Shares
from txbroker.store.space import DiskSpace
from txbroker.strangers import Halves, Strangers
from txbroker.turn import Turn


class Closable(Protocol):
    """A client's connection."""

    def close(self, reason: str) -> None:
        """End it as if it had broken: the will is published."""

    def end(self) -> None:
        """The node stops: the will is discarded."""


class Outputs:
    """What was gathered for clients in a turn; `again` has `flush` called in another one."""

    def __init__(self, exchange: Exchange, again: Callable[[Outputs], None]) -> None:
        self._exchange = exchange
        self._again = again

    def flush(self) -> None:
        """The end of a turn: write what it may, and have a look where that did not do."""
        for outlet in self._exchange.send_outputs():
            if outlet.connection is not None:
                outlet.connection.flush()
        if self._exchange.has_outputs:
            self._again(self)


class MqttService:
    """The parts of the node that every connection uses, its limits, and who is connected."""

    def __init__(
        self,
        *,
        edge: Edge,
        exchange: Exchange,
        roaming: Roaming,
        successions: Successions,
        turn: Turn,
        clock: Clock,
        pressure: Pressure,
        space: DiskSpace,
        counters: Counters,
        strangers: Strangers,
        halves: Halves,
        shares: Shares,
        make_client_id: Callable[[], str],
        max_packet: int,
        max_connections: int,
        connect_timeout: float,
        max_client_id: int = 256,
        max_subscriptions: int = 10_000,
    ) -> None:
        self.edge = edge
        self.exchange = exchange
        self.roaming = roaming
        self.successions = successions
        self.turn = turn
        self.clock = clock
        self.deadlines = Deadlines(clock)
        self.pressure = pressure
        self.space = space
        self.counters = counters
        self.strangers = strangers
        self.halves = halves
        self.shares = shares
        edge.feeds.wire(shares)
        shares.when_short(edge.slices.hurry)
        self.make_client_id = make_client_id
        self.max_packet = max_packet
        self.max_connections = max_connections
        self.connect_timeout = connect_timeout
        self.max_client_id = max_client_id
        self.max_subscriptions = max_subscriptions
        self.connections: dict[Closable, None] = {}  # takes half the room of a set
        self.is_leaving = False

    def leave(self) -> None:
        """The node goes for good: its clients are to go elsewhere, and no more come."""
        self.is_leaving = True
        for connection in list(self.connections):
            connection.close("the node is retired")
        self.turn.end()

    def stop(self) -> None:
        """The node stops; it serves its clients again when it comes back."""
        for connection in list(self.connections):
            connection.end()
        self.turn.end()
