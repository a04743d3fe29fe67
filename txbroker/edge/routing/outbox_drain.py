"""
What of an outbox goes to one zone, as a publish stream of its own.

Before anything of it is sent on a connection, the owner is asked how far it has taken the streams
in which entries may have been sent before (protocol rule 2). Entries are read in chunks, sent in
order, and forgotten until they are answered: a broken connection has them read again.

Where a deeper zone appears, a drain for it is split off. What the first one had sent and was not
answered is in doubt for both. The owner of the deeper zone knows (marks go along with a handover,
and it is the only one who may take more); so does the first owner, as long as nothing more is sent
to it: `is_paused` until one of them has told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.edge.routing.outbox import DrainState, Outbox, OutboxEntry
from txbroker.edge.routing.route import OutStream, OwnerPort, Route

WINDOW = 1024 * 1024
"""Bytes of one outbox that may be unanswered; less than a link's credit, which live publishes
share."""

BATCH = 128
BATCH_BYTES = 128 * 1024
"""Entries sent at once, and bytes at which that is enough."""


class OutboxDrain:
    """
    See the module's text.

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
