"""
The delivery stream from an owner, as an edge takes it off a link.

Messages, and everything whose place among them matters, are taken in the order they came in.
Deliveries wait while this node's sessions do not keep up (see `pressure`). At most a window's worth
waits, since no credit is returned for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from txbroker.core import LinkReader, Run
from txbroker.delegation.peer_checks import MOST_NUMBER, check_groups
from txbroker.edge.routing.route import Route
from txbroker.edge.routing.zone_claims import StreamPosition
from txbroker.edge.sessions.edge import Edge
from txbroker.link.batch_headers import (
    CREDIT_BYTES,
    RunLengths,
    check_clients,
    name_publishers,
)
from txbroker.link.frames import LinkError
from txbroker.model.invariant import ordered
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.share_name import shared_subscription
from txbroker.model.topics import apexes_around, is_sys, is_within, matches
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import Publish
from txbroker.runtime.backpressure import Backpressure
from txbroker.v1 import link_pb2
from txbroker.v1.link_pb2 import LinkFrame

STEPS = 64
"""The most waiting steps of the stream that one turn runs; a run of messages is one step."""


class DeliveryReceiver:
    """
    The delivery stream of one connection; `epoch` is what the owner's Welcome said.

    Invariant: consumed_told <= consumed, so that no credit is given twice.
    """

    def __init__(
        self, edge: Edge, route: Route, backpressure: Backpressure, packet_reader: LinkReader
    ) -> None:
        self.epoch = 0
        self.is_live = False  # Online has arrived, and may still wait for its turn
        self._is_over = False
        self._packet_reader = packet_reader
        packet_reader.may_take, packet_reader.leave = self._may_take, self._deliver_rest
        packet_reader.bailiwick.set(route.apex)
        packet_reader.most = CREDIT_BYTES
        self._edge = edge
        self._route = route
        self._claims_here = route.claims
        self._backpressure = backpressure
        self._kind: link_pb2.Batch.Kind.ValueType = link_pb2.Batch.LIVE
        self.waiting: deque[Callable[[], None]] = deque()
        self._claims: set[str] = set()
        self._offsets: RunLengths | None = None
        self._group = ""
        self._group_part = JournalId("", 0)
        self._is_again = False
        self._count = 0
        self._is_qos0 = False  # of the whole batch
        self._clients: tuple[str, ...] = ()
        self._publishers: RunLengths | None = None
        self._retained_due = 0
        self._request = self._answer_offset = 0
        self._consumed = self._consumed_told = 0

    # from the link's end

    def in_turn(self, step: Callable[[], None]) -> None:
        """Run the stream's next step, now or behind the waiting steps."""
        if self._is_over:
            return
        if self.waiting or self._backpressure.active:
            self.waiting.append(step)
        else:
            step()

    def resume(self) -> bool:
        """Run waiting steps while the sessions keep up; return True if more may run now."""
        for _ in range(STEPS):
            if not self.waiting or self._backpressure.active:
                return False
            self.waiting.popleft()()
        return bool(self.waiting) and not self._backpressure.active

    def collect_credit(self, *, is_due: bool) -> int | None:
        """
        Return the consumed bytes if the owner must hear of them; `is_due`: also of a small amount.
        """
        consumed = self._consumed + self._packet_reader.received
        taken = consumed - self._consumed_told
        if taken < (1 if is_due else CREDIT_BYTES) or self._backpressure.active:
            return None
        self._packet_reader.most = self._packet_reader.received + CREDIT_BYTES
        self._consumed_told = consumed
        return consumed

    def claims(self, apexes: Iterable[str]) -> None:
        """Note claims that were sent to the owner and are not answered."""
        self._claims.update(apexes)

    def end(self) -> None:
        """Discard all further steps, as the zone has ended."""
        self._is_over = True
        self.on_disconnect()

    def on_disconnect(self) -> None:
        """
        Discard the waiting steps, as the connection is lost: the position lies before them, so they
        come again.
        """
        self._packet_reader.is_open = False
        self.waiting.clear()

    def check(self) -> None:
        """State what was consumed and told."""
        consumed = self._consumed + self._packet_reader.received
        ordered(self, 20, "told <= consumed", 0, self._consumed_told, consumed)
        ordered(self, 9, "0 <= retained messages due", 0, self._retained_due)

    # from the owner

    def on_bailiwick(self, frame: LinkFrame) -> None:
        """
        Apply the frame's change of the zone's scope to all deliveries behind the frame.

        The call comes with the frame and not in the frame's turn. The deliveries behind the frame
        are checked before that turn.
        """
        bailiwick = self._packet_reader.bailiwick
        match frame.WhichOneof("kind"):
            case "online":
                self.is_live = True
                for cut in frame.online.cuts:
                    bailiwick.put(cut.apex)
            case "cut":
                bailiwick.put(frame.cut.apex)
            case "gone":
                bailiwick.drop(frame.gone.apex)
            case "claimed":
                self._claims.difference_update(frame.claimed.apexes)

    def on_batch(self, batch: link_pb2.Batch) -> None:
        """Process the header of a batch; raises `LinkError`."""
        if not self.epoch:
            raise LinkError("the first frame from an owner is Welcome")
        self._kind = batch.kind
        if batch.kind == link_pb2.Batch.RETAINED:
            return
        if batch.kind == link_pb2.Batch.GROUP:
            self._on_group_batch(batch)
            return
        if batch.kind == link_pb2.Batch.PUBLISH:
            raise LinkError("an owner sends deliveries")
        if batch.kind == link_pb2.Batch.LIVE and not self.is_live:
            raise LinkError("an owner sends what is live behind its Online")
        if batch.epoch != self.epoch:
            raise LinkError(f"deliveries of epoch {batch.epoch} on a link of {self.epoch}")
        if max(batch.offsets, default=0) >= MOST_NUMBER:
            raise LinkError("a batch has an offset of 2^62 or more")
        self._offsets = RunLengths(batch.offsets, batch.counts, batch.count, ranges=True)
        self._count = batch.count
        self._is_qos0 = list(batch.offsets) == [0]
        has_clients = batch.clients or batch.client
        self._clients = check_clients(batch, self._clients) if has_clients else ()
        self._publishers = None
        if self._clients:
            self._publishers = RunLengths(batch.client, batch.client_counts, batch.count)

    def on_message(self, packet: Publish) -> None:
        """Process the next message of the batch; raises `LinkError`."""
        message = Message(
            packet.topic, packet.payload, packet.qos, packet.retain, properties=packet.properties
        )
        if self._kind == link_pb2.Batch.RETAINED:
            self._check_topic(packet.topic)
            self.in_turn(partial(self._on_retained, message))
            return
        if self._kind == link_pb2.Batch.GROUP:
            self._on_lent([message])
            return
        ((offset, _),) = self._next_offsets(1)
        if self._publishers is not None:
            ((publisher, _),) = self._publishers.consume(1)
            message.client_id = self._clients[publisher]
        self._check_topic(packet.topic, offset)
        self.in_turn(partial(self._on_delivery, message, offset))

    def on_run(self, run: Run) -> None:
        """Process the next run of the batch; raises `LinkError`."""
        if self._kind == link_pb2.Batch.GROUP:
            self._on_group_run(run)
            return
        if self._kind == link_pb2.Batch.RETAINED:
            # History that the zone held: unlike a retained message, it has no RETAIN.
            for message in map(run.message, range(run.count)):
                self._check_topic(message.topic)
                self.in_turn(partial(self._on_retained, message))
            return
        ranges = self._next_offsets(run.count)
        if self._publishers is not None:
            name_publishers(run, self._publishers.consume(run.count), self._clients)
        _set_offsets(run, ranges)
        if len(ranges) == 1:
            is_nameless = self._publishers is None
            if self._is_qos0 and is_nameless and not (run.qos or self._is_over):
                self._packet_reader.is_open = True
                self._packet_reader.know("", "", self._count)
        self.in_turn(partial(self._on_deliveries, run))

    def _next_offsets(self, count: int) -> list[tuple[int, int]]:
        if self._offsets is None:
            raise LinkError("a PUBLISH on a link follows its batch header")
        return self._offsets.consume(count)

    def _on_group_batch(self, batch: link_pb2.Batch) -> None:
        if not self.is_live:
            raise LinkError("an owner lends messages behind its Online")
        if max(batch.offsets, default=0) >= MOST_NUMBER:
            raise LinkError("a batch has an offset of 2^62 or more")
        check_groups((batch.group,))
        self._group, self._is_again = batch.group, batch.again
        self._group_part = JournalId(batch.zone, batch.epoch)
        self._offsets = RunLengths(batch.offsets, batch.counts, batch.count, ranges=True)

    def _on_group_run(self, run: Run) -> None:
        _set_offsets(run, self._next_offsets(run.count))
        self._check_group_topics(set(run.topics()))
        if not run.qos:
            self.in_turn(partial(self._deliver_group_run, self._group, run))
            return
        deliver = partial(
            self._deliver_lent_run, self._group, self._group_part, run, is_again=self._is_again
        )
        self.in_turn(deliver)

    def _deliver_group_run(self, group: str, run: Run) -> None:
        self._consumed += run.size
        self._edge.shared.on_run(self._route, group, run)

    def _deliver_lent_run(self, group: str, part: JournalId, run: Run, *, is_again: bool) -> None:
        self._consumed += run.size
        self._edge.shared.on_lent_run(self._route, group, part, run, is_again=is_again)

    def _on_lent(self, messages: list[Message]) -> None:
        places = [
            LogPosition(self._group_part, first and first + place)
            for first, count in self._next_offsets(len(messages))
            for place in range(count)
        ]
        self._check_group_topics({message.topic for message in messages})
        deliver = partial(self._deliver_lent, self._group, places, messages, self._is_again)
        self.in_turn(deliver)

    def _deliver_lent(
        self, group: str, places: list[LogPosition], messages: list[Message], is_again: bool
    ) -> None:
        self._consumed += sum(message.size for message in messages)
        shared = self._edge.shared
        shared.on_lent(self._route, group, places, messages, is_again=is_again)

    def _check_group_topics(self, topics: Iterable[str]) -> None:
        """Refuse topics that do not match the group's filter; raises `LinkError`."""
        found = shared_subscription(self._group)
        assert found is not None
        for topic in topics:
            if not matches(found[1], topic):
                raise LinkError(f"topic {topic[:100]!r} is not of group {self._group[:100]!r}")

    def on_answer(self, answer: link_pb2.InterestAnswer) -> None:
        """Note an answer to an interest: the interest holds after its retained messages."""
        if self._retained_due:
            raise LinkError("an answer has as many retained messages as it says")
        self._request, self._answer_offset = answer.request, answer.offset
        self._retained_due = answer.retained
        self._finish_answer()

    # from the packet reader, for batches whose header came before

    def _may_take(self) -> bool:
        """True if live messages of QoS 0 may go to clients at once."""
        return not (self.waiting or self._backpressure.active or self._claims_here.read)

    def _deliver_rest(self, run: Run, left: list[tuple[Session, range]]) -> None:
        """Deliver the run to the sessions that could not get it directly."""
        self._edge.delivery.deliver_left(run, self._route.part, left)

    # internal

    def _check_topic(self, topic: str, offset: int = 0) -> None:
        """
        Refuse a topic outside the owner's scope; raises `LinkError`.

        The packet reader makes no run of such a topic. Claimed records come from the owner's
        journal, and may lie behind a cut that the owner announced meanwhile.
        """
        if is_sys(topic) or not (
            self._packet_reader.bailiwick.has(topic) or self._is_claimed(topic, offset)
        ):
            raise LinkError(f"topic {topic[:100]!r} is not of zone {self._route.apex!r}")

    def _is_claimed(self, topic: str, offset: int) -> bool:
        """True if the topic is claimed, and no cut's new owner begins before the offset."""
        if self._kind != link_pb2.Batch.CATCH_UP:
            return False
        part, zones = JournalId(self._route.apex, self.epoch), self._edge.zones
        for apex in apexes_around(topic):
            below = zones.get(apex)
            end = None if below is None else below.start_offset(part)
            if end is not None and offset > end:
                return False
        return any(is_within(topic, apex) for apex in self._claims)

    def _on_delivery(self, message: Message, offset: int) -> None:
        self._consumed += message.size
        if offset and self._claims_here.claiming:
            position = StreamPosition(epoch=self.epoch, offset=offset)
            self._claims_here.note_processed(message.topic, position)
        self._edge.on_message(self._route, message, offset)

    def _on_deliveries(self, run: Run) -> None:
        self._consumed += run.size
        if run.qos and self._claims_here.claiming:
            for index, topic in enumerate(run.topics()):
                position = StreamPosition(epoch=self.epoch, offset=run.offset(index))
                self._claims_here.note_processed(topic, position)
        self._edge.on_runs(self._route, [run])

    def _on_retained(self, message: Message) -> None:
        self._consumed += message.size
        if not self._retained_due:
            raise LinkError("a retained message belongs to an answer")
        self._retained_due -= 1
        self._edge.interests.on_retained(self._route, self._request, message)
        self._finish_answer()

    def _finish_answer(self) -> None:
        if not self._retained_due:
            self._route.skip_to(self._answer_offset)
            self._edge.interests.on_answer(self._route, self._request, self._answer_offset, ())


def _set_offsets(run: Run, ranges: list[tuple[int, int]]) -> None:
    """Set where the messages of a run lie: first offsets, and how many follow from each on."""
    if len(ranges) == 1:
        run.first = ranges[0][0]
    else:
        run.offsets = [
            offset and offset + place for offset, count in ranges for place in range(count)
        ]
