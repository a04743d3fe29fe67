"""The client directory between real nodes: who is a member, who is answered, what stays quiet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.support.cluster import Cluster, on_loop
from tests.support.mqttclient import until
from tests.support.nodes import free_port
from txbroker.directory.requests import Ping, Pong, Take
from txbroker.directory.rpc import directory_convert as wire
from txbroker.runtime import structured_log
from txbroker.v1 import directory_pb2, directory_pb2_grpc

ZONES = {"root": "", "a": "a", "ab": "a/b", "edge": None}


def names(cluster: Cluster, node: str) -> set[str]:
    """The members of its site that a node knows."""
    members = cluster.nodes[node].members
    return {members.name, *members.peers()}


async def ask(cluster: Cluster, node: str, question: directory_pb2.Question) -> Any:
    """A question as anybody may send it; the reply's value."""
    address = cluster.documents[node]["grpc"]
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = directory_pb2_grpc.DirectoryStub(channel)
        return wire.answer_of(await stub.Ask(question, timeout=30))


@on_loop
async def test_all_nodes_come_to_know_each_other(tmp_path: Path) -> None:
    """Up and down the tree, also what joins later, and what is away."""
    async with Cluster(tmp_path, ZONES, waiting=("edge",)) as cluster:
        early = {"root", "a", "ab"}
        for name in early:
            await until(lambda n=name: names(cluster, n) == early, what="three know each other")
        await cluster.stop("ab")
        await cluster.start("edge")
        for name in ("root", "a", "edge"):
            await until(lambda n=name: names(cluster, n) == set(ZONES), what="all are known")
        await cluster.start("ab")
        await until(lambda: names(cluster, "ab") == set(ZONES), what="it is told")


@on_loop
async def test_a_new_address_is_learnt(tmp_path: Path) -> None:
    """A node that comes back at another port is found by its siblings."""
    async with Cluster(tmp_path, {"root": "", "a": "a", "b": "b"}) as cluster:
        everybody = {"root", "a", "b"}
        await until(lambda: names(cluster, "b") == everybody, what="all are known")
        await cluster.stop("a")
        address = f"127.0.0.1:{free_port()}"
        cluster.documents["a"]["grpc"] = address
        await cluster.start("a")

        def is_learnt() -> bool:
            member = cluster.nodes["b"].members.get("a")
            return member is not None and member.grpc == address

        await until(is_learnt, what="the new address")


@on_loop
async def test_sites_keep_apart(tmp_path: Path) -> None:
    """Each keeps its own entries; a session that one does not know is found in the other."""
    async with Cluster(tmp_path, {"root": "", "a": "a", "b": "b"}, waiting=("b",)) as cluster:
        cluster.documents["b"]["site"] = "far"
        await cluster.start("b")
        await until(lambda: cluster.nodes["b"].members.sites() == ("",), what="the other site")
        await until(lambda: cluster.nodes["a"].members.sites() == ("far",), what="the far site")
        assert names(cluster, "a") == {"root", "a"}
        client = await cluster.client("a", "x", clean=False)
        await client.subscribe(("t", 1))
        moved = await cluster.client("b", "x", clean=False)

        assert moved.session_present
        await until(lambda: not client.is_open, what="the old connection is closed")


@on_loop
async def test_members_are_answered_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor anybody who takes this node for another one."""
    # Other tests of the process may have used up the lines of this event.
    monkeypatch.setattr(structured_log, "_repeated", structured_log.RepeatedEvents())
    async with Cluster(tmp_path, {"root": "", "a": "a"}) as cluster:
        await until(lambda: names(cluster, "root") == {"root", "a"}, what="the child is known")
        client = await cluster.client("root", "x", clean=False)
        assert Pong() == await ask(cluster, "root", wire.question("a", "root", Ping()))
        take = Take(client_id="x", incarnation=1)
        for source, target in (("stranger", "root"), ("a", "other"), ("", "")):
            assert await ask(cluster, "root", wire.question(source, target, take)) is None
        assert client.is_open
        assert cluster.logged("directory.refused", peer="stranger")


@on_loop
async def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    """A claim without an entry, a question without a kind."""
    async with Cluster(tmp_path, {"root": ""}) as cluster:
        claim = directory_pb2.Question(
            source="root", target="root", claim=directory_pb2.Question.Claim()
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(cluster, "root", claim)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        nothing = directory_pb2.Question(source="root", target="root")

        assert await ask(cluster, "root", nothing) is None
