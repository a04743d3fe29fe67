"""
An MQTT 3.1.1 client on the test's own event loop, for clusters that live in this process.

The client completes every flow by itself (PUBACK, PUBREC, PUBREL, PUBCOMP) and keeps what it got,
in order. A QoS 2 packet identifier that comes twice is delivered once, as the standard asks of a
receiver.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Self

from txbroker.mqtt.wire.decoder import Framer, decode
from txbroker.mqtt.wire.encoder import encode
from txbroker.mqtt.wire.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)

TIMEOUT = 30.0
"""Seconds; only a failing test ever waits that long."""

POLL = 0.005

Address = tuple[str, int]


async def until(
    condition: Callable[[], object],
    timeout: float = TIMEOUT,
    what: str | Callable[[], str] = "",
) -> None:
    """Wait until the condition holds; fails after `timeout` seconds and says what was missing."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while not condition():
        if loop.time() > deadline:
            missing = what() if callable(what) else what
            raise AssertionError(f"not within {timeout} s: {missing or condition}")
        await asyncio.sleep(POLL)


class Client(asyncio.Protocol):
    """A connection of one client id; `received` holds the PUBLISH packets in order."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.received: list[Publish] = []
        self.is_open = False
        self.session_present = False
        self._framer = Framer(256 * 1024 * 1024)
        self._ids = itertools.cycle(range(1, 65_536))
        self._waiting: dict[tuple[type, int], asyncio.Future[Any]] = {}
        self._half: set[int] = set()  # QoS 2 identifiers that wait for PUBREL
        self._transport: asyncio.Transport

    # life

    @classmethod
    async def open(
        cls, address: Address, client_id: str, *, clean: bool = True, will: Will | None = None
    ) -> Self:
        """Connect over TCP, CONNECT, and wait for CONNACK."""
        client = cls(client_id)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: client, *address)
        answer = client._expect(Connack, 0)
        client._send(Connect(client_id=client_id, clean_session=clean, will=will))
        connack = await asyncio.wait_for(answer, TIMEOUT)
        assert connack.return_code == 0, f"{client_id}: CONNACK {connack.return_code}"
        client.session_present = connack.session_present
        return client

    async def close(self) -> None:
        """DISCONNECT, and wait until the server has closed."""
        if self.is_open:
            self._send(Disconnect())
            await until(lambda: not self.is_open, what=f"{self.client_id} is closed")

    def abort(self) -> None:
        """Go without a word."""
        self._transport.abort()

    def send(self, data: bytes) -> None:
        """Any bytes."""
        self._transport.write(data)

    # conversations

    async def subscribe(self, *filters: tuple[str, int]) -> tuple[int, ...]:
        """SUBSCRIBE and SUBACK."""
        packet_id = next(self._ids)
        answer = self._expect(Suback, packet_id)
        self._send(Subscribe(packet_id, filters))
        suback = await asyncio.wait_for(answer, TIMEOUT)
        assert suback.return_codes == tuple(qos for _, qos in filters)
        return tuple(suback.return_codes)

    async def unsubscribe(self, *filters: str) -> None:
        """UNSUBSCRIBE and UNSUBACK."""
        packet_id = next(self._ids)
        answer = self._expect(Unsuback, packet_id)
        self._send(Unsubscribe(packet_id, filters))
        await asyncio.wait_for(answer, TIMEOUT)

    async def publish(
        self, topic: str, payload: bytes = b"", qos: int = 0, *, retain: bool = False
    ) -> None:
        """PUBLISH and all that its QoS asks for."""
        await asyncio.wait_for(self.start(topic, payload, qos, retain=retain), TIMEOUT)

    def start(
        self, topic: str, payload: bytes = b"", qos: int = 0, *, retain: bool = False
    ) -> asyncio.Future[Any]:
        """PUBLISH; the future is done when the server has acknowledged it."""
        if not qos:
            self._send(Publish(topic, payload, 0, retain))
            done = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        packet_id = next(self._ids)
        answer = self._expect(Puback if qos == 1 else Pubcomp, packet_id)
        self._send(Publish(topic, payload, qos, retain, False, packet_id))
        return answer

    async def ping(self) -> None:
        """A round trip: all that the server sent before has been received."""
        answer = self._expect(Pingresp, 0)
        self._send(Pingreq())
        await asyncio.wait_for(answer, TIMEOUT)

    async def wait_for(self, count: int, timeout: float = TIMEOUT) -> list[Publish]:
        """Wait until at least `count` messages have come; all that came."""
        try:
            await until(lambda: len(self.received) >= count, timeout)
        except AssertionError:
            got = [(p.topic, p.payload) for p in self.received[-20:]]
            raise AssertionError(
                f"{self.client_id}: {len(self.received)} of {count} messages; the last: {got}"
            ) from None
        return self.received

    def payloads(self, topic: str | None = None) -> list[bytes]:
        """Payloads received, on one topic or all."""
        return [p.payload for p in self.received if topic is None or p.topic == topic]

    # from asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        self._framer.feed(data)
        for first_byte, body in self._framer.frames():
            self._on_packet(decode(first_byte, body))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        for answer in self._waiting.values():
            if not answer.done():
                answer.cancel()

    # internal

    def _send(self, packet: Packet) -> None:
        self.send(encode(packet))

    def _expect(self, kind: type, packet_id: int) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[kind, packet_id] = answer
        return answer

    def _on_packet(self, packet: Packet) -> None:
        match packet:
            case Publish():
                self._on_publish(packet)
            case Pubrel():
                self._half.discard(packet.packet_id)
                self._send(Pubcomp(packet.packet_id))
            case Pubrec():
                self._send(Pubrel(packet.packet_id))
            case _:
                answer = self._waiting.pop((type(packet), getattr(packet, "packet_id", 0)), None)
                assert answer is not None, f"{self.client_id}: nobody waits for {packet}"
                if not answer.done():
                    answer.set_result(packet)

    def _on_publish(self, packet: Publish) -> None:
        packet_id = packet.packet_id
        if packet.qos == 2:
            assert packet_id is not None
            if packet_id not in self._half:
                self.received.append(packet)
            self._half.add(packet_id)
            self._send(Pubrec(packet_id))
            return
        self.received.append(packet)
        if packet.qos == 1:
            assert packet_id is not None
            self._send(Puback(packet_id))
