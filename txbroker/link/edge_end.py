"""
The edge's end of a link: sends publishes to the owner of a zone, takes the edge's deliveries.

One object for each connection; bytes in by `inlet` and `work`, bytes out by `write`. Its life:
Hello sent, Welcome (the owner's marks settle what was in doubt), catch-up, Online; only then it is
the route's port and takes publishes. Deliveries go to its `Consumer`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from txbroker.authority.handover import MarkKey
from txbroker.core import LinkInlet, Run, Sender
from txbroker.counters import Counters
from txbroker.delegation.cut import Cut
from txbroker.edge.edge import Edge
from txbroker.edge.outbound import Outbound
from txbroker.edge.outbox import Entry
from txbroker.edge.route import Position, Publication, Route, StreamUser
from txbroker.errors import PeerError
from txbroker.link.batches import BATCH_BYTES, MOST, Clients, in_short
from txbroker.link.consumer import Consumer
from txbroker.link.convert import claim_to_wire, cut_from_wire, key_from_mark, mark_to_wire
from txbroker.link.frames import (
    LINK_VERSION,
    FrameReader,
    LinkError,
    Write,
    check_version,
    encode_frame,
    link_error,
    packets_of,
)
from txbroker.message import Message
from txbroker.mqtt.packets import Publish
from txbroker.mqtt.session import Session
from txbroker.place import Holder, PartKey
from txbroker.pressure import Pressure
from txbroker.runs import Octets
from txbroker.topics import is_within
from txbroker.turn import Flushable
from txbroker.v1 import link_pb2, types_pb2
from txbroker.v1.link_pb2 import LinkFrame
from txbroker.wire_checks import check, check_cut, check_near

MOST_CREDIT = 64 * 1024 * 1024
"""Bytes that may be unanswered, whatever the owner offers: more would fill this node's memory."""

_BEHIND_ONLINE = ("answer", "cut", "reached", "claimed")
"""Kinds of frames that an owner begins to say when an edge has caught up."""

MARKS_TOLD = 100
"""Low-water marks whose answers are waited for."""


class EdgeEnd:
    """See the module's text; `close` drops the connection, the reason is for the log."""

    def __init__(
        self,
        edge: Edge,
        route: Route,
        *,
        write: Write,
        close: Callable[[str], None],
        mark_dirty: Callable[[Flushable], None],
        mark_next: Callable[[Flushable], None],
        pressure: Pressure,
    ) -> None:
        self.was_online = False
        self._edge = edge
        self._route = route
        self._write = write
        self._close = close
        self._mark_dirty = mark_dirty
        self._mark_next = mark_next
        self._counters: Counters = edge.counters
        self._reader = FrameReader()
        self._consumer = Consumer(edge, route, pressure, self._reader.inlet)
        self._told: tuple[set[str], set[str]] = (set(), set())
        self._epoch = 0
        self._marks: dict[MarkKey, int] = {}
        self._stream = edge.zones.next_stream()
        self._key: MarkKey = (edge.name, edge.incarnation, route.apex, self._stream)
        self._outbound = Outbound[list[Octets]](edge.keeper.save_then, lambda out: write(*out))
        self._kept: list[Session] = []
        self._streams: dict[int, StreamUser] = {}
        self._last_sent: dict[int, int] = {}  # sequences in these
        self._asked: dict[int, Callable[[dict[MarkKey, int]], None]] = {}
        self._marks_told: deque[tuple[int, Callable[[], None]]] = deque(maxlen=MARKS_TOLD)
        self._low_water_told = 0  # the last request
        self._answers_low_water = False
        self._batch: list[Message | Run] = []
        self._batch_size = self._batch_count = 0
        self._batch_first = 0
        self._next = 1
        self._credit = 0
        self._sent = 0
        self._consumed_by_owner = 0
        self.outlet = edge.exchange.make_outlet()
        self._sender = edge.exchange.make_sender(self.outlet, self._header_before)
        self._is_blocked = False
        self._is_credit_due = False

    # from the shell

    def start(self, token: bytes) -> None:
        """Say Hello."""
        edge, route = self._edge, self._route
        edge.interests.refresh()
        edge.interests.bring_up(route)
        position = route.position
        self._told = (set(route.filters), set(route.claims))
        hello = link_pb2.Hello(
            version=LINK_VERSION,
            token=token,
            edge=edge.name,
            incarnation=edge.incarnation,
            zone=route.apex,
            epoch=position.epoch if position is not None else 0,
            position=position.offset if position is not None else 0,
            filters=sorted(route.filters),
            claims=self._claims(route.claims),
            in_doubt=[mark_to_wire(key, 0) for key in edge.keys_in_doubt(route.apex)],
            stream=self._stream,
        )
        self._write(encode_frame(LinkFrame(hello=hello)))

    def _claims(self, apexes: Iterable[str]) -> list[link_pb2.Claim]:
        return [claim_to_wire(apex, self._route.processed(apex)) for apex in sorted(apexes)]

    @property
    def inlet(self) -> LinkInlet:
        """Where bytes from the other end are put."""
        return self._reader.inlet

    def work(self) -> None:
        """Bytes from the owner are in the inlet; raises `LinkError` where they break a rule."""
        for item in self._reader.frames():
            if isinstance(item, Run):
                self._consumer.on_run(item)
            elif isinstance(item, Publish):
                self._consumer.on_message(item)
            else:
                try:
                    self._on_frame(item)
                except PeerError as error:
                    raise link_error(error) from error
        self._mark_dirty(self)

    def flush(self) -> None:
        """Send what is due: the batch, and credit for what was taken off the link."""
        try:
            if self._consumer.go_on():
                self._mark_next(self)
        except PeerError as error:
            # Whoever ends the turn is not the one who broke the rule.
            self._counters.add("link.refused")
            self.close(str(error))
            return
        if self._batch:
            self._send_batch()
        consumed = self._consumer.take_credit(is_due=self._is_credit_due)
        if consumed is not None:
            self._is_credit_due = False
            position = self._route.position
            told = link_pb2.Position(
                offset=position.offset if position is not None else 0, consumed=consumed
            )
            self._write(encode_frame(LinkFrame(position=told)))

    @property
    def may_speak(self) -> bool:
        """From the first byte on."""
        return True

    def beat(self) -> None:
        """A second has passed: the owner hears also of little that was taken off the link."""
        self._is_credit_due = True
        self._mark_dirty(self)

    def lost(self) -> None:
        """The connection is gone."""
        self._consumer.lost()
        self._outbound.close()
        if self._route.port is self:
            self._edge.on_lost(self._route, self._key)

    # from the edge (OwnerPort)

    def has_credit(self) -> bool:
        """Whether more publishes may be sent now."""
        return self._in_flight < self._credit and not self._is_blocked

    @property
    def _in_flight(self) -> int:
        return self._sent + self._sender.sent - self._consumed_by_owner

    def publish(self, publication: Publication) -> None:
        """Put it into the batch that leaves at the end of this turn."""
        sequence = self._add(publication.message)
        if publication.keeps_id:
            self._kept.append(publication.note_origin(self._key, sequence))
        self._send_if_full()

    def sender(self) -> Sender | None:
        """What sends QoS 0 at once; None where something is to go before it, or has to wait."""
        if self._batch or self._outbound.waiting or not self.has_credit():
            return None
        self._sender.room = self._credit - self._in_flight
        return self._sender

    def publish_run(self, run: Run) -> None:
        """Put many into the batch."""
        if self._batch_count + run.count > MOST:
            self._send_batch()
        self._add(run)
        self._send_if_full()

    def _add(self, item: Message | Run) -> int:
        """Put it into the batch; the sequence that it has, or that the next one will have."""
        sequence = self._next
        if not self._batch:
            self._batch_first = sequence
        self._batch.append(item)
        self._batch_size += item.size
        self._batch_count += item.count
        self._sent += item.size
        if item.qos:
            self._next += item.count
            self._sender.forget()
        return sequence

    def _send_if_full(self) -> None:
        if self._batch_size >= BATCH_BYTES or self._batch_count >= MOST:
            self._send_batch()
        else:
            self._mark_dirty(self)

    def restart(self, sequence: int, returned: Iterable[Publication] = ()) -> None:
        """After a refusal: the next QoS 1/2 publish has this number."""
        # What has not left comes again from the edge; QoS 0 does not, so it stays.
        unsent = [item for item in self._batch if item.qos]
        self._sent -= sum(item.size for item in unsent)
        self._batch = [item for item in self._batch if not item.qos]
        self._batch_size = sum(item.size for item in self._batch)
        self._batch_count = sum(item.count for item in self._batch)
        self._batch_first = self._next = sequence
        self._sender.forget()
        self._kept.clear()
        # Others will have the numbers that the returned ones had: none may be kept as theirs.
        forgetting = [p.note_origin(None, 0) for p in returned if p.keeps_id]
        restart = link_pb2.Restart(stream=self._stream, sequence=sequence)
        self._outbound.send([encode_frame(LinkFrame(restart=restart))], forgetting)

    def ask(self, keys: Iterable[MarkKey], answered: Callable[[dict[MarkKey, int]], None]) -> None:
        """Ask how far these streams were taken; no answer where the connection breaks."""
        request = self._edge.zones.next_stream()
        self._asked[request] = answered
        ask = link_pb2.Ask(request=request, in_doubt=[mark_to_wire(key, 0) for key in keys])
        self._write(encode_frame(LinkFrame(ask=ask)))

    def open_stream(self, key: MarkKey, user: StreamUser) -> _Stream:
        """Another publish stream."""
        number = self._edge.zones.next_stream()
        self._streams[number] = user
        self._last_sent[number] = 0
        opening = link_pb2.OpenStream(stream=number, mark=mark_to_wire(key, 0))
        self._write(encode_frame(LinkFrame(open_stream=opening)))
        return _Stream(self, number)

    def send(self, stream: int, entries: Sequence[Entry]) -> None:
        """Send what comes from an outbox; it is durable here already."""
        messages = [entry.message for entry in entries]
        self._sent += sum(message.size for message in messages)
        self._last_sent[stream] = max(self._last_sent[stream], entries[-1].number)
        batch = self._header(messages)
        batch.stream = stream
        batch.sequences.extend(entry.number for entry in entries)
        self._write(encode_frame(LinkFrame(batch=batch)), *packets_of(messages))

    def restart_stream(self, stream: int) -> None:
        """What is sent in an opened stream from now on is to be taken again."""
        restart = link_pb2.Restart(stream=stream)
        self._write(encode_frame(LinkFrame(restart=restart)))

    def add_interest(self, topic_filter: str, request: int, *, retained: bool) -> None:
        """Ask for deliveries, and once for the `retained` messages."""
        interest = link_pb2.InterestRequest(request=request, filter=topic_filter, retained=retained)
        self._write(encode_frame(LinkFrame(interest=interest)))

    def remove_interest(self, topic_filter: str) -> None:
        """No more deliveries."""
        interest = link_pb2.InterestRequest(filter=topic_filter, remove=True)
        self._write(encode_frame(LinkFrame(interest=interest)))

    def sync(self, filters: Iterable[str], claims: Iterable[str]) -> None:
        """Replace the interest and claim what was inherited."""
        claims = set(claims)
        self._consumer.claims(claims)
        sync = link_pb2.InterestSync(filters=filters, claims=self._claims(claims))
        self._write(encode_frame(LinkFrame(sync=sync)))

    def keep(
        self,
        places: dict[PartKey, int],
        kept: Callable[[], None],
        holders: Mapping[PartKey, tuple[Holder, ...]],
    ) -> None:
        """What this edge's sessions need lies above these offsets."""
        request = self._edge.zones.next_stream()
        self._marks_told.append((request, kept))
        self._low_water_told = request
        low_water = link_pb2.LowWater(request=request)
        for (zone, epoch), offset in places.items():
            mark = low_water.kept.add(zone=zone, epoch=epoch, offset=offset)
            for client_id, lowest in holders.get(PartKey(zone, epoch), ()):
                mark.holders.add(client_id=client_id, offset=lowest)
        self._write(encode_frame(LinkFrame(low_water=low_water)))
        if not self._answers_low_water:
            # An older owner answers this alone, behind the marks. Without an answer no session
            # could leave this node for good.
            self.ask((), lambda _: kept())

    def close(self, reason: str) -> None:
        """Give up this connection; nothing more comes of it."""
        self.lost()
        self._close(reason)

    # internal

    def _on_frame(self, frame: LinkFrame) -> None:
        kind = frame.WhichOneof("kind")
        if kind not in ("batch", "heartbeat"):
            check(frame)
        if kind == "welcome":
            self._on_welcome(frame.welcome)
            return
        if not self._epoch and kind != "heartbeat":  # Welcome may have to wait for the disk
            raise LinkError("the first frame from an owner is Welcome")
        if kind in _BEHIND_ONLINE and not self._consumer.is_live:
            raise LinkError(f"an owner says {kind} behind its Online")
        match kind:
            case "batch":
                self._consumer.on_batch(frame.batch)
            case "taken":
                self._on_taken(frame.taken)
            case "credit":
                most = self._sent + self._sender.sent
                self._consumed_by_owner = min(frame.credit.consumed, most)
                self._edge.publisher.flush(self._route)
                self._edge.outboxes.on_online(self._route)
            case "refusal":
                self._on_refusal(frame.refusal)
            case "marks":
                self._on_marks(frame.marks)
            case "low_water_kept":
                self._on_kept(frame.low_water_kept.request)
            case "answer" | "online" | "cut" | "gone" | "reached" | "claimed":
                self._consumer.on_bailiwick(frame)
                self._consumer.in_turn(partial(self._on_told, frame))
            case "heartbeat":
                pass
            case None:
                # A newer owner may say what this node does not know: not ours to act on.
                self._counters.add("link.unknown_frame")
            case _:
                raise LinkError(f"an owner does not say {kind}")

    def _on_kept(self, request: int) -> None:
        if request > self._low_water_told:
            raise LinkError("an owner keeps marks that it was told")
        while self._marks_told and self._marks_told[0][0] <= request:
            self._marks_told.popleft()[1]()

    def _on_told(self, frame: LinkFrame) -> None:
        match frame.WhichOneof("kind"):
            case "answer":
                self._consumer.on_answer(frame.answer)
            case "online":
                self._on_online(frame.online)
            case "reached":
                self._edge.on_reached(self._route, frame.reached.offset)
            case "claimed":
                self._complete(frame.claimed.apexes)
            case "cut":
                cuts, cut = self._edge.cuts, self._cut_below(frame.cut)
                (cuts.on_found if frame.cut.found else cuts.on_cut)(self._route, cut)
            case "gone" if frame.gone.apex == self._route.apex:
                self._consumer.end()
                self._edge.cuts.on_gone(self._route, is_whole=True)
            case "gone":
                self._check_below(frame.gone.apex, frame.gone.epoch)
                self._on_cut_ended(frame.gone)

    def _on_cut_ended(self, gone: types_pb2.Gone) -> None:
        if gone.reclaimed:
            after = Position(epoch=self._epoch, offset=gone.offset)
            self._edge.cuts.on_reclaimed(self._route, gone.apex, gone.epoch, after)
        else:
            offset = gone.offset if gone.HasField("offset") else None
            self._edge.cuts.on_cut_ended(self._route, gone.apex, gone.epoch, offset)

    def _on_welcome(self, welcome: link_pb2.Welcome) -> None:
        if self._epoch:
            raise LinkError("a link has one Welcome")
        check_version(welcome.version)
        if welcome.zone != self._route.apex or not welcome.epoch:
            raise LinkError(f"the owner serves zone {welcome.zone!r}, not {self._route.apex!r}")
        check_near("epoch", welcome.epoch, self._route.epoch)
        self._epoch = self._consumer.epoch = welcome.epoch
        self._credit = min(welcome.credit, MOST_CREDIT)
        self._answers_low_water = welcome.answers_low_water
        known = self._route.position
        if known is not None and known.epoch != welcome.epoch:
            # The owner sends all that came since this epoch began.
            self._route.position = Position(epoch=welcome.epoch, offset=0)
        self._marks = {key_from_mark(mark): mark.sequence for mark in welcome.marks}

    def _on_online(self, online: link_pb2.Online) -> None:
        if self.was_online:
            raise LinkError("a link has one Online")
        if online.missed and self._route.position is not None:
            self._counters.add("link.missed", online.missed)
        self.was_online = True
        if self._told != (self._route.filters, self._route.claims):
            self._route.has_news = True  # since Hello
        position = Position(epoch=self._epoch, offset=online.offset)
        self._edge.on_online(
            self._route,
            self,
            marks=self._marks,
            cuts=[self._cut_below(cut) for cut in online.cuts],
            position=position,
        )
        self._complete(self._told[1])

    def _complete(self, claims: Collection[str]) -> None:
        """What waited for these claims is processed: from here on the position says all."""
        if claims:
            # Also what was said on an earlier link: it may have been lost with that.
            claimed = link_pb2.Claimed(apexes=sorted(claims))
            told = encode_frame(LinkFrame(claimed=claimed))
            self._edge.on_claimed(self._route, claims, lambda: self._write(told))

    def _on_taken(self, taken: link_pb2.Taken) -> None:
        user = self._check_sent(taken.stream, taken.sequence)
        if user is None:
            self._edge.publisher.on_taken(self._route, taken.sequence)
        else:
            user.on_taken(taken.sequence)

    def _check_sent(self, stream: int, sequence: int) -> StreamUser | None:
        """Whose stream that is, None: the live one; raises `LinkError` for what was not sent."""
        last = self._next - 1 if stream == self._stream else self._last_sent.get(stream, -1)
        if sequence > last:
            raise LinkError("an owner answers what it was sent")
        return self._streams.get(stream)

    def _on_marks(self, marks: link_pb2.Marks) -> None:
        answered = self._asked.pop(marks.request, None)
        if answered is None:
            raise LinkError("an owner tells marks once when it is asked")
        answered({key_from_mark(mark): mark.sequence for mark in marks.marks})

    def _on_refusal(self, refusal: link_pb2.Refusal) -> None:
        cut = self._cut_below(refusal.cut) if refusal.HasField("cut") else None
        user = self._check_sent(refusal.stream, refusal.sequence)
        if user is not None:
            user.on_refused(refusal.sequence, cut, retry=refusal.retry)
            return
        # Without a cut the zone itself has gone; that comes in the delivery stream, after the last
        # deliveries, and until then nothing is sent.
        self._is_blocked = cut is None and not refusal.retry
        self._edge.publisher.on_refused(self._route, refusal.sequence, cut)

    def _cut_below(self, wire: types_pb2.Cut) -> Cut:
        """A cut, which leads strictly deeper than the zone that tells of it (rule 14)."""
        cut = cut_from_wire(wire)
        check_cut(cut)
        self._check_below(cut.apex, cut.epoch)
        return cut

    def _check_below(self, apex: str, epoch: int) -> None:
        if apex == self._route.apex or not is_within(apex, self._route.apex):
            raise LinkError(f"zone {self._route.apex!r} has no cut at {apex[:100]!r}")
        below = self._edge.zones.get(apex)
        check_near("epoch of a cut", epoch, 0 if below is None else below.epoch)

    def _send_batch(self) -> None:
        items, self._batch = self._batch, []
        self._batch_size = self._batch_count = 0
        kept, self._kept = self._kept, []
        batch = self._header(items)
        batch.stream = self._stream
        batch.first = self._batch_first
        self._outbound.send([encode_frame(LinkFrame(batch=batch)), *packets_of(items)], kept)

    def _header_before(self, client_id: str) -> bytes:
        """For the `Sender`: of a batch of publishes of QoS 0."""
        batch = link_pb2.Batch(
            kind=link_pb2.Batch.PUBLISH,
            epoch=self._epoch,
            count=1,
            clients=[client_id],
            client=[0],
            stream=self._stream,
            first=self._next,
        )
        return encode_frame(LinkFrame(batch=batch))

    def _header(self, items: Sequence[Message | Run]) -> link_pb2.Batch:
        clients = Clients(items)
        return link_pb2.Batch(
            kind=link_pb2.Batch.PUBLISH,
            epoch=self._epoch,
            count=sum(clients.counts),
            clients=clients.ids,
            client=clients.index,
            counts=in_short(clients.counts),
            wills=_wills(items),
        )


def _wills(items: Iterable[Message | Run]) -> Iterator[link_pb2.WillId]:
    place = 0
    for item in items:
        if isinstance(item, Message) and item.will is not None:
            name, life, number = item.will
            yield link_pb2.WillId(index=place, name=name, life=life, number=number)
        place += item.count


class _Stream:
    """A publish stream beside the live one (`OutStream`)."""

    def __init__(self, end: EdgeEnd, number: int) -> None:
        self._end = end
        self._number = number

    def send(self, entries: Sequence[Entry]) -> None:
        """Send entries, each with its number as its sequence."""
        self._end.send(self._number, entries)

    def restart(self) -> None:
        """After a refusal: what is sent from now on is to be taken again."""
        self._end.restart_stream(self._number)
