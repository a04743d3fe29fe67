"""
How much code a flow enters, end to end: real nodes, sockets and disks in one process.

`pytest -s` prints a line for each flow. The bounds are those of warm flows. The walk with the
fewest calls counts, so idle rounds of the event loop are in none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, on_loop
from tests.support.mqttclient import Client, until
from tests.support.walks import HEAD, Walk, watched_threads

ZONES = {"root": "", "a": "a", "b": "b", "e": None}

WARM = 20
"""Publishes before the first that counts: links are up, headers known, clients in the caches."""

ALONE = 20
"""
Publishes that go alone, of which the shortest walk counts.

Other work in a turn adds calls: a second packet, an idle round, news of the directory.
"""

COLD = 12
"""Walks at the most until one is within its bound: a busy machine adds calls."""

PATIENCE = 60.0
"""Seconds for these publishes, on a busy machine."""


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """The thread that syncs is a part of the walk."""
    with watched_threads():
        yield


def told(name: str, walk: Walk) -> None:
    """Print the figures of a walk."""
    print(f"\n{HEAD}\n{walk.row(name)}")


async def walk_of_publish(folder: Path, publishes_at: str, subscribes_at: str) -> Walk:
    """The shortest of some walks from a QoS 1 PUBLISH to node b to its PUBACK and delivery."""
    async with Cluster(folder, ZONES, bare=True) as cluster:
        subscriber = await cluster.client(subscribes_at)
        await subscriber.subscribe(("b/#", 1))
        return await shortest(await cluster.client(publishes_at), subscriber)


async def shortest(publisher: Client, subscriber: Client) -> Walk:
    """Publish until `ALONE` publishes went alone; return the walk with the fewest calls."""
    loop = asyncio.get_running_loop()
    walks: list[Walk] = []
    number, end = 0, loop.time() + PATIENCE
    while len(walks) < ALONE and loop.time() < end:
        number += 1
        with Walk() as walk:
            await publisher.publish("b/x", b"1", 1)
            await subscriber.wait_for(number)
        if number > WARM and goes_alone(walk):
            walks.append(walk)
    assert walks, "no publish went alone"
    return min(walks, key=lambda walk: walk.figures)


async def settled(cluster: Cluster) -> None:
    """Wait until all members know each other, as long-lived nodes do."""
    await until(lambda: all(node.members.is_settled for node in cluster.nodes.values()))


def goes_alone(walk: Walk) -> bool:
    """True if no timer was set or rang: a slow machine has one in most walks, for a later sync."""
    return "runtime/periodic.py" not in walk.files


@on_loop
async def test_a_publish_over_two_hops_enters_few_files(tmp_path: Path) -> None:
    """QoS 1: the publisher's node a, the owner b, the subscriber's node e, and PUBACK."""
    walk = await walk_of_publish(tmp_path, "a", "e")

    told("PUBLISH over two hops", walk)
    _, _, files, classes, across, callbacks = walk.figures
    assert files <= 35, walk.describe()
    assert classes <= 37, walk.describe()
    assert across <= 150, walk.describe()
    assert callbacks <= 12, walk.describe()


@on_loop
async def test_a_publish_on_its_owner_enters_few_files(tmp_path: Path) -> None:
    """QoS 1 with both clients at the owner."""
    walk = await walk_of_publish(tmp_path, "b", "b")

    told("PUBLISH at the owner", walk)
    assert len(walk.files) <= 35, walk.describe()


@on_loop
async def test_a_subscribe_over_three_zones(tmp_path: Path) -> None:
    """`+/y` at a pure edge without links: the map of the zones and three links begin with it."""
    for _ in range(COLD):
        async with Cluster(tmp_path, ZONES, bare=True) as cluster:
            await settled(cluster)
            client = await cluster.client("e")
            with Walk() as walk:
                await client.subscribe(("+/y", 1))
        told("SUBSCRIBE over three zones", walk)
        if walk.figures[0] <= 5_800:
            break
    else:
        pytest.fail(walk.describe())


@on_loop
async def test_a_session_that_roams(tmp_path: Path) -> None:
    """CONNECT of a durable session at another node."""
    async with Cluster(tmp_path, ZONES, bare=True) as cluster:
        await settled(cluster)
        client = await cluster.client("a", "x", clean=False)
        await client.subscribe(("b/#", 1))
        for node in ("e", "a") * COLD:
            await client.close()
            with Walk() as walk:
                client = await cluster.client(node, "x", clean=False)
            assert client.session_present
            told("CONNECT of a session that roams", walk)
            if walk.figures[0] <= 4_000:
                break
        else:
            pytest.fail(walk.describe())


@on_loop
async def test_a_child_that_joins(tmp_path: Path) -> None:
    """Start, Join and handover of a zone that the parent served."""
    async with Cluster(tmp_path, ZONES, waiting=("b",), bare=True) as cluster:
        publisher = await cluster.client("a")
        await publisher.publish("b/x", b"1", 1, retain=True)
        with Walk() as walk:
            await cluster.start("b")
            await cluster.settled()

    told("start of a child, Join, handover", walk)
    assert walk.files
