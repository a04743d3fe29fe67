"""
A raw MQTT 5.0 client on a blocking socket, for tests that look at single bytes.

The client works as `rawclient`: every read has a deadline, and a negative is proved by a round
trip. Bytes that a server may never send fail the test.
"""

from __future__ import annotations

from typing import Any

from . import wire5
from .rawclient import TIMEOUT, Address, RawConnection
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
    cut_frame,
)
from .wire5 import Answer, Properties, Publish, name_of


class RawClient5(RawConnection[Publish | Answer]):
    """A client of MQTT 5.0 on a connection of its own. Aliases of the server are resolved."""

    def __init__(self, address: Address, *, timeout: float = TIMEOUT) -> None:
        super().__init__(address, timeout=timeout)
        self.client_id: str | bytes = ""
        self.connack = Answer(kind=CONNACK)
        self._aliases: dict[int, str] = {}

    @property
    def aliases(self) -> list[int]:
        """The topic aliases that the server has used on this connection."""
        return sorted(self._aliases)

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
        """The next packet, a PUBLISH with these fields. The packet is not acknowledged."""
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

    # internal

    def _cut(self) -> Publish | Answer | None:
        raw = cut_frame(self._buffer)
        return None if raw is None else self._resolved(wire5.parse(raw))

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
