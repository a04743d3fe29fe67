"""
The outboxes of an edge: what goes into them, and where they drain.

A drain goes to the owner of the deepest known zone around its own apex. The drains that one owner
gets follow each other by the age of their outboxes, and an outbox takes no more entries once the
tree around its zone has changed: so whatever a client published later is in a later one, and the
order of a topic's publishes is kept. A client that may have something left for an owner publishes
behind it; who has not goes on live.

What a crash must not forget is durable before it counts: the id of a client's QoS 2 flow before its
entry, a split before the first drain sends on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import Protocol

from txbroker.authority.handover import MarkKey
from txbroker.counters import Counters
from txbroker.delegation.cut import Cut
from txbroker.edge.drain import Drain
from txbroker.edge.outbox import (
    DrainState,
    OriginId,
    Outbox,
    OutboxLog,
    OutboxState,
    OutboxStore,
)
from txbroker.edge.reporter import Reporter
from txbroker.edge.route import OwnerPort, Publication, Route
from txbroker.edge.zonemap import ZoneMap
from txbroker.mqtt.session import Session
from txbroker.topics import is_within

BATCHES = 8
"""Batches sent to one owner in one turn; then others have theirs."""


class Host(Protocol):
    """The edge, as its outboxes see it."""

    def wake(self, route: Route) -> None:
        """Something waits for the owner: bring it nearer."""

    def on_safe(self, publication: Publication) -> None:
        """It is durable here: its client may be told."""

    def on_drained(self, route: Route) -> None:
        """Nothing is left for this owner."""

    def on_cut_told(self, route: Route, cut: Cut) -> None:
        """The owner refused something: it lies below this cut."""


class Outboxes:
    """All outboxes of the edge `edge`, which is in the life `incarnation` of its process."""

    def __init__(
        self,
        *,
        edge: str,
        incarnation: int,
        zones: ZoneMap,
        store: OutboxStore,
        save_then: Callable[[Session, Callable[[], None]], None],
        counters: Counters,
        reporter: Reporter,
        again: Callable[[], None],
        limit: int,
    ) -> None:
        """
        `save_then` runs an action when a session is durable, `again` has `work` called in another
        turn; `limit` bounds the bytes on the disk.
        """
        self.limit = limit
        self.unsafe_size = 0
        self._edge = edge
        self._incarnation = incarnation
        self._zones = zones
        self._store = store
        self._save_then = save_then
        self._counters = counters
        self._reporter = reporter
        self._again = again
        self._outboxes: list[Outbox] = []
        self._ending: list[Outbox] = []
        self._filling: dict[str, Outbox] = {}
        self._unsafe: dict[Outbox, deque[tuple[int, Publication]]] = {}
        self._homes: dict[Route, list[Drain]] = {}
        self._hungry: dict[Route, None] = {}
        self._changed: set[str] = set()
        self._is_told_full = False
        self._host: Host
        zones.when_changed(self._on_zones_changed)

    def wire(self, host: Host) -> None:
        """The edge that this belongs to."""
        self._host = host

    # from the node

    def load(self) -> None:
        """After a start: what an earlier process left is here again."""
        for state, log in self._store.load():
            self._take_up(state, log, is_restored=True)
        self._on_zones_changed("")

    def save(self) -> None:
        """Once a second: keep how far they are, so that a start has little to read again."""
        for outbox in list(self._outboxes):
            if outbox.is_empty and not outbox.is_open:
                self._finish(outbox)
            elif outbox.is_dirty:
                self._save(outbox)

    def work(self) -> None:
        """Send for a while."""
        self.refresh()
        hungry, self._hungry = self._hungry, {}
        for route in hungry:
            self._pump(route)

    # from the publisher

    @property
    def is_full(self) -> bool:
        """Whether as much is on the disk as may be."""
        return self._store.size + self.unsafe_size >= self.limit

    def has_room(self, route: Route) -> bool:
        """Whether a publish for this zone may be put down now; it is told where not."""
        if not self.is_full:
            self._is_told_full = False
            return True
        if not self._is_told_full:
            self._is_told_full = True
            self._counters.add("outbox.full")
            self._reporter.event(
                "outbox.full", limit="limits.outbox", value=self.limit, zone=route.apex
            )
        return False

    def holds(self, route: Route, publication: Publication) -> bool:
        """Whether something of its client may be left for this owner."""
        self.refresh()
        client_id = publication.message.client_id
        return any(
            drain.is_busy and drain.outbox.may_hold(client_id, drain.taken)
            for drain in route.drains
        )

    def zones_of(self, client_id: str) -> list[str]:
        """The zones for which something of the client may be left."""
        return [
            drain.apex
            for outbox in self._outboxes
            for drain in outbox.drains
            if drain.is_busy and outbox.may_hold(client_id, drain.taken)
        ]

    def is_at_end(self, route: Route) -> bool:
        """Whether all that was left for this owner is sent, and only answers are due."""
        return route.port is not None and all(
            drain.is_at_end for drain in route.drains if drain.is_busy
        )

    def put(self, route: Route, publication: Publication, origin: OriginId | None = None) -> bool:
        """
        Put a publish for this zone down; `on_safe` tells when it is durable.

        `origin` where it was sent before. False: the disk does not allow it now.
        """
        outbox = self._filling.get(route.apex) or self._make(route)
        if outbox is None:
            return False
        message = publication.message
        is_new_doubt = origin is not None and origin[0] not in outbox.origins
        holds = publication.keeps_id + is_new_doubt
        number = outbox.log.append(message, origin, holds=holds)
        outbox.note(message, number)
        self._count(publication, 1)
        self._unsafe[outbox].append((number, publication))
        release = partial(outbox.log.release, number)
        if publication.keeps_id:
            self._save_then(publication.note_entry(outbox.key, number), release)
        if origin is not None:
            self._note_doubt(outbox, route, message.topic)
        if origin is not None and is_new_doubt:
            # Without it nobody would know, after a crash, to ask for it.
            outbox.origins[origin[0]] = None
            self._save(outbox)
            self._store.when_durable(release)
        return True

    def contains(self, entry: OriginId) -> bool:
        """After a start: whether what was to become this entry did, and is not lost."""
        key, number = entry
        found = next((outbox for outbox in self._outboxes if outbox.key == key), None)
        return found is None or number <= found.last

    # from the edge

    def keys(self) -> Iterable[MarkKey]:
        """The streams that owners may be asked about."""
        return chain.from_iterable(o.keys() for o in (*self._outboxes, *self._ending))

    def on_online(self, route: Route) -> None:
        """The owner is connected, or takes more."""
        self.refresh()
        if route.drains:
            self._feed(route)

    def on_lost(self, route: Route) -> None:
        """It is not any more."""
        for drain in route.drains:
            drain.lose()

    def refresh(self) -> None:
        """The tree may have changed: let each drain go to its owner."""
        if self._changed:
            changed, self._changed = self._changed, set()
            for apex in sorted(changed, key=len):
                if apex and self._zones.get(apex) is not None:
                    for outbox in self._outboxes:
                        self._split(outbox, apex)
            self._assign()

    # from operators

    def waiting(self) -> dict[str, int]:
        """How many entries wait for which zone, at the most."""
        return {
            route.apex: sum(drain.outbox.last - drain.taken for drain in drains)
            for route, drains in self._homes.items()
        }

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return self._store.size

    # internal: outboxes

    def _make(self, route: Route) -> Outbox | None:
        state = OutboxState(
            zone=route.apex,
            incarnation=self._incarnation,
            stream=self._zones.next_stream(),
            drains=(DrainState(apex=route.apex),),
        )
        log = self._store.make(state)
        if log is None:
            return None
        outbox = self._take_up(state, log, is_restored=False)
        self._filling[route.apex] = outbox
        self._unsafe[outbox] = deque()
        self._reporter.event("outbox.opened", zone=route.apex)
        self._assign()
        return outbox

    def _take_up(self, state: OutboxState, log: OutboxLog, *, is_restored: bool) -> Outbox:
        key = (self._edge, state.incarnation, state.zone, state.stream)
        outbox = Outbox(key, log, is_restored=is_restored)
        outbox.origins = dict.fromkeys(state.origins)
        outbox.drains = [Drain(outbox, d, is_restored=is_restored) for d in state.drains]
        log.on_durable = partial(self._on_durable, outbox)
        self._outboxes.append(outbox)
        return outbox

    def _save(self, outbox: Outbox) -> None:
        outbox.is_dirty = False
        self._store.save(outbox.state)

    def _finish(self, outbox: Outbox) -> None:
        """All that was in it is taken."""
        self._close(outbox)
        self._unsafe.pop(outbox, None)
        self._outboxes.remove(outbox)
        self._assign()
        # Its marks are needed until it can't come back.
        self._ending.append(outbox)
        self._reporter.event("outbox.drained", zone=outbox.zone, messages=outbox.last)
        self._store.drop(outbox.state, partial(self._ending.remove, outbox))

    def _close(self, outbox: Outbox) -> None:
        outbox.is_open = False
        if self._filling.get(outbox.zone) is outbox:
            del self._filling[outbox.zone]

    def _note_doubt(self, outbox: Outbox, route: Route, topic: str) -> None:
        """What was sent to this owner may be another one's by now."""
        home = self._zones.find(topic)
        if home is not route and outbox.drain_at(home.apex) is None:
            outbox.drains[0].split(home.apex)
            self._keep(outbox.drains[0])
            self._assign()

    def _on_durable(self, outbox: Outbox) -> None:
        unsafe = self._unsafe.get(outbox)
        while unsafe and unsafe[0][0] <= outbox.log.durable:
            _, publication = unsafe.popleft()
            self._count(publication, -1)
            self._host.on_safe(publication)
        for drain in outbox.drains:
            if drain.stream is not None and drain.route is not None:
                self._feed(drain.route)

    def _count(self, publication: Publication, sign: int) -> None:
        # Until it is durable it waits in memory like others.
        size = publication.message.size * sign
        self.unsafe_size += size
        self._zones.backlog.size += size
        if publication.session is not None:
            publication.session.held_size += size

    # internal: where they drain

    def _on_zones_changed(self, apex: str) -> None:
        for outbox in list(self._filling.values()):
            if is_within(outbox.zone, apex) or is_within(apex, outbox.zone):
                self._close(outbox)
        if self._outboxes:
            self._changed.add(apex)
            self._again()

    def _split(self, outbox: Outbox, apex: str) -> None:
        covering = [d for d in outbox.drains if is_within(apex, d.apex)]
        if not covering:
            return
        drain = max(covering, key=lambda one: len(one.apex))
        if drain.apex != apex and drain.is_busy and outbox.may_concern(apex, drain.taken):
            drain.split(apex)
            self._keep(drain)
            self._assign()

    def _assign(self) -> None:
        homes: dict[Route, list[Drain]] = {}
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
            self._host.on_drained(route)

    def _feed(self, route: Route) -> None:
        if not self._hungry:
            self._again()
        self._hungry[route] = None

    def _keep(self, drain: Drain, then: Callable[[], None] = lambda: None) -> None:
        """Let the drain send nothing before all that is known of its outbox is durable."""

        def go_on() -> None:
            drain.blocks -= 1
            then()
            for one in drain.outbox.drains:  # it may have told others what they waited for
                if one.route is not None:
                    self._feed(one.route)

        drain.blocks += 1
        self._save(drain.outbox)
        self._store.when_durable(go_on)

    def _pump(self, route: Route) -> None:
        """Send what the owner takes; the oldest drain first."""
        port = route.port
        drain = next((one for one in route.drains if one.is_busy), None)
        if drain is None:
            self._host.on_drained(route)
        elif port is None:
            self._host.wake(route)
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

    def _ask(self, drain: Drain, port: OwnerPort) -> None:
        keys = drain.begin(port)
        port.ask(keys, partial(self._on_marks, drain, drain.attempt))

    def _on_marks(self, drain: Drain, attempt: int, marks: dict[MarkKey, int]) -> None:
        if drain.attempt != attempt:
            return
        if drain.on_marks(marks):
            self._keep(drain, partial(self._open_stream, drain, attempt))
        else:
            self._open_stream(drain, attempt)

    def _open_stream(self, drain: Drain, attempt: int) -> None:
        if drain.attempt == attempt and drain.port is not None and drain.route is not None:
            drain.stream = drain.port.open_stream(drain.key, _User(self, drain))
            self._feed(drain.route)

    def _on_progress(self, drain: Drain) -> None:
        """Something was taken, or found to be nobody's concern any more."""
        outbox, route = drain.outbox, drain.route
        outbox.is_dirty = True
        outbox.trim()
        if drain.is_busy or route is None:
            return
        if outbox.is_empty:
            self._finish(outbox)
        if route.is_draining:
            self._feed(route)
        else:
            self._host.on_drained(route)

    # internal: from owners

    def on_taken(self, drain: Drain, sequence: int) -> None:
        """What the drain sent was taken up to here."""
        if drain.on_taken(sequence):
            self._keep(drain)
        if drain.route is not None:
            self._feed(drain.route)
        self._on_progress(drain)

    def on_refused(self, drain: Drain, sequence: int, cut: Cut | None, *, retry: bool) -> None:
        """The owner takes nothing of it from here on, until a restart."""
        route, stream, attempt = drain.route, drain.stream, drain.attempt
        assert route is not None and stream is not None
        drain.on_refused(sequence)
        if cut is not None:
            self._host.on_cut_told(route, cut)
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


class _User:
    """A drain on one of its connections (`StreamUser`)."""

    def __init__(self, outboxes: Outboxes, drain: Drain) -> None:
        self._outboxes = outboxes
        self._drain = drain
        self._attempt = drain.attempt

    def on_taken(self, sequence: int) -> None:
        """The owner has everything up to this one."""
        if self._drain.attempt == self._attempt:
            self._outboxes.on_taken(self._drain, sequence)

    def on_refused(self, sequence: int, cut: Cut | None, *, retry: bool) -> None:
        """It takes nothing from this one on, until a restart."""
        if self._drain.attempt == self._attempt:
            self._outboxes.on_refused(self._drain, sequence, cut, retry=retry)
