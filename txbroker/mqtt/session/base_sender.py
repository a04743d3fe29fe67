"""The common part of all senders: the path to the connected client, and QoS 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from txbroker.core import Run
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.cursor_set import CursorSet
from txbroker.mqtt.session.session_ports import DeliveryRecorder, Sink
from txbroker.mqtt.session.shared_subscription import SharedSubscription
from txbroker.mqtt.session.window import Lent, OutboundMessage, SessionLimits
from txbroker.mqtt.wire.encoder import encode
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import Pubrel

LATER_MESSAGES = 1_000
"""Upper bound of QoS 0 messages of one part that wait for the session's catch-up."""


class Recorded(Protocol):
    """The owner of the delivery ledger, if the node has one."""

    @property
    def recording(self) -> DeliveryRecorder | None:
        """Return the ledger that records deliveries; None: the node has no ledger."""


class SendingSession(Protocol):
    """The session, as its sender sees it."""

    @property
    def client_id(self) -> str:
        """Return the client's id."""

    @property
    def is_over(self) -> bool:
        """True if the session has ended."""

    @property
    def is_behind(self) -> bool:
        """True if a journal has records that the session must read."""

    @property
    def subscribing(self) -> int:
        """Return the number of filters whose SUBACK is due."""

    @property
    def places(self) -> CursorSet:
        """Return the session's cursors."""

    @property
    def watcher(self) -> Recorded:
        """Return the session's owner, for the ledger of each acknowledgement alone."""

    def update_live(self) -> None:
        """
        Let live messages go straight to the client, or stop that, as the session's state requires.
        """

    def save(self) -> None:
        """Schedule a save of a durable session's present state."""

    def save_first(self) -> None:
        """Save the session first; its sender continues when that is durable."""

    def request_records(self) -> None:
        """Ask for records of a journal: the session has unread ones, and room for them."""

    def count_dropped(self, qos: int, count: int, *, is_first: bool) -> None:
        """Count dropped messages of the session; `is_first`: the first ones for some time."""

    def count_too_large(self, count: int) -> None:
        """Count messages that are larger than the client's maximum packet size."""

    def count_expired(self, count: int) -> None:
        """Count messages whose interval passed while they waited."""

    def now(self) -> float:
        """Return the seconds since some fixed moment."""

    def save_then(self, action: Callable[[], None]) -> None:
        """Run `action` when the session's present state is durable."""

    def answer_leases(self, leases: list[int]) -> None:
        """Note that the client has answered messages that a group lent."""

    def answer_runs(self, offsets: Mapping[int, list[int]]) -> None:
        """Note that the client has answered messages of runs, by lender."""

    def count_full_window(self, limit: str) -> None:
        """
        Note that the window is full until the client acknowledges; `limit` is the configuration
        key.
        """


_NONE_DROPPED: Final[frozenset[bool]] = frozenset()
"""One for all sessions: each call of `frozenset` makes another empty set."""


class BaseSender:
    """
    The sending part of a session; `sink` is the client's connection, None while the client is away.

    `dropped` counts the session's messages that never left.
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
        self._dropping = _NONE_DROPPED
        self._later: dict[JournalId, list[OutboundMessage]] | None = None

    @property
    def inflight(self) -> int:
        """Return how many messages may be unacknowledged: the node's limit, or the client's."""
        most = self._limits.inflight
        return most if self.sink is None else min(most, self.sink.receive_maximum)

    def is_too_large(self, entry: OutboundMessage) -> bool:
        """
        True if the client accepts no packet of this size.

        The message is dropped for this client alone, and counts as delivered [MQTT-3.1.2-25].
        """
        if self.sink is None or not self.sink.packet_writer.max_packet:
            return False
        if entry.released or entry.message is None:
            return False
        packet_writer = self.sink.packet_writer
        packet = entry.packet(1, dup=False, level=packet_writer.level)
        if len(packet) <= packet_writer.max_packet:
            return False
        self._session.count_too_large(1)
        return True

    # from the session: its life

    def attach(self, sink: Sink) -> None:
        """Begin to send on the client's connection."""
        self.sink = sink
        self._session.update_live()

    def detach(self) -> None:
        """Release the closed connection."""
        if self.sink is not None:
            self.sink.packet_writer.is_direct = False
        self.sink = None
        self._later = None
        self._dropping = _NONE_DROPPED

    def catch_up(self, part: JournalId) -> None:
        """Send the live messages that waited for the session's catch-up in the part."""
        if self.sink is None:
            return
        self._defer_part(part)
        if not self._session.is_behind:
            self._dropping -= {True}

    # from the edge: messages to the client

    def deliver_qos0_after(self, entry: OutboundMessage, part: JournalId) -> None:
        """
        Send a QoS 0 message after the session's catch-up in the part.

        Otherwise a live message would overtake the unread records of a session that returns.
        """
        if self.sink is None:
            return
        if part not in self._session.places.behind:
            self._defer_part(part)
            self.deliver_qos0(entry)
        else:
            if self._later is None:
                self._later = {}
            later = self._later.setdefault(part, [])
            if len(later) < LATER_MESSAGES:
                later.append(entry)
            else:
                self.drop(0)

    def deliver_qos0(self, entry: OutboundMessage) -> None:
        """
        Send a QoS 0 message to the connected client; drop it if the client is away or does not
        read.
        """
        if self.sink is None:
            return
        packet_writer = self.sink.packet_writer
        if not packet_writer.send_qos0(entry.qos0_packet(packet_writer.level)):
            self.poll_packet_writer()

    def drop(self, qos: int, count: int = 1) -> None:
        """Count messages of the session that are not delivered."""
        is_first = (qos > 0) not in self._dropping
        self._dropping |= {qos > 0}
        self.dropped += count
        self._session.count_dropped(qos, count, is_first=is_first)

    # from the connection

    def pump(self) -> None:
        """Continue to send: the connection's output has room again."""
        if self._dropping:  # without this check, each of many clients would get its own empty set
            self._dropping -= {False}
        self._send_due()

    def poll_packet_writer(self) -> None:
        """Count the packet writer's dropped messages and full windows."""
        if self.sink is None:
            return
        packet_writer = self.sink.packet_writer
        if packet_writer.dropped:
            dropped, packet_writer.dropped = packet_writer.dropped, 0
            self.drop(0, dropped)
        if packet_writer.too_large:
            too_large, packet_writer.too_large = packet_writer.too_large, 0
            self._session.count_too_large(too_large)
        if packet_writer.fills and not packet_writer.is_told:
            packet_writer.is_told = True
            is_many = packet_writer.in_flight >= self.inflight
            limit = "limits.inflight" if is_many else "limits.session_memory"
            self._session.count_full_window(limit)

    def set_limits(self, limits: SessionLimits) -> None:
        """Set the limits; messages beyond them are dropped when the next message comes."""
        self._limits = limits

    # from catch-up: messages in flight to read again

    @property
    def has_unread(self) -> bool:
        """True if messages in flight must be read again; a clean session has none."""
        return False

    def unread(self) -> list[tuple[int, LogPosition]]:
        """
        Return the packet ids and positions to read before their messages can be sent, in order.
        """
        return []

    def restore_packet(self, packet_id: int, message: Message | None) -> None:
        """
        Set a message that was read again; None: the journal has expired it, and the flow ends.
        """

    def defer(self, part: JournalId) -> None:
        """Resend other parts first: this part cannot be read now."""

    def is_late(self, part: JournalId) -> bool:
        """
        True if messages of the part are in flight and unreadable: no other of the part may follow.
        """
        return False

    def unload(self) -> None:
        """Forget messages that a journal has: the client has been away for long."""

    # from catch-up: runs of a journal

    @property
    def takes_runs(self) -> bool:
        """True if records may be launched as runs: a group's sender."""
        return False

    @property
    def run_room(self) -> int:
        """Return how many records may be launched as a run; 0: each goes by itself."""
        return 0

    def launch_run(self, part: JournalId, run: Run) -> None:
        """Put records of QoS 1, of which none expires, in flight together."""
        raise NotImplementedError

    # from a group, which lends messages

    @property
    def lend_room(self) -> int:
        """Return how many lent messages the client may get now."""
        return 0

    def lend(self, entry: OutboundMessage) -> bool:
        """Send a message that a group lends; return False if there is no room."""
        raise NotImplementedError

    def lend_all(
        self,
        subscription: SharedSubscription,
        places: Sequence[LogPosition],
        messages: Sequence[Message],
        leases: Sequence[int],
        *,
        is_again: bool,
    ) -> int:
        """
        Send messages that a group lends, up to the first without room; return how many.

        The group knows the messages by `places`, and its edge by `leases`.
        """
        for given, message in enumerate(messages):
            entry = subscription.entry(message)
            entry.lease, entry.is_again = leases[given], is_again and entry.qos == 1
            entry.lent = Lent(subscription.topic_filter, places[given])
            if not self.lend(entry):
                return given
        return len(messages)

    def lend_run(
        self,
        subscription: SharedSubscription,
        run: Run,
        places: range,
        lender: int,
        *,
        is_again: bool,
    ) -> int:
        """
        Send these messages of a run that a group lends, as far as the core can; return how many.

        The client's answers are reported with their `lender` (`answer_runs`).
        """
        return 0

    def reclaim(self) -> tuple[list[int], list[int]]:
        """
        Take the lent messages back, as the client leaves.

        Returns the leases of the messages that another client may get, and of those that none may.
        """
        raise NotImplementedError

    def reclaim_runs(self) -> Mapping[int, list[int]]:
        """Take the messages of runs back, as the client leaves; return their offsets by lender."""
        return {}

    # internal

    def _send_due(self) -> None:
        """Send due messages, and fetch more if few are left, as each kind of sender does."""
        raise NotImplementedError

    def _defer_part(self, part: JournalId) -> None:
        if self._later:
            for entry in self._later.pop(part, ()):
                self.deliver_qos0(entry)

    def _answer(self, packet: Pubrel) -> None:
        if self.sink is not None:
            packet_writer = self.sink.packet_writer
            packet_writer.send(encode(packet, packet_writer.level))
