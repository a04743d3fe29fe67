"""The test support itself: a cluster starts, delivers and stops."""

from __future__ import annotations

from pathlib import Path

from tests.support.cluster import Cluster, on_loop


@on_loop
async def test_one_message_over_two_hops(tmp_path: Path) -> None:
    """Publisher on a, owner b, subscriber on a pure edge."""
    zones = {"root": "", "a": "a", "b": "b", "edge": None}
    async with Cluster(tmp_path, zones) as cluster:
        sub = await cluster.client("edge")
        await sub.subscribe(("b/#", 2))
        pub = await cluster.client("a")
        await pub.publish("b/x", b"1", 2)
        (message,) = await sub.wait_for(1)

        assert (message.topic, message.payload, message.qos) == ("b/x", b"1", 2)
        assert [(p.edge, p.zone, p.up) for p in cluster.tap.passed] == [
            ("a", "b", True),
            ("edge", "b", False),
        ]
