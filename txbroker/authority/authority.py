"""
One zone at its authoritative node.

What is decided here: whether a topic is ours now (the cuts, a fence, the epoch), the order of the
zone's messages (their offsets), what is retained, and which edges get a copy, one each. What is
not: how a copy travels (an `EdgePort` does that), who may own the zone (the delegation table and
the parent), what a client of an edge is told.

Deliveries to one edge form one stream, and everything whose place among them matters travels in it:
answers to interest requests with the retained messages (rule 9), zone cuts and the end of the zone
(rule 13). A message taken here goes to edges and nowhere else: that is why no loop can form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from txbroker.authority.handover import EdgeInterest, Incoming, MarkKey, Snapshot, in_parts
from txbroker.authority.journal import RecentJournal, Record
from txbroker.authority.peer import CatchUp, EdgePort, Greeting, ParkedInterest, Peer, Verdict
from txbroker.delegation.cut import Cut
from txbroker.delegation.table import DelegationTable
from txbroker.matching.index import SubscriptionIndex
from txbroker.matching.retained import RetainedTree
from txbroker.message import Message
from txbroker.topics import is_filter_within, is_sys, is_within, may_match_within

TOPICS_REMEMBERED = 100_000
"""Topics whose receivers are kept worked out."""

PEERS = 10_000
"""Edges that are remembered; beyond that one that is away is forgotten."""

LONGEST_REMEMBERED = 512
"""Longer topics are worked out each time, so that they cannot fill the memory."""


class Outgoing:
    """A handover of `apex` away from here; one at a time for an apex."""

    def __init__(self, authority: Authority, apex: str) -> None:
        self.apex = apex
        self._authority = authority
        self._changed: set[str] = set()

    def bulk(self) -> Iterator[Snapshot]:
        """The retained messages as they are now; what changes meanwhile comes with `rest`."""
        return in_parts([message for _, message in self._authority.retained.within(self.apex)])

    def note(self, topic: str) -> None:
        """The retained message of a topic changed."""
        if is_within(topic, self.apex):
            self._changed.add(topic)

    def rest(self) -> Iterator[Snapshot]:
        """What `bulk` did not have; only after the fence."""
        now = {topic: self._authority.retained.get(topic) for topic in sorted(self._changed)}
        yield from in_parts([message for message in now.values() if message is not None])
        yield Snapshot(
            cleared=tuple(topic for topic, message in now.items() if message is None),
            interests=tuple(self._authority.interests_within(self.apex)),
            delegations=self._authority.cuts_within(self.apex),
            marks=tuple(self._authority.marks.items()),
        )


class Authority:
    """The zone `apex` at this node; not serving until it is opened."""

    def __init__(self, apex: str, table: DelegationTable, *, kept_messages: int) -> None:
        self.apex = apex
        self.epoch = 0
        self.serving = False
        self.offset = 0
        self.retained: RetainedTree[Message] = RetainedTree()
        self.marks: dict[MarkKey, int] = {}
        self.unclaimed_qos0 = 0
        self.peers: dict[str, Peer] = {}
        self._table = table
        self._kept_messages = kept_messages
        self._journal = RecentJournal(kept_messages)
        self._interests: SubscriptionIndex[str, Peer] = SubscriptionIndex(cache_limit=0)
        self._receivers: dict[str, tuple[Peer, ...]] = {}
        self._fences: set[str] = set()
        self._parked: list[ParkedInterest] = []
        self._outgoing: list[Outgoing] = []

    # from the edges: publishes

    def publish(self, message: Message) -> Verdict:
        """Order the message, retain it, hand it to every interested edge; or say why not."""
        topic = message.topic
        receivers = self._receivers.get(topic)
        if receivers is None:
            verdict = self._judge(topic)
            if verdict is not Verdict.TAKEN:
                return verdict
            receivers = self._work_out(topic)
        self.offset += 1
        record = Record(self.offset, message)
        if message.retain:
            self._retain(message)
        for peer in receivers:
            port = peer.port
            if peer.unclaimed and peer.is_waiting_for(topic):
                self.unclaimed_qos0 += not message.qos
            elif port is not None:
                port.deliver(record)
        if message.qos:
            self._journal.append(record)
        return Verdict.TAKEN

    def cut_for(self, topic: str) -> Cut | None:
        """The cut that a refused topic lies under; None when the zone itself is not ours."""
        return self._table.lookup(topic) if self.serving else None

    def cuts(self) -> tuple[Cut, ...]:
        """Every cut of the zone."""
        return self._table.cuts()

    def _judge(self, topic: str) -> Verdict:
        if not self.serving or not is_within(topic, self.apex) or self._table.lookup(topic):
            return Verdict.NOT_AUTHORITATIVE
        if is_sys(topic):  # each node's own
            return Verdict.NOT_AUTHORITATIVE
        if any(is_within(topic, apex) for apex in self._fences):
            return Verdict.PARKED
        return Verdict.TAKEN

    def _work_out(self, topic: str) -> tuple[Peer, ...]:
        # One entry a peer, however many of its filters match: one copy an edge (invariant 3).
        receivers = tuple({peer.edge: peer for _, peer in self._interests.match(topic)}.values())
        if len(self._receivers) >= TOPICS_REMEMBERED:
            self._receivers.clear()
        if len(topic) <= LONGEST_REMEMBERED:
            self._receivers[topic] = receivers
        return receivers

    def _retain(self, message: Message) -> None:
        if message.payload:
            self.retained.set(message.topic, message)  # [MQTT-3.3.1-5]
        else:
            self.retained.remove(message.topic)  # [MQTT-3.3.1-10]
        for outgoing in self._outgoing:
            outgoing.note(message.topic)

    # from the edges: interest

    def connect(self, greeting: Greeting, port: EdgePort) -> tuple[Peer, CatchUp] | None:
        """
        An edge is here; its interest replaces what was known of it.

        None: a newer incarnation of the edge is known, this one is to be closed.
        """
        peer = self.peers.get(greeting.edge)
        if peer is not None and peer.incarnation > greeting.incarnation:
            return None
        if peer is None or peer.incarnation < greeting.incarnation:
            if peer is not None:
                self.forget(peer)
            self._make_room()
            peer = Peer(edge=greeting.edge, incarnation=greeting.incarnation)
            self.peers[greeting.edge] = peer
        if peer.port is not None:
            peer.port.close("a newer link of this edge took over")
        peer.port = port
        self._forget_closed_marks(greeting)
        return peer, self.sync(peer, greeting.filters, greeting.claims, greeting.position)

    def sync(
        self,
        peer: Peer,
        filters: Iterable[str],
        claims: Iterable[str],
        position: int | None = None,
    ) -> CatchUp:
        """Replace the edge's interest; what it claims or resumes is returned, to be sent first."""
        self._set_filters(peer, set(filters))
        claimed = {apex: peer.unclaimed.pop(apex) for apex in claims if apex in peer.unclaimed}
        starts = list(claimed.values()) + ([] if position is None else [position])
        if not starts:
            return CatchUp()
        records = tuple(
            record
            for record in self._journal.after(min(starts))
            if self._is_due(record, peer, claimed, position)
        )
        return CatchUp(records=records, missed=self._journal.missing_after(min(starts)))

    def handed_back(self, peer: Peer) -> list[tuple[str, int]]:
        """Apexes, with their last epoch, that came back here and that the edge has not claimed."""
        return [
            (apex, self._table.epoch_of(apex))
            for apex in peer.unclaimed
            if apex != self.apex and self._table.get(apex) is None
        ]

    def disconnect(self, peer: Peer, port: EdgePort) -> None:
        """The edge's link is gone; its interest stays, so that it can resume."""
        if peer.port is port:
            peer.port = None

    def add_interest(self, peer: Peer, topic_filter: str, request: int, retained: bool) -> None:
        """Count the filter from here on and answer in the edge's stream."""
        port = peer.port
        if any(may_match_within(topic_filter, apex) for apex in self._fences):
            # The fence is for interests, too (rule 12): the new owner has not heard of this one.
            self._parked.append(ParkedInterest(peer, port, topic_filter, request, retained))
            return
        self._add_filter(peer, topic_filter)
        found = [m for _, m in self.retained.match(topic_filter)] if retained else []
        if port is not None:
            port.answer(request, self.offset, found)

    def remove_interest(self, peer: Peer, topic_filter: str) -> None:
        """The last client of the edge left the filter."""
        self._parked = [
            asked
            for asked in self._parked
            if (asked.peer, asked.topic_filter) != (peer, topic_filter)
        ]
        if topic_filter in peer.filters:
            peer.filters.discard(topic_filter)
            self._interests.remove(topic_filter, peer.edge)
            self._receivers.clear()

    def forget(self, peer: Peer) -> None:
        """Drop all that is known of an edge."""
        self._set_filters(peer, set())
        if peer.port is not None:
            peer.port.close("a newer process of this edge took over")
        del self.peers[peer.edge]

    def _make_room(self) -> None:
        # The one known for longest goes; it is away, and starts anew if it comes back.
        if len(self.peers) >= PEERS:
            away = next((peer for peer in self.peers.values() if peer.port is None), None)
            if away is not None:
                self.forget(away)

    def _is_due(
        self, record: Record, peer: Peer, claimed: dict[str, int], position: int | None
    ) -> bool:
        topic = record.message.topic
        if peer.is_waiting_for(topic):
            return False
        since = max((at for apex, at in claimed.items() if is_within(topic, apex)), default=None)
        if since is None:
            since = position
        if since is None or record.offset <= since:
            return False
        return any(other is peer for _, other in self._interests.match(topic))

    def _set_filters(self, peer: Peer, filters: set[str]) -> None:
        for topic_filter in peer.filters - filters:
            self.remove_interest(peer, topic_filter)
        for topic_filter in filters - peer.filters:
            self._add_filter(peer, topic_filter)

    def _add_filter(self, peer: Peer, topic_filter: str) -> None:
        if topic_filter not in peer.filters:
            peer.filters.add(topic_filter)
            self._interests.add(topic_filter, peer.edge, peer)
            self._receivers.clear()

    def _forget_closed_marks(self, greeting: Greeting) -> None:
        # Marks are forgotten only where the edge says that it needs them no longer (rule 4).
        kept = set(greeting.in_doubt)
        # Those that came with a zone that was given back are needed by edges that have not heard of
        # it yet; they go with the edge's process.
        for key in list(self.marks):
            edge, incarnation, zone, _ = key
            is_closed = zone == self.apex or incarnation != greeting.incarnation
            if edge == greeting.edge and key not in kept and is_closed:
                del self.marks[key]

    # from the handover

    def interests_within(self, apex: str) -> Iterator[EdgeInterest]:
        """Who wants what of the subtree."""
        for peer in self.peers.values():
            filters = tuple(sorted(f for f in peer.filters if may_match_within(f, apex)))
            if filters:
                yield EdgeInterest(edge=peer.edge, incarnation=peer.incarnation, filters=filters)

    def cuts_within(self, apex: str) -> tuple[Cut, ...]:
        """The delegations that go along with the subtree."""
        return tuple(cut for cut in self._table.cuts() if is_within(cut.apex, apex))

    def awaits_claims(self, apex: str) -> bool:
        """Whether edges have not claimed yet what they inherited of the subtree or around it."""
        return any(
            is_within(apex, inherited) or is_within(inherited, apex)
            for peer in self.peers.values()
            for inherited in peer.unclaimed
        )

    def prepare(self, apex: str) -> Outgoing:
        """Start to hand the subtree over; it is served here until the fence."""
        outgoing = Outgoing(self, apex)
        self._outgoing.append(outgoing)
        return outgoing

    def fence(self, outgoing: Outgoing) -> int:
        """Take nothing more for the subtree; returns the offset of the fence."""
        self._fences.add(outgoing.apex)
        self._receivers.clear()
        return self.offset

    def roll_back(self, outgoing: Outgoing) -> None:
        """The handover came to nothing; the subtree is served here on."""
        self._end(outgoing)

    def complete(self, outgoing: Outgoing) -> None:
        """The parent has committed: the subtree is another node's, and every edge is told."""
        apex = outgoing.apex
        if apex == self.apex:
            self.close()
        else:
            self.retained.discard_within(apex)
            for peer in self.peers.values():
                for topic_filter in [f for f in peer.filters if is_filter_within(f, apex)]:
                    self.remove_interest(peer, topic_filter)
            cut = self._table.get(apex)
            if cut is not None:
                self.announce(cut.cut)
        self._end(outgoing)

    def announce(self, cut: Cut) -> None:
        """Tell every connected edge of a cut, in its stream."""
        self._receivers.clear()
        for port in self._ports():
            port.tell_cut(cut)

    def announce_end(self, apex: str, epoch: int) -> None:
        """Tell every connected edge that this delegation ended: a child's, or the zone's own."""
        self._receivers.clear()
        for port in self._ports():
            port.tell_gone(apex, epoch)

    def close(self) -> None:
        """The zone is another node's: every edge is told, and nothing of it is kept."""
        self.serving = False
        self.announce_end(self.apex, self.epoch)
        for peer in list(self.peers.values()):
            self._set_filters(peer, set())
        self.retained.discard_within(self.apex)

    def open(self, epoch: int, incoming: Incoming | None = None) -> None:
        """Serve the zone from now on; offsets start anew with the epoch."""
        if epoch != self.epoch:
            self.offset = 0
            self._journal = RecentJournal(self._kept_messages)
        self.epoch = epoch
        self.serving = True
        self._receivers.clear()
        if incoming is not None:
            self.absorb(self.apex, incoming)

    def absorb(self, apex: str, incoming: Incoming) -> None:
        """Take in a subtree that was served elsewhere until now."""
        self.retained.discard_within(apex)
        for topic, message in incoming.retained.items():
            self.retained.set(topic, message)
        self.marks.update(incoming.marks)
        for interest in incoming.interests:
            self._inherit(apex, interest)
        self._receivers.clear()

    def _inherit(self, apex: str, interest: EdgeInterest) -> None:
        peer = self.peers.get(interest.edge)
        if peer is not None and peer.incarnation < interest.incarnation:
            self.forget(peer)
            peer = None
        if peer is None:
            peer = Peer(edge=interest.edge, incarnation=interest.incarnation)
            self.peers[interest.edge] = peer
        if peer.incarnation != interest.incarnation:
            return
        for topic_filter in interest.filters:
            self._add_filter(peer, topic_filter)
        peer.unclaimed[apex] = self.offset

    def _ports(self) -> list[EdgePort]:
        return [peer.port for peer in self.peers.values() if peer.port is not None]

    def _end(self, outgoing: Outgoing) -> None:
        self._outgoing.remove(outgoing)
        self._fences.discard(outgoing.apex)
        self._receivers.clear()
        parked, self._parked = self._parked, []
        if self.serving:
            for asked in parked:
                if asked.port is asked.peer.port:
                    self.add_interest(asked.peer, asked.topic_filter, asked.request, asked.retained)
        for port in self._ports():
            port.unpark()
