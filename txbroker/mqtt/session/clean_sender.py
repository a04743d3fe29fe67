"""
A clean session as the sender to its client (MQTT 3.1.1, section 4.3).

It ends with its connection, so nothing is ever sent again and nothing has to be durable: what is in
flight and what waits behind it is in the packet writer of the connection, and most messages get
there without passing here. What there is no room for is left to the journal, as with any session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from txbroker.model.log_position import LogPosition
from txbroker.mqtt.session.base_sender import BaseSender
from txbroker.mqtt.session.session_ports import Sink
from txbroker.mqtt.session.window import SessionLimits
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.return_codes import wrong_answer


class CleanSender(BaseSender):
    """What goes to the client of a clean session."""

    __slots__ = ()

    # from the session: its life

    def attach(self, sink: Sink) -> None:
        """The client is here."""
        sink.packet_writer.open_window(self._limits.inflight, self._limits.memory)
        super().attach(sink)

    def close(self) -> None:
        """Nothing goes to the client any more."""
        self.detach()
        del self._session  # two that know each other would stay for the collector

    # from the edge: messages to the client

    def deliver(
        self, message: Message, qos: int, place: LogPosition | None, *, retain: bool = False
    ) -> bool:
        """
        Send a QoS 1/2 message, or queue it; `qos` is what this client gets, `retain` its flag.

        False: there is no room; it has to be read at its place again. What has no place to be read
        from is always taken; the oldest of it is dropped beyond the limits.
        """
        if self.sink is None:
            return True  # the session ends with its connection
        packet_writer, topic = self.sink.packet_writer, message.topic.encode()
        if place is not None:
            part, offset = place
            is_given = packet_writer.give(topic, message.payload, qos, message.size, part, offset)
        else:
            packet_writer.give_first(topic, message.payload, qos, message.size, retain=retain)
            packet_writer.pump()
            dropped = packet_writer.drop_first(self._limits.messages, self._limits.size)
            if dropped:
                self.drop(qos, dropped)
            is_given = True
        self.look_at_packet_writer()
        return is_given

    def queue(self, message: Message, qos: int, place: LogPosition) -> bool:
        """Queue a QoS 1/2 message that was read from the journal; False: there is no room."""
        if self.sink is None:
            return False
        part, offset = place
        topic = message.topic.encode()
        return self.sink.packet_writer.give_again(
            topic, message.payload, qos, message.size, part, offset
        )

    def send_queued(self) -> None:
        """Send of what was queued as much as may be in flight."""
        self._go_on()

    @property
    def is_hungry(self) -> bool:
        """Whether there is something to read for it that it can take."""
        return self.has_room() and self._session.is_behind

    def has_room(self) -> bool:
        """Whether something that can be read again later is worth bringing now."""
        if self.sink is None or self._session.subscribing:
            return False
        return self.sink.packet_writer.queue_has_room

    def set_limits(self, limits: SessionLimits) -> None:
        """From now on; what is beyond them already goes when the next message comes."""
        super().set_limits(limits)
        if self.sink is not None:
            self.sink.packet_writer.open_window(limits.inflight, limits.memory)

    # from the connection

    def on_pubacks(self, packet_ids: Iterable[int]) -> None:
        """The client has these QoS 1 messages."""
        if self.sink is not None:
            ids = list(packet_ids)
            is_right = self.sink.packet_writer.acknowledge(ids)
            self._go_on()
            if not is_right:
                raise wrong_answer(ids[-1])

    def on_pubrec(self, packet_id: int) -> None:
        """The client has the QoS 2 message; the answer is PUBREL, whatever is known of it."""
        if self.sink is not None and not self.sink.packet_writer.receive(packet_id):
            raise wrong_answer(packet_id)

    def on_pubcomp(self, packet_id: int) -> None:
        """The QoS 2 delivery is complete."""
        if self.sink is not None:
            if not self.sink.packet_writer.complete(packet_id):
                raise wrong_answer(packet_id)
            self._go_on()

    # from the edge and from operators

    def needs(self) -> Iterator[LogPosition]:
        """The places behind which its messages are read again."""
        if self.sink is not None:
            for part, offset in self.sink.packet_writer.first_queued().items():
                yield LogPosition(part, offset - 1)

    @property
    def queued(self) -> int:
        """Messages waiting behind the window."""
        return 0 if self.sink is None else self.sink.packet_writer.waiting

    # internal

    def _go_on(self) -> None:
        """Send what is due, and have more brought where little is left."""
        if self.sink is None:
            return
        packet_writer = self.sink.packet_writer
        packet_writer.pump()
        self.look_at_packet_writer()
        if self._session.is_behind and packet_writer.is_short:
            self._session.ask_for_more()
