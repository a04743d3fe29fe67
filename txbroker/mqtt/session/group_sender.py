"""
The sender of a group's session: its client is whoever distributes the messages of a shared
subscription (MQTT 5.0, section 4.8.2).

Theory of operation. A group is a durable session: it has the position in each journal, falls behind
and catches up, moves between nodes and expires as any session does. In place of a connection it has
a `GroupSink`. A message in flight is lent to a member of the group, at any node. The flight ends
when a member has answered, and not before: so a message whose member has left is lent again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from txbroker.mqtt.session.durable_sender import DurableSender
from txbroker.mqtt.session.session_ports import Sink
from txbroker.mqtt.session.window import OutboundMessage, Window


class GroupSink(Sink, Protocol):
    """The distributor of a group's messages."""

    def lend(self, flights: list[tuple[int, OutboundMessage]]) -> None:
        """Lend QoS 1 and 2 messages, each to a member."""

    def deliver_qos0(self, entry: OutboundMessage) -> None:
        """Send a QoS 0 message to a member, or discard the message."""


class GroupSender(DurableSender):
    """What goes to the members of a group; `sink` is a `GroupSink`."""

    __slots__ = ()

    sink: GroupSink | None

    @property
    def inflight(self) -> int:
        """Return how many messages the members may have: at least those in flight."""
        most = self._limits.inflight if self.sink is None else self.sink.receive_maximum
        return most if self.window is None else max(most, len(self.window.flights))

    def deliver_qos0(self, entry: OutboundMessage) -> None:
        """Send a QoS 0 message to a member; without a member the message is discarded."""
        if self.sink is not None:
            self.sink.deliver_qos0(entry)

    def complete(self, packet_ids: Iterable[int]) -> None:
        """End flights whose messages a member has answered."""
        window = self.window
        if window is None:
            return
        for packet_id in packet_ids:
            if packet_id in window.flights:
                entry = window.land(packet_id)
                self.numbering.forget(entry)
                recording = self._session.watcher.recording
                if recording is not None:
                    recording.delivered(self._session.client_id, entry.place)
        self._session.save()
        self._send_due()

    def flight(self, packet_id: int) -> OutboundMessage | None:
        """Return a message in flight, or None if its flight has ended."""
        return self._flight(packet_id)

    # internal

    def _emit(self, flights: list[tuple[int, OutboundMessage]]) -> None:
        if self.sink is not None:
            for _, entry in flights:
                entry.is_again, entry.is_sent = entry.is_sent, True
            self.sink.lend(flights)

    def _count_if_full(self, window: Window) -> None:
        """Note nothing: a full window is what members that are busy look like."""
