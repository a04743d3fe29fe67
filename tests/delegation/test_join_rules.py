"""What a parent answers to those who ask for a zone."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.recorders import cut
from txbroker.delegation import join_rules
from txbroker.delegation.delegation_table import DelegationState, DelegationTable
from txbroker.delegation.join_rules import (
    Applicant,
    Decision,
    GrantRenewed,
    JoinRefused,
    ZoneElsewhere,
    ZoneTransfer,
    decide,
)
from txbroker.model.zone_cut import ZoneCut

ROOT = cut("", node="home")


def applicant(
    zone: str,
    *,
    last_epoch: int = 0,
    holds: bool = False,
    fenced: bool = False,
    prepared: int = 0,
    node: str | None = None,
) -> Applicant:
    known = cut(zone, node=node)
    return Applicant(
        node=known.node,
        zone=zone,
        grpc=known.grpc,
        last_epoch=last_epoch,
        holds=holds,
        fenced=fenced,
        prepared=prepared,
    )


def table_of(*cuts: ZoneCut, apex: str | None = "") -> DelegationTable:
    table = DelegationTable(apex)
    for known in cuts:
        table.commit(known)
    return table


def ask(table: DelegationTable, asks: Applicant, *lineage: ZoneCut, me: ZoneCut = ROOT) -> Decision:
    return decide(table, asks, lineage, me)


def retired(epoch: int) -> DelegationTable:
    """A table whose zone `garage` was given back at this epoch."""
    table = table_of(cut("garage", epoch))
    table.release("garage", DelegationState())
    return table


def reclaimed(epoch: int) -> DelegationTable:
    """A table whose zone `garage` was taken from a node that held it at this epoch."""
    table = table_of(cut("garage", epoch))
    table.reclaim("garage", 5)
    return table


# -- a zone that nobody holds


def test_free_zone_is_transferred_at_its_first_epoch() -> None:
    """Nobody held the zone yet: epoch 1."""
    table = table_of()

    assert ZoneTransfer(cut=cut("garage")) == ask(table, applicant("garage"))
    assert table.cuts() == ()  # a decision changes nothing


@pytest.mark.parametrize("last_epoch", [0, 4])
def test_zone_that_was_given_back_is_handed_over_above_all_that_was(last_epoch: int) -> None:
    """To the node that had it, or to a new one (rule 11)."""
    decision = ask(retired(4), applicant("garage", last_epoch=last_epoch))

    assert ZoneTransfer(cut=cut("garage", 6)) == decision


@pytest.mark.parametrize(("last_epoch", "prepared"), [(7, 0), (0, 7), (7, 3), (3, 7)])
def test_next_epoch_is_above_what_either_side_has_seen(last_epoch: int, prepared: int) -> None:
    """The table may come from a lost disk; an epoch that was prepared in vain is not used again."""
    decision = ask(table_of(), applicant("garage", last_epoch=last_epoch, prepared=prepared))

    assert ZoneTransfer(cut=cut("garage", 8)) == decision


def test_zone_that_the_table_has_forgotten_is_renewed() -> None:
    """A parent that lost its disk believes the child's greater epoch; nothing is handed over."""
    decision = ask(table_of(), applicant("garage", last_epoch=3, holds=True))

    assert GrantRenewed(cut=cut("garage", 3), since=3) == decision


def test_zone_below_another_cut_is_asked_for_there() -> None:
    """The deepest cut above the zone serves it."""
    table = table_of(cut("house"), cut("house/garage"))

    decision = ask(table, applicant("house/garage/door/lock"))

    assert ZoneElsewhere(cut=cut("house/garage")) == decision


# -- a zone that the applicant holds


@pytest.mark.parametrize("holds", [True, False])
def test_node_that_has_its_zone_keeps_its_epoch(holds: bool) -> None:
    """A second join is no handover; a new address is taken over."""
    moved = attrs.evolve(applicant("garage", last_epoch=4, holds=holds), grpc="elsewhere:9")

    decision = ask(table_of(cut("garage", 4)), moved)

    assert GrantRenewed(cut=attrs.evolve(cut("garage", 4), grpc="elsewhere:9"), since=4) == decision


@pytest.mark.parametrize("last_epoch", [0, 2])
def test_node_that_missed_its_own_grant_has_it(last_epoch: int) -> None:
    """It confirmed what the epoch begins with, and died before it was told of the commit."""
    decision = ask(
        table_of(cut("garage", 4)), applicant("garage", last_epoch=last_epoch, prepared=4)
    )

    assert GrantRenewed(cut=cut("garage", 4), since=4) == decision


def test_node_that_knows_a_later_epoch_keeps_that() -> None:
    """The table comes from an older disk; the node's state is newer."""
    decision = ask(table_of(cut("garage", 1)), applicant("garage", last_epoch=7, holds=True))

    assert GrantRenewed(cut=cut("garage", 7), since=1) == decision


@pytest.mark.parametrize(
    ("last_epoch", "prepared", "epoch"), [(4, 0, 8), (6, 0, 8), (7, 0, 8), (9, 0, 10), (3, 4, 8)]
)
def test_a_copy_keeps_its_zone_at_an_epoch_that_no_life_had(
    last_epoch: int, prepared: int, epoch: int
) -> None:
    """The node holds the zone since epoch 4, and was restored since: copies from then on do."""
    table = table_of()
    table.commit(cut("garage", 7), since=4)
    asks = applicant("garage", last_epoch=last_epoch, holds=last_epoch > 3, prepared=prepared)

    decision = ask(table, attrs.evolve(asks, restored=True))

    assert GrantRenewed(cut=cut("garage", epoch), since=4) == decision


def test_a_copy_below_a_copy_leaves_out_epochs_that_earlier_lives_have_given() -> None:
    """Nobody knows which the parent has granted since its own copy was made."""
    table = table_of()
    table.commit(cut("garage", 7), since=4)
    asks = attrs.evolve(applicant("garage", last_epoch=5, holds=True), restored=True)

    decision = decide(table, asks, (), ROOT, left_out=1000)

    assert GrantRenewed(cut=cut("garage", 1008), since=4) == decision


def test_a_copy_from_before_a_handover_is_refused() -> None:
    """The zone was the parent's in between, and what it took then is not in the copy."""
    asks = attrs.evolve(applicant("garage", last_epoch=3, holds=True), restored=True)

    assert isinstance(ask(table_of(cut("garage", 4)), asks), JoinRefused)


def test_a_copy_whose_parent_has_forgotten_the_zone_has_a_new_epoch() -> None:
    """Both were lost: what the copy has is all that there is."""
    asks = attrs.evolve(applicant("garage", last_epoch=3, holds=True), restored=True)

    decision = decide(table_of(), asks, (), ROOT, left_out=1000)

    assert GrantRenewed(cut=cut("garage", 1004), since=3) == decision


@pytest.mark.parametrize("prepared", [0, 3])
def test_empty_data_is_refused_with_the_remedy(prepared: int) -> None:
    """It would serve an empty zone where others were told that their messages are safe."""
    decision = ask(table_of(cut("garage", 4)), applicant("garage", prepared=prepared))

    assert isinstance(decision, JoinRefused) and decision.cut_off == 0
    assert "since epoch 4 and comes with an empty `data`" in decision.reason
    assert decision.reason.endswith("txbroker reclaim home:1 garage")


@pytest.mark.parametrize(("holds", "cut_off"), [(True, 3), (False, 0)])
def test_data_of_an_older_epoch_is_refused(holds: bool, cut_off: int) -> None:
    """A copy from before; what it may have taken since it was started is kept as a branch."""
    decision = ask(table_of(cut("garage", 4)), applicant("garage", last_epoch=3, holds=holds))

    assert isinstance(decision, JoinRefused) and decision.cut_off == cut_off
    assert "`data` of epoch 3" in decision.reason
    assert decision.reason.endswith("txbroker reclaim home:1 garage")


# -- a zone that another node holds


@pytest.mark.parametrize(("last_epoch", "cut_off"), [(0, 0), (2, 2)])
def test_zone_of_another_node_is_refused_with_the_remedy(last_epoch: int, cut_off: int) -> None:
    """One authority for a zone; a node that takes itself for it has a branch."""
    decision = ask(
        table_of(cut("garage")),
        applicant("garage", node="thief", last_epoch=last_epoch, holds=last_epoch > 0),
    )

    assert isinstance(decision, JoinRefused) and decision.cut_off == cut_off
    assert "served by node 'node-garage'" in decision.reason
    assert "txbroker retire node-garage:1" in decision.reason
    assert "txbroker reclaim home:1 garage" in decision.reason


def test_node_with_another_zone_is_refused() -> None:
    """A node owns one zone, and its name is unique."""
    decision = ask(table_of(cut("garage", node="x")), applicant("kitchen", node="x"))

    assert isinstance(decision, JoinRefused)
    assert "serves zone 'garage' already" in decision.reason


# -- a zone that was taken from the applicant, or that it gave back


def test_node_whose_zone_was_reclaimed_is_cut_off() -> None:
    """Its records since are a branch, to be settled by command (rule 15)."""
    decision = ask(reclaimed(4), applicant("garage", last_epoch=4, holds=True))

    assert isinstance(decision, JoinRefused) and decision.cut_off == 4
    assert decision.reason.endswith("txbroker divergent list node-garage:1 garage")


def test_reclaim_during_a_hand_back_cuts_off_too() -> None:
    """The node died while it gave the zone back, and the parent never got it."""
    decision = ask(reclaimed(4), applicant("garage", last_epoch=4, holds=True, fenced=True))

    assert isinstance(decision, JoinRefused) and decision.cut_off == 4


def test_reclaim_after_a_handover_that_the_node_slept_through_cuts_off() -> None:
    """What was copied to it is kept there, as nobody else has it any more."""
    decision = ask(reclaimed(4), applicant("garage", last_epoch=2, prepared=4))

    assert isinstance(decision, JoinRefused) and decision.cut_off == 4


def test_settled_node_gets_the_zone_by_a_handover() -> None:
    """As any other node would."""
    decision = ask(reclaimed(4), applicant("garage", last_epoch=4))

    assert ZoneTransfer(cut=cut("garage", 6)) == decision


def test_node_that_died_after_it_gave_back_gets_a_new_handover() -> None:
    """It took nothing since its fence, so the parent has all of it."""
    decision = ask(retired(4), applicant("garage", last_epoch=4, holds=True, fenced=True))

    assert ZoneTransfer(cut=cut("garage", 6)) == decision


def test_copy_from_before_a_hand_back_is_cut_off() -> None:
    """It has served since it was started, at an epoch that is over."""
    decision = ask(retired(4), applicant("garage", last_epoch=4, holds=True))

    assert isinstance(decision, JoinRefused) and decision.cut_off == 4


# -- who may not ask at all


@pytest.mark.parametrize("zone", ["house", "garage", "", "houses/x"])
def test_zone_that_is_not_strictly_inside_is_refused(zone: str) -> None:
    """A parent delegates below its own apex only; what the node has stays its own."""
    decision = ask(table_of(apex="house"), applicant(zone, node="x", last_epoch=3, holds=True))

    assert isinstance(decision, JoinRefused) and decision.cut_off == 0
    assert "is not inside zone 'house'" in decision.reason


def test_pure_edge_delegates_nothing() -> None:
    """A node without a zone has nothing to give."""
    assert isinstance(ask(table_of(apex=None), applicant("garage")), JoinRefused)


def test_node_that_asks_itself_is_refused() -> None:
    """A `parent` that is the node itself would be a loop."""
    decision = ask(table_of(), applicant("garage", node="home"))

    assert isinstance(decision, JoinRefused)
    assert "above itself" in decision.reason


def test_node_that_asks_one_below_it_is_refused() -> None:
    """A node in the lineage may not become a child further down."""
    table = table_of(apex="house/garage")

    decision = ask(
        table,
        applicant("house/garage/door", node="node-house"),
        ROOT,
        cut("house"),
        me=cut("house/garage"),
    )

    assert isinstance(decision, JoinRefused)
    assert "above itself" in decision.reason


# -- properties

LEVELS = st.sampled_from(["a", "b"])
APEXES = st.lists(LEVELS, min_size=1, max_size=3).map("/".join)
STEPS = st.tuples(
    APEXES,
    st.sampled_from(["join", "join", "release", "reclaim"]),
    st.integers(0, 6),
    st.integers(0, 6),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(STEPS))
def test_no_epoch_is_given_twice(
    steps: list[tuple[str, str, int, int, bool, bool]],
) -> None:
    """
    Whatever joins and leaves, with whatever it remembers, and over restarts: epochs only grow, and
    a handover has one that was never in force.
    """
    table = DelegationTable("")
    used: dict[str, set[int]] = {}
    for zone, step, last_epoch, prepared, holds, fenced in steps:
        seen = table.epoch_of(zone)
        if step != "join" and table.get(zone) is not None:
            if step == "release":
                table.release(zone, DelegationState())
            else:
                table.reclaim(zone, 5)
        elif step == "join":
            asks = applicant(
                zone,
                last_epoch=last_epoch,
                prepared=prepared,
                holds=holds,
                fenced=fenced,
                node=f"n-{zone}",
            )
            decision = ask(table, asks)
            if isinstance(decision, ZoneTransfer):
                assert decision.cut.epoch > max(seen, last_epoch, prepared)
                assert decision.cut.epoch not in used.get(zone, ())
            if isinstance(decision, GrantRenewed):
                assert decision.cut.epoch >= seen
                assert decision.cut.epoch in (last_epoch, prepared)
            if isinstance(decision, GrantRenewed | ZoneTransfer):
                used.setdefault(zone, set()).add(decision.cut.epoch)
                table.commit(decision.cut)
        assert table.epoch_of(zone) >= seen
        table = DelegationTable("", table.state())


def test_zones_that_ever_were_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch outlives its zone: no other zone begins, one that was there before may."""
    monkeypatch.setattr(join_rules, "APEXES", 1)
    table = retired(3)

    refused = ask(table, applicant("attic"))
    assert isinstance(refused, JoinRefused) and "1 zones" in refused.reason
    assert isinstance(ask(table, applicant("garage")), ZoneTransfer)
