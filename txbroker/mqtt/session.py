"""
One client's state that outlives its connections: subscriptions, messages on their way, packet ids.

Rules that live here: when the window lets a message go, what is sent again after a reconnect and in
which order [MQTT-4.4.0-1, MQTT-4.6.0-1], which incoming packet ids are open [MQTT-4.3.3-2], and
that a durable session's packet ids are safe before a packet with them leaves (protocol rule 17).
The session writes through its `Sink`, the connection that it has now; it knows neither sockets nor
time, nor where messages come from. What it has no room for it does not take: whoever delivers
remembers the place in the journal and comes again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import attrs

from txbroker.message import Message
from txbroker.mqtt.codec import encode, encode_publish, pack_packet_id
from txbroker.mqtt.cursor import Cursor, Had, Subscription
from txbroker.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel, Will
from txbroker.mqtt.window import Outgoing, SessionLimits, Window
from txbroker.place import PartKey, Place
from txbroker.topics import matches

StreamKey = tuple[str, int, str, int]
"""(edge, incarnation, zone, stream): a stream of publishes between an edge and owners."""

LATER_MESSAGES = 1_000
"""QoS 0 messages of one part that wait until a session has caught up there."""

TOPICS_REMEMBERED = 1_000
"""Topics for which a session that reads the journal keeps its subscriptions worked out."""


class Sink(Protocol):
    """A connection, as its session sees it."""

    def send(self, data: bytes) -> None:
        """Put bytes into the output; they leave in order."""

    def has_room(self) -> bool:
        """Whether the output is short enough for messages that may wait or be dropped."""

    def close(self, reason: str) -> None:
        """Close it: another connection has the client id."""


class Watcher(Protocol):
    """Whoever feeds sessions, keeps what is durable of them, and counts what is dropped."""

    def has_room(self, session: Session) -> None:
        """A session that has something to read can take more."""

    def save(self, session: Session, *, urgent: bool) -> None:
        """It changed; `urgent`: tell its `on_saved` as soon as that is durable."""

    def save_all(self, session: Session) -> None:
        """Its subscriptions changed, or where they begin."""

    def save_then(self, session: Session, action: Callable[[], None]) -> None:
        """Run `action` when the session is durable as it is now."""

    def dropped(self, session: Session, qos: int, *, is_first: bool) -> None:
        """A message for the session was dropped; `is_first`: the first one for some time."""

    def window_is_full(self, session: Session, limit: str) -> None:
        """No more messages go to the client before it acknowledges; `limit` is the key."""


@attrs.define(slots=True, eq=False)
class Incoming:
    """
    A QoS 1/2 publish from the client; `taken` once its owner has it, or this node's outbox.

    `owed` counts the PUBLISH packets of it on the present connection that are not acknowledged:
    each gets its own answer. Of QoS 2 in a durable session it is kept what it was sent with (the
    stream and its sequence there: `origin`) and which `entry` of an outbox it is: a crash must not
    have it published twice (protocol rule 16). `is_in_doubt`: after one, nobody knows yet.
    """

    packet_id: int
    qos: int
    taken: bool = False
    owed: int = 1
    origin: tuple[StreamKey, int] | None = None
    entry: tuple[StreamKey, int] | None = None
    is_in_doubt: bool = False


class Session:
    """The session of one client id at one node; `clean`: it ends with its connection."""

    __slots__ = (
        "__weakref__",
        "_dropping",
        "_gone",
        "_incoming",
        "_limits",
        "_later",
        "_matching",
        "_new",
        "_to_save",
        "_watcher",
        "ahead",
        "away_since",
        "behind",
        "clean",
        "client_id",
        "cut_off",
        "dropped",
        "had",
        "held_size",
        "incarnation",
        "is_over",
        "last_id",
        "last_number",
        "sink",
        "subscribing",
        "subscriptions",
        "taken",
        "will",
        "window",
    )

    def __init__(
        self, client_id: str, *, clean: bool, limits: SessionLimits, watcher: Watcher
    ) -> None:
        self.client_id = client_id
        self.clean = clean
        self.incarnation = 1
        self.subscriptions: dict[str, Subscription] = {}
        self.will: Will | None = None
        self.sink: Sink | None = None
        self.dropped = 0
        self.held_size = 0
        self.subscribing = 0
        self.away_since: float | None = None
        self.behind: dict[PartKey, Cursor] = {}
        self.cut_off: dict[PartKey, int] = {}
        self.taken: dict[PartKey, int] = {}
        self.ahead: dict[PartKey, int] = {}
        self.had: dict[PartKey, tuple[Had, ...]] = {}  # before it became one with another
        self.is_over = False
        self.window: Window | None = None  # None: nothing is on its way
        self.last_id = 0
        self.last_number = 0
        self._limits = limits
        self._watcher = watcher
        self._new: list[Outgoing] = []
        self._gone: list[int] = []
        self._to_save: list[int] = []
        self._dropping: frozenset[bool] = frozenset()
        self._later: dict[PartKey, list[Message]] = {}
        self._matching: dict[str, tuple[Subscription, ...]] = {}
        self._incoming: dict[int, Incoming] = {}

    # from the connection: its life

    def attach(self, sink: Sink) -> None:
        """The client is here: what was in flight is sent again, then what waits."""
        self.sink = sink
        if self.window is not None:
            self.window.resend.extend(self.window.flights)
        self._go_on()

    def detach(self) -> None:
        """
        The connection is gone; what the client sends again is acknowledged on the next one.

        What waited and can be read again is left to the journal.
        """
        self.sink = None
        self._matching.clear()
        self._later.clear()
        self._dropping = frozenset()
        for flow in self._incoming.values():
            flow.owed = 0
        window = self.window
        if window is not None:
            window.resend.clear()
            window.late.clear()
            self.leave_queue()
            if window.is_empty:
                self.window = None
        for cursor in self.behind.values():
            cursor.waiting = None
        self._forget_had()

    def pump(self) -> None:
        """The output has room again."""
        self._dropping -= {False}
        self._go_on()

    def close(self) -> None:
        """The session ends, with all that waits for its client; nothing comes to it any more."""
        self.is_over = True
        self.sink = None
        self.window = None
        self.behind.clear()

    # from the edge: which messages are its

    def fall_behind(self, place: Place) -> None:
        """This message and all that follow in its part have to be read from the journal."""
        cursor = self.behind.get(place.part)
        if cursor is None:
            self.behind[place.part] = Cursor(place.part, place.offset - 1)
        else:
            cursor.offset = min(cursor.offset, place.offset - 1)
        self._save()

    def leave_queue(self) -> None:
        """What waits and can be read again is left to the journal."""
        if self.window is not None:
            for place in self.window.leave_queue():
                self.fall_behind(place)

    def has_had(self, place: Place, topic: str) -> bool:
        """Whether this record was given, before the session became one with another."""
        return any(had.has(place.offset, topic) for had in self.had.get(place.part, ()))

    def pass_part(self, cursor: Cursor) -> None:
        """It has taken all that there is behind the cursor."""
        del self.behind[cursor.part]
        for message in self._later.pop(cursor.part, ()):
            self.deliver_qos0(message)
        if cursor.part in self.cut_off:
            self.taken.pop(cursor.part, None)
            self.ahead.pop(cursor.part, None)
        elif cursor.until is not None and cursor.is_over:
            self.forget_part(cursor.part)
        else:
            # Also of a part that has ended: this node may hear of that only later.
            self.taken[cursor.part] = cursor.offset
        if not self.behind:
            self._dropping -= {True}
        self._save()

    def forget_part(self, part: PartKey) -> None:
        """Nothing of the part will ever come again: also not because its subscriptions name it."""
        self.ahead.pop(part, None)
        self.had.pop(part, None)
        starts = [s.starts for s in self.subscriptions.values() if part in s.starts]
        if self.taken.pop(part, None) is None and not starts:
            return
        for each in starts:
            del each[part]
        if not self.clean and not self.is_over:
            self._watcher.save_all(self)

    def set_aside(self, part: PartKey, offset: int) -> None:
        """The part cannot be read, and may come back: what lies above the offset is to come."""
        self.cut_off[part] = min(offset, self.cut_off.get(part, offset))
        cursor = self.behind.get(part)
        if cursor is None:
            self._save()
        else:
            cursor.until = cursor.offset
            self.pass_part(cursor)

    def take_up(self, part: PartKey, *, is_kept: bool) -> None:
        """The part that was set aside can be read again, or (not `is_kept`) never will."""
        offset = self.cut_off.pop(part)
        if not is_kept:
            self.forget_part(part)
        elif part not in self.behind:
            self.behind[part] = Cursor(part, offset)
        self._save()

    def matching(self, topic: str) -> tuple[Subscription, ...]:
        """Its subscriptions that match the topic."""
        found = self._matching.get(topic)
        if found is None:
            found = tuple(s for f, s in self.subscriptions.items() if matches(f, topic))
            if len(self._matching) >= TOPICS_REMEMBERED:
                self._matching.clear()
            self._matching[topic] = found
        return found

    def on_subscriptions_changed(self) -> None:
        """What matches has to be worked out anew."""
        self._matching.clear()

    # from the edge: messages to the client

    def deliver_qos0_after(self, message: Message, part: PartKey) -> None:
        """
        The same, but behind what the session has to catch up with in the part: a live message does
        not overtake the backlog of a session that returns.
        """
        if part not in self.behind:
            for earlier in self._later.pop(part, ()):
                self.deliver_qos0(earlier)
            self.deliver_qos0(message)
        elif self.sink is not None:
            later = self._later.setdefault(part, [])
            if len(later) < LATER_MESSAGES:
                later.append(message)
            else:
                self.drop(0)

    def deliver_qos0(self, message: Message, *, retain: bool = False) -> None:
        """Send the message to the client that is here and reads; otherwise it is dropped."""
        sink = self.sink
        if sink is None:
            return
        if not sink.has_room():
            self.drop(0)
        elif retain:
            sink.send(encode_publish(message.topic, message.payload, 0, True, False, None))
        else:
            sink.send(message.qos0_packet)

    def deliver(
        self, message: Message, qos: int, place: Place | None, *, retain: bool = False
    ) -> bool:
        """
        Send a QoS 1/2 message, or queue it; `qos` is what this client gets, `retain` its flag.

        False: there is no room; it has to be read at its place again. What has no place to be read
        from is always taken; the oldest of it is dropped beyond the limits.
        """
        window = self.window
        if window is None:
            if self.is_over:
                return True
            if self.sink is None and place is not None:
                return False
            window = self.window = Window()
        entry = Outgoing(message, qos, retain, place)
        if place is None and not self.clean:
            self._number(entry)
        sink = self.sink
        if sink is not None and not window.waiting and self._can_launch(window, sink):
            self._launch(window, entry)
            self._on_launched(window)
            return True
        if place is not None and not self.has_room():
            return False
        window.wait(entry)
        if place is None:
            self._bound(window)
        self._save()
        return True

    def queue(self, message: Message, qos: int, place: Place) -> bool:
        """Queue a QoS 1/2 message that was read from the journal; False: there is no room."""
        window = self.window
        if window is None:
            window = self.window = Window()
        if not window.has_room:
            return False
        window.wait(Outgoing(message, qos, False, place))
        return True

    def send_queued(self) -> None:
        """Send of what was queued as much as may be in flight."""
        self._save()
        self._go_on()

    def drop(self, qos: int) -> None:
        """A message that was its is not delivered: it is counted."""
        is_first = (qos > 0) not in self._dropping
        self._dropping |= {qos > 0}
        self.dropped += 1
        self._watcher.dropped(self, qos, is_first=is_first)

    @property
    def is_hungry(self) -> bool:
        """Whether there is something to read for it that it can take."""
        if self.sink is None:
            return False
        window = self.window
        is_sent_again = window is not None and (window.resend or window.late)
        return bool(is_sent_again) or (bool(self.behind) and self.has_room())

    def has_room(self) -> bool:
        """Whether something that can be read again later is worth bringing now."""
        window = self.window
        return (
            self.sink is not None and not self.subscribing and (window is None or window.has_room)
        )

    # from the connection: acknowledgements of the client

    def on_pubacks(self, packet_ids: Iterable[int]) -> None:
        """The client has these QoS 1 messages."""
        window = self.window
        if window is None:
            return
        flights, is_changed = window.flights, False
        for packet_id in packet_ids:
            entry = flights.get(packet_id)
            if entry is not None and entry.qos == 1 and entry.is_sent:
                self._forget(window.land(packet_id))
                is_changed = True
        if is_changed:
            self._save()
            self._go_on()

    def on_pubrec(self, packet_id: int) -> None:
        """The client has the QoS 2 message; the answer is PUBREL, whatever is known of it."""
        entry = self._flight(packet_id)
        if entry is None or entry.qos != 2 or not entry.is_sent:
            self._answer(encode(Pubrel(packet_id=packet_id)))
        elif entry.released or self.clean:
            entry.released = True
            if not entry.is_unsaved:
                self._answer(encode(Pubrel(packet_id=packet_id)))
        else:
            entry.released = True
            self._save_first(packet_id, entry)

    def on_pubcomp(self, packet_id: int) -> None:
        """The QoS 2 delivery is complete."""
        entry = self._flight(packet_id)
        if entry is not None and entry.qos == 2 and entry.released:
            assert self.window is not None
            self._forget(self.window.land(packet_id))
            self._save()
            self._go_on()

    # from the connection: publishes of the client

    def accept(self, packet: Publish) -> Incoming | None:
        """
        A QoS 1/2 publish came in: the flow to forward, or None where it is a repeat.

        A repeat of a flow that is taken already is acknowledged at once; of one that is still on
        its way, when that is taken. The first repeat of one in doubt is forwarded, as what it is.
        """
        packet_id = packet.packet_id
        assert packet_id is not None
        known = self._incoming.get(packet_id)
        if known is not None and known.qos == packet.qos and (packet.qos == 2 or packet.dup):
            known.owed += 1
            if known.taken:
                self._acknowledge(known)  # [MQTT-4.3.3-2]
            was_in_doubt, known.is_in_doubt = known.is_in_doubt, False
            return known if was_in_doubt else None
        flow = Incoming(packet_id, packet.qos)
        self._incoming[packet_id] = flow
        return flow

    def on_taken(self, flow: Incoming) -> None:
        """The owner has the publish: the client is told, when it is still the flow it knows."""
        flow.taken = True
        if self._incoming.get(flow.packet_id) is flow:
            self._acknowledge(flow)
            if flow.qos == 2 and not self.clean:
                self._watcher.save(self, urgent=False)

    def on_pubrel(self, packet_id: int) -> None:
        """The client will not send that packet id again; the answer is always PUBCOMP."""
        flow = self._incoming.get(packet_id)
        if flow is not None and flow.qos == 2:
            del self._incoming[packet_id]
        pubcomp = encode(Pubcomp(packet_id=packet_id))
        if self.clean or self.is_over:
            self._answer(pubcomp)
        else:
            # The client may use the packet id for another message as soon as it has the answer.
            sink = self.sink
            self._watcher.save_then(self, lambda: self._answer_on(sink, pubcomp))

    # from whoever keeps durable sessions

    def on_saved(self, packet_ids: Iterable[int]) -> None:
        """The flows with these packet ids are durable as they were: their packets may leave."""
        for packet_id in packet_ids:
            entry = self._flight(packet_id)
            if entry is not None and entry.is_unsaved:
                entry.is_unsaved = False
                if self.sink is not None:
                    self._send(packet_id, entry)

    def take_unsaved(self) -> list[int]:
        """The packet ids whose packets wait for `on_saved`, each once."""
        taken, self._to_save = self._to_save, []
        return taken

    def take_numbered(self) -> tuple[list[Outgoing], list[int]]:
        """Messages without a place that are to be kept since the last call, and numbers gone."""
        new, self._new = self._new, []
        gone, self._gone = self._gone, []
        return [entry for entry in new if entry.number not in gone], gone

    def numbers(self) -> list[int]:
        """The numbers of the messages without a place that it has."""
        entries = (*(entry for _, entry in self.flows()), *self.held())
        return [entry.number for entry in entries if entry.number]

    def flows(self) -> Iterable[tuple[int, Outgoing]]:
        """What is in flight to the client, in the order of sending."""
        return () if self.window is None else self.window.flights.items()

    def held(self) -> Iterable[Outgoing]:
        """What waits behind it and cannot be read again."""
        return () if self.window is None else self.window.held

    def first_queued(self) -> dict[PartKey, int]:
        """The lowest offset of each part that waits behind that, and can be read again."""
        return {} if self.window is None else self.window.first_queued()

    def open_publishes(self) -> Iterable[Incoming]:
        """QoS 2 publishes of the client that it has not released."""
        return (flow for flow in self._incoming.values() if flow.qos == 2)

    def forget_publish(self, flow: Incoming) -> None:
        """Nothing of it was sent anywhere: when the client sends it again, it is new."""
        if self._incoming.get(flow.packet_id) is flow:
            del self._incoming[flow.packet_id]

    def restore(
        self,
        flows: Iterable[tuple[int, Outgoing]],
        held: Iterable[Outgoing],
        publishes: Iterable[Incoming],
        last_id: int,
    ) -> None:
        """
        Be as the store says; flows without their message wait until it is read again. What came
        from another store gets its numbers here.
        """
        window = Window()
        for packet_id, entry in flows:
            window.flights[packet_id] = entry
            window.flight_size += entry.size
        for entry in held:
            window.wait(entry)
        if not window.is_empty:
            self.window = window
            entries = (*window.flights.values(), *window.held)
            self.last_number = max(entry.number for entry in entries)
            for entry in entries:
                if entry.place is None and not entry.number:
                    self._number(entry)
        for flow in publishes:
            self._incoming[flow.packet_id] = flow
        self.last_id = last_id

    def needs(self) -> Iterator[Place]:
        """The places up to which it needs nothing of their parts, one or more for each part."""
        for cursor in self.behind.values():
            yield Place(cursor.part, cursor.offset)
        for part, offset in self.cut_off.items():
            yield Place(part, offset)
        if self.window is not None:
            for entry in (*self.window.flights.values(), *self.window.queue):
                if entry.place is not None:
                    yield Place(entry.place.part, entry.place.offset - 1)

    # from the backlog: messages in flight that have to be read again

    def unread(self) -> list[tuple[int, Place]]:
        """The flows whose message has to be read before they can be sent, in their order."""
        return [] if self.window is None else list(self.window.unread())

    def give_back(self, packet_id: int, message: Message | None) -> None:
        """A flow's message was read again; None: it is kept no longer, the flow ends."""
        window, entry = self.window, self._flight(packet_id)
        if window is None or entry is None or not entry.is_unread:
            return
        if message is None:
            window.land(packet_id)
            self.drop(entry.qos)
            self._save()
        else:
            window.give(entry, message)
            is_late = entry.place is not None and entry.place.part in window.late
            if is_late and self.sink is not None:
                self._send(packet_id, entry)
        self._go_on()

    def put_off(self, part: PartKey) -> None:
        """The part's messages in flight cannot be read now: those of others go first."""
        window = self.window
        if window is None or self.sink is None or part in window.late:
            return
        if any(place.part == part for _, place in window.unread()):
            window.put_off(part)
            self._go_on()

    def is_late(self, part: PartKey) -> bool:
        """Whether messages of the part are in flight and cannot be read: no others may follow."""
        window = self.window
        if window is None or part not in window.late:
            return False
        if all(place.part != part for _, place in window.unread()):
            window.late.discard(part)
            return False
        return True

    def unload(self) -> None:
        """The client is away for long: messages that can be read again need not be in memory."""
        if self.window is not None and self.sink is None:
            self.window.unload()

    # from operators and tests

    @property
    def queued(self) -> int:
        """Messages waiting behind the window."""
        return 0 if self.window is None else self.window.waiting

    def set_limits(self, limits: SessionLimits) -> None:
        """From now on; what is beyond them already goes when the next message comes."""
        self._limits = limits

    # internal

    def _answer(self, data: bytes) -> None:
        if self.sink is not None:
            self.sink.send(data)

    def _answer_on(self, sink: Sink | None, data: bytes) -> None:
        if self.sink is sink:
            self._answer(data)

    def _save(self) -> None:
        if not self.clean and not self.is_over:
            self._watcher.save(self, urgent=False)

    def _forget_had(self) -> None:
        """Where nothing that was given before lies behind a cursor any more."""
        for part, known in list(self.had.items()):
            cursor = self.behind.get(part)
            end = max(had.through for had in known)
            if cursor is None or cursor.offset >= end:
                del self.had[part]

    def _flight(self, packet_id: int) -> Outgoing | None:
        return None if self.window is None else self.window.flights.get(packet_id)

    def _tell_if_full(self, window: Window) -> None:
        """After something entered the window: whether it was the last one."""
        if len(window.flights) == self._limits.inflight:
            self._watcher.window_is_full(self, "limits.inflight")
        elif window.flight_size >= self._limits.memory:
            self._watcher.window_is_full(self, "limits.session_memory")

    def _acknowledge(self, flow: Incoming) -> None:
        if not flow.owed:
            return  # the client has not sent it again yet
        kind = Puback if flow.qos == 1 else Pubrec
        self._answer(encode(kind(packet_id=flow.packet_id)) * flow.owed)
        flow.owed = 0
        if flow.qos == 1:
            del self._incoming[flow.packet_id]

    def _can_launch(self, window: Window, sink: Sink) -> bool:
        return window.is_open(self._limits) and sink.has_room()

    def _number(self, entry: Outgoing) -> None:
        self.last_number = entry.number = self.last_number + 1
        self._new.append(entry)

    def _forget(self, entry: Outgoing) -> None:
        if entry.number:
            self._gone.append(entry.number)

    def _bound(self, window: Window) -> None:
        limits = self._limits
        while len(window.held) > limits.messages or window.held_size > limits.size:
            entry = window.next_held()
            self._forget(entry)
            self.drop(entry.qos)

    def _go_on(self) -> None:
        """Send what is due: first what is to be sent again, then what waits."""
        window, sink = self.window, self.sink
        if sink is None:
            return
        while window is not None and window.resend:
            packet_id = window.resend[0]
            entry = window.flights.get(packet_id)
            if entry is not None and entry.is_unread:
                self._watcher.has_room(self)
                return
            window.resend.popleft()
            if entry is not None and not entry.is_unsaved:
                self._send(packet_id, entry)
        if window is not None:
            self._launch_waiting(window, sink)
        if self.behind and (window is None or window.is_short):
            self._watcher.has_room(self)

    def _launch_waiting(self, window: Window, sink: Sink) -> None:
        is_launched = False
        while self._can_launch(window, sink):
            entry = window.next_waiting()
            if entry is None:
                break
            self._launch(window, entry)
            is_launched = True
        if is_launched:
            self._on_launched(window)

    def _launch(self, window: Window, entry: Outgoing) -> None:
        """It enters the window; `_on_launched` has to follow."""
        packet_id = self.last_id = window.launch(entry, self.last_id)
        if self.clean:
            self._send(packet_id, entry)
        else:
            entry.is_unsaved = True
            self._to_save.append(packet_id)

    def _on_launched(self, window: Window) -> None:
        self._tell_if_full(window)
        if not self.clean:
            self._watcher.save(self, urgent=True)

    def _save_first(self, packet_id: int, entry: Outgoing) -> None:
        entry.is_unsaved = True
        self._to_save.append(packet_id)
        self._watcher.save(self, urgent=True)

    def _send(self, packet_id: int, entry: Outgoing) -> None:
        assert self.sink is not None
        if entry.released:
            self.sink.send(encode(Pubrel(packet_id=packet_id)))
            return
        message = entry.message
        assert message is not None, "its message is read before anything is sent"
        head = message.head(entry.qos, retain=entry.retain, dup=entry.is_sent)
        self.sink.send(head + pack_packet_id(packet_id) + message.payload)
        entry.is_sent = True
