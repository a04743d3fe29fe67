"""
A raw MQTT 3.1.1 client on a blocking socket, for tests that look at single bytes.

Every read has a deadline. Bytes that a server may never send (wrong flags, wrong lengths, a
client's packet) fail the test wherever they turn up. A negative is proved by a round trip (`ping`,
or a marker that must come next), never by waiting.
"""

from __future__ import annotations

import itertools
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, Self, TypeVar

from . import wire
from .wire import (
    CONNACK,
    NAMES,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    Packet,
    Publish,
)

TIMEOUT = 30.0  # seconds; only a failing test ever waits that long

Address = tuple[str, int]

Received = TypeVar("Received")


class ConnectionEnded(AssertionError):
    """
    The server closed the connection where the test expected a packet.
    """


class RawConnection(Generic[Received]):
    """
    A TCP connection to a broker, from the host `source` if one is given. Opening sends nothing.
    """

    def __init__(self, address: Address, *, timeout: float = TIMEOUT, source: str = "") -> None:
        self.address = address
        self.timeout = timeout
        origin = (source, 0) if source else None
        self._socket = socket.create_connection(address, timeout, origin)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._kept: deque[Received] = deque()  # read while waiting for something else
        self._ids: Iterator[int] = itertools.cycle(range(1, 65_536))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # sending

    def send(self, *parts: bytes) -> None:
        """
        Everything in one write. A connection that the server has closed is no error here: the
        reading side tells.
        """
        try:
            self._socket.sendall(b"".join(parts))
        except ConnectionError:
            pass

    def next_id(self) -> int:
        """A packet identifier that this client has not used for long."""
        return next(self._ids)

    # reading

    def receive(self, timeout: float | None = None) -> Received:
        """
        The next packet. Fails when none comes in time or the server closes.
        """
        if self._kept:
            return self._kept.popleft()
        return self._read(timeout)

    def has_input(self, timeout: float) -> bool:
        """
        True if something has come, or the end of the connection, within `timeout` seconds.
        """
        return bool(self._kept or self._buffer or select.select([self._socket], [], [], timeout)[0])

    def expect_closed(self, timeout: float | None = None) -> None:
        """
        The server closes the connection and sends nothing more before that.
        """
        assert not self._kept, f"unread: {self._kept[0]}"
        try:
            found = self._read(timeout)
        except ConnectionEnded:
            assert not self._buffer, f"closed inside a packet: {self._buffer.hex()}"
            return
        raise AssertionError(f"expected the connection to be closed, got {found}")

    # ending

    def drop(self) -> list[Received]:
        """
        End without DISCONNECT and wait until the server has noticed; what it still sent.
        """
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        return self._drain()

    def close(self) -> None:
        """Close at once; harmless when closed already."""
        self._socket.close()

    # internal

    def _drain(self) -> list[Received]:
        found = list(self._kept)
        self._kept.clear()
        try:
            while True:
                found.append(self._read(None))
        except ConnectionEnded:
            self.close()
        return found

    def _read(self, timeout: float | None) -> Received:
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            found = self._cut()
            if found is not None:
                return found
            left = deadline - time.monotonic()
            assert left > 0, "nothing came in time"
            self._socket.settimeout(left)
            try:
                data = self._socket.recv(65_536)
            except TimeoutError:
                raise AssertionError("nothing came in time") from None
            except ConnectionError:
                data = b""
            if not data:
                raise ConnectionEnded("the server closed the connection")
            self._buffer += data

    def _cut(self) -> Received | None:
        """Take the first whole packet off the buffer, None when there is none yet."""
        raise NotImplementedError


class RawClient(RawConnection[Packet]):
    """A client of MQTT 3.1.1 on a connection of its own."""

    def __init__(self, address: Address, *, timeout: float = TIMEOUT, source: str = "") -> None:
        super().__init__(address, timeout=timeout, source=source)
        self.client_id: str | bytes = ""
        self.session_present = False  # of the last CONNACK

    # sending

    def trickle(self, data: bytes, pause: float = 0.001) -> None:
        """
        Byte by byte, with a pause so that the server sees as many reads as it can.
        """
        for value in data:
            self.send(bytes([value]))
            time.sleep(pause)

    # conversations

    def connect(self, client_id: str | bytes = "", **options: Any) -> bool:
        """
        CONNECT, accepted: returns the session present flag. Options as for `wire.connect`.
        """
        self.client_id = client_id
        self.send(wire.connect(client_id, **options))
        present, code = self.expect(CONNACK).body
        assert code == 0 and present in (0, 1), f"CONNACK {present} {code}"
        self.session_present = bool(present)
        return self.session_present

    def subscribe(self, *filters: tuple[str | bytes, int] | str) -> list[int]:
        """
        SUBSCRIBE and its SUBACK, which must be granted; returns the codes. A bare filter is QoS 0.
        """
        packet_id = self.next_id()
        pairs = [(f, 0) if isinstance(f, str) else f for f in filters]
        self.send(wire.subscribe(packet_id, *pairs))
        codes = self.wait_for(SUBACK, packet_id).codes
        assert len(codes) == len(pairs) and set(codes) <= {0, 1, 2}, f"SUBACK {codes}"
        return codes

    def unsubscribe(self, *filters: str | bytes) -> None:
        """UNSUBSCRIBE and its UNSUBACK."""
        packet_id = self.next_id()
        self.send(wire.unsubscribe(packet_id, *filters))
        self.wait_for(UNSUBACK, packet_id)

    def publish(
        self, topic: str | bytes, payload: bytes = b"", *, qos: int = 0, **options: bool
    ) -> int:
        """
        PUBLISH and the whole conversation that its QoS asks for; returns the packet identifier.
        """
        packet_id = self.next_id() if qos else 0
        self.send(wire.publish(topic, payload, qos=qos, packet_id=packet_id, **options))
        if qos == 1:
            self.wait_for(PUBACK, packet_id)
        elif qos == 2:
            self.wait_for(PUBREC, packet_id)
            self.send(wire.ack(PUBREL, packet_id))
            self.wait_for(PUBCOMP, packet_id)
        return packet_id

    def ping(self) -> None:
        """
        PINGREQ; PINGRESP must be the very next packet, so nothing else was on its way before it.
        """
        self.send(wire.PING)
        self.expect(PINGRESP)

    def acknowledge(self, message: Publish) -> None:
        """
        The receiver's side of a QoS 1 or 2 delivery, to its end.
        """
        if message.qos == 1:
            self.send(wire.ack(PUBACK, message.packet_id))
        elif message.qos == 2:
            self.send(wire.ack(PUBREC, message.packet_id))
            self.wait_for(PUBREL, message.packet_id)
            self.send(wire.ack(PUBCOMP, message.packet_id))

    # reading

    def expect(self, kind: int, packet_id: int | None = None) -> Packet:
        """
        The next packet, which must be of this kind (and carry this identifier).
        """
        found = self.receive()
        wanted = f"expected {NAMES[kind]} {packet_id or ''}"
        assert found.kind == kind, f"{wanted}, got {found}"
        assert packet_id is None or found.packet_id == packet_id, f"{wanted}, got {found}"
        return found

    def wait_for(self, kind: int, packet_id: int) -> Packet:
        """
        The first packet of this kind with this identifier; others are kept for later, in order.
        """
        others: list[Packet] = []
        try:
            while True:
                found = self.receive()
                if found.kind == kind and found.packet_id == packet_id:
                    return found
                others.append(found)
        finally:
            self._kept.extendleft(reversed(others))

    def expect_publish(
        self, topic: str | None = None, payload: bytes | None = None, **fields: object
    ) -> Publish:
        """
        The next packet, which must be a PUBLISH with these fields. The packet is not acknowledged.
        """
        message = wire.parse_publish(self.expect(PUBLISH))
        assert topic is None or message.topic == topic, f"{message}, expected topic {topic}"
        assert payload is None or message.payload == payload, f"{message}, expected {payload!r}"
        for name, value in fields.items():
            assert getattr(message, name) == value, f"{message}, expected {name}={value}"
        return message

    def take(self, count: int) -> list[Publish]:
        """
        The next `count` messages, each acknowledged as its QoS asks.
        """
        messages = []
        for _ in range(count):
            message = wire.parse_publish(self.expect(PUBLISH))
            self.acknowledge(message)
            messages.append(message)
        return messages

    def take_until(self, is_last: Callable[[Publish], bool]) -> list[Publish]:
        """
        All messages before the one that `is_last` recognises, each acknowledged.
        """
        messages: list[Publish] = []
        while True:
            (message,) = self.take(1)
            if is_last(message):
                return messages
            messages.append(message)

    # ending

    def disconnect(self) -> None:
        """
        DISCONNECT, and wait until the server has closed, so that it has surely taken it.
        """
        self.send(wire.BYE)
        self._drain()

    def reset(self) -> None:
        """
        End with a TCP reset, as a crashed machine does.
        """
        linger = struct.pack("ii", 1, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._socket.close()

    # internal

    def _cut(self) -> Packet | None:
        return wire.cut_packet(self._buffer)
