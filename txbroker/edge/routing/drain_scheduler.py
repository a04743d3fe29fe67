"""
Schedules the drains of an edge's outboxes: which owner each goes to, and when it sends.

A drain goes to the owner of the deepest known zone around its apex. The drains for one owner follow
each other by the age of their outboxes. For each connection a drain first asks for the owner's
marks, then opens a stream, then sends. After a refusal it stops until a restart; after a cut it is
split.

State that a crash must not lose is durable before it counts. A drain that was split, or that
learned what was accepted, sends nothing before its new state is durable (`blocks`).
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
"""Batches sent to one owner in one turn; other owners follow."""


class DrainHost(Protocol):
    """The edge, as its outboxes see it."""

    def wake(self, route: Route) -> None:
        """Advance the route, as entries wait for its owner."""

    def on_safe(self, publication: Publication) -> None:
        """Acknowledge a publish that is durable here."""

    def on_drained(self, route: Route) -> None:
        """Note that no entries are left for this owner."""

    def on_cut_told(self, route: Route, cut: ZoneCut) -> None:
        """Note the cut that an owner gave with a refusal."""


class DrainScheduler:
    """The drains of `outboxes`, a list that the outbox manager fills."""

    def __init__(
        self,
        *,
        outboxes: list[Outbox],
        zones: ResolverCache,
        store: OutboxStore,
        again: Callable[[], None],
        on_empty: Callable[[Outbox], None],
    ) -> None:
        """
        `again` calls `work` in another turn; `on_empty` is called for an outbox that became empty.
        """
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
        """Note that a zone was added or removed; `refresh` goes before all else."""
        if self._outboxes:
            self._changed.add(apex)
            self._again()

    def refresh(self) -> None:
        """Assign each drain to its owner, as the tree may have changed."""
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
            route.queue.drain(drains)
            for drain in drains:
                if drain.route is not route:
                    drain.reset()
                    drain.route = route
            self._feed(route)
        for route in bare:
            route.queue.drain(())
            self.host.on_drained(route)

    def split(self, drain: OutboxDrain, apex: str) -> None:
        """Split off a drain for a deeper zone."""
        drain.split(apex)
        self._block_until_durable(drain)
        self.assign()

    def on_durable(self, outbox: Outbox) -> None:
        """Schedule the outbox's drains: more entries can be sent."""
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
        """Return the drains for this owner, in their order."""
        return self._homes.get(route, ())

    def waiting(self) -> dict[str, int]:
        """Return, by zone, how many entries wait, at most."""
        return {
            route.apex: sum(drain.outbox.last - drain.taken for drain in drains)
            for route, drains in self._homes.items()
        }

    # from owners

    def on_online(self, route: Route) -> None:
        """Schedule the route's drains: the owner is connected, or has credit."""
        self.refresh()
        if route.queue.drains:
            self._feed(route)

    def on_lost(self, route: Route) -> None:
        """Stop the route's drains: the owner is disconnected."""
        for drain in self.of(route):
            drain.reset()

    def on_accepted(self, drain: OutboxDrain, sequence: int) -> None:
        """Note that the owner has accepted the drain's entries up to here."""
        if drain.on_accepted(sequence):
            self._block_until_durable(drain)
        if drain.route is not None:
            self._feed(drain.route)
        self._on_progress(drain)

    def on_refused(
        self, drain: OutboxDrain, sequence: int, cut: ZoneCut | None, *, retry: bool
    ) -> None:
        """Note that the owner refuses the drain's entries from here on, until a restart."""
        route, stream, attempt = drain.route, drain.stream, drain.attempt
        assert route is not None and stream is not None
        drain.on_refused(sequence)
        if cut is not None:
            self.host.on_cut_told(route, cut)
            self.refresh()
            self._split(drain.outbox, cut.apex)
        elif not retry:
            # The zone itself is leaving this owner. The stream of deliveries announces its end, and
            # the drain is assigned anew.
            drain.stream = None
            return

        def restart() -> None:
            if drain.attempt == attempt:
                stream.restart()

        self._block_until_durable(drain, restart)

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

    def _block_until_durable(
        self, drain: OutboxDrain, then: Callable[[], None] = lambda: None
    ) -> None:
        """Block the drain until all that is known of its outbox is durable."""

        def go_on() -> None:
            drain.blocks -= 1
            then()
            for one in drain.outbox.drains:  # these may have waited for the outcome
                if one.route is not None:
                    self._feed(one.route)

        drain.blocks += 1
        drain.outbox.is_dirty = False
        self._store.save(drain.outbox.state)
        self._store.when_durable(go_on)

    def _pump(self, route: Route) -> None:
        """Send the entries that the owner accepts; the oldest drain first."""
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
        keys = drain.start(port)
        port.request_marks(keys, partial(self._on_marks, drain, drain.attempt))

    def _on_marks(self, drain: OutboxDrain, attempt: int, marks: dict[MarkKey, int]) -> None:
        if drain.attempt != attempt:
            return
        if drain.on_marks(marks):
            self._block_until_durable(drain, partial(self._open_stream, drain, attempt))
        else:
            self._open_stream(drain, attempt)

    def _open_stream(self, drain: OutboxDrain, attempt: int) -> None:
        if drain.attempt == attempt and drain.port is not None and drain.route is not None:
            drain.stream = drain.port.open_stream(drain.key, _User(self, drain))
            self._feed(drain.route)

    def _on_progress(self, drain: OutboxDrain) -> None:
        """Trim the outbox after entries were accepted, or turned out to be of another drain."""
        outbox, route = drain.outbox, drain.route
        outbox.is_dirty = True
        outbox.trim()
        if drain.is_busy or route is None:
            return
        if outbox.is_empty:
            self._on_empty(outbox)
        if route.queue.is_draining:
            self._feed(route)
        else:
            self.host.on_drained(route)


class _User:
    """A drain on one of its connections (`StreamUser`)."""

    def __init__(self, draining: DrainScheduler, drain: OutboxDrain) -> None:
        self._draining = draining
        self._drain = drain
        self._attempt = drain.attempt

    def on_accepted(self, sequence: int) -> None:
        """Note that the owner has accepted all entries up to this sequence."""
        if self._drain.attempt == self._attempt:
            self._draining.on_accepted(self._drain, sequence)

    def on_refused(self, sequence: int, cut: ZoneCut | None, *, retry: bool) -> None:
        """Note that the owner refuses the entries from this sequence on, until a restart."""
        if self._drain.attempt == self._attempt:
            self._draining.on_refused(self._drain, sequence, cut, retry=retry)
