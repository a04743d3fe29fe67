"""What an edge has inherited, claimed and processed, in the owner's view of it."""

from __future__ import annotations

import attrs
import pytest

from txbroker.authority.edge_peer import EdgeCatchUp, EdgeGreeting, EdgePeer, OpenedLink
from txbroker.authority.edge_peers import EdgePeers
from txbroker.core import Router
from txbroker.delegation.zone_snapshot import EdgeInterest
from txbroker.journal.zone_journal import Record
from txbroker.mqtt.wire.message import Message


def record(offset: int, topic: str) -> Record:
    return Record(offset, Message(topic, b"", 1 if offset else 0))


CLAIMS = {
    # unclaimed, claiming, processed, returned -> since, then unclaimed and claiming
    "first": (20, None, None, False, 20, None, 20),
    "nothing known": (None, None, None, False, None, None, None),
    "goes on": (None, 20, 30, False, 30, None, 20),
    "goes on from its beginning": (None, 20, None, False, 20, None, 20),
    "done, and the owner has forgotten": (None, None, 30, False, 30, None, None),
    "done, at a position of 0": (None, None, 0, False, 0, None, None),
    "the owner died meanwhile": (20, None, 30, False, 30, None, 20),
    "of an earlier time": (20, None, 7, False, 7, 20, None),
    "of an earlier time, not finished": (20, 5, 7, False, 7, 20, 5),
    "of an earlier time, not begun": (20, 5, None, False, 5, 20, 5),
    "given, claimed before": (20, None, 7, True, 7, 20, None),
    "given, not begun": (20, 5, None, True, 5, 20, 5),
}


def greeting(*, position: int | None = None, **claims: int | None) -> EdgeGreeting:
    return EdgeGreeting(edge="e", incarnation=1, filters=(), claims=claims, position=position)


@pytest.mark.parametrize("name", CLAIMS)
def test_claim_says_where_deliveries_go_on(name: str) -> None:
    """In the edge's greeting; one of an earlier time leaves what came since unclaimed."""
    unclaimed, claiming, processed, is_back, since, unclaimed_then, claiming_then = CLAIMS[name]
    peer = EdgePeer(edge="e", incarnation=1)
    if unclaimed is not None:
        peer.unclaimed["z"] = unclaimed
    if claiming is not None:
        peer.claiming["z"] = claiming

    hello = attrs.evolve(greeting(z=processed), returned=("z",) if is_back else ())
    claimed = peer.claim(hello)

    assert since == claimed.get("z")
    assert (unclaimed_then, claiming_then) == (peer.unclaimed.get("z"), peer.claiming.get("z"))


@pytest.mark.parametrize(("position", "since"), [(None, 20), (7, 7), (30, 20)])
def test_edge_that_resumes_may_lack_records_from_before(position: int | None, since: int) -> None:
    """The subtree was here before: what it had not read then is in the same journal."""
    claimed = EdgePeer(edge="e", incarnation=1, unclaimed={"z": 20})
    given = EdgePeer(edge="e", incarnation=1, unclaimed={"z": 20})
    back = attrs.evolve(greeting(position=position), returned=("z",))

    assert {"z": since} == claimed.claim(greeting(position=position, z=None))
    assert {"z": since} == given.claim(back)


def test_claims_that_are_not_named_any_more_are_done_with() -> None:
    """A greeting names all that hold."""
    peer = EdgePeer(edge="e", incarnation=1, claiming={"y": 3, "z": 5})
    peer.claim(greeting(z=7))

    assert {"z": 5} == peer.claiming


def test_given_apex_is_unclaimed_until_the_edge_has_heard_of_it() -> None:
    """Its deliveries do not wait; a link that breaks before leaves all as it was."""
    peer = EdgePeer(edge="e", incarnation=1, unclaimed={"z": 20})
    peer.claim(attrs.evolve(greeting(), returned=("z",)))
    on_this_link = (peer.is_waiting_for(record(21, "z/a")), dict(peer.unclaimed))
    peer.claim(greeting())
    on_the_next = (peer.is_waiting_for(record(21, "z/a")), dict(peer.unclaimed))

    assert (False, {"z": 20}) == on_this_link
    assert (True, {"z": 20}) == on_the_next


@pytest.mark.parametrize("how", ["claims it", "says that it has processed it"])
def test_edge_has_heard_of_a_given_apex(how: str) -> None:
    """All of it has come on this link, so nothing comes again."""
    peer = EdgePeer(edge="e", incarnation=1, unclaimed={"z": 20})
    peer.claim(attrs.evolve(greeting(), returned=("z",)))
    if how == "claims it":
        assert {} == peer.claim_more({"z": None})
    else:
        peer.forget_claims(["z"])

    assert ({}, {}, set()) == (peer.unclaimed, peer.claiming, peer.given)


def test_new_claim_is_one_that_nothing_is_known_of() -> None:
    """While a link is up, what an edge repeats is on its way already."""
    unclaimed = {"new": 4, "old": 6, "again": 9}
    peer = EdgePeer(edge="e", incarnation=1, unclaimed=unclaimed, claiming={"again": 2})
    claimed = peer.claim_more({"new": None, "old": 3, "again": None, "unknown": None})

    assert {"new": 4} == claimed
    assert {"old": 6, "again": 9} == peer.unclaimed


def test_records_behind_an_inheritance_wait() -> None:
    """Those before it, from an earlier time, do not; QoS 0 is always of now."""
    peer = EdgePeer(edge="e", incarnation=1, unclaimed={"z": 10})
    waiting = [
        peer.is_waiting_for(record(offset, topic))
        for offset, topic in ((10, "z/a"), (11, "z/a"), (11, "z"), (11, "zz"), (0, "z/a"))
    ]

    assert [False, True, True, False, True] == waiting


def test_deepest_claim_rules_a_catch_up() -> None:
    """It is the latest; elsewhere the position counts."""
    catch_up = EdgeCatchUp(after=2, claimed={"z": 2, "z/y": 8}, resumed=5)
    wanted = [(3, "z/a"), (3, "z/y"), (9, "z/y/a"), (5, "a"), (6, "a"), (2, "z")]

    assert [True, False, True, False, True, False] == [
        catch_up.has(record(offset, topic)) for offset, topic in wanted
    ]


def test_without_a_position_only_what_is_claimed_is_caught_up() -> None:
    """The edge was never here: it begins with what is live."""
    catch_up = EdgeCatchUp(after=2, claimed={"z": 2})

    assert [True, False] == [catch_up.has(record(3, topic)) for topic in ("z", "a")]


def test_what_was_inherited_before_is_not_forgotten() -> None:
    """A subtree that comes again before it was claimed; the earlier offset is the lower one."""
    peers = EdgePeers(Router(lambda: None))
    interest = EdgeInterest(edge="e", incarnation=1, filters=("z/#",))
    peers.inherit("z", interest, 10)
    peers.inherit("z", interest, 20)
    peer = peers.get("e")
    assert peer is not None
    before = dict(peer.unclaimed)
    peer.claim(greeting(z=None))
    peers.inherit("z", interest, 30)

    assert {"z": 10} == before
    assert [{"z": 10}] == [left.apexes for left in peers.unclaimed()]


def test_marks_that_an_edge_needs() -> None:
    """Its own streams in doubt, and those of zones that came back, in this life of its process."""
    in_doubt = ("e", 1, "z", 3)
    hello = EdgeGreeting(edge="e", incarnation=1, filters=(), in_doubt=(in_doubt,))
    keys = [in_doubt, ("e", 1, "z", 2), ("e", 1, "z/y", 1), ("e", 0, "z/y", 1), ("f", 1, "z", 1)]

    assert [False, True, False, True, False] == [hello.closes(key, "z") for key in keys]


def test_filters_of_what_an_edge_has_not_heard_of_stay() -> None:
    """It withdrew them when the apex went; they came back with it."""
    peers = EdgePeers(Router(lambda: None))
    peer = peers.greet("e", 1)
    assert peer is not None
    peers.set_filters(peer, {"z/#", "y", "+/a"})
    peers.replace_filters(peer, ["x"], {"z"})
    before = set(peer.filters)
    peers.replace_filters(peer, ["x"], set())

    assert ({"z/#", "+/a", "x"}, {"x"}) == (before, peer.filters)


@pytest.mark.parametrize(
    ("incarnation", "life", "token", "is_late"),
    [
        (7, "one", 3, False),  # the same process again
        (6, "one", 3, True),
        (6, "two", 3, False),  # a new folder, whose clock is behind
        (8, "two", 1, True),  # it asked before the one that is here
        (6, "", 3, True),  # an older node counts upwards only
    ],
)
def test_the_process_whose_token_is_newer_is_let_in(
    incarnation: int, life: str, token: int, is_late: bool
) -> None:
    """Numbers of lives have an order within one folder only."""
    known = EdgePeer(edge="e", incarnation=7, stream=5, opened=OpenedLink("one", 2), has_come=True)
    greeting = EdgeGreeting(
        edge="e", incarnation=incarnation, filters=(), stream=5, opened=OpenedLink(life, token)
    )

    assert is_late is greeting.is_late(known)
