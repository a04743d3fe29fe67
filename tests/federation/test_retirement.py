"""
What others may need of a node goes to its parent when the node is retired, and can be had there.

Sessions that were away, and edges that were down, while their zone's node retired for good miss
nothing; the parts of its journal are kept under their zone and epoch. Sessions of the node itself
are found at the parent. Its `data` is deleted in each of these tests.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Self

import grpc
import pytest

from tests.support import wire
from tests.support.cluster import on_loop
from tests.support.mqttclient import Client, until
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient
from tests.support.wire import PUBACK, PUBCOMP, PUBREC, PUBREL
from tests.system.commands import run
from txbroker.mqtt.wire.packets import Will
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2_grpc import ControlStub

away = asyncio.to_thread


class House:
    """A root, a child with the zone `z`, and an edge."""

    def __init__(self, directory: Path, **keys: str) -> None:
        self.root = NodeProcess(directory, topology("root", zone="", **keys))
        child = topology("child", zone="z", parent=self.root.grpc, **keys)
        self.child = NodeProcess(directory, child)
        self.edge = NodeProcess(directory, topology("edge", parent=self.root.grpc))

    async def __aenter__(self) -> Self:
        for node in (self.root, self.child, self.edge):
            await away(node.start)
        await away(self.child.wait_event, "join.granted", zone="z")
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        for node in (self.edge, self.child, self.root):
            await away(node.close)
        if error is None:
            for node in (self.edge, self.child, self.root):
                for line in node.lines:
                    assert "Traceback" not in line and not line.startswith("Exception"), line

    async def sleeper(self) -> None:
        """A durable session at the edge that wants all of `z`; its client is away."""
        client = await Client.open(self.edge.mqtt, "sleeper", clean=False)
        await client.subscribe(("z/#", 2))
        await client.close()

    async def wake(self, expected: list[bytes]) -> None:
        """The client comes back, and gets exactly this, in order."""
        client = await Client.open(self.edge.mqtt, "sleeper", clean=False)
        assert client.session_present
        await until(
            lambda: len(client.received) >= len(expected),
            30,
            lambda: f"{len(client.received)} of {len(expected)}",
        )
        await client.ping()
        numbers = [int(payload.split(b":")[0]) for payload in client.payloads()]
        assert numbers == [int(payload.split(b":")[0]) for payload in expected]
        await client.close()

    async def publish(
        self, numbers: range, size: int = 0, at: NodeProcess | None = None
    ) -> list[bytes]:
        """Publish numbers at the edge, or at another node; the payloads."""
        node = self.edge if at is None else at
        client = await Client.open(node.mqtt, f"pub{numbers.start}")
        payloads = [f"{n}:".encode() + b"x" * size for n in numbers]
        for start in range(0, len(payloads), 100):
            some = payloads[start : start + 100]
            futures = [client.start("z/x", payload, 1 + n % 2) for n, payload in enumerate(some)]
            await asyncio.gather(*futures)
        await client.close()
        return payloads

    async def retire(self) -> None:
        """The child gives its zone back and is gone."""
        done = await away(run, "retire", self.child.grpc, timeout=60)
        assert done.returncode == 0, done.stderr
        assert await away(self.child.wait) == 0


def read(node: NodeProcess, epoch: int) -> control_pb2.ReadReply:
    """All that the node has of the part, in one answer."""
    with grpc.insecure_channel(node.grpc) as channel:
        request = control_pb2.ReadRequest(zone="z", epoch=epoch, after=0, through=1 << 40)
        reply: control_pb2.ReadReply = ControlStub(channel).Read(request, timeout=30)
    return reply


@on_loop
async def test_session_that_was_away_reads_on_at_the_parent(tmp_path: Path) -> None:
    """The child is gone for good, with all its data; nothing is missing."""
    async with House(tmp_path) as house:
        await house.sleeper()
        sent = await house.publish(range(500), size=10_000)
        await house.retire()
        shutil.rmtree(house.child.data)
        sent += await house.publish(range(500, 600))
        await house.wake(sent)


@pytest.mark.parametrize("durability", ["interval", "memory"])
@on_loop
async def test_what_moves_is_safe_whatever_is_lost_elsewhere(
    tmp_path: Path, durability: str
) -> None:
    """
    The child's data are deleted when it has retired. So the parent, which may lose what it had
    last, has on its disk what came.
    """
    async with House(tmp_path, durability=durability, sync_interval="60s") as house:
        await house.sleeper()
        sent = await house.publish(range(30))
        await house.retire()
        shutil.rmtree(house.child.data)
        await away(house.root.kill)
        await away(house.root.start)
        await house.wake(sent)


@on_loop
async def test_edge_that_was_away_reads_on_at_the_parent(tmp_path: Path) -> None:
    """It comes back when there is no such zone any more; after a restart of the parent as well."""
    async with House(tmp_path) as house:
        await house.sleeper()
        sent = await house.publish(range(100))
        await away(house.edge.kill)
        await house.retire()
        shutil.rmtree(house.child.data)
        await away(house.root.kill)
        await away(house.root.start)
        await away(house.edge.start)
        sent += await house.publish(range(100, 150))
        await house.wake(sent)


@on_loop
async def test_zone_that_comes_and_goes_keeps_all_its_parts(tmp_path: Path) -> None:
    """Each under its epoch, at the parent, whatever the child still has; then at a new child."""
    async with House(tmp_path) as house:
        await house.sleeper()
        sent = await house.publish(range(30))
        for start in (30, 60):
            await house.retire()
            sent += await house.publish(range(start, start + 15))
            await away(house.child.start)
            await away(house.child.wait_event, "join.granted", zone="z")
            sent += await house.publish(range(start + 15, start + 30), at=house.child)
        await house.retire()
        parts = {epoch: read(house.root, epoch) for epoch in (1, 3, 5)}
        assert [len(parts[epoch].offsets) for epoch in parts] == [30, 15, 15]
        assert all(part.kept and part.closed for part in parts.values())
        assert not read(house.root, 7).kept
        assert not list((house.root.data / "arriving").iterdir())

        shutil.rmtree(house.child.data)
        await away(house.child.start)
        await away(house.child.wait_event, "join.granted", zone="z")
        await house.wake(sent)


@on_loop
async def test_hand_back_without_room_is_refused(tmp_path: Path) -> None:
    """The parent says so before anything is copied, and the child goes on."""
    async with House(tmp_path) as house:
        call_options = {"node": "child", "zone": "z", "epoch": 1, "journal": 1 << 60}
        async with grpc.aio.insecure_channel(house.root.grpc) as channel:
            call = ControlStub(channel).HandBack()
            begin = control_pb2.HandBackBegin(**call_options)
            await call.write(control_pb2.HandBackRequest(begin=begin))
            reply = await call.read()
        assert "the parent's disk has no room for" in reply.refused.reason
        tree = await away(run, "tree", house.root.grpc, "--json")
        assert {row["zone"]: row["node"] for row in json.loads(tree.stdout)}["z"] == "child"


@on_loop
async def test_sessions_of_the_node_are_at_its_parent(tmp_path: Path) -> None:
    """With what waits for them, and what was open in both directions; packet ids included."""
    async with House(tmp_path) as house:
        opened = await away(open_flows, house.child)
        sent = await house.publish(range(1, 60))
        await house.retire()
        shutil.rmtree(house.child.data)
        got = await away(finish_flows, house.root)

        assert [b"0:", *sent] == [m.payload for m in got]
        assert got[0].dup and got[0].packet_id == opened


def open_flows(node: NodeProcess) -> int:
    """
    A durable session that has published `halfway`, without its PUBREL, and has not acknowledged
    a message, whose packet id is returned.
    """
    with RawClient(node.mqtt) as client:
        client.connect("c", clean=False)
        client.subscribe(("z/#", 2), ("other", 1))
        client.send(wire.publish("other", b"halfway", qos=2, packet_id=77))
        client.wait_for(PUBREC, 77)
        assert client.take(1)[0].payload == b"halfway"
        client.send(wire.publish("z/x", b"0:", qos=1, packet_id=78))
        client.wait_for(PUBACK, 78)
        message = client.expect_publish("z/x", b"0:")
        assert message.packet_id is not None
        return message.packet_id


def finish_flows(node: NodeProcess) -> list[wire.Publish]:
    """The client at another node: it ends its own flow, and gets what there is."""
    with RawClient(node.mqtt) as client:
        assert client.connect("c", clean=False)
        client.send(wire.publish("other", b"halfway", qos=2, packet_id=77, dup=True))
        client.wait_for(PUBREC, 77)
        client.send(wire.ack(PUBREL, 77))
        client.wait_for(PUBCOMP, 77)
        client.publish("z/x", b"last", qos=1)
        return client.take_until(lambda message: message.payload == b"last")


@on_loop
async def test_clients_of_the_node_go_elsewhere(tmp_path: Path) -> None:
    """Their connections end, wills are published once; ids that nobody knows are served."""
    async with House(tmp_path) as house:
        watcher = await Client.open(house.edge.mqtt, "watcher")
        await watcher.subscribe(("w", 2))
        will = Will(topic="w", payload=b"gone", qos=2, retain=False)
        client = await Client.open(house.child.mqtt, "c", will=will)
        await house.retire()
        shutil.rmtree(house.child.data)
        assert not client.is_open
        await watcher.wait_for(1)
        for node in (house.root, house.edge):
            for number in range(5):
                new = await Client.open(node.mqtt, f"new-{node.name}-{number}", clean=False)
                assert not new.session_present
                await new.close()
        assert [b"gone"] == watcher.payloads()


@on_loop
async def test_node_that_comes_back_is_a_member_again(tmp_path: Path) -> None:
    """With its data or without; sessions move to it."""
    async with House(tmp_path) as house:
        await house.sleeper()
        for is_empty in (False, True):
            await house.retire()
            if is_empty:
                shutil.rmtree(house.child.data)
            await away(house.child.start)
            await away(house.child.wait_event, "join.granted", zone="z")
            for node in (house.child, house.edge):
                client = await Client.open(node.mqtt, "sleeper", clean=False)
                assert client.session_present
                await client.close()


@on_loop
async def test_node_does_not_go_while_its_outbox_waits(tmp_path: Path) -> None:
    """It says for whom, and goes on; when the other is there again it goes."""
    async with House(tmp_path) as house:
        other = NodeProcess(tmp_path, topology("other", zone="o", parent=house.root.grpc))
        await away(other.start)
        await away(other.wait_event, "join.granted", zone="o")
        try:
            reader = await Client.open(house.edge.mqtt, "reader", clean=False)
            await reader.subscribe(("o/#", 1))
            client = await Client.open(house.child.mqtt, "c", clean=False)
            await client.publish("o/x", b"0", 1)
            await away(other.kill)
            await client.publish("o/x", b"1", 1)
            done = await away(run, "retire", house.child.grpc, timeout=60)
            assert done.returncode == 1
            assert "1 messages for zone 'o' wait here" in done.stderr
            assert len(done.stderr.splitlines()) == 1
            again = await Client.open(house.child.mqtt, "c", clean=False)
            assert again.session_present
            await again.publish("z/x", b"still here", 1)
            await away(other.start)
            await house.retire()
            shutil.rmtree(house.child.data)
            await reader.wait_for(2)
            assert [b"0", b"1"] == reader.payloads()
        finally:
            await away(other.close)


@on_loop
async def test_zone_below_comes_back_while_the_node_is_leaving(tmp_path: Path) -> None:
    """The node has copied its journal by then; that zone's journal goes to the parent, too."""
    async with House(tmp_path) as house:
        other = NodeProcess(tmp_path, topology("other", zone="o", parent=house.root.grpc))
        below = NodeProcess(tmp_path, topology("below", zone="z/x", parent=house.child.grpc))
        try:
            for node in (other, below):
                await away(node.start)
                await away(node.wait_event, "join.granted")
            await house.sleeper()
            sent = await house.publish(range(20))
            client = await Client.open(house.child.mqtt, "c", clean=False)
            await away(other.kill)
            await client.publish("o/x", b"keeps the child here", 1)
            leaving = asyncio.create_task(house.retire())
            await away(house.child.wait_event, "retire.started")
            done = await away(run, "retire", below.grpc, timeout=60)
            assert done.returncode == 0, done.stderr
            assert not leaving.done()
            await away(other.start)
            await leaving
            shutil.rmtree(house.child.data)
            await house.wake(sent)
        finally:
            for node in (below, other):
                await away(node.close)


SESSIONS = 300


@on_loop
@pytest.mark.parametrize("victim", ["child", "root"])
async def test_crash_while_sessions_move(tmp_path: Path, victim: str) -> None:
    """Each is at one of the two, and at the parent when the command is repeated."""
    async with House(tmp_path) as house:
        for start in range(0, SESSIONS, 50):
            await asyncio.gather(*(sleep_at(house.child, n) for n in range(start, start + 50)))
        publisher = await Client.open(house.edge.mqtt, "publisher")
        await publisher.publish("z/x", b"kept for all", 1)
        node = house.child if victim == "child" else house.root
        retiring = asyncio.ensure_future(away(run, "retire", house.child.grpc, timeout=60))
        await until(lambda: count_sessions(house.root), 30, "one has moved")
        await away(node.kill)
        assert (await retiring).returncode == 1
        await away(node.start)
        if victim == "child":
            await away(house.child.wait_event, "join.granted", zone="z")
        else:
            await away(house.root.wait_event, "child.joined", zone="z")
        await house.retire()
        shutil.rmtree(house.child.data)

        assert count_sessions(house.root) == SESSIONS
        for number in range(0, SESSIONS, 10):
            client = await Client.open(house.root.mqtt, f"s{number}", clean=False)
            assert client.session_present
            await client.wait_for(1)
            assert [b"kept for all"] == client.payloads()
            await client.close()


async def sleep_at(node: NodeProcess, number: int) -> None:
    """A durable session whose client is away."""
    client = await Client.open(node.mqtt, f"s{number}", clean=False)
    await client.subscribe(("z/#", 1))
    await client.close()


def count_sessions(node: NodeProcess) -> int:
    """Those named `s...` that the node has."""
    with grpc.insecure_channel(node.grpc) as channel:
        pages = ControlStub(channel).Sessions(control_pb2.SessionsRequest(), timeout=30)
        return sum(s.client_id.startswith("s") for page in pages for s in page.sessions)
