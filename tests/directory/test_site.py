"""Sessions in a whole site in memory, one scenario each; any order of events is in `test_model`."""

from __future__ import annotations

import pytest

from tests.directory.scenarios import NAMES, connect, id_kept_by, keepers, site, subscribe
from tests.support.site import Site
from txbroker.directory.connected_clients import REMEMBERED
from txbroker.directory.directory_ports import PendingPublishes
from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.requests import Lookup, Register, Release, Take, Taken


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
