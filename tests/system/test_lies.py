"""Lies of a node that has joined: each is refused whole, and nobody else suffers."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.support.nodes import NodeProcess, free_port, topology
from tests.support.rawclient import RawClient
from txbroker.v1 import control_pb2, directory_pb2, types_pb2
from txbroker.v1.control_pb2 import JoinRequest
from txbroker.v1.control_pb2_grpc import ControlStub
from txbroker.v1.directory_pb2_grpc import DirectoryStub

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


def below(*cuts: types_pb2.Cut) -> JoinRequest:
    """The liar tells, at the epoch of its grant, of cuts below its zone."""
    return JoinRequest(below=control_pb2.Below(epoch=1, below=cuts))


LIES = {
    "announced": [announce(below=[cut("b")])],
    "announced the root": [announce(below=[cut("")])],
    "told": [announce(), below(cut("b"))],
    "told itself": [announce(), below(cut("a"))],
    "told far ahead": [announce(), below(cut("a/b", 1 << 61))],
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
    if lie.startswith("told"):
        root.wait_event("child.invalid_message", peer="liar")
    for node in (root, b):
        with RawClient(node.mqtt) as client:
            client.connect("c")
            client.subscribe(("b/t", 1))
            client.publish("b/t", b"as before", qos=1)
            client.expect_publish("b/t", b"as before")
    b.kill()
    b.start()
    b.wait_event("join.granted")
    is_granted = len(LIES[lie]) > 1  # of its zone nobody is there any more
    rows = as_json("tree", root.grpc, status=int(is_granted))
    owners = {row["zone"]: row["node"] for row in rows}
    assert ("root", "b") == (owners[""], owners["b"])
    assert "Traceback" not in "".join(root.lines)


def test_no_stranger_takes_a_child_from_its_living_parent(
    house: tuple[NodeProcess, NodeProcess],
) -> None:
    """It dialled the stranger's address from then on, also after a restart."""
    root, b = house
    parent = types_pb2.Cut(apex="", epoch=1, node="thief", grpc=f"127.0.0.1:{free_port()}")
    request = control_pb2.AdoptRequest(parent=parent, zone="b", epoch=1)
    with grpc.insecure_channel(b.grpc) as channel:
        assert not ControlStub(channel).Adopt(request, timeout=5).accepted
    b.kill()
    b.start()
    b.wait_event("join.granted")
    assert not b.has_event("parent.changed", after=0)


def test_garbage_is_logged_a_few_times(house: tuple[NodeProcess, NodeProcess]) -> None:
    """Five bytes that are no message were a kilobyte of log, and each connection was a line."""
    root, _ = house
    before = len(root.lines)
    with grpc.insecure_channel(root.grpc) as channel:
        resolve = channel.unary_unary("/txbroker.v1.Control/Resolve")
        for _ in range(50):
            with pytest.raises(grpc.RpcError):
                resolve(b"\x0a\x03\xed\xa0\x80", timeout=5)  # half of a character
    host, _, port = root.link.rpartition(":")
    for _ in range(50):
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            stranger.settimeout(5)
            with contextlib.suppress(ConnectionError):
                stranger.recv(1)
    assert len(root.lines) - before < 40
    assert root.running


def say(stub: ControlStub, requests: list[JoinRequest]) -> None:
    """
    Talk on a join stream until the other end has had enough, or has taken it all.

    All but the announcement follow the grant: amid a handover no other message has its turn.
    """
    waiting: queue.SimpleQueue[JoinRequest | None] = queue.SimpleQueue()
    waiting.put(requests[0])
    call = stub.Join(iter(waiting.get, None), timeout=5)
    with contextlib.suppress(grpc.RpcError):
        for reply in call:
            if reply.WhichOneof("kind") == "fence":
                received = control_pb2.Received(epoch=reply.fence.grant)
                waiting.put(JoinRequest(received=received))
            if reply.WhichOneof("kind") == "granted":
                for request in requests[1:]:
                    waiting.put(request)
            if reply.WhichOneof("kind") == "refused":
                break
            if reply.WhichOneof("kind") == "alive" and len(requests) == 1:
                break
    waiting.put(None)
    call.cancel()


def test_invented_members_keep_nothing(house: tuple[NodeProcess, NodeProcess]) -> None:
    """Of ten thousand that answer nobody; new durable clients are accepted at both nodes."""
    root, b = house
    invented = [
        types_pb2.Member(name=f"ghost-{number}", grpc=f"127.0.0.1:{port}", version=1)
        for number, port in enumerate([free_port() for _ in range(10)] * 999)
    ]
    told = control_pb2.Members(members=invented)
    question = directory_pb2.Question(source="b", target="root")
    question.share_members.members.extend(invented)
    with RawClient(b.mqtt) as client:
        client.connect("before", clean=False)
    with grpc.insecure_channel(root.grpc) as channel:
        stub = ControlStub(channel)
        liar = threading.Thread(
            target=say, args=(stub, [announce(owns_zone=False), JoinRequest(members=told)])
        )
        liar.start()
        DirectoryStub(channel).Ask(question, timeout=10)
        root.wait_event("members.unreachable")
        for number, node in enumerate((root, b) * 20):
            with RawClient(node.mqtt) as client:
                client.connect(f"durable-{number}", clean=False)
        liar.join()
