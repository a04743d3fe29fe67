"""
Clients that go on through everything: publishers that send again what is not acknowledged, and
subscribers that remember.

Each writer lives in a thread of its own, on a session that is not clean. It connects again when its
node is gone. The word of a `SinkWriter` is its number, from 1 on; `acknowledged` are the numbers
that its node has answered for (PUBACK, or PUBREC). A `Reader` keeps what came, topic by topic, in
order.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Self

from . import wire
from .nodes import NodeFailed
from .wire import CONNACK, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, Packet

Address = tuple[str, int]

DEADLINE = 60.0
PAUSE = 0.05
IDS = 60_000


class _Client(threading.Thread):
    """A client id; `where` says where its node listens now."""

    def __init__(self, where: Callable[[], Address], client_id: str) -> None:
        super().__init__(daemon=True)
        self._where = where
        self._client_id = client_id
        self._socket: socket.socket | None = None
        self._buffer = bytearray()
        self._is_stopping = False
        self.changed = threading.Condition()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the connection and the thread."""
        self._is_stopping = True
        self._hang_up()
        self.join(10.0)

    def run(self) -> None:
        while not self._is_stopping:
            try:
                self._connect()
                while not self._is_stopping:
                    self._work()
            except (OSError, EOFError, NodeFailed):  # gone, or about to start
                self._hang_up()
                time.sleep(PAUSE)

    def wait(self, condition: Callable[[], bool], what: str, timeout: float = DEADLINE) -> None:
        """Until the condition holds; fails when that takes too long."""
        with self.changed:
            assert self.changed.wait_for(condition, timeout), f"{self._client_id}: {what}"

    # for those that know what they want

    def _on_connected(self) -> None:
        raise NotImplementedError

    def _work(self) -> None:
        raise NotImplementedError

    def _send(self, *parts: bytes) -> None:
        assert self._socket is not None
        self._socket.sendall(b"".join(parts))

    def _receive(self, timeout: float) -> Packet | None:
        """The next packet; None when there is none in time."""
        found = wire.cut_packet(self._buffer)
        if found is not None:
            return found
        assert self._socket is not None
        self._socket.settimeout(timeout)
        try:
            data = self._socket.recv(65_536)
        except TimeoutError:
            return None
        finally:
            self._socket.settimeout(10.0)
        if not data:
            raise EOFError
        self._buffer += data
        return wire.cut_packet(self._buffer)

    # internal

    def _connect(self) -> None:
        self._buffer.clear()
        self._socket = socket.create_connection(self._where(), timeout=2.0)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._send(wire.connect(self._client_id, clean=False))
        found = self._receive(5.0)
        if found is None or found.kind != CONNACK or found.body[1]:
            raise EOFError
        self._on_connected()

    def _hang_up(self) -> None:
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            self._socket.close()


class Writer(_Client):
    """Publishes 1, 2, 3, ... on its topic, `window` of them unacknowledged at the most."""

    def __init__(
        self,
        where: Callable[[], Address],
        client_id: str,
        topic: str,
        qos: int,
        *,
        window: int = 20,
        pause: float = 0.002,
    ) -> None:
        super().__init__(where, client_id)
        self.topic = topic
        self.qos = qos
        self.sent = 0
        self.acknowledged: set[int] = set()
        self._window = window
        self._pause = pause
        self._is_done = False
        self._open: dict[int, int] = {}  # number by packet id, not answered
        self._released: dict[int, int] = {}  # those whose PUBREL is not answered

    def finish(self) -> None:
        """Say nothing new; wait until all is acknowledged."""
        self._is_done = True
        self.wait(lambda: not (self._open or self._released), "all is acknowledged")

    @property
    def is_stuck(self) -> bool:
        """True if it has said as much as it may without an answer."""
        return len(self._open) + len(self._released) >= self._window

    def wait_acknowledged(self, count: int) -> None:
        """Until so many more are acknowledged."""
        goal = len(self.acknowledged) + count
        self.wait(lambda: len(self.acknowledged) >= goal, f"{count} more acknowledged")

    def _on_connected(self) -> None:
        for packet_id in self._released:
            self._send(wire.ack(PUBREL, packet_id))
        for packet_id, number in self._open.items():
            self._publish(packet_id, number, dup=True)

    def _work(self) -> None:
        is_room = len(self._open) + len(self._released) < self._window
        if is_room and not self._is_done:
            number = self.sent + 1
            packet_id = number % IDS + 1
            self._open[packet_id] = number
            self.sent = number
            self._publish(packet_id, number, dup=False)
        found = self._receive(self._pause if is_room else 0.5)
        while found is not None:
            self._on_packet(found)
            found = wire.cut_packet(self._buffer)

    def _publish(self, packet_id: int, number: int, *, dup: bool) -> None:
        payload = b"%d" % number
        self._send(wire.publish(self.topic, payload, qos=self.qos, packet_id=packet_id, dup=dup))

    def _on_packet(self, found: Packet) -> None:
        packet_id = found.packet_id
        if found.kind == PUBREC:
            number = self._open.pop(packet_id, 0)
            self._released[packet_id] = number or self._released.get(packet_id, 0)
            self._send(wire.ack(PUBREL, packet_id))
        elif found.kind == PUBACK:
            number = self._open.pop(packet_id, 0)
        else:
            assert found.kind == PUBCOMP, found
            number = self._released.pop(packet_id, 0)
        with self.changed:
            if number:
                self.acknowledged.add(number)
            self.changed.notify_all()


class Reader(_Client):
    """Subscribes to its filters, and keeps what comes."""

    def __init__(
        self, where: Callable[[], Address], client_id: str, *filters: tuple[str, int]
    ) -> None:
        super().__init__(where, client_id)
        self.got: dict[str, list[int]] = {}
        self.is_subscribed = False
        self._filters = filters
        self._half: set[int] = set()

    def wait_subscribed(self) -> None:
        """Until its SUBACK has come."""
        self.wait(lambda: self.is_subscribed, "subscribed")

    def wait_for(self, topic: str, number: int) -> None:
        """Until this has come."""
        self.wait(lambda: number in self.got.get(topic, ()), f"{number} on {topic}")

    def _on_connected(self) -> None:
        if not self.is_subscribed:
            self._send(wire.subscribe(1, *self._filters))

    def _work(self) -> None:
        found = self._receive(0.5)
        while found is not None:
            self._on_packet(found)
            found = wire.cut_packet(self._buffer)

    def _on_packet(self, found: Packet) -> None:
        if found.kind == PUBLISH:
            message = wire.parse_publish(found)
            if message.qos == 1:
                self._send(wire.ack(PUBACK, message.packet_id))
            elif message.qos == 2:
                self._send(wire.ack(PUBREC, message.packet_id))
            if message.qos < 2 or message.packet_id not in self._half:
                with self.changed:
                    self.got.setdefault(message.topic, []).append(int(message.payload))
                    self.changed.notify_all()
            if message.qos == 2:
                self._half.add(message.packet_id)
        elif found.kind == PUBREL:
            self._half.discard(found.packet_id)
            self._send(wire.ack(PUBCOMP, found.packet_id))
        else:
            assert found.kind == SUBACK, found
            with self.changed:
                self.is_subscribed = True
                self.changed.notify_all()


def first_seen(numbers: list[int]) -> list[int]:
    """Each number once, where it came first."""
    return list(dict.fromkeys(numbers))
