"""SHELL: the shared parts of a node's client connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs

from txbroker.edge.sessions.edge import Edge
from txbroker.edge.sessions.session_connect import PublishBarrier, SessionConnect
from txbroker.model.counters import Counters
from txbroker.mqtt.transport.connection_limits import ConnectionLimits
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


@attrs.frozen
class NodeParts:
    """The parts of a node that its connections share with its links."""

    clock: Clock
    flush_queue: FlushQueue
    backpressure: Backpressure
    watermark: DiskWatermark
    counters: Counters
    unauthenticated: Unauthenticated
    halves: HalfPackets
    shares: FairShares


class MqttService:
    """The node's parts that every connection uses, its limits, and the open connections."""

    def __init__(
        self,
        edge: Edge,
        parts: NodeParts,
        *,
        connects: SessionConnect,
        successions: PublishBarrier,
        limits: ConnectionLimits,
        make_client_id: Callable[[], str],
    ) -> None:
        self.edge = edge
        self.router = edge.router
        self.connects = connects
        self.successions = successions
        self.limits = limits
        self.make_client_id = make_client_id
        self.clock = parts.clock
        self.flush_queue = parts.flush_queue
        self.backpressure = parts.backpressure
        self.watermark = parts.watermark
        self.counters = parts.counters
        self.unauthenticated = parts.unauthenticated
        self.halves = parts.halves
        self.shares = parts.shares
        self.deadlines = Deadlines(ReactorTimers(parts.clock, parts.flush_queue))
        edge.feeds.wire(parts.shares)
        parts.shares.shorten(edge.slices)
        parts.shares.shorten(edge.delivery.slices)
        self.alias_bytes = AliasBytes()
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
