"""SHELL: the shared parts of a node's client connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from txbroker.core import Router
from txbroker.edge.sessions.edge import Edge
from txbroker.edge.sessions.session_connect import PublishBarrier, SessionConnect
from txbroker.model.counters import Counters
from txbroker.mqtt.transport.topic_aliases import AliasBytes
from txbroker.mqtt.wire.reason_codes import ReasonCode
from txbroker.runtime.backpressure import Backpressure
from txbroker.runtime.deadlines import Deadlines
from txbroker.runtime.fair_shares import FairShares
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.runtime.net import Clock
from txbroker.runtime.periodic import ReactorTimers
from txbroker.runtime.unauthenticated import HalfPackets, Unauthenticated
from txbroker.storage.disk_watermark import DiskWatermark


class ClientConnection(Protocol):
    """A client's connection."""

    def close(self, reason: str, code: int) -> None:
        """Close the connection as if it had broken: the will is published."""

    def end(self) -> None:
        """Close the connection as the node stops: the will is discarded."""


class MqttService:
    """The node's parts that every connection uses, its limits, and the open connections."""

    def __init__(
        self,
        *,
        edge: Edge,
        router: Router,
        connects: SessionConnect,
        successions: PublishBarrier,
        flush_queue: FlushQueue,
        clock: Clock,
        backpressure: Backpressure,
        watermark: DiskWatermark,
        counters: Counters,
        unauthenticated: Unauthenticated,
        halves: HalfPackets,
        shares: FairShares,
        make_client_id: Callable[[], str],
        max_packet: int,
        max_connections: int,
        connect_timeout: float,
        max_client_id: int = 256,
        max_subscriptions: int = 10_000,
        receive_maximum: int = 65_535,
        topic_aliases: int = 100,
        keepalive_max: int = 0,
        checks_utf8: bool = False,
    ) -> None:
        """
        `keepalive_max`: the longest keep-alive of level 5 in seconds, 0 for any. `checks_utf8`:
        a payload must be UTF-8 if its publish says so.
        """
        self.edge = edge
        self.router = router
        self.connects = connects
        self.successions = successions
        self.flush_queue = flush_queue
        self.clock = clock
        self.deadlines = Deadlines(ReactorTimers(clock, flush_queue))
        self.backpressure = backpressure
        self.watermark = watermark
        self.counters = counters
        self.unauthenticated = unauthenticated
        self.halves = halves
        self.shares = shares
        edge.feeds.wire(shares)
        shares.shorten(edge.slices)
        shares.shorten(edge.delivery.slices)
        self.make_client_id = make_client_id
        self.max_packet = max_packet
        self.max_connections = max_connections
        self.connect_timeout = connect_timeout
        self.max_client_id = max_client_id
        self.max_subscriptions = max_subscriptions
        self.receive_maximum = receive_maximum
        self.topic_aliases = topic_aliases
        self.alias_bytes = AliasBytes()
        self.keepalive_max = keepalive_max
        self.checks_utf8 = checks_utf8
        self.connections: dict[ClientConnection, None] = {}  # a set would take twice the memory
        self.is_leaving = False
        self.server_reference = ""

    def close_all(self, elsewhere: str) -> None:
        """
        Close all connections and refuse new ones: the node retires, and its clients go elsewhere.

        Clients of level 5 are told where their sessions go, unless `elsewhere` is "".
        """
        self.is_leaving = True
        self.server_reference = elsewhere
        for connection in list(self.connections):
            connection.close("the node is retired", ReasonCode.USE_ANOTHER_SERVER)
        self.flush_queue.end()

    def stop(self) -> None:
        """Close all connections as the node stops; the wills are discarded."""
        for connection in list(self.connections):
            connection.end()
        self.flush_queue.end()
