"""
The sender of a group's session: its client is the coordinator of a shared subscription (MQTT 5.0,
section 4.8.2).

Theory of operation. A group is a durable session. A group has the position in each journal, and
falls behind and catches up. It moves between nodes and expires as any session does. In place of a
connection it has a `GroupSink`. A message in flight is lent to a member of the group, at any node.
The flight ends when a member has answered, and not before. So a message whose member has left is
lent again.

Plain records of a journal are in flight by the run. The sender keeps only the places of these,
until they are answered. A message that has to be lent again gets a flight of its own, which is read
again.

Invariant: a message in flight has a packet id, or is in a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from txbroker.core import Run
from txbroker.model.invariant import holds
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.log_positions import PlaceSet
from txbroker.mqtt.session.base_sender import SendingSession
from txbroker.mqtt.session.durable_sender import DurableSender
from txbroker.mqtt.session.session_ports import Sink
from txbroker.mqtt.session.window import (
    LaunchedRun,
    OutboundMessage,
    SessionLimits,
    Unsaved,
    Window,
    run_offsets,
)


class GroupSink(Sink, Protocol):
    """The distributor of a group's messages."""

    def lend(self, flights: list[tuple[int, OutboundMessage]]) -> None:
        """Lend QoS 1 and 2 messages, each to a member."""

    def lend_run(self, run: LaunchedRun) -> None:
        """Lend messages of QoS 1, each to a member."""

    def deliver_qos0(self, entry: OutboundMessage) -> None:
        """Send a QoS 0 message to a member, or discard the message."""


class GroupSender(DurableSender):
    """The sender to the members of a group; `sink` is a `GroupSink`."""

    __slots__ = ("_in_runs", "_unsent", "_unsent_size", "edges")

    sink: GroupSink | None
    edges: frozenset[str]
    """The nodes whose members may have messages: stored before any of these is lent to them."""

    def __init__(self, session: SendingSession, *, limits: SessionLimits) -> None:
        super().__init__(session, limits=limits)
        self.edges = frozenset()
        self._in_runs = PlaceSet()
        self._unsent: dict[LaunchedRun, None] = {}
        self._unsent_size = 0

    @property
    def inflight(self) -> int:
        """Return how many messages the members may have: at least those in flight."""
        most = self._limits.inflight if self.sink is None else self.sink.receive_maximum
        most = max(most - len(self._in_runs), 0)
        return most if self.window is None else max(most, len(self.window.flights))

    # from the session: its life

    def detach(self) -> None:
        """Release the coordinator; what is in runs is read again for the next one."""
        for part, offsets in self._in_runs.parts():
            self._take_apart(part, dict.fromkeys(offsets, True))
        self._in_runs.clear()
        self._unsent.clear()
        self._unsent_size = 0
        super().detach()
        if self.window is not None:
            self.window.flights = dict(_in_order(self.window.flights.items()))

    def close(self) -> None:
        """Stop sending."""
        self._in_runs.clear()
        self._unsent.clear()
        super().close()

    def restore(
        self,
        flows: Iterable[tuple[int, OutboundMessage]],
        held: Iterable[OutboundMessage],
        last_id: int,
    ) -> None:
        """Load the stored state: what was in runs has flights."""
        super().restore(_in_order(flows), held, last_id)

    # from the edge: messages to the members

    def has_room(self) -> bool:
        """True if a record may be fetched: what members have no room for stays in the journal."""
        window = self.window
        in_flight = 0 if window is None else len(window.flights)
        return super().has_room() and in_flight < self.inflight

    @property
    def takes_runs(self) -> bool:
        """True if records may be launched as runs."""
        return True

    @property
    def run_room(self) -> int:
        """Return how many records may be launched as a run; 0: others go first."""
        window = self.window
        if not self.has_room() or self._unsent_size >= self._limits.memory:
            return 0
        if window is None:
            return self.inflight
        return 0 if window.waiting or window.resend else self.inflight - len(window.flights)

    def launch_run(self, part: JournalId, run: Run) -> None:
        """Put records of QoS 1, of which none expires, in flight together."""
        launched = LaunchedRun(part, run)
        self._in_runs.update(part, run_offsets(run))
        self._unsent[launched] = None
        self._unsent_size += run.size
        self._to_save.append(launched)
        self._session.save_first()

    def deliver_qos0(self, entry: OutboundMessage) -> None:
        """Send a QoS 0 message to a member; without a member the message is discarded."""
        if self.sink is not None:
            self.sink.deliver_qos0(entry)

    def deliver_qos0_after(self, entry: OutboundMessage, part: JournalId) -> None:
        """
        Send a QoS 0 message at once: the members of a group promise no order.

        Each of 9,000 new groups kept a thousand of them until it was current.
        """
        self.deliver_qos0(entry)

    def drop(self, qos: int, count: int = 1) -> None:
        """Count messages that are not delivered; those of QoS 0 with the group's others."""
        if qos or self.sink is None:
            super().drop(qos, count)
        else:
            self.dropped += count
            self.sink.packet_writer.dropped += count

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

    def complete_run(self, part: JournalId, offsets: Iterable[int]) -> None:
        """End flights in runs whose messages a member has answered."""
        ended = self._in_runs.take(part, offsets)
        recording = self._session.watcher.recording
        if recording is not None:
            for offset in sorted(ended):
                recording.delivered(self._session.client_id, LogPosition(part, offset))
        self._session.save()
        self._send_due()

    def take_apart(self, part: JournalId, offsets: Mapping[int, bool]) -> None:
        """
        Give messages of runs flights of their own: they are read, and lent, again.

        Each offset has whether a member had the message.
        """
        known = self._in_runs.take(part, offsets)
        ids = self._take_apart(part, {offset: offsets[offset] for offset in sorted(known)})
        if self.window is not None:
            self.window.resend.extend(ids)
        self._session.save()
        self._send_due()

    @property
    def is_resending(self) -> bool:
        """True if messages must be lent again before those that wait."""
        return self.window is not None and bool(self.window.resend)

    def flight(self, packet_id: int) -> OutboundMessage | None:
        """Return a message in flight, or None if its flight has ended."""
        return self._flight(packet_id)

    # from the session store

    def on_saved(self, saved: Iterable[Unsaved]) -> None:
        """Lend what is durable, in the order of its launch."""
        packet_ids: list[Unsaved] = []
        for one in saved:
            if isinstance(one, LaunchedRun):
                super().on_saved(packet_ids)
                packet_ids = []
                self._lend_run(one)
            else:
                packet_ids.append(one)
        super().on_saved(packet_ids)

    def open_runs(self) -> Iterator[tuple[JournalId, Sequence[int]]]:
        """Yield the unanswered messages that are in flight in runs: parts and offsets."""
        return self._in_runs.parts()

    def check(self) -> None:
        """State that a message is in flight once."""
        super().check()
        flights = PlaceSet(entry.place for _, entry in self.flows() if entry.place is not None)
        holds(self, 37, "a message is in flight once", not flights.has_common(self._in_runs))

    # internal

    def _lend_run(self, run: LaunchedRun) -> None:
        if self.sink is not None and run in self._unsent:  # else it has flights by now
            del self._unsent[run]
            self._unsent_size -= run.run.size
            self.sink.lend_run(run)

    def _take_apart(self, part: JournalId, offsets: Mapping[int, bool]) -> list[int]:
        """Launch messages that have to be read again; return their packet ids."""
        if self.window is None:
            self.window = Window()
        ids = []
        for offset, is_sent in offsets.items():
            entry = OutboundMessage(None, 1, False, LogPosition(part, offset))
            entry.is_sent = is_sent
            self.last_id = self.window.launch(entry, self.last_id)
            ids.append(self.last_id)
        return ids

    def _emit(self, flights: list[tuple[int, OutboundMessage]]) -> None:
        if self.sink is not None:
            for _, entry in flights:
                entry.is_again, entry.is_sent = entry.is_sent, True
            self.sink.lend(flights)

    def _count_if_full(self, window: Window) -> None:
        """Note nothing: a full window is what members that are busy look like."""


def _in_order(
    flights: Iterable[tuple[int, OutboundMessage]],
) -> list[tuple[int, OutboundMessage]]:
    """Sort flights by part, in the order of their first ones, and by offset."""
    ranks: dict[JournalId | None, int] = {}

    def key(flight: tuple[int, OutboundMessage]) -> tuple[int, int]:
        place = flight[1].place
        if place is None:
            return ranks.setdefault(None, len(ranks)), 0
        return ranks.setdefault(place.part, len(ranks)), place.offset

    return sorted(flights, key=key)
