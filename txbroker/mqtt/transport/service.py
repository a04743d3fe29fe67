"""SHELL: the shared parts of a node's client connections."""

from __future__ import annotations

import secrets
from typing import Protocol

from txbroker.edge.sessions.edge import Edge
from txbroker.edge.sessions.session_connect import PublishBarrier, SessionConnect
from txbroker.mqtt.transport.connection_limits import ConnectionLimits
from txbroker.mqtt.transport.topic_aliases import AliasBytes
from txbroker.mqtt.wire.reason_codes import ReasonCode
from txbroker.runtime.connection_parts import ConnectionParts
from txbroker.runtime.deadlines import Deadlines
from txbroker.runtime.periodic import ReactorTimers
from txbroker.runtime.structured_log import get_logger, log_limited
from txbroker.storage.disk_watermark import DiskWatermark

log = get_logger()

MOST_SURPLUS = 64
"""Connections beyond `limits.connections` at a time whose CONNECT is read and refused."""


class ClientConnection(Protocol):
    """A client's connection."""

    def close(self, reason: str, code: int) -> None:
        """Close the connection as if it had broken: the will is published."""

    def end(self) -> None:
        """Close the connection as the node stops: the will is discarded."""

    def push_out(self) -> str:
        """Close the connection at once; return its peer's name for the log."""


class MqttService:
    """
    The node's parts that every connection uses, its limits, and the open connections.

    `surplus`: connections without a place, each with whether its refusal is counted.
    """

    def __init__(
        self,
        edge: Edge,
        parts: ConnectionParts,
        *,
        watermark: DiskWatermark,
        connects: SessionConnect,
        successions: PublishBarrier,
        limits: ConnectionLimits,
    ) -> None:
        self.edge = edge
        self.router = edge.router
        self.connects = connects
        self.successions = successions
        self.limits = limits
        self.clock = parts.clock
        self.flush_queue = parts.flush_queue
        self.backpressure = parts.backpressure
        self.watermark = watermark
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
        self.surplus: dict[ClientConnection, bool] = {}
        self.is_leaving = False
        self.server_reference = ""

    def admit(self, connection: ClientConnection) -> bool:
        """Give a connection a place within `limits.connections`; return False if none is free."""
        if len(self.connections) >= self.limits.connections:
            return False
        self.connections[connection] = None
        return True

    def add_surplus(self, connection: ClientConnection) -> None:
        """
        Keep a connection without a place until its CONNECT comes, which tells how to refuse it.

        The oldest of too many is closed unheard. Otherwise strangers who send nothing could hold
        any number of connections.
        """
        if len(self.surplus) >= MOST_SURPLUS:
            oldest = next(iter(self.surplus))
            self.note_refusal(oldest)
            del self.surplus[oldest]
            oldest.push_out()
        self.surplus[connection] = False

    def note_refusal(self, connection: ClientConnection) -> None:
        """Count and log a connection that found no place, once."""
        if self.surplus[connection]:
            return
        self.surplus[connection] = True
        self.counters.add("connections.refused")
        most = self.limits.connections
        log_limited(log.warning, "client.refused", limit="limits.connections", value=most)

    def new_client_id(self) -> str:
        """Return the id of a client that sent none; no other client of the tree has it."""
        return f"auto-{self.edge.name}-{secrets.token_hex(8)}"

    def close_all(self, elsewhere: str) -> None:
        """
        Close all connections and refuse new ones: the node retires, and its clients go elsewhere.

        Clients of level 5 are told where their sessions go, unless `elsewhere` is "".
        """
        self.is_leaving = True
        self.server_reference = elsewhere
        for connection in [*self.connections, *self.surplus]:
            connection.close("the node is retired", ReasonCode.USE_ANOTHER_SERVER)
        self.flush_queue.end()

    def stop(self) -> None:
        """Close all connections as the node stops; the wills are discarded."""
        for connection in [*self.connections, *self.surplus]:
            connection.end()
        self.flush_queue.end()
