"""
What is larger than a gRPC message may be goes from node to node all the same.

Real processes: a zone with large retained messages and records that comes and goes, a session with
many long filters that roams, records for readers. What is too large is refused in one line.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from tests.support.cluster import on_loop
from tests.support.history import History
from tests.support.mqttclient import Client, until
from tests.support.nodes import NodeProcess, topology
from tests.system.commands import run
from txbroker.rpc.message_pieces import LARGEST, MIB
from txbroker.v1 import journal_pb2
from txbroker.v1.journal_pb2_grpc import JournalStub

away = asyncio.to_thread

SMALL = 30_000


async def fill(node: NodeProcess) -> None:
    """Many small retained messages, and one of 5 MiB."""
    client = await Client.open(node.mqtt, "filler")
    for start in range(0, SMALL, 1_000):
        numbers = range(start, start + 1_000)
        await asyncio.gather(
            *(client.start(f"z/small/{n}", b"%d" % n, 1, retain=True) for n in numbers)
        )
    await client.publish("z/large", bytes(5 * MIB), 1, retain=True)
    await client.close()


async def check(node: NodeProcess) -> None:
    """All of that is there."""
    client = await Client.open(node.mqtt, "checker")
    await client.subscribe(("z/#", 1))
    await client.wait_for(SMALL + 1, 30)
    sizes = sorted(len(payload) for payload in client.payloads())
    assert (sizes[-1], len(sizes)) == (5 * MIB, SMALL + 1)
    await client.close()


@on_loop
async def test_a_large_zone_goes_to_a_child(tmp_path: Path) -> None:
    """30,000 retained messages, and one that is larger than a gRPC message may be."""
    root = NodeProcess(tmp_path, topology("root", zone=""))
    child = NodeProcess(tmp_path, topology("child", zone="z", parent=root.grpc))
    try:
        await away(root.start)
        await fill(root)
        await away(child.start)
        await away(child.wait_event, "join.granted", zone="z", timeout=30)
        await check(child)
    finally:
        for node in (child, root):
            await away(node.close)


@on_loop
async def test_large_records_come_back(tmp_path: Path) -> None:
    """
    A child retires: its records of 6 MiB and a retained one go to the parent, and a session
    elsewhere, which was away, reads them there.
    """
    root = NodeProcess(tmp_path, topology("root", zone=""))
    child = NodeProcess(tmp_path, topology("child", zone="z", parent=root.grpc))
    edge = NodeProcess(tmp_path, topology("edge", parent=root.grpc))
    try:
        for node in (root, child, edge):
            await away(node.start)
        await away(child.wait_event, "join.granted", zone="z")
        sleeper = await Client.open(edge.mqtt, "sleeper", clean=False)
        await sleeper.subscribe(("z/new", 1))
        await sleeper.close()
        client = await Client.open(child.mqtt, "pub")
        for number in range(3):
            await client.publish("z/new", b"%d" % number + bytes(6 * MIB), 1, retain=number == 2)
        await client.close()
        done = await away(run, "retire", child.grpc, timeout=40)
        assert done.returncode == 0, done.stderr
        sleeper = await back(edge, "sleeper")
        await sleeper.wait_for(3, 30)
        assert [payload[:1] for payload in sleeper.payloads()] == [b"0", b"1", b"2"]
        await sleeper.close()
        client = await Client.open(root.mqtt, "checker")
        await client.subscribe(("z/#", 1))
        await client.wait_for(1, 20)
        assert [6 * MIB + 1] == list(map(len, client.payloads()))
        await client.close()
    finally:
        for node in (edge, child, root):
            await away(node.close)


async def back(node: NodeProcess, client_id: str) -> Client:
    """A client with a session, which comes again where the node asks it to."""
    for _ in range(5):
        try:
            client = await Client.open(node.mqtt, client_id, clean=False)
        except AssertionError:  # the machine is slow: the session did not come in time
            continue
        assert client.session_present
        return client
    raise AssertionError(f"{client_id} is not taken")


@on_loop
async def test_a_session_with_long_filters_roams(tmp_path: Path) -> None:
    """10,000 subscriptions, 6 MB of filters: whole at the other node, and back."""
    root = NodeProcess(tmp_path, topology("root", zone=""))
    edge = NodeProcess(tmp_path, topology("edge", parent=root.grpc))
    filters = [f"{n:05}/{'long' * 150}" for n in range(10_000)]
    try:
        for node in (root, edge):
            await away(node.start)
        await away(edge.wait_event, "join.granted")
        warm = await Client.open(edge.mqtt, "warm")
        await warm.subscribe(("warm", 1))
        client = await Client.open(root.mqtt, "roamer", clean=False)
        for start in range(0, len(filters), 500):
            await client.subscribe(*((text, 1) for text in filters[start : start + 500]))
        await client.close()
        for number, node in enumerate((edge, root)):
            client = await back(node, "roamer")
            other = await Client.open(root.mqtt, "pub")
            for text in (filters[0], filters[-1]):
                await other.publish(text, b"%d" % number, 1)
            await client.wait_for(2, 20)
            await other.close()
            await client.close()
    finally:
        for node in (edge, root):
            await away(node.close)


@on_loop
async def test_readers_get_large_records(tmp_path: Path) -> None:
    """Records of 6 MiB; a reader that knows no pieces is told so, and the log says it once."""
    with NodeProcess(tmp_path, topology("root", zone="")) as root:
        client = await Client.open(root.mqtt, "pub")
        await client.publish("small", b"1", 1)
        for number in range(2):
            await client.publish("large", b"%d" % number + bytes(6 * MIB), 1)
        await client.close()

        def read() -> list[int]:
            with History(root.grpc) as history:
                return [len(row.payload) for row in history.read("", 1, start=1)]

        await until(lambda: len(read()) == 3)
        assert [1, 6 * MIB + 1, 6 * MIB + 1] == read()

        with grpc.insecure_channel(root.grpc) as channel:
            stub = JournalStub(channel)
            small = stub.Records(journal_pb2.RecordsRequest(epoch=1, end=2), timeout=30)
            assert sum(batch.count for reply in small for batch in reply.batches) == 1
            for _ in range(2):
                with pytest.raises(grpc.RpcError, match=f"takes {LARGEST} at most; use one"):
                    list(stub.Records(journal_pb2.RecordsRequest(epoch=1), timeout=30))
        root.wait_event("call.refused", call="Records")
