"""
A zone at its authoritative node.

The authority decides the order of the zone's messages (their offsets), and which messages are
retained. The authority decides when a message may be delivered and acknowledged: QoS 1 and 2 when
they are durable, QoS 0 at once (protocol rules 3 and 5). Other modules decide the rest. The
`EdgeRegistry` decides how an edge comes and with which interest. `SubtreeTransfer` decides how
parts of the zone go and come back. The `ZoneScope` decides whether a topic is the zone's now. An
`EdgePort` decides how a copy travels, the `ZoneJournal` how a message is stored. The delegation
table and the parent decide who may own the zone, and the edge what its client is told.

Deliveries to one edge form one stream. Everything whose place among the deliveries matters travels
in that stream: answers to interest requests with the retained messages (rule 9), zone cuts, and the
end of the zone (rule 13). A message taken here goes to edges and nowhere else: that is why no loop
can form.

A record of QoS 1 or 2 passes five marks in order: given an offset, written, durable, delivered,
acknowledged. The journal moves the first three, the `CommitQueue` the fourth, a link the last.
Each mark stays at or below the one before it, at the end of every turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from txbroker.authority.accepted_wills import AcceptedWills
from txbroker.authority.commit_queue import CommitQueue, Receipt, Taken, by_source
from txbroker.authority.edge_peer import TAKEN, EdgePeer, EdgePort, PublishVerdict
from txbroker.authority.edge_peers import EdgePeers
from txbroker.authority.edge_registry import EdgeRegistry
from txbroker.authority.expiry_rules import ExpiryRules
from txbroker.authority.handover_source import HandoverSource
from txbroker.authority.held_history import HeldHistory
from txbroker.authority.retained_messages import RetainedMessages
from txbroker.authority.subtree_transfer import SubtreeTransfer
from txbroker.authority.zone_scope import ZoneScope
from txbroker.core import Router, Run
from txbroker.delegation.delegation_table import DelegationTable
from txbroker.delegation.zone_snapshot import MarkKey, ReceivedZone, will_of_mark
from txbroker.journal.zone_journal import Record, Unclaimed, ZoneJournal
from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.invariant import holds, ordered
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.topics import is_below
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.wire.message import Message
from txbroker.runtime.flush_queue import run_all

MOST_RETAINED = (1_000_000, 4 * 1024**3)
"""Default of `limits.retained`: the most retained messages, and the most bytes of them."""


class Authority:
    """
    The zone `apex` at this node; not serving until it is opened.

    Invariant: delivered <= durable <= offset of the journal, and `offset` is at most the latter.
    """

    def __init__(
        self, apex: str, table: DelegationTable, journal: ZoneJournal, router: Router
    ) -> None:
        self.apex = apex
        self.epoch = 0
        self.router = router
        self.serving = False
        self.retained = RetainedMessages()
        self.most_retained = MOST_RETAINED
        self.on_not_retained: Callable[[], None] = lambda: None
        self.marks: dict[MarkKey, int] = {}
        self.unclaimed_qos0 = 0
        self.peers = EdgePeers(router, table.reclaimed_at)
        self.offset = 0
        self.held = HeldHistory(journal, self.peers, lambda: self.delivered)
        self._table = table
        self._journal = journal
        self._settling = CommitQueue()
        self.wills = AcceptedWills(self.marks)
        self.expiry = ExpiryRules(router)
        self._zone_scope = ZoneScope(apex, table, router)
        self._ours = self._zone_scope.ours
        self.reception = EdgeRegistry(self, table, journal, self._zone_scope)
        self.subtrees = SubtreeTransfer(self, table, journal, self._zone_scope)
        self.source: list[HandoverSource] = []

    # from the edges: publishes

    def publish(
        self,
        message: Message,
        key: MarkKey | None = None,
        sequence: int = 0,
        receipt: Receipt | None = None,
    ) -> PublishVerdict:
        """
        Give the message an offset and append it; return the verdict.

        A message of QoS 1 or 2 is delivered once it is durable. Then the source hears of the
        `receipt` of a TAKEN message. `key` and `sequence` are the origin id of a message from
        another node; QoS 0 has none. A will that was accepted before is TAKEN again without a
        second record: its receipt waits for the first one.
        """
        topic = message.topic
        if topic not in self._ours:
            verdict = (
                self._zone_scope.judge(topic) if self.serving else PublishVerdict.NOT_AUTHORITATIVE
            )
            if verdict is not TAKEN:
                return verdict
        if message.will is not None and not self.wills.start(message):
            if receipt is not None:
                self._settling.add_receipt(receipt)
            return TAKEN
        if self.expiry:
            message = self.expiry.limit(message)
        if not message.qos:
            self.offset = self._journal.append(message, None, 0) or self.offset
            if message.will is not None:
                self.wills.finish(message)
            self._deliver(Record(0, message))
            return TAKEN
        offset = self.offset = self._journal.append(message, key, sequence)
        self._settling.add(Record(offset, message), key, sequence, receipt)
        if self._journal.durable >= offset:
            self.on_durable(offset)
        return TAKEN

    def publish_run(
        self,
        run: Run,
        key: MarkKey | None = None,
        sequence: int = 0,
        receipt: Receipt | None = None,
    ) -> bool:
        """
        Append all messages of the run in order, or none of them.

        Return False if some message must be refused or parked. `key`, `sequence`, `receipt`: see
        `publish`; `sequence` belongs to the last message.
        """
        if not self.serving or self.router.accepted_count(run, TAKEN) < run.count:
            return False
        if run.qos:
            self.append_run(run, key, sequence, receipt)
        else:
            self.append_qos0((run,))
            self._deliver_run(run)
        return True

    def append_run(
        self,
        run: Run,
        key: MarkKey | None = None,
        sequence: int = 0,
        receipt: Receipt | None = None,
    ) -> None:
        """
        Append a run of QoS 1 and 2 as `publish_run` does; the caller knows that the zone owns all
        topics.
        """
        first = run.first = self._journal.append_run(run, key, sequence)
        last = self.offset = first + run.count - 1
        self._settling.add_run(run, last, key, sequence, receipt)
        if self._journal.durable >= last:
            self.on_durable(last)

    @property
    def stores_qos0(self) -> bool:
        """True if messages of QoS 0 become records too."""
        return self._journal.stores_qos0

    def append_qos0(self, runs: Sequence[Run]) -> None:
        """Append runs of QoS 0 if the journal stores QoS 0; the caller delivers them at once."""
        self.offset = self._journal.append_qos0(runs) or self.offset

    @property
    def durable_at(self) -> int:
        """Return the offset at which all accepted publishes are durable."""
        return self._settling.last

    def cut_for(self, topic: str) -> ZoneCut | None:
        """Return the cut of a refused topic; None if the zone itself is another node's."""
        return self._table.lookup(topic) if self.serving else None

    def has_forgotten(self, zone: str) -> bool:
        """
        True if streams were opened for a zone here of which this node has never heard.

        Its table is from a lost or an older disk. Another node may own the zone.
        """
        return is_below(zone, self.apex) and not self._table.epoch_of(zone)

    def cuts(self) -> tuple[ZoneCut, ...]:
        """Return every cut of the zone."""
        return self._table.cuts()

    # from the store

    @property
    def delivered(self) -> int:
        """
        Return the offset of the last durable QoS 1 or 2 record that was delivered to the edges.

        A QoS 0 record does not count. No edge waits for it, and after a crash another record may
        have its offset. A reported position must not exceed the offsets that survive a crash.
        """
        return self._settling.through

    @property
    def predecessor(self) -> LogPosition | None:
        """Return the position at which the zone's journal continues an earlier part."""
        return self._journal.predecessor

    @property
    def transitions(self) -> tuple[EpochTransition, ...]:
        """Return the last epoch transitions of the zone's topics, in order."""
        return self._table.passages()

    @property
    def is_settled(self) -> bool:
        """True if all accepted publishes are durable and delivered."""
        return self._settling.is_empty

    def on_durable(self, offset: int) -> None:
        """Deliver the records up to the durable `offset`, then tell those who published them."""
        settled: list[Taken] = []
        try:
            while taken := self._settling.next(offset):
                settled += taken
                self._settle(taken)
        finally:
            told = by_source(settled)
            run_all([partial(source.on_settled, tickets) for source, tickets in told.items()])

    def _settle(self, taken: list[Taken]) -> None:
        runs: list[Run] = []
        for _, what, key, sequence, _ in taken:
            if key is not None:
                self.marks[key] = sequence
            if isinstance(what, Run):
                runs.append(what)
            elif what is None:
                continue
            elif not isinstance(what, Record):
                what()
            else:
                if what.message.will is not None:
                    self.wills.finish(what.message)
                self._deliver(what)
        if runs:
            self._deliver_runs(runs)

    def _deliver(self, record: Record) -> None:
        message = record.message
        if message.retain:
            self._retain(record)
        for peer in self.peers.receivers(message.topic):
            self._deliver_to(peer, record)

    def _deliver_runs(self, runs: list[Run]) -> None:
        sole: EdgePeer | None = self.router.sole_receiver(runs)
        if sole is None or sole.unclaimed:
            for run in runs:
                self._deliver_run(run)
        elif sole.port is not None:
            sole.port.deliver_runs(runs)

    def _deliver_run(self, run: Run) -> None:
        for peers, part in self.peers.split(run):
            for peer in peers:
                if peer.unclaimed:
                    for index in range(part.count):
                        self._deliver_to(peer, Record(part.offset(index), part.message(index)))
                elif peer.port is not None:
                    peer.port.deliver_runs([part])

    def _deliver_to(self, peer: EdgePeer, record: Record) -> None:
        if peer.unclaimed and peer.is_waiting_for(record):
            self.unclaimed_qos0 += not record.message.qos
        elif peer.port is not None:
            peer.port.deliver(record)

    def _retain(self, record: Record) -> None:
        message = record.message
        topic = message.topic
        if not message.qos:
            self._settling.overtake(message)
        elif self._settling.is_overtaken(record):
            return
        if message.payload and self._has_room_for(message):
            self.retained.set(message)  # [MQTT-3.3.1-5]
        elif message.payload:
            # Without room for the new value, the old value must go: another value is the topic's
            # last one.
            self.on_not_retained()
            self.retained.remove(topic)
        else:
            self.retained.remove(topic)  # [MQTT-3.3.1-10]
        self._journal.mark_retained_changed((topic,))
        for source in self.source:
            source.mark_changed(topic)

    def expire_retained(self) -> None:
        """Remove the retained messages whose interval has passed; called now and then."""
        topics = self.retained.take_expired()
        self._journal.mark_retained_changed(topics)
        for topic in topics:
            for source in self.source:
                source.mark_changed(topic)

    def _has_room_for(self, message: Message) -> bool:
        """True if the zone may retain the message in place of the topic's earlier value."""
        messages, size = self.most_retained
        before = self.retained.size_of(message.topic)
        new = len(message.topic.encode()) + len(message.payload)
        if before is None:
            is_few = len(self.retained) < messages
            return is_few and self.retained.size + new <= size
        return new <= before or self.retained.size + new - before <= size

    def in_order(self, action: Callable[[], None]) -> None:
        """Run the action when all publishes accepted before it are durable and delivered."""
        self._settling.in_order(action)

    # from whoever looks for broken rules

    def check(self) -> None:
        """State what the zone keeps of the rules; after the end of a turn."""
        self.check_order()
        holds(self, 11, "a zone is served at an epoch", self.epoch or not self.serving, self.apex)
        self.peers.check()

    def check_order(self) -> None:
        """State the order of the zone's offsets, which takes little time."""
        durable, given = self._journal.durable, self._journal.offset
        ordered(self, 3, "delivered <= durable <= given", self.delivered, durable, given)
        ordered(self, 3, "last taken <= last given", self._settling.last, self.offset, given)
        self._settling.check(durable)

    # from the control plane, which decides on the zone

    def announce(self, cut: ZoneCut) -> None:
        """Announce a cut to every connected edge, in its delivery stream."""
        self._zone_scope.judge_anew()
        self.in_order(lambda: self._notify(lambda port: port.announce_cut(cut)))

    def announce_found(self, cut: ZoneCut) -> None:
        """
        Announce a cut that this node had forgotten: the cut's owner has inherited no edge from
        here.
        """
        self._zone_scope.judge_anew()
        self.in_order(lambda: self._notify(lambda port: port.announce_forgotten_cut(cut)))

    def announce_end(self, apex: str, epoch: int, offset: int | None = None) -> None:
        """Announce the end of a delegation or of the zone itself to every connected edge."""
        self._zone_scope.judge_anew()
        self.in_order(lambda: self._notify(lambda port: port.announce_end(apex, epoch, offset)))

    def suspend(self) -> None:
        """
        Accept no more publishes, as the zone may be another node's; stored records stay.

        Edges hear of the end behind all accepted records. An edge that still reads records hears of
        the end behind them too.
        """
        self.serving = False
        self.announce_end(self.apex, self.epoch)

    def close(self) -> None:
        """Announce the end after a handover, and discard the retained messages."""
        self.suspend()
        self.in_order(lambda: self.discard_retained(self.apex))

    def open(self, epoch: int, received_zone: ReceivedZone | None = None) -> None:
        """Serve the zone from now on; a new epoch begins with new offsets."""
        if epoch != self.epoch:
            self.serving = False
            self.peers.forget_all("the zone begins a new epoch")
            self._recover(epoch, received_zone)
        self.epoch = epoch
        self.serving = True
        self._zone_scope.judge_anew()
        if received_zone is not None:
            self.absorb(self.apex, received_zone)

    def discard_retained(self, apex: str) -> None:
        """Discard the retained messages of a subtree, which are its new owner's."""
        topics = list(self.retained.topics(apex))
        self.retained.discard_within(apex)
        self._journal.mark_retained_changed(topics)

    def absorb(self, apex: str, received_zone: ReceivedZone) -> None:
        """Add the state of a subtree that another node served until now."""
        self.retained.discard_within(apex)
        for message in received_zone.retained.values():
            self.retained.set(message)
        news = self._add_marks(received_zone.marks)
        for interest in received_zone.interests:
            self.peers.inherit(apex, interest, self.delivered)
        self._zone_scope.judge_anew()
        self._journal.store_absorbed(apex, news)

    def accept_marks(self, marks: Mapping[MarkKey, int]) -> bool:
        """
        Add the marks of a parent that had forgotten this zone; return False if there is no room.

        The marks are durable with the next group commit.
        """
        if not self.reception.may_begin(k for k in marks if will_of_mark(k) is None):
            return False
        self._journal.store_marks(self._add_marks(marks))
        return True

    def unclaimed(self) -> Iterable[Unclaimed]:
        """
        Return the edges' inheritances that are unclaimed, or not processed since the claim, to
        store.
        """
        return self.peers.unclaimed()

    # internal

    def _add_marks(self, marks: Mapping[MarkKey, int]) -> dict[MarkKey, int]:
        """Add the marks that are news here, and return these."""
        # A mark that came back is older than this zone's own: the earlier handover had carried it
        # away.
        news = {
            key: last
            for key, last in marks.items()
            if last > self.marks.get(key, 0) and not self.wills.is_known(key)
        }
        self.marks.update(news)
        self.wills.add(news)
        return news

    def _recover(self, epoch: int, received_zone: ReceivedZone | None) -> None:
        came_from = None
        if received_zone is not None and received_zone.predecessor is not None:
            zone, before, offset = received_zone.predecessor
            came_from = LogPosition(JournalId(zone, before), offset)
        state = self._journal.open(epoch, came_from)
        self.held.open()
        self.offset = self._journal.offset
        self._settling.void()
        self._settling = CommitQueue(self.offset)
        for name, packed in state.retained.items():
            topic = name.decode()
            if not self._table.lookup(topic):
                self.retained.retain(name, packed)
            else:
                self._journal.mark_retained_changed(
                    (topic,)
                )  # the message moved along with the cut
        # Marks of an earlier epoch in this process must go: the store has discarded them too.
        self.marks.clear()
        self.marks.update(state.marks)
        self.wills.load()
        for known in state.unclaimed:
            self.peers.restore(known)

    def _notify(self, say: Callable[[EdgePort], None]) -> None:
        run_all(partial(say, port) for port in self.peers.ports())
