"""What a whole site in memory discards, and what is left of it; one scenario each."""

from __future__ import annotations

from random import Random

import pytest

from tests.directory.scenarios import WILL, connect, keepers, site, subscribe, tables
from tests.support.site import Site
from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.requests import Supersede, Superseded, Taken


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
    """Which is no member any more, and will not ask; nor does any node that it may have told."""
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
    before = ownership.tombstone_ids
    whole.heal()
    whole.run(60.0)

    assert (("x",), ()) == (before, ownership.tombstone_ids)


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
