"""
Another node has the address that a node had: what it says is not that node's word.

Two nodes exchange their addresses, as with leases that ran out or with a file that was edited. Who
calls the old address must not take "not mine" for the end of a zone, of a part or of a grant.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.cluster import on_loop
from tests.support.mqttclient import Client, until
from tests.support.nodes import NodeProcess, topology

away = asyncio.to_thread


class Site:
    """A root, three children with zones, one with a zone below, and a pure edge."""

    def __init__(self, directory: Path) -> None:
        self.root = NodeProcess(directory, topology("root", zone=""))
        self.a = NodeProcess(directory, topology("a", zone="a", parent=self.root.grpc))
        self.b = NodeProcess(directory, topology("b", zone="b", parent=self.root.grpc))
        self.ax = NodeProcess(directory, topology("ax", zone="a/x", parent=self.a.grpc))
        self.edge = NodeProcess(directory, topology("edge", parent=self.root.grpc))
        self.nodes = (self.root, self.a, self.b, self.ax, self.edge)

    async def __aenter__(self) -> Self:
        for node in self.nodes:
            await away(node.start)
            if node is not self.root:
                await away(node.wait_event, "join.granted")
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        for node in reversed(self.nodes):
            await away(node.close)
        if error is None:
            for node in self.nodes:
                for line in node.lines:
                    assert "Traceback" not in line and not line.startswith("Exception"), line

    async def swap(self, one: NodeProcess, other: NodeProcess) -> None:
        """Both end, and start with each other's address."""
        for node in (one, other):
            await away(node.kill)
        keys: dict[str, Any] = one.document
        keys["grpc"], other.document["grpc"] = other.document["grpc"], keys["grpc"]
        for node in (one, other):
            await away(node.start)


@on_loop
@pytest.mark.parametrize("qos", [1, 2])
async def test_owners_exchange_addresses_and_nothing_is_lost(tmp_path: Path, qos: int) -> None:
    """Their edges, with sessions that are here and away, get everything, at QoS 2 once."""
    async with Site(tmp_path) as site:
        awake = await Client.open(site.edge.mqtt, "awake", clean=False)
        await awake.subscribe(("a/#", qos), ("b/#", qos))
        sleeper = await Client.open(site.edge.mqtt, "sleeper", clean=False)
        await sleeper.subscribe(("a/#", qos), ("b/#", qos))
        await sleeper.close()
        publisher = await Client.open(site.edge.mqtt, "publisher")
        sent: list[str] = []
        is_over = asyncio.Event()

        async def publish() -> None:
            while not is_over.is_set():
                number = len(sent)
                topic = ("a/t", "b/t", "a/x/t")[number % 3]
                await publisher.publish(topic, str(number).encode(), qos)
                sent.append(str(number))
                await asyncio.sleep(0.01)

        publishing = asyncio.create_task(publish())
        await until(lambda: len(sent) > 50)
        await site.swap(site.a, site.b)
        count = len(sent)
        await until(lambda: len(sent) > count + 50, 30)
        is_over.set()
        await publishing
        sleeper = await Client.open(site.edge.mqtt, "sleeper", clean=False)
        for client in (awake, sleeper):
            await until(lambda c=client: len(set(c.payloads())) >= len(sent), 30)
            got = [payload.decode() for payload in client.payloads()]
            assert set(got) == set(sent)
            if qos == 2:
                assert len(got) == len(sent)


@on_loop
async def test_zone_is_served_though_a_stranger_has_the_parents_address(tmp_path: Path) -> None:
    """The parent is away, and a sibling of it where it was: no refusal of it counts."""
    async with Site(tmp_path) as site:
        for node in (site.a, site.b):
            await away(node.kill)
        site.b.document["grpc"] = site.a.document["grpc"]
        mark = site.ax.mark()
        await away(site.b.start)
        await away(site.b.wait_event, "join.granted")

        said = await away(site.ax.wait_event, "parent.address_reused", after=mark)

        assert "b" == said["peer"] and site.a.grpc == said["parent"]
        client = await Client.open(site.ax.mqtt, "client")
        await client.subscribe(("a/x/#", 1))
        await client.publish("a/x/t", b"served", 1)
        await until(lambda: client.payloads() == [b"served"])
        assert not site.ax.has_event("zone.fenced")
        assert 1 == sum(e["event"] == "parent.address_reused" for e in site.ax.events)

        site.a.document["grpc"] = topology("a")["grpc"]
        await away(site.a.start)
        await away(site.a.wait_event, "child.joined", zone="a/x")
