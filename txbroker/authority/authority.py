"""
One zone at its authoritative node.

What is decided here: the order of the zone's messages (their offsets), what is retained, and when a
message may be delivered and acknowledged: QoS 1 and 2 when they are durable, QoS 0 at once
(protocol rules 3 and 5). What is not: whether a topic is ours now (the `Bailiwick`), how a copy
travels (an `EdgePort` does that), how it is stored (the `Journal`), who may own the zone (the
delegation table and the parent), what a client of an edge is told.

Deliveries to one edge form one stream, and everything whose place among them matters travels in it:
answers to interest requests with the retained messages (rule 9), zone cuts and the end of the zone
(rule 13). A message taken here goes to edges and nowhere else: that is why no loop can form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import attrs

from txbroker.authority.bailiwick import Bailiwick
from txbroker.authority.handover import EdgeInterest, Incoming, MarkKey
from txbroker.authority.journal import Chunk, Journal, Record, Unclaimed
from txbroker.authority.outgoing import Outgoing
from txbroker.authority.peer import (
    CatchUp,
    EdgePort,
    Greeting,
    ParkedInterest,
    Peer,
    Returned,
    Verdict,
)
from txbroker.authority.peers import Peers
from txbroker.authority.settling import Settling, Taken
from txbroker.authority.wills import TakenWills
from txbroker.core import Exchange, Run
from txbroker.delegation.cut import Cut
from txbroker.delegation.passage import Passage
from txbroker.delegation.table import DelegationTable
from txbroker.matching.retained import RetainedTree
from txbroker.message import Message
from txbroker.place import PartKey, Place
from txbroker.topics import is_filter_within, is_within


class Authority:
    """The zone `apex` at this node; not serving until it is opened."""

    def __init__(
        self, apex: str, table: DelegationTable, journal: Journal, exchange: Exchange
    ) -> None:
        self.apex = apex
        self.epoch = 0
        self.exchange = exchange
        self.serving = False
        self.retained: RetainedTree[Message] = RetainedTree()
        self.marks: dict[MarkKey, int] = {}
        self.unclaimed_qos0 = 0
        self.peers = Peers(exchange, table.reclaimed_at)
        self.offset = 0
        self._table = table
        self._journal = journal
        self._settling = Settling()
        self._wills = TakenWills(self.marks)
        self._awaiting: dict[EdgePort, None] = {}
        self._bailiwick = Bailiwick(apex, table, exchange)
        self._ours = self._bailiwick.ours
        self._outgoing: list[Outgoing] = []

    # from the edges: publishes

    def publish(self, message: Message, key: MarkKey | None = None, sequence: int = 0) -> Verdict:
        """
        Order the message and append it, or say why not.

        A QoS 1/2 one is delivered once it is durable: `await_durable` tells. `key` and `sequence`
        are its origin id, where it came from another node; one of QoS 0 has none. A will that was
        taken before counts as taken and is no record: `settles_at` is where the first one was.
        """
        topic = message.topic
        if topic not in self._ours:
            verdict = self._bailiwick.judge(topic) if self.serving else Verdict.NOT_AUTHORITATIVE
            if verdict is not Verdict.TAKEN:
                return verdict
        if message.will is not None and not self._wills.begin(message.will):
            return Verdict.TAKEN
        if not message.qos:
            self.offset = self._journal.append(message, None, 0) or self.offset
            if message.will is not None:
                self._wills.settle(message.will)
            self._deliver(Record(0, message))
            return Verdict.TAKEN
        offset = self.offset = self._journal.append(message, key, sequence)
        self._settling.add(Record(offset, message), key, sequence)
        if self._journal.durable >= offset:
            self.on_durable(offset)
        return Verdict.TAKEN

    def publish_run(self, run: Run, key: MarkKey | None = None, sequence: int = 0) -> bool:
        """
        Order many messages and append them; False: not all are to be taken, and none was.

        As with `publish`; `sequence` is that of the last one.
        """
        if not self.serving or not self._bailiwick.has(run):
            return False
        if run.qos:
            self.take_run(run, key, sequence)
        else:
            self.keep_qos0(run)
            self._deliver_run(run)
        return True

    def take_run(self, run: Run, key: MarkKey | None = None, sequence: int = 0) -> None:
        """As `publish_run`, for one of QoS 1 and 2 of which the caller knows that it is ours."""
        first = run.first = self._journal.append_run(run, key, sequence)
        last = self.offset = first + run.count - 1
        self._settling.add_run(run, last, key, sequence)
        if self._journal.durable >= last:
            self.on_durable(last)

    @property
    def keeps_qos0(self) -> bool:
        """Whether messages of QoS 0 become records, too."""
        return self._journal.keeps_qos0

    def keep_qos0(self, run: Run) -> None:
        """Append a run of QoS 0, where those become records, too; it is delivered at once."""
        first = self._journal.append_run(run, None, 0)
        if first:
            self.offset = first + run.count - 1

    @property
    def settles_at(self) -> int:
        """The offset at which all that was taken so far is durable."""
        return self._settling.last

    def await_durable(self, port: EdgePort) -> None:
        """Tell the port's `on_durable` once what it has published so far is durable."""
        self._awaiting[port] = None

    def cut_for(self, topic: str) -> Cut | None:
        """The cut that a refused topic lies under; None when the zone itself is not ours."""
        return self._table.lookup(topic) if self.serving else None

    def cuts(self) -> tuple[Cut, ...]:
        """Every cut of the zone."""
        return self._table.cuts()

    # from the store

    @property
    def delivered(self) -> int:
        """
        The offset of the last QoS 1 or 2 record that is durable and was given to the edges.

        Not of the last record: one of QoS 0 is not waited for, and after a crash its offset may be
        another record's. What is told of positions must not lie beyond what survives.
        """
        return self._settling.through

    @property
    def predecessor(self) -> Place | None:
        """Where the zone's journal goes on from."""
        return self._journal.predecessor

    @property
    def passages(self) -> tuple[Passage, ...]:
        """The last ones that topics of the zone have made, from part to part."""
        return self._table.passages()

    @property
    def is_settled(self) -> bool:
        """Whether everything that was taken is durable and delivered."""
        return self._settling.is_empty

    def on_durable(self, offset: int) -> None:
        """Records up to this offset are durable: deliver them, then acknowledge them."""
        while taken := self._settling.next(offset):
            self._settle(taken)
        awaiting, self._awaiting = self._awaiting, {}
        for port in awaiting:
            port.on_durable(offset)

    def _settle(self, taken: list[Taken]) -> None:
        runs: list[Run] = []
        for _, what, key, sequence in taken:
            if key is not None:
                self.marks[key] = sequence
            if isinstance(what, Run):
                runs.append(what)
            elif not isinstance(what, Record):
                what()
            else:
                if what.message.will is not None:
                    self._wills.settle(what.message.will)
                self._deliver(what)
        if runs:
            self._deliver_runs(runs)

    def _deliver(self, record: Record) -> None:
        message = record.message
        if message.retain:
            self._retain(record)
        for peer in self.peers.receivers(message.topic):
            self._give(peer, record)

    def _deliver_runs(self, runs: list[Run]) -> None:
        sole = self.peers.sole(runs)
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
                        self._give(peer, Record(part.offset(index), part.message(index)))
                elif peer.port is not None:
                    peer.port.deliver_runs([part])

    def _give(self, peer: Peer, record: Record) -> None:
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
        if message.payload:
            self.retained.set(topic, message)  # [MQTT-3.3.1-5]
        else:
            self.retained.remove(topic)  # [MQTT-3.3.1-10]
        self._journal.note_retained((topic,))
        for outgoing in self._outgoing:
            outgoing.note(topic)

    def in_order(self, action: Callable[[], None]) -> None:
        """Run it when everything that was taken before it is durable and delivered."""
        self._settling.in_order(action)

    # from the edges: interest

    def expect(self, greeting: Greeting) -> bool:
        """
        An edge will `connect` when what was taken before is durable; False: it has begun anew.

        Nothing more is taken by an earlier link of it: the marks that it is told are its last ones.
        """
        peer = self.peers.get(greeting.edge)
        if peer is None:
            return True
        if (peer.incarnation, peer.stream) > (greeting.incarnation, greeting.stream):
            return False  # a Hello may come late
        peer.disconnect("a newer link of this edge took over")
        return True

    def connect(self, greeting: Greeting, port: EdgePort) -> tuple[Peer, CatchUp] | None:
        """
        An edge is here; its interest replaces what was known of it.

        None: a newer link or incarnation of the edge is known, this one is to be closed.
        """
        if not self.expect(greeting):
            return None
        peer = self.peers.greet(greeting.edge, greeting.incarnation)
        assert peer is not None
        peer.port, peer.stream = port, greeting.stream
        for key in [key for key in self.marks if greeting.closes(key, self.apex)]:
            del self.marks[key]
        self.peers.replace_filters(peer, greeting.filters, self._unheard(peer, greeting.claims))
        with self._noting_claims(peer):
            claimed = peer.claim(greeting)
        catch_up = self._catch_up(claimed, greeting.position)
        start = self.delivered if catch_up.after is None else catch_up.after
        self._journal.note_edge(peer.edge, start)
        return peer, catch_up

    def keep(self, peer: Peer, places: dict[PartKey, int]) -> None:
        """What the edge's sessions need lies above these offsets, and what it is still to claim."""
        claims, part = peer.open_claims().values(), PartKey(self.apex, self.epoch)
        if claims:
            places = {**places, part: min(*claims, places.get(part, self.delivered))}
        self._journal.keep(peer.edge, places)

    def sync(self, peer: Peer, filters: Iterable[str], claims: Mapping[str, int | None]) -> CatchUp:
        """Replace a connected edge's interest; what it claims is to be sent first."""
        with self._noting_claims(peer):
            catch_up = self._catch_up(peer.claim_more(claims), None)
        self.peers.replace_filters(peer, filters, self._unheard(peer))
        completes = tuple(sorted(apex for apex in claims if apex not in peer.unclaimed))
        return attrs.evolve(catch_up, completes=completes)

    def on_claimed(self, peer: Peer, apexes: Iterable[str]) -> None:
        """The edge has processed what waited for its claims: all is live, or resumes, from here."""
        with self._noting_claims(peer):
            peer.forget_claims(apexes)

    def _unheard(self, peer: Peer, claims: Iterable[str] = ()) -> set[str]:
        """
        Apexes that came back and that the edge has not claimed, nor does now. One that was
        delegated again since has taken along what the edge wants of it.
        """
        unclaimed = peer.unclaimed.keys() - set(claims)
        return {apex for apex in unclaimed if self._table.lookup(apex) is None}

    @contextmanager
    def _noting_claims(self, peer: Peer) -> Iterator[None]:
        before = peer.open_claims()
        yield
        if peer.open_claims() != before:
            self._journal.note_unclaimed((peer.edge,))

    def _catch_up(self, claimed: dict[str, int], position: int | None) -> CatchUp:
        starts = list(claimed.values()) + ([] if position is None else [position])
        if not starts or min(starts) >= self.delivered:
            return CatchUp()
        after = min(starts)
        missed = self._journal.read(after, after).missed(after)
        return CatchUp(after=after, claimed=claimed, resumed=position, missed=missed)

    def backlog(self, peer: Peer, catch_up: CatchUp, after: int, through: int) -> Chunk:
        """The next records of a catch-up."""
        chunk = self._journal.read(after, through)
        due = [record for record in chunk.records if catch_up.has(record)]
        return attrs.evolve(chunk, records=tuple(self.peers.wanted(peer, due)))

    def returned(self, greeting: Greeting) -> list[Returned]:
        """Apexes that came back here, and that the edge may not know of."""
        reclaimed = self._table.reclaimed_at()
        return [
            Returned(
                apex=apex,
                epoch=self._table.epoch_of(apex) - 1,
                offset=offset,
                is_inherited=apex not in reclaimed,
            )
            for apex, offset in self.peers.unclaimed_of(greeting.edge).items()
            if greeting.is_before(apex, offset)
            and apex != self.apex
            and self._table.get(apex) is None
        ]

    def disconnect(self, peer: Peer, port: EdgePort) -> None:
        """The edge's link is gone; its interest stays, so that it can resume."""
        self._awaiting.pop(port, None)
        if peer.port is port:
            peer.port = None

    def add_interest(self, peer: Peer, topic_filter: str, request: int, retained: bool) -> None:
        """Count the filter from here on and answer in the edge's stream."""
        port = peer.port
        if self._bailiwick.is_fenced and self._bailiwick.park(
            ParkedInterest(peer, port, topic_filter, request, retained)
        ):
            return
        self.peers.add_filter(peer, topic_filter)
        if port is not None:
            self.in_order(lambda: self._answer(peer, port, topic_filter, request, retained))

    def add_interest_now(self, peer: Peer, topic_filter: str) -> list[Message] | None:
        """The same where the answer is due now: the retained messages; None: it is not."""
        if self._bailiwick.is_fenced or not self._settling.is_empty:
            return None
        self.peers.add_filter(peer, topic_filter)
        if not self.retained:
            return []
        return [message for _, message in self.retained.match(topic_filter)]

    def _answer(
        self, peer: Peer, port: EdgePort, topic_filter: str, request: int, retained: bool
    ) -> None:
        if peer.port is port:
            found = [m for _, m in self.retained.match(topic_filter)] if retained else []
            port.answer(request, self.delivered, found)

    def remove_interest(self, peer: Peer, topic_filter: str) -> None:
        """The last client of the edge left the filter."""
        self._bailiwick.withdraw(peer, topic_filter)
        self.peers.remove_filter(peer, topic_filter)

    # from the handover

    def interests_within(self, apex: str) -> Iterable[EdgeInterest]:
        """Who wants what of the subtree."""
        return self.peers.within(apex)

    def cuts_within(self, apex: str) -> tuple[Cut, ...]:
        """The delegations that go along with the subtree."""
        return tuple(cut for cut in self._table.cuts() if is_within(cut.apex, apex))

    def awaits_claims(self, apex: str) -> bool:
        """Whether edges have not claimed yet what they inherited of the subtree or around it."""
        return self.peers.await_claims(apex)

    def hold(self, apex: str) -> None:
        """
        A subtree has come back: take nothing for it before `let_go`.

        The edges that are here claim it first, so that no record of it lies below the position of
        one that had not heard of it.
        """
        self._bailiwick.fence(apex)

    def is_claimed(self, apex: str) -> bool:
        """Whether all edges that are here have claimed what they inherited of the subtree."""
        return not self.peers.await_claims(apex, connected=True)

    def let_go(self, apex: str) -> None:
        """The subtree is served from now on."""
        self._lift(apex)

    def prepare(self, apex: str) -> Outgoing:
        """Start to hand the subtree over; it is served here until the fence."""
        outgoing = Outgoing(self, apex)
        self._outgoing.append(outgoing)
        return outgoing

    def fence(self, outgoing: Outgoing) -> int:
        """
        Take nothing more for the subtree; returns the offset of the last QoS 1 or 2 record before
        that: a position never gets to a QoS 0 one, and whoever waits for it would wait for ever.

        The rest may be copied when what was taken before has settled: `in_order` tells.
        """
        self._bailiwick.fence(outgoing.apex)
        return self.settles_at

    def roll_back(self, outgoing: Outgoing) -> None:
        """The handover came to nothing; the subtree is served here on."""
        self._end(outgoing)

    def complete(self, outgoing: Outgoing) -> None:
        """The parent has committed: the subtree is another node's, and every edge is told."""
        apex = outgoing.apex
        if apex == self.apex:
            self.close()
        else:
            self._discard_retained(apex)
            for peer in self.peers:
                # One that is connected may have records of the subtree to come before the cut; it
                # withdraws its filters itself when it hears of that.
                if peer.port is None:
                    for topic_filter in [f for f in peer.filters if is_filter_within(f, apex)]:
                        self.peers.remove_filter(peer, topic_filter)
            cut = self._table.get(apex)
            if cut is not None:
                self.announce(cut.cut)
        self._end(outgoing)

    def announce(self, cut: Cut) -> None:
        """Tell every connected edge of a cut, in its stream."""
        self._bailiwick.judge_anew()
        self.in_order(lambda: self._tell(lambda port: port.tell_cut(cut)))

    def announce_end(self, apex: str, epoch: int, offset: int | None = None) -> None:
        """Tell every connected edge that this delegation ended: a child's, or the zone's own."""
        self._bailiwick.judge_anew()
        self.in_order(lambda: self._tell(lambda port: port.tell_gone(apex, epoch, offset)))

    def reclaim(self, apex: str, epoch: int) -> None:
        """
        A subtree is this zone's again, from the offset on that the table says, and its last owner,
        of `epoch`, has not said what edges want of it: each one, known or not, gets nothing of it
        before it has claimed it, and then all.
        """
        offset = self._table.reclaimed_at()[apex]
        self.peers.reclaim(apex, offset)
        self._journal.note_unclaimed([peer.edge for peer in self.peers])
        self._journal.note_reclaimed(apex, offset)
        self.announce_end(apex, epoch, offset)

    def suspend(self) -> None:
        """
        The zone may be another node's: nothing more is taken, and what was taken is kept.

        Edges are told behind what was taken, also those that have yet to read it.
        """
        self.serving = False
        self.announce_end(self.apex, self.epoch)

    def close(self) -> None:
        """The zone was handed over: every edge is told, and nothing of it is kept."""
        self.suspend()
        self.in_order(lambda: self._discard_retained(self.apex))

    def open(self, epoch: int, incoming: Incoming | None = None) -> None:
        """Serve the zone from now on; offsets start anew with the epoch."""
        if epoch != self.epoch:
            self.serving = False
            self.peers.forget_all("the zone begins a new epoch")
            self._recover(epoch, incoming)
        self.epoch = epoch
        self.serving = True
        self._bailiwick.judge_anew()
        if incoming is not None:
            self.absorb(self.apex, incoming)

    def absorb(self, apex: str, incoming: Incoming) -> None:
        """Take in a subtree that was served elsewhere until now."""
        self.retained.discard_within(apex)
        for topic, message in incoming.retained.items():
            self.retained.set(topic, message)
        # Those of this zone's own streams went away with an earlier handover, and are older now.
        news = {k: last for k, last in incoming.marks.items() if last > self.marks.get(k, 0)}
        self.marks.update(news)
        self._wills.learn(news)
        for interest in incoming.interests:
            self.peers.inherit(apex, interest, self.delivered)
        self._bailiwick.judge_anew()
        self._journal.note_absorbed(apex, news)

    def unclaimed(self) -> Iterable[Unclaimed]:
        """What edges have not claimed, or not processed since they did, for the store."""
        return self.peers.unclaimed()

    # internal

    def _recover(self, epoch: int, incoming: Incoming | None) -> None:
        came_from = None
        if incoming is not None and incoming.predecessor is not None:
            zone, before, offset = incoming.predecessor
            came_from = Place(PartKey(zone, before), offset)
        state = self._journal.open(epoch, came_from)
        self.offset = self._journal.offset
        self._settling = Settling(self.offset)
        for message in state.retained:
            if not self._table.lookup(message.topic):
                self.retained.set(message.topic, message)
            else:
                self._journal.note_retained((message.topic,))  # it went with the cut
        # None from an earlier epoch in this process: the store has none of those any more.
        self.marks.clear()
        self.marks.update(state.marks)
        self._wills.load()
        for known in state.unclaimed:
            self.peers.restore(known)

    def _discard_retained(self, apex: str) -> None:
        topics = [topic for topic, _ in self.retained.within(apex)]
        self.retained.discard_within(apex)
        self._journal.note_retained(topics)

    def _tell(self, say: Callable[[EdgePort], None]) -> None:
        for port in self.peers.ports():
            say(port)

    def _end(self, outgoing: Outgoing) -> None:
        self._outgoing.remove(outgoing)
        self._lift(outgoing.apex)

    def _lift(self, apex: str) -> None:
        parked = self._bailiwick.lift(apex)
        if self.serving:
            for asked in parked:
                if asked.port is asked.peer.port:
                    self.add_interest(asked.peer, asked.topic_filter, asked.request, asked.retained)
        self._tell(lambda port: port.unpark())
