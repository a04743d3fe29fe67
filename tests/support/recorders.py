"""
Neighbours that record: the real interface, one list of events, in the order of the calls.

Several of them may share a list, so that the order among them is tested, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from txbroker.authority.retained_messages import RetainedQuery
from txbroker.core import Router, Run
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.edge.routing.group_report import GroupReport
from txbroker.edge.routing.owner_port import StreamUser
from txbroker.edge.routing.publication import Publication
from txbroker.edge.routing.route import Route
from txbroker.edge.routing.stored_outbox import OutboxEntry
from txbroker.journal.delivery_ledger import LedgerKind, LedgerRow
from txbroker.journal.zone_journal import Record
from txbroker.model.log_position import JournalId
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.session_ports import DeliveryRecorder
from txbroker.mqtt.wire.decoder import Framer, decode
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import Packet

Events = list[tuple[Any, ...]]

T = TypeVar("T")

FULL = 512 * 1024
"""Bytes that are more than a connection takes at once."""


def cut(apex: str, epoch: int = 1, node: str | None = None) -> ZoneCut:
    """A cut with a node that is named after its apex."""
    name = f"node-{apex.rpartition('/')[2] or 'root'}" if node is None else node
    return ZoneCut(apex=apex, epoch=epoch, node=name, grpc=f"{name}:1")


def take(events: list[T]) -> list[T]:
    """The events since the last call."""
    taken = events[:]
    events.clear()
    return taken


def payloads(messages: Iterable[Message]) -> list[str]:
    """The payloads of messages."""
    return [message.payload.decode(errors="replace") for message in messages]


class EdgeRecorder:
    """An edge as its owner sees it (`EdgePort`)."""

    def __init__(self, events: Events | None = None, *name: str) -> None:
        self.events: Events = [] if events is None else events
        self._name = name

    def deliver(self, record: Record) -> None:
        self._add("deliver", record.offset, record.message.payload.decode(errors="replace"))

    def deliver_runs(self, runs: list[Run]) -> None:
        for run in runs:
            for index in range(run.count):
                self.deliver(Record(run.offset(index), run.message(index)))

    def confirm_interest(self, request: int, offset: int, retained: RetainedQuery | None) -> None:
        found = [message for message in retained or () if message is not None]
        self._add("answer", request, offset, payloads(found))

    def announce_cut(self, cut: ZoneCut) -> None:
        self._add("cut", cut.apex, cut.epoch)

    def announce_forgotten_cut(self, cut: ZoneCut) -> None:
        self._add("found", cut.apex, cut.epoch)

    def announce_end(self, apex: str, epoch: int, offset: int | None = None) -> None:
        self._add("gone", apex, epoch, *([] if offset is None else [offset]))

    def unpark(self) -> None:
        self._add("unpark")

    # a source of publishes, too (`PublishSource`)

    def on_settled(self, tickets: Sequence[object]) -> None:
        self._add("settled", *tickets)

    def on_void(self, tickets: Sequence[object]) -> None:
        self._add("void", *tickets)

    def close(self, reason: str) -> None:
        self._add("close")

    def _add(self, *event: object) -> None:
        self.events.append((*self._name, *event))


class OwnerRecorder:
    """The owner of a zone as an edge sees it (`OwnerPort`)."""

    def __init__(self, events: Events | None = None, *name: str) -> None:
        self.events: Events = [] if events is None else events
        self.credit = True
        self.asked: list[tuple[list[MarkKey], Callable[[dict[MarkKey, int]], None]]] = []
        self.streams: list[StreamRecorder] = []
        self._name = name

    def has_credit(self) -> bool:
        return self.credit

    def passes(self, _size: int) -> bool:
        return False

    def publish(self, publication: Publication) -> None:
        self._add("publish", publication.message.payload.decode(errors="replace"))

    def sender(self) -> None:
        """Nothing goes past it."""

    def publish_run(self, run: Run) -> None:
        for index in range(run.count):
            self._add("publish", run.message(index).payload.decode(errors="replace"))

    def restart(self, sequence: int, returned: Iterable[Publication]) -> None:
        self._add("restart", sequence)

    def request_marks(
        self, keys: Iterable[MarkKey], answered: Callable[[dict[MarkKey, int]], None]
    ) -> None:
        self.asked.append((list(keys), answered))

    def open_stream(self, key: MarkKey, user: StreamUser) -> StreamRecorder:
        stream = StreamRecorder(key, user, self._add)
        self.streams.append(stream)
        return stream

    def report_group(self, text: str, report: GroupReport) -> None:
        """No test looks at the groups of an owner here."""

    def add_interest(self, topic_filter: str, request: int, *, retained: bool = True) -> None:
        self._add("add", topic_filter, request)

    def remove_interest(self, topic_filter: str) -> None:
        self._add("remove", topic_filter)

    def sync(self, filters: Iterable[str], claims: Iterable[str]) -> None:
        self._add("sync", list(filters), list(claims))

    def set_low_water(
        self, places: dict[JournalId, int], kept: Callable[[], None], holders: object = None
    ) -> None:
        self._add("keep", places)
        self.kept = kept

    def close(self, reason: str) -> None:
        self._add("close")

    def _add(self, *event: object) -> None:
        self.events.append((*self._name, *event))


class StreamRecorder:
    """The stream of an outbox to an owner (`OutStream`); `user` is to be told."""

    def __init__(self, key: MarkKey, user: StreamUser, add: Callable[..., None]) -> None:
        self.key = key
        self.user = user
        self._add = add

    def send(self, entries: Sequence[OutboxEntry]) -> None:
        for entry in entries:
            self._add("drained", entry.number, entry.message.payload.decode(errors="replace"))

    def restart(self) -> None:
        self._add("restarted")


class ConnectorRecorder:
    """The shell that asks and dials for an edge (`Connector`)."""

    def __init__(self, events: Events | None = None) -> None:
        self.events: Events = [] if events is None else events

    def resolve(self, route: Route) -> None:
        self.events.append(("resolve", route.apex))

    def connect(self, route: Route) -> None:
        self.events.append(("connect", route.apex))

    def disconnect(self, route: Route) -> None:
        self.events.append(("disconnect", route.apex))


class SinkRecorder:
    """A connection as its session sees it (`Sink`); `events` are the packets sent."""

    def __init__(self, router: Router | None = None) -> None:
        """Of an edge with this exchange; None where messages come from a test."""
        self.packet_writer = (router or Router(lambda: None)).make_packet_writer()
        self.packet_writer.connection = self
        self.receive_maximum = 65_535
        self._events: list[Packet | str] = []
        self._filling = b""

    @property
    def events(self) -> list[Packet | str]:
        framer = Framer(1 << 28)
        framer.feed(self.packet_writer.dequeue()[len(self._filling) :])
        self._events.extend(decode(*frame) for frame in framer.frames())
        if self._filling:
            self.packet_writer.send(self._filling)
        return self._events

    @property
    def room(self) -> bool:
        """True if the output has room; a test may take it and give it back."""
        return not self._filling

    @room.setter
    def room(self, room: bool) -> None:
        assert self.events is self._events
        self.packet_writer.dequeue()
        self.packet_writer.is_shut = not room
        self._filling = b"" if room else b"\0" * FULL
        if self._filling:
            self.packet_writer.send(self._filling)

    def close(self, reason: str, code: int) -> None:
        self.events.append("close")

    def flush(self) -> None:
        assert self.packet_writer.size


class WatcherRecorder:
    """
    Whoever feeds a session and keeps it (`SessionOwner`); `full` are the limits that were hit.
    """

    def now(self) -> float:
        return 0.0

    def __init__(self) -> None:
        self.events: Events = []
        self.full: list[str] = []
        self.recording: DeliveryRecorder | None = None

    def has_room(self, session: Session) -> None:
        self.events.append(("room",))

    def save(self, session: Session, *, urgent: bool) -> None:
        self.events.append(("save", "urgent" if urgent else "lazy"))

    def save_all(self, session: Session) -> None:
        self.save(session, urgent=False)

    def save_then(self, session: Session, action: Callable[[], None]) -> None:
        self.events.append(("save", "then"))
        action()

    def dropped(self, session: Session, qos: int, count: int, *, is_first: bool) -> None:
        assert count == 1
        self.events.append(("dropped", qos, "first" if is_first else "again"))

    def zone_of(self, topic: str) -> str:
        return topic.partition("/")[0]

    def window_is_full(self, session: Session, limit: str) -> None:
        self.full.append(limit)


class LedgerRecorder:
    """A node's delivery ledger (`LedgerRecorder`)."""

    def __init__(self) -> None:
        self.rows: list[LedgerRow] = []

    def now(self) -> int:
        return len(self.rows)

    def add(self, row: LedgerRow) -> None:
        self.rows.append(row)

    def take(self) -> list[tuple[object, ...]]:
        """The calls since the last one: kind, client, filter or None, zone, offset, and more."""
        taken, self.rows = self.rows, []
        return [_shown(row) for row in taken]


def _shown(row: LedgerRow) -> tuple[object, ...]:
    name = row.kind.name.lower()
    zone = None if row.part is None else row.part.zone
    shown = (name, row.client_id, row.topic_filter, zone, row.offset)
    if row.kind in (LedgerKind.START, LedgerKind.END):
        return (*shown, row.qos)
    if row.kind is LedgerKind.DROPPED:
        return (name, row.client_id, zone, row.offset, row.through)
    return (name, row.client_id, zone, row.offset)


class ReporterRecorder:
    """The listener for what an operator may want to know (`Reporter`)."""

    def __init__(self) -> None:
        self.events: Events = []

    def event(self, name: str, **fields: object) -> None:
        self.events.append((name, *fields.values()))
