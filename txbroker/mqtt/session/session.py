"""
One client's state that outlives its connections: see `Session` for what it is made of.

It writes through its `Sink`, the connection that it has now; it knows neither sockets nor time, nor
where messages come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.topics import matches
from txbroker.mqtt.session.clean_sender import CleanSender
from txbroker.mqtt.session.cursor import Cursor, Subscription
from txbroker.mqtt.session.cursor_set import CursorSet
from txbroker.mqtt.session.durable_sender import DurableSender
from txbroker.mqtt.session.inbound_publish import InboundPublish
from txbroker.mqtt.session.receiver import SessionReceiver
from txbroker.mqtt.session.session_ports import DeliveryRecorder, Sink
from txbroker.mqtt.session.window import OutboundMessage, SessionLimits
from txbroker.mqtt.wire.packets import Will

TOPICS_REMEMBERED = 1_000
"""Topics for which a session that reads the journal keeps its subscriptions worked out."""


class SessionOwner(Protocol):
    """
    Whoever feeds sessions, keeps what is durable of them, and counts what is dropped. `recording`
    is None where the node keeps no ledger.
    """

    @property
    def recording(self) -> DeliveryRecorder | None:
        """Who is told of deliveries."""

    def has_room(self, session: Session) -> None:
        """A session that has something to read can take more."""

    def save(self, session: Session, *, urgent: bool) -> None:
        """It changed; `urgent`: tell its sender's `on_saved` as soon as that is durable."""

    def save_all(self, session: Session) -> None:
        """Its subscriptions changed, or where they begin."""

    def save_then(self, session: Session, action: Callable[[], None]) -> None:
        """Run `action` when the session is durable as it is now."""

    def dropped(self, session: Session, qos: int, count: int, *, is_first: bool) -> None:
        """Messages for the session were dropped; `is_first`: the first ones for some time."""

    def zone_of(self, topic: str) -> str:
        """The zone that a publish of the topic goes to."""

    def window_is_full(self, session: Session, limit: str) -> None:
        """No more messages go to the client before it acknowledges; `limit` is the key."""


class Session:
    """
    The session of one client id at one node; `clean`: it ends with its connection.

    `places` say how far it has come in the journals, `sender` has what goes to the client and
    `receiver` what comes from it (`has_received`: it is there by now); what concerns more than one
    of them is here. `when_asked` is called once when less is `subscribing`. `number`: under which a
    store keeps what it has very many of; 0: none.
    """

    __slots__ = (
        "__weakref__",
        "_changed",
        "_matching",
        "_places",
        "_receiver",
        "away_since",
        "clean",
        "client_id",
        "has_received",
        "held_size",
        "incarnation",
        "is_over",
        "number",
        "sender",
        "subscribing",
        "subscriptions",
        "watcher",
        "when_asked",
        "will",
    )

    def __init__(
        self, client_id: str, *, clean: bool, limits: SessionLimits, watcher: SessionOwner
    ) -> None:
        self.client_id = client_id
        self.clean = clean
        self.incarnation = 1
        self.subscriptions: dict[str, Subscription] = {}
        self._changed: dict[str, None] | None = None if clean else {}
        self.number = 0
        self.will: Will | None = None
        self.held_size = 0
        self.subscribing = 0
        self.when_asked: Callable[[], None] | None = None
        self.away_since: float | None = None
        self.is_over = False
        self._places: CursorSet | None = None
        make_sender = CleanSender if clean else DurableSender
        self.sender: DurableSender | CleanSender = make_sender(self, limits=limits)
        self._receiver: SessionReceiver | None = None
        self.has_received = False
        self.watcher = watcher
        self._matching: dict[str, tuple[Subscription, ...]] | None = None

    @property
    def sink(self) -> Sink | None:
        """The client's connection; None: it is away."""
        return self.sender.sink

    @property
    def places(self) -> CursorSet:
        """How far it has come; made when that is more than what its client got live."""
        if self._places is None:
            self._places = CursorSet(self)
        return self._places

    @property
    def is_behind(self) -> bool:
        """Whether there is something to be read for it in some journal."""
        return self._places is not None and bool(self._places.behind)

    @property
    def cut_off(self) -> Mapping[JournalId, int]:
        """Parts that cannot be read now and may come back, with what it has of each."""
        return {} if self._places is None else self._places.cut_off

    def has_met(self, part: JournalId) -> bool:
        """True if it was given something of the part, or is to read it."""
        return self._places is not None and self._places.has_met(part)

    @property
    def receiver(self) -> SessionReceiver:
        """What comes from the client; made when it first publishes what has to be acknowledged."""
        if self._receiver is None:
            self._receiver = SessionReceiver(self)
            self.has_received = True
        return self._receiver

    def open_publishes(self) -> Iterable[InboundPublish]:
        """QoS 2 publishes that its client has not released."""
        return () if self._receiver is None else self._receiver.open()

    @property
    def open_flows(self) -> int:
        """How many publishes of its client are under way, each by itself."""
        return 0 if self._receiver is None else self._receiver.count

    def kept_publishes(self) -> Iterable[InboundPublish]:
        """Those of them of which a store has to know."""
        return (flow for flow in self.open_publishes() if flow.is_kept)

    @property
    def may_gather(self) -> bool:
        """Whether publishes of QoS 1 and 2 may come in runs now."""
        return self._receiver is not None and self._receiver.is_plain

    @property
    def durable_sender(self) -> DurableSender:
        """The sender of a session that is not clean."""
        assert isinstance(self.sender, DurableSender)
        return self.sender

    # from the edge: its life

    def restore(
        self,
        flows: Iterable[tuple[int, OutboundMessage]],
        held: Iterable[OutboundMessage],
        publishes: Iterable[InboundPublish],
        last_id: int,
    ) -> None:
        """Be as the store says; `last_id` is the last packet id that was given to a message."""
        self.durable_sender.restore(flows, held, last_id)
        self.receiver.restore(publishes)

    def detach(self) -> None:
        """The connection is gone."""
        self._matching = None
        self.when_asked = None
        if self._receiver is not None:
            self._receiver.detach()
        self.sender.detach()
        if self._places is not None:
            self._places.detach()

    def close(self) -> None:
        """The session ends, with all that waits for its client; nothing comes to it any more."""
        self.is_over = True
        self.sender.close()
        if self._places is not None:
            self._places.end_all()

    def save(self) -> None:
        """It changed; a durable session is kept as it is now, soon."""
        if not self.clean and not self.is_over:
            self.watcher.save(self, urgent=False)

    # from its parts: what its owner does for them

    def save_first(self) -> None:
        """It changed, and its sender goes on when that is durable: `on_saved` tells it."""
        self.watcher.save(self, urgent=True)

    def save_all(self) -> None:
        """Its subscriptions changed, or where they begin."""
        if not self.clean and not self.is_over:
            self.watcher.save_all(self)

    def save_then(self, action: Callable[[], None]) -> None:
        """Run `action` when it is durable as it is now."""
        self.watcher.save_then(self, action)

    def ask_for_more(self) -> None:
        """It has something to read, and can take more."""
        self.watcher.has_room(self)

    def count_dropped(self, qos: int, count: int, *, is_first: bool) -> None:
        """Messages for it were dropped; `is_first`: the first ones for some time."""
        self.watcher.dropped(self, qos, count, is_first=is_first)

    def count_full_window(self, limit: str) -> None:
        """No more messages go to the client before it acknowledges; `limit` is the key."""
        self.watcher.window_is_full(self, limit)

    def zone_of(self, topic: str) -> str:
        """The zone that a publish of the topic goes to."""
        return self.watcher.zone_of(topic)

    # from the edge: what it is subscribed to

    def add(self, subscription: Subscription) -> None:
        """It has this one, in place of one with the same filter."""
        topic_filter = subscription.topic_filter
        self.subscriptions[topic_filter] = subscription
        subscription.changed = self._changed
        if self._changed is not None:
            self._changed[topic_filter] = None

    def drop(self, topic_filter: str) -> Subscription:
        """It has this one no longer."""
        if self._changed is not None:
            self._changed[topic_filter] = None
        return self.subscriptions.pop(topic_filter)

    def take_changed(self) -> list[str]:
        """The filters that came, changed or went since the last call."""
        changed = list(self._changed or ())
        if self._changed:
            self._changed.clear()
        return changed

    def change_all(self) -> None:
        """All that it has is to be kept anew."""
        if self._changed is not None:
            self._changed.update(dict.fromkeys(self.subscriptions))
        if self._receiver is not None:
            self._receiver.change_all()

    # from the edge: which messages are its

    def pass_part(self, cursor: Cursor) -> None:
        """It has taken all that there is behind the cursor; what is live may follow."""
        self.places.catch_up(cursor)
        self.sender.catch_up(cursor.part)

    def set_aside(self, part: JournalId, offset: int) -> None:
        """The part cannot be read, and may come back: what lies above the offset is to come."""
        cursor = self.places.set_aside(part, offset)
        if cursor is not None:
            self.pass_part(cursor)

    def needs(self) -> Iterator[LogPosition]:
        """The places up to which it needs nothing of their parts, one or more for each part."""
        if self._places is not None:
            yield from self._places.needs()
        yield from self.sender.needs()

    def matching(self, topic: str) -> tuple[Subscription, ...]:
        """Its subscriptions that match the topic."""
        known = self._matching
        if known is None or len(known) >= TOPICS_REMEMBERED:
            known = self._matching = {}
        found = known.get(topic)
        if found is None:
            found = tuple(s for f, s in self.subscriptions.items() if matches(f, topic))
            known[topic] = found
        return found

    def begin_subscribing(self, filters: int = 1) -> None:
        """A SUBSCRIBE of so many filters is on its way."""
        self.subscribing += filters
        self.look_at_live()

    def end_subscribing(self, filters: int = 1) -> None:
        """Its SUBACK has left, or is not due any more."""
        self.subscribing -= filters
        self.look_at_live()
        action, self.when_asked = self.when_asked, None
        if action is not None:
            action()

    def look_at_live(self) -> None:
        """What comes live may go straight to the client, or not any more."""
        sink = self.sender.sink
        if sink is not None:
            sink.packet_writer.is_direct = self._is_plain and not self.subscribing

    def is_live(self, part: JournalId) -> bool:
        """Whether what comes live in the part may go to the client that is here."""
        is_here = self.sender.sink is not None and not self.subscribing
        return is_here and self._is_plain and not self.sender.is_late(part)

    @property
    def _is_plain(self) -> bool:
        return self._places is None or self._places.is_plain

    def on_subscriptions_changed(self) -> None:
        """What matches has to be worked out anew."""
        self._matching = None
