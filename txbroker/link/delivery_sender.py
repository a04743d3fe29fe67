"""
The delivery stream from an owner to one edge.

Deliveries and everything whose place among them matters leave through one queue, as far as the edge
has credit. The queue keeps nothing for which an edge is too slow. From then on the stream reads
from the journal again, when its turn comes. So an edge that falls behind costs a number, not
memory. A catch-up after a broken link is the same from the start. As long as something is to be
read, new records are left to the journal, too. A catch-up may take hours, and costs no more for
that.

A link is live, or reads. Too many bytes, or an edge that resumes, begin a read. The read ends at
the last offset that was delivered. Bytes are on the way until the edge says that it consumed them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from txbroker.authority.authority import Authority
from txbroker.authority.edge_peer import EdgeCatchUp, EdgePeer
from txbroker.authority.retained_messages import RetainedCollection
from txbroker.core import PacketWriter, Run, Sender
from txbroker.journal.zone_journal import Record
from txbroker.link.batch_headers import BATCH_BYTES, MOST, clients_of, offsets_of
from txbroker.link.frames import encode_batch, encode_frame
from txbroker.link.queue_ages import QueueAges
from txbroker.model.counters import Counters
from txbroker.model.invariant import holds, ordered
from txbroker.model.log_position import JournalId
from txbroker.model.publish_run import Octets
from txbroker.mqtt.wire.message import Message
from txbroker.v1 import link_pb2
from txbroker.v1.link_pb2 import LinkFrame

WINDOW = 8 * 1024 * 1024
"""Bytes that may be unacknowledged in either direction before credit must return."""

OVERFLOW = 8 * 1024 * 1024
"""Queued bytes of live messages for one edge, above which QoS 1 and 2 are left to the journal."""

LARGEST = (1 << 28) + 1024 * 1024
"""Bytes by which the last batch may pass the window: the largest packet, and a chunk with it."""

READS = 8
"""Chunks of the journal that one turn reads for one edge."""

SHOWN = 1_000
"""Retained messages that one turn sends to one edge."""


@attrs.define(slots=True, eq=False)
class _Told:
    """A control frame in the delivery stream, and the retained messages that belong to it."""

    frame: LinkFrame | None
    request: int = 0
    retained: RetainedCollection | None = None


@attrs.define(slots=True, eq=False)
class _Lent:
    """Messages for members of a group, with their batch header."""

    batch: link_pb2.Batch
    items: list[Message | Run]
    size: int


@attrs.define(slots=True, eq=False)
class _Backlog:
    """Records to be read from the journal: above `after`, up to `until` (None: all there are)."""

    catch_up: EdgeCatchUp
    after: int
    until: int | None = None

    def exclude(self, claimed: dict[str, int], until: int) -> None:
        """
        Leave the records of these apexes, from their named offsets to `until`, to another catch-up.
        """
        taken = {
            apex: until
            for apex, since in claimed.items()
            if self.until is None or self.until > since
        }
        if taken:
            self.catch_up = attrs.evolve(self.catch_up, claimed={**self.catch_up.claimed, **taken})


class DeliverySender:
    """
    The deliveries to the edge `peer`, in order.

    `queued` are the bytes of live messages that wait here. `consumed` are the bytes of all messages
    that the edge has taken off the link; `retained`: how many retained messages wait.

    Invariant: consumed <= bytes sent; the end of a read <= what the authority delivered.
    """

    def __init__(
        self,
        authority: Authority,
        counters: Counters,
        packet_writer: PacketWriter,
        mark_next: Callable[[], None],
    ) -> None:
        self.peer: EdgePeer | None = None
        self.queued = 0
        self.consumed = 0
        self.retained = 0
        self._authority = authority
        self._counters = counters
        self._sender = authority.router.make_sender(packet_writer, self._header_before)
        self._mark_next = mark_next
        self._ages = QueueAges(lambda: authority.retained.now())
        self.queue: deque[Record | Run | _Told | _Lent | _Backlog] = deque()
        self._backlogs = 0
        self._behind: _Backlog | None = None
        self._delivered = 0
        self._reads = 0
        self._shown = 0

    def set_properties(self, has_properties: bool) -> None:
        """Set whether the edge reads properties; messages to others lose theirs."""
        self._sender.has_properties = has_properties

    @property
    def is_reading(self) -> bool:
        """True if a catch-up must be read from the journal."""
        return self._backlogs > 0

    @property
    def _room(self) -> int:
        """Return the bytes that may be sent beside the unacknowledged ones."""
        return WINDOW + self.consumed - self._delivered - self._sender.sent

    def on_consumed(self, consumed: int) -> None:
        """Record the bytes that the edge has consumed; a report beyond the sent bytes is capped."""
        self.consumed = max(self.consumed, min(consumed, self._delivered + self._sender.sent))

    def sender(self) -> Sender | None:
        """Return the sender for immediate QoS 0; None if a queued item must go first or wait."""
        if self.queue or self.peer is None:
            return None
        self._sender.room = self._room
        return self._sender

    def check(self) -> None:
        """State what is on its way, and what waits."""
        sent, delivered = self._delivered + self._sender.sent, self._authority.delivered
        ordered(self, 20, "0 <= consumed <= sent", 0, self.consumed, sent)
        ordered(self, 20, "sent <= consumed + window", sent, self.consumed + WINDOW + LARGEST)
        live = [item for item in self.queue if isinstance(item, Record | Run)]
        size = sum(_measure(item)[3] for item in live)
        size += sum(item.size for item in self.queue if isinstance(item, _Lent))
        holds(self, 34, "live bytes are counted", size == self.queued, size, self.queued)
        reads = [item for item in self.queue if isinstance(item, _Backlog)]
        holds(self, 6, "reads are counted", len(reads) == self._backlogs, len(reads))
        for read in reads:
            if read.until is not None:
                ordered(self, 6, "end of a read <= delivered", read.until, delivered)
        holds(self, 6, "what is behind is in the queue", self._behind in (None, *reads))

    # enqueue

    def live(self, item: Record | Run) -> bool:
        """
        Enqueue a live message or run; return False if it is dropped.

        Excess QoS 1 and 2 are read from the journal later. Excess QoS 0 is dropped, as no journal
        has it.
        """
        is_full = self.queued > OVERFLOW
        first, _, qos, size = _measure(item)
        if qos and (self._backlogs or is_full):
            if self._behind is None:
                after = first - 1
                self._behind = self._read_later(
                    _Backlog(EdgeCatchUp(after=after, resumed=after), after)
                )
            return True
        if is_full:
            return False
        self.queued += size
        self.queue.append(item)
        if self._room <= 0:
            self._ages.note(item)
        return True

    def catch_up(self, catch_up: EdgeCatchUp) -> None:
        """Enqueue all records that the edge resumes or claims, ahead of later live records."""
        if catch_up.after is None:
            return
        until = self._authority.delivered
        self._end_behind()
        for earlier in self.queue:
            if isinstance(earlier, _Backlog):
                earlier.exclude(catch_up.claimed, until)
        self._read_later(_Backlog(catch_up, catch_up.after, until))

    def enqueue_frame(
        self, frame: LinkFrame, request: int = 0, retained: RetainedCollection | None = None
    ) -> None:
        """Enqueue a control frame with its retained messages."""
        self._end_behind()
        self.queue.append(_Told(frame, request, retained))
        self.retained += 0 if retained is None else len(retained)

    def lend(
        self,
        group: str,
        part: JournalId,
        offsets: Iterable[int],
        messages: Sequence[Message],
        *,
        is_again: bool,
    ) -> None:
        """Enqueue messages for members of a group, which have room for them."""
        batch = _group_batch(group, part, ((offset, 1) for offset in offsets))
        batch.again = is_again
        self._enqueue_lent(batch, list(messages))

    def lend_run(self, group: str, part: JournalId, run: Run) -> None:
        """Enqueue a run for members of a group, which have room for it."""
        self._enqueue_lent(_group_batch(group, part, run.ranges()), [run])

    def send_run(self, group: str, run: Run) -> bool:
        """Enqueue messages of QoS 0 for members of a group; return False if they are dropped."""
        if self.queued > OVERFLOW:
            return False
        batch = link_pb2.Batch(kind=link_pb2.Batch.GROUP, group=group, offsets=[0], count=run.count)
        self._enqueue_lent(batch, [run])
        return True

    # dequeue

    def write_to(self, out: list[Octets]) -> None:
        """Append the bytes that may leave now to `out`."""
        queue = self.queue
        self._reads = self._shown = 0
        while queue and self._room > 0:
            item = queue[0]
            if isinstance(item, _Told):
                if self._send_control(item, out):
                    queue.popleft()
                elif self._shown >= SHOWN:
                    self._mark_next()
                    return
            elif isinstance(item, _Lent):
                queue.popleft()
                self.queued -= item.size
                self._charge(item.batch, item.items, out)
            elif isinstance(item, _Backlog):
                if self._reads == READS:
                    self._mark_next()
                    return
                if self._send_catch_up(item, out):
                    queue.popleft()
                    self._backlogs -= 1
            else:
                items = _dequeue_items(queue)
                self.queued -= sum(_measure(item)[3] for item in items)
                items = self._ages.take(items) if self._ages.since else items
                self._send_items(items, link_pb2.Batch.LIVE, out)

    # internal

    def _enqueue_lent(self, batch: link_pb2.Batch, items: list[Message | Run]) -> None:
        self._end_behind()
        size = sum(item.size for item in items)
        self.queued += size
        self.queue.append(_Lent(batch, items, size))

    def _read_later(self, backlog: _Backlog) -> _Backlog:
        self.queue.append(backlog)
        self._backlogs += 1
        return backlog

    def _end_behind(self) -> None:
        """
        End the open catch-up at the last delivered offset: the next item has its place behind it.
        """
        if self._behind is not None:
            self._behind.until = self._authority.delivered
            self._behind = None

    def _send_catch_up(self, backlog: _Backlog, out: list[Octets]) -> bool:
        """Send the catch-up's next records; return True if none is left."""
        assert self.peer is not None
        self._reads += 1
        until = self._authority.delivered if backlog.until is None else backlog.until
        if backlog.after < until:
            chunk, records = self._authority.reception.backlog(
                self.peer, backlog.catch_up, backlog.after, until
            )
            missed = chunk.missed(backlog.after)
            if missed:
                self._counters.add("link.missed", missed)
            backlog.after = chunk.through
            for batch in _batches(records):
                self._send_items(batch, link_pb2.Batch.CATCH_UP, out)
        if backlog.after < until:
            return False
        if backlog is self._behind:
            self._behind = None
        return True

    def _send_items(
        self, items: list[Record | Run], kind: link_pb2.Batch.Kind.ValueType, out: list[Octets]
    ) -> None:
        said = [item if isinstance(item, Run) else item.message for item in items]
        offsets = offsets_of([found for item in items for found in _ranges(item)])
        batch = link_pb2.Batch(
            kind=kind,
            epoch=self._authority.epoch,
            count=offsets.total,
            offsets=offsets.firsts,
            counts=offsets.counts,
        )
        if self.peer is not None and self.peer.wants_publishers:
            clients = clients_of(said)
            batch.clients.extend(clients.ids)
            batch.client.extend(clients.places)
            batch.client_counts.extend(clients.counts)
        self._charge(batch, said, out)

    def _header_before(self, _: str) -> bytes:
        """Return the header of a QoS 0 batch, for the `Sender`."""
        batch = link_pb2.Batch(
            kind=link_pb2.Batch.LIVE,
            epoch=self._authority.epoch,
            count=1,
            offsets=[0],
        )
        return encode_frame(LinkFrame(batch=batch))

    def _send_control(self, told: _Told, out: list[Octets]) -> bool:
        """Send the frame, then a batch of its retained messages; return True if none is left."""
        if told.frame is not None:
            out.append(encode_frame(told.frame))
            told.frame = None
        if told.retained and self._shown < SHOWN:
            messages: list[Message] = []
            size = 0
            while (
                size < BATCH_BYTES and self._shown < SHOWN and (one := told.retained.next_batch(1))
            ):
                messages += one
                size += one[0].size
                self._shown += 1
            self.retained -= len(messages)
            batch = link_pb2.Batch(
                kind=link_pb2.Batch.RETAINED, stream=told.request, count=len(messages)
            )
            self._charge(batch, messages, out)
        return not told.retained

    def _charge(
        self, batch: link_pb2.Batch, items: Sequence[Message | Run], out: list[Octets]
    ) -> None:
        if not self._sender.has_properties:
            items = [item.without_properties() for item in items]
        out += encode_batch(batch, items)
        self._delivered += sum(item.size for item in items)


def _group_batch(group: str, part: JournalId, ranges: Iterable[tuple[int, int]]) -> link_pb2.Batch:
    offsets = offsets_of(ranges)
    return link_pb2.Batch(
        kind=link_pb2.Batch.GROUP,
        group=group,
        zone=part.zone,
        epoch=part.epoch,
        count=offsets.total,
        offsets=offsets.firsts,
        counts=offsets.counts,
    )


def _batches(records: Iterable[Record]) -> list[list[Record | Run]]:
    queue: deque[Any] = deque(records)
    batches = []
    while queue:
        batches.append(_dequeue_items(queue))
    return batches


def _dequeue_items(queue: deque[Any]) -> list[Record | Run]:
    """Dequeue messages and runs for one batch."""
    items: list[Record | Run] = []
    total = room = 0
    while queue and room < BATCH_BYTES:
        if not isinstance(queue[0], Record | Run):
            break
        _, count, _, size = _measure(queue[0])
        if items and total + count > MOST:
            break
        items.append(queue.popleft())
        total += count
        room += size
    return items


def _measure(item: Record | Run) -> tuple[int, int, int, int]:
    """Return the item's first offset, count, QoS and size."""
    if isinstance(item, Run):
        return item.offset(0), item.count, item.qos, item.size
    return item.offset, 1, item.message.qos, item.message.size


def _ranges(item: Record | Run) -> Sequence[tuple[int, int]]:
    """Return the item's offsets as ranges: first offset and count."""
    return item.ranges() if isinstance(item, Run) else ((item.offset, 1),)
