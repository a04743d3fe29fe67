"""
What a connection from CONNECT to DISCONNECT costs a busy node, in calls that can be counted.

Its time depends on the machine, these numbers do not.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import pytest

from tests.support import wire
from tests.support.cluster import Cluster, on_loop
from txbroker import tap
from txbroker.edge.sessions import session_connect
from txbroker.mqtt.transport import subscribe_packets
from txbroker.runtime import fair_shares

CLIENTS = 60


async def visit(address: tuple[str, int], number: int) -> None:
    """Connect, subscribe, publish, receive, and leave; wait for each answer."""
    reader, writer = await asyncio.open_connection(*address)
    topic = f"t/{number}"
    writer.write(wire.connect(f"c{number}"))
    assert await reader.readexactly(4) == b"\x20\x02\x00\x00"
    writer.write(wire.subscribe(1, (topic, 0)))
    assert (await reader.readexactly(5))[:1] == b"\x90"
    packet = wire.publish(topic, b"x")
    writer.write(packet)
    assert await reader.readexactly(len(packet)) == packet
    writer.write(wire.packet(wire.DISCONNECT, 0))
    assert await reader.read() == b""
    writer.close()


@on_loop
async def test_a_connection_needs_no_timer_and_no_word_to_the_epoll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for its own registration: also where each step waits for the turns of others."""
    from twisted.internet import reactor

    monkeypatch.setattr(fair_shares, "TURN", 1e-9)  # one step a turn, all others are late
    made: list[float] = []
    call_later: Callable[..., Any] = reactor.callLater

    def note(delay: float, *args: Any, **kwargs: Any) -> Any:
        made.append(delay)
        return call_later(delay, *args, **kwargs)

    async with Cluster(tmp_path, {"root": ""}) as cluster:
        address = ("127.0.0.1", int(cluster.documents["root"]["mqtt"][0].split(":")[1]))
        poller = cluster.nodes["root"]._node_base.poller
        epoll = mock.Mock(wraps=poller._epoll, closed=False)
        monkeypatch.setattr(reactor, "callLater", note)
        monkeypatch.setattr(poller, "_epoll", epoll)
        with (
            mock.patch.object(session_connect.attrs, "evolve", wraps=attrs.evolve) as evolve,
            mock.patch.object(
                subscribe_packets, "Properties", wraps=subscribe_packets.Properties
            ) as properties,
        ):
            await asyncio.gather(*(visit(address, number) for number in range(CLIENTS)))
        monkeypatch.undo()

    assert epoll.register.call_count == CLIENTS
    assert epoll.modify.call_count + epoll.unregister.call_count == 0
    assert sum(not delay for delay in made) < CLIENTS / 4
    assert (evolve.call_count, properties.call_count) == (0, 0)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Its collector has no middle generation.")
def test_the_collector_looks_once_at_what_a_connection_leaves() -> None:
    """But for the rare collection of everything."""
    thresholds, collected = gc.get_threshold(), list[int]()

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            collected.append(info["generation"])

    try:
        tap._spare_collector()
        gc.callbacks.append(note)
        kept: list[list[None]] = [[] for _ in range(35_000)]
    finally:
        gc.callbacks.remove(note)
        gc.unfreeze()
        gc.set_threshold(*thresholds)
    assert (len(kept), [1, 1, 1]) == (35_000, collected), "generation 0 would be looked at again"
