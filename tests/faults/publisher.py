"""
A publisher at QoS 0, 1 and 2 that forgets nothing: what is not acknowledged is sent again on the
next connection, wherever that is, in its order, with its packet identifier and DUP; a QoS 2 message
whose PUBREC has come goes on with PUBREL.
"""

from __future__ import annotations

import asyncio
from typing import Any

import attrs

from tests.support import wire
from tests.support.wire import PUBREL, Packet

from . import cast, payloads
from .clients import Client, Connection
from .conditions import Conditions
from .events import Acknowledged, Sent

QOS_WEIGHTS = (1, 4, 4)
KEPT_SHARE = 0.05
BURST_SHARE, BURST = 0.02, 20


@attrs.define
class _Flight:
    """A QoS 1/2 message whose flow is open; `is_released` after PUBREC."""

    number: int
    topic: str
    payload: bytes
    qos: int
    retain: bool
    is_released: bool = False


class Publisher(Client):
    """`produce` makes messages while `is_producing`; `publish` makes one at once."""

    def __init__(self, traits: cast.Publisher, conditions: Conditions, *arguments: Any) -> None:
        super().__init__(traits, *arguments)
        self._conditions = conditions
        self.is_producing = False
        self.topics = traits.topics
        self._publisher = traits
        self._flights: dict[int, _Flight] = {}
        self._last = 0
        self._identifier = 0
        self._ready: Connection | None = None  # accepted

    @property
    def open_flows(self) -> list[int]:
        """Numbers of the messages whose flow has not ended."""
        return [flight.number for flight in self._flights.values()]

    async def produce(self) -> None:
        """At the rate of the traits, in single messages and a few bursts, until cancelled."""
        while True:
            await asyncio.sleep(self._rng.expovariate(self._publisher.rate))
            count = BURST if self._rng.random() < BURST_SHARE else 1
            for _ in range(count if self.is_producing else 0):
                if self._ready is not None and len(self._flights) < self._publisher.window:
                    self._make()

    def publish(self, topic: str, qos: int, *, size: int = 0, retain: bool = False) -> int:
        """Send a new message; its number. There must be a connection and a free identifier."""
        assert self._ready is not None
        self._last += 1
        payload = payloads.make(self.name, self._last, topic, size)
        flight = _Flight(self._last, topic, payload, qos, retain)
        identifier = self._next_identifier() if qos else 0
        if qos:
            self._flights[identifier] = flight
        self._send(self._ready, identifier, flight, dup=False)
        return flight.number

    # internal

    def _make(self) -> None:
        rng = self._rng
        if rng.random() < KEPT_SHARE:
            self.publish(
                self._publisher.kept, 1, size=rng.choice(self._conditions.sizes[:4]), retain=True
            )
            return
        sizes = self._conditions.sizes
        topic = rng.choice(self.topics)
        qos = rng.choices((0, 1, 2), QOS_WEIGHTS)[0]
        self.publish(topic, qos, size=rng.choices(sizes, self._conditions.weights)[0])

    def _next_identifier(self) -> int:
        while True:
            self._identifier = self._identifier % self._publisher.identifiers + 1
            if self._identifier not in self._flights:
                return self._identifier

    def _send(self, connection: Connection, identifier: int, flight: _Flight, *, dup: bool) -> None:
        fields = {"qos": flight.qos, "retain": flight.retain, "dup": dup}
        self._note(
            Sent,
            client=self.name,
            connection=connection.number,
            number=flight.number,
            topic=flight.topic,
            **fields,
        )
        connection.send(
            wire.publish(flight.topic, flight.payload, packet_id=identifier, **fields)  # type: ignore[arg-type]
        )

    def _on_connected(self, connection: Connection, present: bool) -> None:
        for identifier, flight in self._flights.items():
            if flight.is_released:
                connection.send(wire.ack(PUBREL, identifier))
            else:
                self._send(connection, identifier, flight, dup=True)
        self._ready = connection

    def _on_disconnected(self) -> None:
        self._ready = None

    def _on_flow(self, packet: Packet) -> None:
        identifier = packet.packet_id
        flight = self._flights.get(identifier)
        match packet.kind:
            case wire.PUBACK if flight is not None and flight.qos == 1:
                del self._flights[identifier]
                self._acknowledged(flight, "PUBACK")
            case wire.PUBREC if flight is not None and flight.qos == 2:
                if not flight.is_released:
                    flight.is_released = True
                    self._acknowledged(flight, "PUBREC")
                self._connected_send(wire.ack(PUBREL, identifier))
            case wire.PUBCOMP if flight is not None and flight.is_released:
                del self._flights[identifier]
                self._acknowledged(flight, "PUBCOMP")
            case wire.PUBACK | wire.PUBREC | wire.PUBCOMP:
                self._acknowledged(None, wire.NAMES[packet.kind])
            case _:
                raise AssertionError(f"{self.name}: unexpected {packet}")

    def _acknowledged(self, flight: _Flight | None, kind: str) -> None:
        assert self._connection is not None
        self._note(
            Acknowledged,
            client=self.name,
            connection=self._connection.number,
            number=None if flight is None else flight.number,
            kind=kind,
        )

    def _connected_send(self, data: bytes) -> None:
        assert self._connection is not None
        self._connection.send(data)
