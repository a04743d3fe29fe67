"""What an edge inherited and claims, over links that break in the middle of it."""

from __future__ import annotations

import pytest

from tests.link.test_life import Pair
from tests.support.pair import Client, Link, Recorder, make_edge
from tests.support.recorders import cut
from txbroker.delegation.delegation_table import DelegationState
from txbroker.delegation.zone_snapshot import EdgeInterest, ReceivedZone
from txbroker.edge.routing.zone_claims import StreamPosition


def pair_that_inherits(*, lazy: bool = False) -> Pair:
    """The edge wants z/x and y; z came back to the owner while the edge's link was down."""
    pair = Pair(lazy=lazy)
    pair.client.subscribe(("z/x", 0), ("y", 0))
    pair.link.pump()
    pair.say("y", b"before")
    if lazy:
        pair.journal.sync()
    pair.link.pump()
    pair.link.cut()
    give_back(pair)
    return pair


def give_back(pair: Pair) -> None:
    """A child that had z for a while, and whose edges are known, gives it back."""
    received_zone = ReceivedZone()
    received_zone.interests.append(
        EdgeInterest(edge=pair.edge.name, incarnation=1, filters=("z/x",))
    )
    pair.table.commit(cut("z", 7))
    pair.table.release("z", DelegationState())
    pair.authority.absorb("z", received_zone)
    pair.authority.announce_end("z", 7)


def say_numbered(pair: Pair, first: int, last: int) -> list[bytes]:
    """Messages of z and, between them, others; returns those of z."""
    for number in range(first, last + 1):
        pair.say("z/x", b"z%d" % number + bytes(80))
        pair.say("y", b"y%d" % number + bytes(80))
    return [b"z%d" % number for number in range(first, last + 1)]


def start(pair: Pair) -> Link:
    """A link that has said Hello; the rest is the test's."""
    pair.link = Link(pair.edge, pair.route, pair.host)
    pair.link.edge_end.start(b"token")
    return pair.link


def got(pair: Pair, kind: bytes) -> list[bytes]:
    """Payloads of one kind, without what fills them up."""
    return [p.rstrip(b"\0") for p in pair.client.payloads if p.startswith(kind)]


def break_after(pair: Pair, count: int) -> None:
    """Cut the link when so many messages of z have come."""
    link = pair.link
    link.split = lambda: 50
    for _ in link.steps():
        if len(got(pair, b"z")) >= count:
            break
    link.cut()


@pytest.mark.parametrize("after", [0, 1, 7, 19])
def test_link_breaks_while_what_waited_for_a_claim_comes(after: int) -> None:
    """The edge gets the rest when it is back, and nothing twice."""
    pair = pair_that_inherits()
    expected = say_numbered(pair, 1, 20)
    start(pair)
    break_after(pair, after)
    expected += say_numbered(pair, 21, 25)
    start(pair).pump()

    assert expected == got(pair, b"z")
    assert [b"y%d" % number for number in range(1, 26)] == got(pair, b"y")


def test_link_breaks_again_and_again() -> None:
    """Each time something comes; in the end all of it."""
    pair = pair_that_inherits()
    expected = say_numbered(pair, 1, 20)
    for count in range(1, 20, 3):
        start(pair)
        break_after(pair, count)
    start(pair).pump()

    assert expected == got(pair, b"z")
    assert 20 == len(got(pair, b"y"))


def test_live_messages_may_be_far_ahead_of_a_claim() -> None:
    """Position and claim are two numbers: the one does not hide what the other lacks."""
    pair = pair_that_inherits()
    link = start(pair)
    link.pump()  # live; z is claimed and there is nothing of it
    pair.commit.commit()
    give_back(pair)  # it came and went and came
    expected = say_numbered(pair, 1, 20)
    break_after(pair, 5)
    position, processed = pair.route.position, pair.route.processed("z")
    start(pair).pump()

    assert position is not None
    assert processed is not None
    assert processed.offset < position.offset
    assert expected == got(pair, b"z")


def test_finished_claim_leaves_nothing_behind() -> None:
    """The owner forgets where it began, the edge has one position."""
    pair = pair_that_inherits()
    say_numbered(pair, 1, 3)
    start(pair).pump()
    peer = pair.authority.peers.get("edge")
    assert peer is not None

    assert ({}, {}) == (peer.unclaimed, peer.claiming)
    assert ({"z"}, {}) == (pair.route.claims.apexes, pair.route.claims.claiming)


def test_word_that_a_claim_is_finished_may_be_lost() -> None:
    """It is said again; the next inheritance is a new one all the same."""
    pair = pair_that_inherits()
    expected = say_numbered(pair, 1, 3)
    link = start(pair)
    link.pump()
    pair.link.cut()
    peer = pair.authority.peers.get("edge")
    assert peer is not None
    peer.claiming["z"] = 1  # as if it had not come
    start(pair).pump()
    pair.commit.commit()
    pair.link.pump()
    known = dict(peer.claiming)
    give_back(pair)
    expected += say_numbered(pair, 4, 6)
    pair.link.pump()

    assert {} == known
    assert expected == got(pair, b"z")


def test_owner_dies_in_the_middle_of_a_claim() -> None:
    """Its next life knows where the claim began, the edge how far it has got."""
    pair = pair_that_inherits(lazy=True)
    expected = say_numbered(pair, 1, 10)
    pair.journal.sync()
    start(pair)
    break_after(pair, 4)
    say_numbered(pair, 98, 99)  # not durable
    pair.restart_owner()
    expected += say_numbered(pair, 11, 12)
    pair.journal.sync()
    start(pair).pump()

    assert expected == got(pair, b"z")
    assert [b"y%d" % number for number in range(1, 13)] == got(pair, b"y")


def test_edge_that_was_away_while_it_came_and_went_and_came() -> None:
    """Its old claim says nothing of the new inheritance; it is told of that, and claims anew."""
    pair = pair_that_inherits()
    first = say_numbered(pair, 1, 4)
    start(pair).pump()
    pair.link.cut()
    pair.table.commit(cut("z", 8))
    pair.authority.announce(cut("z", 8))
    give_back(pair)
    second = say_numbered(pair, 5, 8)
    start(pair).pump()
    peer = pair.authority.peers.get("edge")
    assert peer is not None

    assert [*first, *second] == got(pair, b"z")
    assert {} == peer.unclaimed


def test_claims_of_an_earlier_epoch_say_nothing() -> None:
    """Offsets begin anew; what the new epoch has is all the edge's."""
    pair = pair_that_inherits()
    say_numbered(pair, 1, 4)
    start(pair).pump()
    pair.link.cut()
    pair.restart_owner(epoch=2)
    expected = say_numbered(pair, 5, 6)
    start(pair).pump()

    assert expected == got(pair, b"z")[4:]
    assert StreamPosition(epoch=2, offset=4) == pair.route.position


def test_claim_waits_until_the_end_of_the_one_before_is_kept() -> None:
    """Else the owner would take it for that one, and keep what follows for ever."""
    pair = pair_that_inherits()
    start(pair).pump()
    give_back(pair)  # it came, and went and came again before the edge has kept that it came
    expected = say_numbered(pair, 1, 3)
    pair.link.pump()
    assert [] == got(pair, b"z")

    pair.commit.commit()
    pair.link.pump()

    assert expected == got(pair, b"z")


def test_edge_that_died_before_it_claimed_does_so_when_it_starts_again() -> None:
    """It remembers the cut, so nobody tells it as news; and it follows nobody above any more."""
    pair = Pair("z")
    pair.link.cut()
    interest = EdgeInterest(edge=pair.edge.name, incarnation=1, filters=("z/x",))
    pair.authority.peers.inherit("z", interest, 0)
    known = pair.edge.zones.known()
    pair.edge = make_edge(pair.alarms, Recorder())
    pair.edge.incarnation = 2
    pair.edge.zones.restore(known)
    route = pair.edge.zones.get("z")
    assert route is not None
    pair.route, pair.client = route, Client(pair.edge, "c")
    pair.client.subscribe(("z/x", 1))
    pair.connect()
    pair.say("z/x", b"live")
    pair.link.pump()

    assert [b"live"] == pair.client.payloads
