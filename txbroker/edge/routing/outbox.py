"""
An outbox: publishes that were acknowledged to their clients and wait for an owner.

The entries of an outbox are numbered and never change. An entry's number is its sequence in the
stream that the outbox is (protocol rule 1). A drain has the entries for one owner. One drain is for
the zone that the outbox was made for. Each deeper zone that turns out to have topics in the outbox
has one more. An entry belongs to the deepest drain that covers its topic. So nothing is ever moved
or numbered anew, however often the tree changes under it.

The entries for one zone are a publish stream of its own. Before a drain sends on a connection, the
owner is asked for its marks. The question is about the streams in which entries may have been sent
before (protocol rule 2). Entries are read in chunks, sent in order, and forgotten until they are
answered. After a broken connection they are read again.

Where a deeper zone appears, a drain for it is split off. The unanswered entries of the first drain
are in doubt for both. The owner of the deeper zone knows their state: marks go along with a
handover, and only that owner may take more. So does the first owner, as long as nothing more is
sent to it: `is_paused` until one of them has told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.edge.routing.owner_port import OutStream, OwnerPort
from txbroker.edge.routing.route import Route
from txbroker.edge.routing.stored_outbox import DrainState, OutboxEntry, OutboxLog, OutboxState
from txbroker.model.invariant import holds, ordered
from txbroker.model.topics import is_within
from txbroker.mqtt.wire.message import Message

REMEMBERED = 100_000
"""Clients, and topics, whose last entry an outbox remembers; beyond that, any may have one."""

WINDOW = 1024 * 1024
"""
Unanswered bytes of one outbox, at most; less than a link's credit, which live publishes share.
"""

BATCH = 128
BATCH_BYTES = 128 * 1024
"""Entries sent at once, at most, and bytes at which a batch ends."""


class Outbox:
    """
    An outbox of one zone; `is_open` while entries are added, `is_restored` when an earlier process
    did.

    Invariant: durable <= last; each drain is of an apex of its own within the zone.
    """

    def __init__(self, key: MarkKey, log: OutboxLog, *, is_restored: bool) -> None:
        self.key = key
        self.log = log
        self.is_open = not is_restored
        self.is_dirty = False
        self.origins: dict[MarkKey, None] = {}
        self.drains: list[OutboxDrain] = []
        # After a restart each client, and each topic, may have an entry: these maps are not
        # persistent.
        self._clients = _Lasts(self.last)
        self._topics = _Lasts(self.last)

    def check(self) -> None:
        """State what of the entries is durable, and whose they are."""
        ordered(self, 22, "durable <= last", self.log.durable, self.last)
        apexes = [drain.apex for drain in self.drains]
        is_one = len(set(apexes)) == len(apexes)
        holds(self, 22, "an entry has one drain", is_one, self.key, apexes)
        strange = [apex for apex in apexes if not is_within(apex, self.zone)]
        holds(self, 22, "drains are within the zone", not strange, self.key, strange)
        for drain in self.drains:
            drain.check()

    @property
    def zone(self) -> str:
        """The zone for which the outbox was made."""
        return self.key[2]

    @property
    def last(self) -> int:
        """The number of its last entry."""
        return self.log.next - 1

    @property
    def age(self) -> tuple[int, int]:
        """Sort key that grows from one outbox to the next."""
        return self.key[1], self.key[3]

    @property
    def is_empty(self) -> bool:
        """True if all its entries were accepted."""
        return not any(drain.is_busy for drain in self.drains)

    def add(self, message: Message, number: int) -> None:
        """Note that an entry was added."""
        self._clients.set(message.client_id, number)
        self._topics.set(message.topic, number)

    def may_hold(self, client_id: str, after: int) -> bool:
        """True if an entry of the client may exist above this number."""
        return self._clients.get(client_id) > after

    def may_concern(self, apex: str, after: int) -> bool:
        """True if an entry with a topic within the apex may exist above this number."""
        return self._topics.floor > after or any(
            number > after and is_within(topic, apex) for topic, number in self._topics.items()
        )

    def drain_at(self, apex: str) -> OutboxDrain | None:
        """Return the drain for this zone."""
        return next((drain for drain in self.drains if drain.apex == apex), None)

    def drain_of(self, topic: str) -> OutboxDrain:
        """Return the drain to which unaccepted entries on a topic belong."""
        if len(self.drains) == 1:
            return self.drains[0]
        covering = [drain for drain in self.drains if is_within(topic, drain.apex)]
        return max(covering, key=lambda drain: len(drain.apex))

    def children(self, drain: OutboxDrain) -> list[OutboxDrain]:
        """Return the drains split off this one that still await its outcome."""
        return [other for other in self.drains if drain.key in other.doubts]

    def keys(self) -> Iterable[MarkKey]:
        """Yield every stream that an owner may be asked about for this outbox."""
        yield from self.origins
        for drain in self.drains:
            yield drain.key
            yield from drain.doubts

    def trim(self) -> None:
        """Free the entries that all drains have passed."""
        self.log.trim(min(drain.taken if drain.is_busy else self.last for drain in self.drains))

    @property
    def state(self) -> OutboxState:
        """The state to be stored now."""
        _, incarnation, zone, stream = self.key
        return OutboxState(
            zone=zone,
            incarnation=incarnation,
            stream=stream,
            drains=tuple(drain.state for drain in self.drains),
            origins=tuple(self.origins),
        )


class OutboxDrain:
    """
    The drain of an outbox to the zone `apex`: see the module's text.

    `attempt` grows with each connection that it is used on, so that late answers are known as such.
    While there are `blocks`, nothing is sent: something has to be durable first, or the owner to
    say more.

    Invariant: taken <= each unanswered entry, in its order; a stream is there only with a port.
    """

    def __init__(self, outbox: Outbox, state: DrainState, *, is_restored: bool = False) -> None:
        self.outbox = outbox
        self.apex = state.apex
        self.taken = state.taken
        self.doubts = state.doubts
        self.route: Route | None = None
        self.port: OwnerPort | None = None
        self.stream: OutStream | None = None
        self.attempt = 0
        self.blocks = 0
        self._sent_through = outbox.last if is_restored else self.taken
        self._position = self.taken
        self._unread: deque[OutboxEntry] = deque()
        self._unanswered: deque[tuple[int, int]] = deque()
        self._size = 0
        self._marks: dict[MarkKey, int] = {}

    @property
    def key(self) -> MarkKey:
        """The stream of this drain."""
        edge, incarnation, _, stream = self.outbox.key
        return edge, incarnation, self.apex, stream

    @property
    def is_busy(self) -> bool:
        """True if entries may be left for this drain."""
        return self.taken < self.outbox.last

    @property
    def is_in_doubt(self) -> bool:
        """True if entries were sent whose outcome is unknown."""
        return self._sent_through > self.taken

    @property
    def is_paused(self) -> bool:
        """
        True if the drain must not send until drains that were split off know their entries'
        outcome.
        """
        return bool(self.outbox.children(self))

    @property
    def is_at_end(self) -> bool:
        """True if all durable entries were sent: only the disk and answers are due."""
        durable = self.outbox.log.durable
        return self.stream is not None and not self._unread and self._position >= durable

    @property
    def state(self) -> DrainState:
        """The state to be stored now."""
        return DrainState(apex=self.apex, taken=self.taken, doubts=self.doubts)

    def check(self) -> None:
        """State what was sent, and what is unanswered."""
        numbers = [number for number, _ in self._unanswered]
        ordered(self, 22, "taken < unanswered", self.taken + 1, *numbers)
        has_port = self.port is not None or self.stream is None
        holds(self, 2, "a stream has a port", has_port, self.key)
        ordered(self, 34, "0 <= bytes unanswered, blocks", 0, min(self._size, self.blocks))

    # its connection

    def start(self, port: OwnerPort) -> Iterable[MarkKey]:
        """Begin on a port; return the streams whose marks have to be asked for."""
        self.reset()
        self.port = port
        return {self.key: None, **dict.fromkeys(self.doubts), **self.outbox.origins}

    def reset(self) -> None:
        """Reset the drain: its port is gone, or another port is the right one now."""
        self.port = self.stream = None
        self.attempt += 1
        self._restart(self.taken)

    def on_marks(self, marks: dict[MarkKey, int]) -> bool:
        """Apply the owner's marks; return True if the new state must be durable before a send."""
        self._marks = marks
        is_news = bool(self.doubts)
        self.taken = max(self.taken, *(marks.get(key, 0) for key in (self.key, *self.doubts)))
        self.doubts = ()
        self._sent_through = self.taken
        self._restart(self.taken)
        return self._settle_children() or is_news

    # sending

    def next_batch(self) -> list[OutboxEntry]:
        """Return the next entries to send; empty if none is durable, or the window is full."""
        if self._size >= WINDOW or self.blocks or self.is_paused:
            return []
        batch: list[OutboxEntry] = []
        size = 0
        while len(batch) < BATCH and size < BATCH_BYTES:
            if not self._unread and not self._read():
                break
            entry = self._unread.popleft()
            batch.append(entry)
            size += entry.message.size
            self._unanswered.append((entry.number, entry.message.size))
        self._size += size
        if batch:
            self._sent_through = batch[-1].number
        self._advance()
        return batch

    def on_accepted(self, sequence: int) -> bool:
        """Note accepted entries; return True if the new state must be durable before a send."""
        unanswered = self._unanswered
        while unanswered and unanswered[0][0] <= sequence:
            self._size -= unanswered.popleft()[1]
        self._advance()
        return not unanswered and self._settle_children()

    def on_refused(self, sequence: int) -> None:
        """Note that the owner has accepted the entries before this one, and refuses the rest."""
        self.taken = max(self.taken, sequence - 1)
        self._sent_through = self.taken
        self._restart(self.taken)
        self._settle_children()

    # splitting

    def split(self, apex: str) -> OutboxDrain:
        """Make a drain for a deeper zone; it takes over the doubts about its topics' entries."""
        doubts = (*self.doubts, self.key) if self.is_in_doubt else self.doubts
        state = DrainState(apex=apex, taken=self.taken, doubts=doubts)
        child = OutboxDrain(self.outbox, state)
        # Entries that were read and not sent may belong to the child. Sent from here, they would be
        # refused.
        self._unread.clear()
        self._position = max(self.taken, self._sent_through)
        self.outbox.drains.append(child)
        return child

    # internal

    def _restart(self, after: int) -> None:
        self._position = after
        self._unread.clear()
        self._unanswered.clear()
        self._size = 0

    def _read(self) -> bool:
        """Read on until there is an entry to send; return False if there is none now."""
        outbox = self.outbox
        while self._position < outbox.last and not self._unread:
            chunk = outbox.log.read(self._position)
            if chunk.through <= self._position:
                break
            self._position = chunk.through
            for entry in chunk.entries:
                is_its = outbox.drain_of(entry.message.topic) is self
                if is_its and not self._was_taken(entry):
                    self._unread.append(entry)
        return bool(self._unread)

    def _was_taken(self, entry: OutboxEntry) -> bool:
        if entry.origin is None:
            return False
        key, sequence = entry.origin
        return sequence <= self._marks.get(key, 0)

    def _advance(self) -> None:
        if self._unanswered:
            self.taken = self._unanswered[0][0] - 1
        elif self._unread:
            self.taken = self._unread[0].number - 1
        else:
            self.taken = self._position
        self._sent_through = max(self._sent_through, self.taken)

    def _settle_children(self) -> bool:
        """
        Settle the drains split off this one, as no entry is in doubt; return True if there are any.
        """
        children = self.outbox.children(self)
        for child in children:
            child.taken = max(child.taken, self.taken)
            child.doubts = ()
            child.reset()
        return bool(children)


class _Lasts:
    """The last entry for each of some names; for those that are not known it is `floor`."""

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self._lasts: dict[str, int] = {}

    def set(self, name: str, number: int) -> None:
        if len(self._lasts) >= REMEMBERED and name not in self._lasts:
            self.floor = max(self._lasts.values())
            self._lasts.clear()
        self._lasts[name] = number

    def get(self, name: str) -> int:
        return self._lasts.get(name, self.floor)

    def items(self) -> Iterable[tuple[str, int]]:
        return self._lasts.items()
