"""What an owner or an edge says that no honest one does: the link ends, or the number is cut."""

from __future__ import annotations

from typing import Any

import pytest

from tests.link.test_life import Pair
from tests.support.pair import Link, receive
from tests.support.recorders import cut
from txbroker.link import publish_sender
from txbroker.link.frames import LINK_VERSION, LinkError, encode_frame
from txbroker.mqtt.wire.encoder import encode_publish
from txbroker.v1 import link_pb2, types_pb2
from txbroker.v1.link_pb2 import LinkFrame

HUGE = 1 << 61


def batch(**fields: Any) -> bytes:
    return encode_frame(LinkFrame(batch=link_pb2.Batch(epoch=1, count=1, **fields)))


def gone(apex: str, epoch: int = 1) -> bytes:
    return encode_frame(LinkFrame(gone=types_pb2.Gone(apex=apex, epoch=epoch, offset=1)))


def told(where: types_pb2.Cut) -> bytes:
    return encode_frame(LinkFrame(cut=where))


def wire_cut(apex: str, epoch: int = 1, node: str = "x", grpc: str = "h:1") -> types_pb2.Cut:
    return types_pb2.Cut(apex=apex, epoch=epoch, node=node, grpc=grpc)


RETAINED = (
    encode_frame(LinkFrame(answer=link_pb2.InterestAnswer(request=1, offset=1, retained=1)))
    + encode_frame(LinkFrame(batch=link_pb2.Batch(kind=link_pb2.Batch.RETAINED, count=1)))
    + encode_publish("b/x", b"lie", 0, True, False, None)
)

OF_OWNERS = {
    "end of another's zone": gone("b"),
    "end of a zone above": gone(""),
    "end far ahead": gone("a/x", HUGE),
    "cut far ahead": told(wire_cut("a/x", HUGE)),
    "cut without address": told(wire_cut("a/x", grpc="nowhere")),
    "cut without epoch": told(wire_cut("a/x", epoch=0)),
    "cut of no node": told(wire_cut("a/x", node="x\n")),
    "offset": batch(kind=link_pb2.Batch.LIVE, offsets=[(1 << 64) - 1])
    + encode_publish("a/x", b"lie", 1, False, False, 1),
    "retained elsewhere": RETAINED,
}


@pytest.mark.parametrize("lie", OF_OWNERS)
def test_lie_of_an_owner_ends_its_link(lie: str) -> None:
    """Zone `b` is another owner's, and stays it."""
    pair = Pair("a")
    other = pair.edge.zones.add(cut("b"))
    with pytest.raises(LinkError):
        receive(pair.link.edge_end, OF_OWNERS[lie])
    assert pair.edge.zones.get("b") is other and pair.edge.zones.get("a/x") is None


def test_lie_that_waits_for_its_turn_ends_its_link_alone() -> None:
    """It is looked at when the sessions have kept up: whoever ends that turn did not lie."""
    pair = Pair("a")
    slow = object()
    pair.host.backpressure.raise_(slow, lambda: 1, pace=1, has_drained=True)
    pair.link.edge_end._consumer._backpressure = pair.host.backpressure
    receive(pair.link.edge_end, gone("b"))
    pair.host.backpressure.lower(slow)
    pair.link.edge_end.flush()
    assert pair.route.port is None
    assert 1 == pair.edge.counters.get("link.refused")


def test_no_owner_gives_credit_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that reads nothing would fill the edge's memory."""
    monkeypatch.setattr(publish_sender, "MOST_CREDIT", 1000)
    pair = Pair("a")
    pair.link.cut()
    fresh = Link(pair.edge, pair.route, pair.host)
    fresh.edge_end.start(b"token")
    welcome = link_pb2.Welcome(version=LINK_VERSION, zone="a", epoch=1, credit=HUGE)
    receive(fresh.edge_end, encode_frame(LinkFrame(welcome=welcome)))
    receive(fresh.edge_end, encode_frame(LinkFrame(online=link_pb2.Online())))
    receive(fresh.edge_end, encode_frame(LinkFrame(credit=link_pb2.Credit(consumed=HUGE))))
    assert pair.route.port is fresh.edge_end and fresh.edge_end.has_credit()
    pair.client.publish("a/x", b"x" * 1000, 0)
    assert not fresh.edge_end.has_credit()


def test_no_credit_stays_for_what_a_refusal_takes_back() -> None:
    """An owner that took it off the link before it was sent would get more than it offered."""
    pair = Pair("a")
    live = pair.link.edge_end._live
    pair.client.publish("a/x", b"x" * 1000, 1)
    receive(pair.link.edge_end, encode_frame(LinkFrame(credit=link_pb2.Credit(consumed=HUGE))))
    refusal = link_pb2.Refusal(stream=live.number, sequence=1, retry=True)
    receive(pair.link.edge_end, encode_frame(LinkFrame(refusal=refusal)))
    assert not live._consumed
    live.check()


def test_no_edge_takes_more_off_a_link_than_was_sent() -> None:
    """It would have credit without end, and the owner hold what it does not read."""
    pair = Pair("a")
    pair.client.subscribe(("a/x", 1))
    pair.link.pump()
    position = link_pb2.Position(offset=1, consumed=HUGE)
    receive(pair.link.owner_end, encode_frame(LinkFrame(position=position)))
    assert not pair.link.owner_end._deliveries.consumed
