"""
What walks read of nodes: answers of any version, and why there is none.
"""

from __future__ import annotations

import grpc
import pytest

from txbroker.delegation.resolution import AnswerKind
from txbroker.delegation.zone_snapshot import ZoneSnapshot
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.wire.message import Message
from txbroker.rpc.channels import why
from txbroker.rpc.zone_convert import (
    answer_from_wire,
    node_from_wire,
    snapshot_from_wire,
    snapshot_to_wire,
)
from txbroker.v1.control_pb2 import ResolveReply, StatusReply

KINDS = [
    AnswerKind.AUTHORITATIVE,
    AnswerKind.REFERRAL,
    AnswerKind.NOT_AUTHORITATIVE,
    AnswerKind.NOT_AUTHORITATIVE,
]


@pytest.mark.parametrize("number, kind", list(enumerate(KINDS)))
def test_an_answer_of_a_kind_to_come_is_no_owners(number: int, kind: AnswerKind) -> None:
    """A newer node's word neither ends the command nor passes for an owner's."""
    reply = ResolveReply()
    reply.ParseFromString(bytes([0x08, number]))

    assert kind is answer_from_wire(reply).kind


def test_a_node_is_known_by_the_address_that_was_asked() -> None:
    """It may tell another one, which nobody here can reach."""
    reply = StatusReply(node="n", owns_zone=True)
    reply.zone.apex, reply.zone.epoch, reply.zone.grpc = "a", 2, "inside:1"
    reply.children.add(owns_zone=True).zone.apex = "a/b"
    reply.children[0].below.add(apex="a/b/c")
    reply.children.add().zone.node = "edge"

    node = node_from_wire(reply, "outside:1")

    assert ZoneCut(apex="a", epoch=2, node="n", grpc="outside:1") == node.own
    assert ["a/b", "a/b/c"] == [cut.apex for cut in node.below]
    assert ["edge"] == [cut.node for cut in node.edges]
    assert node.owns_zone and not node.serves


def test_a_zones_state_has_its_retained_messages_as_they_are() -> None:
    """Properties and QoS; where there are none, none."""
    retained = (
        Message("a", b"1", 2, True, properties=b"\x01\x01"),
        Message("b", b"2", 0, True),
    )
    told = snapshot_from_wire(snapshot_to_wire(ZoneSnapshot(retained=retained)))

    assert [("a", b"1", 2, b"\x01\x01"), ("b", b"2", 0, b"")] == [
        (one.topic, one.payload, one.qos, one.properties) for one in told.retained
    ]


class Failed(grpc.RpcError):
    """As gRPC tells it."""

    def __init__(self, code: grpc.StatusCode, details: str | None = None) -> None:
        self._told = code, details

    def code(self) -> grpc.StatusCode:
        """What kind of failure."""
        return self._told[0]

    def details(self) -> str | None:
        """In words."""
        return self._told[1]


UNREACHABLE = "a:1 cannot be reached; is it a node's gRPC address, and does the node run?"
LATE = "a:1 gave no answer in time"
CODE = grpc.StatusCode


@pytest.mark.parametrize(
    "error, said",
    [
        (None, UNREACHABLE),
        (Failed(CODE.UNAVAILABLE, "sockets"), UNREACHABLE),
        (
            Failed(CODE.DEADLINE_EXCEEDED),
            "a:1 gave no answer in time; is it a node's gRPC address?",
        ),
        (Failed(CODE.UNIMPLEMENTED), "a:1 is not a txbroker node, or one of another version"),
        (Failed(CODE.INTERNAL, "two\n  lines"), "a:1: two lines"),
        (Failed(CODE.INTERNAL), "a:1: INTERNAL"),
    ],
)
def test_one_line_says_why_there_is_no_answer(error: grpc.RpcError | None, said: str) -> None:
    """And what to look at."""
    assert said == why("a:1", error)


def test_a_call_may_say_what_to_look_at_when_it_was_late() -> None:
    """Its work may be done all the same."""
    assert f"{LATE}; look" == why("a:1", Failed(CODE.DEADLINE_EXCEEDED), "look")
