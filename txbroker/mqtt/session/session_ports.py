"""What the parts of a session see of its neighbours: its connection, and the node's ledger."""

from __future__ import annotations

from typing import Protocol

from txbroker.core import PacketWriter
from txbroker.model.log_position import JournalId, LogPosition


class Sink(Protocol):
    """A connection, as its session sees it."""

    @property
    def packet_writer(self) -> PacketWriter:
        """Where what goes to the client is put."""

    def close(self, reason: str) -> None:
        """Close it: another connection has the client id."""


class DeliveryRecorder(Protocol):
    """The node's delivery ledger, as a sender sees it; for durable sessions alone."""

    def delivered(self, client_id: str, place: LogPosition | None) -> None:
        """The client has acknowledged the message that lies there."""

    def dropped(self, client_id: str, part: JournalId, first: int, last: int) -> None:
        """The session does not get what is its from the one to the other offset."""
