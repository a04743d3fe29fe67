"""
The edge's end of a link: sends publishes to the owner of a zone, takes the edge's deliveries.

Each connection has one object. Bytes come in by `reader` and `work`, and go out by `write`.
Its life: Hello sent, Welcome (the owner's marks settle what was in doubt), catch-up, Online. Only
an online end is the route's port and takes publishes. The publishes go out by its `PublishSender`,
deliveries to its `DeliveryReceiver`. Its `OwnerChecks` know whether the owner may say what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from txbroker.core import Run, Sender
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.edge.routing.group_report import GroupReport
from txbroker.edge.routing.owner_port import StreamUser
from txbroker.edge.routing.publication import Publication
from txbroker.edge.routing.route import Route
from txbroker.edge.routing.stored_outbox import OutboxEntry
from txbroker.edge.routing.zone_claims import StreamPosition
from txbroker.edge.sessions.edge import Edge
from txbroker.link.delivery_receiver import DeliveryReceiver
from txbroker.link.frames import (
    LINK_VERSION,
    FrameReader,
    LinkError,
    Write,
    encode_batch,
    encode_frame,
    link_error,
)
from txbroker.link.owner_checks import OwnerChecks
from txbroker.link.publish_sender import PublishSender, header_of
from txbroker.model.counters import Counters
from txbroker.model.errors import PeerError
from txbroker.model.log_position import JournalHolder, JournalId
from txbroker.mqtt.wire.packets import Publish
from txbroker.rpc.link_convert import (
    claim_to_wire,
    group_report_to_wire,
    key_from_mark,
    mark_to_wire,
)
from txbroker.runtime.backpressure import Backpressure
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.v1 import link_pb2, types_pb2
from txbroker.v1.link_pb2 import LinkFrame


class LinkClient:
    """See the module's text; `close` drops the connection, the reason is for the log."""

    def __init__(
        self,
        edge: Edge,
        route: Route,
        *,
        write: Write,
        close: Callable[[str], None],
        flush_queue: FlushQueue,
        backpressure: Backpressure,
    ) -> None:
        self._edge = edge
        self._route = route
        self._write = write
        self._close = close
        self._mark_dirty = flush_queue.mark_dirty
        self._mark_next = flush_queue.mark_next
        self._counters: Counters = edge.counters
        self.reader = FrameReader()
        self._consumer = DeliveryReceiver(edge, route, backpressure, self.reader.packet_reader)
        self._told: tuple[set[str], set[str]] = (set(), set())
        self._marks: dict[MarkKey, int] = {}
        self._word = OwnerChecks(route, edge.zones)
        self._live = PublishSender(edge, route, write)
        self.packet_writer = self._live.packet_writer
        self._streams: dict[int, StreamUser] = {}
        self._answers_low_water = False
        self._is_credit_due = False

    # from the shell

    def start(self, token: bytes) -> None:
        """Send Hello."""
        edge, route = self._edge, self._route
        edge.interests.refresh()
        edge.interests.update_now(route)
        position = route.position
        self._told = (set(route.interest.filters), set(route.claims.apexes))
        hello = link_pb2.Hello(
            version=LINK_VERSION,
            token=token,
            edge=edge.name,
            incarnation=edge.incarnation,
            zone=route.apex,
            epoch=position.epoch if position is not None else 0,
            position=position.offset if position is not None else 0,
            filters=sorted(route.interest.filters),
            claims=self._claims(route.claims.apexes),
            in_doubt=[mark_to_wire(key, 0) for key in edge.keys_in_doubt(route.apex)],
            stream=self._live.number,
            publishers=edge.interests.wants_publishers,
            reads_properties=True,
        )
        self._write(encode_frame(LinkFrame(hello=hello)))

    def _claims(self, apexes: Iterable[str]) -> list[link_pb2.Claim]:
        return [claim_to_wire(apex, self._route.processed(apex)) for apex in sorted(apexes)]

    @property
    def was_online(self) -> bool:
        """True if the link ever was the route's port."""
        return self._word.was_online

    def work(self) -> None:
        """Process the owner's bytes in the packet reader; raises `LinkError` for a broken rule."""
        for item in self.reader.frames():
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
        """Send the batch and the credit that are due."""
        try:
            if self._consumer.waiting and self._consumer.resume():
                self._mark_next(self)
        except PeerError as error:
            # The turn's end must not raise: the faulty owner's link is closed here.
            self._counters.add("link.refused")
            self.close(str(error))
            return
        if self._live.batch:
            self._live.send_batch()
        consumed = self._consumer.collect_credit(is_due=self._is_credit_due)
        if consumed is not None:
            self._is_credit_due = False
            position = self._route.position
            told = link_pb2.Position(
                offset=position.offset if position is not None else 0, consumed=consumed
            )
            self._write(encode_frame(LinkFrame(position=told)))

    def check(self) -> None:
        """State what of the link is sent and consumed; after the end of a turn."""
        if self._route.port is self:
            self._live.check()
            self._consumer.check()

    @property
    def may_speak(self) -> bool:
        """True if this end may send frames: the dialing end may do so from the first byte on."""
        return True

    def beat(self) -> None:
        """Return credit of a small amount too, as a second has passed."""
        self._is_credit_due = True
        self._mark_dirty(self)

    def on_disconnect(self) -> None:
        """Notify the edge that the connection is lost."""
        self._consumer.on_disconnect()
        self._live.close()
        if self._route.port is self:
            self._edge.on_lost(self._route, self._live.key)

    # from the edge (OwnerPort)

    def passes(self, _size: int) -> bool:
        """Return False: publishes of one link arrive in their order."""
        return False

    def has_credit(self) -> bool:
        """True if more publishes may be sent now."""
        return self._live.has_credit()

    def publish(self, publication: Publication) -> None:
        """Put a publish into the batch that leaves at the end of this turn."""
        self._live.publish(publication)
        self._mark_dirty(self)

    def sender(self) -> Sender | None:
        """Return the sender for immediate QoS 0; None if a queued publish must go first or wait."""
        return self._live.sender()

    def publish_run(self, run: Run) -> None:
        """Put a run into the batch."""
        self._live.publish_run(run)
        self._mark_dirty(self)

    def restart(self, sequence: int, returned: Iterable[Publication] = ()) -> None:
        """Restart the stream after a refusal: the next QoS 1/2 publish has this sequence."""
        self._live.restart(sequence, returned)

    def request_marks(
        self, keys: Iterable[MarkKey], answered: Callable[[dict[MarkKey, int]], None]
    ) -> None:
        """Ask for the marks of these streams; no answer comes if the connection breaks."""
        request = self._edge.zones.next_stream()
        self._word.record_asked(request, answered)
        ask = link_pb2.Ask(request=request, in_doubt=[mark_to_wire(key, 0) for key in keys])
        self._write(encode_frame(LinkFrame(ask=ask)))

    def open_stream(self, key: MarkKey, user: StreamUser) -> _Stream:
        """Open another publish stream."""
        number = self._edge.zones.next_stream()
        self._streams[number] = user
        self._word.record_sent(number, 0)
        opening = link_pb2.OpenStream(stream=number, mark=mark_to_wire(key, 0))
        self._write(encode_frame(LinkFrame(open_stream=opening)))
        return _Stream(self, number)

    def send(self, stream: int, entries: Sequence[OutboxEntry]) -> None:
        """Send entries of an outbox, which are already durable here."""
        messages = [entry.message for entry in entries]
        if not self._live.has_properties:
            messages = [message.without_properties() for message in messages]
        self._live.count(sum(message.size for message in messages))
        self._word.record_sent(stream, entries[-1].number)
        batch = header_of(messages, self._live.epoch)
        batch.stream = stream
        batch.sequences.extend(entry.number for entry in entries)
        self._write(*encode_batch(batch, messages))

    def restart_stream(self, stream: int) -> None:
        """Restart a refused stream: the owner must accept its publishes from now on."""
        restart = link_pb2.Restart(stream=stream)
        self._write(encode_frame(LinkFrame(restart=restart)))

    def add_interest(self, topic_filter: str, request: int, *, retained: bool) -> None:
        """Request deliveries of a filter, and its retained messages once if `retained`."""
        interest = link_pb2.InterestRequest(
            request=request,
            filter=topic_filter,
            retained=retained,
            publishers=self._edge.interests.wants_publishers,
        )
        self._write(encode_frame(LinkFrame(interest=interest)))

    def remove_interest(self, topic_filter: str) -> None:
        """Withdraw a filter: no more deliveries."""
        interest = link_pb2.InterestRequest(filter=topic_filter, remove=True)
        self._write(encode_frame(LinkFrame(interest=interest)))

    def sync(self, filters: Iterable[str], claims: Iterable[str]) -> None:
        """Replace the interest, and claim the inherited subtrees."""
        claims = set(claims)
        self._consumer.claims(claims)
        sync = link_pb2.InterestSync(filters=filters, claims=self._claims(claims))
        self._write(encode_frame(LinkFrame(sync=sync)))

    def set_low_water(
        self,
        places: dict[JournalId, int],
        kept: Callable[[], None],
        holders: Mapping[JournalId, tuple[JournalHolder, ...]],
    ) -> None:
        """Send the low-water marks: this edge's sessions need the records above these offsets."""
        request = self._edge.zones.next_stream()
        self._word.record_low_water(request, kept)
        low_water = link_pb2.LowWater(request=request)
        for (zone, epoch), offset in places.items():
            mark = low_water.kept.add(zone=zone, epoch=epoch, offset=offset)
            for client_id, lowest in holders.get(JournalId(zone, epoch), ()):
                mark.holders.add(client_id=client_id, offset=lowest)
        self._write(encode_frame(LinkFrame(low_water=low_water)))
        if not self._answers_low_water:
            # An older owner answers `Ask` only, in order behind the marks. Without an answer no
            # session could leave this node for good.
            self.request_marks((), lambda _: kept())

    def report_group(self, group: str, report: GroupReport) -> None:
        """Report on the members of a group."""
        wire = group_report_to_wire(group, report)
        self._write(encode_frame(LinkFrame(group_report=wire)))

    def close(self, reason: str) -> None:
        """Close this connection; no more frames of it are processed."""
        self.on_disconnect()
        self._close(reason)

    # internal

    def _on_frame(self, frame: LinkFrame) -> None:
        kind = frame.WhichOneof("kind")
        if kind not in ("batch", "taken"):  # checked with what the link is, and what it sent
            self._word.check_frame(frame, is_live=self._consumer.is_live)
        match kind:
            case "welcome":
                self._on_welcome(frame.welcome)
            case "batch":
                self._consumer.on_batch(frame.batch)
            case "taken":
                self._on_accepted(frame.taken)
            case "credit":
                self._live.on_consumed(frame.credit.consumed)
                self._edge.publisher.flush(self._route)
                self._edge.outboxes.on_online(self._route)
            case "refusal":
                self._on_refusal(frame.refusal)
            case "marks":
                self._word.on_marks(frame.marks)
            case "low_water_kept":
                self._word.on_low_water_stored(frame.low_water_kept.request)
            case "group_confirmed":
                confirmed = frame.group_confirmed
                pending = tuple(confirmed.pending)
                self._edge.shared.on_confirmed(self._route, confirmed.group, pending)
            case "group_report_stored":
                stored = frame.group_report_stored
                self._edge.shared.on_report_confirmed(self._route, stored.group, stored.request)
            case "answer" | "online" | "cut" | "gone" | "reached" | "claimed":
                self._consumer.on_bailiwick(frame)
                self._consumer.in_turn(partial(self._on_told, frame))
            case "heartbeat":
                pass
            case None:
                # A newer owner may send frames that this node does not know; refusing them would
                # break the link.
                self._counters.add("link.unknown_frame")
            case _:
                raise LinkError(f"an owner does not say {kind}")

    def _on_told(self, frame: LinkFrame) -> None:
        match frame.WhichOneof("kind"):
            case "answer":
                self._consumer.on_answer(frame.answer)
            case "online":
                self._on_online(frame.online)
            case "reached":
                self._route.skip_to(frame.reached.offset)
            case "claimed":
                self._complete(frame.claimed.apexes)
            case "cut":
                cuts, cut = self._edge.cuts, self._word.cut_below(frame.cut)
                (cuts.on_forgotten_cut if frame.cut.found else cuts.on_cut)(self._route, cut)
            case "gone" if frame.gone.apex == self._route.apex:
                self._consumer.end()
                self._edge.cuts.on_zone_end(self._route, is_whole=True)
            case "gone":
                self._word.check_below(frame.gone.apex, frame.gone.epoch)
                self._on_cut_ended(frame.gone)

    def _on_cut_ended(self, gone: types_pb2.Gone) -> None:
        if gone.reclaimed:
            after = StreamPosition(epoch=self._word.epoch, offset=gone.offset)
            self._edge.cuts.on_reclaimed(self._route, gone.apex, gone.epoch, after)
        else:
            offset = gone.offset if gone.HasField("offset") else None
            self._edge.cuts.on_cut_ended(self._route, gone.apex, gone.epoch, offset)

    def _on_welcome(self, welcome: link_pb2.Welcome) -> None:
        self._word.welcome(welcome)
        self._live.epoch = self._consumer.epoch = welcome.epoch
        self._live.set_credit(welcome.credit)
        self._answers_low_water = welcome.answers_low_water
        self._live.set_properties(welcome.reads_properties)
        known = self._route.position
        if known is not None and known.epoch != welcome.epoch:
            # The owner sends all records of its present epoch.
            self._route.begin_part(welcome.epoch)
        self._marks = {key_from_mark(mark): mark.sequence for mark in welcome.marks}

    def _on_online(self, online: link_pb2.Online) -> None:
        self._word.online()
        if online.missed and self._route.position is not None:
            self._counters.add("link.missed", online.missed)
        route = self._route
        if self._told != (route.interest.filters, route.claims.apexes):
            route.note_news()  # changed since Hello
        position = StreamPosition(epoch=self._word.epoch, offset=online.offset)
        known, apex = route.position, route.apex
        if apex in route.claims.claiming and apex not in self._told[1] and known is not None:
            position = known  # claimed since Hello: what waits for the claim is still to come
        self._edge.on_online(
            self._route,
            self,
            marks=self._marks,
            cuts=[self._word.cut_below(cut) for cut in online.cuts],
            position=position,
        )
        self._complete(self._told[1])

    def _complete(self, claims: Collection[str]) -> None:
        """
        Confirm claims whose waiting deliveries are processed: the position covers them from here
        on.
        """
        if claims:
            # Claims of an earlier link are confirmed again: that link may have lost the
            # confirmation.
            claimed = link_pb2.Claimed(apexes=sorted(claims))
            told = encode_frame(LinkFrame(claimed=claimed))
            self._edge.on_claimed(self._route, claims, lambda: self._write(told))

    def _on_accepted(self, taken: link_pb2.Taken) -> None:
        user = self._check_sent(taken.stream, taken.sequence)
        if user is None:
            self._edge.publisher.on_accepted(self._route, taken.sequence)
        else:
            user.on_accepted(taken.sequence)

    def _check_sent(self, stream: int, sequence: int) -> StreamUser | None:
        """
        Return the stream's user, None for the live stream; raises `LinkError` for unsent sequences.
        """
        live = self._live
        last = live.next - 1 if stream == live.number else self._word.last_sent(stream)
        if sequence > last or not self._word.epoch:
            raise LinkError("an owner answers what it was sent")
        return self._streams.get(stream)

    def _on_refusal(self, refusal: link_pb2.Refusal) -> None:
        cut = self._word.cut_below(refusal.cut) if refusal.HasField("cut") else None
        user = self._check_sent(refusal.stream, refusal.sequence)
        if user is not None:
            user.on_refused(refusal.sequence, cut, retry=refusal.retry)
            return
        # Without a cut the zone itself has ended. The end follows the last deliveries in their
        # stream, and until then no publish is sent.
        self._live.is_blocked = cut is None and not refusal.retry
        self._edge.publisher.on_refused(self._route, refusal.sequence, cut)


class _Stream:
    """A publish stream beside the live one (`OutStream`)."""

    def __init__(self, end: LinkClient, number: int) -> None:
        self._end = end
        self._number = number

    def send(self, entries: Sequence[OutboxEntry]) -> None:
        """Send entries, each with its number as its sequence."""
        self._end.send(self._number, entries)

    def restart(self) -> None:
        """Restart the stream after a refusal: the owner must accept its publishes from now on."""
        self._end.restart_stream(self._number)
