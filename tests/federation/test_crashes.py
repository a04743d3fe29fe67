"""
A handover, cut through at each of its messages by SIGKILL of one side or the other.

Publishers and a subscriber at a third node go on all the time. Whoever was killed is started again,
and the command, where there was one, is repeated: at the end one node serves the zone, what was
acknowledged has arrived once and in order, and what was retained is there. The steps, and who
decides at each of them, are in docs/handover.md.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Self

import pytest

from tests.support.cluster import on_loop
from tests.support.control_proxy import ControlProxy
from tests.support.load import Stream, check, stop_all
from tests.support.mqttclient import Client
from tests.support.nodes import NodeProcess, topology
from tests.system.commands import run

away = asyncio.to_thread
"""Processes are waited for in a thread; clients live on this loop."""


class Three:
    """
    A root, a child whose way to it passes a proxy, and an edge with the clients.

    `streams` publish in the child's zone and beside it, `sub` has subscribed to both.
    """

    def __init__(self, directory: Path) -> None:
        self.root = NodeProcess(directory, topology("root", zone=""))
        self.proxy = ControlProxy(self.root.grpc)
        self.child = NodeProcess(directory, topology("child", zone="z", parent=self.proxy.address))
        self.edge = NodeProcess(directory, topology("edge", parent=self.root.grpc))
        self.streams: list[Stream] = []
        self.sub: Client

    async def __aenter__(self) -> Self:
        await away(self.root.start)
        await away(self.edge.start)
        self.sub = await Client.open(self.edge.mqtt, "sub", clean=False)
        await self.sub.subscribe(("z/#", 2), ("beside/#", 2))
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        for node in (self.edge, self.child, self.root):
            await away(node.close)
        self.proxy.__exit__()
        if error is None:
            for node in (self.edge, self.child, self.root):
                for line in node.lines:
                    assert "Traceback" not in line and not line.startswith("Exception"), line

    async def load(self) -> None:
        """Publish from now on, and keep one message."""
        for topic, qos in (("z/x", 1), ("z/y", 2), ("beside/x", 1)):
            client = await Client.open(self.edge.mqtt, f"pub-{topic}")
            self.streams.append(Stream(client, topic, qos, pause=0.01))
        keeper = await Client.open(self.edge.mqtt, "keeper")
        await keeper.publish("z/kept", b"kept", 1, retain=True)
        await self.progress()

    async def progress(self) -> None:
        """Everybody's publishes are acknowledged."""
        for stream in self.streams:
            await stream.progress(5)

    async def trap(self, step: str, victim: NodeProcess, *, passes: bool) -> None:
        """Return when `victim` was killed, as this message came by, and has been started again."""
        killed = self.proxy.on(step, victim.kill, passes=passes)
        assert await away(killed.wait, 20), step
        await away(victim.wait)
        await away(victim.start)

    async def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command from start to end."""
        return await away(run, *arguments, timeout=60)

    async def wait_owner(self, name: str) -> None:
        """One node serves the zone, and everybody knows which."""
        expected = {"": "root"} if name == "root" else {"": "root", "z": name}
        owners: dict[str, str] = {}
        for _ in range(100):
            done = await self.command("tree", self.root.grpc, "--json")
            rows = json.loads(done.stdout or "[]")
            owners = {row["zone"]: row["node"] for row in rows if row["alive"]}
            if owners == expected:
                return
        raise AssertionError(f"{name} is to serve z: {owners}")

    async def finish(self) -> None:
        """Nothing was lost, doubled or disordered, and what was retained is there."""
        await self.progress()
        await stop_all(self.streams)
        await check(self.sub, self.streams, 20)
        late = await Client.open(self.edge.mqtt, "late")
        await late.subscribe(("z/kept", 1))
        assert [p.payload for p in await late.wait_for(1)] == [b"kept"]

    def epochs(self, event: str, node: NodeProcess) -> list[int]:
        """The epochs of these events, in all lives of the node."""
        return [entry["epoch"] for entry in node.events if entry["event"] == event]


JOINING = [
    # the message, who is killed when it comes, whether it still arrives
    ("Join.snapshot", "child", False),
    ("Join.fence", "child", False),
    ("Join.received", "child", False),
    ("Join.granted", "child", False),
    ("Join.snapshot", "root", True),
    ("Join.fence", "root", True),
    ("Join.received", "root", False),
    ("Join.granted", "root", False),
    ("Join.granted", "root", True),
]


@on_loop
@pytest.mark.parametrize(("step", "victim", "passes"), JOINING)
async def test_joining(tmp_path: Path, step: str, victim: str, passes: bool) -> None:
    """A crash before the parent's commit rolls back, one after it rolls forward."""
    async with Three(tmp_path) as three:
        await three.load()
        node = three.root if victim == "root" else three.child
        trapped = asyncio.ensure_future(three.trap(step, node, passes=passes))
        await away(three.child.start, ready=False)
        await trapped
        await away(three.child.wait_event, "join.granted", 20.0)
        await three.wait_owner("child")
        await three.finish()

        committed = three.epochs("handover.committed", three.root)
        assert len(committed) == 1  # once, whoever died
        assert set(three.epochs("join.granted", three.child)) == set(committed)


RETIRING = [
    ("HandBack.begin", "child", False),
    ("HandBack.batches", "child", False),
    ("HandBack.copied", "child", False),
    ("HandBack.snapshot", "child", False),
    ("HandBack.fence", "child", False),
    ("HandBack.committed", "child", False),
    ("HandBack.begin", "root", False),
    ("HandBack.batches", "root", False),
    ("HandBack.copied", "root", False),
    ("HandBack.snapshot", "root", False),
    ("HandBack.fence", "root", False),
    ("HandBack.committed", "root", False),
]


@on_loop
@pytest.mark.parametrize(("step", "victim", "passes"), RETIRING)
async def test_retiring(tmp_path: Path, step: str, victim: str, passes: bool) -> None:
    """
    Only the parent's commit counts. The node that died asks its parent before it serves again; one
    that was left in doubt asks until it is answered.
    """
    async with Three(tmp_path) as three:
        await away(three.child.start)
        await away(three.child.wait_event, "join.granted")
        await three.load()
        node = three.root if victim == "root" else three.child
        trapped = asyncio.ensure_future(three.trap(step, node, passes=passes))
        retired = await three.command("retire", three.child.grpc)
        await trapped
        is_done = step == "HandBack.committed" and victim == "root"
        assert (retired.returncode == 0) == is_done, retired.stderr
        if not is_done:
            if victim == "child":
                await away(three.child.wait_event, "join.granted", 20.0)
            await three.wait_owner("child")
            await three.progress()
            again = await three.command("retire", three.child.grpc)
            assert again.returncode == 0, again.stderr
        assert await away(three.child.wait) == 0
        await three.wait_owner("root")
        await three.finish()

        committed = three.epochs("handover.committed", three.root)
        assert sorted(set(committed)) == committed


@on_loop
async def test_parent_that_is_away_leaves_the_child_in_doubt(tmp_path: Path) -> None:
    """It serves nothing until somebody who knows has answered (rule 12)."""
    async with Three(tmp_path) as three:
        await away(three.child.start)
        await away(three.child.wait_event, "join.granted")
        await three.load()
        killed = three.proxy.on("HandBack.fence", three.root.kill)
        retiring = asyncio.ensure_future(three.command("retire", three.child.grpc))
        await away(three.child.wait_event, "handback.in_doubt", zone="z")
        assert await away(killed.wait, 5)
        await away(three.child.kill)
        assert (await retiring).returncode == 1
        await away(three.child.start)
        rows = await three.command("tree", three.child.grpc, "--json")
        assert [row["alive"] for row in json.loads(rows.stdout)] == [False]

        await away(three.root.start)
        await three.wait_owner("child")
        await three.finish()
