"""What a node has delegated, and what it remembers of epochs."""

from __future__ import annotations

import pytest

from tests.support.checking import checking
from tests.support.recorders import cut
from txbroker.delegation.delegation_table import (
    PASSAGES,
    Delegation,
    DelegationState,
    DelegationTable,
    nest,
)
from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.zone_cut import ZoneCut

checked = checking(DelegationTable)


def table_of(*cuts: ZoneCut, apex: str | None = "") -> DelegationTable:
    table = DelegationTable(apex)
    for known in cuts:
        table.commit(known)
    return table


# -- epochs


def test_epoch_outlives_a_retirement() -> None:
    """A zone that was given back starts above all its earlier epochs (rule 11)."""
    table = table_of(cut("garage", 4))
    table.release("garage", DelegationState())

    assert table.lookup("garage/x") is None
    assert table.epoch_of("garage") == 5


def test_epochs_of_zones_further_below_are_remembered() -> None:
    """What a child tells of the cuts below it counts, should they come back to this node."""
    table = table_of(cut("house"))

    assert table.store_cuts_below("house", 1, [cut("house/garage", 9)])
    assert not table.store_cuts_below("house", 1, [cut("house/garage", 9)])  # no news
    assert not table.store_cuts_below("shed", 1, [cut("shed/x")])  # nobody's child
    assert (table.epoch_of("house/garage"), table.epoch_of("shed/x")) == (9, 0)


def test_child_of_an_earlier_epoch_has_no_say() -> None:
    """A stream of a life that is over may be read late."""
    table = table_of(cut("house", 3))

    assert not table.store_cuts_below("house", 2, [cut("house/old")])
    assert table.get("house") == Delegation(cut=cut("house", 3))


def test_older_epoch_does_not_lower_what_was_seen() -> None:
    """Epochs only grow."""
    table = table_of(cut("garage", 5), cut("garage", 2))

    assert table.epoch_of("garage") == 5


def test_epochs_that_come_back_with_a_zone_lower_none() -> None:
    """The child knows a zone below it from before: the next grant would use an epoch again."""
    table = table_of(cut("house"))
    table.store_cuts_below("house", 1, [cut("house/attic", 9)])
    table.release("house", DelegationState(epochs={"house/attic": 4}))

    assert table.epoch_of("house/attic") == 9


@pytest.mark.parametrize("apex", ["house", "house/attic"])
def test_a_cut_that_a_node_made_itself_is_not_replaced_by_what_it_is_told(apex: str) -> None:
    """A living child's zone would go to whom the parent names."""
    table = table_of(cut("house", 3))
    table.recall([cut(apex, 8, node="other"), cut("shed", 2)])

    assert (table.lookup(f"{apex}/x"), table.lookup("shed")) == (cut("house", 3), cut("shed", 2))


def test_a_cut_that_has_ended_since_is_not_recalled() -> None:
    """The parent's word is older than the end: the zone would have two owners."""
    table = table_of(cut("house", 3))
    table.release("house", DelegationState())
    table.recall([cut("house", 3)])

    assert table.lookup("house/x") is None


def test_state_brings_the_table_back() -> None:
    """A restart knows the delegations and the epochs of zones that nobody holds now."""
    table = table_of(cut("garage", 4), cut("house"))
    table.store_cuts_below("house", 1, [cut("house/attic", 2)])
    table.release("garage", DelegationState())
    table.commit(cut("shed", 2))
    table.reclaim("shed", 5)

    again = DelegationTable("", table.state())

    assert again.state() == table.state()
    assert again.was_reclaimed("shed", 2)
    assert again.lookup("house/attic/x") == cut("house")
    assert again.epoch_of("garage") == 5
    assert again.epoch_of("house/attic") == 2


def test_state_is_a_copy() -> None:
    """What was handed out to be saved does not change with the table."""
    table = table_of(cut("garage"))
    state = table.state()
    table.commit(cut("kitchen"))

    assert (
        DelegationState(delegations=(Delegation(cut=cut("garage")),), epochs={"garage": 1}) == state
    )


# -- what the zone is made of


def test_commit_takes_the_cuts_inside_out() -> None:
    """They are the child's to delegate now; the parent keeps them as `below`."""
    table = table_of(cut("house/garage"), cut("shed"))

    table.commit(cut("house"), [cut("house/garage")])

    assert [c.apex for c in table.cuts()] == ["shed", "house"]
    assert [c.apex for c in table.below()] == ["shed", "house", "house/garage"]
    assert len(table) == 2


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


# -- a zone changes hands with what is below it


def test_zones_below_a_retired_one_are_the_parents_own() -> None:
    """Retiring leaves what was delegated below standing, as the child knew it in the end."""
    table = table_of(cut("house", 2))
    table.store_cuts_below("house", 2, [cut("house/stale")])
    garage = Delegation(cut=cut("house/garage", 5), below=(cut("house/garage/door", 3),))

    table.release(
        "house",
        DelegationState(
            delegations=(garage,),
            epochs={"house/garage": 5, "house/attic": 8},
            reclaimed=(cut("house/attic", 7),),
        ),
    )

    assert (garage,) == table.delegations()
    assert table.lookup("house/garage/door/x") == garage.cut
    assert table.lookup("house/x") is table.lookup("house/stale") is None
    epochs = {apex: table.epoch_of(apex) for apex in ("house/garage/door", "house/attic", "house")}
    assert epochs == {"house/garage/door": 3, "house/attic": 8, "house": 3}
    assert table.was_reclaimed("house/attic", 7)


def test_zones_below_a_reclaimed_one_stand_as_last_told() -> None:
    """Their nodes are alive; only the one between is dead."""
    table = table_of(cut("house", 2))
    door, garage, attic = (
        cut("house/garage/door", 3),
        cut("house/garage", 5),
        cut("house/attic", 1),
    )
    table.store_cuts_below("house", 2, [garage, door, attic])

    table.reclaim("house", 5)

    assert table.delegations() == (
        Delegation(cut=garage, below=(door,)),
        Delegation(cut=attic),
    )
    assert table.epoch_of("house") == 3
    assert (cut("house", 2),) == table.reclaimed()


def test_branch_is_remembered_until_its_node_has_settled_it() -> None:
    """Whoever serves the zone meanwhile."""
    table = table_of(cut("garage", 2, "x"))
    table.reclaim("garage", 5)
    table.commit(cut("garage", 4, "y"))

    assert not table.close_branch("garage", "y")
    assert table.was_reclaimed("garage", 2) and not table.was_reclaimed("garage", 4)
    assert table.close_branch("garage", "x")
    assert not table.close_branch("garage", "x")
    assert table.reclaimed() == ()


@pytest.mark.parametrize("again", ["house/attic", "house"])
def test_where_a_zone_came_back_is_known_until_it_is_delegated_again(again: str) -> None:
    """By itself or within another one; over restarts, too."""
    table = table_of(cut("house/attic", 2), cut("garage", 3))
    table.reclaim("house/attic", 5)
    table.reclaim("garage", 7)
    table = DelegationTable("", table.state())
    before = table.reclaimed_at()
    table.commit(cut(again, 4))

    assert {"house/attic": 5, "garage": 7} == before
    assert {"garage": 7} == table.reclaimed_at()
    table.forget_all()
    assert {} == table.reclaimed_at()


def test_what_is_known_of_a_subtree_moves_along() -> None:
    """Delegations, epochs and branches strictly below; the old owner keeps the epochs."""
    table = table_of(cut("house/garage", 3), cut("house/attic", 7), cut("houseboat"))
    table.store_cuts_below("house/garage", 3, [cut("house/garage/door")])
    table.reclaim("house/attic", 5)
    inner = Delegation(cut=cut("house/garage", 3), below=(cut("house/garage/door"),))

    subtree = table.subtree("house")
    table.commit(cut("house", 2), [inner.cut, *inner.below])

    assert subtree == DelegationState(
        delegations=(inner,),
        epochs={"house/garage": 3, "house/garage/door": 1, "house/attic": 8},
        reclaimed=(cut("house/attic", 7),),
    )
    assert table.reclaimed() == ()
    assert table.epoch_of("house/attic") == 8


def test_new_owner_has_what_came_along_and_nothing_older() -> None:
    """A node that takes its zone again has delegations of its earlier time no more."""
    table = table_of(cut("house/gone", 4), apex="house")
    table.replace_all(
        DelegationState(
            delegations=(Delegation(cut=cut("house/garage", 3)),), epochs={"house/old": 6}
        )
    )

    assert table.delegations() == (Delegation(cut=cut("house/garage", 3)),)
    assert table.lookup("house/garage/door") == cut("house/garage", 3)
    known = {apex: table.epoch_of(f"house/{apex}") for apex in ("garage", "old", "gone")}
    assert known == {"garage": 3, "old": 6, "gone": 4}


def test_lost_zone_takes_its_delegations_along() -> None:
    """Epochs are remembered all the same."""
    table = table_of(cut("house/garage", 3), apex="house")
    table.forget_all()

    assert (table.delegations(), table.lookup("house/garage/x")) == ((), None)
    assert table.epoch_of("house/garage") == 3


def test_zones_that_ended_around_another_are_known() -> None:
    """Between this zone and that one, and in force no more."""
    table = table_of(cut("a", 2), cut("ab"))
    table.store_cuts_below("a", 2, [cut("a/b", 3), cut("a/b/c", 1)])
    table.reclaim("a", 5)

    assert table.ended_around("a/b") == {"a": 3}
    assert table.ended_around("ab") == {}


def test_cuts_nest_by_their_apexes() -> None:
    """The outermost ones are delegations, whatever their order."""
    a, ab, abc, d = cut("a"), cut("a/b"), cut("a/b/c"), cut("d")

    assert nest([abc, d, a, ab]) == (
        Delegation(cut=d),
        Delegation(cut=a, below=(abc, ab)),
    )


# -- passages


def out(apex: str, epoch: int, offset: int = 5) -> EpochTransition:
    """The zone is delegated, from the root zone."""
    left = LogPosition(JournalId("", 1), offset)
    return EpochTransition(apex=apex, left=left, entered=LogPosition(JournalId(apex, epoch), 0))


def back(apex: str, epoch: int, offset: int = 7) -> EpochTransition:
    """It comes back to the root zone."""
    entered = LogPosition(JournalId("", 1), offset)
    return EpochTransition(apex=apex, left=LogPosition(JournalId(apex, epoch), 3), entered=entered)


def test_passages_move_along_with_their_topics() -> None:
    """To a child those of its zone, of zones within it and around it; and back with news."""
    table = table_of(cut("a"))
    for transition in (out("a", 1), out("b", 1)):
        table.record_transition(transition)
    child = DelegationTable("a")
    child.replace_all(table.subtree("a"))
    inner = out("a/x", 1)
    child.record_transition(inner)
    table.release("a", child.subtree("a"))
    table.record_transition(back("a", 1))

    assert child.passages() == (out("a", 1), inner)
    assert table.passages() == (out("a", 1), out("b", 1), inner, back("a", 1))
    assert DelegationTable("", table.state()).passages() == table.passages()


def test_only_the_last_passages_are_remembered() -> None:
    """A zone may change hands for ever."""
    table = DelegationTable("")
    for epoch in range(1, PASSAGES + 2):
        table.record_transition(out("a", epoch))

    assert [out("a", epoch) for epoch in range(2, PASSAGES + 2)] == list(table.passages())


@pytest.mark.parametrize(
    "zone, after, through, is_met",
    [("", 5, 9, True), ("", 1, 5, True), ("", 6, 9, False), ("", 1, 4, False), ("a", 0, 9, True)],
)
def test_passage_is_met_where_it_begins_and_ends(
    zone: str, after: int, through: int, is_met: bool
) -> None:
    """A reader learns of it before it reads on."""
    assert is_met == out("a", 1).is_met(JournalId(zone, 1), after, through)
