"""
One client's state that outlives its connections: subscriptions, messages on their way, packet ids.

Rules that live here: the in-flight window and the short queue behind it, what is sent again after a
reconnect and in which order [MQTT-4.4.0-1, MQTT-4.6.0-1], which incoming packet ids are open
[MQTT-4.3.3-2], and that a durable session's packet ids are safe before a packet with them leaves
(protocol rule 17). The session writes through its `Sink`, the connection that it has now; it knows
neither sockets nor time, nor where messages come from. What it has no room for it does not take:
whoever delivers remembers the place in the journal and comes again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import attrs

from txbroker.message import Message
from txbroker.mqtt.codec import encode, encode_publish
from txbroker.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel, Will
from txbroker.place import PartKey, Place
from txbroker.topics import matches

LAST_PACKET_ID = 65_535

StreamKey = tuple[str, int, str, int]
"""(edge, incarnation, zone, stream): a stream of publishes between an edge and owners."""

TOPICS_REMEMBERED = 1_000
"""Topics for which a session that reads the journal keeps its subscriptions worked out."""

QUEUE_MESSAGES = 1_000
QUEUE_BYTES = 1024 * 1024
"""What waits behind a window in memory, at the most; the rest waits in the journal."""


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
        """A session that is behind can take more."""

    def save(self, session: Session, *, urgent: bool) -> None:
        """It changed; `urgent`: tell its `on_saved` as soon as that is durable."""

    def save_then(self, session: Session, action: Callable[[], None]) -> None:
        """Run `action` when the session is durable as it is now."""

    def dropped(self, session: Session, qos: int) -> None:
        """A message for the session was dropped."""

    def window_is_full(self, session: Session, limit: str) -> None:
        """No more messages go to the client before it acknowledges; `limit` is the key."""


@attrs.frozen(kw_only=True)
class SessionLimits:
    """
    What a session may hold: `inflight` QoS 1/2 messages of `memory` bytes unacknowledged (one
    message, however large, is always let through), `messages` of `size` bytes waiting for it.
    """

    inflight: int = 100
    memory: int = 8 * 1024 * 1024
    messages: int = 100_000
    size: int = 1024 * 1024 * 1024


@attrs.define(slots=True, eq=False)
class Subscription:
    """
    A filter of a session with its granted QoS.

    `pending` are the apexes of zones that have not confirmed yet: their messages do not count.
    `starts` are the offsets at which zones confirmed: nothing up to there is its (rule 9). `held`
    collects what cannot be read again, until the SUBACK has left; None: it has. `is_fresh`: the
    session had no such filter before that SUBACK.
    """

    topic_filter: str
    qos: int
    pending: set[str] = attrs.Factory(set)
    starts: dict[PartKey, int] = attrs.Factory(dict)
    held: list[tuple[Message, bool]] | None = None
    is_fresh: bool = False


@attrs.define(slots=True, eq=False)
class Outgoing:
    """
    A QoS 1/2 message to the client; `released`: PUBREC came, PUBREL is due or went.

    `place` says where it can be read again; None: only here. `message` None: not read again yet,
    after a restart. `unsaved` packets (PUBLISH, or PUBREL) wait until their flow is durable.
    """

    message: Message | None
    qos: int
    retain: bool
    place: Place | None = None
    released: bool = False
    is_sent: bool = False
    is_unsaved: bool = False

    @property
    def size(self) -> int:
        """Bytes that it counts for."""
        return 0 if self.message is None else self.message.size


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


@attrs.define(slots=True, eq=False)
class Cursor:
    """
    How far a session that is behind has come in one part: everything up to `offset` is taken.

    `until` is the end of a part that is closed. Nothing may be taken from here before the session
    has passed `after`, and nothing beyond the offset of a stop while it is behind in that part.
    """

    part: PartKey
    offset: int
    until: int | None = None
    after: Place | None = None
    stops: list[Place] = attrs.Factory(list)


class Session:
    """The session of one client id at one node; `clean`: it ends with its connection."""

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
        self.taken: dict[PartKey, int] = {}
        self.ahead: dict[PartKey, int] = {}
        self.skip = 0
        self.skip_size = 0
        self._limits = limits
        self._watcher = watcher
        self._window: dict[int, Outgoing] = {}
        self._window_size = 0
        self._queue: deque[Outgoing] = deque()
        self._queue_size = 0
        self._unread = 0
        self._to_save: list[int] = []
        self._matching: dict[str, tuple[Subscription, ...]] = {}
        self._last_id = 0
        self._incoming: dict[int, Incoming] = {}

    # from the connection: its life

    def attach(self, sink: Sink) -> None:
        """The client is here: what was in flight is sent again, then what is queued."""
        self.sink = sink
        if not self._unread:
            self._send_window()
            self._fill_window()

    def detach(self) -> None:
        """
        The connection is gone; what the client sends again is acknowledged on the next one.

        What was queued and can be read again is left to the journal.
        """
        self.sink = None
        for flow in self._incoming.values():
            flow.owed = 0
        queue, self._queue, self._queue_size = self._queue, deque(), 0
        for entry in queue:
            if entry.place is not None:
                self.fall_behind(entry.place)
            else:
                self._queue.append(entry)
                self._queue_size += entry.size

    def pump(self) -> None:
        """The output has room again."""
        self._fill_window()

    def close(self) -> None:
        """The session ends; its queue goes."""
        self.sink = None
        self._queue.clear()
        self._window.clear()
        self.behind.clear()

    # from the edge: which messages are its

    def fall_behind(self, place: Place) -> None:
        """This message and all that follow in its part have to be read from the journal."""
        cursor = self.behind.get(place.part)
        if cursor is None:
            self.behind[place.part] = Cursor(place.part, place.offset - 1)
        else:
            cursor.offset = min(cursor.offset, place.offset - 1)
        if not self.clean:
            self._watcher.save(self, urgent=False)

    def pass_part(self, cursor: Cursor) -> None:
        """It has taken all that there is behind the cursor."""
        del self.behind[cursor.part]
        self.taken[cursor.part] = cursor.offset
        if cursor.until is not None:
            self.taken.pop(cursor.part)
        if not self.clean:
            self._watcher.save(self, urgent=False)

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
        from is always taken.
        """
        entry = Outgoing(message, qos, retain, place)
        sink = self.sink
        if sink is not None and not self._queue and self._can_launch(sink):
            self._launch(entry)
            return True
        if place is not None and not self.has_room():
            return False
        self._queue.append(entry)
        self._queue_size += message.size
        return True

    def drop(self, qos: int) -> None:
        """A message that was its is not delivered: it is counted."""
        self.dropped += 1
        self._watcher.dropped(self, qos)

    def has_room(self) -> bool:
        """Whether something that can be read again later is worth bringing now."""
        return (
            self.sink is not None
            and not self.subscribing
            and not self._unread
            and len(self._queue) < QUEUE_MESSAGES
            and self._queue_size < QUEUE_BYTES
        )

    # from the connection: acknowledgements of the client

    def on_puback(self, packet_id: int) -> None:
        """The client has the QoS 1 message."""
        entry = self._window.get(packet_id)
        if entry is not None and entry.qos == 1:
            self._complete(packet_id)

    def on_pubrec(self, packet_id: int) -> None:
        """The client has the QoS 2 message; the answer is PUBREL, whatever is known of it."""
        entry = self._window.get(packet_id)
        if entry is None or entry.qos != 2:
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
        entry = self._window.get(packet_id)
        if entry is not None and entry.qos == 2 and entry.released:
            self._complete(packet_id)

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
        if self.clean:
            self._answer(pubcomp)
        else:
            # The client may use the packet id for another message as soon as it has the answer.
            sink = self.sink
            self._watcher.save_then(self, lambda: self._answer_on(sink, pubcomp))

    # from whoever keeps durable sessions

    def on_saved(self, packet_ids: Iterable[int]) -> None:
        """The flows with these packet ids are durable as they were: their packets may leave."""
        for packet_id in packet_ids:
            entry = self._window.get(packet_id)
            if entry is not None and entry.is_unsaved:
                entry.is_unsaved = False
                if self.sink is not None:
                    self._send(packet_id, entry)

    def take_unsaved(self) -> list[int]:
        """The packet ids whose packets wait for `on_saved`, each once."""
        taken, self._to_save = self._to_save, []
        return taken

    def flows(self) -> Iterable[tuple[int, Outgoing]]:
        """What is in flight to the client, in the order of sending."""
        return self._window.items()

    def queue(self) -> Iterable[Outgoing]:
        """What waits behind it."""
        return self._queue

    def open_publishes(self) -> Iterable[Incoming]:
        """QoS 2 publishes of the client that it has not released."""
        return (flow for flow in self._incoming.values() if flow.qos == 2)

    def forget_publish(self, flow: Incoming) -> None:
        """Nothing of it was sent anywhere: when the client sends it again, it is new."""
        del self._incoming[flow.packet_id]

    def restore(
        self,
        flows: Iterable[tuple[int, Outgoing]],
        queue: Iterable[Outgoing],
        publishes: Iterable[Incoming],
        last_id: int,
    ) -> None:
        """Be as the store says; flows without their message wait until it is read again."""
        for packet_id, entry in flows:
            self._window[packet_id] = entry
            self._window_size += entry.size
            self._unread += entry.message is None and not entry.released
        self._queue.extend(queue)
        self._queue_size = sum(entry.size for entry in self._queue)
        for flow in publishes:
            self._incoming[flow.packet_id] = flow
        self._last_id = last_id

    def needs(self) -> Iterator[Place]:
        """The places up to which it needs nothing of their parts, one or more for each part."""
        for cursor in self.behind.values():
            yield Place(cursor.part, cursor.offset)
        for entry in (*self._window.values(), *self._queue):
            if entry.place is not None:
                yield Place(entry.place.part, entry.place.offset - 1)

    def unread(self) -> list[tuple[int, Place]]:
        """The flows whose message has to be read again before anything can be sent."""
        return [
            (packet_id, entry.place)
            for packet_id, entry in self._window.items()
            if entry.message is None and not entry.released and entry.place is not None
        ]

    def give_back(self, packet_id: int, message: Message | None) -> None:
        """A flow's message was read again; None: it is kept no longer, the flow ends."""
        entry = self._window.get(packet_id)
        if entry is None or entry.message is not None or entry.released:
            return
        self._unread -= 1
        if message is None:
            del self._window[packet_id]
            self.drop(entry.qos)
        else:
            entry.message = message
            self._window_size += entry.size
        if not self._unread and self.sink is not None:
            self._send_window()
            self._fill_window()

    @property
    def last_id(self) -> int:
        """The packet id that was given last."""
        return self._last_id

    # from operators and tests

    @property
    def queued(self) -> int:
        """Messages waiting behind the window."""
        return len(self._queue)

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

    def _tell_if_full(self, size: int) -> None:
        """Before a message of this size enters the window: whether it is the last one."""
        if len(self._window) + 1 == self._limits.inflight:
            self._watcher.window_is_full(self, "limits.inflight")
        elif self._window_size + size >= self._limits.memory:
            self._watcher.window_is_full(self, "limits.session_memory")

    def _acknowledge(self, flow: Incoming) -> None:
        if not flow.owed:
            return  # the client has not sent it again yet
        kind = Puback if flow.qos == 1 else Pubrec
        self._answer(encode(kind(packet_id=flow.packet_id)) * flow.owed)
        flow.owed = 0
        if flow.qos == 1:
            del self._incoming[flow.packet_id]

    def _can_launch(self, sink: Sink) -> bool:
        limits = self._limits
        return (
            len(self._window) < limits.inflight
            and self._window_size < limits.memory
            and not self._unread
            and sink.has_room()
        )

    def _complete(self, packet_id: int) -> None:
        self._window_size -= self._window.pop(packet_id).size
        if not self.clean:
            self._watcher.save(self, urgent=False)
        self._fill_window()

    def _fill_window(self) -> None:
        sink = self.sink
        queue = self._queue
        while queue and sink is not None and self._can_launch(sink):
            entry = queue.popleft()
            self._queue_size -= entry.size
            self._launch(entry)
        if self.behind and len(queue) < QUEUE_MESSAGES // 2:
            self._watcher.has_room(self)

    def _launch(self, entry: Outgoing) -> None:
        packet_id = self._last_id % LAST_PACKET_ID + 1
        while packet_id in self._window:  # [MQTT-2.3.1-4]
            packet_id = packet_id % LAST_PACKET_ID + 1
        self._last_id = packet_id
        self._tell_if_full(entry.size)
        self._window[packet_id] = entry
        self._window_size += entry.size
        if self.clean:
            self._send(packet_id, entry)
        else:
            self._save_first(packet_id, entry)

    def _save_first(self, packet_id: int, entry: Outgoing) -> None:
        entry.is_unsaved = True
        self._to_save.append(packet_id)
        self._watcher.save(self, urgent=True)

    def _send_window(self) -> None:
        for packet_id, entry in self._window.items():
            if not entry.is_unsaved:
                self._send(packet_id, entry)

    def _send(self, packet_id: int, entry: Outgoing) -> None:
        assert self.sink is not None
        if entry.released:
            self.sink.send(encode(Pubrel(packet_id=packet_id)))
            return
        message = entry.message
        assert message is not None, "its message is read before anything is sent"
        self.sink.send(
            encode_publish(
                message.topic, message.payload, entry.qos, entry.retain, entry.is_sent, packet_id
            )
        )
        entry.is_sent = True
