"""
The publishes of an edge's clients on their way over one link: the stream that the Hello opens.

Publishes of a turn leave as one batch; their sequences follow one another. The edge's rows for
their ids are durable before the publishes leave. QoS 0 goes straight, while nothing is before it.

A publish is in the batch, then kept where it must be, then on its way. At last the owner has
consumed it. Credit counts from the batch on. A refusal takes out of the batch what has not left,
with its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from txbroker.core import Run, Sender
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.edge.routing.durable_send_queue import DurableSendQueue
from txbroker.edge.routing.publication import Publication
from txbroker.edge.routing.route import Route
from txbroker.edge.sessions.edge import Edge
from txbroker.link.batch_headers import BATCH_BYTES, MOST, clients_of
from txbroker.link.frames import Write, encode_batch, encode_frame
from txbroker.model.invariant import holds, ordered
from txbroker.model.publish_run import Octets
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.message import Message
from txbroker.v1 import link_pb2
from txbroker.v1.link_pb2 import LinkFrame

MOST_CREDIT = 64 * 1024 * 1024
"""
The most unacknowledged bytes, whatever credit the owner grants: more would fill this node's memory.
"""


_MEASURES = ("size", "count")


class PublishSender:
    """
    The publish stream of one connection; `epoch` is what the owner's Welcome said. The caller of
    `publish` and `publish_run` calls `send_batch` at the end of the turn, where `batch` is not
    empty. While it `is_blocked` nothing is sent.

    Invariant: 0 <= consumed <= sent; batch_first <= next.
    """

    def __init__(self, edge: Edge, route: Route, write: Write) -> None:
        self.epoch = 0
        self.is_blocked = False
        self.number = edge.zones.next_stream()
        self.key: MarkKey = (edge.name, edge.incarnation, route.apex, self.number)
        self.next = 1
        self._write = write
        self._outbound = DurableSendQueue[list[Octets]](
            edge.session_store.save_then, lambda out: write(*out)
        )
        self._kept: list[Session] = []
        self.batch: list[Message | Run] = []
        self._batch_size = self._batch_count = 0
        self._batch_first = 0
        self._credit = 0
        self._sent = 0
        self._consumed = 0  # by the owner
        self.packet_writer = edge.router.make_packet_writer()
        self._sender = edge.router.make_sender(self.packet_writer, self._header_before)

    @property
    def has_properties(self) -> bool:
        """True if the owner reads properties; publishes to others lose theirs."""
        return self._sender.has_properties

    def set_properties(self, has_properties: bool) -> None:
        """Set whether the owner reads properties, as its Welcome says."""
        self._sender.has_properties = has_properties

    # credit

    def has_credit(self) -> bool:
        """True if more publishes may be sent now."""
        return self._in_flight < self._credit and not self.is_blocked

    def set_credit(self, credit: int) -> None:
        """Set the credit that the owner grants."""
        self._credit = min(credit, MOST_CREDIT)

    def on_consumed(self, consumed: int) -> None:
        """Note how many bytes the owner has consumed."""
        self._consumed = min(consumed, self._sent + self._sender.sent)

    def count(self, size: int) -> None:
        """Count bytes that were sent in another stream."""
        self._sent += size

    @property
    def _in_flight(self) -> int:
        return self._sent + self._sender.sent - self._consumed

    def check(self) -> None:
        """State what is in the batch, and what credit is used."""
        sent = self._sent + self._sender.sent
        ordered(self, 28, "0 <= consumed <= sent", 0, self._consumed, sent)
        ordered(self, 20, "0 <= credit", 0, self._credit, MOST_CREDIT)
        size, count = (sum(getattr(item, name) for item in self.batch) for name in _MEASURES)
        is_counted = (size, count) == (self._batch_size, self._batch_count)
        holds(self, 34, "the batch is counted", is_counted, size, count)
        numbered = sum(item.count for item in self.batch if item.qos)
        is_row = not numbered or self._batch_first + numbered == self.next
        holds(self, 1, "sequences of a batch follow", is_row, self._batch_first, self.next)

    # publishes

    def publish(self, publication: Publication) -> None:
        """Put a publish into the batch that leaves at the end of this turn."""
        sequence = self._add(publication.message)
        if publication.needs_durable_id:
            self._kept.append(publication.set_origin(self.key, sequence))
        self._send_if_full()

    def sender(self) -> Sender | None:
        """Return the sender for immediate QoS 0; None if a queued publish must go first or wait."""
        if self.batch or self._outbound.waiting or not self.has_credit():
            return None
        self._sender.room = self._credit - self._in_flight
        return self._sender

    def publish_run(self, run: Run) -> None:
        """Put a run into the batch."""
        if self._batch_count + run.count > MOST:
            self.send_batch()
        self._add(run)
        self._send_if_full()

    def restart(self, sequence: int, returned: Iterable[Publication] = ()) -> None:
        """Restart the stream after a refusal: the next QoS 1/2 publish has this sequence."""
        # The edge sends unsent QoS 1/2 publishes again, but never QoS 0, so QoS 0 stays.
        unsent = [item for item in self.batch if item.qos]
        self._sent -= sum(item.size for item in unsent)
        # An owner may have said that it has more: credit counts at most what was sent (rule 28).
        self._consumed = min(self._consumed, self._sent + self._sender.sent)
        self.batch = [item for item in self.batch if not item.qos]
        self._batch_size = sum(item.size for item in self.batch)
        self._batch_count = sum(item.count for item in self.batch)
        self._batch_first = self.next = sequence
        self._sender.forget()
        self._kept.clear()
        # Other publishes will get the sequences of the returned ones: a stored origin would then
        # name the wrong publish.
        forgetting = [p.set_origin(None, 0) for p in returned if p.needs_durable_id]
        restart = link_pb2.Restart(stream=self.number, sequence=sequence)
        self._outbound.send([encode_frame(LinkFrame(restart=restart))], forgetting)

    def send_batch(self) -> None:
        """Send the batch."""
        items, self.batch = self.batch, []
        self._batch_size = self._batch_count = 0
        kept, self._kept = self._kept, []
        batch = header_of(items, self.epoch)
        batch.stream = self.number
        batch.first = self._batch_first
        out = encode_batch(batch, items)
        if kept or self._outbound.waiting:
            self._outbound.send(out, kept)
        else:
            self._write(*out)

    def close(self) -> None:
        """Drop all unsent publishes: the connection is lost."""
        self._outbound.close()

    # internal

    def _add(self, item: Message | Run) -> int:
        """
        Put an item into the batch; return its sequence, or for QoS 0 that of the next publish.
        """
        sequence = self.next
        if not self.has_properties:
            item = item.without_properties()
        if not self.batch:
            self._batch_first = sequence
        self.batch.append(item)
        self._batch_size += item.size
        self._batch_count += item.count
        self._sent += item.size
        if item.qos:
            self.next += item.count
            self._sender.forget()
        return sequence

    def _send_if_full(self) -> None:
        if self._batch_size >= BATCH_BYTES or self._batch_count >= MOST:
            self.send_batch()

    def _header_before(self, client_id: str) -> bytes:
        """Return the header of a QoS 0 batch, for the `Sender`."""
        batch = link_pb2.Batch(
            kind=link_pb2.Batch.PUBLISH,
            epoch=self.epoch,
            count=1,
            clients=[client_id],
            client=[0],
            stream=self.number,
            first=self.next,
        )
        return encode_frame(LinkFrame(batch=batch))


def header_of(items: Sequence[Message | Run], epoch: int) -> link_pb2.Batch:
    """Return the header of a batch of these items, without its stream and sequences."""
    clients = clients_of(items)
    return link_pb2.Batch(
        kind=link_pb2.Batch.PUBLISH,
        epoch=epoch,
        count=clients.total,
        clients=clients.ids,
        client=clients.places,
        counts=clients.counts,
        wills=_wills(items),
    )


def _wills(items: Iterable[Message | Run]) -> Iterator[link_pb2.WillId]:
    place = 0
    for item in items:
        if isinstance(item, Message) and item.will is not None:
            name, life, number = item.will
            yield link_pb2.WillId(index=place, name=name, life=life, number=number)
        place += item.count
