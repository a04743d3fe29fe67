"""
An edge as its owner's authority and the coordinators of groups reach it: over the edge's link.

The deliveries of a port wait in `DeliverySender` until the edge has credit for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol

from txbroker.authority.authority import Authority
from txbroker.authority.edge_peer import EdgeCatchUp, EdgePeer, OpenedLink
from txbroker.authority.retained_messages import RetainedCollection, RetainedQuery
from txbroker.core import LinkReader, Run, Sender
from txbroker.edge.groups.group_coordinators import GroupCoordinators
from txbroker.journal.zone_journal import Record
from txbroker.link.batch_headers import CREDIT_BYTES
from txbroker.link.delivery_sender import DeliverySender
from txbroker.link.frames import (
    Write,
)
from txbroker.link.interest_answers import InterestAnswers
from txbroker.link.publish_receiver import PublishReceiver
from txbroker.model.counters import Counters
from txbroker.model.log_position import JournalId
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.wire.message import Message
from txbroker.rpc.link_convert import (
    cut_to_wire,
)
from txbroker.runtime.backpressure import Backpressure
from txbroker.runtime.fair_shares import ShareWorker
from txbroker.runtime.flush_queue import Flushable
from txbroker.v1 import link_pb2, types_pb2
from txbroker.v1.link_pb2 import LinkFrame

HIGH_MARK = 1024 * 1024

LOW_MARK = 256 * 1024
"""
Queued bytes of live messages for one edge: publishers pause at the high mark and resume at the low
mark.
"""


class LinkHost(Protocol):
    """The node, as the ends of its links see it."""

    authority: Authority
    groups: GroupCoordinators
    backpressure: Backpressure
    counters: Counters

    is_disk_short: bool
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


class LinkPort(ABC):
    """The edge's `EdgePort` and `MemberPort`; `peer` is None before its Hello was accepted."""

    def __init__(
        self,
        host: LinkHost,
        packet_reader: LinkReader,
        *,
        write: Write,
        close: Callable[[str], None],
    ) -> None:
        self.peer: EdgePeer | None = None
        self._host = host
        self._authority = host.authority
        self._write = write
        self._close = close
        self.packet_writer = host.authority.router.make_packet_writer()
        self._deliveries = DeliverySender(
            host.authority, host.counters, self.packet_writer, partial(host.mark_next, self)
        )
        self._intake = PublishReceiver(
            host.authority,
            host.counters,
            packet_reader,
            self._send,
            partial(host.mark_dirty, self),
        )
        self._answers = InterestAnswers(
            tell=self._on_gathered,
            left=lambda: self._deliveries.retained,
            serve=host.serve,
            is_over=host.is_over,
            fail=close,
        )
        self._is_lost = self._is_over = self._has_raised = False

    @abstractmethod
    def flush(self) -> None:
        """Send due acknowledgements and credit, and deliveries as far as the edge's credit goes."""

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

    def lend_run(self, group: str, part: JournalId, run: Run) -> None:
        """Lend messages of QoS 1, each to one member of the group."""
        self._deliveries.lend_run(group, part, run)
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

    def confirm_interest(self, request: int, _: int, retained: RetainedQuery | None) -> None:
        """Answer an interest when its retained messages are gathered."""
        self._answers.enqueue(request, retained)

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

    # internal

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
            self._has_raised = True
            self._host.backpressure.raise_(
                self, self._left, pace=CREDIT_BYTES, has_drained=has_drained
            )

    def _lower_if_drained(self) -> None:
        """Let publishers resume once the edge has taken most of its deliveries."""
        if self._deliveries.queued < LOW_MARK:
            self._has_raised = False
            self._host.backpressure.lower(self)

    def _left(self) -> int:
        return -self._deliveries.consumed

    def _on_gathered(self, request: int, retained: RetainedCollection | None) -> None:
        if not (self._is_lost or self._is_over):
            count = 0 if retained is None else len(retained)
            answer = link_pb2.InterestAnswer(
                request=request, offset=self._authority.delivered, retained=count
            )
            self._enqueue_frame(LinkFrame(answer=answer), request, retained)

    def _catch_up(self, catch_up: EdgeCatchUp) -> None:
        self._deliveries.catch_up(catch_up)
        self._host.mark_dirty(self)

    def _enqueue_frame(
        self, frame: LinkFrame, request: int = 0, retained: RetainedCollection | None = None
    ) -> None:
        self._deliveries.enqueue_frame(frame, request, retained)
        self._host.mark_dirty(self)

    def _send(self, data: bytes) -> None:
        """Send unless the link is lost: deferred sends may come later than its end."""
        if not self._is_lost:
            self._write(data)
