"""Ports of a session's parts: the client's connection, and the node's delivery ledger."""

from __future__ import annotations

from typing import Protocol

from txbroker.core import PacketWriter
from txbroker.model.log_position import JournalId, LogPosition


class Sink(Protocol):
    """A connection, as its session sees it."""

    @property
    def packet_writer(self) -> PacketWriter:
        """Return the writer of packets to the client."""

    @property
    def receive_maximum(self) -> int:
        """Return how many messages of QoS 1 and 2 the client accepts unacknowledged."""

    def close(self, reason: str, code: int) -> None:
        """Close the connection: another connection has the client id."""


class DeliveryRecorder(Protocol):
    """The node's delivery ledger, as a sender sees it; for durable sessions alone."""

    def delivered(self, client_id: str, place: LogPosition | None) -> None:
        """Record that the client has acknowledged the message at `place`."""

    def dropped(self, client_id: str, part: JournalId, first: int, last: int) -> None:
        """Record that the session does not get its records from offset `first` to `last`."""
