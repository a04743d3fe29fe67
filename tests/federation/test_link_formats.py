"""Nodes whose links have different formats: each says so in one line, and nothing is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from tests.support.cluster import Cluster, on_loop
from tests.support.mqttclient import until
from txbroker.link.formats import LinkFormats
from txbroker.link.frames import LINK_VERSION


def formats_of(cluster: Cluster, name: str) -> list[LinkFormats]:
    """What the node knows of formats, as an owner and as an edge."""
    node: Any = cluster.nodes[name]
    return [node._owner.links.formats, node._edge_role._dialer.formats]


@on_loop
async def test_each_says_so_once(tmp_path: Path) -> None:
    """Who it is, which of them is older, what to do; all goes on once they match."""
    async with Cluster(tmp_path, {"root": "", "a": "a"}) as cluster:
        for formats in formats_of(cluster, "a"):
            formats.ours = LINK_VERSION + 1
        sub = await cluster.client("a")
        await sub.subscribe(("a/#", 1))
        pub = await cluster.client("root")
        publishing = asyncio.ensure_future(pub.publish("a/x", b"1", 1))
        await until(lambda: bool(cluster.logged("outbox.opened")), what="three attempts failed")

        told = {line["peer"]: line for line in cluster.logged("link.format_mismatch")}
        assert {"a", "root"} == told.keys() and 2 == len(cluster.logged("link.format_mismatch"))
        assert {("warning", "a")} == {(line["level"], line["zone"]) for line in told.values()}
        reasons = told["a"]["reason"], told["root"]["reason"]
        newer, older = f"link format {LINK_VERSION + 1}", f"link format {LINK_VERSION}"
        assert f"node 'a' has {newer}, this node {LINK_VERSION}" in reasons[0]
        assert "stop this node" in reasons[0]
        assert f"node 'root' has {older}, this node {LINK_VERSION + 1}" in reasons[1]
        assert "stop node 'root'" in reasons[1]
        assert not cluster.logged("link.opened")

        for formats in formats_of(cluster, "a"):
            formats.ours = LINK_VERSION
        await publishing
        (message,) = await sub.wait_for(1)
        assert b"1" == message.payload


def test_a_node_is_told_of_again() -> None:
    """After a time of agreement, or with another format; a node that names none is older."""
    formats = LinkFormats(ours=7)
    with capture_logs() as logged:
        answers = [formats.is_ours("n", version, "") for version in (6, 6, 8, 7, 8, 0, 0)]

    assert [False, False, False, True, False, False, False] == answers
    told = [line["reason"].partition(":")[0].removeprefix("node 'n' has ") for line in logged]
    assert [f"link format {n}, this node 7" for n in (6, 8, 8, 0)] == told
