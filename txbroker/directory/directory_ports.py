"""Ports of the directory: durable tables, and the sessions of the node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import attrs

from txbroker.directory.entry import DirectoryWill
from txbroker.mqtt.session.inbound_publish import OriginId


class DurableTable(Protocol):
    """
    Keyed bytes that survive a crash, in the order of the changes.

    A recovered table with one change has every earlier change too. The store decides when a change
    is durable; the table does not.
    """

    def get(self, key: bytes) -> bytes | None:
        """Return the value last put; None: the key is absent."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of a key."""

    def delete(self, key: bytes) -> None:
        """Delete the key, if present."""

    def items(self) -> Iterable[tuple[bytes, bytes]]:
        """Return all keys with their values."""


@attrs.frozen(kw_only=True)
class PublishOrigin:
    """The stream of a publish, and its sequence in the stream (protocol rule 1)."""

    edge: str
    incarnation: int
    zone: str
    stream: int
    sequence: int

    @staticmethod
    def of(origin: OriginId) -> PublishOrigin:
        """Convert a publisher's origin id for another node."""
        (edge, incarnation, zone, stream), sequence = origin
        return PublishOrigin(
            edge=edge, incarnation=incarnation, zone=zone, stream=stream, sequence=sequence
        )

    @property
    def origin(self) -> OriginId:
        """Return the origin id in the publisher's form."""
        return (self.edge, self.incarnation, self.zone, self.stream), self.sequence


@attrs.frozen(kw_only=True)
class PendingPublishes:
    """
    The publishes that an earlier holder has still to finish (protocol rules 16 and 18).

    `zones`: apexes for which publishes of the client are in flight or in the outbox. `taken`: QoS 2
    publishes that were open when the session left, and are durable at their owner now.
    """

    zones: tuple[str, ...] = ()
    taken: tuple[PublishOrigin, ...] = ()


class SessionHost(Protocol):
    """
    The sessions of this node, as the directory sees them.

    Of a connected session, the directory may call `freeze` alone without closing the connection
    before.
    """

    def clean(self) -> Iterable[str]:
        """Return the ids of the clean sessions on this node."""

    def may_keep(self, client_id: str, beside: int) -> bool:
        """True if the session is here, or there is room for it beside so many that arrive."""

    def is_kept(self, client_id: str) -> bool:
        """True if the node has a session with clean session 0 for the id."""

    def idle(self, client_id: str) -> float:
        """
        Return the seconds since the client of a kept session left; 0: the client is connected here.
        """

    def is_quiet(self, client_id: str) -> bool:
        """
        True if the state of all the session's publishes is known now; if false, it is known soon.
        """

    def freeze(self, client_id: str) -> bytes | None:
        """
        Close the connection, publish its will, stop the session and return the session's whole
        state.

        None: the node has no session to move. A second call returns the state again.
        """

    def thaw(self, client_id: str) -> None:
        """Resume deliveries: the session stays on this node."""

    def adopt(self, client_id: str, state: bytes, incarnation: int, away: float = 0.0) -> None:
        """
        Open a session that was frozen elsewhere; its client has been away at least `away` seconds.

        An existing session merges the other's subscriptions and queue, once for each pair (`state`,
        `incarnation`).
        """

    def release(self, client_id: str, token: bytes) -> None:
        """
        Forget the session: the move `token` has made another node its holder.

        Publishes that have left continue. Until `resolved`, the node retains the record of how
        these publishes end. Until then, owners also retain the journal records that the session
        waits for.
        """

    def discard(self, client_id: str, *, is_moved: bool) -> None:
        """
        Discard the session, if any, and close its connection; `is_moved`: another node continues
        it.
        """

    def close(self, client_id: str) -> None:
        """
        Close the client's connections, accepted or not yet: another connection has the client id.
        """

    def pending_publishes(self, client_id: str) -> PendingPublishes:
        """Return the publishes that this node must finish for a session that it held."""

    def resolved(self, client_id: str, token: bytes) -> None:
        """
        Drop the retained state of a move: its new holder knows how the publishes here ended.

        The new holder has also named to the owners the records that the session waits for.
        """

    def moves(self) -> Iterable[tuple[bytes, str]]:
        """
        Return the token and client id of each move from here whose retained state is not resolved.
        """

    def is_resolved(self, client_id: str, node: str) -> bool:
        """True if this node has resolved the session's publishes that left from `node`."""

    def await_remains(self, client_id: str, node: str, pending_publishes: PendingPublishes) -> None:
        """
        Hold back publishes to the pending zones of an earlier holder, and answer its finished QoS 2
        flows.

        Empty `zones`: the earlier holder has finished.
        """

    def forget_remains(self, client_id: str) -> None:
        """Hold back no publish for an earlier holder: the session is here no more."""

    def forget_will(self, client_id: str) -> None:
        """Forget the will of the client's connection here: another node has published the will."""

    def publish_will(
        self, client_id: str, node: str, directory_will: DirectoryWill, sent: Callable[[], None]
    ) -> None:
        """
        Publish the will of a client of `node`.

        `sent` is called when the owner or the outbox has accepted the will. At QoS 0 it is called
        when the will has left. See `client_wills.will_id` for the id that makes an owner accept the
        will once.
        """
