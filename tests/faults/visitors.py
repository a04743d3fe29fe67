"""Clients that come for a moment in the calm, and what they see."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

from tests.support import wire
from tests.support.rawclient import RawClient
from tests.support.wire import PUBLISH, parse_publish

from . import payloads
from .clients import Note, will_of
from .events import Connected, Connecting, Discarded, Disconnected, Overdue


class Newcomers:
    """Durable clients that nobody knows yet; `numbers` are those of all connections."""

    def __init__(
        self, addresses: Mapping[str, tuple[str, int]], note: Note, numbers: Callable[[], int]
    ) -> None:
        self._addresses = addresses
        self._note = note
        self._numbers = numbers
        self._count = itertools.count(1)

    async def visit(self, nodes: Sequence[str]) -> None:
        """One begins at each node, moves on, is discarded at a third one, and begins anew."""
        for place, node in enumerate(nodes):
            client = f"new-{next(self._count)}"
            other, third = nodes[place - 1], nodes[(place - 2) % len(nodes)]
            await self._visit(client, node)
            await self._visit(client, other)
            await self._discard(client, third)
            await self._visit(client, node)
            await self._discard(client, other)

    # internal

    async def _discard(self, client: str, node: str) -> None:
        self._note(Discarded, client=client)
        await self._visit(client, node, clean=True)
        self._note(Discarded, client=client)

    async def _visit(self, client: str, node: str, *, clean: bool = False) -> None:
        """Connect and leave, with a will that nobody may see."""
        number = self._numbers()
        about = {"client": client, "connection": number}
        topic, qos = f"will-{client}", 1
        self._note(Connecting, **about, node=node, will=topic, will_qos=qos)
        will = will_of(client, number, topic, qos)
        try:
            present, code = await asyncio.to_thread(
                _connect, self._addresses[node], client, clean, will
            )
        except (AssertionError, OSError) as error:
            self._note(Overdue, what=f"no CONNACK for {client} at {node}: {error}")
        else:
            self._note(Connected, **about, code=code, session_present=present)
            self._note(Disconnected, **about, why="left: close")


def _connect(
    address: tuple[str, int], client: str, clean: bool, will: wire.Will
) -> tuple[bool, int]:
    """Session present and return code of one connection. Blocks."""
    with RawClient(address) as raw:
        raw.send(wire.connect(client, clean=clean, will=will))
        present, code = raw.receive().body
        if code == 0:
            raw.disconnect()
    return bool(present), code


def retained(address: tuple[str, int], topics: Sequence[str]) -> Iterator[tuple[str, str, int]]:
    """What somebody new gets for these topics: (topic, publisher, number). Blocks."""
    with RawClient(address, timeout=30.0) as client:
        client.connect("curious")
        client.subscribe(*((topic, 1) for topic in topics))
        found = []
        while client.has_input(1.0):
            packet = client.receive()
            if packet.kind == PUBLISH:
                message = parse_publish(packet)
                client.acknowledge(message)
                origin = payloads.read(message.payload)
                if message.retain and origin is not None and origin.topic == message.topic:
                    found.append((message.topic, origin.publisher, origin.number))
        client.disconnect()
    return iter(found)
