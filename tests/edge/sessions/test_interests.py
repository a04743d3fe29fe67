"""Which zones are asked for what, and what becomes of it when the tree changes."""

from __future__ import annotations

import pytest

from tests.support.edge_bench import Client, EdgeBench, forget_cuts
from tests.support.recorders import cut


def test_filter_travels_from_none_to_one_and_back() -> None:
    """However many clients have it, the owner has it once; each SUBSCRIBE asks for retained."""
    bench = EdgeBench()
    bench.online("")
    one, two = Client(bench, "one"), Client(bench, "two")
    one.subscribe("x")
    two.subscribe("x")
    one.unsubscribe("x")
    before = bench.take()
    two.unsubscribe("x")

    assert [("", "add", "x", 1), ("", "add", "x", 2)] == before
    assert [("", "remove", "x")] == bench.take()


def test_every_zone_that_the_filter_touches_is_asked() -> None:
    """And no other."""
    bench = EdgeBench("a", "b")
    for apex in ("", "a", "b"):
        bench.online(apex, *(("a", "b") if not apex else ()))
    client = Client(bench, "c")
    client.subscribe("a/+", "#")

    assert [
        ("", "add", "#", 1),
        ("a", "add", "#", 2),
        ("b", "add", "#", 3),
        ("a", "add", "a/+", 4),
    ] == bench.take()


def test_zone_that_is_not_connected_is_brought_on() -> None:
    """Asked for its cuts where they are not known, connected where they are."""
    bench = EdgeBench("a")
    forget_cuts(bench.route(""))
    bench.edge.interests.refresh()
    client = Client(bench, "c")
    client.subscribe("a/x", "x")

    assert [("connect", "a"), ("resolve", "")] == bench.take()
    assert {"a": 1, "": 1} == bench.edge.interests.pending_by_zone()


def test_walk_asks_zone_after_zone() -> None:
    """An answer of the resolver moves the want to the zones below."""
    bench = EdgeBench()
    forget_cuts(bench.route(""))
    client = Client(bench, "c")
    client.subscribe("a/b/x")
    bench.edge.on_resolved(bench.route(""), cut(""), [cut("a")], 30)
    bench.edge.on_resolved(bench.route("a"), cut("a"), [cut("a/b")], 30)
    bench.edge.on_resolved(bench.route("a/b"), cut("a/b"), [], 30)
    walk = bench.take()
    bench.online("a/b")

    # A question that is on its way already may be put again; the connector asks it once.
    assert [("resolve", ""), ("resolve", "a"), ("resolve", "a/b")] == list(
        dict.fromkeys(event for event in walk if event[0] == "resolve")
    )
    assert [("connect", "a/b")] == [event for event in walk if event[0] == "connect"][-1:]
    assert set() == bench.route("a").interest.filters
    assert ["a/b"] == [event[0] for event in bench.take() if "add" in event]
    bench.answer("a/b", "a/b/x", "a/b/x=1")
    assert ["Suback", "r:1"] == client.got()


def test_open_questions_are_asked_again_on_a_new_link() -> None:
    """Answers of the old link count no more."""
    bench = EdgeBench()
    bench.online("")
    client = Client(bench, "c")
    client.subscribe("x")
    bench.lose("")
    bench.take()
    bench.online("")
    asked = bench.take()
    bench.edge.interests.on_answer(bench.route(""), 1, 0, [])
    before = client.got()
    bench.answer("", "x")

    assert [("", "add", "x", 2)] == asked
    assert ([], ["Suback"]) == (before, client.got())


def test_change_of_the_map_that_a_new_link_finds_holds_up_no_suback() -> None:
    """The link has taken the change in before the requests that it concerns are looked at."""
    bench = EdgeBench()
    client = Client(bench, "c")
    client.subscribe("x")
    bench.edge.zones.changes.mark_changed("")
    bench.online("")
    bench.answer("", "x")

    assert ["Suback"] == client.got()


def test_answered_zone_is_not_asked_again_on_a_new_link() -> None:
    """The greeting carried the filter; retained messages come once a SUBSCRIBE."""
    bench = EdgeBench("a")
    bench.online("", "a")
    bench.online("a")
    client = Client(bench, "c")
    client.subscribe("#")
    bench.answer("a", "#", "a/x=1")
    bench.lose("a")
    bench.take()
    bench.online("a")
    bench.answer("", "#")

    assert [] == [event for event in bench.take() if "add" in event]
    assert ["Suback", "r:1"] == client.got()


# -- the tree changes


def test_interest_moves_below_a_new_cut() -> None:
    """The child inherited it: the edge claims what it kept, and asks for nothing again."""
    bench = EdgeBench()
    bench.online("")
    client = Client(bench, "c")
    client.subscribe("a/x", "#")
    for topic_filter in ("a/x", "#"):
        bench.answer("", topic_filter)
    client.got()
    bench.take()

    bench.edge.cuts.on_cut(bench.route(""), cut("a"))

    assert ({"#"}, {"#", "a/x"}) == (
        bench.route("").interest.filters,
        bench.route("a").interest.filters,
    )
    assert {"a"} == bench.route("a").claims.apexes
    assert ("", "sync", ["#"], []) in bench.take()
    bench.online("a")
    assert ("a", "sync", ["#", "a/x"], ["a"]) in bench.take()
    bench.deliver("a", "a/x", "live")
    assert ["live"] == client.got()


def test_cut_while_a_subscribe_is_open_asks_the_child_too() -> None:
    """What the parent has not answered, the child has to."""
    bench = EdgeBench()
    bench.online("")
    client = Client(bench, "c")
    client.subscribe("+/x")
    bench.edge.cuts.on_cut(bench.route(""), cut("a"))
    bench.know("a")
    bench.online("a")
    bench.answer("", "+/x", "b/x=root")
    before = client.got()
    bench.deliver("a", "a/x", "not yet")
    bench.answer("a", "+/x", "a/x=child")

    assert ([], ["Suback", "r:root", "r:child"]) == (before, client.got())


def test_cut_after_the_answer_does_not_ask_the_child_again() -> None:
    """What the parent answered holds: its retained messages had the child's, too."""
    bench = EdgeBench("b")
    bench.online("", "b")
    client = Client(bench, "c")
    client.subscribe("+/x")
    bench.answer("", "+/x", "a/x=retained")
    bench.edge.cuts.on_cut(bench.route(""), cut("a"))
    bench.know("a")
    bench.online("a")
    bench.deliver("a", "a/x", "live")
    bench.online("b")
    bench.answer("b", "+/x")

    assert ["Suback", "r:retained", "live"] == client.got()


def test_cut_that_takes_the_whole_filter_ends_the_wait_for_the_parent() -> None:
    """Only the child can answer now."""
    bench = EdgeBench()
    bench.online("")
    client = Client(bench, "c")
    client.subscribe("a/x")
    bench.edge.cuts.on_cut(bench.route(""), cut("a"))
    bench.know("a")
    bench.online("a")
    bench.answer("a", "a/x", "a/x=child")

    assert ["Suback", "r:child"] == client.got()


def test_interest_goes_back_with_the_zone() -> None:
    """The parent inherited it: claimed there, answered ones are not asked again."""
    bench = EdgeBench("a")
    bench.online("", "a")
    bench.online("a")
    client = Client(bench, "c")
    client.subscribe("a/x")
    bench.answer("a", "a/x")
    client.got()
    bench.take()

    bench.edge.cuts.on_zone_end(bench.route("a"), is_whole=True)

    assert [("disconnect", "a"), ("", "sync", ["a/x"], ["a"])] == bench.take()
    bench.deliver("", "a/x", "live")
    assert ["live"] == client.got()


def test_zone_that_goes_while_a_subscribe_is_open_is_asked_at_the_parent() -> None:
    """The wait goes over to the zone that serves the topic now."""
    bench = EdgeBench("a")
    bench.online("", "a")
    bench.online("a")
    client = Client(bench, "c")
    client.subscribe("a/x")
    bench.edge.cuts.on_zone_end(bench.route("a"), is_whole=True)
    before = client.got()
    bench.answer("", "a/x", "a/x=parent")

    assert ([], ["Suback", "r:parent"]) == (before, client.got())


def test_end_of_a_cut_waits_for_the_childs_last_words() -> None:
    """While the child's link is up, its own stream says when its last delivery has come."""
    bench = EdgeBench("a")
    bench.online("", "a")
    bench.online("a")
    client = Client(bench, "c")
    client.subscribe("a/x")
    bench.answer("a", "a/x")
    bench.edge.cuts.on_cut_ended(bench.route(""), "a", 1)
    still = bench.edge.zones.get("a") is not None
    bench.deliver("a", "a/x", "last")
    bench.lose("a")

    assert still
    assert bench.edge.zones.get("a") is None
    assert ["Suback", "last"] == client.got()
    assert {"a/x"} == bench.route("").interest.filters


def test_end_of_an_older_epoch_changes_nothing() -> None:
    """The zone was granted anew since."""
    bench = EdgeBench("a")
    bench.online("", "a")
    bench.edge.zones.add(cut("a", 5))
    bench.edge.cuts.on_cut_ended(bench.route(""), "a", 4)

    assert bench.route("a").epoch == 5


def test_zone_that_was_granted_again_meanwhile_is_not_forgotten() -> None:
    """The parent's stream may be ahead of the child's: its newer cut outlives the older end."""
    bench = EdgeBench("a")
    bench.online("", "a")
    bench.online("a", epoch=1)
    client = Client(bench, "c")
    client.subscribe("a/x")
    bench.answer("a", "a/x")
    bench.edge.cuts.on_cut_ended(bench.route(""), "a", 1)
    bench.edge.cuts.on_cut(bench.route(""), cut("a", 3))
    client.publish("a/x", "in flight")
    bench.take()
    old = bench.route("a")
    bench.edge.cuts.on_zone_end(old, is_whole=True)
    new = bench.route("a")

    assert (True, 3, {"a/x"}, {"a"}) == (
        new is not old,
        new.epoch,
        new.interest.filters,
        new.claims.apexes,
    )
    assert set() == bench.route("").interest.filters
    assert [b"in flight"] == [p.message.payload for p in new.queue.waiting]
    assert ("resolve", "a") in bench.take()


def test_interest_stays_where_it_is_while_the_zone_above_is_not_known() -> None:
    """A zone that works is not left because its parent is being asked."""
    bench = EdgeBench("a", "a/b")
    bench.know("", "a")
    bench.know("a", "a/b")
    bench.online("a/b")
    client = Client(bench, "c")
    client.subscribe("#")
    bench.take()
    forget_cuts(bench.route("a"))
    bench.edge.interests.refresh()

    assert "#" in bench.route("a/b").interest.filters
    assert ("a/b", "sync", [], []) not in bench.take()


def test_filter_that_nobody_wants_any_more_leaves_with_the_next_change() -> None:
    """A want for a zone without a link is only noted."""
    bench = EdgeBench("a")
    client = Client(bench, "c")
    client.subscribe("a/x")
    client.unsubscribe("a/x")

    assert (set(), {}) == (
        bench.route("a").interest.filters,
        bench.edge.interests.pending_by_zone(),
    )


def test_interest_below_a_zone_that_goes_stands() -> None:
    """Also in the moment in which its parent has not been heard of its cuts yet."""
    bench = EdgeBench("a", "a/b")
    bench.know("", "a")
    bench.know("a", "a/b")
    for apex, below in (("", ("a",)), ("a", ("a/b",)), ("a/b", ())):
        bench.online(apex, *below)
    client = Client(bench, "c")
    client.subscribe("#")
    for apex in ("", "a", "a/b"):
        bench.answer(apex, "#")
    client.got()
    bench.take()

    bench.edge.cuts.on_zone_end(bench.route("a"), is_whole=True)

    assert [("disconnect", "a"), ("", "sync", ["#"], ["a"])] == bench.take()
    assert {"a/b"} == set(bench.route("").cuts or {})
    bench.deliver("a/b", "a/b/x", "live")
    assert ["live"] == client.got()


def test_zone_that_its_parent_knows_no_more_is_forgotten() -> None:
    """It was reclaimed, and its node is dead: nobody else would say that it ended."""
    bench = EdgeBench("a", "a/b", "c")
    bench.know("", "a", "c")
    bench.know("a", "a/b")
    client = Client(bench, "c")
    client.publish("a/x", "1")
    client.publish("a/b/x", "2")
    client.publish("c/x", "3")
    bench.take()

    bench.edge.on_resolved(bench.route(""), cut(""), [cut("a/b", 2), cut("c")], 30)

    known = {route.apex: route.epoch for route in bench.edge.zones}
    assert known == {"": 1, "a/b": 2, "c": 1}
    waiting = {route.apex: len(route.queue.waiting) for route in bench.edge.zones}
    assert waiting == {"": 1, "a/b": 1, "c": 1}


def test_zone_whose_owner_is_here_is_not_forgotten() -> None:
    """Its own stream says when it ends, after its last deliveries."""
    bench = EdgeBench("a")
    bench.online("a")

    bench.edge.on_resolved(bench.route(""), cut(""), [], 30)

    assert bench.edge.zones.get("a") is not None


@pytest.mark.parametrize("is_stream", [False, True])
def test_interest_stays_where_streams_flow_though_the_owner_above_forgot_the_zone(
    is_stream: bool,
) -> None:
    """A root with an empty disk knows none of its children before they are back."""
    bench = EdgeBench()
    bench.online("", "a", "b")
    bench.online("a", "a/x")
    bench.online("a/x")
    client = Client(bench, "c")
    client.subscribe("a/#")
    for apex in ("a", "a/x"):
        bench.answer(apex, "a/#")
    bench.lose("")
    if is_stream:
        bench.online("", epoch=2)
    else:
        bench.edge.on_resolved(bench.route(""), cut(""), [], 30)
    bench.settle()
    late = Client(bench, "late")
    late.subscribe("a/x/+")
    for apex in ("a", "a/x"):
        assert {"a/#"} <= bench.route(apex).interest.filters
    assert {"a/x/+"} <= bench.route("a/x").interest.filters
    assert bench.edge.zones.get("b") is None
    bench.deliver("a/x", "a/x/t", "news")

    assert "news" in client.got()


def test_cut_that_encloses_others_takes_their_place() -> None:
    """Also of zones whose streams flow: the cuts of a zone never lie within one another."""
    bench = EdgeBench()
    bench.online("", "a/x", "c/d")
    bench.online("a/x")
    bench.online("c/d")

    bench.edge.cuts.replace_cuts(bench.route(""), [cut("a"), cut("c/d/e")])

    assert {"a", "c/d/e"} == set(bench.route("").cuts or {})
