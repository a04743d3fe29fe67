"""
Where the outboxes of an edge drain, and how.

A drain goes to the owner of the deepest known zone around its own apex. The drains that one owner
gets follow each other by the age of their outboxes. What a crash must not forget is durable before
it counts: a drain that was split, or that learned what was taken, sends nothing before that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.edge.routing.outbox import Outbox, OutboxDrain
from txbroker.edge.routing.owner_port import OwnerPort
from txbroker.edge.routing.publication import Publication
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.routing.route import Route
from txbroker.edge.routing.stored_outbox import OutboxStore
from txbroker.model.topics import is_within
from txbroker.model.zone_cut import ZoneCut

BATCHES = 8
"""Batches sent to one owner in one turn; then others have theirs."""


class DrainHost(Protocol):
    """The edge, as its outboxes see it."""

    def wake(self, route: Route) -> None:
        """Something waits for the owner: bring it nearer."""

    def on_safe(self, publication: Publication) -> None:
        """It is durable here: its client may be told."""

    def on_drained(self, route: Route) -> None:
        """Nothing is left for this owner."""

    def on_cut_told(self, route: Route, cut: ZoneCut) -> None:
        """The owner refused something: it lies below this cut."""


class DrainScheduler:
    """The drains of the `outboxes`, a list that others fill."""

    def __init__(
        self,
        *,
        outboxes: list[Outbox],
        zones: ResolverCache,
        store: OutboxStore,
        again: Callable[[], None],
        on_empty: Callable[[Outbox], None],
    ) -> None:
        """`again` has `work` called in another turn; `on_empty` hears of an outbox that is."""
        self.host: DrainHost
        self._outboxes = outboxes
        self._zones = zones
        self._store = store
        self._again = again
        self._on_empty = on_empty
        self._homes: dict[Route, list[OutboxDrain]] = {}
        self._hungry: dict[Route, None] = {}
        self._changed: set[str] = set()

    # from the outboxes

    def on_zones_changed(self, apex: str) -> None:
        """A zone is new or forgotten: `refresh` before anything else."""
        if self._outboxes:
            self._changed.add(apex)
            self._again()

    def refresh(self) -> None:
        """The tree may have changed: let each drain go to its owner."""
        if self._changed:
            changed, self._changed = self._changed, set()
            for apex in sorted(changed, key=len):
                if apex and self._zones.get(apex) is not None:
                    for outbox in self._outboxes:
                        self._split(outbox, apex)
            self.assign()

    def assign(self) -> None:
        """Find the owner of each drain."""
        homes: dict[Route, list[OutboxDrain]] = {}
        for outbox in sorted(self._outboxes, key=lambda one: one.age):
            for drain in outbox.drains:
                if drain.is_busy or outbox.is_open:
                    homes.setdefault(self._zones.find(drain.apex), []).append(drain)
        bare = self._homes.keys() - homes.keys()
        self._homes = homes
        for route, drains in homes.items():
            route.drains = drains
            for drain in drains:
                if drain.route is not route:
                    drain.lose()
                    drain.route = route
            self._feed(route)
        for route in bare:
            route.drains = ()
            self.host.on_drained(route)

    def split(self, drain: OutboxDrain, apex: str) -> None:
        """Split off what belongs to a deeper zone."""
        drain.split(apex)
        self._keep(drain)
        self.assign()

    def on_durable(self, outbox: Outbox) -> None:
        """More of it can be sent."""
        for drain in outbox.drains:
            if drain.stream is not None and drain.route is not None:
                self._feed(drain.route)

    def work(self) -> None:
        """Send for a while."""
        self.refresh()
        hungry, self._hungry = self._hungry, {}
        for route in hungry:
            self._pump(route)

    def of(self, route: Route) -> Sequence[OutboxDrain]:
        """What goes to this owner, in its order."""
        return self._homes.get(route, ())

    def waiting(self) -> dict[str, int]:
        """How many entries wait for which zone, at the most."""
        return {
            route.apex: sum(drain.outbox.last - drain.taken for drain in drains)
            for route, drains in self._homes.items()
        }

    # from owners

    def on_online(self, route: Route) -> None:
        """The owner is connected, or takes more."""
        self.refresh()
        if route.drains:
            self._feed(route)

    def on_lost(self, route: Route) -> None:
        """It is not any more."""
        for drain in self.of(route):
            drain.lose()

    def on_taken(self, drain: OutboxDrain, sequence: int) -> None:
        """What the drain sent was taken up to here."""
        if drain.on_taken(sequence):
            self._keep(drain)
        if drain.route is not None:
            self._feed(drain.route)
        self._on_progress(drain)

    def on_refused(
        self, drain: OutboxDrain, sequence: int, cut: ZoneCut | None, *, retry: bool
    ) -> None:
        """The owner takes nothing of it from here on, until a restart."""
        route, stream, attempt = drain.route, drain.stream, drain.attempt
        assert route is not None and stream is not None
        drain.on_refused(sequence)
        if cut is not None:
            self.host.on_cut_told(route, cut)
            self.refresh()
            self._split(drain.outbox, cut.apex)
        elif not retry:
            # The zone itself is going; the stream of deliveries says so when it has.
            drain.stream = None
            return

        def restart() -> None:
            if drain.attempt == attempt:
                stream.restart()

        self._keep(drain, restart)

    # internal

    def _split(self, outbox: Outbox, apex: str) -> None:
        covering = [d for d in outbox.drains if is_within(apex, d.apex)]
        if not covering:
            return
        drain = max(covering, key=lambda one: len(one.apex))
        if drain.apex != apex and drain.is_busy and outbox.may_concern(apex, drain.taken):
            self.split(drain, apex)

    def _feed(self, route: Route) -> None:
        if not self._hungry:
            self._again()
        self._hungry[route] = None

    def _keep(self, drain: OutboxDrain, then: Callable[[], None] = lambda: None) -> None:
        """Let the drain send nothing before all that is known of its outbox is durable."""

        def go_on() -> None:
            drain.blocks -= 1
            then()
            for one in drain.outbox.drains:  # it may have told others what they waited for
                if one.route is not None:
                    self._feed(one.route)

        drain.blocks += 1
        drain.outbox.is_dirty = False
        self._store.save(drain.outbox.state)
        self._store.when_durable(go_on)

    def _pump(self, route: Route) -> None:
        """Send what the owner takes; the oldest drain first."""
        port = route.port
        drain = next((one for one in self.of(route) if one.is_busy), None)
        if drain is None:
            self.host.on_drained(route)
        elif port is None:
            self.host.wake(route)
        elif drain.port is not port:
            self._ask(drain, port)
        elif drain.stream is not None:
            for _ in range(BATCHES):
                batch = drain.next_batch() if port.has_credit() else []
                if not batch:
                    break
                drain.stream.send(batch)
            else:
                self._feed(route)
            self._on_progress(drain)

    def _ask(self, drain: OutboxDrain, port: OwnerPort) -> None:
        keys = drain.begin(port)
        port.ask(keys, partial(self._on_marks, drain, drain.attempt))

    def _on_marks(self, drain: OutboxDrain, attempt: int, marks: dict[MarkKey, int]) -> None:
        if drain.attempt != attempt:
            return
        if drain.on_marks(marks):
            self._keep(drain, partial(self._open_stream, drain, attempt))
        else:
            self._open_stream(drain, attempt)

    def _open_stream(self, drain: OutboxDrain, attempt: int) -> None:
        if drain.attempt == attempt and drain.port is not None and drain.route is not None:
            drain.stream = drain.port.open_stream(drain.key, _User(self, drain))
            self._feed(drain.route)

    def _on_progress(self, drain: OutboxDrain) -> None:
        """Something was taken, or found to be nobody's concern any more."""
        outbox, route = drain.outbox, drain.route
        outbox.is_dirty = True
        outbox.trim()
        if drain.is_busy or route is None:
            return
        if outbox.is_empty:
            self._on_empty(outbox)
        if route.is_draining:
            self._feed(route)
        else:
            self.host.on_drained(route)


class _User:
    """A drain on one of its connections (`StreamUser`)."""

    def __init__(self, draining: DrainScheduler, drain: OutboxDrain) -> None:
        self._draining = draining
        self._drain = drain
        self._attempt = drain.attempt

    def on_taken(self, sequence: int) -> None:
        """The owner has everything up to this one."""
        if self._drain.attempt == self._attempt:
            self._draining.on_taken(self._drain, sequence)

    def on_refused(self, sequence: int, cut: ZoneCut | None, *, retry: bool) -> None:
        """It takes nothing from this one on, until a restart."""
        if self._drain.attempt == self._attempt:
            self._draining.on_refused(self._drain, sequence, cut, retry=retry)
