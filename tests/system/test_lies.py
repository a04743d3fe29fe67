"""Lies of a node that has joined: each is refused whole, and nobody else suffers."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.support.nodes import NodeProcess, free_port, topology
from tests.support.rawclient import RawClient
from txbroker.v1 import control_pb2, types_pb2
from txbroker.v1.control_pb2 import JoinRequest
from txbroker.v1.control_pb2_grpc import ControlStub

from .commands import as_json


@pytest.fixture
def house(tmp_path: Path) -> Iterator[tuple[NodeProcess, NodeProcess]]:
    """A root, and a living node with the zone `a/b`... of which the liar's zone is a sibling."""
    root = NodeProcess(tmp_path, topology("root", zone=""))
    b = NodeProcess(tmp_path, topology("b", zone="b", parent=root.grpc))
    with root, b:
        b.wait_event("join.granted")
        yield root, b


def announce(**fields: object) -> JoinRequest:
    """The liar asks for the zone `a`."""
    values = {"version": 1, "node": "liar", "owns_zone": True, "zone": "a"}
    values["grpc"] = f"127.0.0.1:{free_port()}"
    return JoinRequest(announce=control_pb2.Announce(**{**values, **fields}))


def cut(apex: str, epoch: int = 9) -> types_pb2.Cut:
    return types_pb2.Cut(apex=apex, epoch=epoch, node="liar", grpc="127.0.0.1:1")


LIES = {
    "announced": [announce(below=[cut("b")])],
    "announced the root": [announce(below=[cut("")])],
    "told": [announce(), JoinRequest(below=control_pb2.Below(epoch=1, below=[cut("b")]))],
    "told itself": [announce(), JoinRequest(below=control_pb2.Below(epoch=1, below=[cut("a")]))],
    "epoch": [announce(last_epoch=1 << 62)],
    "name": [announce(node="x" * 70_000)],
    "member": [
        announce(),
        JoinRequest(
            members=control_pb2.Members(
                members=[types_pb2.Member(name="b", grpc="127.0.0.1:1", version=(1 << 64) - 1)]
            )
        ),
    ],
    "later version": [
        announce(),
        JoinRequest(
            members=control_pb2.Members(
                members=[types_pb2.Member(name="b", grpc="127.0.0.1:1", version=1 << 40)]
            )
        ),
    ],
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused_whole(house: tuple[NodeProcess, NodeProcess], lie: str) -> None:
    """The sibling goes on, also over a restart; who joins later is granted."""
    root, b = house
    with grpc.insecure_channel(root.grpc) as channel:
        say(ControlStub(channel), LIES[lie])
    for node in (root, b):
        with RawClient(node.mqtt) as client:
            client.connect("c")
            client.subscribe(("b/t", 1))
            client.publish("b/t", b"as before", qos=1)
            client.expect_publish("b/t", b"as before")
    b.kill()
    b.start()
    b.wait_event("join.granted")
    owners = {row["zone"]: row["node"] for row in as_json("tree", root.grpc)}
    assert ("root", "b") == (owners[""], owners["b"])
    assert "Traceback" not in "".join(root.lines)


def say(stub: ControlStub, requests: list[JoinRequest]) -> None:
    """Talk on a join stream until the other end has had enough, or has taken it all."""
    waiting: queue.SimpleQueue[JoinRequest | None] = queue.SimpleQueue()
    for request in requests:
        waiting.put(request)
    call = stub.Join(iter(waiting.get, None), timeout=5)
    with contextlib.suppress(grpc.RpcError):
        for reply in call:
            if reply.WhichOneof("kind") == "fence":
                received = control_pb2.Received(epoch=reply.fence.grant)
                waiting.put(JoinRequest(received=received))
            if reply.WhichOneof("kind") == "refused":
                break
            if reply.WhichOneof("kind") == "alive" and len(requests) == 1:
                break
    waiting.put(None)
    call.cancel()
