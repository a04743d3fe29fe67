"""
An edge and an owner without a reactor: the two ends of a link, joined by two byte queues.

`pump` carries bytes until neither end has any; `split` says how many bytes a read takes. Timers and
the resolver are fakes that record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import attrs

from tests.support.connects import connect
from tests.support.edge_parts import edge_parts
from tests.support.journal import authority_of
from tests.support.keeping import CommitRecorder, JournalsRecorder
from tests.support.outboxes import MemoryOutboxes
from tests.support.reads import Reads
from tests.support.recorders import SinkRecorder
from txbroker.authority.authority import Authority
from txbroker.authority.edge_peer import OpenedLink
from txbroker.delegation.delegation_table import DelegationTable
from txbroker.edge.routing.edge_limits import EdgeLimits
from txbroker.edge.routing.route import Route
from txbroker.edge.sessions.edge import Edge
from txbroker.link.link_client import LinkClient
from txbroker.link.link_server import LinkServer
from txbroker.model.counters import Counters
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.encoder import encode_publish
from txbroker.mqtt.wire.packets import Connect, Puback, Publish, Pubrec, Subscribe
from txbroker.runtime.backpressure import Backpressure
from txbroker.runtime.fair_shares import ShareWorker


class Alarms:
    """Time that stands until `advance`."""

    def __init__(self) -> None:
        self.time = 100.0
        self._due: list[Alarm] = []

    def now(self) -> float:
        """Seconds."""
        return self.time

    def call_later(self, delay: float, action: Callable[[], None]) -> Alarm:
        """An alarm."""
        alarm = Alarm(self.time + delay, action)
        self._due.append(alarm)
        return alarm

    def advance(self, seconds: float) -> None:
        """Let time pass; what is due rings, in order."""
        self.time += seconds
        for alarm in sorted(self._due, key=lambda a: a.at):
            if alarm.at <= self.time and alarm in self._due:
                self._due.remove(alarm)
                alarm.ring()


class Alarm:
    """See `Alarms`."""

    def __init__(self, at: float, action: Callable[[], None]) -> None:
        self.at = at
        self._action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Take it back."""
        self._action = None

    def ring(self) -> None:
        """Run it."""
        if self._action is not None:
            self._action()


class Recorder:
    """The resolver, the dialer and the log: what they were asked, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def resolve(self, route: Route) -> None:
        self.calls.append(("resolve", route.apex))

    def connect(self, route: Route) -> None:
        self.calls.append(("connect", route.apex))

    def disconnect(self, route: Route) -> None:
        self.calls.append(("disconnect", route.apex))

    def event(self, name: str, **fields: object) -> None:
        self.calls.append((name, str(fields.get("zone", ""))))


class Client(SinkRecorder):
    """A connection's sink, and the session behind it."""

    def __init__(self, edge: Edge, client_id: str, *, clean: bool = True) -> None:
        super().__init__(edge.router)
        self.edge = edge
        self.subacks: list[int] = []
        self.session: Session
        connect(edge, Connect(client_id=client_id, clean_session=clean), self._accept)
        self._id = 0

    def _accept(self, session: Session, present: bool) -> None:
        self.session = session
        assert self.edge.clients.attach(session, self)
        self._reads = Reads(self.edge, self.edge.router, session, self.packet_writer)

    def publish(self, topic: str, payload: bytes, qos: int = 1, *, retain: bool = False) -> int:
        """PUBLISH, in a read of its own; the packet identifier."""
        return self.publish_all((topic, payload, qos), retain=retain)[0]

    def publish_all(self, *said: tuple[str, bytes, int], retain: bool = False) -> list[int]:
        """Several PUBLISH packets in one read; their packet identifiers."""
        data, packet_ids = b"", []
        for topic, payload, qos in said:
            self._id += 1
            packet_ids.append(self._id)
            packet_id = self._id if qos else None
            data += encode_publish(topic, payload, qos, retain, False, packet_id)
        self._reads.feed(data)
        return packet_ids

    def subscribe(self, *filters: tuple[str, int]) -> int:
        """SUBSCRIBE; the identifier is in `subacks` once it is acknowledged."""
        self._id += 1
        packet_id = self._id
        self.edge.subscriptions.subscribe(
            self.session, Subscribe(packet_id, filters), lambda: self.subacks.append(packet_id)
        )
        return packet_id

    def unsubscribe(self, *filters: str) -> None:
        """UNSUBSCRIBE."""
        self.edge.subscriptions.unsubscribe(self.session, filters, lambda: None)

    @property
    def acknowledged(self) -> list[int]:
        """Identifiers of PUBACK and PUBREC packets."""
        return [one.packet_id for one in self.events if isinstance(one, Puback | Pubrec)]

    @property
    def payloads(self) -> list[bytes]:
        """Payloads of the messages that came, in order."""
        return [packet.payload for packet in self.events if isinstance(packet, Publish)]


class NoGroups:
    """Coordinates no group (`GroupCoordinators`)."""

    def on_edge(self, port: object) -> None:
        """No group has members there."""

    def lose(self, port: object) -> None:
        """No group has members there."""


class Host:
    """The node on the owner's side."""

    def __init__(self, authority: Authority, alarms: Alarms, incarnation: int = 1) -> None:
        self.authority = authority
        self.groups: Any = NoGroups()
        self.incarnation = incarnation
        self.backpressure = Backpressure(alarms)
        self.counters = Counters()
        self.is_disk_short = False
        self.tokens = {b"token"}
        self.dirty: list[Any] = []

    def redeem(self, token: bytes, edge: str, incarnation: int) -> OpenedLink | None:
        return OpenedLink("", 0) if token in self.tokens else None

    def serve(self, worker: ShareWorker) -> None:
        while worker.work():
            pass

    def is_over(self) -> bool:
        return False

    def mark_dirty(self, end: Any) -> None:
        self.dirty.append(end)

    def mark_next(self, end: Any) -> None:
        self.dirty.append(end)


def make_edge(
    alarms: Alarms,
    recorder: Recorder,
    name: str = "edge",
    commit: CommitRecorder | None = None,
    **limits: Any,
) -> Edge:
    """An edge with fakes around it."""
    commit = commit or CommitRecorder()
    return Edge(
        edge_parts(alarms, recorder, name=name, connector=recorder),
        session_store=commit.keeper(alarms),
        reader=JournalsRecorder(),
        outbox_store=MemoryOutboxes(commit),
        limits=EdgeLimits(holds=True, **limits),
    )


def make_authority(apex: str, epoch: int = 1, *cuts: ZoneCut) -> Authority:
    """A zone that is served."""
    table = DelegationTable(apex)
    for cut in cuts:
        table.commit(cut)
    authority, _ = authority_of(apex, table)
    authority.open(epoch)
    return authority


def receive(end: LinkClient | LinkServer, data: bytes) -> None:
    """Bytes from the other end of the link."""
    end.reader.packet_reader.feed(data)
    end.work()


@attrs.define
class Link:
    """A connection between an edge's route and an owner."""

    edge: Edge
    route: Route
    host: Host
    split: Callable[[], int] = lambda: 1 << 20
    up: bytearray = attrs.Factory(bytearray)
    down: bytearray = attrs.Factory(bytearray)
    went_up: bytearray = attrs.Factory(bytearray)
    went_down: bytearray = attrs.Factory(bytearray)
    closed: list[str] = attrs.Factory(list)
    dirty: list[Any] = attrs.Factory(list)
    pressure: Backpressure = attrs.Factory(lambda: Backpressure(Alarms()))
    edge_end: LinkClient = attrs.field(init=False)
    owner_end: LinkServer = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.owner_end = LinkServer(
            self.host,
            write=lambda *pieces: self.down.extend(b"".join(pieces)),
            close=self.closed.append,
        )
        self.edge_end = LinkClient(
            self.edge,
            self.route,
            write=lambda *pieces: self.up.extend(b"".join(pieces)),
            close=self.closed.append,
            flush_queue=mock.Mock(mark_dirty=self.dirty.append, mark_next=self.dirty.append),
            backpressure=self.pressure,
        )

    def open(self) -> Link:
        """Hello to Online."""
        self.edge_end.start(b"token")
        self.pump()
        return self

    def pump(self) -> None:
        """Carry bytes until all is quiet."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[None]:
        """Yields after each read; stop in the middle to cut the link there."""
        while True:
            self._flush()
            if self.up:
                data = _take(self.up, self.split())
                self.went_up += data
                receive(self.owner_end, data)
            elif self.down:
                data = _take(self.down, self.split())
                self.went_down += data
                receive(self.edge_end, data)
            else:
                return
            yield

    def cut(self) -> None:
        """The connection is gone, with what was on its way."""
        self.up.clear()
        self.down.clear()
        self.owner_end.on_disconnect()
        self.edge_end.on_disconnect()

    def _flush(self) -> None:
        for queue in (self.dirty, self.host.dirty):
            while queue:
                end = queue.pop()
                if end in (self.edge_end, self.owner_end):
                    end.flush()
        for session in self.edge.clients.sessions.values():
            # Its client reads.
            if isinstance(session.sink, SinkRecorder) and session.sink.packet_writer.size:
                assert session.sink.events
                session.sender.pump()
        for part in (self.edge, self.host.authority, self.edge_end, self.owner_end):
            part.check()


def _take(buffer: bytearray, count: int) -> bytes:
    data = bytes(buffer[:count])
    del buffer[:count]
    return data
