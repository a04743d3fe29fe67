"""An edge among recorders: no sockets, and a clock that stands still."""

from __future__ import annotations

from tests.support.clock import Clock
from tests.support.recorders import (
    ConnectorRecorder,
    Events,
    OwnerRecorder,
    ReporterRecorder,
    SinkRecorder,
    cut,
)
from txbroker.counters import Counters
from txbroker.edge.clients import EdgeLimits
from txbroker.edge.edge import Edge
from txbroker.edge.route import Position, Route
from txbroker.message import Message
from txbroker.mqtt.packets import Connect, Publish, Suback, Subscribe
from txbroker.mqtt.session import Session
from txbroker.pressure import Pressure


class Client:
    """A client whose packets are calls; `events` are the packets that it got."""

    def __init__(self, edge: Edge, name: str, *, clean: bool = True) -> None:
        self.sink = SinkRecorder()
        self.events = self.sink.events
        self._edge = edge
        self._packet_id = 0
        self.session: Session
        packet = Connect(client_id=name, clean_session=clean)
        self.session, self.present = edge.clients.connect(packet)
        self.session.attach(self.sink)

    def subscribe(self, *filters: str, qos: int = 1) -> None:
        """One SUBSCRIBE; its SUBACK appears among the events."""
        self._packet_id += 1
        suback = Suback(self._packet_id, (qos,) * len(filters))
        self._edge.clients.subscribe(
            self.session,
            Subscribe(self._packet_id, tuple((f, qos) for f in filters)),
            lambda: self.events.append(suback),
        )

    def publish(self, topic: str, payload: str = "", qos: int = 1) -> None:
        """One PUBLISH."""
        self._packet_id += 1
        packet_id = self._packet_id if qos else None
        data = payload.encode()
        self._edge.clients.publish(self.session, Publish(topic, data, qos, False, False, packet_id))

    def got(self) -> list[str]:
        """What came since the last call: payloads, `r:` before retained ones, and SUBACKs."""
        told = []
        for packet in self.events:
            if isinstance(packet, Publish):
                told.append(("r:" if packet.retain else "") + packet.payload.decode())
                if packet.packet_id is not None:
                    self.session.on_puback(packet.packet_id)
            else:
                told.append(type(packet).__name__)
        self.events.clear()
        return told


class EdgeBench:
    """
    An edge that knows the zones given, and whose root names them as its cuts.

    `events` are the calls on owners (after the apex) and on the connector.
    """

    def __init__(self, *apexes: str, limits: EdgeLimits | None = None) -> None:
        self.events: Events = []
        self.clock = Clock()
        self.counters = Counters()
        self.reporter = ReporterRecorder()
        self.pressure = Pressure(self.clock)
        self.edge = Edge(
            name="edge",
            incarnation=1,
            connector=ConnectorRecorder(self.events),
            timers=self.clock,
            counters=self.counters,
            reporter=self.reporter,
            pressure=self.pressure,
            limits=limits or EdgeLimits(),
        )
        self.edge.zones.add(cut(""))
        self.know("", *apexes)
        for apex in apexes:
            self.know(apex)

    def route(self, apex: str) -> Route:
        """The route of exactly this apex."""
        route = self.edge.zones.get(apex)
        assert route is not None, apex
        return route

    def know(self, apex: str, *below: str) -> None:
        """The zone's cuts become known, quietly."""
        route = self.route(apex)
        route.cuts = {known: cut(known) for known in below}
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
            position=Position(epoch=epoch, offset=offset),
        )
        return port

    def lose(self, apex: str) -> None:
        """The link broke."""
        self.edge.on_lost(self.route(apex), ("edge", 1, apex, 1))

    def answer(self, apex: str, topic_filter: str, *retained: str) -> None:
        """The owner answers the oldest open request for the filter; `topic=payload` each."""
        route = self.route(apex)
        request = next(r for r, (f, _) in route.requests.items() if f == topic_filter)
        pairs = (one.partition("=") for one in retained)
        messages = [Message(topic, payload.encode(), 1, True) for topic, _, payload in pairs]
        self.edge.interests.on_answer(route, request, messages)

    def deliver(self, apex: str, topic: str, payload: str, offset: int = 1, qos: int = 1) -> None:
        """A live message of the zone."""
        self.edge.on_message(self.route(apex), Message(topic, payload.encode(), qos), offset)

    def take(self) -> Events:
        """The events since the last call."""
        taken = self.events[:]
        self.events.clear()
        return taken
