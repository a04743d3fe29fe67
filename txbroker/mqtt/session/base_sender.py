"""What all sessions have in common as senders: the way to the client that is here, and QoS 0."""

from __future__ import annotations

from typing import Protocol

from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.cursor_set import CursorSet
from txbroker.mqtt.session.session_ports import DeliveryRecorder, Sink
from txbroker.mqtt.session.window import SessionLimits
from txbroker.mqtt.wire.encoder import encode_publish
from txbroker.mqtt.wire.message import Message

LATER_MESSAGES = 1_000
"""QoS 0 messages of one part that wait until a session has caught up there."""


class Recorded(Protocol):
    """Whoever keeps the delivery ledger, if the node has one."""

    @property
    def recording(self) -> DeliveryRecorder | None:
        """Who is told of deliveries."""


class SendingSession(Protocol):
    """The session, as its sender sees it."""

    @property
    def client_id(self) -> str:
        """Of its client."""

    @property
    def is_over(self) -> bool:
        """True if it has ended."""

    @property
    def is_behind(self) -> bool:
        """True if there is something to be read for it in some journal."""

    @property
    def subscribing(self) -> int:
        """Filters whose SUBACK is due."""

    @property
    def places(self) -> CursorSet:
        """How far it has come in the journals."""

    @property
    def watcher(self) -> Recorded:
        """Its owner; for the ledger alone, which is asked for with each acknowledgement."""

    def look_at_live(self) -> None:
        """What comes live may go straight to the client, or not any more."""

    def save(self) -> None:
        """It changed; a durable session is kept as it is now, soon."""

    def save_first(self) -> None:
        """It changed, and its sender goes on when that is durable."""

    def ask_for_more(self) -> None:
        """It has something to read, and can take more."""

    def count_dropped(self, qos: int, count: int, *, is_first: bool) -> None:
        """Messages for it were dropped; `is_first`: the first ones for some time."""

    def count_full_window(self, limit: str) -> None:
        """No more messages go to the client before it acknowledges; `limit` is the key."""


class BaseSender:
    """
    The part of a session that sends; `sink` is its client's connection, None while that is away.

    `dropped` counts messages that were its and never left.
    """

    __slots__ = (
        "_dropping",
        "_later",
        "_limits",
        "_session",
        "dropped",
        "sink",
    )

    def __init__(self, session: SendingSession, *, limits: SessionLimits) -> None:
        self.sink: Sink | None = None
        self.dropped = 0
        self._session = session
        self._limits = limits
        self._dropping: frozenset[bool] = frozenset()
        self._later: dict[JournalId, list[Message]] | None = None

    # from the session: its life

    def attach(self, sink: Sink) -> None:
        """The client is here."""
        self.sink = sink
        self._session.look_at_live()

    def detach(self) -> None:
        """The connection is gone."""
        if self.sink is not None:
            self.sink.packet_writer.is_direct = False
        self.sink = None
        self._later = None
        self._dropping = frozenset()

    def catch_up(self, part: JournalId) -> None:
        """The session has caught up in the part: what is live may follow."""
        if self.sink is None:
            return
        self._give_later(part)
        if not self._session.is_behind:
            self._dropping -= {True}

    # from the edge: messages to the client

    def deliver_qos0_after(self, message: Message, part: JournalId) -> None:
        """
        The same, but behind what the session has to catch up with in the part: a live message does
        not overtake the backlog of a session that returns.
        """
        if self.sink is None:
            return
        if part not in self._session.places.behind:
            self._give_later(part)
            self.deliver_qos0(message)
        else:
            if self._later is None:
                self._later = {}
            later = self._later.setdefault(part, [])
            if len(later) < LATER_MESSAGES:
                later.append(message)
            else:
                self.drop(0)

    def deliver_qos0(self, message: Message, *, retain: bool = False) -> None:
        """Send the message to the client that is here and reads; otherwise it is dropped."""
        if self.sink is None:
            return
        packet = message.qos0_packet
        if retain:
            packet = encode_publish(message.topic, message.payload, 0, True, False, None)
        if not self.sink.packet_writer.send_qos0(packet):
            self.look_at_packet_writer()

    def drop(self, qos: int, count: int = 1) -> None:
        """Messages that were its are not delivered: they are counted."""
        is_first = (qos > 0) not in self._dropping
        self._dropping |= {qos > 0}
        self.dropped += count
        self._session.count_dropped(qos, count, is_first=is_first)

    # from the connection

    def pump(self) -> None:
        """The output has room again."""
        if self._dropping:  # else it would become one more empty set, for each of many clients
            self._dropping -= {False}
        self._go_on()

    def look_at_packet_writer(self) -> None:
        """Count what happened at the packet writer."""
        if self.sink is None:
            return
        packet_writer = self.sink.packet_writer
        if packet_writer.dropped:
            dropped, packet_writer.dropped = packet_writer.dropped, 0
            self.drop(0, dropped)
        if packet_writer.fills and not packet_writer.is_told:
            packet_writer.is_told = True
            is_many = packet_writer.in_flight >= self._limits.inflight
            limit = "limits.inflight" if is_many else "limits.session_memory"
            self._session.count_full_window(limit)

    def set_limits(self, limits: SessionLimits) -> None:
        """From now on; what is beyond them already goes when the next message comes."""
        self._limits = limits

    # from the backlog: there may be messages in flight that have to be read again

    @property
    def has_unread(self) -> bool:
        """Whether any have to."""
        return False

    def unread(self) -> list[tuple[int, LogPosition]]:
        """The flows whose message has to be read before they can be sent, in their order."""
        return []

    def give_back(self, packet_id: int, message: Message | None) -> None:
        """A flow's message was read again; None: it is kept no longer, the flow ends."""

    def put_off(self, part: JournalId) -> None:
        """The part's messages in flight cannot be read now: those of others go first."""

    def is_late(self, part: JournalId) -> bool:
        """Whether messages of the part are in flight and cannot be read: no others may follow."""
        return False

    def unload(self) -> None:
        """The client is away for long: messages that can be read again need not be in memory."""

    # internal

    def _go_on(self) -> None:
        """Send what is due, and have more brought where little is left; each kind its own way."""
        raise NotImplementedError

    def _give_later(self, part: JournalId) -> None:
        if self._later:
            for message in self._later.pop(part, ()):
                self.deliver_qos0(message)

    def _answer(self, data: bytes) -> None:
        if self.sink is not None:
            self.sink.packet_writer.send(data)
