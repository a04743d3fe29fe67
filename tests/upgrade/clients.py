"""Durable sessions and publishers of a play, and what each of them must have got in the end."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from random import Random

import attrs

from tests.support import wire
from tests.support.rawclient import RawClient
from tests.support.wire import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Packet
from txbroker.model.topics import matches

Message = tuple[str, bytes]

PATIENCE = 60.0
"""Seconds until a client is where it wants to be, or has all that it waits for."""


@attrs.define(slots=True, eq=False)
class Session:
    """
    A durable session, whose client is gone most of the time.

    `due` is what it was sent and has not got. `received` are QoS 2 messages by packet id for which
    PUBREC was sent, and PUBREL has not come.
    """

    client_id: str
    filters: dict[str, int] = attrs.Factory(dict)
    due: Counter[Message] = attrs.Factory(Counter)
    got: dict[str, list[bytes]] = attrs.Factory(lambda: defaultdict(list))
    received: dict[int, Message] = attrs.Factory(dict)
    seen: set[Message] = attrs.Factory(set)
    again: int = 0
    is_begun: bool = False

    def on_published(self, topic: str, payload: bytes, qos: int) -> None:
        """It gets that if it wants it, at QoS 1 or 2."""
        granted = [most for name, most in self.filters.items() if matches(name, topic)]
        if granted and min(qos, max(granted)) > 0:
            self.due[topic, payload] += 1

    def take(self, client: RawClient, rng: Random | None = None) -> None:
        """
        Get all that is due; with `rng` only some of it, and break off in the middle of an exchange.
        """
        most = rng.randrange(sum(self.due.values()) + 1) if rng is not None else None
        until = time.monotonic() + PATIENCE
        while self.due if most is None else most > 0:
            assert time.monotonic() < until, f"{self.client_id}: {short(self.due)} did not come"
            packet = client.receive()
            if most is not None:
                most -= 1
            is_last = most == 0 and rng is not None
            self._on_packet(client, packet, is_half=is_last and rng is not None)
        if most is None:
            while self.received:
                self._on_packet(client, client.receive())
            self._end(client)

    def _on_packet(self, client: RawClient, packet: Packet, *, is_half: bool = False) -> None:
        if packet.kind == PUBREL:
            client.send(wire.ack(PUBCOMP, packet.packet_id))
            self.received.pop(packet.packet_id, None)
            return
        assert packet.kind == PUBLISH, packet
        message = wire.parse_publish(packet)
        what = message.topic, message.payload
        if message.qos == 2 and self.received.get(message.packet_id) == what:
            assert message.dup, f"{self.client_id}: {what[0]} comes twice"
        else:
            self._count(what, message.qos, is_dup=message.dup)
        if message.qos == 2:
            self.received[message.packet_id] = what
            client.send(wire.ack(PUBREC, message.packet_id))
        elif message.qos == 1 and not is_half:
            client.send(wire.ack(PUBACK, message.packet_id))

    def _count(self, what: Message, qos: int, *, is_dup: bool) -> None:
        if self.due[what]:
            self.due[what] -= 1
            self.due += Counter()
            self.got[what[0]].append(what[1])
        else:
            # An acknowledgement that was on its way when the node was killed.
            assert qos == 1 and what in self.seen, f"{self.client_id}: {what[0]} is nobody's"
            self.again += 1
        self.seen.add(what)

    def _end(self, client: RawClient) -> None:
        """Nothing more comes."""
        client.send(wire.PING)
        while (packet := client.receive()).kind != wire.PINGRESP:
            self._on_packet(client, packet)


def short(due: Counter[Message]) -> list[tuple[str, bytes]]:
    """Some of them, for the message of a failure."""
    return [(topic, payload[:20]) for topic, payload in list(due)[:5]]


def connected(
    address: Callable[[], tuple[str, int]], client_id: str, *, clean: bool
) -> tuple[RawClient, bool]:
    """A client, as soon as it is let in, and whether its session was there."""
    until = time.monotonic() + PATIENCE
    while True:
        client = RawClient(address(), timeout=PATIENCE)
        client.client_id = client_id
        client.send(wire.connect(client_id, clean=clean))
        present, code = client.expect(wire.CONNACK).body
        if code == 0:
            return client, bool(present)
        client.close()
        assert code == 3 and time.monotonic() < until, f"{client_id}: CONNACK code {code}"
        time.sleep(0.2)
