"""Lies of a parent, and of one who says that it is: nothing of them is left without it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import grpc

from tests.support.liar import Liar
from tests.support.nodes import NodeProcess, free_port, topology
from tests.support.rawclient import RawClient
from txbroker.v1 import control_pb2, types_pb2
from txbroker.v1.control_pb2 import JoinReply
from txbroker.v1.control_pb2_grpc import ControlStub

from .commands import as_json, wait_until

HUGE = 1 << 61
WHO = control_pb2.Who(node="root", owns_zone=True, zone="")


def cut(
    apex: str = "", epoch: int = 1, node: str = "root", grpc: str = "127.0.0.1:1"
) -> types_pb2.Cut:
    return types_pb2.Cut(apex=apex, epoch=epoch, node=node, grpc=grpc)


def granted(**fields: Any) -> JoinReply:
    values: dict[str, Any] = {"epoch": 1, "lineage": [cut()]}
    return JoinReply(granted=control_pb2.Granted(**{**values, **fields}), who=WHO)


def fence(**fields: Any) -> JoinReply:
    values: dict[str, Any] = {"epoch": 1, "offset": 0, "grant": 1, "zone": ""}
    return JoinReply(fence=control_pb2.Fence(**{**values, **fields}))


def snapshot(**fields: Any) -> JoinReply:
    return JoinReply(snapshot=control_pb2.Snapshot(**fields))


def moved(to: types_pb2.Cut) -> JoinReply:
    return JoinReply(moved=control_pb2.Moved(parent=to), who=WHO)


def subtree(**fields: Any) -> control_pb2.Subtree:
    return control_pb2.Subtree(**fields)


def below(apex: str, epoch: int = 1) -> control_pb2.Delegation:
    return control_pb2.Delegation(cut=cut(apex, epoch, "x"))


def passage(epoch: int) -> control_pb2.Passage:
    """From an epoch of the root to the zone that comes."""
    left = control_pb2.Predecessor(zone="", epoch=epoch, offset=3)
    entered = control_pb2.Predecessor(zone="a", epoch=1)
    return control_pb2.Passage(apex="a", left=left, entered=entered)


LIES = {
    # before the zone was ever held
    "snapshot: topic of another zone": [
        snapshot(retained=[control_pb2.Retained(topic="other/x", payload=b"lie")]),
        fence(),
    ],
    "snapshot: no topic": [
        snapshot(retained=[control_pb2.Retained(topic="a/#", payload=b"lie")]),
        fence(),
    ],
    "snapshot: cleared elsewhere": [
        snapshot(retained=[control_pb2.Retained(topic="other", cleared=True)]),
        fence(),
    ],
    "snapshot: no filter": [
        snapshot(interests=[control_pb2.EdgeInterest(edge="e", incarnation=1, filters=["#/a"])]),
        fence(),
    ],
    "snapshot: mark": [
        snapshot(
            marks=[
                types_pb2.Mark(edge="e", incarnation=1, zone="a", stream=1, sequence=HUGE * 8 - 1)
            ]
        ),
        fence(),
    ],
    "fence: foreign cut": [fence(subtree=subtree(delegations=[below("b")]))],
    "fence: own zone as a cut": [fence(subtree=subtree(delegations=[below("a")]))],
    "fence: epoch of a cut": [fence(subtree=subtree(delegations=[below("a/x", HUGE)]))],
    "fence: epoch of a zone that was taken back": [
        fence(subtree=subtree(reclaimed=[cut("a/x", HUGE, "x")]))
    ],
    "fence: epoch of a passage": [fence(subtree=subtree(passages=[passage(HUGE)]))],
    "fence: goes on from beside": [fence(zone="b")],
    "fence: goes on from an epoch far ahead": [fence(epoch=HUGE)],
    "fence: grant": [fence(grant=HUGE)],
    "fence: number": [fence(offset=(1 << 64) - 1)],
    # of the tree above
    "granted: epoch": [fence(), granted(epoch=HUGE)],
    "granted: lineage beside": [fence(), granted(lineage=[cut(), cut("b")])],
    "granted: lineage is the zone": [fence(), granted(lineage=[cut(), cut("a")])],
    "granted: lineage twice": [fence(), granted(lineage=[cut(), cut()])],
    "granted: lineage's epoch": [fence(), granted(lineage=[cut(epoch=HUGE)])],
    "granted: lineage's address": [fence(), granted(lineage=[cut(grpc="nowhere")])],
    "granted: lineage's node": [fence(), granted(lineage=[cut(node="x\n\u202ey")])],
    "granted: ended": [fence(), granted(ended=[types_pb2.Gone(apex="", epoch=HUGE)])],
    "granted: root": [fence(), granted(root=control_pb2.Root(zone="", epoch=HUGE, identity="i"))],
    "lineage": [
        fence(),
        granted(),
        JoinReply(lineage=control_pb2.Lineage(lineage=[cut(epoch=HUGE)])),
    ],
    "moved: address": [moved(cut(grpc="nowhere"))],
    "moved: beside": [moved(cut("b", grpc=f"127.0.0.1:{free_port()}"))],
    "moved: below": [moved(cut("a/b", grpc=f"127.0.0.1:{free_port()}"))],
    "moved: epoch": [moved(cut(epoch=HUGE, grpc=f"127.0.0.1:{free_port()}"))],
}


ADOPTIONS = [
    cut(grpc="nowhere"),
    cut(grpc=""),
    cut(epoch=0),
    cut(epoch=HUGE),
    cut("a"),
    cut("a/b"),
    cut("b"),
    cut(node=""),
    cut(node="x" * 70_000),
]


def has_left(liar: Liar, scripts: int) -> bool:
    return liar.left >= scripts


def adopt(child: NodeProcess, parent: types_pb2.Cut) -> bool:
    """Call oneself the parent of a node; whether it believes that."""
    with grpc.insecure_channel(child.grpc) as channel:
        request = control_pb2.AdoptRequest(parent=parent, zone="a", epoch=1, who=WHO)
        try:
            return bool(ControlStub(channel).Adopt(request, timeout=30).accepted)
        except grpc.RpcError:
            return False


def test_lies_of_a_parent_are_gone_with_it(tmp_path: Path) -> None:
    """The true root is at that address then: it grants the zone, also after another start."""
    at = f"127.0.0.1:{free_port()}"
    child = NodeProcess(tmp_path, topology("a", zone="a", parent=at))
    with Liar(at) as liar, child:  # type: ignore[abstract]
        for number, (lie, script) in enumerate(LIES.items(), 1):
            mark = child.mark()
            liar.scripts.put(script)
            wait_until(partial(has_left, liar, number), what=f"{lie} is believed")
            assert not child.has_event("parent.changed"), lie
            is_received = child.has_event("handover.received", after=mark)
            assert not (is_received and lie.startswith("fence:")), lie
        for lied in ADOPTIONS:
            assert not adopt(child, lied), f"{lied} is believed"
    root = NodeProcess(tmp_path, topology("root", zone="", grpc=at))
    for _ in range(2):
        with root, child:
            child.wait_event("join.granted", 30)
            with RawClient(root.mqtt) as client:
                client.connect("c")
                client.subscribe(("#", 1))
                client.publish("a/t", b"x", qos=1)
                client.expect_publish("a/t", b"x")
    assert "Traceback" not in "".join([*root.lines, *child.lines])


END = JoinReply(lineage=control_pb2.Lineage(lineage=[cut(epoch=HUGE)]))
"""A lie that ends a stream at once."""

BACKWARDS = {
    "fence: the epoch that is held": [fence(grant=5), granted(epoch=5, lineage=[cut(epoch=2)])],
    "fence: an earlier one": [fence(grant=3), granted(epoch=3, lineage=[cut(epoch=2)])],
    "granted: an earlier one": [granted(epoch=3, lineage=[cut(epoch=2)])],
    "granted: a later one that never came": [granted(epoch=6, lineage=[cut(epoch=2)])],
    "granted: an earlier parent": [granted(epoch=5, lineage=[cut(epoch=1)])],
    "lineage: an earlier parent": [
        granted(epoch=5, lineage=[cut(epoch=2)]),
        JoinReply(lineage=control_pb2.Lineage(lineage=[cut(epoch=1)])),
    ],
    "moved: an earlier parent": [moved(cut(epoch=1, grpc=f"127.0.0.1:{free_port()}"))],
}


def test_no_epoch_goes_backwards(tmp_path: Path) -> None:
    """A zone's offsets would be given twice; a true parent goes on above what was believed."""
    at = f"127.0.0.1:{free_port()}"
    child = NodeProcess(tmp_path, topology("a", zone="a", parent=at))
    with Liar(at) as liar, child:  # type: ignore[abstract]
        liar.scripts.put([fence(grant=5), granted(epoch=5, lineage=[cut(epoch=2)]), END])
        child.wait_event("join.granted", epoch=5)
        for number, (lie, script) in enumerate(BACKWARDS.items(), 2):
            mark = child.mark()
            liar.scripts.put(script)
            wait_until(partial(has_left, liar, number), what=f"{lie} is believed")
            assert not child.has_event("parent.changed", after=mark), lie
            granted_now = [
                event["epoch"] for event in child.events[mark:] if event["event"] == "join.granted"
            ]
            assert set(granted_now) <= {5}, lie
            assert not child.has_event("handover.received", after=mark), lie
        (row,) = as_json("tree", child.grpc)
        assert (5, "a") == (row["epoch"], row["zone"])
        with RawClient(child.mqtt) as client:
            client.connect("c")
            client.subscribe(("a/#", 1))
            client.publish("a/t", b"x", qos=1)
            client.expect_publish("a/t", b"x")
    assert "Traceback" not in "".join(child.lines)
