"""Shared subscriptions whose members are at nodes that come back late."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cluster import Cluster, on_loop
from tests.support.mqttclient import Client, until
from txbroker.edge.groups import group_coordinators
from txbroker.edge.groups.group_coordinators import GroupCoordinators

GROUP = "$share/g/t/#"


def coordinators(cluster: Cluster) -> GroupCoordinators:
    """Those of the root."""
    owner = cluster.nodes["root"]._owner
    assert owner is not None
    return owner.groups


async def member(cluster: Cluster, node: str, name: str) -> Client:
    client = await cluster.client(node, name, clean=False)
    await client.subscribe((GROUP, 1))
    return client


@on_loop
async def test_member_whose_node_is_away_for_long_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group's node starts again meanwhile, and all other members leave for good."""
    monkeypatch.setattr(group_coordinators, "GRACE", 0.5)
    async with Cluster(tmp_path, {"root": "", "a": None, "b": None}) as cluster:
        await cluster.settled()
        for node, name in (("a", "y"), ("b", "x")):
            await (await member(cluster, node, name)).close()
        for name in ("b", "root"):
            await cluster.stop(name)
        await cluster.start("root")
        publisher = await cluster.client("root")
        await publisher.publish("t/1", b"one", 1)
        groups = coordinators(cluster)._groups
        await until(lambda: GROUP in groups, what="the other node has reported")
        await until(lambda: groups[GROUP].knows_all_edges(0.5), what="the grace is over")
        await (await cluster.client("a", "y")).close()  # a clean session
        await until(lambda: not groups, what="the last member has left")

        await cluster.start("b")
        await cluster.settled()
        client = await cluster.client("b", "x", clean=False)
        await until(lambda: client.payloads() == [b"one"], what="the message has come")
        await client.close()
