"""
A whole site in memory, one scenario each; what happens in any order is in test_model.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from tests.support.site import Connection, Node, Site
from txbroker.directory.connected_clients import REMEMBERED
from txbroker.directory.directory_ports import PendingPublishes
from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.requests import (
    Lookup,
    Register,
    Release,
    Supersede,
    Superseded,
    Take,
    Taken,
)
from txbroker.mqtt.wire.packets import Will

WILL = Will(topic="w", payload=b"gone", qos=1, retain=False)
NAMES = ("a", "b", "c", "d")


def site(names: Iterable[str] = NAMES, seed: int = 1, **keys: Any) -> Site:
    """All nodes are started, and know each other."""
    made = Site(names, seed, **keys)
    made.start(len(made.nodes))
    made.run(3.0)
    return made


def connect(site: Site, node: str, client_id: str = "x", **options: Any) -> Connection:
    """A client's connection, accepted or refused."""
    connection = site.nodes[node].connect(client_id, **options)
    site.run_until(lambda: connection.is_answered)
    return connection


def subscribe(site: Site, connection: Connection, piece: str) -> None:
    """Something that the session has to keep."""
    acked: list[bool] = []
    connection.add(piece, lambda: acked.append(True))
    site.run_until(lambda: bool(acked))


def keepers(site: Site, client_id: str = "x") -> tuple[str, ...]:
    return site.nodes["a"].directory.members.keepers(client_id)


def id_kept_by(site: Site, *, but_not: str) -> str:
    """A client id of which that node keeps no entry."""
    names = (f"id{number}" for number in range(1_000))
    return next(name for name in names if but_not not in keepers(site, name))


def test_a_node_that_is_alone_asks_nobody() -> None:
    """And answers in the turn in which it is asked, but for its disk."""
    alone = site(["a"])
    before = alone.now
    connection = connect(alone, "a")
    connection.lost(is_will_due=False)
    again = connect(alone, "a")

    assert [False, True] == [connection.present, again.present]
    assert not alone.calls
    assert alone.now - before < 0.2


def test_a_known_session_is_served_without_a_word() -> None:
    """Whoever can be reached."""
    all_nodes = site()
    subscribe(all_nodes, connect(all_nodes, "a"), "p")
    all_nodes.isolate("a")
    all_nodes.run(5.0)
    all_nodes.calls.clear()
    again = connect(all_nodes, "a")

    assert again.present and again.content == {"p"}
    assert not any(isinstance(call, Lookup | Take) for _, _, call in all_nodes.calls)


def test_a_dead_node_is_named() -> None:
    """The client is refused, and the reason says which node holds its session."""
    all_nodes = site(roaming_wait=1.0)
    client_id = id_kept_by(all_nodes, but_not="d")
    connect(all_nodes, "d", client_id)
    all_nodes.nodes["d"].kill()
    refused = connect(all_nodes, "a", client_id)

    assert refused.refused == "node d, which holds the session, cannot be reached"


def test_who_waits_for_another_search_is_told_so() -> None:
    """Its client is there: the log does not say that it has gone."""
    three = site("abc")
    three.nodes["a"].directory.takeovers.busy["x"] = False

    assert connect(three, "a").refused == "another search for the session is not over"


def test_a_session_that_is_raised_while_it_moves_stays() -> None:
    """Its copy counts below what the keepers have now: it is void, and the taker asks again."""
    three = site("abc")
    connect(three, "a")
    directory = three.nodes["a"].directory
    assert isinstance(directory.handle("b", Take(client_id="x", incarnation=1)), Taken)
    late = DirectoryEntry(client_id="x", node="a", incarnation=5, persistent=True)
    directory.conflicts.supersede(late, has_ended=False)
    directory.check()

    assert not directory.ownership.frozen
    assert connect(three, "b").present
    assert three.holders("x") == ["b"]


def test_one_dead_keeper_is_no_reason_to_refuse() -> None:
    """Two of three are a majority, for a new session, and for one that is known."""
    all_nodes = site()
    client_id = id_kept_by(all_nodes, but_not="a")
    first, *_ = keepers(all_nodes, client_id)
    all_nodes.nodes[first].kill()
    connection = connect(all_nodes, "a", client_id)

    assert connection.present is False
    other = next(name for name in NAMES if name not in (first, "a"))
    assert connect(all_nodes, other, client_id).present


def test_with_two_dead_keepers_nobody_knows() -> None:
    """A new session may be one too many."""
    all_nodes = site(roaming_wait=0.5)
    client_id = id_kept_by(all_nodes, but_not="a")
    for name in keepers(all_nodes, client_id)[:2]:
        all_nodes.nodes[name].kill()
    refused = connect(all_nodes, "a", client_id)

    assert refused.refused is not None and "too few" in refused.refused
    assert connect(all_nodes, "a", client_id, clean=True).present is False


def test_in_a_site_of_two_the_one_that_is_left_begins_sessions() -> None:
    """Its peer is known to be away; of a session that is known there, it knows better."""
    two = Site(["a", "b"], 5, roaming_wait=3.0)
    two.start(2)
    two.run(3.0)
    connect(two, "b", "there")
    two.nodes["b"].kill()

    assert connect(two, "a", "new").present is False
    assert connect(two, "a", "newer").present is False
    refused = connect(two, "a", "there").refused
    assert refused == "node b, which holds the session, cannot be reached"


def test_in_a_site_of_two_a_peer_that_is_slow_once_is_not_away() -> None:
    """A moment's silence is no reason to begin what may be there already."""
    two = Site(["a", "b"], 6, roaming_wait=0.5)
    two.start(2)
    two.run(3.0)
    two.nodes["b"].kill()

    refused = connect(two, "a", "new").refused
    assert refused is not None and "too few" in refused
    two.run(3.0)
    connect(two, "a", "new")
    two.run(3.0)
    assert connect(two, "a", "new").present is False


@pytest.mark.parametrize("seed", range(10))
def test_what_two_that_were_cut_apart_began_is_merged(seed: int) -> None:
    """Each was alone, as far as it could know; nothing of either session is lost."""
    two = Site(["a", "b"], seed, roaming_wait=3.0)
    two.start(2)
    two.run(3.0)
    two.cut("a", "b")
    for node, piece in (("a", "p"), ("b", "q")):
        connection = connect(two, node, "x")
        assert connection.present is False
        connection.add(piece, lambda: None)
        two.run(1.0)
    two.heal()
    two.run(8.0)

    (holder,) = two.holders("x")
    assert {"p", "q"} == two.nodes[holder].host.kept["x"]


def test_a_member_that_was_forgotten_and_comes_back_is_one_again() -> None:
    """What it holds is merged; it does not vouch for what was begun without it."""
    three = Site(["a", "b", "c"], 7, roaming_wait=0.5)
    three.start(3)
    three.run(3.0)
    connect(three, "c", "x").add("p", lambda: None)
    three.run(1.0)
    three.nodes["c"].kill()
    three.nodes["a"].directory.members.remove("c")
    three.run(5.0)
    began = connect(three, "a", "x")
    assert began.present is False
    began.add("q", lambda: None)
    names = [f"id{number}" for number in range(30)]
    for name in names:
        connect(three, "b", name)
    three.nodes["c"].start()
    three.run(8.0)

    assert three.nodes["b"].directory.members.get("c") is not None
    assert three.nodes["c"].directory.members.is_settled
    (holder,) = three.holders("x")
    assert {"p", "q"} == three.nodes[holder].host.kept["x"]
    for name in names:
        assert connect(three, "c", name).present


def test_in_a_site_of_two_who_lacks_a_share_begins_nothing_alone() -> None:
    """A third one was forgotten: what it kept may be at the other node, which is away."""
    three = Site(["a", "b", "c"], 9, roaming_wait=0.5)
    three.start(3)
    three.run(3.0)
    for name in ("b", "c"):
        three.nodes[name].kill()
    three.nodes["a"].directory.members.remove("c")
    three.run(5.0)
    refused = connect(three, "a", "new").refused
    assert refused is not None and "too few" in refused
    three.nodes["b"].start()
    three.run(5.0)

    assert connect(three, "a", "new").present is False


def test_two_of_three_are_lost_and_forgotten() -> None:
    """The one that is left begins sessions again, and a replacement has its share."""
    three = Site(["a", "b", "c", "d"], 8, roaming_wait=0.5)
    three.start(3)
    three.run(3.0)
    for name in ("b", "c"):
        three.nodes[name].kill()
    assert connect(three, "a", "new").refused is not None
    three.nodes["a"].directory.members.remove("b")
    three.nodes["a"].directory.members.remove("c")
    three.run(1.0)
    assert connect(three, "a", "new").present is False
    three.nodes["d"].start()
    three.run(5.0)

    assert connect(three, "d", "other").present is False
    assert connect(three, "d", "new").present


def test_a_node_that_has_not_joined_knows_nothing() -> None:
    """It may be one of many; clean sessions it serves."""
    late = Site(["a", "b"], 1, roaming_wait=0.5)
    late.nodes["b"].start()
    refused = connect(late, "b")

    assert refused.refused is not None
    assert connect(late, "b", clean=True).present is False


@pytest.mark.parametrize("seed", range(20))
def test_two_nodes_begin_the_same_session_once(seed: int) -> None:
    """A new client id connects at two nodes at the same time: one moves to the other, or waits."""
    all_nodes = site(seed=seed)
    both = [all_nodes.nodes[name].connect("x") for name in ("b", "c")]
    all_nodes.run(8.0)

    assert len(all_nodes.holders("x")) == 1
    assert sum(one.is_open for one in both) <= 1
    assert any(one.present is not None for one in both)


@pytest.mark.parametrize("seed", range(30))
def test_a_clean_session_elsewhere_replaces_one_that_was_left(seed: int) -> None:
    """However soon the client moves on, and however often it had connected."""
    all_nodes = site(seed=seed)
    before = connect(all_nodes, "b", clean=True)
    if seed % 2:
        before = connect(all_nodes, "b", clean=True)
    all_nodes.run(seed % 5 * 0.02)
    before.lost(is_will_due=False)
    after = connect(all_nodes, "c", clean=True)
    all_nodes.run(8.0)

    assert after.is_open


@pytest.mark.parametrize("seed", range(30))
def test_a_clean_session_elsewhere_closes_the_one_before(seed: int) -> None:
    """As soon as that one was known; of two at the same time one goes on."""
    all_nodes = site(seed=seed)
    before = connect(all_nodes, "b", clean=True)
    all_nodes.run(seed % 3 * 0.2)
    after = connect(all_nodes, "c", clean=True)
    all_nodes.run(8.0)

    assert before.is_open != after.is_open
    assert after.is_open or not seed % 3


def test_a_clean_session_of_when_a_node_was_alone_is_closed_as_well() -> None:
    """Nobody had to know of it before the site had a second node."""
    growing = Site(["a", "b"], 1)
    growing.start(1)
    before = connect(growing, "a", clean=True)
    ended = connect(growing, "a", "y", clean=True)
    ended.lost(is_will_due=False)
    assert not growing.nodes["a"].directory.replicator.own
    growing.nodes["b"].start()
    growing.run(3.0)
    assert ["x"] == list(growing.nodes["a"].directory.replicator.own)

    after = connect(growing, "b", clean=True)
    growing.run(8.0)

    assert (False, True) == (before.is_open, after.is_open)


def test_a_second_connect_at_one_node_waits_for_the_first() -> None:
    """One search at a time for an id."""
    all_nodes = site()
    subscribe(all_nodes, connect(all_nodes, "a"), "p")
    first = all_nodes.nodes["b"].connect("x")
    second = all_nodes.nodes["b"].connect("x")
    all_nodes.run_until(lambda: second.is_answered)

    assert second.content == {"p"}
    assert not first.is_open


def test_a_client_that_leaves_early_leaves_nothing() -> None:
    """No session that nobody was told of."""
    all_nodes = site()
    connection = all_nodes.nodes["b"].connect("x")
    connection.lost(is_will_due=False)
    all_nodes.run(10.0)

    assert not all_nodes.holders("x")
    assert not any(len(node.directory.replica.entries) for node in all_nodes.nodes.values())


def test_nothing_is_left_when_all_are_gone() -> None:
    """Entries, tombstones, copies and notes to others go with what they are about."""
    all_nodes = site()
    for name in ("a", "b", "c", "a"):
        connect(all_nodes, name)
        all_nodes.run(1.0)
    connect(all_nodes, "d", clean=True).lost(is_will_due=False)
    all_nodes.run(10.0)

    for node in all_nodes.nodes.values():
        assert not len(node.directory.replica.entries)
        assert not any(
            node.store.now[name] for name in ("entries", "held", "gone", "arriving", "wills")
        )


def test_publishes_wait_for_those_of_the_node_before() -> None:
    """Until it has told that all are answered; over a restart of the new one, too."""
    all_nodes = site()
    connect(all_nodes, "a")
    host = all_nodes.nodes["a"].host
    host.open_zones["x"] = PendingPublishes(zones=("home",))
    connect(all_nodes, "b")
    new = all_nodes.nodes["b"]
    assert new.host.awaited["x"]["a"].zones == ("home",)
    new.kill()
    new.start()
    all_nodes.run(2.0)
    assert new.host.awaited["x"]["a"].zones == ("home",)
    del host.open_zones["x"]
    all_nodes.run(2.0)

    assert new.host.awaited["x"]["a"].zones == ()
    assert not list(new.directory.ownership.earlier_holders())


def test_a_node_that_had_the_session_twice_is_asked_about_both_times() -> None:
    """The first time had left nothing; asked about that alone, it would be needed for ever."""
    all_nodes = site()
    for name in ("a", "b", "a"):
        connect(all_nodes, name)
    host = all_nodes.nodes["a"].host
    host.open_zones["x"] = PendingPublishes(zones=("home",))
    connect(all_nodes, "b")
    del host.open_zones["x"]
    holders = all_nodes.nodes["b"].directory.ownership.earlier_holders
    before = [left.node for _, left in holders()]
    all_nodes.run(5.0)

    assert ["a", "b", "a"] == before
    assert not list(holders())


@pytest.mark.parametrize("seed", range(10))
def test_a_fresh_session_takes_in_the_old_one(seed: int) -> None:
    """Whichever counts above the other, nothing of either is lost."""
    all_nodes = site(seed=seed, is_fresh=True, roaming_wait=0.3)
    subscribe(all_nodes, connect(all_nodes, "a"), "old")
    all_nodes.isolate("a")
    all_nodes.run(2.0)
    at_a = connect(all_nodes, "a")
    subscribe(all_nodes, at_a, "cut off")
    fresh = connect(all_nodes, "b")
    assert fresh.present is False
    subscribe(all_nodes, fresh, "fresh")
    all_nodes.heal()
    all_nodes.run(10.0)
    (holder,) = all_nodes.holders("x")

    assert {"old", "cut off", "fresh"} == all_nodes.nodes[holder].host.kept["x"]


SITES = {"a": "s", "b": "s", "c": "t", "d": "t"}


def test_an_unknown_id_is_looked_up_at_other_sites() -> None:
    """And moves here."""
    two = site(sites=SITES)
    subscribe(two, connect(two, "a"), "p")
    moved = connect(two, "c")

    assert moved.present and moved.content == {"p"}
    assert ["c"] == two.holders("x")


def test_another_site_that_is_away_is_no_reason_to_refuse() -> None:
    """A new session, and what the other site has is merged when it is back."""
    two = site(sites=SITES)
    subscribe(two, connect(two, "a"), "p")
    for here in "ab":
        for there in "cd":
            two.cut(here, there)
    new = connect(two, "d")
    assert new.present is False
    subscribe(two, new, "q")
    two.heal()
    two.run(8.0)
    (holder,) = two.holders("x")

    assert {"p", "q"} == two.nodes[holder].host.kept["x"]


def test_a_new_member_takes_its_share() -> None:
    """It knows what a dead node holds, from those that keep its entries."""
    growing = Site(["a", "b", "c", "d", "e"], 3, roaming_wait=0.5)
    growing.start(4)
    growing.run(3.0)
    late = growing.nodes["e"]
    names = [f"id{number}" for number in range(30)]
    for name in names:
        connect(growing, "d", name)
    growing.nodes["d"].kill()
    late.start()
    growing.run(5.0)

    assert late.directory.members.is_settled
    for name in names:
        assert connect(growing, "e", name).refused is not None


def test_a_removed_member_takes_its_sessions_along() -> None:
    """By command: nobody waits for them any more, and others keep what it kept."""
    all_nodes = site(roaming_wait=0.5)
    connect(all_nodes, "d", "lost")
    names = [f"id{number}" for number in range(30)]
    for name in names:
        connect(all_nodes, "b", name)
    all_nodes.nodes["d"].kill()
    assert connect(all_nodes, "a", "lost").refused is not None
    all_nodes.nodes["a"].directory.members.remove("d")
    all_nodes.run(5.0)

    assert connect(all_nodes, "a", "lost").present is False
    for name in names:
        assert connect(all_nodes, "c", name).present


def test_strangers_get_no_answer() -> None:
    """Only members of the tree ask."""
    all_nodes = site()
    connect(all_nodes, "a")
    node = all_nodes.nodes["a"].directory

    assert node.handle("stranger", Take(client_id="x", incarnation=1)) is None
    assert node.handle("stranger", Release(client_id="x", token=b"")) is None
    assert "x" in node.ownership.held


def test_what_is_not_durable_does_not_leave() -> None:
    """Neither as an answer nor as a question: a crash takes back what nobody has heard."""
    all_nodes = site()
    connect(all_nodes, "a")
    asked = len(all_nodes.calls)
    all_nodes.nodes["a"].directory.connected.ended("x")
    all_nodes.nodes["a"].beat()
    told = [c for _, _, c in all_nodes.calls[asked:] if isinstance(c, Register) and c.ended]
    assert not told
    all_nodes.run(1.0)
    told = [c for _, _, c in all_nodes.calls[asked:] if isinstance(c, Register) and c.ended]
    assert told


# -- wills


@pytest.mark.parametrize("after", [3.0, 10.0, 40.0])
@pytest.mark.parametrize("lived", [1.0, 2.4, 4.7])
def test_the_will_of_a_dead_node_is_published_once(after: float, lived: float) -> None:
    """
    After `will_after`, by the first keeper that is left; not again when the node is back. Not much
    earlier, however long ago the keepers had heard of the node when it died, nor much later.
    """
    all_nodes = site(will_after=after)
    connect(all_nodes, "b", will=WILL)
    connect(all_nodes, "b", "clean", clean=True, will=WILL)
    all_nodes.run(lived)
    all_nodes.nodes["b"].kill()
    all_nodes.run(after - 1.0)
    assert not all_nodes.wills
    all_nodes.run(8.5)
    assert [("clean", "b", 1, 2), ("x", "b", 1, 1)] == sorted(all_nodes.wills)
    all_nodes.nodes["b"].start()
    all_nodes.run(after + 7.0)

    assert len(all_nodes.wills) == 2


def test_the_will_of_a_node_that_is_forgotten_is_published_at_once() -> None:
    """By one keeper, though nobody watches the node any more; not of who went on elsewhere."""
    all_nodes = site(will_after=40.0)
    names = [f"id{number}" for number in range(20)]
    for name in names:
        connect(all_nodes, "b", name, will=WILL)
    all_nodes.run(1.0)
    all_nodes.nodes["b"].kill()
    connect(all_nodes, "c", names[0], clean=True)
    all_nodes.run(4.0)
    all_nodes.nodes["a"].directory.members.remove("b")
    all_nodes.run(5.0)

    assert sorted(names[1:]) == sorted(client_id for client_id, *_ in all_nodes.wills)
    all_nodes.run(60.0)
    assert len(names) - 1 == len(all_nodes.wills)


def test_the_next_keeper_publishes_it_when_the_first_is_dead_too() -> None:
    """Once."""
    all_nodes = site(will_after=3.0)
    client_id = id_kept_by(all_nodes, but_not="b")
    connect(all_nodes, "b", client_id, will=WILL)
    all_nodes.run(1.0)
    all_nodes.nodes["b"].kill()
    all_nodes.nodes[keepers(all_nodes, client_id)[0]].kill()
    all_nodes.run(15.0)

    assert len(all_nodes.wills) == 1


def test_a_keeper_that_has_just_started_waits_whatever_it_is_told() -> None:
    """Others have missed the dead node for long; those who want the will are not back yet."""
    all_nodes = site(will_after=3.0)
    client_id = id_kept_by(all_nodes, but_not="d")
    connect(all_nodes, "b", client_id, will=WILL)
    all_nodes.run(1.0)
    for name in ("a", "b", "c"):
        all_nodes.nodes[name].kill()
    all_nodes.run(20.0)
    all_nodes.nodes["a"].start()
    all_nodes.run(2.5)
    assert not all_nodes.wills

    all_nodes.run(10.0)

    assert 1 == len(all_nodes.wills)


def test_no_will_of_a_client_that_came_back() -> None:
    """Elsewhere, or at the node that was started again."""
    all_nodes = site(will_after=3.0, roaming_wait=0.3, is_fresh=True)
    for client_id in ("x", "y", "z"):
        connect(all_nodes, "b", client_id, clean=client_id == "z", will=WILL)
    all_nodes.run(1.0)
    all_nodes.nodes["b"].kill()
    connect(all_nodes, "c", "x")
    connect(all_nodes, "d", "z", clean=True)
    all_nodes.run(1.0)
    all_nodes.nodes["b"].start()
    connect(all_nodes, "b", "y")
    all_nodes.run(15.0)

    assert not all_nodes.wills


def test_a_node_that_is_back_publishes_what_nobody_did() -> None:
    """A tree of one node has no keeper but itself."""
    alone = site(["a"], will_after=3.0)
    connect(alone, "a", will=WILL)
    alone.run(1.0)
    alone.nodes["a"].kill()
    alone.nodes["a"].start()
    alone.run(2.0)
    assert not alone.wills
    alone.run(3.0)

    assert [("x", "a", 1, 1)] == alone.wills


def test_the_will_of_when_a_node_was_alone_is_published_by_the_second_one() -> None:
    """Nobody had to know of it before; then it is a keeper's business, too."""
    growing = Site(["a", "b"], 1, will_after=3.0)
    growing.start(1)
    connect(growing, "a", clean=True, will=WILL)
    connect(growing, "a", "y", clean=True, will=WILL).lost(is_will_due=False)
    assert not growing.nodes["a"].directory.replicator.own
    growing.nodes["b"].start()
    growing.run(3.0)
    growing.nodes["a"].kill()
    growing.run(8.0)

    assert [("x", "a", 1, 1)] == growing.wills


def test_a_clean_session_of_a_node_that_is_alone_and_back_has_its_will_published() -> None:
    """Once, by the node itself."""
    alone = site(["a"], will_after=3.0)
    connect(alone, "a", clean=True, will=WILL)
    alone.run(1.0)
    alone.nodes["a"].kill()
    alone.nodes["a"].start()
    alone.run(8.0)

    assert [("x", "a", 1, 1)] == alone.wills


def test_no_will_after_a_disconnect() -> None:
    """Neither here nor by a keeper."""
    all_nodes = site(will_after=3.0)
    connect(all_nodes, "b", will=WILL).lost(is_will_due=False)
    all_nodes.run(1.0)
    all_nodes.nodes["b"].kill()
    all_nodes.run(10.0)

    assert not all_nodes.wills


def test_a_node_that_was_cut_off_is_told_what_was_published() -> None:
    """It does not publish that will again when the connection is lost."""
    all_nodes = site(will_after=3.0)
    connection = connect(all_nodes, "b", will=WILL)
    all_nodes.run(1.0)
    all_nodes.isolate("b")
    all_nodes.run(8.0)
    assert len(all_nodes.wills) == 1
    all_nodes.heal()
    all_nodes.run(3.0)
    assert ["x"] == all_nodes.nodes["b"].host.forgotten
    connection.lost(is_will_due=True)

    assert len(all_nodes.wills) == 1


@pytest.mark.parametrize("gap", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("piece", ["p", None], ids=["subscribed", "bare"])
def test_a_session_that_moved_and_was_discarded_leaves_nothing(
    gap: float, piece: str | None
) -> None:
    """The node that has ended it told nobody; those that had it before find out."""
    whole = site()
    for number in range(10):
        client_id = f"x{number}"
        first = connect(whole, "a", client_id)
        if piece is not None:
            subscribe(whole, first, piece)
        first.lost(is_will_due=False)
        connect(whole, "b", client_id).lost(is_will_due=False)
        whole.run(gap)
        connect(whole, "c", client_id, clean=True).lost(is_will_due=False)
    whole.run(90.0)

    assert {} == {name: left for name, node in whole.nodes.items() if (left := tables(node))}


@pytest.mark.parametrize("seed", range(4))
def test_clients_that_come_and_go_leave_nothing(seed: int) -> None:
    """Clean or kept, with wills or without, anywhere, with gaps or none, discarded in the end."""
    whole, random = site(("a", "b", "c"), seed), Random(seed)
    for number in range(60):
        for clean in random.choice(([True], [False, True], [False, False, False, True])):
            will = {"will": WILL} if clean and random.random() < 0.5 else {}
            here = connect(whole, random.choice("abc"), f"x{number}", clean=clean, **will)
            whole.run(random.choice((0.0, 0.02, 0.1)))
            here.lost(is_will_due=random.random() < 0.5)
            whole.run(random.choice((0.0, 0.0, 0.02, 0.1, 0.3)))
    whole.run(120.0)

    assert {} == {name: left for name, node in whole.nodes.items() if (left := tables(node))}


def house_that_discarded() -> Site:
    """Two nodes: b discarded what a holds while a was away; both are dead by now."""
    house = site(("a", "b"))
    connect(house, "a").lost(is_will_due=False)
    house.nodes["a"].kill()
    house.run(10.0)
    connect(house, "b", clean=True).lost(is_will_due=False)
    house.run(1.0)
    house.nodes["b"].kill()
    return house


def test_what_was_discarded_in_a_house_of_two_ends_when_the_other_is_back() -> None:
    """The one that discarded has started again, too."""
    house = house_that_discarded()
    house.nodes["b"].start()
    house.nodes["a"].start()
    house.run(60.0)

    assert [] == house.holders("x")


def test_what_was_used_since_it_was_discarded_elsewhere_stays() -> None:
    """Its client came back to it while the one that discarded was away."""
    house = house_that_discarded()
    house.nodes["a"].start()
    house.run(10.0)
    connect(house, "a").lost(is_will_due=False)
    house.run(1.0)
    house.nodes["b"].start()
    house.run(60.0)

    assert ["a"] == house.holders("x")


def test_a_void_copy_that_is_let_go_is_denied() -> None:
    """While it may still be opened, nothing is said of it; nobody would say so later."""
    whole = site()
    keeper = next(whole.nodes[name] for name in keepers(whole) if name not in ("b", "c"))
    copy = Taken(incarnation=2, token=b"token", state=b"[]")
    whole.cut("b", "c")
    whole.nodes["b"].directory.ownership.store_copy("x", "c", copy)
    entry = DirectoryEntry(client_id="x", node="b", incarnation=2, persistent=True)
    keeper.directory.replica.entries.store(entry, is_hearsay=True)
    whole.run(5.0)
    before = keeper.directory.replica.entries.get("x")
    whole.heal()
    whole.run(5.0)

    assert (entry, None) == (before, keeper.directory.replica.entries.get("x"))


def test_what_is_looked_for_is_neither_there_nor_denied() -> None:
    """Whoever asks about it asks again, when it has been found or not."""
    directory = site().nodes["b"].directory
    entry = DirectoryEntry(client_id="x", node="b", incarnation=2, persistent=True)
    directory.takeovers.busy["x"] = False
    before = directory.handle("c", Supersede(entries=(entry,)))
    directory.takeovers.busy.clear()
    after = directory.handle("c", Supersede(entries=(entry,)))

    assert Superseded(client_ids=()) == before
    assert Superseded(client_ids=("x",), denied=("x",)) == after


def test_who_keeps_an_entry_no_more_is_answered_as_well() -> None:
    """Others have told it; to the node that it names it is no keeper of the id."""
    whole = site()
    other = next(node for name, node in whole.nodes.items() if name not in keepers(whole))
    entry = DirectoryEntry(client_id="x", node=keepers(whole)[0], incarnation=2, persistent=True)
    other.directory.replica.entries.store(entry, is_hearsay=True)
    whole.run(5.0)

    assert other.directory.replica.entries.get("x") is None


def test_a_clean_session_of_a_node_that_never_joined_ends_the_kept_one_later() -> None:
    """The node is alone as far as it knows, and its client does not wait."""
    late = Site(["a", "b", "c", "d"], 5, roaming_wait=3.0)
    late.start(3)
    late.run(3.0)
    connect(late, "b").lost(is_will_due=False)
    late.run(1.0)
    late.isolate("d")
    late.nodes["d"].start()
    since = late.now
    assert connect(late, "d", clean=True).present is False
    took = late.now - since
    late.heal()
    late.run(10.0)

    assert took < 1.0
    assert [] == late.holders("x")


def test_a_tombstone_goes_with_the_node_that_it_names() -> None:
    """Which is no member any more, and will not ask; whoever else can be asked."""
    whole = site()
    connect(whole, "a").lost(is_will_due=False)
    ownership = whole.nodes["a"].directory.ownership
    whole.nodes["b"].directory.tick = lambda: None  # type: ignore[method-assign]
    connect(whole, "b").lost(is_will_due=False)
    whole.nodes["b"].kill()
    whole.run(30.0)
    assert ("x",) == ownership.tombstone_ids

    whole.isolate("a")
    whole.nodes["a"].directory.members.remove("b")
    whole.run(60.0)

    assert () == ownership.tombstone_ids


def test_a_tombstone_goes_when_sessions_of_then_are_over() -> None:
    """The node that it names has been away for longer, and may be a member still."""
    whole = site(session_age=100.0)
    ownership = whole.nodes["a"].directory.ownership
    connect(whole, "a").lost(is_will_due=False)
    whole.nodes["b"].directory.tick = lambda: None  # type: ignore[method-assign]
    connect(whole, "b").lost(is_will_due=False)
    whole.nodes["b"].kill()
    whole.run(90.0)
    before = ownership.tombstone_ids
    whole.run(40.0)

    assert (("x",), ()) == (before, ownership.tombstone_ids)


def test_a_copy_whose_holder_is_forgotten_is_opened() -> None:
    """Nobody is left to say whether it was released, and nobody else has the session."""
    whole = site(roaming_wait=0.5)
    subscribe(whole, connect(whole, "c"), "p")
    taker = whole.nodes["b"]
    taker.connect("x")
    whole.run_until(lambda: "x" in taker.directory.ownership.arriving)
    whole.nodes["c"].kill()
    whole.run(5.0)
    assert connect(whole, "b").refused is not None
    whole.nodes["a"].directory.members.remove("c")
    whole.run(1.0)

    assert connect(whole, "b").present
    assert {"p"} == taker.host.kept["x"]
    assert ["b"] == whole.holders("x")


def test_a_session_that_went_to_a_forgotten_node_begins_anew_at_once() -> None:
    """Where it came from, the tombstone leads nowhere."""
    whole = site(roaming_wait=0.5)
    connect(whole, "a").lost(is_will_due=False)
    connect(whole, "b").lost(is_will_due=False)
    whole.nodes["b"].kill()
    assert connect(whole, "a").refused is not None
    whole.nodes["a"].directory.members.remove("b")
    whole.run(1.0)

    assert connect(whole, "a").present is False


def test_what_a_forgotten_node_had_is_discarded_at_once() -> None:
    """Nothing is asked of it; others are asked for a copy, and nothing is remembered after that."""
    whole = site()
    connect(whole, "a").lost(is_will_due=False)
    connect(whole, "b").lost(is_will_due=False)
    whole.nodes["b"].kill()
    whole.nodes["a"].directory.members.remove("b")
    whole.run(1.0)
    since = whole.now
    assert connect(whole, "a", clean=True).present is False

    assert whole.now - since < 1.0
    whole.run(5.0)
    assert [] == whole.holders("x")
    whole.run(30.0)
    assert 0 == len(whole.nodes["a"].directory.clearings)


def tables(node: Node) -> dict[str, int]:
    """Those of a node's directory that are not empty."""
    directory = node.directory
    sizes = {
        "entries": len(directory.replica.entries),
        "own": len(directory.replicator.own),
        "moved": len(directory.replicator.gone),
        "tombstones": len(directory.ownership.tombstone_ids),
        "arriving": len(directory.ownership.arriving),
        "discards": len(directory.clearings),
        "wills": directory.own_wills.count,
    }
    return {name: size for name, size in sizes.items() if size}


def test_when_a_client_connected_is_known_for_a_while() -> None:
    """Names come from outside: of one that came once nothing is left."""
    site = Site("ab", 1)
    site.start(2)
    site.run(3.0)
    connect(site, "a", clean=True).lost(is_will_due=False)
    connected = site.nodes["a"].directory.connected
    before = connected.remembered
    site.run(REMEMBERED + 5.0)

    assert (True, 0) == (before > 0, connected.remembered)
