"""Frames that break the rules of a link, and garbage: they close the link, and no more."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.link.link_bench import ROOT, Bench
from tests.support.pair import Alarms, Host, Link, Recorder, make_authority, make_edge, receive
from txbroker.edge.routing.route_state import RouteState
from txbroker.link.frames import LINK_VERSION, LinkError, encode_frame, packets_of
from txbroker.model.errors import PeerError
from txbroker.mqtt.wire.message import Message
from txbroker.v1 import link_pb2, types_pb2
from txbroker.v1.link_pb2 import LinkFrame


def hello(**fields: object) -> bytes:
    """A Hello that would be accepted, but for these fields."""
    values = {
        "version": LINK_VERSION,
        "token": b"token",
        "edge": "edge",
        "incarnation": 1,
        "stream": 1,
    }
    return encode_frame(LinkFrame(hello=link_pb2.Hello(**{**values, **fields})))


def batch(**fields: object) -> bytes:
    """A batch of one publish."""
    values = {"epoch": 1, "stream": 1, "first": 1, "count": 1, "clients": ["c"], "client": [0]}
    return encode_frame(LinkFrame(batch=link_pb2.Batch(**{**values, **fields})))


PUBLISH = b"".join(packets_of([Message("x", b"1", 1)]))
BAD_FOR_AN_OWNER = {
    "no hello": batch() + PUBLISH,
    "heartbeat first": encode_frame(LinkFrame(heartbeat=link_pb2.Heartbeat())),
    "wrong token": hello(token=b"guess"),
    "newer version": hello(version=LINK_VERSION + 1),
    "older version": hello(version=LINK_VERSION - 1),
    "two hellos": hello() + hello(),
    "publish without a batch": hello() + PUBLISH,
    "more than the batch says": hello() + batch() + PUBLISH + PUBLISH,
    "batch of deliveries": hello() + batch(kind=link_pb2.Batch.LIVE),
    "client out of range": hello() + batch(client=[1]),
    "client for each": hello() + batch(client=[]),
    "another stream": hello() + batch(stream=2),
    "a gap": hello() + batch(first=2),
    "restart elsewhere": hello()
    + encode_frame(LinkFrame(restart=link_pb2.Restart(stream=1, sequence=7))),
    "an MQTT packet": b"\xc0\x00",
    "not protobuf": b"\x00\x03\xff\xff\xff",
    "length without end": b"\x00\xff\xff\xff\xff\xff",
    "long client id": hello() + batch(clients=["x" * 70_000]) + PUBLISH,
    "long sequence": hello() + batch(first=1 << 62) + PUBLISH,
    "bad topic": hello() + batch() + b"\x30\x05\x00\x01#\x00\x00",
}


@pytest.mark.parametrize("data", BAD_FOR_AN_OWNER.values(), ids=list(BAD_FOR_AN_OWNER))
def test_owner_refuses(data: bytes) -> None:
    """A `PeerError`, and the zone is as it was."""
    alarms = Alarms()
    host = Host(make_authority(""), alarms)
    link = Link(make_edge(alarms, Recorder()), make_route(), host)
    with pytest.raises(PeerError):
        receive(link.owner_end, data)

    assert host.authority.offset <= 1


def make_route() -> object:
    """A route that nothing was said on."""
    edge = make_edge(Alarms(), Recorder())
    return edge.zones.add(ROOT)


def welcome(**fields: object) -> bytes:
    """A Welcome for the root zone."""
    values = {"version": LINK_VERSION, "zone": "", "epoch": 1, "credit": 1000}
    return encode_frame(LinkFrame(welcome=link_pb2.Welcome(**{**values, **fields})))


ONLINE = encode_frame(LinkFrame(online=link_pb2.Online()))
BAD_FOR_AN_EDGE = {
    "no welcome": ONLINE,
    "two welcomes": welcome() + welcome(),
    "another zone": welcome(zone="a"),
    "no epoch": welcome(epoch=0),
    "newer version": welcome(version=LINK_VERSION + 1),
    "older version": welcome(version=LINK_VERSION - 1),
    "delivery without a batch": welcome() + ONLINE + PUBLISH,
    "a publish batch": welcome() + ONLINE + batch(kind=link_pb2.Batch.PUBLISH),
    "no offsets": welcome() + ONLINE + batch(kind=link_pb2.Batch.LIVE),
    "another epoch": welcome() + ONLINE + batch(kind=link_pb2.Batch.LIVE, epoch=2, offsets=[1]),
    "retained out of the blue": welcome() + ONLINE + batch(kind=link_pb2.Batch.RETAINED) + PUBLISH,
    "an MQTT packet": b"\xd0\x00",
}


@pytest.mark.parametrize("data", BAD_FOR_AN_EDGE.values(), ids=list(BAD_FOR_AN_EDGE))
def test_edge_refuses(data: bytes) -> None:
    """`LinkError`."""
    bench = Bench()
    bench.link.cut()
    link = Link(bench.edge, bench.route, bench.host)
    with pytest.raises(LinkError):
        receive(link.edge_end, data)


FRAMES = st.sampled_from(
    [
        hello(),
        batch(),
        batch(first=0, count=0, client=[], clients=[]),
        PUBLISH,
        welcome(),
        ONLINE,
        encode_frame(LinkFrame()),
        encode_frame(LinkFrame(taken=link_pb2.Taken(stream=1, sequence=1 << 60))),
        encode_frame(LinkFrame(credit=link_pb2.Credit(consumed=1 << 60))),
        encode_frame(LinkFrame(answer=link_pb2.InterestAnswer(request=5, retained=1))),
        encode_frame(LinkFrame(refusal=link_pb2.Refusal(stream=1, sequence=1 << 60))),
        encode_frame(LinkFrame(gone=types_pb2.Gone(apex="a", epoch=1))),
        encode_frame(LinkFrame(cut=types_pb2.Cut(apex="a", epoch=1, node="n", grpc="h:1"))),
        encode_frame(LinkFrame(cut=types_pb2.Cut(apex="", epoch=9, node="n", grpc="h:1"))),
        encode_frame(LinkFrame(sync=link_pb2.InterestSync(filters=["a/#/b", ""]))),
        encode_frame(LinkFrame(interest=link_pb2.InterestRequest(request=1, filter="#/#"))),
        encode_frame(LinkFrame(interest=link_pb2.InterestRequest(filter="x", remove=True))),
        encode_frame(LinkFrame(position=link_pb2.Position(offset=1, consumed=1 << 62))),
        encode_frame(LinkFrame(restart=link_pb2.Restart(stream=1, sequence=1))),
    ]
)
GARBAGE = st.lists(st.one_of(FRAMES, st.binary(max_size=60)), max_size=12).map(b"".join)


@settings(max_examples=300, deadline=None)
@given(data=GARBAGE)
def test_garbage_raises_nothing_but_what_closes_the_link(data: bytes) -> None:
    """At either end, whatever comes."""
    bench = Bench()
    fresh = Link(bench.edge, bench.route, bench.host)
    for end in (bench.link.owner_end, bench.link.edge_end, fresh.owner_end, fresh.edge_end):
        try:
            receive(end, data)
            end.flush()
        except PeerError:
            pass


def test_edge_counts_what_it_does_not_know() -> None:
    """A frame of a newer owner is ignored."""
    bench = Bench()
    receive(bench.link.edge_end, encode_frame(LinkFrame()))

    assert bench.edge.counters.get("link.unknown_frame") == 1
    assert bench.route.state is RouteState.ONLINE
