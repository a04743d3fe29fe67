"""
Which clients are not read for now, because what they brought waits for owners (protocol rule 20).

Only a client of whom something waits is paused: what waits for one zone holds back nobody who
publishes to others.
"""

from __future__ import annotations

from collections.abc import Callable

from txbroker.edge.routing.outbox_manager import OutboxManager
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.routing.route import Route, RouteState
from txbroker.mqtt.session.session import Session

CONGESTED = 1024 * 1024
"""Bytes that wait for owners that take them soon, above which publishing clients are not read."""

HOPE = 1.0
"""Seconds for which an owner that is being connected counts as one that takes them soon."""


class ClientBackpressure:
    """
    Of one edge; `held_limit` bytes at most wait in memory for owners, whoever these are.

    `is_full`: something is to be stored until its owner is back, and the outboxes have no room.
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
        self._paused: dict[Session, Callable[[], None]] = {}

    # from the connections

    def is_too_much(self, session: Session) -> bool:
        """Whether this client should not be read for now; look after each read."""
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
        self._paused[session] = action

    def forget(self, session: Session) -> None:
        """The client is gone."""
        self._paused.pop(session, None)

    # from the publisher

    @property
    def is_over(self) -> bool:
        """True if as much waits in memory as may."""
        return self._zones.backlog.size > self._held_limit

    def begin_hope(self, route: Route) -> None:
        """The first publish waits for this owner."""
        route.hope_until = self._now() + HOPE

    def has_hope(self, route: Route) -> bool:
        """Whether an owner that is not connected may take what waits soon."""
        return route.state is not RouteState.UNREACHABLE and self._now() < route.hope_until

    def look_again(self) -> None:
        """Something went, or time has passed: who was paused may go on."""
        if not self._paused:
            return
        has_room = (
            not self.is_full
            and self._zones.backlog.size <= self._held_limit // 2
            and self._moving_backlog() <= CONGESTED // 2
        )
        for session in [s for s in self._paused if has_room or not s.held_size]:
            self._paused.pop(session)()

    # internal

    def _moving_backlog(self) -> int:
        return self._outboxes.unsafe_size + sum(
            r.waiting_size
            for r in self._zones
            if r.waiting and (r.port is not None or self.has_hope(r))
        )
