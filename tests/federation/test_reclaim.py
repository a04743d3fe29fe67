"""
What is acknowledged after a zone was reclaimed reaches whoever was subscribed before.

The zone's node is dead for good, and the parent knows nothing of the edges that it had: they hear
of it when they come, and get all that the zone had since.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Self

import pytest

from tests.support.cluster import on_loop
from tests.support.mqttclient import Client, until
from tests.support.nodes import NodeProcess, topology
from tests.system.commands import run

away = asyncio.to_thread


class House:
    """A root, a child with the zone `z`, and two pure edges."""

    def __init__(self, directory: Path) -> None:
        self.root = NodeProcess(directory, topology("root", zone=""))
        self.child = NodeProcess(directory, topology("child", zone="z", parent=self.root.grpc))
        self.edge = NodeProcess(directory, topology("edge", parent=self.root.grpc))
        self.other = NodeProcess(directory, topology("other", parent=self.root.grpc))
        self.nodes = (self.root, self.child, self.edge, self.other)
        self.sent = 0
        self.is_dead = False

    async def __aenter__(self) -> Self:
        await away(self.root.start)
        client = await Client.open(self.root.mqtt, "early")
        await client.publish("z/x", b"from before anybody here subscribed", 1)
        await client.close()
        for node in self.nodes[1:]:
            await away(node.start)
        await away(self.child.wait_event, "join.granted", zone="z")
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        for node in reversed(self.nodes):
            await away(node.close)
        if error is None:
            for node in self.nodes:
                for line in node.lines:
                    assert "Traceback" not in line and not line.startswith("Exception"), line

    async def subscribe(self, name: str, *filters: str) -> Client:
        """A durable session at the edge."""
        client = await Client.open(self.edge.mqtt, name, clean=False)
        await client.subscribe(*((topic_filter, 2) for topic_filter in filters))
        return client

    async def publish(self, count: int, *, at: NodeProcess) -> None:
        """The next numbers, in the zone and beside it by turns, acknowledged."""
        client = await Client.open(at.mqtt, f"publisher-{self.sent}")
        for _ in range(count):
            await self.say(client)
        await client.close()

    async def say(self, client: Client) -> None:
        """The next number; its last two bits are topic and QoS."""
        number = self.sent
        self.sent += 1
        await client.publish(TOPICS[number % 2], str(number).encode(), 1 + number // 2 % 2)

    async def reclaim(self) -> None:
        """The child is dead, with all that it had, and its zone the root's again."""
        await away(self.child.kill)
        shutil.rmtree(self.child.data)
        self.is_dead = True
        done = await away(run, "reclaim", self.root.grpc, "z", timeout=60)
        assert done.returncode == 0, done.stderr

    async def wake(self, name: str, wanted: list[int], at: NodeProcess | None = None) -> None:
        """The session gets exactly these, at the edge or where it comes by."""
        client = await Client.open((at or self.edge).mqtt, name, clean=False)
        assert client.session_present
        await gets(client, wanted)
        await client.close()


TOPICS = ("z/x", "y")


def matching(topic_filter: str, first: int, last: int) -> list[int]:
    """The numbers that a session with the filter gets."""
    return [n for n in range(first, last) if topic_filter == "#" or n % 2 == 0]


async def gets(client: Client, wanted: list[int]) -> None:
    """Exactly these numbers, those of one topic and QoS in order."""
    await until(
        lambda: len(client.received) >= len(wanted),
        30,
        lambda: f"{len(client.received)} of {len(wanted)}",
    )
    await client.ping()
    numbers = [int(payload) for payload in client.payloads()]
    for bits in range(4):
        assert [n for n in numbers if n % 4 == bits] == [n for n in wanted if n % 4 == bits]


@on_loop
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("topic_filter", ["z/#", "#"])
async def test_edge_that_was_down_gets_all_since_the_reclaim(
    tmp_path: Path, topic_filter: str, restarts: bool
) -> None:
    """In order, and once is enough: also where root and edge are killed in between."""
    async with House(tmp_path) as house:
        await (await house.subscribe("sleeper", topic_filter)).close()
        await away(house.edge.terminate)
        await house.reclaim()
        await house.publish(40, at=house.root)
        if restarts:
            await away(house.root.kill)
            await away(house.root.start)
        await house.publish(40, at=house.other)
        await away(house.edge.start)
        await house.publish(8, at=house.root)
        if restarts:
            await away(house.edge.kill)
            await away(house.edge.start)
        await house.wake("sleeper", matching(topic_filter, 0, 88))
        await house.wake("sleeper", [])
        if restarts:
            for node in (house.edge, house.root):
                await away(node.kill)
            for node in (house.root, house.edge):
                await away(node.start)
        await house.publish(8, at=house.edge)
        await house.wake("sleeper", matching(topic_filter, 88, 96))


@on_loop
@pytest.mark.parametrize("topic_filter", ["z/#", "#"])
async def test_session_that_is_here_gets_all_since_the_reclaim(
    tmp_path: Path, topic_filter: str
) -> None:
    """Its edge has a link to the root or none, and messages are published all the time."""
    async with House(tmp_path) as house:
        awake = await house.subscribe("awake", topic_filter)
        await house.publish(20, at=house.other)
        await gets(awake, matching(topic_filter, 0, 20))
        await (await house.subscribe("sleeper", topic_filter)).close()
        publisher = await Client.open(house.root.mqtt, "publisher")
        reclaiming = asyncio.create_task(house.reclaim())
        await until(lambda: house.is_dead)
        while not reclaiming.done() or len(awake.received) < 60:
            await house.say(publisher)
        await reclaiming
        for _ in range(20):
            await house.say(publisher)

        await gets(awake, matching(topic_filter, 0, house.sent))
        await house.wake("sleeper", matching(topic_filter, 20, house.sent))


@on_loop
@pytest.mark.parametrize("has_heard", [False, True])
@pytest.mark.parametrize("topic_filter", ["z/#", "#"])
async def test_session_that_moves_gets_all_since_the_reclaim(
    tmp_path: Path, topic_filter: str, has_heard: bool
) -> None:
    """Whether its new node, or the one that it comes from, has heard of it before."""
    async with House(tmp_path) as house:
        await (await house.subscribe("roamer", topic_filter)).close()
        if has_heard:
            there = await Client.open(house.other.mqtt, "there")
            await there.subscribe((topic_filter, 2))
        await house.reclaim()
        await house.publish(20, at=house.root)
        if has_heard:
            await gets(there, matching(topic_filter, 0, 20))
        await house.wake("roamer", matching(topic_filter, 0, 20), at=house.other)
        await house.publish(20, at=house.root)
        await house.wake("roamer", matching(topic_filter, 20, 40))
