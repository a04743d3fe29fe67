"""
A zone changes hands while everybody goes on publishing.

Joining takes a zone from the parent, retiring gives it back; a handover that fails leaves all as it
was. Nothing is lost, nothing comes twice, order holds, retained messages move with the zone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import grpc.aio
import pytest

from tests.support.cluster import Cluster, on_loop
from tests.support.load import Stream, check, stop_all
from tests.support.mqttclient import Client, until
from txbroker.delegation.timeouts import PROTOCOL_VERSION
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2_grpc import ControlStub


@pytest.fixture(autouse=True)
def short_grace() -> Iterator[None]:
    """A retired node ends sooner than an operator's would."""
    with mock.patch("txbroker.node.control_plane.RETIRE_GRACE", 0.3):
        yield


async def give_back(cluster: Cluster, name: str) -> None:
    """The first half of `txbroker retire`: the zone is the parent's."""
    reply = await ask_to_retire(cluster, name)
    assert reply.done, reply.reason


async def ask_to_retire(cluster: Cluster, name: str) -> control_pb2.RetireReply:
    """As an operator who has just looked at the tree."""
    cut = cluster.nodes[name].node_grant.cut
    async with grpc.aio.insecure_channel(cluster.documents[name]["grpc"]) as channel:
        request = control_pb2.RetireRequest(zone=cut.apex, epoch=cut.epoch)
        reply: control_pb2.RetireReply = await ControlStub(channel).Retire(request, timeout=30)
    return reply


async def retire(cluster: Cluster, name: str) -> None:
    """What `txbroker retire` does, to the end of the process."""
    await give_back(cluster, name)
    await until(lambda: name in cluster.retired, what=f"{name} ends")
    cluster.retired.discard(name)
    await cluster.stop(name)


async def subscribers(cluster: Cluster, *filters: tuple[str, int]) -> list[Client]:
    """One at each node that runs."""
    found = []
    for name in list(cluster.nodes):
        client = await cluster.client(name, f"sub-{name}")
        await client.subscribe(*filters)
        found.append(client)
    return found


async def load(cluster: Cluster, nodes: list[str], topics: list[str]) -> list[Stream]:
    """A stream at QoS 1 and one at QoS 2 from each node on each topic."""
    return [
        Stream(await cluster.client(node, f"pub-{node}-{number}-{qos}"), topic, qos)
        for node in nodes
        for number, topic in enumerate(topics)
        for qos in (1, 2)
    ]


TREE: dict[str, str | None] = {"root": "", "a": "a", "edge": None, "late": "zone"}


@on_loop
async def test_child_takes_its_zone_under_load(tmp_path: Path) -> None:
    """No gap, no duplicate, order kept, from every node to every node."""
    async with Cluster(tmp_path, TREE, waiting=("late",)) as cluster:
        subs = await subscribers(cluster, ("zone/#", 2), ("other", 2))
        streams = await load(cluster, ["root", "a", "edge"], ["zone/x", "zone/deep/er", "other"])
        for stream in streams:
            await stream.progress()
        await cluster.start("late")
        await cluster.settled()
        for stream in streams:
            await stream.progress(50)
        await stop_all(streams)
        for sub in subs:
            await check(sub, streams)

        assert cluster.nodes["late"].edge.name == "late"
        assert cluster.logged("handover.committed", zone="zone")


@on_loop
async def test_child_gives_its_zone_back_under_load(tmp_path: Path) -> None:
    """Retiring is a handover, too."""
    async with Cluster(tmp_path, TREE) as cluster:
        subs = await subscribers(cluster, ("zone/#", 2), ("other", 2))
        subs = [sub for sub in subs if sub.client_id != "sub-late"]
        streams = await load(cluster, ["root", "a", "edge"], ["zone/x", "other"])
        for stream in streams:
            await stream.progress()
        await retire(cluster, "late")
        for stream in streams:
            await stream.progress(50)
        await stop_all(streams)
        for sub in subs:
            await check(sub, streams)

        assert cluster.logged("handback.committed", zone="zone")
        assert not cluster.logged("link.missed")


@on_loop
async def test_ten_rounds_of_joining_and_retiring(tmp_path: Path) -> None:
    """The zone goes down and up ten times while all publish."""
    async with Cluster(tmp_path, TREE, waiting=("late",)) as cluster:
        subs = await subscribers(cluster, ("zone/#", 2), ("+/x", 1))
        streams = await load(cluster, ["root", "a", "edge"], ["zone/x"])
        for _ in range(10):
            await cluster.start("late")
            await cluster.settled()
            for stream in streams:
                await stream.progress(10)
            await retire(cluster, "late")
            for stream in streams:
                await stream.progress(10)
        await stop_all(streams)
        for sub in subs:
            await check(sub, streams)

        grants = [e["epoch"] for e in cluster.logged("handover.committed", zone="zone")]
        assert len(grants) == len(set(grants)) == 10 and grants == sorted(grants)
        assert len(cluster.logged("handback.committed", zone="zone")) == 10


@on_loop
async def test_clients_of_the_retiring_node_are_served_to_its_end(tmp_path: Path) -> None:
    """What was acknowledged to a publisher on the node itself reaches all, on the node and off."""
    async with Cluster(tmp_path, TREE) as cluster:
        own = await cluster.client("late", "own-sub")
        await own.subscribe(("zone/#", 1))
        far = await cluster.client("edge", "far-sub")
        await far.subscribe(("zone/#", 1))
        streams = await load(cluster, ["late", "edge"], ["zone/x"])
        for stream in streams:
            await stream.progress()
        await give_back(cluster, "late")
        await until(lambda: not own.is_open, what="its clients are to go elsewhere")
        gone, kept = streams[:2], streams[2:]
        for stream in kept:
            await stream.progress(50)
        await stop_all(kept)
        await check(far, kept)
        for stream in gone:
            assert stream.acknowledged <= set(far.payloads(stream.topic))


@on_loop
async def test_retained_messages_move_along(tmp_path: Path) -> None:
    """Those that stand, and those that were cleared do not come back; both ways."""
    async with Cluster(tmp_path, TREE, waiting=("late",)) as cluster:
        pub = await cluster.client("a")
        for number in range(300):
            await pub.publish(f"zone/{number}", b"first", 1, retain=True)
        for number in range(0, 300, 3):
            await pub.publish(f"zone/{number}", b"", 1, retain=True)
        await pub.publish("zone", b"apex", 1, retain=True)
        await pub.publish("zonex", b"not ours", 1, retain=True)
        expected = {(f"zone/{n}", b"first") for n in range(300) if n % 3} | {("zone", b"apex")}

        async def retained(node: str) -> list[tuple[str, bytes]]:
            client = await cluster.client(node)
            await client.subscribe(("zone/#", 1))
            await client.wait_for(len(expected))
            await client.ping()
            assert all(p.retain for p in client.received)
            found = [(p.topic, p.payload) for p in client.received]
            await client.close()
            return sorted(found)

        await cluster.start("late")
        await cluster.settled()
        for node in cluster.nodes:
            assert await retained(node) == sorted(expected), node
        await pub.publish("zone/1", b"", 1, retain=True)
        await pub.publish("zone/0", b"again", 1, retain=True)
        expected = expected - {("zone/1", b"first")} | {("zone/0", b"again")}
        await retire(cluster, "late")
        for node in cluster.nodes:
            assert await retained(node) == sorted(expected), node
        root = cluster.nodes["root"].authority
        assert root is not None
        assert len(list(root.retained.within("zonex"))) == 1


@on_loop
async def test_retained_changes_during_the_copy(tmp_path: Path) -> None:
    """What changes between the bulk copy and the fence moves as it is at the fence."""
    async with Cluster(tmp_path, TREE, waiting=("late",)) as cluster:
        pub = await cluster.client("edge")
        topics = [f"zone/{number}" for number in range(40)]
        for topic in topics:
            await pub.publish(topic, b"x" * 100_000, 1, retain=True)
        stop = asyncio.Event()
        last: dict[str, bytes] = {}

        async def churn() -> None:
            number = 0
            while not stop.is_set():
                topic = topics[number % len(topics)]
                number += 1
                payload = b"" if number % 3 == 0 else b"%d" % number
                await pub.publish(topic, payload, 1, retain=True)
                last[topic] = payload

        task = asyncio.ensure_future(churn())
        await until(lambda: len(last) > 5)
        await cluster.start("late")
        await cluster.settled()
        await until(lambda: len(last) == len(topics))
        stop.set()
        await task
        client = await cluster.client("a")
        await client.subscribe(("zone/#", 1))
        await client.ping()
        got = {p.topic: p.payload for p in client.received}

        assert got == {topic: payload for topic, payload in last.items() if payload}


@on_loop
async def test_outer_zone_joins_after_the_inner_one(tmp_path: Path) -> None:
    """`outside/cams` joined at the root; then `outside` joins, takes it along, and cams is told."""
    zones: dict[str, str | None] = {
        "root": "",
        "edge": None,
        "cams": "outside/cams",
        "outside": "outside",
    }
    async with Cluster(tmp_path, zones, waiting=("outside",)) as cluster:
        subs = await subscribers(cluster, ("outside/#", 2))
        streams = await load(cluster, ["root", "edge", "cams"], ["outside/cams/1", "outside/door"])
        for stream in streams:
            await stream.progress()
        await cluster.start("outside")
        await cluster.settled()
        outside = cluster.nodes["outside"]
        await until(lambda: outside.parent.is_alive("cams"), what="cams joins outside")
        for stream in streams:
            await stream.progress(50)
        root = cluster.nodes["root"]
        assert [c.apex for c in root.node_grant.table.cuts()] == ["outside"]
        assert [c.apex for c in outside.node_grant.table.cuts()] == ["outside/cams"]
        await until(lambda: not root.parent.is_alive("cams"), what="cams left the root")
        lineage = [cut.apex for cut in cluster.nodes["cams"].node_grant.lineage]
        assert lineage == ["", "outside"]

        await retire(cluster, "outside")
        await until(lambda: root.parent.is_alive("cams"), what="cams is back at the root")
        for stream in streams:
            await stream.progress(50)
        await stop_all(streams)
        for sub in subs:
            await check(sub, streams)

        assert [c.apex for c in root.node_grant.table.cuts()] == ["outside/cams"]


@on_loop
async def test_rounds_with_a_zone_below(tmp_path: Path) -> None:
    """The middle one of three comes and goes; wildcards span all of them."""
    zones: dict[str, str | None] = {"root": "", "edge": None, "cams": "o/cams", "out": "o"}
    async with Cluster(tmp_path, zones, waiting=("out",)) as cluster:
        subs = await subscribers(cluster, ("#", 2), ("o/+/1", 1))
        streams = await load(cluster, ["root", "edge", "cams"], ["o/cams/1", "o/door/1", "x"])
        for _ in range(4):
            await cluster.start("out")
            await cluster.settled()
            for stream in streams:
                await stream.progress(10)
            await retire(cluster, "out")
            for stream in streams:
                await stream.progress(10)
        await stop_all(streams)
        for sub in subs:
            await check(sub, streams)


@on_loop
async def test_subscribing_while_zones_move(tmp_path: Path) -> None:
    """A publish after the SUBACK arrives, whoever owns the zone at that moment."""
    async with Cluster(tmp_path, TREE, waiting=("late",)) as cluster:
        pub = await cluster.client("edge", "pub")
        nodes = ["root", "a", "edge"]
        done = asyncio.Event()
        tried = 0

        async def subscribe_and_publish() -> None:
            nonlocal tried
            while not done.is_set():
                sub = await cluster.client(nodes[tried % 3])
                topic = f"zone/{tried}"
                await sub.subscribe((topic if tried % 2 else f"+/{tried}", 1))
                await pub.publish(topic, b"now", 1)
                if not cluster.logged("interest.pending", client_id=sub.client_id):
                    await until(lambda sub=sub: sub.received, what=cluster.describe)
                    assert len(sub.received) == 1, topic
                await sub.close()
                tried += 1

        task = asyncio.ensure_future(subscribe_and_publish())
        for _ in range(4):
            await cluster.start("late")
            await cluster.settled()
            seen = tried
            await until(lambda seen=seen: tried > seen + 5 or task.done())
            await retire(cluster, "late")
            seen = tried
            await until(lambda seen=seen: tried > seen + 5 or task.done())
        done.set()
        await task

        assert tried > 5 * len(cluster.logged("interest.pending"))


# -- handovers that fail


async def join_and_vanish(cluster: Cluster, *, after: str) -> None:
    """A child that asks for `zone` and breaks off when it has read a reply of this kind."""
    channel = grpc.aio.insecure_channel(cluster.documents["root"]["grpc"])
    try:
        call = ControlStub(channel).Join()
        announce = control_pb2.Announce(
            version=PROTOCOL_VERSION,
            node="ghost",
            owns_zone=True,
            zone="zone",
            grpc="127.0.0.1:1",
            incarnation=1,
        )
        await call.write(control_pb2.JoinRequest(announce=announce))
        while True:
            reply = await asyncio.wait_for(call.read(), 10)
            assert reply is not grpc.aio.EOF
            if reply.WhichOneof("kind") == after:
                break
        call.cancel()
    finally:
        await channel.close()


@on_loop
@pytest.mark.parametrize("after", ["snapshot", "fence"])
async def test_child_that_fails_in_the_middle(tmp_path: Path, after: str) -> None:
    """The stream is cut before "received": the parent serves on, and nobody notices."""
    async with Cluster(tmp_path, TREE, waiting=("late",)) as cluster:
        keeper = await cluster.client("root")
        await keeper.publish("zone/kept", b"kept", 1, retain=True)
        subs = await subscribers(cluster, ("zone/x", 2))
        streams = await load(cluster, ["root", "a", "edge"], ["zone/x"])
        for number in range(1, 4):
            await join_and_vanish(cluster, after=after)
            await until(lambda number=number: len(cluster.logged("handover.rolled_back")) == number)
            for stream in streams:
                await stream.progress()
        assert cluster.nodes["root"].node_grant.table.get("zone") is None
        await cluster.start("late")
        await cluster.settled()
        for stream in streams:
            await stream.progress()
        await stop_all(streams)
        for sub in subs:
            await check(sub, streams)
        client = await cluster.client("edge")
        await client.subscribe(("zone/kept", 0))
        assert (await client.wait_for(1))[0].payload == b"kept"


@on_loop
async def test_hand_back_that_breaks_off(tmp_path: Path) -> None:
    """The parent keeps referring to the child, and the next try succeeds."""
    async with Cluster(tmp_path, TREE) as cluster:
        root = cluster.documents["root"]["grpc"]
        for after in ("ready", "snapshot"):
            async with grpc.aio.insecure_channel(root) as channel:
                call = ControlStub(channel).HandBack()
                begin = control_pb2.HandBackBegin(node="late", zone="zone", epoch=1)
                await call.write(control_pb2.HandBackRequest(begin=begin))
                assert (await call.read()).HasField("ready")
                if after == "snapshot":
                    part = control_pb2.Snapshot()
                    part.retained.add(topic="zone/wrong", payload=b"wrong")
                    await call.write(control_pb2.HandBackRequest(snapshot=part))
                call.cancel()
        assert cluster.nodes["root"].node_grant.table.get("zone") is not None
        await retire(cluster, "late")
        client = await cluster.client("root")
        await client.subscribe(("zone/#", 1))
        await client.publish("zone/x", b"1", 1)
        assert [p.payload for p in await client.wait_for(1)] == [b"1"]


@on_loop
async def test_retire_without_a_parent_changes_nothing(tmp_path: Path) -> None:
    """Parent away: the command fails, the zone is served on."""
    async with Cluster(tmp_path, TREE) as cluster:
        sub = await cluster.client("late")
        await sub.subscribe(("zone/#", 1))
        await cluster.stop("root")
        reply = await ask_to_retire(cluster, "late")
        assert not reply.done and reply.reason
        await sub.publish("zone/x", b"on", 1)
        await sub.wait_for(1)
        assert cluster.nodes["late"].node_grant.serving


# -- links that are cut


@on_loop
async def test_links_cut_under_load(tmp_path: Path) -> None:
    """TCP aborted again and again: QoS 1 and 2 are neither lost nor doubled between nodes."""
    zones: dict[str, str | None] = {"root": "", "a": "a", "b": "b", "edge": None}
    async with Cluster(tmp_path, zones) as cluster:
        subs = await subscribers(cluster, ("a/#", 2), ("b/#", 2), ("r", 2))
        streams = await load(cluster, ["root", "a", "edge"], ["a/x", "b/x", "r"])
        for number in range(15):
            for stream in streams:
                await stream.progress(6)
            # From the second half on also while the links come up again.
            for _ in range(1 + number // 8):
                cluster.tap.cut()
                await asyncio.sleep(0.01 * (number % 7))
        await stop_all(streams)
        for sub in subs:
            await check(sub, streams)

        assert not cluster.count("link.missed")
        assert cluster.tap.frames["hello"] > 60


@on_loop
async def test_links_cut_while_a_zone_moves(tmp_path: Path) -> None:
    """Publishes in doubt at the old owner are settled by the marks that moved with the zone."""
    async with Cluster(tmp_path, TREE, waiting=("late",)) as cluster:
        subs = await subscribers(cluster, ("zone/#", 2))
        streams = await load(cluster, ["a", "edge"], ["zone/x"])
        for number in range(6):
            cutting = asyncio.ensure_future(cut_now_and_then(cluster, number))
            for stream in streams:
                await stream.progress(10)
            await cluster.start("late")
            await cluster.settled()
            for stream in streams:
                await stream.progress(10)
            cutting.cancel()
            # Whoever is cut off while a node retires misses that node's last records: its journal
            # is in memory and goes with it.
            await cluster.linked()
            await retire(cluster, "late")
        for stream in streams:
            await stream.progress(10)
        await stop_all(streams)
        for sub in subs:
            await check(sub, streams)


async def cut_now_and_then(cluster: Cluster, seed: int) -> None:
    """All links, at moments that are never the same."""
    generator = random.Random(seed)
    while True:
        await asyncio.sleep(generator.uniform(0.005, 0.2))
        cluster.tap.cut()
