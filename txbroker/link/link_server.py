"""
The owner's end of a link: takes an edge's publishes, gives it its deliveries.

One object for each connection; bytes in by `packet_reader` and `work`, bytes out by `write`. It is
the `EdgePort` of its peer. What is delivered leaves through `DeliverySender`, as far as the edge
has credit; answers to publishes leave when these are durable, and need none (protocol rule 20).

A link is new, then has its Hello, then its peer, then is lost or over. Only a link with a peer
takes publishes and gives deliveries. A frame that breaks a rule closes the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Protocol

import attrs

from txbroker.authority.authority import Authority
from txbroker.authority.edge_peer import EdgeCatchUp, EdgeGreeting, EdgePeer, OpenedLink
from txbroker.authority.retained_messages import RetainedCollection, RetainedQuery
from txbroker.core import LinkReader, Run, Sender
from txbroker.delegation.peer_checks import check, check_filters, check_groups
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.edge.groups.group_coordinators import GroupCoordinators
from txbroker.journal.zone_journal import Record
from txbroker.link.batch_headers import CREDIT_BYTES
from txbroker.link.delivery_sender import WINDOW, DeliverySender
from txbroker.link.frames import (
    LINK_VERSION,
    FrameReader,
    LinkError,
    Write,
    check_version,
    encode_frame,
    link_error,
)
from txbroker.link.interest_answers import InterestAnswers
from txbroker.link.publish_receiver import MANY_MARKS, PublishReceiver
from txbroker.model.counters import Counters
from txbroker.model.errors import PeerError
from txbroker.model.invariant import ordered
from txbroker.model.log_position import JournalId
from txbroker.model.publish_run import Octets
from txbroker.model.topics import is_within
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import Publish
from txbroker.rpc.link_convert import (
    claims_from_wire,
    cut_to_wire,
    group_report_from_wire,
    holders_from_wire,
    key_from_mark,
    mark_to_wire,
)
from txbroker.runtime.backpressure import Backpressure
from txbroker.runtime.fair_shares import ShareWorker
from txbroker.runtime.flush_queue import Flushable
from txbroker.v1 import link_pb2, types_pb2
from txbroker.v1.link_pb2 import LinkFrame

LARGEST_HELLO = 64 * 1024 * 1024
"""
The most bytes of the first frame, once its token is valid (see `hello`). The frame has the whole
interest of an edge.
"""

MANY_EDGES = "the zone knows as many edges as it can; let lost ones go: txbroker forget"

HIGH_MARK = 1024 * 1024
LOW_MARK = 256 * 1024
"""
Queued bytes of live messages for one edge: publishers pause at the high mark and resume at the low
mark.
"""

HELD_AT_ONCE = 16
"""The most held frames and runs of publishes that one turn processes."""

_PUBLISHING = ("batch", "restart", "open_stream", "ask")
"""Kinds of frames that stay in order with publishes, and wait with them."""


class LinkHost(Protocol):
    """The node, as the ends of its links see it."""

    authority: Authority
    groups: GroupCoordinators
    backpressure: Backpressure
    counters: Counters

    @property
    def is_disk_short(self) -> bool:
        """True if QoS 1/2 publishes must wait for space on the disk."""

    def redeem(self, token: bytes, edge: str, incarnation: int) -> OpenedLink | None:
        """Return the origin of the edge's link; None if the token is used or another edge's."""

    def serve(self, worker: ShareWorker) -> None:
        """Queue a worker for its share of time (`FairShares.serve`)."""

    def is_over(self) -> bool:
        """True if the present worker has used its share."""

    def mark_dirty(self, end: Flushable) -> None:
        """Call `flush` at the end of this turn."""

    def mark_next(self, end: Flushable) -> None:
        """Call `flush` in a turn of its own, soon."""


class LinkServer:
    """See the module's text; `close` drops the connection, the reason is for the log."""

    def __init__(
        self,
        host: LinkHost,
        *,
        write: Write,
        close: Callable[[str], None],
    ) -> None:
        self.peer: EdgePeer | None = None
        self._host = host
        self._authority = host.authority
        self._write = write
        self._close = close
        self._reader = FrameReader(LARGEST_HELLO)
        self._packet_reader = self._reader.packet_reader
        self.packet_writer = host.authority.router.make_packet_writer()
        self._packet_reader.most = CREDIT_BYTES
        self._deliveries = DeliverySender(
            host.authority, host.counters, self.packet_writer, lambda: host.mark_next(self)
        )
        self._intake = PublishReceiver(
            host.authority,
            host.counters,
            self._packet_reader,
            self._send,
            lambda: host.mark_dirty(self),
        )
        self._answers = InterestAnswers(
            tell=self._on_gathered,
            left=lambda: self._deliveries.retained,
            serve=host.serve,
            is_over=host.is_over,
            fail=close,
        )
        self._has_hello = False
        self._mark: MarkKey
        self._held: deque[LinkFrame | Publish | Run] = deque()
        self._credit_told = 0
        self._is_credit_due = False
        self._is_lost = self._is_over = False
        self._reached = 0

    # from the shell

    @property
    def packet_reader(self) -> LinkReader:
        """Return the reader that gets bytes from the other end."""
        return self._packet_reader

    def work(self) -> None:
        """Process the edge's bytes in the packet reader; raises `LinkError` for a broken rule."""
        if self._is_lost:
            return
        for item in self._reader.frames():
            if self._is_publishing(item) and (self._held or self._must_hold(item)):
                # Held bytes are limited by a window: no credit returns for held publishes.
                self._packet_reader.is_open = False
                self._held.append(item)
            else:
                self._on_item(item)
        self._host.mark_dirty(self)

    def flush(self) -> None:
        """Send due acknowledgements and credit, and deliveries as far as the edge's credit goes."""
        if self._is_lost:
            return
        try:
            self._process_held()
        except LinkError as error:
            # The turn's end must not raise: the faulty edge's link is closed here.
            self._held.clear()
            self._host.counters.add("link.refused")
            self._close(str(error))
            return
        out: list[Octets] = []
        self._intake.acknowledge(out)
        self._grant_credit(out)
        self._deliveries.write_to(out)
        self._answers.resume()
        if self._deliveries.queued < LOW_MARK:
            self._host.backpressure.lower(self)
        if out:
            self._write(*out)
        is_idle = self.peer is not None and not self._held
        self._packet_reader.is_open = is_idle and not (self._is_lost or self._is_over)

    def _process_held(self) -> None:
        for _ in range(HELD_AT_ONCE):
            if not self._held or self._must_hold(self._held[0]):
                return
            self._on_item(self._held.popleft())
        if self._held:
            self._host.mark_next(self)

    def _grant_credit(self, out: list[Octets]) -> None:
        """Append a credit frame for processed bytes, if they are many or a second has passed."""
        taken = self._intake.received + self._packet_reader.received - self._credit_told
        is_due = taken >= CREDIT_BYTES or (taken and self._is_credit_due)
        if is_due and not (self._held or self._host.backpressure.active):
            self._is_credit_due = False
            self._credit_told += taken
            self._packet_reader.most = self._packet_reader.received + CREDIT_BYTES
            credit = link_pb2.Credit(consumed=self._credit_told)
            out.append(encode_frame(LinkFrame(credit=credit)))

    def check(self) -> None:
        """State what of the link is taken, credited and delivered; after the end of a turn."""
        if self._is_lost or self._is_over or self.peer is None or self.peer.port is not self:
            return
        received = self._intake.received + self._packet_reader.received
        ordered(self, 20, "credit told <= received", 0, self._credit_told, received)
        ordered(self, 6, "reached <= delivered", self._reached, self._authority.delivered)
        self._intake.check()
        self._deliveries.check()

    @property
    def may_speak(self) -> bool:
        """True if the edge has sent its Hello."""
        return self._has_hello

    def beat(self) -> None:
        """Report credit and position of an edge with little traffic, as a second has passed."""
        self._is_credit_due = True
        self._host.mark_dirty(self)
        reached = self._authority.delivered
        if self.peer is not None and reached != self._reached and not self._is_over:
            self._reached = reached
            self._enqueue_frame(LinkFrame(reached=link_pb2.Reached(offset=reached)))

    def on_disconnect(self) -> None:
        """Disconnect the edge and discard held publishes, which were not accepted."""
        self._is_lost = True
        self._held.clear()
        self._answers.close()
        self._host.backpressure.forget(self)
        if self.peer is not None:
            self._authority.reception.disconnect(self.peer, self)
            self._host.groups.lose(self)

    # from the coordinators of groups (MemberPort)

    @property
    def edge_name(self) -> str:
        """Return the name of the edge."""
        assert self.peer is not None
        return self.peer.edge

    def lend(
        self,
        group: str,
        part: JournalId,
        offsets: Sequence[int],
        messages: Sequence[Message],
        *,
        is_again: bool,
    ) -> None:
        """Lend messages, each to one member of the group."""
        self._deliveries.lend(group, part, offsets, messages, is_again=is_again)
        self._host.mark_dirty(self)

    def send_run(self, group: str, run: Run) -> None:
        """Send messages of QoS 0, each to one member of the group."""
        if self._host.backpressure.is_slow(self) or not self._deliveries.send_run(group, run):
            self._host.counters.add("link.dropped.qos0", run.count)
        else:
            self._host.mark_dirty(self)

    def confirm(self, group: str, pending: Collection[str]) -> None:
        """Confirm the group's subscription."""
        confirmed = link_pb2.GroupConfirmed(group=group, pending=pending)
        self._enqueue_frame(LinkFrame(group_confirmed=confirmed))

    def confirm_report(self, group: str, request: int) -> None:
        """Confirm that a report is durable."""
        stored = link_pb2.GroupReportStored(group=group, request=request)
        self._enqueue_frame(LinkFrame(group_report_stored=stored))

    # from the authority (EdgePort)

    def deliver(self, record: Record) -> None:
        """Deliver a live message."""
        self._deliver(record, record.message.qos, 1)

    def deliver_runs(self, runs: list[Run]) -> None:
        """Deliver many live messages."""
        for run in runs:
            self._deliver(run, run.qos, run.count)

    def sender(self) -> Sender | None:
        """Return the sender for immediate QoS 0."""
        is_late = self._is_over or self._is_lost or self._host.backpressure.is_slow(self)
        return None if is_late else self._deliveries.sender()

    def _deliver(self, item: Record | Run, qos: int, count: int) -> None:
        if self._is_over:
            return
        deliveries = self._deliveries
        is_slow = not qos and self._host.backpressure.is_slow(self)
        if is_slow or not deliveries.live(item):
            self._host.counters.add("link.dropped.qos0", count)
            return
        self._host.mark_dirty(self)
        # A catch-up from the journal queues no live messages in memory, so publishers need not
        # wait.
        if deliveries.queued > HIGH_MARK and not deliveries.is_reading:
            has_drained = deliveries.consumed > 0
            self._host.backpressure.raise_(
                self, self._left, pace=CREDIT_BYTES, has_drained=has_drained
            )

    def _left(self) -> int:
        return -self._deliveries.consumed

    def confirm_interest(self, request: int, _: int, retained: RetainedQuery | None) -> None:
        """Answer an interest when its retained messages are gathered."""
        self._answers.enqueue(request, retained)

    def _on_gathered(self, request: int, retained: RetainedCollection | None) -> None:
        if not (self._is_lost or self._is_over):
            count = 0 if retained is None else len(retained)
            answer = link_pb2.InterestAnswer(
                request=request, offset=self._authority.delivered, retained=count
            )
            self._enqueue_frame(LinkFrame(answer=answer), request, retained)

    def announce_cut(self, cut: ZoneCut) -> None:
        """Announce that another node serves this apex from here on."""
        self._enqueue_frame(LinkFrame(cut=cut_to_wire(cut)))

    def announce_forgotten_cut(self, cut: ZoneCut) -> None:
        """Announce that another node has served this apex for long."""
        frame = LinkFrame(cut=cut_to_wire(cut))
        frame.cut.found = True
        self._enqueue_frame(frame)

    def announce_end(self, apex: str, epoch: int, offset: int | None = None) -> None:
        """Announce the end of a delegation; behind the zone's own end, nothing more is sent."""
        if self._is_over:
            return
        self._is_over = apex == self._authority.apex
        is_reclaimed = offset is not None
        gone = types_pb2.Gone(apex=apex, epoch=epoch, offset=offset, reclaimed=is_reclaimed)
        self._enqueue_frame(LinkFrame(gone=gone))

    def unpark(self) -> None:
        """Let the edge retry parked publishes: a fence was lifted or became a cut."""
        self._intake.unpark()

    def close(self, reason: str) -> None:
        """Close the link; its further bytes are ignored."""
        self._is_lost = True
        self._close(reason)

    # internal: frames from the edge

    def _must_hold(self, item: LinkFrame | Publish | Run) -> bool:
        if self.peer is None:
            return False
        if self._host.backpressure.active:
            return True
        # QoS 0 does not wait for the disk; its order behind held publishes holds all the same.
        is_kept = not isinstance(item, LinkFrame) and item.qos > 0
        return is_kept and self._host.is_disk_short

    def _is_publishing(self, item: LinkFrame | Publish | Run) -> bool:
        return not isinstance(item, LinkFrame) or item.WhichOneof("kind") in _PUBLISHING

    def _on_item(self, item: LinkFrame | Publish | Run) -> None:
        if isinstance(item, LinkFrame):
            try:
                self._on_frame(item)
            except PeerError as error:
                raise link_error(error) from error
            return
        if isinstance(item, Run):
            self._intake.on_run(item)
        else:
            self._intake.on_publish(item)

    def _on_frame(self, frame: LinkFrame) -> None:
        kind = frame.WhichOneof("kind")
        if kind not in ("batch", "heartbeat"):  # a batch's numbers are checked with the batch
            check(frame)
        if kind == "hello":
            self._on_hello(frame.hello)
            return
        peer = self.peer
        if peer is None:
            if kind == "heartbeat" and self._has_hello:
                return  # its Hello waits for the disk
            raise LinkError("the first frame of a link is Hello")
        match kind:
            case "batch":
                self._intake.on_batch(frame.batch)
            case "open_stream":
                self._intake.on_open_stream(frame.open_stream, peer.edge)
            case "ask":
                self._on_ask(frame.ask)
            case "restart":
                self._intake.on_restart(frame.restart)
            case "interest":
                self._on_interest(peer, frame.interest)
            case "sync":
                self._on_sync(peer, frame.sync)
            case "claimed":
                self._authority.reception.on_claimed(peer, frame.claimed.apexes)
            case "position":
                self._deliveries.on_consumed(frame.position.consumed)
            case "low_water":
                kept = {JournalId(k.zone, k.epoch): k.offset for k in frame.low_water.kept}
                answer = partial(self._on_low_water_stored, frame.low_water.request)
                holders = holders_from_wire(frame.low_water)
                self._authority.reception.set_low_water(peer, kept, answer, holders)
            case "group_report":
                check_groups((frame.group_report.group,))
                report = group_report_from_wire(frame.group_report)
                self._host.groups.report(self, frame.group_report.group, report)
            case "heartbeat":
                pass
            case None:
                # A newer edge may send frames that this node does not know; refusing them would
                # break the link.
                self._host.counters.add("link.unknown_frame")
            case _:
                raise LinkError(f"an edge does not say {kind}")

    def _on_low_water_stored(self, request: int) -> None:
        if request:
            kept = link_pb2.LowWaterKept(request=request)
            self._send(encode_frame(LinkFrame(low_water_kept=kept)))

    def _on_interest(self, peer: EdgePeer, interest: link_pb2.InterestRequest) -> None:
        reception = self._authority.reception
        if interest.remove:
            reception.remove_interest(peer, interest.filter)
            return
        _check_filters((interest.filter,))
        peer.wants_publishers = peer.wants_publishers or interest.publishers
        reception.add_interest(peer, interest.filter, interest.request, interest.retained)

    def _on_sync(self, peer: EdgePeer, sync: link_pb2.InterestSync) -> None:
        _check_filters(sync.filters)
        self._check_claims(sync.claims)
        claims = claims_from_wire(sync.claims, self._authority.epoch)
        catch_up = self._authority.reception.sync(peer, sync.filters, claims)
        self._catch_up(catch_up)
        if catch_up.completes:
            claimed = link_pb2.Claimed(apexes=catch_up.completes)
            self._enqueue_frame(LinkFrame(claimed=claimed))

    def _on_hello(self, hello: link_pb2.Hello) -> None:
        if self._has_hello:
            raise LinkError("a link has one Hello")
        if not hello.stream:
            raise LinkError("a Hello names its stream")
        check_version(hello.version)
        opened = self._host.redeem(hello.token, hello.edge, hello.incarnation)
        if opened is None:
            raise LinkError("the token is not valid; OpenLink gives one for each link")
        authority = self._authority
        if not authority.serving:
            raise LinkError("the zone went after the token was given; OpenLink says where to")
        if hello.zone != authority.apex:
            raise LinkError(f"zone {hello.zone!r} is not served here")
        _check_filters(hello.filters)
        self._check_claims(hello.claims)
        greeting = EdgeGreeting(
            edge=hello.edge,
            incarnation=hello.incarnation,
            filters=tuple(hello.filters),
            stream=hello.stream,
            claims=claims_from_wire(hello.claims, authority.epoch),
            position=self._resume_at(hello),
            in_doubt=tuple(key_from_mark(mark) for mark in hello.in_doubt),
            opened=opened,
            wants_publishers=hello.publishers,
        )
        self._has_hello = True
        self._deliveries.set_properties(hello.reads_properties)
        self._reader.trust()
        mark = (hello.edge, hello.incarnation, authority.apex, hello.stream)
        self._mark = mark
        self._intake.open(hello.stream, mark, has_gaps=False)
        # The marks in Welcome acknowledge publishes, so Welcome must wait until these are durable.
        authority.reception.expect(greeting)
        authority.in_order(lambda: self._accept(greeting, hello.in_doubt))

    def _accept(self, greeting: EdgeGreeting, in_doubt: Iterable[types_pb2.Mark]) -> None:
        authority = self._authority
        if self._is_lost:
            return
        # Not before: of many edges that wait for the disk, each would be the last one.
        if not authority.reception.may_come((greeting.edge,)):
            self.close(MANY_EDGES)
            return
        # The apexes that came back while the edge was away; no other owner will deliver their
        # records to the edge.
        back = authority.reception.returned(greeting)
        inherited = tuple(one.apex for one in back if one.is_inherited)
        accepted = authority.reception.connect(attrs.evolve(greeting, returned=inherited), self)
        if accepted is None:
            self._host.counters.add("link.refused")
            self._close(f"a newer link of edge {greeting.edge!r} is known")
            return
        self.peer, caught_up = accepted
        # After `connect`, which has discarded marks that the edge no longer needs: otherwise an
        # edge at the limit could not return.
        if not authority.reception.begin(self._mark):
            self.close(MANY_MARKS)
            return
        self._deliveries.peer = self.peer
        self._host.groups.on_edge(self)
        self._welcome(in_doubt)
        for one in back:
            gone = types_pb2.Gone(
                apex=one.apex,
                epoch=one.epoch,
                offset=one.offset,
                reclaimed=not one.is_inherited,
            )
            self._enqueue_frame(LinkFrame(gone=gone))
        self._catch_up(caught_up)
        online = link_pb2.Online(
            cuts=[cut_to_wire(cut) for cut in authority.cuts()],
            offset=authority.delivered,
            missed=caught_up.missed,
        )
        self._enqueue_frame(LinkFrame(online=online))

    def _check_claims(self, claims: Iterable[link_pb2.Claim]) -> None:
        for claim in claims:
            if not is_within(claim.apex, self._authority.apex):
                raise LinkError(f"zone {self._authority.apex!r} has no {claim.apex[:100]!r}")

    def _resume_at(self, hello: link_pb2.Hello) -> int | None:
        if not hello.epoch:
            return None  # the edge was never here
        if hello.epoch == self._authority.epoch:
            return hello.position
        # The edge knows an earlier epoch, so all records of the present one are new.
        return 0

    def _welcome(self, in_doubt: Iterable[types_pb2.Mark]) -> None:
        authority = self._authority
        welcome = link_pb2.Welcome(
            version=LINK_VERSION,
            zone=authority.apex,
            epoch=authority.epoch,
            credit=WINDOW,
            marks=self._known_marks(in_doubt),
            answers_low_water=True,
            reads_properties=True,
        )
        self._write(encode_frame(LinkFrame(welcome=welcome)))

    def _on_ask(self, ask: link_pb2.Ask) -> None:
        # The marks acknowledge publishes, as in a Welcome: they must be durable first.
        self._authority.in_order(lambda: self._send(self._marks(ask)))

    def _marks(self, ask: link_pb2.Ask) -> bytes:
        marks = link_pb2.Marks(request=ask.request, marks=self._known_marks(ask.in_doubt))
        return encode_frame(LinkFrame(marks=marks))

    def _known_marks(self, asked: Iterable[types_pb2.Mark]) -> list[types_pb2.Mark]:
        keys = [key_from_mark(mark) for mark in asked]
        return [mark_to_wire(key, self._authority.marks.get(key, 0)) for key in keys]

    def _send(self, data: bytes) -> None:
        """Send unless the link is lost: deferred sends may come later than its end."""
        if not self._is_lost:
            self._write(data)

    # internal: the delivery stream

    def _catch_up(self, catch_up: EdgeCatchUp) -> None:
        self._deliveries.catch_up(catch_up)
        self._host.mark_dirty(self)

    def _enqueue_frame(
        self, frame: LinkFrame, request: int = 0, retained: RetainedCollection | None = None
    ) -> None:
        self._deliveries.enqueue_frame(frame, request, retained)
        self._host.mark_dirty(self)


def _check_filters(filters: Iterable[str]) -> None:
    try:
        check_filters(filters)
    except PeerError as error:
        raise LinkError(f"not a topic filter: {error}") from error
