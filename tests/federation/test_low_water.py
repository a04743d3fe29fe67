"""
What a session waits for stays at the owners while the session moves, whoever tells what when.

The owner trims all the time, and everybody tells its marks as often; those of the session's new
node come late, or not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.federation.test_handover import ask_to_retire
from tests.federation.test_roaming import ready
from tests.support.cluster import Cluster, on_loop
from tests.support.mqttclient import Client, until
from txbroker.link.link_server import LinkServer
from txbroker.node import Node

ZONES = {"root": "", "a": "a", "b": "b", "c": None}

COUNT = 400

NONE = {"journal": "none"}
SMALL = {"retention": {"size": "1MiB"}}

PAYLOAD = 6_000
"""Bytes of a message: all of them are more than the journal keeps for nobody."""


def trim(node: Node) -> None:
    """What the node does every ten seconds."""
    owner = node._owner
    assert owner is not None
    node._node_base.retention.trim(owner.store.present)


def loaded(cluster: Cluster) -> list[Node]:
    """
    The nodes that serve clients, so have loaded their sessions.

    A node tells no marks before: those of an edge that knows none of its sessions let go of all.
    """
    return [node for node in cluster.nodes.values() if node._listeners.mqtt]


@asynccontextmanager
async def hurried(cluster: Cluster) -> AsyncIterator[None]:
    """All edges tell their marks, and all owners trim, fifty times a second; the zone is in use."""
    publisher = await cluster.client("root", "traffic")

    async def hurry() -> None:
        while True:
            await asyncio.sleep(0.02)
            for node in loaded(cluster):
                node.edge.cursors.checkpoint()
                node.edge.low_water.send_marks()
                node._node_base.flush_queue.end()
            publisher.start("traffic", bytes(PAYLOAD), 1)
            for node in loaded(cluster):
                if node.authority is not None:
                    trim(node)

    task = asyncio.ensure_future(hurry())
    try:
        yield
    finally:
        task.cancel()


@contextmanager
def deaf_to(edge: str) -> Iterator[None]:
    """Owners do not hear the marks of this edge."""
    on_frame = LinkServer._on_frame

    def hear(end: LinkServer, frame: Any) -> None:
        is_its = end.peer is not None and end.peer.edge == edge
        if not (is_its and frame.WhichOneof("kind") == "low_water"):
            on_frame(end, frame)

    with mock.patch.object(LinkServer, "_on_frame", hear):
        yield


async def sleeper(cluster: Cluster, node: str, topic: str) -> list[bytes]:
    """The session `x` at the node, whose client is away; what was acknowledged for it since."""
    client = await cluster.client(node, "x", clean=False)
    await client.subscribe((f"{topic}/#", 1))
    await client.close()
    publisher = await cluster.client("root")
    payloads = [b"%d " % number + bytes(PAYLOAD) for number in range(COUNT)]
    for start in range(0, COUNT, 50):
        await asyncio.gather(
            *(publisher.start(f"{topic}/x", p, 1) for p in payloads[start : start + 50])
        )
    return payloads


async def visit(cluster: Cluster, node: str) -> list[bytes]:
    """The client comes to the node, and is gone before it has acknowledged much."""
    client = await cluster.client(node, "x", clean=False)
    assert client.session_present
    client.abort()
    await until(lambda: not client.is_open, what="it is gone")
    return client.payloads()


async def take(client: Client, payloads: list[bytes], had: list[bytes]) -> None:
    """All that was acknowledged comes, in order, but for what came before."""

    def lost() -> set[bytes]:
        return set(payloads) - set(had) - set(client.payloads())

    await until(lambda: not lost(), what=lambda: f"{len(lost())} of {COUNT} are lost")
    got = [p for p in client.payloads() if p in set(payloads)]
    assert sorted(got, key=payloads.index) == got


def moves(cluster: Cluster) -> dict[str, int]:
    """By node: the moves whose places it keeps."""
    found = {n: len(list(node._edge_role.transfer.moves())) for n, node in cluster.nodes.items()}
    return {name: count for name, count in found.items() if count}


@pytest.mark.parametrize("keys", [NONE, SMALL], ids=["none", "small"])
@on_loop
async def test_backlog_outlives_moves_whose_marks_come_late(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    """The marks of the nodes before stay until those of the last one are durable."""
    async with Cluster(tmp_path, ZONES, keys=keys) as cluster:
        await ready(cluster)
        async with hurried(cluster):
            payloads = await sleeper(cluster, "a", "t")
            with deaf_to("b"), deaf_to("c"):
                had = await visit(cluster, "b")
                await asyncio.sleep(0.5)
                had += await visit(cluster, "c")
                await asyncio.sleep(0.5)
                await until(lambda: moves(cluster) == {"a": 1, "b": 1}, what="they have not moved")
            await until(lambda: not moves(cluster), what="the marks have moved")
            await asyncio.sleep(0.3)
            client = await cluster.client("c", "x", clean=False)
            await take(client, payloads, had)
            await client.close()


@on_loop
async def test_backlog_outlives_crashes_of_both_nodes(tmp_path: Path) -> None:
    """The places of a session that left are as durable as its tombstone."""
    async with Cluster(tmp_path, ZONES, keys=NONE) as cluster:
        await ready(cluster)
        async with hurried(cluster):
            payloads = await sleeper(cluster, "a", "t")
            with deaf_to("b"):
                had = await visit(cluster, "b")
                for name in ("a", "b"):
                    await cluster.stop(name)
                    await cluster.start(name)
                await cluster.settled()
                await asyncio.sleep(0.5)
                await until(lambda: moves(cluster) == {"a": 1}, what="they have not moved")
            await until(lambda: not moves(cluster), what="the marks have moved")
            client = await cluster.client("b", "x", clean=False)
            await take(client, payloads, had)
            await client.close()


@on_loop
async def test_backlog_of_a_zone_whose_owner_is_away_while_the_session_moves(
    tmp_path: Path,
) -> None:
    """The node before keeps its mark until the owner is back and has confirmed the new one."""
    async with Cluster(tmp_path, ZONES, keys=NONE) as cluster:
        await ready(cluster)
        async with hurried(cluster):
            payloads = await sleeper(cluster, "a", "b")
            await cluster.stop("b")
            had = await visit(cluster, "c")
            await asyncio.sleep(2.5)
            await until(lambda: moves(cluster) == {"a": 1}, what="they have not moved")
            await cluster.start("b")
            await until(lambda: not moves(cluster), what="the marks have moved")
            client = await cluster.client("c", "x", clean=False)
            await take(client, payloads, had)
            await client.close()


@on_loop
async def test_backlog_outlives_the_retirement_of_its_node(tmp_path: Path) -> None:
    """Its zone goes to the parent meanwhile, with what is kept of the zone."""
    async with Cluster(tmp_path, ZONES, keys=NONE) as cluster:
        await ready(cluster)
        async with hurried(cluster):
            payloads = await sleeper(cluster, "a", "a")
            publisher = await cluster.client("c")
            reply = await ask_to_retire(cluster, "a")
            assert reply.done, reply.reason
            for number in range(50):
                payloads.append(b"more %d" % number)
                await publisher.publish("a/x", payloads[-1], 1)
            client = await cluster.client("b", "x", clean=False)
            await take(client, payloads, [])
            await client.close()


@on_loop
async def test_merged_session_keeps_what_both_waited_for(tmp_path: Path) -> None:
    """`roaming: fresh`: the older one waits for more than the one that takes it in."""
    keys = {**NONE, "roaming": "fresh", "roaming_wait": "200ms"}
    async with Cluster(tmp_path, ZONES, keys=keys) as cluster:
        await ready(cluster)
        async with hurried(cluster):
            payloads = await sleeper(cluster, "a", "t")
            await cluster.stop("a")
            client = await cluster.client("c", "x", clean=False)
            assert not client.session_present
            await client.subscribe(("other", 1))
            await client.close()
            with deaf_to("c"):
                await cluster.start("a")
                await until(lambda: moves(cluster) == {"a": 1}, what="it is merged")
                await asyncio.sleep(0.5)
            await until(lambda: not moves(cluster), what="the marks have moved")
            client = await cluster.client("c", "x", clean=False)
            await take(client, payloads, [])
            await client.close()
