"""An edge among recorders: no sockets, and a clock that stands still."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tests.support.clock import Clock
from tests.support.connects import connect
from tests.support.edge_parts import edge_parts
from tests.support.keeping import CommitRecorder, JournalsRecorder
from tests.support.outboxes import MemoryOutboxes
from tests.support.reads import Reads
from tests.support.recorders import (
    ConnectorRecorder,
    Events,
    LedgerRecorder,
    OwnerRecorder,
    ReporterRecorder,
    SinkRecorder,
    cut,
)
from txbroker.core import Flows, Router, Run
from txbroker.edge.routing.edge_limits import EdgeLimits
from txbroker.edge.routing.route import Route
from txbroker.edge.routing.zone_claims import StreamPosition
from txbroker.edge.sessions.edge import Edge
from txbroker.model.counters import Counters
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.encoder import encode_publish
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import Connect, Packet, Publish, Suback, Subscribe, Unsuback, Will
from txbroker.runtime.backpressure import Backpressure


def forget_cuts(route: Route) -> None:
    """Nobody has told the zone's cuts."""
    route._changes.mark_changed(route.apex)
    route._cuts = None


class Client:
    """A client whose packets are calls; `events` are the packets that it got."""

    def __init__(
        self, bench: EdgeBench, name: str, *, clean: bool = True, will: Will | None = None
    ) -> None:
        self.sink = SinkRecorder(bench.router)
        self.present: bool | None = None
        self.session: Session
        self._bench = bench
        self._edge = bench.edge
        self._packet_id = 0
        packet = Connect(client_id=name, clean_session=clean, will=will)
        connect(bench.edge, packet, self._accept)
        if self.present is None:
            bench.settle()

    @property
    def events(self) -> list[Packet | str]:
        return self.sink.events

    def _accept(self, session: Session, present: bool) -> None:
        self.session, self.present = session, present
        assert self._edge.clients.attach(session, self.sink)
        self._reads = Reads(self._edge, self._edge.router, session, self.sink.packet_writer)

    def leave(self, *, will: bool = False) -> None:
        """Its connection is gone."""
        self._edge.clients.disconnect(self.session, self.sink, will=will)

    def subscribe(self, *filters: str, qos: int = 1) -> None:
        """Send a SUBSCRIBE; its SUBACK appears among the events."""
        self._packet_id += 1
        suback = Suback(self._packet_id, (qos,) * len(filters))
        self._edge.subscriptions.subscribe(
            self.session,
            Subscribe(self._packet_id, tuple((f, qos) for f in filters)),
            lambda: self.events.append(suback),
        )

    def unsubscribe(self, *filters: str) -> None:
        """Send an UNSUBSCRIBE; its UNSUBACK appears among the events."""
        self._packet_id += 1
        unsuback = Unsuback(self._packet_id)
        self._edge.subscriptions.unsubscribe(
            self.session, filters, lambda: self.events.append(unsuback)
        )

    def publish(self, topic: str, payload: str = "", qos: int = 1) -> None:
        """Send a PUBLISH, in a read of its own."""
        self.publish_all((topic, payload, qos))

    def publish_as(self, packet_id: int, topic: str, payload: str, *, dup: bool) -> None:
        """A PUBLISH of QoS 2 whose packet identifier may be in use; `dup`: a repeat, it says."""
        self._reads.feed(encode_publish(topic, payload.encode(), 2, False, dup, packet_id))

    def publish_all(self, *said: tuple[str, str, int]) -> None:
        """Several PUBLISH packets, in one read."""
        data = b""
        for topic, payload, qos in said:
            self._packet_id += 1
            packet_id = self._packet_id if qos else None
            data += encode_publish(topic, payload.encode(), qos, False, False, packet_id)
        self._reads.feed(data)

    def got(self) -> list[str]:
        """
        The packets since the last call, when all is settled: payloads, `r:` before retained ones,
        and names of other packets. Packets of QoS 1 are acknowledged.
        """
        self._bench.settle()
        told = []
        while self.events:
            packet = self.events.pop(0)
            if isinstance(packet, Publish):
                told.append(("r:" if packet.retain else "") + packet.payload.decode())
                if packet.packet_id is not None and packet.qos == 1:
                    self.session.sender.on_pubacks((packet.packet_id,))
            else:
                told.append(type(packet).__name__)
        return told


class EdgeBench:
    """
    An edge that knows the zones given, and whose root names them as its cuts.

    `events` are the calls on owners (after the apex) and on the connector.
    """

    def __init__(
        self,
        *apexes: str,
        limits: EdgeLimits | None = None,
        commit: CommitRecorder | None = None,
        journals: JournalsRecorder | None = None,
        ledger: LedgerRecorder | None = None,
    ) -> None:
        """With a `ledger` the edge records in it."""
        self.ledger = ledger
        self.events: Events = []
        self.clock = Clock()
        self.counters = Counters()
        self.reporter = ReporterRecorder()
        self.pressure = Backpressure(self.clock)
        self.commit = commit or CommitRecorder()
        self.journals = journals or JournalsRecorder()
        self.outboxes = MemoryOutboxes(self.commit)
        self._apexes = apexes
        self._limits = limits or EdgeLimits()
        self._is_work_due = False
        self.on_output: Callable[[], None] = lambda: None
        self.edge = self._make_edge(self._limits)
        self.edge.zones.add(cut(""))
        self.know("", *apexes)
        for apex in apexes:
            self.know(apex)

    def _make_edge(self, limits: EdgeLimits) -> Edge:
        self.router = Router(lambda: self.on_output())
        return Edge(
            edge_parts(
                self.clock,
                self.reporter,
                router=self.router,
                connector=ConnectorRecorder(self.events),
                counters=self.counters,
                again=self._have_work,
            ),
            session_store=self.commit.keeper(self.clock),
            reader=self.journals,
            outbox_store=self.outboxes,
            limits=limits,
            ledger=self.ledger,
        )

    def restart(self) -> EdgeBench:
        """
        The process dies; another one over what was durable, at once. Its zones are not online.
        """
        bench = EdgeBench(
            *self._apexes,
            limits=self._limits,
            commit=self.commit.crash(),
            journals=self.journals,
            ledger=self.ledger,
        )
        bench.clock.advance(self.clock.now())  # what tells the wall clock
        bench.edge.load()
        bench.edge.interests.refresh()
        return bench

    def _have_work(self) -> None:
        self._is_work_due = True

    def settle(self) -> None:
        """Commit, and feed sessions, until nothing is left to do."""
        while self._is_work_due or not self.commit.is_quiet:
            self.commit.commit()
            self.work()
        self.edge.cursors.check()

    def work(self) -> None:
        """Run a turn of feeding sessions, if any is due."""
        if self._is_work_due:
            self._is_work_due = False
            self.edge.work()

    def route(self, apex: str) -> Route:
        """The route of exactly this apex."""
        route = self.edge.zones.get(apex)
        assert route is not None, apex
        return route

    def know(self, apex: str, *below: str) -> None:
        """The zone's cuts become known, quietly."""
        route = self.route(apex)
        route.learn_cuts({known: cut(known) for known in below})
        for known in below:
            self.edge.zones.add(cut(known))

    def online(self, apex: str, *below: str, epoch: int = 1, offset: int = 0) -> OwnerRecorder:
        """The owner is connected, and says which cuts it has."""
        port = OwnerRecorder(self.events, apex)
        self.edge.on_online(
            self.route(apex),
            port,
            marks={},
            cuts=[cut(known) for known in below],
            position=StreamPosition(epoch=epoch, offset=offset),
        )
        return port

    def come_back(self, apex: str, *, epoch: int = 1, offset: int | None = None) -> None:
        """The root says that the zone is its own again, and that what waited for it has come."""
        self.edge.cuts.on_cut_ended(self.route(""), apex, epoch, offset)
        self.edge.on_claimed(self.route(""), [apex], lambda: None)

    def lose(self, apex: str) -> None:
        """The link broke."""
        self.edge.on_lost(self.route(apex), ("edge", 1, apex, 1))

    def answer(self, apex: str, topic_filter: str, *retained: str) -> None:
        """The owner answers the oldest open request for the filter; `topic=payload` each."""
        route = self.route(apex)
        request = next(r for r, (f, _) in route.interest.requests.items() if f == topic_filter)
        pairs = (one.partition("=") for one in retained)
        messages = [Message(topic, payload.encode(), 1, True) for topic, _, payload in pairs]
        at = 0 if route.position is None else route.position.offset
        self.edge.interests.on_answer(route, request, at, messages)

    def deliver(self, apex: str, topic: str, payload: str, offset: int = 1, qos: int = 1) -> None:
        """A live message of the zone, which is in its journal."""
        route = self.route(apex)
        message = Message(topic, payload.encode(), qos)
        if qos:
            self.journals.add(route.part, offset, message)
        self.edge.on_message(route, message, offset if qos else 0)

    def make_run(self, messages: Iterable[Message]) -> Run:
        """The messages as they come from a link in one piece, all of QoS 0 or none."""
        packet_reader = self.router.make_packet_reader(self.router.make_packet_writer(), 1 << 28)
        packet_reader.open(object(), "somebody", Flows(), clean=True)
        packet_reader.takes_qos12 = True
        for number, one in enumerate(messages, 1):
            packet_id = number if one.qos else None
            packet_reader.feed(
                encode_publish(one.topic, one.payload, one.qos, False, False, packet_id)
            )
        assert packet_reader.step() is None
        run = packet_reader.qos12 or packet_reader.qos0
        assert run is not None
        return run

    def take(self) -> Events:
        """The events since the last call."""
        taken = self.events[:]
        self.events.clear()
        return taken
