"""
A clean session as the sender to its client (MQTT 3.1.1, section 4.3).

Theory of operation. A clean session ends with its connection, so no message is resent and none must
be durable. The connection's packet writer has the messages in flight and those that wait behind
them. Most messages get there without this module. Messages without room stay in the journal, as
with any session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from txbroker.core import Run
from txbroker.model.log_position import LogPosition
from txbroker.mqtt.session.base_sender import BaseSender, SendingSession
from txbroker.mqtt.session.session_ports import Sink
from txbroker.mqtt.session.shared_subscription import SharedSubscription
from txbroker.mqtt.session.window import OutboundMessage, SessionLimits
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.return_codes import wrong_answer


class CleanSender(BaseSender):
    """
    The sender of a clean session.

    `_leases` has the lease and the QoS of each message in flight that was lent by itself, by packet
    id; None: a group has lent nothing.
    """

    __slots__ = ("_leases",)

    def __init__(self, session: SendingSession, *, limits: SessionLimits) -> None:
        BaseSender.__init__(self, session, limits=limits)  # `super` costs as much as the call
        self._leases: dict[int, tuple[int, int]] | None = None

    # from the session: its life

    def attach(self, sink: Sink) -> None:
        """Begin to send on the client's connection."""
        most = min(self._limits.inflight, sink.receive_maximum)
        sink.packet_writer.open_window(most, self._limits.memory)
        BaseSender.attach(self, sink)

    def close(self) -> None:
        """Stop sending."""
        self.detach()
        del self._session  # a cycle of references would wait for the garbage collector

    # from the edge: messages to the client

    def deliver(self, entry: OutboundMessage) -> bool:
        """
        Send or queue a QoS 1 or 2 message.

        Return False if no room is left: the caller must read the message again at its place. A
        message without a place is always accepted; beyond the limits the oldest of these is
        dropped.
        """
        if self.sink is None:
            return True  # the session ends with its connection
        packet_writer, message = self.sink.packet_writer, entry.message
        assert message is not None
        topic = message.topic.encode()
        if entry.place is not None:
            part, offset = entry.place
            is_given = packet_writer.deliver(
                topic,
                message.payload,
                entry.qos,
                entry.size,
                part,
                offset,
                properties=entry.properties,
                retain=entry.retain,
            )
        else:
            packet_writer.deliver_first(
                topic,
                message.payload,
                entry.qos,
                entry.size,
                properties=entry.properties,
                retain=entry.retain,
            )
            packet_writer.pump()
            dropped = packet_writer.drop_first(self._limits.messages, self._limits.size)
            if dropped:
                self.drop(entry.qos, dropped)
            is_given = True
        self.poll_packet_writer()
        return is_given

    def queue(self, entry: OutboundMessage) -> bool:
        """Queue a QoS 1 or 2 message from the journal; return False if no room is left."""
        if self.sink is None:
            return False
        assert entry.place is not None and entry.message is not None
        if self._would_wait(entry.message):
            return False
        part, offset = entry.place
        return self.sink.packet_writer.redeliver(
            entry.message.topic.encode(),
            entry.message.payload,
            entry.qos,
            entry.size,
            part,
            offset,
            properties=entry.properties,
            retain=entry.retain,
        )

    def send_queued(self) -> None:
        """Send queued messages, up to the limits in flight."""
        self._send_due()

    @property
    def is_hungry(self) -> bool:
        """True if the session has unread records, and room for them."""
        return self.has_room() and self._session.is_behind

    def has_room(self) -> bool:
        """True if a record of a journal may be fetched now."""
        if self.sink is None or self._session.subscribing:
            return False
        return self.sink.packet_writer.queue_has_room

    def set_limits(self, limits: SessionLimits) -> None:
        """Set the limits; messages beyond them are dropped when the next message comes."""
        super().set_limits(limits)
        if self.sink is not None:
            self.sink.packet_writer.open_window(self.inflight, limits.memory)

    # from the connection

    def on_pubacks(self, packet_ids: Iterable[int]) -> None:
        """Complete the QoS 1 deliveries with these packet ids."""
        if self.sink is not None:
            ids = list(packet_ids)
            is_right = self.sink.packet_writer.acknowledge(ids)
            self._send_due()
            if not is_right:
                raise wrong_answer(ids[-1])

    def on_pubrec(self, packet_id: int) -> None:
        """Answer PUBREL for a QoS 2 delivery, known or unknown; raises for a message of QoS 1."""
        if self.sink is not None and not self.sink.packet_writer.receive(packet_id):
            raise wrong_answer(packet_id)

    def on_refused(self, packet_id: int) -> None:
        """End a QoS 2 delivery that the client has refused; raises for a message of QoS 1."""
        if self.sink is not None:
            if not self.sink.packet_writer.refuse(packet_id):
                raise wrong_answer(packet_id)
            self._send_due()

    def on_pubcomp(self, packet_id: int) -> None:
        """Complete a QoS 2 delivery."""
        if self.sink is not None:
            if not self.sink.packet_writer.complete(packet_id):
                raise wrong_answer(packet_id)
            self._send_due()

    def poll_packet_writer(self) -> None:
        """Report answers to lent messages too."""
        super().poll_packet_writer()
        if self._leases is not None and self.sink is not None:
            landed = self.sink.packet_writer.dequeue_landed()
            if landed:
                leases = [self._leases.pop(packet_id)[0] for packet_id in landed]
                self._session.answer_leases(leases)
            answered = self.sink.packet_writer.dequeue_answered()
            if answered:
                self._session.answer_runs(answered)

    # from a group, which lends messages

    @property
    def lend_room(self) -> int:
        """Return how many lent messages the client may get now."""
        return 0 if self.sink is None else self.sink.packet_writer.lend_room

    def lend(self, entry: OutboundMessage) -> bool:
        """Send a message that a group lends; return False if there is no room."""
        if self.sink is None:
            return False
        message = entry.message
        assert message is not None
        packet_id = self.sink.packet_writer.lend(
            message.topic.encode(),
            message.payload,
            entry.qos,
            entry.size,
            entry.properties,
            retain=entry.retain,
            again=entry.is_again,
        )
        if not packet_id:
            return False
        if self._leases is None:
            self._leases = {}
        self._leases[packet_id] = entry.lease, entry.qos
        return True

    def lend_all(
        self,
        subscription: SharedSubscription,
        places: Sequence[LogPosition],
        messages: Sequence[Message],
        leases: Sequence[int],
        *,
        is_again: bool,
    ) -> int:
        """Send messages that a group lends, as `lend` does, without an object for each."""
        if self.sink is None:
            return 0
        lend, known = self.sink.packet_writer.lend, self._leases
        if known is None:
            known = self._leases = {}
        most, properties = subscription.qos, subscription.properties
        is_as_published = subscription.is_as_published
        for given, message in enumerate(messages):
            qos = min(most, message.qos)
            packet_id = lend(
                message.topic.encode(),
                message.payload,
                qos,
                message.size,
                message.properties + properties,
                retain=is_as_published and message.retain,
                again=is_again and qos == 1,
            )
            if not packet_id:
                return given
            known[packet_id] = leases[given], qos
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
        """Send messages of QoS 1 that a group lends, without a turn of Python for each."""
        if self.sink is None or subscription.identifier or not subscription.qos:
            return 0
        if self._leases is None:
            self._leases = {}
        lend_run = self.sink.packet_writer.lend_run
        return lend_run(run, places.start, places.stop, lender, again=is_again)

    def reclaim(self) -> tuple[list[int], list[int]]:
        """
        Take the lent messages back, as the client leaves.

        Returns the leases of the messages that another client may get, and of those that none may.
        A QoS 2 message was sent, and the session ends [MQTT-4.8.2-5].
        """
        self.poll_packet_writer()
        lent, self._leases = self._leases, None
        back: list[int] = []
        ended: list[int] = []
        for lease, qos in (lent or {}).values():
            (back if qos == 1 else ended).append(lease)
        return back, ended

    def reclaim_runs(self) -> Mapping[int, list[int]]:
        """Take the messages of runs back, as the client leaves; return their offsets by lender."""
        return {} if self.sink is None else self.sink.packet_writer.unanswered()

    # from the edge and from operators

    def needs(self) -> Iterable[LogPosition]:
        """Return the positions from which the queued messages can be read again."""
        if not self.queued:
            return ()  # as of most of very many clients, each second
        assert self.sink is not None
        first = self.sink.packet_writer.first_queued()
        return [LogPosition(part, offset - 1) for part, offset in first.items()]

    @property
    def queued(self) -> int:
        """Return how many messages wait behind the window."""
        return 0 if self.sink is None else self.sink.packet_writer.waiting

    # internal

    def _would_wait(self, message: Message) -> bool:
        """
        True if a message that expires would wait behind the window, where it does not age.

        Such a message stays in the journal, which knows its age.
        """
        if message.expiry is None:
            return False
        assert self.sink is not None
        packet_writer = self.sink.packet_writer
        is_full = packet_writer.in_flight >= self.inflight or not packet_writer.has_room
        return is_full or packet_writer.waiting > 0

    def _send_due(self) -> None:
        """Send due messages, and fetch more if few are left."""
        if self.sink is None:
            return
        packet_writer = self.sink.packet_writer
        packet_writer.pump()
        self.poll_packet_writer()
        if self._session.is_behind and packet_writer.is_short:
            self._session.request_records()
