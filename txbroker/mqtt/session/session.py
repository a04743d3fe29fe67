"""
A client's state that outlives its connections: see `Session` for its parts.

A session writes through its `Sink`, the connection that it has now. Sockets, time and the sources
of messages are unknown to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Final, Protocol

from txbroker.model.invariant import holds, ordered
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.share_name import GROUP_PREFIX
from txbroker.model.topics import matches
from txbroker.mqtt.session.clean_sender import CleanSender
from txbroker.mqtt.session.cursor import Cursor, Subscription
from txbroker.mqtt.session.cursor_set import CursorSet
from txbroker.mqtt.session.durable_sender import DurableSender
from txbroker.mqtt.session.group_sender import GroupSender
from txbroker.mqtt.session.inbound_publish import InboundPublish
from txbroker.mqtt.session.receiver import SessionReceiver
from txbroker.mqtt.session.session_ports import DeliveryRecorder, Sink
from txbroker.mqtt.session.shared_subscription import SharedSubscription
from txbroker.mqtt.session.window import OutboundMessage, SessionLimits
from txbroker.mqtt.wire.packets import LEVEL_4, Will

_NONE_SHARED: Final[Mapping[str, SharedSubscription]] = MappingProxyType({})

TOPICS_REMEMBERED = 1_000
"""Topics whose matching subscriptions a session caches while it reads a journal."""


class SessionOwner(Protocol):
    """
    Whoever feeds sessions, keeps what is durable of them, and counts what is dropped. `recording`
    is None where the node keeps no ledger.
    """

    @property
    def recording(self) -> DeliveryRecorder | None:
        """Return the ledger that records deliveries; None: the node has no ledger."""

    def has_room(self, session: Session) -> None:
        """Note that a session with unread records can take more."""

    def save(self, session: Session, *, urgent: bool) -> None:
        """
        Save a changed session; `urgent`: call its sender's `on_saved` as soon as that is durable.
        """

    def save_all(self, session: Session) -> None:
        """Save the session's subscriptions, their changed start offsets included."""

    def save_then(self, session: Session, action: Callable[[], None]) -> None:
        """Run `action` when the present state of the session is durable."""

    def dropped(self, session: Session, qos: int, count: int, *, is_first: bool) -> None:
        """Count dropped messages of the session; `is_first`: the first ones for some time."""

    def too_large(self, session: Session, count: int) -> None:
        """Count messages that are larger than the client's maximum packet size."""

    def expired(self, count: int) -> None:
        """Count messages whose interval passed while they waited."""

    def now(self) -> float:
        """Return the seconds since some fixed moment."""

    def zone_of(self, topic: str) -> str:
        """Return the zone of a publish with this topic."""

    def answer_leases(self, leases: list[int]) -> None:
        """Note that a client has answered messages that groups lent."""

    def answer_runs(self, offsets: Mapping[int, list[int]]) -> None:
        """Note that a client has answered messages of runs, by lender."""

    def window_is_full(self, session: Session, limit: str) -> None:
        """
        Note that the window is full until the client acknowledges; `limit` is the configuration
        key.
        """


class Session:
    """
    The session of one client id at one node; `clean`: it ends with its connection.

    `places` say how far the session has come in the journals. `sender` has what goes to the client,
    and `receiver` what comes from it (`has_received`: it is there by now). State that concerns more
    than one of them is here. `may_gather`: publishes of QoS 1 and 2 may arrive in runs.
    `is_special`: True if any of its subscriptions is or was. `when_asked` is called once when less
    is `subscribing`. `shared`: the shared subscriptions by their whole filter. `number`: under
    which a store keeps what it has very many of; 0: none. `expiry`: seconds that a kept session
    outlives its connection; None: `session_limits.age`. `level`: the protocol that its client spoke
    last.
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
        "expiry",
        "has_received",
        "held_size",
        "incarnation",
        "is_over",
        "is_special",
        "may_gather",
        "level",
        "number",
        "sender",
        "shared",
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
        self.expiry: int | None = None
        self.level = LEVEL_4
        self.subscriptions: dict[str, Subscription] = {}
        self.shared: Mapping[str, SharedSubscription] = _NONE_SHARED
        self._changed: dict[str, None] | None = None if clean else {}
        self.number = 0
        self.will: Will | None = None
        self.held_size = 0
        self.subscribing = 0
        self.when_asked: Callable[[], None] | None = None
        self.away_since: float | None = None
        self.is_over = False
        self.is_special = False
        self._places: CursorSet | None = None
        self.sender: DurableSender | CleanSender
        if clean:
            self.sender = CleanSender(self, limits=limits)
        elif client_id.startswith(GROUP_PREFIX):
            self.sender = GroupSender(self, limits=limits)
        else:
            self.sender = DurableSender(self, limits=limits)
        self._receiver: SessionReceiver | None = None
        self.has_received = False
        self.may_gather = False
        self.watcher = watcher
        self._matching: dict[str, tuple[Subscription, ...]] | None = None

    @property
    def sink(self) -> Sink | None:
        """Return the client's connection; None: the client is away."""
        return self.sender.sink

    @property
    def places(self) -> CursorSet:
        """
        Return the session's cursors, created when the session first needs more than live messages.
        """
        if self._places is None:
            self._places = CursorSet(self)
        return self._places

    @property
    def is_behind(self) -> bool:
        """True if a journal has records that the session must read."""
        return self._places is not None and bool(self._places.behind)

    @property
    def cut_off(self) -> Mapping[JournalId, int]:
        """
        Return the unreadable parts that may return, each with the last offset that the session
        took.
        """
        return {} if self._places is None else self._places.cut_off

    def has_met(self, part: JournalId) -> bool:
        """True if the session took records of the part, or must read it."""
        return self._places is not None and self._places.has_met(part)

    @property
    def receiver(self) -> SessionReceiver:
        """Return the client's inbound flows, created at its first publish of QoS 1 or 2."""
        if self._receiver is None:
            self._receiver = SessionReceiver(self)
            self.has_received = True
        return self._receiver

    def open_publishes(self) -> Iterable[InboundPublish]:
        """Return the QoS 2 publishes that the client has not released."""
        return () if self._receiver is None else self._receiver.open()

    @property
    def open_flows(self) -> int:
        """Return how many single publishes of the client are open."""
        return 0 if self._receiver is None else self._receiver.count

    def stored_publishes(self) -> Iterable[InboundPublish]:
        """Return the open QoS 2 publishes that a store must persist."""
        return (flow for flow in self.open_publishes() if flow.is_kept)

    @property
    def durable_sender(self) -> DurableSender:
        """Return the sender of a session that is not clean."""
        assert isinstance(self.sender, DurableSender)
        return self.sender

    def check(self) -> None:
        """State what its parts keep of the rules."""
        if self._places is not None:
            self._places.check()
        if self._receiver is not None:
            self._receiver.check()
        if isinstance(self.sender, DurableSender):
            self.sender.check()
        ordered(self, 34, "0 <= bytes that wait for owners", 0, self.held_size)
        for text, subscription in self.subscriptions.items():
            is_own = subscription.topic_filter == text
            holds(self, 9, "a subscription is kept under its filter", is_own, self.client_id, text)
        ended = self.is_over and self.is_behind
        holds(self, 33, "a session that is over is behind nowhere", not ended, self.client_id)

    # from the edge: its life

    def restore(
        self,
        flows: Iterable[tuple[int, OutboundMessage]],
        held: Iterable[OutboundMessage],
        publishes: Iterable[InboundPublish],
        last_id: int,
    ) -> None:
        """Load the stored state; `last_id` is the packet id of the last message sent."""
        self.durable_sender.restore(flows, held, last_id)
        self.receiver.restore(publishes)

    def detach(self) -> None:
        """Release the closed connection."""
        self._matching = None
        self.when_asked = None
        if self._receiver is not None:
            self._receiver.detach()
        self.sender.detach()
        if self._places is not None:
            self._places.detach()

    def close(self) -> None:
        """End the session, and discard the messages that wait for its client."""
        self.is_over = True
        self.sender.close()
        if self._places is not None:
            self._places.end_all()

    def save(self) -> None:
        """Schedule a save of a durable session's present state."""
        if not self.clean and not self.is_over:
            self.watcher.save(self, urgent=False)

    # from its parts, to its owner

    def save_first(self) -> None:
        """Save the session first; its sender continues when `on_saved` reports it durable."""
        self.watcher.save(self, urgent=True)

    def save_all(self) -> None:
        """Save the session's subscriptions, their changed start offsets included."""
        if not self.clean and not self.is_over:
            self.watcher.save_all(self)

    def save_then(self, action: Callable[[], None]) -> None:
        """Run `action` when the present state of the session is durable."""
        self.watcher.save_then(self, action)

    def request_records(self) -> None:
        """Ask for records of a journal: the session has unread ones, and room for them."""
        self.watcher.has_room(self)

    def count_dropped(self, qos: int, count: int, *, is_first: bool) -> None:
        """Count dropped messages of the session; `is_first`: the first ones for some time."""
        self.watcher.dropped(self, qos, count, is_first=is_first)

    def count_too_large(self, count: int) -> None:
        """Count messages that are larger than the client's maximum packet size."""
        self.watcher.too_large(self, count)

    def count_expired(self, count: int) -> None:
        """Count messages whose interval passed while they waited."""
        self.watcher.expired(count)

    def now(self) -> float:
        """Return the seconds since some fixed moment."""
        return self.watcher.now()

    def answer_leases(self, leases: list[int]) -> None:
        """Note that the client has answered messages that groups lent."""
        self.watcher.answer_leases(leases)

    def answer_runs(self, offsets: Mapping[int, list[int]]) -> None:
        """Note that the client has answered messages of runs, by lender."""
        self.watcher.answer_runs(offsets)

    def count_full_window(self, limit: str) -> None:
        """
        Note that the window is full until the client acknowledges; `limit` is the configuration
        key.
        """
        self.watcher.window_is_full(self, limit)

    def zone_of(self, topic: str) -> str:
        """Return the zone of a publish with this topic."""
        return self.watcher.zone_of(topic)

    # from the edge: subscriptions

    def add(self, subscription: Subscription) -> None:
        """Add a subscription, in place of one with the same filter."""
        topic_filter = subscription.topic_filter
        self.subscriptions[topic_filter] = subscription
        self.is_special = self.is_special or subscription.is_special
        subscription.changed = self._changed
        if self._changed is not None:
            self._changed[topic_filter] = None
        if self.sender.sink is not None:
            self.sender.sink.packet_writer.reads = None  # it may want what no journal is read for

    def drop(self, topic_filter: str) -> Subscription:
        """Remove a subscription, and return it."""
        if self._changed is not None:
            self._changed[topic_filter] = None
        return self.subscriptions.pop(topic_filter)

    def dequeue_changed(self) -> list[str]:
        """Return the filters that were added, changed or removed since the last call."""
        changed = list(self._changed or ())
        if self._changed:
            self._changed.clear()
        return changed

    def change_all(self) -> None:
        """Mark all subscriptions and flows as unsaved."""
        if self._changed is not None:
            self._changed.update(dict.fromkeys(self.subscriptions))
        if self._receiver is not None:
            self._receiver.change_all()

    def share(self, subscription: SharedSubscription) -> None:
        """Add a shared subscription, in place of one with the same filter."""
        if not isinstance(self.shared, dict):
            self.shared = {}
        self.shared[subscription.topic_filter] = subscription

    def unshare(self, topic_filter: str) -> None:
        """Remove a shared subscription."""
        if isinstance(self.shared, dict):
            del self.shared[topic_filter]

    # from the edge: messages

    def finish_part(self, cursor: Cursor) -> None:
        """Finish catch-up behind a cursor: live messages of its part may follow."""
        self.places.catch_up(cursor)
        self.sender.catch_up(cursor.part)

    def set_aside(self, part: JournalId, offset: int) -> None:
        """Suspend an unreadable part that may return; records above `offset` are still due."""
        cursor = self.places.set_aside(part, offset)
        if cursor is not None:
            self.finish_part(cursor)

    def needs(self) -> Iterable[LogPosition]:
        """
        Return the positions up to which the session needs no record, at least one for each part.
        """
        needed = self.sender.needs()
        return needed if self._places is None else chain(self._places.needs(), needed)

    def matching(self, topic: str) -> tuple[Subscription, ...]:
        """Return the subscriptions that match the topic."""
        known = self._matching
        if known is None or len(known) >= TOPICS_REMEMBERED:
            known = self._matching = {}
        found = known.get(topic)
        if found is None:
            found = tuple(s for f, s in self.subscriptions.items() if matches(f, topic))
            known[topic] = found
        return found

    def start_subscribing(self, filters: int = 1) -> None:
        """Note a SUBSCRIBE with that many filters whose SUBACK is due."""
        self.subscribing += filters
        self.update_live()

    def end_subscribing(self, filters: int = 1) -> None:
        """Note that the SUBACK has left, or is not due any more."""
        self.subscribing -= filters
        self.update_live()
        action, self.when_asked = self.when_asked, None
        if action is not None:
            action()

    def update_live(self) -> None:
        """
        Let live messages go straight to the client, or stop that, as the session's state requires.
        """
        sink = self.sender.sink
        if sink is not None:
            sink.packet_writer.is_direct = self._is_plain and not self.subscribing
            sink.packet_writer.reads = None

    def pass_by(self, part: JournalId) -> None:
        """
        Let live messages of QoS 1 and 2 of a part pass the session by, which reads all of them in
        its turn, until its state changes.
        """
        sink = self.sender.sink
        if sink is not None and not self.subscribing:
            sink.packet_writer.reads = part

    def is_live(self, part: JournalId) -> bool:
        """True if live messages of the part may go to the connected client."""
        is_here = self.sender.sink is not None and not self.subscribing
        return is_here and self._is_plain and not self.sender.is_late(part)

    @property
    def _is_plain(self) -> bool:
        return self._places is None or self._places.is_plain

    def on_subscriptions_changed(self) -> None:
        """Discard the cache of matching subscriptions."""
        self._matching = None
