"""Lies of a child that gives its zone back: each ends the hand-back, and nothing of it is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.liar import join
from tests.support.nodes import NodeProcess, free_port, topology
from tests.support.rawclient import RawClient
from txbroker.journal.store.record_format import encode_records
from txbroker.mqtt.wire.message import Message
from txbroker.storage.segment import FORMAT
from txbroker.v1 import control_pb2, types_pb2
from txbroker.v1.control_pb2 import HandBackReply, HandBackRequest, Predecessor
from txbroker.v1.control_pb2_grpc import ControlStub

from .commands import as_json

HUGE = 1 << 61
MALFORMED = b"\1" * 40


def part(zone: str = "a", epoch: int = 1, **fields: Any) -> HandBackRequest:
    return HandBackRequest(
        part=control_pb2.JournalPart(zone=zone, epoch=epoch, format=FORMAT, **fields)
    )


def batch(body: bytes, count: int = 1, first: int = 1) -> HandBackRequest:
    one = control_pb2.JournalBatch(first=first, count=count, time=1, body=body)
    return HandBackRequest(batches=control_pb2.JournalBatches(batches=[one]))


def records(*topics: str, marks: Any = None) -> bytes:
    return encode_records([Message(topic, b"x", 1) for topic in topics], marks or {}, "liar")


def snapshot(**fields: Any) -> HandBackRequest:
    return HandBackRequest(snapshot=control_pb2.Snapshot(**fields))


def fence(offset: int = 2, **fields: Any) -> HandBackRequest:
    return HandBackRequest(fence=control_pb2.Fence(zone="a", epoch=1, offset=offset, **fields))


def interest(edge: str, incarnation: int, topic_filter: str) -> HandBackRequest:
    told = control_pb2.EdgeInterest(edge=edge, incarnation=incarnation, filters=[topic_filter])
    return snapshot(interests=[told])


def passage(apex: str, left: str, entered: str, offset: int = 1) -> HandBackRequest:
    one = control_pb2.Passage(
        apex=apex,
        left=Predecessor(zone=left, epoch=1, offset=1),
        entered=Predecessor(zone=entered, epoch=1, offset=offset),
    )
    return fence(subtree=control_pb2.Subtree(passages=[one]))


def need(zone: str) -> HandBackRequest:
    return fence(needs=[control_pb2.Need(edge="root", zone=zone, epoch=1, offset=HUGE)])


COPIED = HandBackRequest(copied=control_pb2.Copied())
TRUE = [
    part("a/x", predecessor=Predecessor(zone="a", epoch=1, offset=1)),
    batch(records("a/x", "a/x/y"), 2),
    part(predecessor=Predecessor(zone="", epoch=1, offset=0)),
    batch(records("a", "a/t"), 2),
    COPIED,
    snapshot(retained=[control_pb2.Retained(topic="a/r", payload=b"kept", qos=1)]),
    interest("root", 1 << 32, "#"),  # a life that there may be, and is not: the root's goes on
    fence(
        subtree=control_pb2.Subtree(
            seen=[types_pb2.Gone(apex="a/x", epoch=1)],
            passages=[
                control_pb2.Passage(
                    apex="a/x",
                    left=Predecessor(zone="a/x", epoch=1, offset=2),
                    entered=Predecessor(zone="a", epoch=1, offset=1),
                ),
                control_pb2.Passage(  # as the parent has told it
                    apex="a",
                    left=Predecessor(zone="", epoch=1, offset=0),
                    entered=Predecessor(zone="a", epoch=1, offset=0),
                ),
            ],
        ),
        needs=[control_pb2.Need(edge="root", zone="a", epoch=1, offset=1)],
    ),
]

LIES = {
    "part of a sibling": [part("b")],
    "part of the parent": [part("", 2)],
    "part of none": [part("a/#")],
    "part of a later epoch": [part(epoch=2)],
    "part without epoch": [part(epoch=0)],
    "part of a zone below that never was": [part("a/x", 9), COPIED, fence()],
    "part behind a sibling's": [part(predecessor=Predecessor(zone="b", epoch=1, offset=1))],
    "part behind itself": [part(predecessor=Predecessor(zone="a", epoch=1, offset=1))],
    "batch before its part": [batch(records("a/t"))],
    "batch that is none": [part(), batch(MALFORMED)],
    "batch that is empty": [part(), batch(b"")],
    "batch of more than there is": [part(), batch(records("a/t"), 2)],
    "batch of less than there is": [part(), batch(records("a/t", "a/t"))],
    "batch of nothing": [part(), batch(records("a/t"), 0)],
    "batch of a sibling's topic": [part(), batch(records("a/t", "b/t"), 2)],
    "batch of a topic of its zone's name": [part(), batch(records("ab"))],
    "batch of a topic above its part": [part("a/x"), batch(records("a/t"))],
    "batch whose marks are none": [
        part(),
        batch(records("a/t", marks={("edge", 1, "zz", 1): 1}).replace(b"zz", b"\xff\xff")),
    ],
    "batches in disorder": [part(), batch(records("a/t")), batch(records("a/t"))],
    "retained elsewhere": [COPIED, snapshot(retained=[control_pb2.Retained(topic="b/r")])],
    "cleared elsewhere": [
        COPIED,
        snapshot(retained=[control_pb2.Retained(topic="b", cleared=True)]),
    ],
    "filter of a sibling": [COPIED, interest("root", 1, "b/#")],
    "life of an edge that cannot be": [COPIED, interest("root", HUGE, "a/#")],
    "passage to what is still to come": [COPIED, passage("a", "a", "", HUGE)],
    "sign of life while nothing else may change hands": [
        COPIED,
        HandBackRequest(alive=control_pb2.Alive()),
    ],
    "need of a sibling's part": [COPIED, need("b")],
    "need of the parent's part": [COPIED, need("")],
    "passage of a sibling": [COPIED, passage("b", "b", "")],
    "passage to a sibling": [COPIED, passage("a/x", "a/x", "b")],
    "passage from a sibling": [COPIED, passage("a/x", "b", "a")],
}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path, topology("root", zone="")) as node:
        yield node


def give_back(stub: ControlStub, said: list[HandBackRequest]) -> HandBackReply | grpc.StatusCode:
    """Give `a` back so, to the end; what comes of it."""
    begin = control_pb2.HandBackBegin(node="liar", zone="a", epoch=1, journal=1000)
    kinds = {request.WhichOneof("kind") for request in said}
    end = [one for one in (COPIED, fence()) if one.WhichOneof("kind") not in kinds]
    call = stub.HandBack(iter([HandBackRequest(begin=begin), *said, *end]), timeout=20)
    try:
        for answer in call:
            if not answer.HasField("ready"):
                return answer
    except grpc.RpcError:
        pass
    return call.code()


def test_lies_of_a_hand_back_leave_nothing(root: NodeProcess) -> None:
    """Each is told once; the true one behind them is committed, and all of it can be had."""
    with grpc.insecure_channel(root.grpc) as channel:
        stub = ControlStub(channel)
        join(stub, f"127.0.0.1:{free_port()}")
        for lie, said in LIES.items():
            assert grpc.StatusCode.INVALID_ARGUMENT == give_back(stub, said), lie
        assert root.has_event("child.invalid_message", after=0)
        assert give_back(stub, TRUE) == HandBackReply(committed=control_pb2.Committed(epoch=2))
    for _ in range(2):
        assert [""] == [row["zone"] for row in as_json("tree", root.grpc)]
        with RawClient(root.mqtt) as client:
            client.connect("c")
            client.subscribe(("#", 1))
            client.expect_publish("a/r", b"kept", retain=True)
            client.publish("b/t", b"as before", qos=1)
            client.expect_publish("b/t", b"as before")
        root.kill()
        root.start()
    assert "Traceback" not in "".join(root.lines)
