"""
The outboxes of an edge: what goes into them, and when they begin and end.

An outbox takes no more entries once the tree around its zone has changed. So a client's later
publishes are in a later outbox, and the order of a topic's publishes is kept. A client that may
have something left for an owner publishes behind it; who has not goes on live.

Two things are durable before they count, so that no crash forgets them. The id of a client's QoS 2
flow comes before its entry. So does the stream in which an entry was sent before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain

from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.edge.routing.drain_scheduler import DrainHost, DrainScheduler
from txbroker.edge.routing.edge_parts import EdgeParts
from txbroker.edge.routing.outbox import Outbox, OutboxDrain
from txbroker.edge.routing.publication import Publication
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.routing.route import Route
from txbroker.edge.routing.stored_outbox import DrainState, OutboxLog, OutboxState, OutboxStore
from txbroker.model.invariant import holds, ordered
from txbroker.model.topics import is_within
from txbroker.mqtt.session.inbound_publish import OriginId
from txbroker.mqtt.session.session import Session

WELL_BELOW = 0.75
"""Share of the limit; after a size below it, a size at the limit is reported again."""


class OutboxManager:
    """All outboxes of the edge `edge`, which is in the life `incarnation` of its process."""

    def __init__(
        self,
        parts: EdgeParts,
        zones: ResolverCache,
        store: OutboxStore,
        *,
        save_then: Callable[[Session, Callable[[], None]], None],
        limit: int,
    ) -> None:
        """
        `save_then` runs an action when a session is durable; `limit` bounds the bytes on the disk.
        """
        self.limit = limit
        self.unsafe_size = 0
        self._edge = parts.name
        self._incarnation = parts.incarnation
        self._zones = zones
        self._store = store
        self._save_then = save_then
        self._counters = parts.counters
        self._reporter = parts.reporter
        self.outboxes: list[Outbox] = []
        self._ending: list[Outbox] = []
        self._filling: dict[str, Outbox] = {}
        self._unsafe: dict[Outbox, deque[tuple[int, Publication]]] = {}
        self._after: dict[Outbox, list[tuple[int, Callable[[], None]]]] = {}
        self._is_told_full = False
        self._host: DrainHost
        self._draining = DrainScheduler(
            outboxes=self.outboxes,
            zones=zones,
            store=store,
            again=parts.again,
            on_empty=self._finish,
        )
        zones.when_changed(self._on_zones_changed)

    def wire(self, host: DrainHost) -> None:
        """Set the edge that these outboxes belong to."""
        self._host = self._draining.host = host

    # from the node

    def load(self) -> None:
        """Load the outboxes that an earlier process left."""
        for state, log in self._store.load():
            self._adopt(state, log, is_restored=True)
        self._on_zones_changed("")

    def adopt(self, state: OutboxState, log: OutboxLog) -> None:
        """Drain an outbox that has all its entries, and may have been drained in part."""
        self._adopt(state, log, is_restored=True)
        self._reporter.event("outbox.opened", zone=state.zone)
        self._draining.assign()

    def save(self) -> None:
        """Save, once a second, how far the drains have come; a start then repeats few reads."""
        for outbox in list(self.outboxes):
            if outbox.is_empty and not outbox.is_open:
                self._finish(outbox)
            elif outbox.is_dirty:
                self._save(outbox)

    def check(self) -> None:
        """State what of the outboxes is durable, and who waits for that."""
        for outbox in self.outboxes:
            outbox.check()
        strange = self._unsafe.keys() - {*self.outboxes, *self._ending}
        holds(self, 22, "who waits is in an outbox that is here", not strange, len(strange))
        for zone, outbox in self._filling.items():
            is_its = outbox.is_open and outbox.zone == zone
            holds(self, 22, "a zone fills its own outbox", is_its, zone, outbox.key)
        ordered(self, 34, "0 <= bytes that are not safe", 0, self.unsafe_size)

    def work(self) -> None:
        """Send for a while."""
        self._draining.work()

    # from the publisher

    @property
    def is_full(self) -> bool:
        """True if the outboxes have as many bytes on the disk as they may."""
        return self._store.size + self.unsafe_size >= self.limit

    def has_room(self, route: Route) -> bool:
        """True if a publish for this zone may be stored now; reports once if not."""
        if not self.is_full:
            # A durable entry takes less room than one that waits, so the size goes up and down at
            # first. Without the margin each rise would be reported.
            is_well_below = self._store.size + self.unsafe_size < self.limit * WELL_BELOW
            self._is_told_full = self._is_told_full and not is_well_below
            return True
        if not self._is_told_full:
            self._is_told_full = True
            self._counters.add("outbox.full")
            self._reporter.event(
                "outbox.full", limit="limits.outbox", value=self.limit, zone=route.apex
            )
        return False

    def is_idle(self, route: Route) -> bool:
        """True if no entry for this owner is left, so that a publish need not wait behind one."""
        if self.outboxes:
            self.refresh()
        return not route.queue.is_draining

    def holds(self, route: Route, publication: Publication) -> bool:
        """True if an entry of the publish's client may be left for this owner."""
        self.refresh()
        client_id = publication.message.client_id
        return any(
            drain.is_busy and drain.outbox.may_hold(client_id, drain.taken)
            for drain in self._draining.of(route)
        )

    def zones_of(self, client_id: str) -> list[str]:
        """Return the zones for which entries of the client may be left."""
        return [
            drain.apex
            for outbox in self.outboxes
            for drain in outbox.drains
            if drain.is_busy and outbox.may_hold(client_id, drain.taken)
        ]

    def is_at_end(self, route: Route) -> bool:
        """
        True if all durable entries for this owner are sent.

        The rest takes a commit and an answer, for which publishes wait. A client that goes on
        publishing always has an entry on its way to the disk. If more entries went behind, the
        drain would never end.
        """
        return route.port is not None and all(
            drain.is_at_end for drain in self._draining.of(route) if drain.is_busy
        )

    def store(self, route: Route, publication: Publication, origin: OriginId | None = None) -> bool:
        """
        Store a publish for this zone; `on_safe` is called when it is durable.

        `origin` is the id under which it was sent before. Returns False if the disk does not allow
        it now.
        """
        outbox = self._filling.get(route.apex) or self._create(route)
        if outbox is None:
            return False
        message = publication.message
        is_new_doubt = origin is not None and origin[0] not in outbox.origins
        earlier = self._unsafe_in_closed(message.client_id)
        holds = publication.needs_durable_id + is_new_doubt + len(earlier)
        number = outbox.log.append(message, origin, holds=holds)
        outbox.add(message, number)
        self._count(publication, 1)
        self._unsafe[outbox].append((number, publication))
        release = partial(outbox.log.release, number)
        for other, last in earlier.items():
            self._after.setdefault(other, []).append((last, release))
        if publication.needs_durable_id:
            self._save_then(publication.set_entry(outbox.key, number), release)
        if origin is not None:
            self._split_doubt(outbox, route, message.topic)
        if origin is not None and is_new_doubt:
            # After a crash, a drain without this stream would not ask for its mark. The owner could
            # accept the entry twice.
            outbox.origins[origin[0]] = None
            self._save(outbox)
            self._store.when_durable(release)
        return True

    def end_doubts(self, route: Route) -> None:
        """
        Close the route's outbox if it has doubts that belong to another owner by now.

        All publishes in doubt are stored, and those that follow are not in doubt. With an end the
        outbox can be drained by the other owner, however long this one stays away. Without it,
        entries for this owner would prolong it.
        """
        outbox = self._filling.get(route.apex)
        if outbox is not None and len(outbox.drains) > 1:
            self._close(outbox)

    def contains(self, entry: OriginId) -> bool:
        """
        True if the publish became this entry, and the entry is not lost; for use after a start.

        Without an outbox of that key the entry was drained.
        """
        key, number = entry
        found = next((outbox for outbox in self.outboxes if outbox.key == key), None)
        return found is None or number <= found.last

    # from the edge

    def keys(self) -> Iterable[MarkKey]:
        """Return the streams that owners may be asked about."""
        return chain.from_iterable(o.keys() for o in (*self.outboxes, *self._ending))

    def on_online(self, route: Route) -> None:
        """Schedule the drains: the owner is connected, or has credit."""
        self._draining.on_online(route)

    def on_lost(self, route: Route) -> None:
        """Stop the drains: the owner is disconnected."""
        self._draining.on_lost(route)

    def refresh(self) -> None:
        """Assign each drain to its owner, as the tree may have changed."""
        self._draining.refresh()

    # from operators

    def waiting(self) -> dict[str, int]:
        """Return, by zone, how many entries wait, at most."""
        return self._draining.waiting()

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return self._store.size

    # internal: outboxes

    def _unsafe_in_closed(self, client_id: str) -> dict[Outbox, int]:
        """
        Return the client's last entries, by closed outbox, that are not durable yet.

        Later publishes go to another outbox. None of them may be durable, and acknowledged, before
        these entries.
        """
        return {
            outbox: number
            for outbox, unsafe in self._unsafe.items()
            if not outbox.is_open
            for number, publication in unsafe
            if publication.client_id == client_id
        }

    def _create(self, route: Route) -> Outbox | None:
        state = OutboxState(
            zone=route.apex,
            incarnation=self._incarnation,
            stream=self._zones.next_stream(),
            drains=(DrainState(apex=route.apex),),
        )
        log = self._store.create(state)
        if log is None:
            return None
        outbox = self._adopt(state, log, is_restored=False)
        self._filling[route.apex] = outbox
        self._unsafe[outbox] = deque()
        self._reporter.event("outbox.opened", zone=route.apex)
        self._draining.assign()
        return outbox

    def _adopt(self, state: OutboxState, log: OutboxLog, *, is_restored: bool) -> Outbox:
        key = (self._edge, state.incarnation, state.zone, state.stream)
        outbox = Outbox(key, log, is_restored=is_restored)
        outbox.origins = dict.fromkeys(state.origins)
        outbox.drains = [OutboxDrain(outbox, d, is_restored=is_restored) for d in state.drains]
        log.on_durable = partial(self._on_durable, outbox)
        self.outboxes.append(outbox)
        return outbox

    def _save(self, outbox: Outbox) -> None:
        outbox.is_dirty = False
        self._store.save(outbox.state)

    def _finish(self, outbox: Outbox) -> None:
        """Drop an outbox all of whose entries were accepted."""
        self._close(outbox)
        self._unsafe.pop(outbox, None)
        self.outboxes.remove(outbox)
        self._draining.assign()
        # After a crash the outbox may come back, until the deletion is durable. Without their marks
        # its entries would be accepted twice.
        self._ending.append(outbox)
        self._reporter.event("outbox.drained", zone=outbox.zone, messages=outbox.last)
        self._store.drop(outbox.state, partial(self._ending.remove, outbox))

    def _close(self, outbox: Outbox) -> None:
        outbox.is_open = False
        if self._filling.get(outbox.zone) is outbox:
            del self._filling[outbox.zone]

    def _split_doubt(self, outbox: Outbox, route: Route, topic: str) -> None:
        """Split off a drain if a publish in doubt belongs to another owner by now."""
        home = self._zones.find(topic)
        if home is not route and outbox.drain_at(home.apex) is None:
            self._draining.split(outbox.drains[0], home.apex)

    def _on_durable(self, outbox: Outbox) -> None:
        unsafe = self._unsafe.get(outbox)
        while unsafe and unsafe[0][0] <= outbox.log.durable:
            _, publication = unsafe.popleft()
            self._count(publication, -1)
            self._host.on_safe(publication)
        after = self._after.pop(outbox, ())
        for number, release in after:
            if number <= outbox.log.durable:
                release()
        late = [one for one in after if one[0] > outbox.log.durable]
        if late:
            self._after[outbox] = late
        self._draining.on_durable(outbox)

    def _count(self, publication: Publication, sign: int) -> None:
        # Until it is durable, a publish counts against the memory limits. A slow disk would
        # otherwise fill the memory.
        size = publication.message.size * sign
        self.unsafe_size += size
        self._zones.backlog.size += size
        if publication.session is not None:
            publication.session.held_size += size

    def _on_zones_changed(self, apex: str) -> None:
        for outbox in list(self._filling.values()):
            if is_within(outbox.zone, apex) or is_within(apex, outbox.zone):
                self._close(outbox)
        self._draining.on_zones_changed(apex)
