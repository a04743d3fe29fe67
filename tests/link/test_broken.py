"""Links whose other end breaks the rules: `LinkError` and nothing else, at either end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.link.test_life import Pair, refuse
from tests.support.pair import Link, receive
from tests.support.recorders import cut
from txbroker.edge.routing.route_state import RouteState
from txbroker.link.frames import LINK_VERSION, LinkError, encode_frame
from txbroker.model.zone_cut import ZoneCut
from txbroker.rpc.link_convert import cut_to_wire
from txbroker.v1 import link_pb2
from txbroker.v1.link_pb2 import LinkFrame


def test_zone_that_has_just_gone_takes_no_link() -> None:
    """Between the token and Hello; a link to it would never hear of the end."""
    pair = Pair("a")
    pair.link.cut()
    pair.authority.close()
    fresh = Link(pair.edge, pair.route, pair.host)
    fresh.edge_end.start(b"token")
    with pytest.raises(LinkError):
        fresh.pump()


NOWHERE = [cut("a"), cut("b"), cut("aa/x"), cut("")]


@pytest.mark.parametrize("where", NOWHERE, ids=lambda where: where.apex or "root")
@pytest.mark.parametrize("kind", ["cut", "online", "refusal"])
def test_cut_that_does_not_lead_deeper_is_refused(kind: str, where: ZoneCut) -> None:
    """It would lead a walk in a circle (rule 14)."""
    pair = Pair("a")
    pair.client.subscribe(("a/#", 1))
    pair.link.cut()
    wire = cut_to_wire(where)
    frames = {
        "cut": LinkFrame(cut=wire),
        "online": LinkFrame(online=link_pb2.Online(cuts=[wire])),
        "refusal": LinkFrame(refusal=link_pb2.Refusal(stream=1, sequence=1, cut=wire)),
    }
    fresh = Link(pair.edge, pair.route, pair.host)
    welcome = link_pb2.Welcome(version=LINK_VERSION, zone="a", epoch=1, credit=1000)
    receive(fresh.edge_end, encode_frame(LinkFrame(welcome=welcome)))
    with pytest.raises(LinkError):
        receive(fresh.edge_end, encode_frame(frames[kind]))


def test_second_online_is_refused() -> None:
    """It would number the stream anew under what is on its way."""
    pair = Pair()
    with pytest.raises(LinkError):
        receive(pair.link.edge_end, encode_frame(LinkFrame(online=link_pb2.Online())))


def publish_all(pair: Pair) -> None:
    """One of each QoS, and one that is refused."""
    for number in range(3):
        pair.client.publish("x", b"%d" % number, number)
    pair.client.publish("a/x", b"refused")


def conversation() -> tuple[bytes, bytes, bytes]:
    """
    What the two ends say to each other in a busy life, as bytes: to the owner, to the edge until
    it is online, and from then on.
    """
    pair = Pair()
    link = Link(pair.edge, pair.route, pair.host)
    pair.link.cut()
    link.open()
    opened = len(link.went_down)
    pair.say("r", b"retained", retain=True)
    pair.client.subscribe(("#", 2))
    link.pump()
    refuse(pair)
    publish_all(pair)
    link.pump()
    pair.client.unsubscribe("#")
    pair.authority.announce(cut("a", 2))
    pair.authority.announce_end("a", 2)
    link.pump()
    return bytes(link.went_up), bytes(link.went_down[:opened]), bytes(link.went_down[opened:])


UP, OPENED, DOWN = conversation()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_changed_conversation_raises_link_errors_only(data: st.DataObject) -> None:
    """A few wrong bytes anywhere in a real conversation, at either end, cut into any two reads."""
    pair = Pair()
    pair.link.cut()
    pair.client.subscribe(("#", 1))
    refuse(pair)
    link = Link(pair.edge, pair.route, pair.host)
    link.edge_end._live.next = 100  # as if it had sent what the owner of that conversation answers
    for whole, end in ((UP, link.owner_end), (OPENED + DOWN, link.edge_end)):
        wrong = bytearray(whole)
        for _ in range(data.draw(st.integers(0, 4))):
            wrong[data.draw(st.integers(0, len(wrong) - 1))] = data.draw(st.integers(0, 255))
        middle = data.draw(st.integers(0, len(wrong)))
        try:
            for part in (wrong[:middle], wrong[middle:]):
                receive(end, bytes(part))
                end.flush()
        except LinkError:
            pass


def test_unchanged_conversation_is_understood() -> None:
    """The one that the mutations are made of."""
    pair = Pair()
    pair.link.cut()
    refuse(pair)
    link = Link(pair.edge, pair.route, pair.host)
    receive(link.owner_end, UP)
    receive(link.edge_end, OPENED)
    publish_all(pair)
    receive(link.edge_end, DOWN)

    assert 3 == pair.authority.offset
    assert RouteState.ONLINE is pair.route.state
