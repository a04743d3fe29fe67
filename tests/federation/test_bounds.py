"""
A zone that comes with more than its new owner has room for: it stays where it is, whole.

No mark, need or retained message goes for another one. The bounds are small here; what comes is
what a zone has after some work.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import attrs
import grpc.aio
import pytest

from tests.support.cluster import Cluster, on_loop
from tests.support.mqttclient import Client, until
from txbroker.authority import edge_registry
from txbroker.delegation import join_rules
from txbroker.delegation.rpc import join_client
from txbroker.directory import session_evacuation
from txbroker.journal.store import retention
from txbroker.mqtt.wire.encoder import encode
from txbroker.mqtt.wire.packets import Publish
from txbroker.node import Node
from txbroker.runtime.unauthenticated import HalfPackets
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2_grpc import ControlStub

from .test_handover import ask_to_retire, give_back

TREE: dict[str, str | None] = {"root": "", "z": "z", "far": None}
PARENTS = {"far": "z"}
NAMES = ("journal.edges", "edges", "marks", "retained", "sessions", "zone.epochs")


def bound_edges(patch: pytest.MonkeyPatch, owner: Node, more: int) -> None:
    patch.setattr(retention, "EDGES", tables(owner)["journal.edges"] + more)


def bound_marks(patch: pytest.MonkeyPatch, owner: Node, more: int) -> None:
    patch.setattr(edge_registry, "MARKS", tables(owner)["marks"] + more)


def bound_retained(patch: pytest.MonkeyPatch, owner: Node, more: int) -> None:
    authority = owner.authority
    assert authority is not None
    patch.setattr(authority, "most_retained", (len(authority.retained) + more, 10**9))


def bound_bytes(patch: pytest.MonkeyPatch, owner: Node, more: int) -> None:
    authority = owner.authority
    assert authority is not None
    patch.setattr(authority, "most_retained", (10**6, authority.retained.size + more * 100))


BOUNDS: dict[str, tuple[Callable[[pytest.MonkeyPatch, Node, int], None], str]] = {
    "journal.edges": (bound_edges, "edges"),
    "marks": (bound_marks, "marks"),
    "retained": (bound_retained, "limits.retained"),
    "bytes": (bound_bytes, "limits.retained"),
}


def tables(node: Node) -> dict[str, int]:
    return {size.name: size.entries for size in node._figures.sizes() if size.name in NAMES}


async def work(cluster: Cluster) -> Client:
    """The zone has a stream, a retained message, and an edge that nobody else knows."""
    client = await cluster.client("far", "sleeper", clean=False)
    await client.subscribe(("z/#", 1))
    await client.publish("z/x", b"x" * 20, 1, retain=True)
    await client.wait_for(1)
    child = cluster.nodes["z"]
    await until(lambda: "far" in needs(child), what="the edge has told its marks")
    return client


def needs(node: Node) -> set[str]:
    return set(node._node_base.retention.needs(""))


@on_loop
@pytest.mark.parametrize("table", BOUNDS)
async def test_zone_that_is_handed_back_passes_no_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """The command names the table; the zone is served on, and goes when there is room."""
    bound, word = BOUNDS[table]
    async with Cluster(tmp_path, TREE, parents=PARENTS) as cluster:
        client = await work(cluster)
        root = cluster.nodes["root"]
        assert root.authority is not None
        bound(monkeypatch, root, 0)
        before = tables(root)

        reply = await ask_to_retire(cluster, "z")

        assert not reply.done and word in reply.reason, reply.reason
        assert cluster.logged("handback.refused", zone="z", peer="z")
        assert before == tables(root)
        await client.publish("z/x", b"on", 1, retain=True)
        await client.wait_for(2)

        bound(monkeypatch, root, 10)
        await give_back(cluster, "z")
        assert "far" in needs(root) and root.authority.retained.get("z/x") is not None


@on_loop
async def test_zones_below_a_child_pass_no_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither when the child tells of them, which serves on, nor when it brings them."""
    tree = {**TREE, "deep": "z/deep"}
    async with Cluster(tmp_path, tree, parents=PARENTS, waiting=("deep",)) as cluster:
        root = cluster.nodes["root"]
        monkeypatch.setattr(join_rules, "APEXES", 1)
        await cluster.start("deep")
        await cluster.settled()
        told = functools.partial(cluster.logged, "zones.over_limit", zone="z")
        await until(lambda: bool(told()), what="the root has heard of the zone below")

        reply = await ask_to_retire(cluster, "z")

        assert not reply.done and "zones" in reply.reason, reply.reason
        assert 1 == tables(root)["zone.epochs"] and cluster.nodes["z"].node_grant.serving
        monkeypatch.setattr(join_rules, "APEXES", 2)
        await give_back(cluster, "z")
        assert 2 == tables(root)["zone.epochs"]


@on_loop
async def test_zone_that_is_handed_over_passes_no_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent serves it on, until the child has room."""
    monkeypatch.setattr(join_client, "FULL_PAUSE", 0.2)
    async with Cluster(tmp_path, TREE, parents={"far": "root"}, waiting=("z",)) as cluster:
        client = await cluster.client("far")
        for number in range(3):
            await client.publish(f"z/{number}", b"kept", 1, retain=True)
        cluster.documents["z"]["limits"] = {"retained": {"messages": 2}}
        child = await cluster.start("z")
        assert child.authority is not None
        failed = functools.partial(cluster.logged, "join.failed")
        await until(lambda: bool(failed()), what="the child has no room")

        assert "limits.retained" in failed()[0]["reason"] and not child.node_grant.serving
        await client.publish("z/2", b"", 1, retain=True)
        await cluster.settled()
        assert 2 == tables(child)["retained"]


@on_loop
async def test_zone_that_is_reclaimed_passes_no_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What unknown edges may need of it has a place, or the zone stays the dead node's."""
    async with Cluster(tmp_path, TREE, parents={"far": "root"}) as cluster:
        root, cut = cluster.nodes["root"], cluster.nodes["z"].node_grant.cut
        await cluster.stop("z")
        await until(lambda: not root.parent.is_alive("z"), what="the child is away")
        request = control_pb2.ReclaimRequest(zone=cut.apex, epoch=cut.epoch)
        async with grpc.aio.insecure_channel(cluster.documents["root"]["grpc"]) as channel:
            stub = ControlStub(channel)
            bound_edges(monkeypatch, root, 0)
            refused = await stub.Reclaim(request, timeout=30)
            held = root.node_grant.table.get("z")
            bound_edges(monkeypatch, root, 1)
            done = await stub.Reclaim(request, timeout=30)

        assert "txbroker forget" in refused.reason and held is not None
        assert done.done and root.node_grant.table.get("z") is None
        assert retention.EDGES == tables(root)["journal.edges"]


@on_loop
async def test_sessions_of_a_node_that_retires_pass_no_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent takes as many as it has room for; the node goes on with the others."""
    monkeypatch.setattr(session_evacuation, "PATIENCE", 2.0)
    async with Cluster(tmp_path, TREE, parents=PARENTS) as cluster:
        root, child = cluster.nodes["root"], cluster.nodes["z"]
        for name in ("one", "two", "three"):
            client = await cluster.client("z", name, clean=False)
            await client.close()
        limits = root.edge.clients._limits
        root.edge.clients.set_limits(attrs.evolve(limits, sessions=2))

        reply = await ask_to_retire(cluster, "z")

        assert not reply.done and "limits.sessions" in reply.reason, reply.reason
        assert [2, 1] == [tables(node)["sessions"] for node in (root, child)]
        root.edge.clients.set_limits(limits)
        await give_back(cluster, "z")
        assert 3 == tables(root)["sessions"]


@on_loop
async def test_who_has_sent_the_rest_of_a_packet_is_not_closed(tmp_path: Path) -> None:
    """The core forwards the rest, and no count is told of it."""
    packet = encode(Publish("t", bytes(8_000)))
    async with Cluster(tmp_path, {"root": ""}) as cluster:
        halves = cluster.nodes["root"]._node_base.connection_parts.halves
        halves.most = 12_000
        sub = await cluster.client("root", "sub")
        await sub.subscribe(("t", 0))
        clients = [await cluster.client("root", name) for name in "abc"]
        for count, client in enumerate(clients):
            await client.publish("t", b"known from now on")
            await sub.wait_for(2 * count + 1)
            client.send(packet[:6_000])
            await until(functools.partial(is_counted, halves, client), what="a half")
            client.send(packet[6_000:])
            await sub.wait_for(2 * count + 2)

        assert [True] * 3 == [client.is_open for client in clients]


def is_counted(halves: HalfPackets, client: Client) -> bool:
    """True if half a packet of the client is counted."""
    return any(cast(Any, holder)._client_id == client.client_id for holder in halves._sizes)
