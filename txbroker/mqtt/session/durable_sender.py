"""
A durable session as the sender to its client (MQTT 3.1.1, section 4.3).

Rules that live here say when the window lets a message go. A packet id must be safe before a packet
with it leaves (protocol rule 17). Rules here also say what is sent again after a reconnect and in
which order [MQTT-4.4.0-1, MQTT-4.6.0-1]. A message without room is not taken. The caller remembers
its place in the journal and comes again.

A delivery is launched, saved, sent, and (QoS 2) released, saved, sent again, then complete. A save
comes before each packet. A client that comes back gets all flights again, in their first order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from txbroker.model.invariant import holds, ordered
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.base_sender import BaseSender, SendingSession
from txbroker.mqtt.session.message_numbers import MessageNumbers
from txbroker.mqtt.session.session_ports import Sink
from txbroker.mqtt.session.window import (
    LAST_PACKET_ID,
    LaunchedRun,
    Lent,
    OutboundMessage,
    SessionLimits,
    Unsaved,
    Window,
)
from txbroker.mqtt.wire.encoder import encode
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import Pubrel
from txbroker.mqtt.wire.reason_codes import ReasonCode
from txbroker.mqtt.wire.return_codes import wrong_answer


class DurableSender(BaseSender):
    """
    The sender to the client of a durable session; `window` None: nothing is on its way.

    Invariant: a flight that is not durable was not sent.
    """

    __slots__ = ("_to_save", "last_id", "numbering", "window")

    def __init__(self, session: SendingSession, *, limits: SessionLimits) -> None:
        super().__init__(session, limits=limits)
        self.window: Window | None = None
        self.last_id = 0
        self.numbering = MessageNumbers()
        self._to_save: list[Unsaved] = []

    # from the session: its life

    def attach(self, sink: Sink) -> None:
        """Resend the messages in flight on the client's new connection, then send waiting ones."""
        super().attach(sink)
        if self.window is not None:
            self.window.resend.extend(self.window.flights)
        self._send_due()

    def detach(self) -> None:
        """Release the closed connection; queued messages that a journal has stay there."""
        super().detach()
        window = self.window
        if window is not None:
            window.resend.clear()
            window.late.clear()
            self.discard_queue()
            if window.is_empty:
                self.window = None

    def close(self) -> None:
        """Stop sending."""
        super().detach()
        self.window = None

    def restore(
        self,
        flows: Iterable[tuple[int, OutboundMessage]],
        held: Iterable[OutboundMessage],
        last_id: int,
    ) -> None:
        """
        Load the stored state; flows without their message wait until a journal is read.

        Messages from another store get their numbers here.
        """
        window = Window()
        for packet_id, entry in flows:
            window.flights[packet_id] = entry
            window.flight_size += entry.size
        for entry in held:
            self._wait(window, entry)
        if not window.is_empty:
            self.window = window
            self.numbering.restore((*window.flights.values(), *window.held))
        self.last_id = last_id

    # from the edge: messages to the client

    def deliver(self, entry: OutboundMessage) -> bool:
        """
        Send or queue a QoS 1 or 2 message.

        Return False if the client is away or no room is left. Then the caller must read the message
        again at its place. A message without a place is always accepted; beyond the limits the
        oldest of these is dropped.
        """
        if self.is_too_large(entry):
            return True
        window, place = self.window, entry.place
        if window is None:
            if self._session.is_over:
                return True
            if self.sink is None and place is not None:
                return False
            window = self.window = Window()
        if place is None:
            self.numbering.add(entry)
        sink = self.sink
        if sink is not None and not window.waiting and self._can_launch(window, sink):
            self._launch(window, entry)
            self._on_launched(window)
            return True
        if place is not None and not self.has_room():
            return False
        self._wait(window, entry)
        if place is None:
            self._bound(window)
        self._session.save()
        return True

    def deliver_live(self, entries: Iterable[OutboundMessage]) -> int:
        """Send or queue messages that a journal has, to the connected client; return how many."""
        sink = self.sink
        assert sink is not None
        window = self.window
        if window is None:
            window = self.window = Window()
        # Nothing is sent before the save, so that the output keeps its room meanwhile.
        may_launch = not window.waiting and sink.packet_writer.has_room
        inflight, memory = self.inflight, self._limits.memory
        is_launched, taken = False, 0
        for entry in entries:
            if self.is_too_large(entry):
                taken += 1
                continue
            may_launch = may_launch and window.is_open(inflight, memory)
            if may_launch:
                self._launch(window, entry)
                is_launched = True
            elif self.has_room():
                self._wait(window, entry)
            else:
                break
            taken += 1
        if is_launched:
            self._on_launched(window)
        elif taken:
            self._session.save()
        return taken

    def queue(self, entry: OutboundMessage) -> bool:
        """Queue a QoS 1 or 2 message from the journal; return False if the queue is full."""
        window = self.window
        if window is None:
            window = self.window = Window()
        if not window.has_room:
            return False
        self._wait(window, entry)
        return True

    def send_queued(self) -> None:
        """Send queued messages, up to the limits in flight."""
        self._session.save()
        self._send_due()

    @property
    def is_hungry(self) -> bool:
        """True if the session has unread records, and room for them."""
        if self.sink is None:
            return False
        return self.has_unread or (self._session.is_behind and self.has_room())

    def has_room(self) -> bool:
        """True if a record of a journal may be fetched now."""
        if self.sink is None or self._session.subscribing:
            return False
        window = self.window
        return window is None or window.has_room

    def discard_queue(self, part: JournalId | None = None) -> None:
        """Discard queued messages, maybe of one part alone; the cursors fall behind to them."""
        if self.window is not None:
            for place in self.window.discard_queue(part):
                self._session.places.fall_behind(place)

    # from the connection

    def on_pubacks(self, packet_ids: Iterable[int]) -> None:
        """Complete the QoS 1 deliveries with these packet ids."""
        window = self.window
        if window is None:
            return
        flights, is_changed, wrong = window.flights, False, 0
        leases: list[int] = []
        recording = self._session.watcher.recording
        for packet_id in packet_ids:
            entry = flights.get(packet_id)
            if entry is not None and entry.qos != 1 and entry.is_sent:
                wrong = packet_id
            elif entry is not None and entry.is_sent:
                self.numbering.forget(window.land(packet_id))
                is_changed = True
                if entry.lease:
                    leases.append(entry.lease)
                if recording is not None:
                    recording.delivered(self._session.client_id, entry.place)
        if is_changed:
            self._session.save()
            self._send_due()
        if leases:
            self._session.answer_leases(leases)
        if wrong:
            raise wrong_answer(wrong)

    def on_pubrec(self, packet_id: int) -> None:
        """Answer PUBREL for a QoS 2 delivery, known or unknown; raises for a message of QoS 1."""
        entry = self._flight(packet_id)
        if entry is not None and entry.qos != 2 and entry.is_sent:
            raise wrong_answer(packet_id)
        if entry is None:
            self._answer(Pubrel(packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))
        elif not entry.is_sent:
            self._answer(Pubrel(packet_id))
        elif entry.released:
            if not entry.is_unsaved:
                self._answer(Pubrel(packet_id))
        else:
            entry.released = True
            self._save_first(packet_id, entry)
            recording = self._session.watcher.recording
            if recording is not None:
                recording.delivered(self._session.client_id, entry.place)

    def on_refused(self, packet_id: int) -> None:
        """End a QoS 2 delivery that the client has refused; raises for a message of QoS 1."""
        entry = self._flight(packet_id)
        if entry is None or not entry.is_sent:
            return
        if entry.qos != 2 or entry.released:
            raise wrong_answer(packet_id)
        assert self.window is not None
        self.numbering.forget(self.window.land(packet_id))
        recording = self._session.watcher.recording
        if recording is not None:
            recording.delivered(self._session.client_id, entry.place)
        self._session.save()
        self._send_due()

    def on_pubcomp(self, packet_id: int) -> None:
        """Complete a QoS 2 delivery."""
        entry = self._flight(packet_id)
        if entry is not None and entry.is_sent and not (entry.qos == 2 and entry.released):
            raise wrong_answer(packet_id)
        if entry is not None and entry.released:
            assert self.window is not None
            self.numbering.forget(self.window.land(packet_id))
            self._session.save()
            self._send_due()

    # from a group, which lends messages

    @property
    def lend_room(self) -> int:
        """Return how many lent messages the client may get now."""
        window, sink = self.window, self.sink
        if sink is None or not sink.packet_writer.has_room:
            return 0
        if window is None:
            return self.inflight
        if window.waiting or not self._can_launch(window, sink):
            return 0
        return self.inflight - len(window.flights)

    def lend(self, entry: OutboundMessage) -> bool:
        """
        Send a message that a group lends; return False if there is no room.

        At QoS 1 the message belongs to the group until PUBACK. At QoS 2 the message belongs to the
        session as soon as the session is durable with it. No other client may get it
        [MQTT-4.8.2-5].
        """
        if not self.lend_room:
            return False
        self.deliver(entry)
        if entry.qos == 2:
            lease, entry.lease = entry.lease, 0
            self._session.save_then(lambda: self._session.answer_leases([lease]))
        return True

    def reclaim(self) -> tuple[list[int], list[int]]:
        """
        Take the lent messages back, as the client leaves.

        Returns the leases of the messages that another client may get, and of those that none may.
        """
        window = self.window
        if window is None:
            return [], []
        lent = [packet_id for packet_id, entry in window.flights.items() if entry.lease]
        back = []
        for packet_id in lent:
            entry = window.land(packet_id)
            self.numbering.forget(entry)
            back.append(entry.lease)
        if back:
            self._session.save()
        return back, []

    def resume_lent(self) -> list[Lent]:
        """
        Return what groups had lent of QoS 2, after a start or a move: it belongs to the session.

        Messages of QoS 1 go: their group lends them again.
        """
        window = self.window
        if window is None:
            return []
        kept: list[Lent] = []
        for packet_id, entry in list(window.flights.items()):
            if entry.lent is not None and entry.qos == 2:
                kept.append(entry.lent)
            elif entry.lent is not None and not entry.lease:
                self.numbering.forget(window.land(packet_id))
        return kept

    # from the session store

    def on_saved(self, saved: Iterable[Unsaved]) -> None:
        """Send the packets of these flows: their packet ids are durable (protocol rule 17)."""
        window = self.window
        if window is None:
            return
        due: list[tuple[int, OutboundMessage]] = []
        for packet_id in saved:
            assert not isinstance(packet_id, LaunchedRun)  # a group's
            entry = window.flights.get(packet_id)
            if entry is not None and entry.is_unsaved:
                entry.is_unsaved = False
                due.append((packet_id, entry))
        if due:
            self._emit(due)

    def dequeue_unsaved(self) -> list[Unsaved]:
        """Return what waits for `on_saved`, each once."""
        taken, self._to_save = self._to_save, []
        return taken

    def numbers(self) -> list[int]:
        """Return the numbers of all messages that no journal has."""
        entries = (*(entry for _, entry in self.flows()), *self.held())
        return [entry.number for entry in entries if entry.number]

    def flows(self) -> Iterable[tuple[int, OutboundMessage]]:
        """Return the messages in flight with their packet ids, in the order of sending."""
        return () if self.window is None else self.window.flights.items()

    def open_runs(self) -> Iterator[tuple[JournalId, Sequence[int]]]:
        """Yield the unanswered messages that are in flight in runs: parts and offsets."""
        return iter(())

    def held(self) -> Iterable[OutboundMessage]:
        """Return the waiting messages that no journal has."""
        return () if self.window is None else self.window.held

    def first_queued(self) -> dict[JournalId, int]:
        """Return the lowest queued offset of each part."""
        return {} if self.window is None else self.window.first_queued()

    def needs(self) -> Iterator[LogPosition]:
        """Yield the positions from which the messages can be read again."""
        if self.window is not None:
            for entry in (*self.window.flights.values(), *self.window.queue):
                if entry.place is not None:
                    yield LogPosition(entry.place.part, entry.place.offset - 1)
        for part, offsets in self.open_runs():
            yield LogPosition(part, offsets[0] - 1)

    def unacknowledged(self) -> Iterator[LogPosition]:
        """Yield the positions of messages in flight that the client has not acknowledged."""
        for _, entry in self.flows():
            if entry.place is not None and not entry.released:
                yield entry.place
        for part, offsets in self.open_runs():
            for offset in offsets:
                yield LogPosition(part, offset)

    # from catch-up: messages in flight to read again

    @property
    def has_unread(self) -> bool:
        """True if messages must be resent, which may need a read of a journal first."""
        return self.window is not None and bool(self.window.resend or self.window.late)

    def unread(self) -> list[tuple[int, LogPosition]]:
        """
        Return the packet ids and positions to read before their messages can be sent, in order.
        """
        return [] if self.window is None else list(self.window.unread())

    def restore_packet(self, packet_id: int, message: Message | None) -> None:
        """
        Set a message that was read again; None: the journal has expired it, and the flow ends.
        """
        window, entry = self.window, self._flight(packet_id)
        if window is None or entry is None or not entry.is_unread:
            return
        if message is None or (message.expiry == 0 and not entry.is_sent):  # [MQTT-4.3.3-7]
            window.land(packet_id)
            self.drop(entry.qos)
            recording = self._session.watcher.recording
            if recording is not None and entry.place is not None:
                part, offset = entry.place
                recording.dropped(self._session.client_id, part, offset, offset)
            self._session.save()
        else:
            window.restore(entry, message)
            is_late = entry.place is not None and entry.place.part in window.late
            if is_late and self.sink is not None:
                self._emit([(packet_id, entry)])
        self._send_due()

    def defer(self, part: JournalId) -> None:
        """
        Resend other parts first: this part cannot be read now.

        Messages of the part that came since go back to the journal. Otherwise they pass those in
        flight, and come in the wrong order.
        """
        window = self.window
        if window is None or self.sink is None or part in window.late:
            return
        if any(place.part == part for _, place in window.unread()):
            window.defer(part)
            self.discard_queue(part)
            self._send_due()

    def is_late(self, part: JournalId) -> bool:
        """
        True if messages of the part are in flight and unreadable: no other of the part may follow.
        """
        window = self.window
        if window is None or part not in window.late:
            return False
        if all(place.part != part for _, place in window.unread()):
            window.late.discard(part)
            return False
        return True

    def unload(self) -> None:
        """Forget messages that a journal has: the client has been away for long."""
        if self.window is not None and self.sink is None:
            self.window.unload()

    def check(self) -> None:
        """State what may have left, and which packet ids are given."""
        window = self.window
        if window is None:
            return
        window.check()
        for packet_id, entry in window.flights.items():
            is_early = entry.is_unsaved and entry.is_sent and not entry.released
            holds(self, 17, "a PUBLISH leaves when its flow is durable", not is_early, packet_id)
            is_lost = entry.place is None and entry.message is None and not entry.released
            holds(self, 17, "what cannot be read again is kept", not is_lost, packet_id)
        ordered(self, 16, "0 <= last packet id <= 65535", 0, self.last_id, LAST_PACKET_ID)

    # from operators and tests

    @property
    def queued(self) -> int:
        """Return how many messages wait behind the window."""
        return 0 if self.window is None else self.window.waiting

    # internal

    def _flight(self, packet_id: int) -> OutboundMessage | None:
        return None if self.window is None else self.window.flights.get(packet_id)

    def _count_if_full(self, window: Window) -> None:
        """Note a full window, after a message entered it."""
        if len(window.flights) == self.inflight:
            self._session.count_full_window("limits.inflight")
        elif window.flight_size >= self._limits.memory:
            self._session.count_full_window("limits.session_memory")

    def _can_launch(self, window: Window, sink: Sink) -> bool:
        is_open = window.is_open(self.inflight, self._limits.memory)
        return is_open and sink.packet_writer.has_room

    def _bound(self, window: Window) -> None:
        limits = self._limits
        while len(window.held) > limits.messages or window.held_size > limits.size:
            entry = window.next_held()
            self.numbering.forget(entry)
            self.drop(entry.qos)

    def _send_due(self) -> None:
        """Send due messages: first resends, then waiting ones."""
        window, sink = self.window, self.sink
        if sink is None:
            return
        while window is not None and window.resend:
            if window.unanswered >= self.inflight:
                return  # a client that returns may accept fewer than it had
            packet_id = window.resend[0]
            entry = window.flights.get(packet_id)
            if entry is not None and entry.is_unread:
                self._session.request_records()
                return
            window.resend.popleft()
            if entry is not None and self.is_too_large(entry):
                self.numbering.forget(window.land(packet_id))
                self._session.save()
            elif entry is not None and not entry.is_unsaved:
                self._age(entry)
                self._emit([(packet_id, entry)])
        if window is not None:
            self._launch_waiting(window, sink)
        if self._session.is_behind and (window is None or window.is_short):
            self._session.request_records()

    def _launch_waiting(self, window: Window, sink: Sink) -> None:
        is_launched = False
        while self._can_launch(window, sink):
            entry = window.next_waiting()
            if entry is None:
                break
            if not self._is_wanted(entry):
                self.numbering.forget(entry)
                continue
            self._launch(window, entry)
            is_launched = True
        if is_launched:
            self._on_launched(window)

    def _wait(self, window: Window, entry: OutboundMessage) -> None:
        entry.begin_to_wait(self._session.now())
        window.wait(entry)

    def _age(self, entry: OutboundMessage) -> None:
        """Take the time since the message was sent off its interval, if any [MQTT-3.3.2-6]."""
        now = self._session.now()
        entry.end_to_wait(now)
        entry.begin_to_wait(now)

    def _is_wanted(self, entry: OutboundMessage) -> bool:
        """True if a message that waited may go to the client."""
        if not entry.end_to_wait(self._session.now()):
            self._session.count_expired(1)
            return False
        return not self.is_too_large(entry)

    def _launch(self, window: Window, entry: OutboundMessage) -> None:
        """Put a message in flight; the caller must call `_on_launched` next."""
        packet_id = self.last_id = window.launch(entry, self.last_id)
        message = entry.message
        if message is not None and message.properties:  # few have any, and a launch must be fast
            self._age(entry)
        entry.is_unsaved = True
        self._to_save.append(packet_id)

    def _on_launched(self, window: Window) -> None:
        self._count_if_full(window)
        self._session.save_first()

    def _save_first(self, packet_id: int, entry: OutboundMessage) -> None:
        entry.is_unsaved = True
        self._to_save.append(packet_id)
        self._session.save_first()

    def _emit(self, flights: list[tuple[int, OutboundMessage]]) -> None:
        """Send the packets that are due for these flights, if the client is connected."""
        if self.sink is not None:
            packet_writer = self.sink.packet_writer
            level = packet_writer.level
            packet_writer.send(b"".join([_packet(*flight, level) for flight in flights]))


def _packet(packet_id: int, entry: OutboundMessage, level: int) -> bytes:
    """Return the packet due for the message, which counts as sent from now on."""
    if entry.released:
        return encode(Pubrel(packet_id=packet_id))
    dup, entry.is_sent = entry.is_sent or entry.is_again, True
    return entry.packet(packet_id, dup=dup, level=level)
