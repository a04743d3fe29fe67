"""A session with a recorder in the place of its connection."""

from __future__ import annotations

from tests.support.recorders import SinkRecorder, WatcherRecorder
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.window import OutboundMessage, SessionLimits
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import Packet, Publish

PART = JournalId("", 1)


class Bench:
    """
    A session, its connection and its watcher; places count up in one part.

    What is `lazy` is durable when the test says `save`, otherwise at once.
    """

    def __init__(self, *, clean: bool = False, lazy: bool = False, **limits: int) -> None:
        self.watcher = WatcherRecorder()
        self.session = Session(
            "c", clean=clean, limits=SessionLimits(**limits), watcher=self.watcher
        )
        self.sink = SinkRecorder()
        self.lazy = lazy
        self._offset = 0

    def attach(self) -> list[Packet | str]:
        """A new connection; what it is sent at once."""
        self.session.detach()
        self.sink = SinkRecorder()
        self.session.sender.attach(self.sink)
        return self.take()

    def deliver(self, *payloads: str, qos: int = 1, retain: bool = False) -> list[bool]:
        """Live messages, or retained ones, which have no place; which of them were taken."""
        taken = []
        for payload in payloads:
            self._offset += 1
            place = None if retain else LogPosition(PART, self._offset)
            message = Message("t", payload.encode(), qos)
            entry = OutboundMessage(message, qos, retain, place)
            taken.append(self.session.sender.deliver(entry))
        self._saved()
        return taken

    def say(self, payload: str, *, retain: bool = False) -> None:
        """A message of QoS 0."""
        entry = OutboundMessage(Message("t", payload.encode()), 0, retain)
        self.session.sender.deliver_qos0(entry)

    def save(self) -> None:
        """All is durable now."""
        self.session.sender.on_saved(self.session.sender.dequeue_unsaved())

    def take(self) -> list[Packet | str]:
        self._saved()
        taken = self.sink.events[:]
        self.sink.events.clear()
        return taken

    def _saved(self) -> None:
        if not self.lazy:
            self.save()


def attached(*, clean: bool = False, lazy: bool = False, **limits: int) -> Bench:
    bench = Bench(clean=clean, lazy=lazy, **limits)
    bench.attach()
    return bench


def sent(payload: str, packet_id: int, qos: int = 1, *, dup: bool = False) -> Publish:
    return Publish("t", payload.encode(), qos, False, dup, packet_id)
