"""What the directory needs of others: a place to keep things, and the node's sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import attrs

from txbroker.directory.entry import DirectoryWill
from txbroker.mqtt.session.inbound_publish import OriginId


class DurableTable(Protocol):
    """
    Keyed bytes that survive a crash, in the order of the changes: what was changed first is never
    missing when a later change is there. When a change is safe says the store, not the table.
    """

    def get(self, key: bytes) -> bytes | None:
        """The value, as last put."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set it."""

    def delete(self, key: bytes) -> None:
        """Forget it, if it is there."""

    def items(self) -> Iterable[tuple[bytes, bytes]]:
        """All of it."""


@attrs.frozen(kw_only=True)
class PublishOrigin:
    """The stream that a publish was sent in, and its sequence there (protocol rule 1)."""

    edge: str
    incarnation: int
    zone: str
    stream: int
    sequence: int

    @staticmethod
    def of(origin: OriginId) -> PublishOrigin:
        """An origin id, on its way to another node."""
        (edge, incarnation, zone, stream), sequence = origin
        return PublishOrigin(
            edge=edge, incarnation=incarnation, zone=zone, stream=stream, sequence=sequence
        )

    @property
    def origin(self) -> OriginId:
        """The same, as publishers have it."""
        return (self.edge, self.incarnation, self.zone, self.stream), self.sequence


@attrs.frozen(kw_only=True)
class PendingPublishes:
    """
    What a node that gave a session away has still to do for it (protocol rules 16 and 18).

    `zones`: apexes for which publishes of the client are in flight or in the outbox. `taken`: those
    of its QoS 2 publishes that were open when it left, and are durable now.
    """

    zones: tuple[str, ...] = ()
    taken: tuple[PublishOrigin, ...] = ()


class SessionHost(Protocol):
    """
    The sessions of this node, as the directory sees them.

    Only `freeze` may be called for a session that is connected without it being closed before.
    """

    def clean(self) -> Iterable[str]:
        """The ids of the clean sessions that are here."""

    def is_kept(self, client_id: str) -> bool:
        """Whether there is a session with clean session 0."""

    def idle(self, client_id: str) -> float:
        """Seconds for which the client of a kept session has been away; 0: it is here."""

    def is_quiet(self, client_id: str) -> bool:
        """Whether all that is to be known of its publishes can be said now; soon, if not."""

    def freeze(self, client_id: str) -> bytes | None:
        """
        Close the connection (its will is published), stop the session, give all of its state;
        None when there is no session to keep. A second call gives the state again.
        """

    def thaw(self, client_id: str) -> None:
        """The session is not moving after all: deliveries go on."""

    def adopt(self, client_id: str, state: bytes, incarnation: int, away: float = 0.0) -> None:
        """
        Take over a session that was frozen elsewhere, whose client has been away for so many
        seconds at least; where there is one already, it takes in the other's subscriptions and
        queue, once for each (`state`, `incarnation`).
        """

    def release(self, client_id: str, token: bytes) -> None:
        """
        Forget the session, which is another node's now by the move `token`; publishes that have
        left go on. What is needed to tell what became of them is kept until `resolved`, and so is
        what it waits for in journals.
        """

    def discard(self, client_id: str, *, is_moved: bool) -> None:
        """
        Forget the session, if there is one, and close its connection; `is_moved`: it goes on at
        another node.
        """

    def close(self, client_id: str) -> None:
        """Close the client's connection, if there is one: another one has the client id."""

    def remains(self, client_id: str) -> PendingPublishes:
        """What is still to be done here for a session that was here."""

    def resolved(self, client_id: str, token: bytes) -> None:
        """
        The node that has the session, by that move, knows what became of its publishes here, and
        has told the owners what it waits for.
        """

    def moves(self) -> Iterable[tuple[bytes, str]]:
        """The moves from here of which something is kept until they are resolved: token, id."""

    def is_resolved(self, client_id: str, node: str) -> bool:
        """Whether that is so here, for a session and publishes that left from `node`."""

    def await_remains(self, client_id: str, node: str, remains: PendingPublishes) -> None:
        """
        What the earlier node has still to do: publishes to these zones wait, and the QoS 2 flows
        that it finished are answered. With no zones: the earlier node is done.
        """

    def forget_will(self, client_id: str) -> None:
        """The will of the client's connection here was published by another node."""

    def publish_will(
        self, client_id: str, node: str, testament: DirectoryWill, sent: Callable[[], None]
    ) -> None:
        """
        Publish the will of a client of `node`; `sent` is called when its owner has it, or the
        outbox (at QoS 0: when it has left). See `wills.will_id` for the id that makes it go once.
        """
