"""
The holder's answers to discards: whether a session here is older than the clean one elsewhere.

Theory of operation. A request says how long ago the client began the clean session. A session to
which the client connected earlier ends, another one is kept. A request may arrive late. Then the
client may have left the asker, and may have connected here meanwhile: that session would look too
old. So a holder answers `MaybeNewer` where lateness could decide, and names the connection. The
asker asks again while its client is still there. A connection that the request names began before
it.
"""

from __future__ import annotations

from collections.abc import Callable

from txbroker.directory.connected_clients import ConnectedClients
from txbroker.directory.directory_parts import DirectoryParts
from txbroker.directory.discard_record import ANY, PendingDiscard
from txbroker.directory.requests import (
    NONE_NAMED,
    UNKNOWN_AGE,
    Busy,
    Discard,
    Discarded,
    Kept,
    MaybeNewer,
    MovedTo,
    NotHeld,
    Reply,
)
from txbroker.directory.session_ownership import OwnedSession
from txbroker.directory.session_takeover import SessionTakeovers
from txbroker.model.machine_time import MachineTime

LATE = 3.0
"""Seconds by which a request may be late: a call's time, and that of a node that was frozen."""


class DiscardAnswers:
    """The answers of one node."""

    def __init__(
        self,
        parts: DirectoryParts,
        *,
        takeovers: SessionTakeovers,
        connected: ConnectedClients,
        moment: Callable[[], MachineTime],
    ) -> None:
        self._members = parts.members
        self._ownership = parts.ownership
        self._replicator = parts.replicator
        self._host = parts.host
        self._now = parts.now
        self._takeovers = takeovers
        self._connected = connected
        self._moment = moment
        self._started = parts.now()

    # from the directory

    def start(self) -> None:
        """
        Note the time from which clients connect: a client that left later left in this process.
        """
        self._started = self._now()

    def discard(self, source: str, request: Discard) -> Reply:
        """End the session of a client that began a clean session at `source`."""
        client_id, ownership = request.client_id, self._ownership
        arriving = ownership.arriving.get(client_id)
        if arriving is not None:
            if request.incarnation < arriving.incarnation:
                return Busy()
            if ownership.has_begun_beside(arriving, client_id):
                return Busy()  # the copy may become a session, and is to end as well
            # An asker that knows this incarnation proves the release: nodes learn the incarnation
            # only after it.
            self._takeovers.adopt(client_id)
        elif client_id in self._takeovers.busy and source < self._members.name:
            return Busy()
        claim = self._takeovers.claims.pop(client_id, None)
        if claim is not None:
            return NotHeld(incarnation=claim.incarnation)
        owned = ownership.held.get(client_id)
        if owned is None:
            return self._discard_connection(request)
        if not self._is_older(request, owned):
            return Kept()
        if owned.incarnation > request.incarnation:
            # A late request must not end a session at an incarnation that the asker did not know.
            return MovedTo(node=self._members.name, incarnation=owned.incarnation)
        if (doubt := self._doubt(request)) is not None:
            return doubt
        ownership.drop(client_id)
        self._replicator.drop(client_id)
        self._host.discard(client_id, is_moved=False)
        return Discarded(incarnation=owned.incarnation)

    def end_older(self, client_id: str, due: PendingDiscard) -> None:
        """
        End a session here that is older than the clean session of a pending discard of this node.

        The process ended when the discard was durable, and before the clean session began.
        """
        owned = self._ownership.held.get(client_id)
        if owned is not None:
            # No doubt about a connection, as for an older node: this question is never late.
            request = due.request(client_id, owned.incarnation, self._moment(), connection=0)
            self.discard(self._members.name, request)

    # internal

    def _discard_connection(self, request: Discard) -> Reply:
        client_id = request.client_id
        own = self._replicator.own.get(client_id)
        since = self._connected.seconds_here(client_id)
        is_pending = request.connection > 0 and request.through < ANY
        if own is not None and not own.persistent and is_pending:
            own = None  # the connection may be newer than a clean session of long ago
        if own is not None and since is not None and since * 1000 < request.age:
            return Kept()
        if own is not None:
            if (doubt := self._doubt(request)) is not None:
                return doubt
            self._replicator.drop(client_id)
            if not own.persistent:
                self._host.close(client_id)
            return Discarded(incarnation=own.generation)
        gone = self._ownership.tombstone(client_id)
        if gone is None:
            return NotHeld()
        return MovedTo(node=gone.node, incarnation=gone.incarnation)

    def _is_older(self, request: Discard, owned: OwnedSession) -> bool:
        """
        True if the client connected to the session before it began the clean one, as far as is
        known.

        If the time of that CONNECT is unknown, the time when the client left may decide. A killed
        process may not have stored that time. So the time decides only if the client left in this
        process, or if the incarnation is above `through`. Otherwise the session counts as older.
        """
        since = self._connected.seconds_here(request.client_id)
        if since is None and request.age < UNKNOWN_AGE:
            last = self._last_connect(request.client_id)
            since = None if last is None else last[0]
        if since is None:
            away = self._host.idle(request.client_id)
            has_left = request.age < UNKNOWN_AGE and 0 < away < self._now() - self._started
            if has_left or owned.incarnation > request.through:
                since = away
        return since is None or since * 1000 >= request.age

    def _doubt(self, request: Discard) -> MaybeNewer | None:
        """Name the connection if the client may have left the asker for it; None: it has not."""
        last = self._last_connect(request.client_id)
        if not request.connection or last is None:
            return None
        since, number = last
        if number == request.connection or since - request.age / 1000 >= LATE:
            return None
        return MaybeNewer(connection=number)

    def _last_connect(self, client_id: str) -> tuple[float, int] | None:
        """Return the seconds since the client's last CONNECT here, and the connection's number."""
        since = self._connected.seconds_here(client_id)
        if since is not None:
            return since, self._connected.number_of(client_id)
        owned = self._ownership.held.get(client_id)
        if owned is None or owned.since is None:
            return None
        age = owned.since.age(self._moment())
        return None if age is None else (age / 1000, NONE_NAMED + 1 + owned.since.milliseconds)
