"""
A subscriber with a session that lasts: it subscribes once (and again only if its session was lost),
answers what comes at QoS 1 and 2, and remembers over connections which QoS 2 packet identifiers
wait for their PUBREL.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support import wire
from tests.support.wire import PUBACK, PUBCOMP, PUBREC, Packet

from . import cast, payloads
from .clients import Client, Connection
from .events import Delivered, Processed, Settled, Subscribed, SubscribeSent

SUBSCRIBE_ID = 1


class Subscriber(Client):
    """Its filters are those of its traits."""

    def __init__(self, traits: cast.Subscriber, *arguments: Any) -> None:
        super().__init__(traits, *arguments)
        self.filters = traits.filters
        self.is_subscribed = False
        self._is_in_doubt = False
        self._delay = traits.delay
        self._half: set[int] = set()
        self._answered: list[int] = []  # since the last PINGREQ
        self._pinged: list[int] = []  # before it

    def doubt(self) -> None:
        """Subscribe on the next connection, though the session may be present there."""
        self._is_in_doubt = True

    # internal

    def _on_connected(self, connection: Connection, present: bool) -> None:
        self._answered, self._pinged = [], []
        if not present:
            self._half.clear()
        self.is_subscribed &= present and not self._is_in_doubt
        self._is_in_doubt = False
        if not self.is_subscribed:
            about = {"client": self.name, "connection": connection.number}
            self._note(SubscribeSent, **about, filters=self.filters)
            connection.send(wire.subscribe(SUBSCRIBE_ID, *self.filters))

    def _on_flow(self, packet: Packet) -> None:
        connection = self._connection
        assert connection is not None
        match packet.kind:
            case wire.PUBLISH:
                self._on_publish(connection, wire.parse_publish(packet))
            case wire.PUBREL:
                self._half.discard(packet.packet_id)
                self._answer(connection, wire.PUBCOMP, packet.packet_id)
            case wire.SUBACK:
                self._on_suback(connection, packet.codes)
            case _:
                raise AssertionError(f"{self.name}: unexpected {packet}")

    def _on_suback(self, connection: Connection, codes: list[int]) -> None:
        self.is_subscribed = True
        granted = tuple(
            (text, code) for (text, _), code in zip(self.filters, codes, strict=True) if code < 3
        )
        about = {"client": self.name, "connection": connection.number}
        self._note(Subscribed, **about, filters=granted)

    def _on_publish(self, connection: Connection, message: wire.Publish) -> None:
        is_fresh = message.qos != 2 or message.packet_id not in self._half
        self._note_publish(connection, message, is_fresh=is_fresh)
        if message.qos == 1:
            self._answer(connection, PUBACK, message.packet_id)
        elif message.qos == 2:
            self._half.add(message.packet_id)
            self._answer(connection, PUBREC, message.packet_id)

    def _note_publish(
        self, connection: Connection, message: wire.Publish, *, is_fresh: bool
    ) -> None:
        origin = payloads.read(message.payload)
        self._note(
            Delivered,
            **self._about(connection, message, origin),
            topic=message.topic,
            packet_id=message.packet_id,
            dup=message.dup,
            retain=message.retain,
            is_fresh=is_fresh,
            is_intact=origin is not None and origin.topic == message.topic,
        )

    def _about(
        self, connection: Connection, message: wire.Publish, origin: payloads.Origin | None
    ) -> dict[str, Any]:
        return {
            "client": self.name,
            "connection": connection.number,
            "publisher": origin.publisher if origin else "",
            "number": origin.number if origin else 0,
            "qos": message.qos,
        }

    def _answer(self, connection: Connection, kind: int, identifier: int) -> None:
        """Now, or a little later; on this connection or not at all."""
        if not self._delay:
            self._answer_now(connection, kind, identifier)
            return
        loop = asyncio.get_running_loop()
        loop.call_later(self._delay, self._answer_now, connection, kind, identifier)

    def _answer_now(self, connection: Connection, kind: int, identifier: int) -> None:
        if connection is self._connection:
            connection.send(wire.ack(kind, identifier))
            if kind in (PUBACK, PUBCOMP):
                self._answered.append(identifier)

    def _on_ping(self) -> None:
        self._pinged, self._answered = self._answered, []

    def _on_pong(self) -> None:
        connection = self._connection
        assert connection is not None
        for identifier in self._pinged:
            about = {"client": self.name, "connection": connection.number}
            self._note(Settled, **about, packet_id=identifier)
        self._pinged = []


class GroupMember(Subscriber):
    """A member of a group, whose filter is its only one."""

    def _on_ping(self) -> None:
        """What it has answered is of no concern to the sessions of others."""
        self._answered = []

    def _note_publish(
        self, connection: Connection, message: wire.Publish, *, is_fresh: bool
    ) -> None:
        about = self._about(connection, message, payloads.read(message.payload))
        self._note(Processed, **about, is_fresh=is_fresh)
