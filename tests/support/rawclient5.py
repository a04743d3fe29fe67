"""
A raw MQTT 5.0 client on a blocking socket, for tests that look at single bytes.

As `rawclient`: every read has a deadline, what a server may never send fails the test, and a
negative is proved by a round trip.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Self

from . import wire5
from .rawclient import TIMEOUT, Address, ConnectionEnded
from .wire import (
    CONNACK,
    DISCONNECT,
    PING,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
)
from .wire5 import Answer, Properties, Publish, name_of


class RawClient5:
    """
    One TCP connection to a broker. Opening it sends nothing. Aliases of the server are resolved.
    """

    def __init__(self, address: Address, *, timeout: float = TIMEOUT) -> None:
        self.address = address
        self.timeout = timeout
        self.client_id: str | bytes = ""
        self.connack = Answer(kind=CONNACK)
        self._aliases: dict[int, str] = {}
        self._socket = socket.create_connection(address, timeout=timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._kept: deque[Publish | Answer] = deque()  # read while waiting for something else
        self._ids: Iterator[int] = itertools.cycle(range(1, 65_536))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # sending

    def send(self, *parts: bytes) -> None:
        """Everything in one write; the reading side tells whether the server has closed."""
        try:
            self._socket.sendall(b"".join(parts))
        except ConnectionError:
            pass

    def next_id(self) -> int:
        """A packet identifier that this client has not used for long."""
        return next(self._ids)

    # conversations

    def connect(self, client_id: str | bytes = "", **options: Any) -> Answer:
        """CONNECT, accepted: returns the CONNACK. Options as for `wire5.connect`."""
        self.client_id = client_id
        self.send(wire5.connect(client_id, **options))
        found = self.expect(CONNACK)
        assert found.code == 0, f"CONNACK {found}"
        self.connack = found
        return found

    def subscribe(
        self,
        *filters: tuple[str | bytes, int] | str,
        properties: Properties | bytes = b"",
    ) -> Answer:
        """SUBSCRIBE and its SUBACK, which must be granted. A bare filter is QoS 0."""
        found = self.ask_subscribe(*filters, properties=properties)
        assert set(found.codes) <= {0, 1, 2}, f"SUBACK {found}"
        return found

    def ask_subscribe(
        self,
        *filters: tuple[str | bytes, int] | str,
        properties: Properties | bytes = b"",
    ) -> Answer:
        """SUBSCRIBE and its SUBACK, whatever that says."""
        packet_id = self.next_id()
        pairs = [(f, 0) if isinstance(f, str) else f for f in filters]
        self.send(wire5.subscribe(packet_id, *pairs, properties=properties))
        found = self.wait_for(SUBACK, packet_id)
        assert len(found.codes) == len(pairs), f"SUBACK {found}"
        return found

    def unsubscribe(self, *filters: str | bytes) -> Answer:
        """UNSUBSCRIBE and its UNSUBACK."""
        packet_id = self.next_id()
        self.send(wire5.unsubscribe(packet_id, *filters))
        found = self.wait_for(UNSUBACK, packet_id)
        assert len(found.codes) == len(filters), f"UNSUBACK {found}"
        return found

    def publish(
        self, topic: str | bytes, payload: bytes = b"", *, qos: int = 0, **options: Any
    ) -> Answer | None:
        """PUBLISH and the conversation that its QoS asks for; returns PUBACK or PUBREC."""
        packet_id = self.next_id() if qos else 0
        self.send(wire5.publish(topic, payload, qos=qos, packet_id=packet_id, **options))
        if qos == 1:
            return self.wait_for(PUBACK, packet_id)
        if qos == 2:
            found = self.wait_for(PUBREC, packet_id)
            if found.code < 0x80:
                self.send(wire5.ack(PUBREL, packet_id))
                assert self.wait_for(PUBCOMP, packet_id).code == 0
            return found
        return None

    def ping(self) -> None:
        """PINGREQ; PINGRESP must be the very next packet."""
        self.send(PING)
        self.expect(PINGRESP)

    def acknowledge(self, message: Publish) -> None:
        """The receiver's side of a QoS 1 or 2 delivery, to its end."""
        if message.qos == 1:
            self.send(wire5.ack(PUBACK, message.packet_id))
        elif message.qos == 2:
            self.send(wire5.ack(PUBREC, message.packet_id))
            assert self.wait_for(PUBREL, message.packet_id).code == 0
            self.send(wire5.ack(PUBCOMP, message.packet_id))

    # reading

    def receive(self, timeout: float | None = None) -> Publish | Answer:
        """The next packet. Fails when none comes in time or the server closes."""
        return self._kept.popleft() if self._kept else self._read(timeout)

    def expect(self, kind: int, packet_id: int | None = None) -> Answer:
        """The next packet, which must be of this kind (and carry this identifier)."""
        found = self.receive()
        assert isinstance(found, Answer) and found.kind == kind, f"no {name_of(kind)}: {found}"
        assert packet_id is None or found.packet_id == packet_id, f"not {packet_id}: {found}"
        return found

    def wait_for(self, kind: int, packet_id: int) -> Answer:
        """The first packet of this kind with this identifier; others are kept for later."""
        others: list[Publish | Answer] = []
        try:
            while True:
                found = self.receive()
                is_kind = isinstance(found, Answer) and found.kind == kind
                if is_kind and found.packet_id == packet_id:
                    assert isinstance(found, Answer)
                    return found
                others.append(found)
        finally:
            self._kept.extendleft(reversed(others))

    def expect_publish(
        self, topic: str | None = None, payload: bytes | None = None, **fields: object
    ) -> Publish:
        """The next packet, a PUBLISH with these fields. It is not acknowledged."""
        message = self.receive()
        assert isinstance(message, Publish), f"no PUBLISH: {message}"
        assert topic is None or message.topic == topic, f"{message}, expected topic {topic}"
        assert payload is None or message.payload == payload, f"{message}, expected {payload!r}"
        for name, value in fields.items():
            assert getattr(message, name) == value, f"{message}, expected {name}={value}"
        return message

    def take(self, count: int) -> list[Publish]:
        """The next `count` messages, each acknowledged as its QoS asks."""
        messages = []
        for _ in range(count):
            message = self.expect_publish()
            self.acknowledge(message)
            messages.append(message)
        return messages

    def expect_disconnect(self, *codes: int) -> Answer:
        """DISCONNECT with one of these reason codes, then the end of the connection."""
        found = self.expect(DISCONNECT)
        assert not codes or found.code in codes, f"{found}, expected {codes}"
        self.expect_closed()
        return found

    def expect_refused(self, *codes: int) -> Answer:
        """CONNACK with one of these reason codes, then the end of the connection."""
        found = self.expect(CONNACK)
        assert found.code in codes, f"{found}, expected {codes}"
        self.expect_closed()
        return found

    def expect_closed(self, timeout: float | None = None) -> None:
        """The server closes the connection and sends nothing more before that."""
        assert not self._kept, f"unread: {self._kept[0]}"
        try:
            found = self._read(timeout)
        except ConnectionEnded:
            assert not self._buffer, f"closed inside a packet: {self._buffer.hex()}"
            return
        raise AssertionError(f"expected the connection to be closed, got {found}")

    def read_to_the_end(self) -> bytes:
        """All bytes that the server sends before it closes."""
        data = bytearray()
        while part := self._socket.recv(65_536):
            data += part
        return bytes(data)

    # ending

    def disconnect(self, code: int | None = None, **options: Any) -> None:
        """DISCONNECT, and wait until the server has closed, so that it has surely taken it."""
        self.send(wire5.disconnect(code, **options))
        self._drain()

    def drop(self) -> None:
        """End without DISCONNECT and wait until the server has noticed."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        self._drain()

    def close(self) -> None:
        """Close at once; harmless when closed already."""
        self._socket.close()

    # internal

    def _drain(self) -> None:
        self._kept.clear()
        try:
            while True:
                self._read(None)
        except ConnectionEnded:
            self.close()

    def _read(self, timeout: float | None) -> Publish | Answer:
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            raw = wire5.cut_packet(self._buffer)
            if raw is not None:
                return self._resolved(wire5.parse(raw))
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

    def _resolved(self, found: Publish | Answer) -> Publish | Answer:
        if not isinstance(found, Publish):
            return found
        alias = next((v for n, v in found.properties if n == wire5.ALIAS), None)
        if alias is None:
            assert found.topic, "an empty topic without an alias"
            return found
        assert isinstance(alias, int) and alias > 0
        topic = found.topic or self._aliases[alias]
        self._aliases[alias] = topic
        rest = [(n, v) for n, v in found.properties if n != wire5.ALIAS]
        return Publish(
            topic=topic,
            payload=found.payload,
            qos=found.qos,
            retain=found.retain,
            dup=found.dup,
            packet_id=found.packet_id,
            properties=rest,
        )
