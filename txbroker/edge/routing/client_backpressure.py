"""
Back-pressure on clients whose publishes wait for owners (protocol rule 20).

A client's connection is read, or paused. A client is paused only while publishes of its own wait.
So publishes that wait for one zone never pause a client that publishes to others. Reads resume at
half the limits, or when no publish of the client waits.
"""

from __future__ import annotations

from collections.abc import Callable

from txbroker.edge.routing.outbox_manager import OutboxManager
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.routing.route import Route
from txbroker.mqtt.session.session import Session

CONGESTED = 1024 * 1024
"""Bytes for owners that accept them soon; above it, clients with waiting publishes are paused."""

HOPE = 1.0
"""Seconds for which an owner that is being connected counts as accepting soon."""


class ClientBackpressure:
    """
    The back-pressure of one edge; `held_limit` bounds the bytes in memory for all owners.

    `paused` has the clients that are not read, with what reads them again.

    `is_full`: a publish has to be stored until its owner is back, and the outboxes have no room.
    """

    def __init__(
        self,
        zones: ResolverCache,
        outboxes: OutboxManager,
        *,
        held_limit: int,
        now: Callable[[], float],
    ) -> None:
        self.is_full = False
        self._zones = zones
        self._outboxes = outboxes
        self._held_limit = held_limit
        self._now = now
        self.paused: dict[Session, Callable[[], None]] = {}

    # from the connections

    def is_too_much(self, session: Session) -> bool:
        """True if this client should not be read for now; checked after each read."""
        total = self._zones.backlog.size
        if not session.held_size:
            return False
        if self.is_full:
            return True
        if total <= CONGESTED:
            return False
        return self.is_over or self._moving_backlog() > CONGESTED

    def when_room(self, session: Session, action: Callable[[], None]) -> None:
        """Run `action` once the client may be read again."""
        self.paused[session] = action

    def forget(self, session: Session) -> None:
        """Discard the action of a client that is gone."""
        self.paused.pop(session, None)

    # from the publisher

    @property
    def is_over(self) -> bool:
        """True if the bytes that wait in memory exceed the limit."""
        return self._zones.backlog.size > self._held_limit

    def await_owner(self, route: Route) -> None:
        """Note that the first publish waits for this owner."""
        route.queue.hope(self._now() + HOPE)

    def has_hope(self, route: Route) -> bool:
        """True if an owner that is not connected may accept the waiting publishes soon."""
        return not route.is_away and self._now() < route.queue.hope_until

    @property
    def is_short(self) -> bool:
        """True if the outboxes or the memory have no room: that may last long."""
        return self.is_full or self.is_over

    def resume_clients(self) -> None:
        """Resume clients that may be read again, as bytes were sent or time has passed."""
        has_room = (
            not self.is_full
            and self._zones.backlog.size <= self._held_limit // 2
            and self._moving_backlog() <= CONGESTED // 2
        )
        for session in [s for s in self.paused if has_room or not s.held_size]:
            self.paused.pop(session)()

    # internal

    def _moving_backlog(self) -> int:
        return self._outboxes.unsafe_size + sum(
            r.queue.waiting_size
            for r in self._zones
            if r.queue.waiting and (r.port is not None or self.has_hope(r))
        )
