"""The requests of sessions to their edge: to save them, to feed them, to count what they drop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from weakref import WeakSet

from txbroker.edge.routing.edge_parts import EdgeParts
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.sessions.catch_up import CatchUp
from txbroker.edge.sessions.ledger_writer import LedgerWriter
from txbroker.edge.sessions.session_store import SessionStore
from txbroker.edge.sessions.shared_subscriptions import SharedSubscriptions
from txbroker.mqtt.session.session import Session


class EdgeSessionOwner:
    """
    The `SessionOwner` of one edge's sessions; all parts are those of that edge.

    `recording` is None if the node has no delivery ledger.
    """

    def __init__(
        self,
        parts: EdgeParts,
        *,
        zones: ResolverCache,
        shared: SharedSubscriptions,
        session_store: SessionStore,
        backlog: CatchUp,
        ledger_writer: LedgerWriter | None,
    ) -> None:
        self.recording = ledger_writer
        self._zones = zones
        self._shared = shared
        self._router = parts.router
        self._timers = parts.timers
        self._counters = parts.counters
        self._reporter = parts.reporter
        self._session_store = session_store
        self._backlog = backlog
        self._fills = 0
        self._told_full: WeakSet[Session] = WeakSet()
        self._told_large: WeakSet[Session] = WeakSet()

    def has_room(self, session: Session) -> None:
        """Wake the catch-up of a session that is behind and has room for more messages."""
        self._backlog.wake(session)

    def save(self, session: Session, *, urgent: bool) -> None:
        """Save a durable session's window and cursors."""
        self._session_store.save(session, urgent=urgent)

    def save_all(self, session: Session) -> None:
        """Save a durable session, its subscriptions and their starts included."""
        self._session_store.save_all(session)

    def save_then(self, session: Session, action: Callable[[], None]) -> None:
        """Save a durable session; run `action` when the change is durable."""
        self._session_store.save_then(session, action)

    def dropped(self, session: Session, qos: int, count: int, *, is_first: bool) -> None:
        """Count messages that a session's limit discarded; report the first."""
        self._counters.add("session.dropped.queue_full" if qos else "session.dropped.qos0", count)
        if qos and not session.clean:
            self._session_store.save_all(session)
        if is_first:
            limit = "session_limits" if qos else ""
            client_id = session.client_id
            self._reporter.event(
                "session.messages_dropped", client_id=client_id, qos=qos, limit=limit
            )

    def too_large(self, session: Session, count: int) -> None:
        """Count messages that are larger than the client's maximum packet size."""
        self._counters.add("session.dropped.too_large", count)
        if session not in self._told_large:
            self._told_large.add(session)
            self._reporter.event("session.too_large", client_id=session.client_id)

    def expired(self, count: int) -> None:
        """Count messages whose interval passed while they waited for a session."""
        self._counters.add("session.dropped.expired", count)

    def now(self) -> float:
        """Return the seconds since some fixed moment."""
        return self._timers.now()

    def answer_leases(self, leases: list[int]) -> None:
        """Note that a client has answered messages that groups lent."""
        self._shared.answer(leases)

    def answer_runs(self, offsets: Mapping[int, list[int]]) -> None:
        """Note that a client has answered messages of runs, by lender."""
        self._shared.answer_runs(offsets)

    def zone_of(self, topic: str) -> str:
        """Return the apex of the zone to which a publish of the topic goes."""
        return self._zones.find(topic).apex

    def window_is_full(self, session: Session, limit: str) -> None:
        """Count and report that a client has as many unacknowledged messages as it may have."""
        if not session.clean:
            self._counters.add("session.window_full")
        if session not in self._told_full:
            self._told_full.add(session)
            self._reporter.event("session.window_full", client_id=session.client_id, limit=limit)

    # from the edge

    def count_fills(self) -> None:
        """Count, now and then, how often the windows of clean sessions became full."""
        fills = self._router.fills
        if fills > self._fills:
            self._counters.add("session.window_full", fills - self._fills)
            self._fills = fills
