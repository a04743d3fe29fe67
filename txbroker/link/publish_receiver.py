"""
The publish streams that an owner takes from one edge on one link.

The Hello opens one stream, for what the edge's clients publish now. Its sequences follow one
another. Others bring what waited in outboxes; theirs only grow. Each is a stream of its own. A
refusal stops the stream, and nothing behind the refused publish is taken before the edge restarts
it (protocol rule 1). A stream is acknowledged as far as it is durable.

A stream flows or is stopped. A refusal stops the stream; the edge restarts it. A publish that was
taken waits in `_open` for its offset to be durable. Then it raises `taken`, then Taken tells it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import attrs

from txbroker.authority.authority import Authority
from txbroker.authority.edge_peer import TAKEN, PublishVerdict
from txbroker.core import LinkReader, Run
from txbroker.delegation.peer_checks import MOST_NUMBER, check
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.link.batch_headers import RunLengths, check_clients, name_publishers
from txbroker.link.frames import LinkError, encode_frame
from txbroker.model.counters import Counters
from txbroker.model.invariant import ordered
from txbroker.model.publish_run import Octets
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.wire.message import Message, WillId
from txbroker.mqtt.wire.packets import Publish
from txbroker.rpc.link_convert import cut_to_wire, key_from_mark
from txbroker.v1 import link_pb2
from txbroker.v1.link_pb2 import LinkFrame

MANY_MARKS = "the zone keeps as many duplicate marks as it can; let lost nodes go: txbroker forget"

MOST_STREAMS = 10_000
"""The most streams on one link; an edge that needs more opens a new link."""


@attrs.define(eq=False)
class _Stream:
    """
    A stream with the number `number` on this link, `mark` in marks.

    `next` is the least sequence that its next publish may have, `taken` the last one that is
    durable; `parked` is a topic that is being handed over, and on which the stream waits. `due` is
    called when there is something to acknowledge.

    Invariant: taken_told <= taken < next.
    """

    number: int
    mark: MarkKey
    has_gaps: bool
    due: Callable[[], None]
    next: int = 1
    taken: int = 0
    taken_told: int = 0
    is_stopped: bool = False
    parked: str | None = None

    def on_settled(self, tickets: Sequence[int]) -> None:
        """Acknowledge publishes up to the last of these sequences."""
        self.taken = tickets[-1]
        self.due()

    def on_void(self, tickets: Sequence[int]) -> None:
        """Do nothing: the link ends with its epoch, and the edge sends the publishes again."""


class PublishReceiver:
    """
    The publish streams of the edge at the other end of a link.

    `is_due`: True if a stream has publishes to acknowledge.

    Invariant: `taken` of a stream <= the authority's mark of the stream.
    """

    def __init__(
        self,
        authority: Authority,
        counters: Counters,
        packet_reader: LinkReader,
        write: Callable[[bytes], None],
        mark_dirty: Callable[[], None],
    ) -> None:
        """`mark_dirty` is called when there is something to acknowledge."""
        self.is_due = False
        self.received = 0
        self._packet_reader = packet_reader
        self._authority = authority
        self._counters = counters
        self._write = write
        self._mark_dirty = mark_dirty
        self._streams: dict[int, _Stream] = {}
        self._stream: _Stream | None = None
        self._sequences: list[int] = []
        self._clients: tuple[str, ...] = ()
        self._publishers: RunLengths | None = None
        self._place = self._count = 0  # in the batch, and its packets
        self._wills: dict[int, WillId] = {}  # by their index in the batch
        self._is_stale = False

    def open(self, number: int, mark: MarkKey, *, has_gaps: bool) -> None:
        """Begin a stream; raises `LinkError`."""
        if number in self._streams or not number:
            raise LinkError("a stream has a number of its own")
        if len(self._streams) >= MOST_STREAMS:
            raise LinkError(f"a link has at most {MOST_STREAMS} streams")
        self._streams[number] = _Stream(number, mark, has_gaps, self._be_due)

    # from the edge

    def on_open_stream(self, opening: link_pb2.OpenStream, edge: str) -> None:
        """Begin a stream for an outbox of the edge."""
        mark = key_from_mark(opening.mark)
        if mark[0] != edge:
            raise LinkError(f"edge {edge!r} has no stream of edge {mark[0]!r}")
        if not self._authority.reception.begin(mark):
            raise LinkError(MANY_MARKS)
        self.open(opening.stream, mark, has_gaps=True)

    def on_batch(self, batch: link_pb2.Batch) -> None:
        """Process the header of a batch of publishes."""
        if batch.kind != link_pb2.Batch.PUBLISH:
            raise LinkError("an edge sends batches of publishes")
        if max(batch.first, batch.stream, max(batch.sequences, default=0)) >= MOST_NUMBER:
            raise LinkError("a batch has a number of 2^62 or more")
        if batch.wills:
            check(batch)
        clients = check_clients(batch, self._clients)
        stream = self._streams.get(batch.stream)
        if stream is None:
            raise LinkError("a batch is of a stream that was opened")
        if len(batch.sequences) != (batch.count if stream.has_gaps else 0):
            raise LinkError("each publish of an opened stream has its sequence, no other one has")
        is_gap = not stream.is_stopped and batch.first not in (0, stream.next)
        if is_gap and not stream.has_gaps:
            raise LinkError("a batch is not the next one of its stream")
        # Publishes of another epoch must not enter the journal (invariant 1).
        self._is_stale = batch.epoch != self._authority.epoch
        self._stream = stream
        self._sequences = list(reversed(batch.sequences))
        self._clients = clients
        self._publishers = RunLengths(batch.client, batch.counts, batch.count)
        self._place = 0
        self._count = batch.count
        self._wills = {will.index: (will.name, will.life, will.number) for will in batch.wills}

    def on_publish(self, packet: Publish) -> None:
        """Process the next publish of the batch."""
        stream, ((publisher, _),) = self._next(1)
        message = Message(
            packet.topic,
            packet.payload,
            packet.qos,
            packet.retain,
            self._clients[publisher],
            self._wills.get(self._place - 1),
            stream.mark[0],
            properties=packet.properties,
        )
        self.received += message.size
        self._accept(stream, message)

    def on_run(self, run: Run) -> None:
        """Process the next run of the batch."""
        stream, publishers = self._next(run.count)
        begin = self._place - run.count
        run.edge = stream.mark[0]
        name_publishers(run, publishers, self._clients)
        self.received += run.size
        has_will = any(begin <= place < self._place for place in self._wills)
        if not has_will and self._accept_whole(stream, run):
            self._reuse_header(run)
        else:
            for index in range(run.count):
                will = self._wills.get(begin + index)
                self._accept(stream, attrs.evolve(run.message(index), will=will))

    def _reuse_header(self, run: Run) -> None:
        """Let the packet reader reuse the header of QoS 0 publishes until another header comes."""
        if run.qos:
            self._packet_reader.forget()
        elif not self._wills and len(self._clients) == 1:
            self._packet_reader.know(run.clients[0], run.edge, self._count)

    def _next(self, count: int) -> tuple[_Stream, list[tuple[int, int]]]:
        """Return the stream of the next publishes, and their publishers as run lengths."""
        if self._publishers is None or self._stream is None:
            raise LinkError("a PUBLISH on a link follows its batch header")
        self._place += count
        return self._stream, self._publishers.consume(count)

    def _accept_whole(self, stream: _Stream, run: Run) -> bool:
        """True if the authority accepted the run as a whole."""
        if self._is_stale or (run.qos and stream.is_stopped):
            return False
        if not run.qos:
            return self._authority.publish_run(run)
        last = stream.next + run.count - 1
        if stream.has_gaps:
            sequences = self._sequences[-run.count :]  # in reverse
            if any(after <= before for after, before in pairwise([*sequences, stream.next - 1])):
                return False
            last = sequences[0]
        if not self._authority.publish_run(run, stream.mark, last, (stream, last)):
            return False
        if stream.has_gaps:
            del self._sequences[-run.count :]
        stream.next = last + 1
        return True

    def _accept(self, stream: _Stream, message: Message) -> None:
        if stream.has_gaps:
            self._on_sequence(stream, message.qos, self._sequences.pop())
        if message.qos and stream.is_stopped:
            return  # no publish behind a refused one is accepted (rule 1)
        self._packet_reader.forget()
        receipt = (stream, stream.next) if message.qos else None
        verdict = (
            PublishVerdict.NOT_AUTHORITATIVE
            if self._is_stale
            else self._authority.publish(message, stream.mark, stream.next, receipt)
        )
        if not message.qos:
            if verdict is not TAKEN:
                self._counters.add("publish.dropped.not_authoritative")
        elif verdict is TAKEN:
            stream.next += 1
        else:
            stream.is_stopped = True
            if verdict is PublishVerdict.PARKED:
                stream.parked = message.topic
            else:
                self._refuse(stream, self._authority.cut_for(message.topic), retry=False)

    def on_restart(self, restart: link_pb2.Restart) -> None:
        """Accept a stream's publishes again: the edge has heard of the refusal."""
        stream = self._streams.get(restart.stream)
        if stream is None or not (stream.has_gaps or restart.sequence == stream.next):
            raise LinkError("a stream restarts where it was refused")
        stream.is_stopped = False

    # from the authority

    def unpark(self) -> None:
        """Refuse or retry the parked publishes: a fence was lifted or became a cut."""
        for stream in self._streams.values():
            topic, stream.parked = stream.parked, None
            if topic is not None:
                cut = self._authority.cut_for(topic)
                self._refuse(stream, cut, retry=cut is None and self._authority.serving)

    def check(self) -> None:
        """State what is taken, acknowledged and marked of each stream."""
        marks, has_wills = self._authority.marks, len(self._authority.wills) > 0
        for one in self._streams.values():
            ordered(self, 1, "told <= taken < next", one.taken_told, one.taken, one.next - 1)
            # A will that was taken before raises no mark: its own mark tells it from others.
            marked = one.taken if has_wills else marks.get(one.mark, 0)
            ordered(self, 1, "taken <= mark", one.taken, marked)

    # to the edge

    def acknowledge(self, out: list[Octets]) -> None:
        """Append an acknowledgement of each stream with newly durable publishes to `out`."""
        self.is_due = False
        for stream in self._streams.values():
            if stream.taken > stream.taken_told:
                stream.taken_told = stream.taken
                taken = link_pb2.Taken(stream=stream.number, sequence=stream.taken)
                out.append(encode_frame(LinkFrame(taken=taken)))

    # internal

    def _be_due(self) -> None:
        self.is_due = True
        self._mark_dirty()

    def _on_sequence(self, stream: _Stream, qos: int, sequence: int) -> None:
        if not qos:
            raise LinkError("an opened stream has publishes of QoS 1 and 2")
        if not stream.is_stopped:
            if sequence < stream.next:
                raise LinkError("the sequences of a stream grow")
            stream.next = sequence

    def _refuse(self, stream: _Stream, cut: ZoneCut | None, *, retry: bool) -> None:
        refusal = link_pb2.Refusal(stream=stream.number, sequence=stream.next, retry=retry)
        if cut is not None:
            refusal.cut.CopyFrom(cut_to_wire(cut))
        # A refusal also acknowledges all earlier publishes, so it must wait until they are durable.
        data = encode_frame(LinkFrame(refusal=refusal))
        self._authority.in_order(lambda: self._write(data))
