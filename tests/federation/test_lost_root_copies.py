"""
A root lost its disk while a child was away, and took publishes for the child's zone.

Who follows the root meanwhile gets such a message from it, and once more from the child's journal.
Nobody gets it a third time, whichever connection or process ends over it.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.support.cluster import Cluster, on_loop
from tests.support.mqttclient import Client, until
from txbroker.link.link_server import LinkServer
from txbroker.link.publish_receiver import PublishReceiver

TREE = {"root": "", "a": "a", "b": "b"}


async def lose_root(cluster: Cluster) -> None:
    """The root starts with an empty disk, hears of the lost one, and starts again."""
    await cluster.stop("root")
    shutil.rmtree(cluster.directory / "data-root")
    await cluster.start("root")
    await until(lambda: cluster.restarts, what="the root wants to start again")
    cluster.restarts.clear()
    await cluster.stop("root")
    await cluster.start("root")
    await cluster.settled()


def unanswered() -> Any:
    """Owners take publishes, and tell nobody."""
    return mock.patch.object(PublishReceiver, "acknowledge", lambda self, out: None)


def has_question(cluster: Cluster) -> bool:
    """True if an owner holds a question for marks."""
    ends = [link.end for link in cluster.tap.links]
    return any(isinstance(end, LinkServer) and end._asks._held for end in ends)


async def up_to_the_end(client: Client, publisher: Client, topic: str) -> list[bytes]:
    """What the client has got when a last message comes."""
    await publisher.publish(topic, b"end", 1)
    await until(lambda: client.payloads()[-1:] == [b"end"], what="the last message")
    return client.payloads()[:-1]


@on_loop
@pytest.mark.parametrize("qos", [1, 2])
async def test_what_the_child_may_have_is_not_given_to_the_root(tmp_path: Path, qos: int) -> None:
    """The child died before it answered. The root does not know, and the edge waits for a while."""
    async with Cluster(tmp_path, TREE) as cluster:
        follows = await cluster.client("b", "follows", clean=False)
        await follows.subscribe(("a/#", 2))
        await cluster.linked()
        publisher = await cluster.client("b", "publisher", clean=False)
        with unanswered():
            sending = asyncio.ensure_future(publisher.publish("a/x", b"in doubt", qos))
            await until(lambda: follows.received, what="the child delivers")
            await cluster.stop("a")
        await lose_root(cluster)
        await until(lambda: has_question(cluster) or len(follows.received) > 1, what="a question")
        await cluster.start("a")
        await cluster.settled()
        await sending

        assert [b"in doubt"] == await up_to_the_end(follows, publisher, "a/x")


@on_loop
@pytest.mark.parametrize("qos", [1, 2])
async def test_what_the_root_has_is_not_given_to_the_child_twice(tmp_path: Path, qos: int) -> None:
    """The root died before it answered. It hands on the message, and the child knows its mark."""
    async with Cluster(tmp_path, TREE) as cluster:
        follows = await cluster.client("b", "follows", clean=False)
        await follows.subscribe(("a/#", 2))
        at_child = await cluster.client("a", "at child", clean=False)
        await at_child.subscribe(("a/#", 2))
        await at_child.close()
        await cluster.linked()
        publisher = await cluster.client("b", "publisher", clean=False)
        await cluster.stop("a")
        await lose_root(cluster)
        await until(lambda: cluster.nodes["b"].edge.zones.get("a") is None, what="b forgets")
        with unanswered():
            sending = asyncio.ensure_future(publisher.publish("a/x", b"in doubt", qos))
            await until(lambda: follows.received, what="the root delivers")
            await cluster.stop("root")
        await sending
        await cluster.start("a")
        await cluster.start("root")
        await cluster.settled()
        await until(lambda: cluster.logged("zone.strays_forwarded"), what="it is handed on")

        assert 2 * [b"in doubt"] == await up_to_the_end(follows, publisher, "a/x")
        at_child = await cluster.client("a", "at child", clean=False)
        await until(lambda: at_child.payloads()[-1:] == [b"end"], what="the last message")
        assert [b"in doubt", b"end"] == at_child.payloads()


@on_loop
async def test_a_root_that_dies_while_it_hands_on_goes_on_where_it_was(tmp_path: Path) -> None:
    """The child has all, and the root does not know: each message is once in its journal."""
    async with Cluster(tmp_path, TREE) as cluster:
        at_child = await cluster.client("a", "at child", clean=False)
        await at_child.subscribe(("a/#", 2))
        await at_child.close()
        await cluster.stop("a")
        await lose_root(cluster)
        publisher = await cluster.client("root", "publisher")
        sent = [b"%d" % number for number in range(40)]
        for payload in sent:
            await publisher.publish("a/x", payload, 1 + int(payload) % 2)
        with unanswered():
            await cluster.start("a")
            await cluster.settled()
            owner = cluster.nodes["a"].authority
            assert owner is not None
            await until(lambda: owner.delivered >= len(sent), what="the child has all")
            await cluster.stop("root")
        await cluster.start("root")
        await cluster.settled()
        await until(lambda: cluster.logged("zone.strays_forwarded"), what="all is handed on")

        at_child = await cluster.client("a", "at child", clean=False)
        publisher = await cluster.client("root", "publisher")
        found = await up_to_the_end(at_child, publisher, "a/x")
        assert [sent[0::2], sent[1::2]] == [
            [p for p in found if int(p) % 2 == odd] for odd in (0, 1)
        ]
