"""
The same client id on another node finds its session there, whole, and nowhere twice.

Real nodes over loopback; what a crash does to a move is in tests/directory, and with killed
processes in tests/system.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster, on_loop
from tests.support.mqttclient import Client, until

ZONES = {"root": "", "a": "a", "b": "b", "edge": None}


async def ready(cluster: Cluster) -> None:
    """All nodes know each other, and answer for their share of the ids."""

    def is_ready() -> bool:
        members = [node.members for node in cluster.nodes.values()]
        return all(m.is_settled for m in members) and len({m.view for m in members}) == 1

    await until(is_ready, what="the members know each other")


def holders(cluster: Cluster, client_id: str) -> list[str]:
    """The nodes that have the session."""
    return [name for name, node in cluster.nodes.items() if client_id in node.edge.clients.sessions]


async def connect(cluster: Cluster, node: str, **options: Any) -> Client:
    """The client `x`, with clean session 0."""
    return await cluster.client(node, "x", clean=False, **options)


@on_loop
async def test_a_session_is_found_at_another_node(tmp_path: Path) -> None:
    """Its subscription, and what came while it was away, in order."""
    async with Cluster(tmp_path, ZONES) as cluster:
        await ready(cluster)
        client = await connect(cluster, "a")
        assert not client.session_present
        await client.subscribe(("b/#", 2), ("x", 1))
        await client.close()
        publisher = await cluster.client("root")
        for number in range(10):
            await publisher.publish("b/t", b"%d" % number, 1 + number % 2)
        for node in ("b", "edge", "root", "a"):
            client = await connect(cluster, node)
            assert client.session_present
            assert [node] == holders(cluster, "x")
            await publisher.publish("b/t", node.encode(), 2)
            expected = [b"%d" % n for n in range(10)] if node == "b" else []
            await client.wait_for(len(expected) + 1)
            assert [*expected, node.encode()] == client.payloads()
            await client.close()


@on_loop
async def test_the_old_connection_is_closed(tmp_path: Path) -> None:
    """[MQTT-3.1.4-2], over nodes; its will is published."""
    from txbroker.mqtt.wire.packets import Will

    async with Cluster(tmp_path, ZONES) as cluster:
        await ready(cluster)
        watcher = await cluster.client("root")
        await watcher.subscribe(("w", 1))
        will = Will(topic="w", payload=b"gone", qos=1, retain=False)
        first = await connect(cluster, "a", will=will)
        second = await connect(cluster, "b")

        assert second.session_present
        await until(lambda: not first.is_open, what="the first is closed")
        await watcher.wait_for(1)
        assert [b"gone"] == watcher.payloads()
        assert second.is_open


@on_loop
async def test_a_clean_session_ends_one_elsewhere(tmp_path: Path) -> None:
    """[MQTT-3.1.2-6], over nodes: a kept one, and a connection."""
    async with Cluster(tmp_path, ZONES) as cluster:
        await ready(cluster)
        kept = await connect(cluster, "a")
        await kept.subscribe(("b/#", 1))
        clean = await cluster.client("b", "x")
        await until(lambda: not kept.is_open, what="the kept one is closed")
        await until(lambda: ["b"] == holders(cluster, "x"), what="the kept session has ended")
        other = await cluster.client("edge", "x")
        await until(lambda: not clean.is_open, what="the clean one is closed")
        await other.close()
        await until(lambda: not holders(cluster, "x"), what="no session is left")

        again = await connect(cluster, "root")
        assert not again.session_present


@on_loop
async def test_a_short_clean_session_ends_one_elsewhere(tmp_path: Path) -> None:
    """However short it is."""
    async with Cluster(tmp_path, ZONES) as cluster:
        await ready(cluster)
        kept = await connect(cluster, "a")
        await kept.subscribe(("b/#", 1))
        await kept.close()
        clean = await cluster.client("b", "x")
        await clean.close()
        await until(lambda: not holders(cluster, "x"), what="no session is left")

        again = await connect(cluster, "root")
        assert not again.session_present


@on_loop
async def test_a_session_whose_node_is_away_is_not_replaced(tmp_path: Path) -> None:
    """The client is refused, and has it again when the node is back; others are served."""
    async with Cluster(tmp_path, ZONES, keys={"roaming_wait": "300ms"}) as cluster:
        await ready(cluster)
        client = await connect(cluster, "a")
        await client.subscribe(("b/#", 1))
        await client.close()
        await cluster.stop("a")
        with pytest.raises(AssertionError, match="CONNACK 3"):
            await connect(cluster, "b")
        new = await cluster.client("b", "new", clean=False)
        assert not new.session_present
        await new.close()
        await cluster.start("a")
        client = await connect(cluster, "b")
        assert client.session_present
        assert cluster.logged("session.unreachable", client_id="x")


@on_loop
async def test_a_client_waits_for_a_node_that_comes_back_in_time(tmp_path: Path) -> None:
    """`roaming_wait`."""
    async with Cluster(tmp_path, ZONES, keys={"roaming_wait": "20s"}) as cluster:
        await ready(cluster)
        client = await connect(cluster, "a")
        await client.subscribe(("b/#", 1))
        await client.close()
        await cluster.stop("a")
        waiting = asyncio.ensure_future(connect(cluster, "b"))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await cluster.start("a")
        client = await waiting
        assert client.session_present


@on_loop
async def test_a_fresh_session_takes_in_the_old_one(tmp_path: Path) -> None:
    """`roaming: fresh`: subscriptions of both, and what came for the old one meanwhile."""
    keys = {"roaming_wait": "200ms", "roaming": "fresh"}
    async with Cluster(tmp_path, ZONES, keys=keys) as cluster:
        await ready(cluster)
        client = await connect(cluster, "a")
        await client.subscribe(("b/old", 1))
        await client.close()
        publisher = await cluster.client("root")
        await publisher.publish("b/old", b"before", 1)
        await cluster.stop("a")
        client = await connect(cluster, "b")
        assert not client.session_present
        await client.subscribe(("b/new", 1))
        await publisher.publish("b/old", b"meanwhile", 1)
        await publisher.publish("b/new", b"new", 1)
        await client.wait_for(1)
        await cluster.start("a")
        await client.wait_for(3)
        await publisher.publish("b/old", b"after", 1)
        await client.wait_for(4)

        assert [b"before", b"meanwhile", b"after"] == client.payloads("b/old")
        assert [b"new"] == client.payloads("b/new")
        assert ["b"] == holders(cluster, "x")


@on_loop
async def test_a_restarted_node_still_has_its_sessions(tmp_path: Path) -> None:
    """And those that left are not there twice."""
    async with Cluster(tmp_path, ZONES) as cluster:
        await ready(cluster)
        for client_id, node in (("x", "b"), ("y", "a")):
            client = await cluster.client("a", client_id, clean=False)
            await client.subscribe((f"root/{client_id}", 1))
            await client.close()
            client = await cluster.client(node, client_id, clean=False)
            assert client.session_present
            await client.close()
        for node in ("a", "b"):
            await cluster.stop(node)
            await cluster.start(node)
        await cluster.settled()

        assert ["b"] == holders(cluster, "x")
        assert ["a"] == holders(cluster, "y")
        for client_id in ("x", "y"):
            client = await cluster.client("edge", client_id, clean=False)
            assert client.session_present


@on_loop
async def test_a_node_that_is_alone_asks_nobody(tmp_path: Path) -> None:
    """No call, and no wait."""
    async with Cluster(tmp_path, {"root": ""}) as cluster:
        node = cluster.nodes["root"]
        client = await cluster.client("root", "x", clean=False)
        await client.close()
        client = await cluster.client("root", "x", clean=False)

        assert client.session_present
        assert not node._node_base.channels._channels
