"""What a session sees of its neighbours: the connection that it has now, and whoever feeds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from txbroker.core import Outlet
from txbroker.model.log_position import JournalId, LogPosition

if TYPE_CHECKING:
    from txbroker.mqtt.session.session import Session


class Sink(Protocol):
    """A connection, as its session sees it."""

    @property
    def outlet(self) -> Outlet:
        """Where what goes to the client is put."""

    def close(self, reason: str) -> None:
        """Close it: another connection has the client id."""


class DeliveryRecorder(Protocol):
    """The node's delivery ledger, as a sender sees it; for durable sessions alone."""

    def delivered(self, client_id: str, place: LogPosition | None) -> None:
        """The client has acknowledged the message that lies there."""

    def dropped(self, client_id: str, part: JournalId, first: int, last: int) -> None:
        """The session does not get what is its from the one to the other offset."""


class SessionOwner(Protocol):
    """
    Whoever feeds sessions, keeps what is durable of them, and counts what is dropped. `recording`
    is None where the node keeps no ledger.
    """

    @property
    def recording(self) -> DeliveryRecorder | None:
        """Who is told of deliveries."""

    def has_room(self, session: Session) -> None:
        """A session that has something to read can take more."""

    def save(self, session: Session, *, urgent: bool) -> None:
        """It changed; `urgent`: tell its sender's `on_saved` as soon as that is durable."""

    def save_all(self, session: Session) -> None:
        """Its subscriptions changed, or where they begin."""

    def save_then(self, session: Session, action: Callable[[], None]) -> None:
        """Run `action` when the session is durable as it is now."""

    def dropped(self, session: Session, qos: int, count: int, *, is_first: bool) -> None:
        """Messages for the session were dropped; `is_first`: the first ones for some time."""

    def zone_of(self, topic: str) -> str:
        """The zone that a publish of the topic goes to."""

    def window_is_full(self, session: Session, limit: str) -> None:
        """No more messages go to the client before it acknowledges; `limit` is the key."""
