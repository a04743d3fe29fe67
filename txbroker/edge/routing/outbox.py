"""
An outbox: publishes that were acknowledged to their clients and wait for an owner.

Its entries are numbered and never change; an entry's number is its sequence in the stream that the
outbox is (protocol rule 1). What of it goes to which owner are its drains: one for the zone that it
was made for, one more for each deeper zone that turns out to have topics in it. An entry belongs to
the deepest drain that covers its topic. So nothing is ever moved or numbered anew, however often
the tree changes under it.

What goes to one zone is a publish stream of its own. Before anything of it is sent on a connection,
the owner is asked how far it has taken the streams in which entries may have been sent before
(protocol rule 2). Entries are read in chunks, sent in order, and forgotten until they are answered:
a broken connection has them read again.

Where a deeper zone appears, a drain for it is split off. What the first one had sent and was not
answered is in doubt for both. The owner of the deeper zone knows (marks go along with a handover,
and it is the only one who may take more); so does the first owner, as long as nothing more is sent
to it: `is_paused` until one of them has told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.edge.routing.owner_port import OutStream, OwnerPort
from txbroker.edge.routing.route import Route
from txbroker.edge.routing.stored_outbox import DrainState, OutboxEntry, OutboxLog, OutboxState
from txbroker.model.topics import is_within
from txbroker.mqtt.wire.message import Message

REMEMBERED = 100_000
"""Clients, and topics, of which an outbox knows the last entry; beyond that, any may have one."""

WINDOW = 1024 * 1024
"""Bytes of one outbox that may be unanswered; less than a link's credit, which live publishes
share."""

BATCH = 128
BATCH_BYTES = 128 * 1024
"""Entries sent at once, and bytes at which that is enough."""


class Outbox:
    """One outbox; `is_open` while entries are added, `is_restored` when an earlier process did."""

    def __init__(self, key: MarkKey, log: OutboxLog, *, is_restored: bool) -> None:
        self.key = key
        self.log = log
        self.is_open = not is_restored
        self.is_dirty = False
        self.origins: dict[MarkKey, None] = {}
        self.drains: list[OutboxDrain] = []
        # Who has an entry, and on which topic, is not kept: after a restart anybody may.
        self._clients = _Lasts(self.last)
        self._topics = _Lasts(self.last)

    @property
    def zone(self) -> str:
        """The zone that it was made for."""
        return self.key[2]

    @property
    def last(self) -> int:
        """The number of its last entry."""
        return self.log.next - 1

    @property
    def age(self) -> tuple[int, int]:
        """Grows from one outbox to the next one that was made."""
        return self.key[1], self.key[3]

    @property
    def is_empty(self) -> bool:
        """Whether all that is in it was taken."""
        return not any(drain.is_busy for drain in self.drains)

    def note(self, message: Message, number: int) -> None:
        """An entry was added."""
        self._clients.set(message.client_id, number)
        self._topics.set(message.topic, number)

    def may_hold(self, client_id: str, after: int) -> bool:
        """Whether there may be an entry of the client above this number."""
        return self._clients.get(client_id) > after

    def may_concern(self, apex: str, after: int) -> bool:
        """Whether there may be an entry above this number with a topic within the apex."""
        return self._topics.floor > after or any(
            number > after and is_within(topic, apex) for topic, number in self._topics.items()
        )

    def drain_at(self, apex: str) -> OutboxDrain | None:
        """The drain for this zone."""
        return next((drain for drain in self.drains if drain.apex == apex), None)

    def drain_of(self, topic: str) -> OutboxDrain:
        """The drain that entries on a topic belong to, those that are not taken."""
        if len(self.drains) == 1:
            return self.drains[0]
        covering = [drain for drain in self.drains if is_within(topic, drain.apex)]
        return max(covering, key=lambda drain: len(drain.apex))

    def children(self, drain: OutboxDrain) -> list[OutboxDrain]:
        """The drains that were split off this one and do not know yet what it left them."""
        return [other for other in self.drains if drain.key in other.doubts]

    def keys(self) -> Iterable[MarkKey]:
        """Every stream that an owner may be asked about for it."""
        yield from self.origins
        for drain in self.drains:
            yield drain.key
            yield from drain.doubts

    def trim(self) -> None:
        """Give back what all drains have behind them."""
        self.log.trim(min(drain.taken if drain.is_busy else self.last for drain in self.drains))

    @property
    def state(self) -> OutboxState:
        """As it is to be stored now."""
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
    What of an outbox goes to the zone `apex`: see the module's text.

    `attempt` grows with each connection that it is used on, so that late answers are known as such.
    While there are `blocks`, nothing is sent: something has to be durable first, or the owner to
    say more.
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
        """The stream that it is."""
        edge, incarnation, _, stream = self.outbox.key
        return edge, incarnation, self.apex, stream

    @property
    def is_busy(self) -> bool:
        """Whether entries may be left for it."""
        return self.taken < self.outbox.last

    @property
    def is_in_doubt(self) -> bool:
        """Whether something was sent of which it is not known what became of it."""
        return self._sent_through > self.taken

    @property
    def is_paused(self) -> bool:
        """Whether it must not send before those that were split off it know what is theirs."""
        return bool(self.outbox.children(self))

    @property
    def is_at_end(self) -> bool:
        """Whether all that is durable was sent: only the disk and answers are due."""
        durable = self.outbox.log.durable
        return self.stream is not None and not self._unread and self._position >= durable

    @property
    def state(self) -> DrainState:
        """As it is to be stored."""
        return DrainState(apex=self.apex, taken=self.taken, doubts=self.doubts)

    # its connection

    def begin(self, port: OwnerPort) -> Iterable[MarkKey]:
        """It is to be drained through this port; returns the streams to ask about."""
        self.lose()
        self.port = port
        return {self.key: None, **dict.fromkeys(self.doubts), **self.outbox.origins}

    def lose(self) -> None:
        """The port is gone, or another one is right now."""
        self.port = self.stream = None
        self.attempt += 1
        self._restart(self.taken)

    def on_marks(self, marks: dict[MarkKey, int]) -> bool:
        """The owner told; True when that has to be durable before anything is sent."""
        self._marks = marks
        is_news = bool(self.doubts)
        self.taken = max(self.taken, *(marks.get(key, 0) for key in (self.key, *self.doubts)))
        self.doubts = ()
        self._sent_through = self.taken
        self._restart(self.taken)
        return self._tell_children() or is_news

    # sending

    def next_batch(self) -> list[OutboxEntry]:
        """What is to be sent next; nothing where that is not durable yet, or the window is full."""
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

    def on_taken(self, sequence: int) -> bool:
        """The owner has what was sent up to here; the answer is that of `on_marks`."""
        unanswered = self._unanswered
        while unanswered and unanswered[0][0] <= sequence:
            self._size -= unanswered.popleft()[1]
        self._advance()
        return not unanswered and self._tell_children()

    def on_refused(self, sequence: int) -> None:
        """The owner has what was sent before this one, and takes nothing from here on."""
        self.taken = max(self.taken, sequence - 1)
        self._sent_through = self.taken
        self._restart(self.taken)
        self._tell_children()

    # splitting

    def split(self, apex: str) -> OutboxDrain:
        """A drain for a deeper zone, with what was not answered yet of its topics."""
        doubts = (*self.doubts, self.key) if self.is_in_doubt else self.doubts
        state = DrainState(apex=apex, taken=self.taken, doubts=doubts)
        child = OutboxDrain(self.outbox, state)
        # What was read, and not sent, may be the child's.
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
        """Read on until there is something to send; False when there is nothing now."""
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

    def _tell_children(self) -> bool:
        """Nothing of it is in doubt: nor is what it left to those split off it."""
        children = self.outbox.children(self)
        for child in children:
            child.taken = max(child.taken, self.taken)
            child.doubts = ()
            child.lose()
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
