"""What clients say of themselves is so: it is what they are judged by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tests.support.cluster import on_loop

from . import cast
from .clients import Client, Connection
from .events import Connecting


class Silent(Client):
    """A client that says nothing but CONNECT."""


@on_loop
async def test_client_is_at_the_node_whose_address_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that took another address while the client dialled is not the one that answered."""
    servers = [await asyncio.start_server(swallow, "127.0.0.1", 0) for _ in range(2)]
    old, new = (server.sockets[0].getsockname() for server in servers)
    addresses = {"a": old, "b": new}
    dialled, places = [], []
    dial = Connection.open

    async def exchange_meanwhile(address: Any, number: int, take: Callable[..., None]) -> Any:
        connection = await dial(address, number, take)
        dialled.append(address)
        addresses.update(a=new, b=old)
        return connection

    monkeypatch.setattr(Connection, "open", exchange_meanwhile)
    connecting = asyncio.Event()

    def note(kind: type, /, **fields: Any) -> None:
        if kind is Connecting:
            places.append((fields["node"], dialled[-1]))
            connecting.set()

    traits = cast.Client(name="c", node="a", patience=1.0, wanders=False)
    client = Silent(traits, addresses, note, lambda: 1, Random(1))
    running = asyncio.ensure_future(client.run())
    try:
        await asyncio.wait_for(connecting.wait(), 30.0)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        for server in servers:
            server.close()

    assert [("a", new)] == places
    assert [old, new] == dialled


async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read to the end, and answer nothing."""
    try:
        while await reader.read(1024):
            pass
    except OSError:
        pass
    finally:
        writer.close()
