"""What a node answers to those who ask for a zone, and what it remembers of epochs."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.recorders import cut
from txbroker.delegation.cut import Cut
from txbroker.delegation.table import (
    Applicant,
    Decision,
    Delegation,
    DelegationTable,
    Elsewhere,
    Refused,
    Renewed,
    TableState,
    Transfer,
)

ROOT = cut("", node="home")


def applicant(zone: str, *, last_epoch: int = 0, node: str | None = None) -> Applicant:
    known = cut(zone, node=node)
    return Applicant(node=known.node, zone=zone, grpc=known.grpc, last_epoch=last_epoch)


def table_of(*cuts: Cut, apex: str | None = "") -> DelegationTable:
    table = DelegationTable(apex)
    for known in cuts:
        table.commit(known)
    return table


def decide(table: DelegationTable, asks: Applicant, *lineage: Cut, me: str = "home") -> Decision:
    return table.decide(asks, lineage, me)


# -- the decisions


def test_free_zone_is_transferred_at_its_first_epoch() -> None:
    """Nobody held the zone yet: epoch 1."""
    table = table_of()

    assert Transfer(cut=cut("garage"), moved=()) == decide(table, applicant("garage"))
    assert table.cuts() == ()  # a decision changes nothing


def test_delegations_below_an_apex_move_along_with_it() -> None:
    """The cuts that the new zone encloses leave with it, and only those."""
    table = table_of(cut("house/garage", 3), cut("house/kitchen"), cut("houseboat"))
    table.tell_below("house/garage", [cut("house/garage/door")])

    decision = decide(table, applicant("house"))

    assert isinstance(decision, Transfer)
    assert decision.cut == cut("house")
    assert decision.moved == (
        Delegation(cut=cut("house/garage", 3), below=(cut("house/garage/door"),)),
        Delegation(cut=cut("house/kitchen")),
    )


def test_zone_below_another_cut_is_asked_for_there() -> None:
    """The deepest cut above the zone serves it."""
    table = table_of(cut("house"), cut("house/garage"))

    decision = decide(table, applicant("house/garage/door/lock"))

    assert Elsewhere(cut=cut("house/garage")) == decision


def test_node_that_has_its_zone_keeps_its_epoch() -> None:
    """A second join is no handover; a new address is taken over."""
    table = table_of(cut("garage", 4))
    moved = attrs.evolve(applicant("garage", last_epoch=4), grpc="elsewhere:9")

    decision = decide(table, moved)

    assert Renewed(cut=attrs.evolve(cut("garage", 4), grpc="elsewhere:9")) == decision


@pytest.mark.parametrize("last_epoch", [0, 3])
def test_node_that_missed_its_grant_gets_a_new_epoch(last_epoch: int) -> None:
    """Offsets of one epoch are never used twice: a lost disk or a missed grant starts the next."""
    decision = decide(table_of(cut("garage", 4)), applicant("garage", last_epoch=last_epoch))

    assert Renewed(cut=cut("garage", 5)) == decision


def test_node_that_knows_a_later_epoch_gets_one_after_that() -> None:
    """The table lost its disk and granted again; the node's old epoch is not used twice."""
    decision = decide(table_of(cut("garage", 1)), applicant("garage", last_epoch=7))

    assert Renewed(cut=cut("garage", 8)) == decision


def test_zone_that_the_table_has_forgotten_is_renewed() -> None:
    """A parent that lost its disk believes the child's greater epoch; nothing is handed over."""
    decision = decide(table_of(), applicant("garage", last_epoch=3))

    assert Renewed(cut=cut("garage", 3)) == decision


def test_zone_of_another_node_is_refused_with_the_remedy() -> None:
    """One authority for a zone."""
    decision = decide(table_of(cut("garage")), applicant("garage", node="thief"))

    assert isinstance(decision, Refused)
    assert "served by node 'node-garage'" in decision.reason
    assert "txbroker retire node-garage:1" in decision.reason


def test_node_with_another_zone_is_refused() -> None:
    """A node owns one zone, and its name is unique."""
    decision = decide(table_of(cut("garage", node="x")), applicant("kitchen", node="x"))

    assert isinstance(decision, Refused)
    assert "serves zone 'garage' already" in decision.reason


@pytest.mark.parametrize("zone", ["house", "garage", "", "houses/x"])
def test_zone_that_is_not_strictly_inside_is_refused(zone: str) -> None:
    """A parent delegates below its own apex only."""
    decision = decide(table_of(apex="house"), applicant(zone, node="x"))

    assert isinstance(decision, Refused)
    assert "is not inside zone 'house'" in decision.reason


def test_pure_edge_delegates_nothing() -> None:
    """A node without a zone has nothing to give."""
    assert isinstance(decide(table_of(apex=None), applicant("garage")), Refused)


def test_node_that_asks_itself_is_refused() -> None:
    """A `parent` that is the node itself would be a loop."""
    decision = decide(table_of(), applicant("garage", node="home"))

    assert isinstance(decision, Refused)
    assert "above itself" in decision.reason


def test_node_that_asks_one_below_it_is_refused() -> None:
    """A node in the lineage may not become a child further down."""
    table = table_of(apex="house/garage")

    decision = table.decide(
        applicant("house/garage/door", node="node-house"), (ROOT, cut("house")), "node-garage"
    )

    assert isinstance(decision, Refused)
    assert "above itself" in decision.reason


# -- epochs


def test_epoch_outlives_a_retirement() -> None:
    """A zone that was given back starts above all its earlier epochs (rule 11)."""
    table = table_of(cut("garage", 4))
    table.release("garage", ())

    assert table.lookup("garage/x") is None
    assert table.epoch_of("garage") == 5
    assert Transfer(cut=cut("garage", 6), moved=()) == decide(table, applicant("garage"))


def test_retired_node_that_joins_again_is_no_lost_disk() -> None:
    """Its last epoch is not above what the table has seen."""
    table = table_of(cut("garage", 4))
    table.release("garage", ())

    decision = decide(table, applicant("garage", last_epoch=4))

    assert Transfer(cut=cut("garage", 6), moved=()) == decision


def test_zones_below_a_retired_one_are_the_parents_own() -> None:
    """Retiring leaves what was delegated below standing, each with what is below it."""
    table = table_of(cut("house", 2))
    door, garage = cut("house/garage/door", 3), cut("house/garage", 5)
    table.tell_below("house", [garage, door])

    table.release("house", [garage])

    assert (Delegation(cut=garage, below=(door,)),) == table.delegations()
    assert table.lookup("house/garage/door/x") == garage
    assert table.lookup("house/x") is None


def test_epochs_of_zones_further_below_are_remembered() -> None:
    """What a child tells of the cuts below it counts, should they come back to this node."""
    table = table_of(cut("house"))

    assert table.tell_below("house", [cut("house/garage", 9)])
    assert not table.tell_below("house", [cut("house/garage", 9)])  # no news
    assert not table.tell_below("shed", [cut("shed/x")])  # nobody's child
    assert (table.epoch_of("house/garage"), table.epoch_of("shed/x")) == (9, 0)


def test_older_epoch_does_not_lower_what_was_seen() -> None:
    """Epochs only grow."""
    table = table_of(cut("garage", 5), cut("garage", 2))

    assert table.epoch_of("garage") == 5


def test_state_brings_the_table_back() -> None:
    """A restart knows the delegations and the epochs of zones that nobody holds now."""
    table = table_of(cut("garage", 4), cut("house"))
    table.tell_below("house", [cut("house/attic", 2)])
    table.release("garage", ())

    again = DelegationTable("", table.state())

    assert again.state() == table.state()
    assert again.lookup("house/attic/x") == cut("house")
    assert again.epoch_of("garage") == 5
    assert again.epoch_of("house/attic") == 2


def test_state_is_a_copy() -> None:
    """What was handed out to be saved does not change with the table."""
    table = table_of(cut("garage"))
    state = table.state()
    table.commit(cut("kitchen"))

    assert TableState(delegations=(Delegation(cut=cut("garage")),), epochs={"garage": 1}) == state


# -- what the zone is made of


def test_commit_takes_the_cuts_inside_out() -> None:
    """They are the child's to delegate now; the parent keeps them as `below`."""
    table = table_of(cut("house/garage"), cut("shed"))

    table.commit(cut("house"), [cut("house/garage")])

    assert [c.apex for c in table.cuts()] == ["shed", "house"]
    assert [c.apex for c in table.below()] == ["shed", "house", "house/garage"]
    assert len(table) == 2


def test_adopted_delegations_come_along_with_the_zone() -> None:
    """A new owner starts with the cuts that the old one had below the apex."""
    table = table_of(apex="house")
    table.adopt([cut("house/garage", 3)])

    assert table.get("house/garage") == Delegation(cut=cut("house/garage", 3))
    assert table.lookup("house/garage/door") == cut("house/garage", 3)
    assert table.epoch_of("house/garage") == 3


def test_lookup_goes_by_levels() -> None:
    """A zone covers its apex and what is below it, not names that begin alike."""
    table = table_of(cut("house/garage"))

    assert table.lookup("house/garage") == cut("house/garage")
    assert table.lookup("house/garage/") == cut("house/garage")
    assert table.lookup("house/garage2") is None
    assert table.lookup("house") is None


def test_cuts_touched_by_a_filter_are_named() -> None:
    """Wildcards may reach into a zone from above."""
    table = table_of(cut("a/b"), cut("a/c"), cut("d"))

    touched = {q: [c.apex for c in table.touching(q)] for q in ("a/+", "a/b/x", "+/c/#", "#", "e")}

    assert touched == {
        "a/+": ["a/b", "a/c"],
        "a/b/x": ["a/b"],
        "+/c/#": ["a/c", "d"],
        "#": ["a/b", "a/c", "d"],
        "e": [],
    }


# -- properties

LEVELS = st.sampled_from(["a", "b"])
APEXES = st.lists(LEVELS, min_size=1, max_size=3).map("/".join)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(APEXES, st.booleans(), st.integers(0, 6))))
def test_epoch_of_an_apex_never_decreases(steps: list[tuple[str, bool, int]]) -> None:
    """Whatever joins and leaves, with whatever it remembers, and over restarts."""
    table = DelegationTable("")
    for zone, leaves, last_epoch in steps:
        seen = table.epoch_of(zone)
        if leaves and table.get(zone) is not None:
            table.release(zone, [])
        else:
            decision = decide(table, applicant(zone, last_epoch=last_epoch, node=f"n-{zone}"))
            if isinstance(decision, Renewed | Transfer):
                assert decision.cut.epoch >= seen
                table.commit(decision.cut)
        assert table.epoch_of(zone) >= seen
        table = DelegationTable("", table.state())
