"""
One client's state that outlives its connections: subscriptions, messages on their way, packet ids.

Rules that live here: the in-flight window, the queue behind it and its limits, what is sent again
after a reconnect and in which order [MQTT-4.4.0-1, MQTT-4.6.0-1], which incoming packet ids are
open [MQTT-4.3.3-2]. The session writes through its `Sink`, the connection that it has now; it knows
neither sockets nor time, nor where messages come from.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import attrs

from txbroker.message import Message
from txbroker.mqtt.codec import encode, encode_publish
from txbroker.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel, Will

LAST_PACKET_ID = 65_535


class Sink(Protocol):
    """A connection, as its session sees it."""

    def send(self, data: bytes) -> None:
        """Put bytes into the output; they leave in order."""

    def has_room(self) -> bool:
        """Whether the output is short enough for messages that may be queued or dropped."""

    def close(self, reason: str) -> None:
        """Close it: another connection has the client id."""


class Watcher(Protocol):
    """Whoever paces publishers and counts what is dropped."""

    def queue_is_long(self, session: Session) -> None:
        """The queue passed its high mark."""

    def queue_is_short(self, session: Session) -> None:
        """The queue came down to its low mark."""

    def dropped(self, session: Session, qos: int) -> None:
        """A message for the session was dropped."""

    def window_is_full(self, session: Session, limit: str) -> None:
        """No more messages go to the client before it acknowledges; `limit` is the key."""


@attrs.frozen(kw_only=True)
class SessionLimits:
    """
    What a session may hold: `inflight` QoS 1/2 messages of `memory` bytes unacknowledged (one
    message, however large, is always let through), `messages` of `size` bytes queued behind them.
    """

    inflight: int = 100
    memory: int = 8 * 1024 * 1024
    messages: int = 10_000
    size: int = 1024 * 1024 * 1024


@attrs.define(slots=True, eq=False)
class Subscription:
    """
    A filter of a session with its granted QoS.

    `pending` are the apexes of zones that have not confirmed yet: their messages do not count.
    `held` collects the messages of confirmed zones until the SUBACK has left; None: it has.
    """

    topic_filter: str
    qos: int
    pending: set[str] = attrs.Factory(set)
    held: list[tuple[Message, bool]] | None = None


@attrs.define(slots=True, eq=False)
class _Outgoing:
    """A QoS 1/2 message to the client; `released`: PUBREC came, PUBREL went."""

    message: Message
    qos: int
    retain: bool
    released: bool = False


@attrs.define(slots=True, eq=False)
class Incoming:
    """
    A QoS 1/2 publish from the client; `taken` once its owner has it.

    `owed` counts the PUBLISH packets of it on the present connection that are not acknowledged:
    each gets its own answer.
    """

    packet_id: int
    qos: int
    taken: bool = False
    owed: int = 1


class Session:
    """The session of one client id at one node."""

    def __init__(
        self, client_id: str, *, clean: bool, limits: SessionLimits, watcher: Watcher
    ) -> None:
        self.client_id = client_id
        self.clean = clean
        self.subscriptions: dict[str, Subscription] = {}
        self.will: Will | None = None
        self.sink: Sink | None = None
        self.dropped = 0
        self.held_size = 0
        self.away_since: float | None = None
        self._limits = limits
        self._watcher = watcher
        self._window: dict[int, _Outgoing] = {}
        self._window_size = 0
        self._queue: deque[_Outgoing] = deque()
        self._queue_size = 0
        self._is_long = False
        self._high = max(limits.messages // 2, 1)
        self._low = self._high - self._high // 20
        self._last_id = 0
        self._incoming: dict[int, Incoming] = {}

    # from the connection: its life

    def attach(self, sink: Sink) -> None:
        """The client is here: what was in flight is sent again, then what is queued."""
        self.sink = sink
        for packet_id, entry in self._window.items():
            if entry.released:
                sink.send(encode(Pubrel(packet_id=packet_id)))
            else:
                self._send(packet_id, entry, dup=True)
        self._fill_window()

    def detach(self) -> None:
        """The connection is gone; what the client sends again is acknowledged on the next one."""
        self.sink = None
        for flow in self._incoming.values():
            flow.owed = 0
        self._lower()

    def pump(self) -> None:
        """The output has room again."""
        self._fill_window()

    def close(self) -> None:
        """The session ends; its queue goes."""
        self.sink = None
        self._queue.clear()
        self._window.clear()
        self._lower()

    # from the edge: messages to the client

    def deliver(self, message: Message, qos: int, *, retain: bool = False) -> None:
        """Send the message, or queue it; `qos` is what this client gets, `retain` its flag."""
        sink = self.sink
        if qos == 0:
            if sink is None:
                return
            if not sink.has_room():
                self._drop(0)
            elif retain:
                sink.send(encode_publish(message.topic, message.payload, 0, True, False, None))
            else:
                sink.send(message.qos0_packet)
            return
        entry = _Outgoing(message, qos, retain)
        if sink is not None and not self._queue and self._window_is_open() and sink.has_room():
            self._launch(entry)
        else:
            self._enqueue(entry)

    # from the connection: acknowledgements of the client

    def on_puback(self, packet_id: int) -> None:
        """The client has the QoS 1 message."""
        entry = self._window.get(packet_id)
        if entry is not None and entry.qos == 1:
            self._complete(packet_id)

    def on_pubrec(self, packet_id: int) -> None:
        """The client has the QoS 2 message; the answer is PUBREL, whatever is known of it."""
        entry = self._window.get(packet_id)
        if entry is not None and entry.qos == 2:
            entry.released = True
        self._answer(encode(Pubrel(packet_id=packet_id)))

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
        its way, when that is taken.
        """
        packet_id = packet.packet_id
        assert packet_id is not None
        known = self._incoming.get(packet_id)
        if known is not None and known.qos == packet.qos and (packet.qos == 2 or packet.dup):
            known.owed += 1
            if known.taken:
                self._acknowledge(known)  # [MQTT-4.3.3-2]
            return None
        flow = Incoming(packet_id, packet.qos)
        self._incoming[packet_id] = flow
        return flow

    def on_taken(self, flow: Incoming) -> None:
        """The owner has the publish: the client is told, when it is still the flow it knows."""
        flow.taken = True
        if self._incoming.get(flow.packet_id) is flow:
            self._acknowledge(flow)

    def on_pubrel(self, packet_id: int) -> None:
        """The client will not send that packet id again; the answer is always PUBCOMP."""
        flow = self._incoming.get(packet_id)
        if flow is not None and flow.qos == 2:
            del self._incoming[packet_id]
        self._answer(encode(Pubcomp(packet_id=packet_id)))

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

    def _enqueue(self, entry: _Outgoing) -> None:
        self._queue.append(entry)
        self._queue_size += entry.message.size
        while len(self._queue) > self._limits.messages or self._queue_size > self._limits.size:
            gone = self._queue.popleft()
            self._queue_size -= gone.message.size
            self._drop(gone.qos)
        if not self._is_long and self.sink is not None and len(self._queue) >= self._high:
            self._is_long = True
            self._watcher.queue_is_long(self)

    def _window_is_open(self) -> bool:
        limits = self._limits
        return len(self._window) < limits.inflight and self._window_size < limits.memory

    def _complete(self, packet_id: int) -> None:
        self._window_size -= self._window.pop(packet_id).message.size
        self._fill_window()

    def _fill_window(self) -> None:
        sink = self.sink
        queue = self._queue
        while queue and sink is not None:
            if not self._window_is_open() or not sink.has_room():
                break
            entry = queue.popleft()
            self._queue_size -= entry.message.size
            self._launch(entry)
        if self._is_long and len(queue) <= self._low:
            self._lower()

    def _lower(self) -> None:
        if self._is_long:
            self._is_long = False
            self._watcher.queue_is_short(self)

    def _launch(self, entry: _Outgoing) -> None:
        packet_id = self._last_id % LAST_PACKET_ID + 1
        while packet_id in self._window:  # [MQTT-2.3.1-4]
            packet_id = packet_id % LAST_PACKET_ID + 1
        self._last_id = packet_id
        self._tell_if_full(entry.message.size)
        self._window[packet_id] = entry
        self._window_size += entry.message.size
        self._send(packet_id, entry, dup=False)

    def _send(self, packet_id: int, entry: _Outgoing, *, dup: bool) -> None:
        assert self.sink is not None
        message = entry.message
        self.sink.send(
            encode_publish(message.topic, message.payload, entry.qos, entry.retain, dup, packet_id)
        )

    def _drop(self, qos: int) -> None:
        self.dropped += 1
        self._watcher.dropped(self, qos)
