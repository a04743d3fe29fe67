"""Each frame of a link where no honest node says it: the link ends, and both nodes live on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.link.test_life import Pair
from tests.support.pair import Link, receive
from tests.support.recorders import cut
from txbroker.link.frames import LINK_VERSION, LinkError, encode_frame
from txbroker.mqtt.wire.encoder import encode_publish
from txbroker.rpc.link_convert import cut_to_wire
from txbroker.v1 import link_pb2, types_pb2
from txbroker.v1.link_pb2 import Batch, LinkFrame

HUGE = 1 << 61
PUBLISH = encode_publish("a/x", b"x", 1, False, False, 1)
QOS0 = encode_publish("a/x", b"x", 0, False, False, None)


def frame(**kind: Any) -> bytes:
    return encode_frame(LinkFrame(**kind))


def hello(**fields: Any) -> bytes:
    values = {"version": LINK_VERSION, "token": b"token", "edge": "edge", "incarnation": 1}
    return frame(hello=link_pb2.Hello(**{**values, "zone": "a", "stream": 99, **fields}))


def welcome(**fields: Any) -> bytes:
    values = {"version": LINK_VERSION, "zone": "a", "epoch": 1, "credit": 1000}
    return frame(welcome=link_pb2.Welcome(**{**values, **fields}))


def published(count: int = 1, **fields: Any) -> bytes:
    """A header of publishes to the owner."""
    values: dict[str, Any] = {"epoch": 1, "clients": ["c"], "client": [0], "first": 1}
    return frame(batch=Batch(**{**values, "count": count, **fields}))


def delivered(count: int = 1, **fields: Any) -> bytes:
    """A header of deliveries to the edge."""
    values: dict[str, Any] = {"kind": Batch.LIVE, "epoch": 1, "offsets": [1]}
    return frame(batch=Batch(**{**values, "count": count, **fields}))


A_CUT = cut_to_wire(cut("a/b", 3))

TO_OWNER = {
    "interest": frame(interest=link_pb2.InterestRequest(request=1, filter="a/#")),
    "sync": frame(sync=link_pb2.InterestSync(filters=["a/#"])),
    "restart": frame(restart=link_pb2.Restart(stream=99, sequence=1)),
    "position": frame(position=link_pb2.Position(offset=1)),
    "low_water": frame(low_water=link_pb2.LowWater(request=1)),
    "ask": frame(ask=link_pb2.Ask(request=1)),
    "open_stream": frame(
        open_stream=link_pb2.OpenStream(
            stream=7, mark=types_pb2.Mark(edge="edge", incarnation=1, zone="a", stream=7)
        )
    ),
}

TO_EDGE = {
    "online": frame(online=link_pb2.Online()),
    "answer": frame(answer=link_pb2.InterestAnswer(request=1)),
    "taken": frame(taken=link_pb2.Taken(stream=1, sequence=1)),
    "refusal": frame(refusal=link_pb2.Refusal(stream=1, sequence=1)),
    "credit": frame(credit=link_pb2.Credit(consumed=1)),
    "cut": frame(cut=A_CUT),
    "gone": frame(gone=types_pb2.Gone(apex="a/b", epoch=1)),
    "reached": frame(reached=link_pb2.Reached(offset=1)),
    "marks": frame(marks=link_pb2.Marks(request=1)),
    "low_water_kept": frame(low_water_kept=link_pb2.LowWaterKept(request=1)),
}

CLAIMED = frame(claimed=link_pb2.Claimed(apexes=["a"]))
BATCH_AT_OWNER = published(stream=99) + PUBLISH
BATCH_AT_EDGE = delivered() + PUBLISH

# -- at an owner

STRANGER = {
    **TO_OWNER,
    **TO_EDGE,
    "welcome": welcome(),
    "claimed": CLAIMED,
    "batch": BATCH_AT_OWNER,
    "publish": PUBLISH,
    "heartbeat": frame(heartbeat=link_pb2.Heartbeat()),
    "hello of another format": hello(version=LINK_VERSION + 1),
    "hello to another zone": hello(zone="b"),
    "hello without stream": hello(stream=0),
    "hello with no filter": hello(filters=["a/#/b"]),
    "hello of a number": hello(incarnation=1 << 63),
    "hello with a claim elsewhere": hello(claims=[link_pb2.Claim(apex="b")]),
}

EDGE = {
    **TO_EDGE,
    "welcome": welcome(),
    "hello": hello(),
    "publish without a batch": PUBLISH,
    "batch of deliveries": delivered(stream=99),
    "batch of no stream": published(stream=98),
    "batch of nothing": published(0, stream=99),
    "batch of a client too many": published(stream=99, client=[1]),
    "batch out of its turn": published(stream=99, first=7),
    "batch of a number": published(stream=99, first=1 << 63),
    "batch of a count": published((1 << 32) - 1, stream=99, client=[0, 0], counts=[1, 1]),
    "batch that is not whole": published(2, stream=99) + PUBLISH + published(stream=99, first=2),
    "batch with a word in it": published(2, stream=99) + PUBLISH + TO_OWNER["position"],
    "publish behind its batch": BATCH_AT_OWNER + PUBLISH,
    "restart of no stream": frame(restart=link_pb2.Restart(stream=98, sequence=1)),
    "restart elsewhere": frame(restart=link_pb2.Restart(stream=99, sequence=HUGE)),
    "stream of its Hello": TO_OWNER["open_stream"].replace(b"\x08\x07", b"\x08\x63"),
    "stream twice": TO_OWNER["open_stream"] * 2,
    "stream of another edge": frame(
        open_stream=link_pb2.OpenStream(stream=8, mark=types_pb2.Mark(edge="other"))
    ),
    "interest in no filter": frame(interest=link_pb2.InterestRequest(request=1, filter="a/#/b")),
    "sync with no filter": frame(sync=link_pb2.InterestSync(filters=[""])),
    "claim elsewhere": frame(sync=link_pb2.InterestSync(claims=[link_pb2.Claim(apex="b")])),
    "position of a number": frame(position=link_pb2.Position(consumed=1 << 63)),
}

# -- at an edge

NOT_WELCOMED = {
    **TO_EDGE,
    **TO_OWNER,
    "hello": hello(),
    "claimed": CLAIMED,
    "batch": BATCH_AT_EDGE,
    "publish": PUBLISH,
    "welcome of another format": welcome(version=LINK_VERSION + 1),
    "welcome to another zone": welcome(zone="b"),
    "welcome without epoch": welcome(epoch=0),
    "welcome far ahead": welcome(epoch=HUGE),
    "welcome twice": welcome() * 2,
    "live before online": welcome() + BATCH_AT_EDGE,
    "answer before online": welcome() + TO_EDGE["answer"],
    "cut before online": welcome() + TO_EDGE["cut"],
    "claimed before online": welcome() + CLAIMED,
}

ONLINE = {
    **TO_OWNER,
    "hello": hello(),
    "welcome": welcome(),
    "online": TO_EDGE["online"],
    "publish without a batch": PUBLISH,
    "batch of publishes": published(),
    "batch of another epoch": delivered(epoch=2),
    "batch of nothing": delivered(0),
    "batch of an offset": delivered(offsets=[1 << 62]),
    "batch that is not whole": delivered(2) + PUBLISH + BATCH_AT_EDGE,
    "batch with a word in it": delivered(2, offsets=[0]) + QOS0 + TO_EDGE["reached"],
    "publish behind its batch": BATCH_AT_EDGE + PUBLISH,
    "retained without an answer": frame(batch=Batch(kind=Batch.RETAINED, count=1)) + QOS0,
    "answer amid another": frame(answer=link_pb2.InterestAnswer(request=1, retained=2)) * 2,
    "taken of no stream": frame(taken=link_pb2.Taken(stream=HUGE, sequence=1)),
    "taken that was not sent": TO_EDGE["taken"].replace(b"\x08\x01", b"\x08\x63"),
    "refusal of no stream": frame(refusal=link_pb2.Refusal(stream=HUGE, sequence=1)),
    "refusal that was not sent": TO_EDGE["refusal"].replace(b"\x08\x01", b"\x08\x63"),
    "marks that nobody asked for": frame(marks=link_pb2.Marks(request=HUGE)),
    "marks kept that nobody told": frame(low_water_kept=link_pb2.LowWaterKept(request=HUGE)),
    "reached of a number": frame(reached=link_pb2.Reached(offset=1 << 62)),
}


def check_ends(pair: Pair, link: Link, end: Any, said: bytes) -> None:
    """The end has had enough; another link, and all that is true, is taken as before."""
    with pytest.raises(LinkError) as error:
        receive(end, said)
    assert "\n" not in str(error.value) and len(str(error.value)) < 300
    link.cut()
    pair.connect()
    before = len(pair.client.acknowledged)
    pair.client.publish("a/x", b"as before")
    pair.link.pump()
    assert b"as before" == pair.client.payloads[-1]
    assert before + 1 == len(pair.client.acknowledged)


def pair_that_listens() -> Pair:
    pair = Pair("a")
    pair.client.subscribe(("a/#", 1))
    pair.link.pump()
    return pair


def fresh(pair: Pair) -> Link:
    pair.link.cut()
    while pair.edge.zones.next_stream() < 100:
        pass  # those of the tables are older than its next one
    return Link(pair.edge, pair.route, pair.host)


@pytest.mark.parametrize("said", STRANGER)
def test_owner_is_told_nothing_before_hello(said: str) -> None:
    pair = pair_that_listens()
    link = fresh(pair)
    check_ends(pair, link, link.owner_end, STRANGER[said])


@pytest.mark.parametrize("said", EDGE)
def test_owner_refuses_what_no_edge_says(said: str) -> None:
    pair = pair_that_listens()
    link = fresh(pair)
    receive(link.owner_end, hello())
    check_ends(pair, link, link.owner_end, EDGE[said])


@pytest.mark.parametrize("said", NOT_WELCOMED)
def test_edge_is_told_nothing_before_welcome(said: str) -> None:
    pair = pair_that_listens()
    link = fresh(pair)
    link.edge_end.start(b"token")
    check_ends(pair, link, link.edge_end, NOT_WELCOMED[said])


@pytest.mark.parametrize("said", ONLINE)
def test_edge_refuses_what_no_owner_says(said: str) -> None:
    pair = pair_that_listens()
    stream = pair.link.edge_end._live.number
    data = ONLINE[said].replace(b"\x08\x63", bytes((8, stream)))
    check_ends(pair, pair.link, pair.link.edge_end, data)


def the_owner_hears(pair: Pair) -> Callable[[bytes], None]:
    link = fresh(pair)
    receive(link.owner_end, hello())
    return lambda data: receive(link.owner_end, data)


def test_what_an_edge_may_say_is_taken() -> None:
    """The frames of the tables are refused for where they come, not for what they are."""
    hear = the_owner_hears(pair_that_listens())
    for data in (*TO_OWNER.values(), CLAIMED, BATCH_AT_OWNER, frame(heartbeat={})):
        hear(data)


@pytest.mark.parametrize("kind", ["live", "caught up", "answer", "cut", "online"])
def test_behind_the_end_of_its_zone_an_owner_says_nothing(kind: str) -> None:
    """An honest one may have said it before it heard that its link is of no use any more."""
    pair = pair_that_listens()
    before = list(pair.client.payloads)
    receive(pair.link.edge_end, frame(gone=types_pb2.Gone(apex="a", epoch=1)))
    said = {
        "live": delivered(offsets=[0]) + QOS0 + delivered() + PUBLISH,
        "caught up": delivered(kind=Batch.CATCH_UP) + PUBLISH,
        "answer": TO_EDGE["answer"],
        "cut": TO_EDGE["cut"],
        "online": TO_EDGE["online"],
    }
    receive(pair.link.edge_end, said[kind])
    pair.link.edge_end.flush()
    assert before == pair.client.payloads
    assert pair.edge.zones.get("a") is None and pair.edge.zones.get("a/b") is None
