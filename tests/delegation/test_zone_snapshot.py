"""What moves when a zone changes hands: parts, the fence, the new owner's side."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import attrs
import pytest

from tests.support.journal import authority_of, caught_up
from tests.support.recorders import EdgeRecorder, Events, cut, payloads
from txbroker.authority.authority import Authority
from txbroker.authority.edge_peer import EdgeGreeting, EdgePeer, PublishVerdict, ReturnedZone
from txbroker.core.sorted_filters import SortedFilters
from txbroker.delegation.delegation_table import DelegationState, DelegationTable
from txbroker.delegation.zone_snapshot import (
    PART_BYTES,
    EdgeInterest,
    ReceivedZone,
    ZoneSnapshot,
    in_parts,
)
from txbroker.mqtt.wire.message import Message


def serving(apex: str = "", *, epoch: int = 1) -> tuple[Authority, DelegationTable]:
    table = DelegationTable(apex)
    authority, _ = authority_of(apex, table)
    authority.open(epoch)
    return authority, table


def retained(topic: str, payload: str = "x") -> Message:
    return Message(topic, payload.encode(), 1, True)


def known(authority: Authority, edge: str) -> EdgePeer:
    peer = authority.peers.get(edge)
    assert peer is not None
    return peer


def arrive(authority: Authority, edge: str, *filters: str) -> EdgeRecorder:
    port = EdgeRecorder()
    assert authority.reception.connect(
        EdgeGreeting(edge=edge, incarnation=1, filters=filters), port
    )
    return port


# -- parts


def test_parts_end_at_their_size() -> None:
    """Each part stays well below the limit of a control message."""
    messages = [Message(f"t/{n}", b"x" * (PART_BYTES // 2)) for n in range(5)]

    parts = list(in_parts(messages))

    assert [2, 2, 1] == [len(part.retained) for part in parts]
    assert messages == [message for part in parts for message in part.retained]


def test_nothing_makes_no_part() -> None:
    """An empty zone is copied in no time."""
    assert [] == list(in_parts([]))


def test_later_part_overrides_an_earlier_one() -> None:
    """The rest is newer than the bulk: changed, cleared, set again."""
    received_zone = ReceivedZone()
    key = ("e", 1, "", 1)
    received_zone.merge(ZoneSnapshot(retained=(retained("a"), retained("b"), retained("c"))))
    received_zone.merge(ZoneSnapshot(retained=(retained("a", "new"),)))
    received_zone.merge(
        ZoneSnapshot(
            cleared=("b", "unknown"),
            interests=(EdgeInterest(edge="e", incarnation=1, filters=("#",)),),
            delegations=(cut("z/x"),),
            marks=((key, 3),),
        )
    )

    assert {"a": b"new", "c": b"x"} == {t: m.payload for t, m in received_zone.retained.items()}
    assert [EdgeInterest(edge="e", incarnation=1, filters=("#",))] == received_zone.interests
    assert ([cut("z/x")], {key: 3}) == (received_zone.delegations, received_zone.marks)


# -- the old owner's side


def test_bulk_has_what_is_retained_within_the_apex() -> None:
    """Nothing else of the zone moves."""
    authority, _ = serving()
    for topic in ("z", "z/a", "zz", "y"):
        authority.publish(retained(topic, topic))

    source = authority.subtrees.prepare("z")

    assert [["z", "z/a"]] == [payloads(part.retained) for part in source.bulk()]


def test_rest_has_what_changed_after_the_bulk() -> None:
    """Bulk and rest together are what was retained at the fence."""
    authority, table = serving()
    for topic in ("z/kept", "z/changed", "z/cleared"):
        authority.publish(retained(topic, "old"))
    table.commit(cut("z/below", 4))
    table.commit(cut("other"))
    arrive(authority, "e", "z/kept", "y", "+/kept")
    authority.marks["e", 1, "", 1] = 9
    source = authority.subtrees.prepare("z")
    received_zone = ReceivedZone()
    for part in source.bulk():
        received_zone.merge(part)

    authority.publish(retained("z/changed", "new"))
    authority.publish(retained("z/cleared", ""))
    authority.publish(retained("z/new", "new"))
    authority.publish(retained("y/new", "new"))
    authority.subtrees.fence(source)
    for part in source.rest():
        received_zone.merge(part)

    assert received_zone.interests == [
        EdgeInterest(edge="e", incarnation=1, filters=("+/kept", "z/kept"))
    ]
    assert received_zone.delegations == [cut("z/below", 4)]
    assert received_zone.marks == {("e", 1, "", 1): 9}
    assert {topic: m.payload for topic, m in received_zone.retained.items()} == {
        "z/kept": b"old",
        "z/changed": b"new",
        "z/new": b"new",
    }


def test_fence_parks_the_subtree_only() -> None:
    """What is being handed over waits; the rest of the zone goes on."""
    authority, _ = serving()
    source = authority.subtrees.prepare("z")

    before = authority.publish(Message("z/a", b"", 1))
    offset = authority.subtrees.fence(source)
    after = [authority.publish(Message(topic, b"", 1)) for topic in ("z/a", "z", "zz", "y")]

    assert (PublishVerdict.TAKEN, 1) == (before, offset)
    assert [
        PublishVerdict.PARKED,
        PublishVerdict.PARKED,
        PublishVerdict.TAKEN,
        PublishVerdict.TAKEN,
    ] == after
    assert authority.offset == 3  # what was parked took no offset


def test_fence_lies_at_a_record_that_an_edge_can_get_to() -> None:
    """A position is never told to lie at a QoS 0 record, and the successor waits for a position."""
    authority, _ = serving()
    source = authority.subtrees.prepare("z")
    for qos in (1, 2, 0, 0):
        authority.publish(Message("y", b"", qos))

    assert (2, 2) == (authority.subtrees.fence(source), authority.delivered)


def test_handover_that_came_to_nothing_leaves_the_zone_here() -> None:
    """The fence goes, and whoever parked tries again."""
    authority, _ = serving()
    port = arrive(authority, "e", "#")
    source = authority.subtrees.prepare("z")
    authority.subtrees.fence(source)
    assert authority.publish(Message("z/a", b"no", 1)) is PublishVerdict.PARKED

    authority.subtrees.roll_back(source)
    again = authority.publish(Message("z/a", b"yes", 1))

    assert again is PublishVerdict.TAKEN
    assert [("unpark",), ("deliver", 1, "yes")] == port.events


def test_changes_are_no_longer_noted_after_the_handover() -> None:
    """A handover that is over costs nothing more, and the next one starts anew."""
    authority, _ = serving()
    source = authority.subtrees.prepare("z")
    authority.subtrees.roll_back(source)
    authority.publish(retained("z/a"))
    authority.subtrees.fence(source)

    assert [()] == [part.retained for part in source.rest()]


def test_completed_handover_is_a_cut_in_every_stream() -> None:
    """
    Every edge hears of the cut after its last delivery; what was parked is another node's.

    An edge withdraws its filters when it hears of the cut, not before: it may be behind. For one
    that is away they are withdrawn; it says anew what it wants.
    """
    authority, table = serving()
    events: Events = []
    for name, filters in (("inside", ["z/+"]), ("across", ["+/a"])):
        greeting = EdgeGreeting(edge=name, incarnation=1, filters=tuple(filters))
        assert authority.reception.connect(greeting, EdgeRecorder(events, name))
    away = arrive(authority, "away", "z/+", "y")
    authority.reception.disconnect(known(authority, "away"), away)
    authority.publish(retained("z/a", "last"))
    source = authority.subtrees.prepare("z")
    authority.subtrees.fence(source)

    table.commit(cut("z", 3))
    authority.subtrees.complete(source)

    assert [
        ("inside", "deliver", 1, "last"),
        ("across", "deliver", 1, "last"),
        ("inside", "cut", "z", 3),
        ("across", "cut", "z", 3),
        ("inside", "unpark"),
        ("across", "unpark"),
    ] == events
    assert authority.publish(Message("z/a", b"", 1)) is PublishVerdict.NOT_AUTHORITATIVE
    assert authority.cut_for("z/a") == cut("z", 3)
    assert authority.retained.get("z/a") is None
    assert {"inside": {"z/+"}, "across": {"+/a"}, "away": {"y"}} == {
        peer.edge: peer.filters for peer in authority.peers
    }


def test_zone_that_was_given_back_ends_in_every_stream() -> None:
    """The whole zone went: no cut can be named, and nothing of it stays."""
    authority, _ = serving("z", epoch=4)
    port = arrive(authority, "e", "z/#")
    authority.publish(retained("z/a", "last"))
    source = authority.subtrees.prepare("z")
    authority.subtrees.fence(source)

    authority.subtrees.complete(source)

    assert [("deliver", 1, "last"), ("gone", "z", 4), ("unpark",)] == port.events
    assert authority.publish(Message("z/a", b"", 1)) is PublishVerdict.NOT_AUTHORITATIVE
    assert (authority.cut_for("z/a"), len(authority.retained)) == (None, 0)


def test_two_subtrees_are_handed_over_at_a_time() -> None:
    """Each handover has its own fence."""
    authority, table = serving()
    one, two = authority.subtrees.prepare("one"), authority.subtrees.prepare("two")
    authority.subtrees.fence(one)
    authority.subtrees.fence(two)
    table.commit(cut("one"))
    authority.subtrees.complete(one)

    verdicts = [authority.publish(Message(topic, b"", 1)) for topic in ("one/x", "two/x")]

    assert [PublishVerdict.NOT_AUTHORITATIVE, PublishVerdict.PARKED] == verdicts


# -- the new owner's side


def hand_over(interest: EdgeInterest, *messages: Message) -> ReceivedZone:
    received_zone = ReceivedZone()
    received_zone.merge(ZoneSnapshot(retained=messages, interests=(interest,)))
    return received_zone


def test_new_owner_has_what_the_old_one_retained() -> None:
    """And nothing that it had itself from an earlier time."""
    authority, _ = authority_of("z", DelegationTable("z"))
    authority.retained.set(retained("z/stale"))

    interest = EdgeInterest(edge="e", incarnation=1, filters=("z/#",))
    authority.open(2, hand_over(interest, retained("z/a")))

    assert ["z/a"] == [message.topic for message in authority.retained.match("#")]
    assert (authority.epoch, authority.offset, authority.serving) == (2, 0, True)


def test_inherited_deliveries_wait_for_the_claim() -> None:
    """An edge takes the new owner's records only after the old owner's last one (rule 13)."""
    authority, _ = authority_of("z", DelegationTable("z"))
    interest = EdgeInterest(edge="e", incarnation=1, filters=("z/#",))
    authority.open(2, hand_over(interest))
    authority.publish(Message("z/a", b"1", 1))
    port = EdgeRecorder()
    greeting = EdgeGreeting(edge="e", incarnation=1, filters=("z/#",))

    accepted = authority.reception.connect(greeting, port)
    assert accepted is not None
    peer, before_claim = accepted
    authority.publish(Message("z/a", b"2", 1))
    authority.publish(Message("z/a", b"not kept", 0))
    claimed = caught_up(authority, (peer, authority.reception.sync(peer, ["z/#"], {"z": None})))
    authority.publish(Message("z/a", b"4", 1))

    assert [] == caught_up(authority, (peer, before_claim))
    assert ["1", "2"] == payloads(r.message for r in claimed)
    assert [("deliver", 4, "4")] == port.events
    assert authority.unclaimed_qos0 == 1


def test_next_handover_waits_for_claims() -> None:
    """What an edge has inherited and not claimed would not go along with a part of the zone."""
    authority, _ = serving("a")
    received_zone = ReceivedZone()
    received_zone.merge(
        ZoneSnapshot(interests=(EdgeInterest(edge="e", incarnation=1, filters=("a/#",)),))
    )
    authority.absorb("a", received_zone)

    assert authority.subtrees.awaits_claims("a/b")
    assert authority.subtrees.awaits_claims("")
    assert not authority.subtrees.awaits_claims("b")
    peer = known(authority, "e")
    authority.reception.sync(peer, ["a/#"], {"a": None})
    assert not authority.subtrees.awaits_claims("a/b")


def test_claim_counts_once() -> None:
    """A second claim of the same apex gives nothing again."""
    authority, _ = authority_of("z", DelegationTable("z"))
    interest = EdgeInterest(edge="e", incarnation=1, filters=("z/#",))
    authority.open(2, hand_over(interest))
    authority.publish(Message("z/a", b"1", 1))
    greeting = EdgeGreeting(
        edge="e", incarnation=1, filters=("z/#",), claims={"z": None, "unknown": None}
    )

    accepted = authority.reception.connect(greeting, EdgeRecorder())
    first = caught_up(authority, accepted)
    assert accepted is not None
    again = authority.reception.sync(accepted[0], ["z/#"], {"z": None})

    assert ["1"] == payloads(r.message for r in first)
    assert [] == caught_up(authority, (accepted[0], again))


def test_interest_of_a_newer_process_is_not_overridden() -> None:
    """What is inherited of an earlier incarnation is nobody's."""
    authority, _ = serving("z")
    greeting = EdgeGreeting(edge="e", incarnation=5, filters=("z/new",))
    accepted = authority.reception.connect(greeting, EdgeRecorder())
    assert accepted is not None

    interest = EdgeInterest(edge="e", incarnation=4, filters=("z/old",))
    authority.absorb("z/x", hand_over(interest))

    assert ({"z/new"}, {}) == (accepted[0].filters, accepted[0].unclaimed)


def test_zone_that_comes_back_is_absorbed_behind_a_claim() -> None:
    """Deliveries of the subtree wait until the edge has the child's last ones; others do not."""
    authority, _ = serving()
    port = arrive(authority, "e", "#")
    peer = known(authority, "e")
    interest = EdgeInterest(edge="e", incarnation=1, filters=("#",))
    authority.publish(Message("y", b"0", 1))

    authority.absorb("z", hand_over(interest, retained("z/a")))
    authority.announce_end("z", 3)
    for topic in ("z/a", "y"):
        authority.publish(Message(topic, topic.encode(), 1))
    claimed = caught_up(authority, (peer, authority.reception.sync(peer, ["#"], {"z": None})))

    assert [("deliver", 1, "0"), ("gone", "z", 3), ("deliver", 3, "y")] == port.events
    assert [(2, "z/a")] == [(r.offset, r.message.payload.decode()) for r in claimed]
    assert authority.retained.get("z/a") is not None


def test_newer_process_that_is_inherited_takes_over_when_it_comes() -> None:
    """
    The old owner knew a later life of the edge, or lies: a life that is here is closed by nobody
    else. What came with the zone waits for that later one.
    """
    authority, _ = serving("z")
    old = arrive(authority, "e", "z/old")

    interest = EdgeInterest(edge="e", incarnation=2, filters=("z/x/#",))
    authority.absorb("z/x", hand_over(interest))
    before = old.events[:]
    greeting = EdgeGreeting(edge="e", incarnation=2, filters=("z/new",))
    assert authority.reception.connect(greeting, EdgeRecorder())

    assert ([], [("close",)]) == (before, old.events)
    peer = known(authority, "e")
    assert (2, {"z/x/#", "z/new"}, {"z/x": 0}) == (peer.incarnation, peer.filters, peer.unclaimed)


@pytest.mark.parametrize("is_here", [True, False])
def test_a_life_that_nobody_has_seen_locks_no_edge_out(is_here: bool) -> None:
    """Another node told of it; the node itself would end at its next start."""
    authority, _ = serving()
    port = arrive(authority, "e", "#") if is_here else None
    lie = EdgeInterest(edge="e", incarnation=1 << 32, filters=("z/#",))
    authority.absorb("z", hand_over(lie))
    if port is None:
        port = arrive(authority, "e", "#")
    authority.publish(Message("y", b"1", 1))
    authority.publish(Message("z", b"waits for its claim", 1))
    again = arrive(authority, "e", "#")
    authority.publish(Message("y", b"2", 1))

    assert ["1"] == [event[2] for event in port.events if event[0] == "deliver"]
    assert ["2"] == [event[2] for event in again.events if event[0] == "deliver"]


# -- interest while a fence stands


def test_interest_that_touches_a_fence_waits_for_its_end() -> None:
    """The fence is one moment for interests, too (rule 12); others are answered at once."""
    authority, _ = serving()
    port = arrive(authority, "e")
    peer = known(authority, "e")
    source = authority.subtrees.prepare("z")
    authority.subtrees.fence(source)
    authority.reception.add_interest(peer, "#", 1, True)
    authority.reception.add_interest(peer, "z/given up", 2, True)
    authority.reception.add_interest(peer, "y", 3, True)
    authority.reception.remove_interest(peer, "z/given up")
    before = port.events[:]
    authority.subtrees.roll_back(source)

    assert [("answer", 3, 0, [])] == before
    assert [("answer", 1, 0, []), ("unpark",)] == port.events[1:]
    assert {"#", "y"} == peer.filters


def test_interest_that_waits_goes_with_its_link() -> None:
    """The next link's greeting has it."""
    authority, _ = serving()
    arrive(authority, "e")
    source = authority.subtrees.prepare("z")
    authority.subtrees.fence(source)
    authority.reception.add_interest(known(authority, "e"), "#", 1, True)
    again = arrive(authority, "e", "y")
    authority.subtrees.roll_back(source)

    assert [("unpark",)] == again.events
    assert {"y"} == known(authority, "e").filters


def test_edge_that_was_away_hears_what_came_back_meanwhile() -> None:
    """Until it claims; zones that are delegated again have a cut instead."""
    authority, table = serving()
    interest = EdgeInterest(edge="e", incarnation=1, filters=("#",))
    for apex in ("back", "again"):
        table.commit(cut(apex, 3))
        table.release(apex, DelegationState())
        authority.absorb(apex, hand_over(interest))
    table.commit(cut("again", 9))
    peer = known(authority, "e")
    hello = EdgeGreeting(edge="e", incarnation=1, filters=("#",))
    before = authority.reception.returned(hello)
    knows = authority.reception.returned(attrs.evolve(hello, claims={"back": 0}))
    authority.reception.sync(peer, ["#"], {"back": None})

    assert [ReturnedZone(apex="back", epoch=3, offset=0, is_inherited=True)] == before
    assert ([], []) == (knows, authority.reception.returned(hello))


def test_zone_that_went_out_again_has_taken_along_what_an_edge_wants_of_it() -> None:
    """Of an edge that gave its filter up meanwhile, and will not hear that the zone was here."""
    authority, table = serving()
    interest = EdgeInterest(edge="e", incarnation=1, filters=("#",))
    table.commit(cut("z", 3))
    table.release("z", DelegationState())
    authority.absorb("z", hand_over(interest))
    arrive(authority, "e")
    while_here = set(known(authority, "e").filters)
    table.commit(cut("z", 5))
    arrive(authority, "e")
    connected = set(known(authority, "e").filters)
    authority.absorb("z", hand_over(interest))
    authority.reception.sync(known(authority, "e"), [], {})

    assert ({"#"}, set(), set()) == (while_here, connected, known(authority, "e").filters)


# -- what a look at the interests costs


def test_snapshot_looks_at_filters_that_meet_the_subtree() -> None:
    """However many edges there are, and however much they want elsewhere."""
    authority, _ = serving()
    for number in range(20):
        elsewhere = [f"b{place}/{number}" for place in range(500)]
        arrive(authority, f"edge{number}", "+/x", f"a/{number}", *elsewhere)
    looks = 0
    starting = SortedFilters.starting

    def counted(self: SortedFilters, prefix: str) -> Iterator[list[str]]:
        nonlocal looks
        for texts in starting(self, prefix):
            looks += len(texts)
            yield texts

    with mock.patch.object(SortedFilters, "starting", counted):
        found = list(authority.peers.within("a"))

    assert [("+/x", f"a/{number}") for number in range(20)] == [one.filters for one in found]
    assert looks < 100


def test_interest_of_edges_that_are_away_goes_with_the_subtree() -> None:
    """Of filters that match nothing else; and it is not found any more."""
    authority, table = serving()
    port = arrive(authority, "edge", "a/x", "a/#", "+/x", "b")
    peer = known(authority, "edge")
    authority.reception.disconnect(peer, port)
    source = authority.subtrees.prepare("a")
    authority.subtrees.fence(source)
    table.commit(cut("a"))
    authority.subtrees.complete(source)

    assert {"+/x", "b"} == peer.filters
    assert [("+/x",)] == [one.filters for one in authority.peers.within("a")]
