"""One zone at its owner: verdicts, order, copies, retained messages, resuming, marks."""

from __future__ import annotations

import pytest

from tests.support.checking import checking
from tests.support.journal import authority_of, caught_up
from tests.support.recorders import EdgeRecorder, Events, cut, payloads
from txbroker.authority import edge_peers as module
from txbroker.authority.authority import Authority
from txbroker.authority.edge_peer import EdgeGreeting, EdgePeer, PublishVerdict
from txbroker.delegation.delegation_table import DelegationState, DelegationTable
from txbroker.delegation.zone_snapshot import EdgeInterest
from txbroker.mqtt.wire.message import Message

checked = checking(Authority)


def serving(apex: str = "") -> tuple[Authority, DelegationTable]:
    table = DelegationTable(apex)
    authority, _ = authority_of(apex, table)
    authority.open(1)
    return authority, table


def hello(*filters: str, edge: str = "e", incarnation: int = 1) -> EdgeGreeting:
    return EdgeGreeting(edge=edge, incarnation=incarnation, filters=filters)


def arrive(authority: Authority, greeting: EdgeGreeting) -> tuple[EdgePeer, EdgeRecorder]:
    port = EdgeRecorder()
    accepted = authority.reception.connect(greeting, port)
    assert accepted is not None
    return accepted[0], port


def say(
    authority: Authority, topic: str, payload: str, qos: int = 1, *, retain: bool = False
) -> PublishVerdict:
    return authority.publish(Message(topic, payload.encode(), qos, retain))


# -- verdicts


def test_topics_of_the_zone_are_taken_and_others_are_not() -> None:
    """The apex, what is below it, and nothing that lies under a cut."""
    authority, table = serving("house")
    table.commit(cut("house/garage"))
    topics = ["house", "house/x", "house/garage", "house/garage/x", "houses", "x", "$other"]

    verdicts = {topic: say(authority, topic, "") for topic in topics}

    assert verdicts == {
        "house": PublishVerdict.TAKEN,
        "house/x": PublishVerdict.TAKEN,
        "house/garage": PublishVerdict.NOT_AUTHORITATIVE,
        "house/garage/x": PublishVerdict.NOT_AUTHORITATIVE,
        "houses": PublishVerdict.NOT_AUTHORITATIVE,
        "x": PublishVerdict.NOT_AUTHORITATIVE,
        "$other": PublishVerdict.NOT_AUTHORITATIVE,
    }
    assert authority.cut_for("house/garage/x") == cut("house/garage")
    assert authority.cut_for("house/x") is None


def test_zone_that_is_not_open_takes_nothing() -> None:
    """A node that has no grant serves nothing, and one that lost it serves nothing any more."""
    authority, _ = authority_of("", DelegationTable(""))

    before = say(authority, "a", "")
    authority.open(1)
    open_ = say(authority, "a", "")
    authority.close()
    after = say(authority, "a", "")

    assert [
        PublishVerdict.NOT_AUTHORITATIVE,
        PublishVerdict.TAKEN,
        PublishVerdict.NOT_AUTHORITATIVE,
    ] == [
        before,
        open_,
        after,
    ]


def test_cut_counts_from_its_announcement_on() -> None:
    """Topics that were published to before are looked at again."""
    authority, table = serving()
    _, port = arrive(authority, hello("#"))
    say(authority, "a/b", "1")
    table.commit(cut("a", 2))
    authority.announce(cut("a", 2))

    assert say(authority, "a/b", "2") is PublishVerdict.NOT_AUTHORITATIVE
    assert [("deliver", 1, "1"), ("cut", "a", 2)] == port.events


def test_end_of_a_cut_is_announced() -> None:
    """The zone covers the subtree again."""
    authority, table = serving()
    table.commit(cut("a", 2))
    _, port = arrive(authority, hello("#"))
    assert say(authority, "a/b", "1") is PublishVerdict.NOT_AUTHORITATIVE
    table.release("a", DelegationState())
    authority.announce_end("a", 2)

    assert say(authority, "a/b", "2") is PublishVerdict.TAKEN
    assert [("gone", "a", 2), ("deliver", 1, "2")] == port.events


# -- order and copies


def test_messages_have_one_order_for_all_edges() -> None:
    """Offsets count every message of the zone, whoever wants it; QoS 0 has no position."""
    authority, _ = serving()
    events: Events = []
    for name, topic_filter in (("one", "a"), ("two", "#")):
        port = EdgeRecorder(events, name)
        assert authority.reception.connect(hello(topic_filter, edge=name), port)
    for topic, qos in (("a", 0), ("b", 1), ("a", 2)):
        say(authority, topic, topic, qos)

    assert [
        ("one", "deliver", 0, "a"),
        ("two", "deliver", 0, "a"),
        ("two", "deliver", 2, "b"),
        ("one", "deliver", 3, "a"),
        ("two", "deliver", 3, "a"),
    ] == sorted(events, key=lambda event: (event[2], event[0]))


def test_overlapping_filters_make_one_copy_an_edge() -> None:
    """The edge gives it to its clients; the link carries it once (invariant 3)."""
    authority, _ = serving()
    _, port = arrive(authority, hello("#", "a/+", "a/b", "+/b"))
    say(authority, "a/b", "1")

    assert [("deliver", 1, "1")] == port.events


@pytest.mark.parametrize("topic_filter", ["#", "+/x", "+/#"])
def test_wildcards_leave_dollar_topics_alone(topic_filter: str) -> None:
    """They belong to the root zone and want their first level said [MQTT-4.7.2-1]."""
    authority, _ = serving()
    peer, port = arrive(authority, hello(topic_filter))
    assert say(authority, "$app/x", "1", retain=True) is PublishVerdict.TAKEN
    authority.reception.add_interest(peer, topic_filter, 1, True)
    authority.reception.add_interest(peer, "$app/#", 2, True)
    say(authority, "$app/x", "2")

    assert [("answer", 1, 1, []), ("answer", 2, 1, ["1"]), ("deliver", 2, "2")] == port.events


def test_edge_without_interest_gets_nothing() -> None:
    """Also after it withdrew the filter, and only then."""
    authority, _ = serving()
    peer, port = arrive(authority, hello("a", "b"))
    say(authority, "a", "1")
    authority.reception.remove_interest(peer, "a")
    authority.reception.remove_interest(peer, "never/had")
    say(authority, "a", "2")
    say(authority, "b", "3")

    assert [("deliver", 1, "1"), ("deliver", 3, "3")] == port.events


# -- retained messages


def test_interest_is_answered_before_what_comes_after_it() -> None:
    """The retained message, then live messages, so that no stale value follows a newer one."""
    authority, _ = serving()
    peer, port = arrive(authority, hello())
    say(authority, "a", "1", retain=True)
    authority.reception.add_interest(peer, "a", 7, True)
    say(authority, "a", "2", retain=True)
    authority.reception.add_interest(peer, "a", 8, True)
    authority.reception.add_interest(peer, "+", 9, False)

    assert [
        ("answer", 7, 1, ["1"]),
        ("deliver", 2, "2"),
        ("answer", 8, 2, ["2"]),
        ("answer", 9, 2, []),
    ] == port.events


def test_retained_values_stay_within_their_bounds() -> None:
    """Without room for its new value a topic has none: the old one would be no longer true."""
    authority, _ = serving()
    authority.most_retained = 2, 25
    refused: list[str] = []
    authority.on_not_retained = lambda: refused.append("value")
    for topic, size in (("a", 10), ("b", 8), ("c", 1), ("a", 16), ("b", 4), ("a", 18), ("c", 1)):
        say(authority, topic, "x" * size, retain=True)
        assert authority.retained.size <= 25 and len(authority.retained) <= 2

    kept = {message.topic: len(message.payload) for message in authority.retained.within("")}
    assert ({"a": 18, "b": 4}, 3) == (kept, len(refused))


def test_empty_payload_clears_what_is_retained() -> None:
    """It is delivered all the same [MQTT-3.3.1-10]."""
    authority, _ = serving()
    peer, port = arrive(authority, hello("a"))
    say(authority, "a", "1", retain=True)
    say(authority, "a", "", retain=True)
    say(authority, "a", "not retained")
    authority.reception.add_interest(peer, "a", 1, True)

    assert ("deliver", 2, "") == port.events[1]
    assert ("answer", 1, 3, []) == port.events[-1]


# -- connecting and resuming


def test_known_interest_is_replaced_by_the_greeting() -> None:
    """Hello carries the whole interest (rule 2)."""
    authority, _ = serving()
    first, _ = arrive(authority, hello("a", "b"))
    second, port = arrive(authority, hello("b", "c"))
    for topic in "abc":
        say(authority, topic, topic)

    assert first is second
    assert [("deliver", 2, "b"), ("deliver", 3, "c")] == port.events


def test_newer_link_takes_over() -> None:
    """The old one is closed, and its end changes nothing any more."""
    authority, _ = serving()
    _, old = arrive(authority, hello("a"))
    peer, new = arrive(authority, hello("a"))
    authority.reception.disconnect(peer, old)
    say(authority, "a", "1")

    assert [("close",)] == old.events
    assert [("deliver", 1, "1")] == new.events


def test_newer_process_starts_anew() -> None:
    """What the earlier one wanted is gone (its sessions were its own)."""
    authority, _ = serving()
    _, old = arrive(authority, hello("a", "b", incarnation=1))
    peer, new = arrive(authority, hello("b", incarnation=2))
    say(authority, "a", "1")
    say(authority, "b", "2")

    assert [("close",)] == old.events
    assert [("deliver", 2, "2")] == new.events
    assert [peer] == list(authority.peers)


def test_older_process_is_turned_away() -> None:
    """A newer incarnation of the edge is known."""
    authority, _ = serving()
    peer, port = arrive(authority, hello("a", incarnation=2))

    assert authority.reception.connect(hello("b", incarnation=1), EdgeRecorder()) is None
    assert ([], {"a"}) == (port.events, peer.filters)


def resume(authority: Authority, position: int, *filters: str) -> tuple[list[str], int]:
    greeting = EdgeGreeting(edge="e", incarnation=1, filters=filters, position=position)
    accepted = authority.reception.connect(greeting, EdgeRecorder())
    assert accepted is not None
    found = [record.message for record in caught_up(authority, accepted)]
    return payloads(found), accepted[1].missed


def test_edge_resumes_after_its_position() -> None:
    """QoS 1 and 2 that it wants and has not had; QoS 0 is not resent on links (rule 5)."""
    authority, _ = serving()
    peer, port = arrive(authority, hello("a", "b"))
    say(authority, "a", "1")
    authority.reception.disconnect(peer, port)
    for topic, payload, qos in (("a", "2", 1), ("a", "3", 0), ("x", "4", 1), ("b", "5", 2)):
        say(authority, topic, payload, qos)

    assert (["2", "5"], 0) == resume(authority, 1, "a", "b")
    assert (["5"], 0) == resume(authority, 2, "a", "b")
    assert ([], 0) == resume(authority, 5, "a", "b")
    assert (["2"], 0) == resume(authority, 1, "a")


def test_edge_hears_how_much_it_missed() -> None:
    """Beyond the journal there is a counted gap (rule 10)."""
    authority, journal = authority_of("", DelegationTable(""))
    authority.open(1)
    peer, port = arrive(authority, hello("a"))
    authority.reception.disconnect(peer, port)
    for number in range(1, 6):
        say(authority, "a", str(number))
    journal.trim(3)

    assert (["4", "5"], 2) == resume(authority, 1, "a")
    assert (["4", "5"], 0) == resume(authority, 3, "a")


def test_new_epoch_counts_from_one_and_forgets_the_journal() -> None:
    """Offsets are per epoch; opening again at the same epoch goes on."""
    authority, _ = serving()
    arrive(authority, hello("a"))
    say(authority, "a", "1")
    authority.open(1)
    same = (authority.offset, resume(authority, 0, "a"))
    authority.open(2)
    other = (authority.offset, resume(authority, 0, "a"))

    assert ((1, (["1"], 0)), (0, ([], 0))) == (same, other)


def test_resume_leaves_out_what_waits_for_a_claim() -> None:
    """The claim gives it, from where the inheritance began, and the position counts elsewhere."""
    authority, _ = serving()
    peer, port = arrive(authority, hello("#"))
    say(authority, "y", "1")
    authority.reception.disconnect(peer, port)
    peer.unclaimed["z"] = 1
    for topic, payload in (("z", "2"), ("y", "3"), ("z", "4"), ("y", "5")):
        say(authority, topic, payload)

    unclaimed = resume(authority, 3, "#")
    greeting = EdgeGreeting(edge="e", incarnation=1, filters=("#",), claims={"z": None}, position=3)
    claimed = caught_up(authority, authority.reception.connect(greeting, EdgeRecorder()))

    assert (["5"], 0) == unclaimed
    assert ["2", "4", "5"] == payloads(record.message for record in claimed)


def test_edge_that_is_away_makes_room_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of remembered edges is bounded; connected ones are never forgotten."""
    monkeypatch.setattr(module, "PEERS", 2)
    authority, _ = serving()
    arrive(authority, hello("a", edge="stays"))
    peer, port = arrive(authority, hello("a", edge="leaves"))
    authority.reception.disconnect(peer, port)
    arrive(authority, hello("a", edge="new"))
    arrive(authority, hello("a", edge="one too many"))

    assert ["stays", "new", "one too many"] == [peer.edge for peer in authority.peers]


def test_edge_with_open_claims_is_the_last_to_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it inherited waits for it, and for nobody else."""
    monkeypatch.setattr(module, "PEERS", 2)
    authority, _ = serving()
    for edge in ("heir", "other"):
        peer, port = arrive(authority, hello("a", edge=edge))
        authority.reception.disconnect(peer, port)
    authority.peers.inherit("z", EdgeInterest(edge="heir", incarnation=1, filters=("z/#",)), 0)
    arrive(authority, hello("a", edge="new"))
    before = [peer.edge for peer in authority.peers]
    arrive(authority, hello("a", edge="newer"))

    assert (["heir", "new"], ["new", "newer"]) == (before, [peer.edge for peer in authority.peers])


# -- marks


def test_marks_are_forgotten_when_their_stream_is_closed() -> None:
    """Only the edge's own greeting says so (rule 4)."""
    authority, _ = serving("z")
    keys = {
        "in doubt": ("e", 1, "z", 1),
        "closed": ("e", 1, "z", 2),
        "earlier process": ("e", 0, "z", 1),
        "of a zone that came back": ("e", 1, "z/x", 1),
        "of its earlier process": ("e", 0, "z/x", 1),
        "another edge's": ("f", 0, "z", 1),
    }
    authority.marks.update(dict.fromkeys(keys.values(), 5))

    greeting = EdgeGreeting(edge="e", incarnation=1, filters=(), in_doubt=(keys["in doubt"],))
    arrive(authority, greeting)

    left = [name for name, key in keys.items() if key in authority.marks]
    assert ["in doubt", "of a zone that came back", "another edge's"] == left


def test_edge_is_forgotten_with_all_that_is_known_of_it() -> None:
    """Its filters count no more."""
    authority, _ = serving()
    peer, port = arrive(authority, hello("a"))
    authority.peers.forget(peer)
    say(authority, "a", "1")

    assert ([("close",)], 0) == (port.events, len(authority.peers))


def test_lost_zone_ends_in_every_stream() -> None:
    """Another node serves it at a higher epoch: nothing that is retained is kept here."""
    authority, _ = serving("z")
    _, port = arrive(authority, hello("z/#"))
    say(authority, "z/a", "1", retain=True)
    authority.close()

    assert [("deliver", 1, "1"), ("gone", "z", 1)] == port.events
    assert 0 == len(authority.retained)


def test_new_epoch_knows_no_edges() -> None:
    """Positions and claims of the earlier one mean nothing; who is still here says Hello again."""
    authority, _ = serving("z")
    peer, port = arrive(authority, hello("z/#"))
    peer.unclaimed["z/a"] = 7
    authority.close()
    authority.open(2)
    say(authority, "z/a", "1")

    assert [("gone", "z", 1), ("close",)] == port.events
    assert (0, 1) == (len(authority.peers), authority.delivered)
