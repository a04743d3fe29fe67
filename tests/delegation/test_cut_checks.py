"""Zones, cuts and parts of journals that another node tells of: each lies where it can lie."""

from __future__ import annotations

import attrs
import pytest

from tests.support.recorders import cut
from txbroker.delegation.peer_checks import (
    check_above,
    check_cut,
    check_ended,
    check_ended_parts,
    check_part,
    check_parts,
    check_passages,
)
from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.errors import PeerError
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.zone_cut import ZoneCut


def epoch_of(apex: str) -> int:
    """The epochs of zones that a node knows."""
    return {"": 3, "home": 7}.get(apex, 0)


@pytest.mark.parametrize(
    "told",
    [
        cut("home/+"),
        cut("home", 0),
        cut("home", node=""),
        cut("home", node="a\n\u202eb"),
        attrs.evolve(cut("home"), grpc="nowhere"),
        attrs.evolve(cut("home"), grpc=""),
    ],
)
def test_a_cut_has_a_zone_and_a_node_that_can_be_dialled(told: ZoneCut) -> None:
    """Otherwise the address is dialled for ever, and the zone is sought in vain."""
    check_cut(cut("home"))
    with pytest.raises(PeerError):
        check_cut(told)


@pytest.mark.parametrize(
    ("zone", "cuts"),
    [
        ("home/loft", [cut(""), cut("garden")]),
        ("home/loft", [cut(""), cut("home/loft")]),
        ("home/loft", [cut("home/loft/shed")]),
        ("home/loft", [cut(""), cut("")]),
        ("home/loft", [cut("home"), cut("")]),
        (None, [cut("home"), cut("garden")]),
        (None, [cut("home"), cut("home")]),
    ],
)
def test_a_lineage_encloses_the_zone(zone: str | None, cuts: list[ZoneCut]) -> None:
    """A node would ask a sibling, or itself, for what its ancestors own."""
    check_above(zone, [cut(""), cut("home")])
    with pytest.raises(PeerError):
        check_above(zone, cuts)


@pytest.mark.parametrize(
    ("zone", "apex"),
    [(None, ""), (None, "home/#"), ("home/loft", ""), ("home/loft", "home/loft"), ("home", "shed")],
)
def test_zones_around_a_node_end_and_no_others(zone: str | None, apex: str) -> None:
    """The root zone never ends; the end of a sibling is its parent's word."""
    check_ended(None, {"shed": 4})
    check_ended("home/loft", {"home": 4})
    with pytest.raises(PeerError):
        check_ended(zone, {apex: 4})


@pytest.mark.parametrize(
    ("zone", "epoch"), [("shed", 1), ("", 1), ("home/#", 1), ("home", 8), ("home", 0)]
)
def test_parts_are_of_the_zone_that_comes_back(zone: str, epoch: int) -> None:
    """A part of another zone would be served as that zone's history."""
    given = JournalId("home", 7)
    check_part(given, JournalId("home", 6), None, epoch_of)
    check_part(given, JournalId("home/x", 9), None, epoch_of)
    with pytest.raises(PeerError):
        check_part(given, JournalId(zone, epoch), None, epoch_of)


@pytest.mark.parametrize(("zone", "epoch"), [("shed", 1), ("", 1), ("home", 0), ("home/x", 0)])
def test_parts_that_an_edge_needs_are_of_the_zone(zone: str, epoch: int) -> None:
    """Retention would keep what nobody reads."""
    check_parts("home", [JournalId("home", 7), JournalId("home/x", 1)])
    with pytest.raises(PeerError):
        check_parts("home", [JournalId("home", 7), JournalId(zone, epoch)])


def test_parts_below_have_been() -> None:
    """A reader would take the records that are to come for those of such a part."""
    parts = [JournalId("home", 9), JournalId("home/x", 2)]
    check_ended_parts("home", parts, {"home/x": 2}.__getitem__)
    with pytest.raises(PeerError):
        check_ended_parts("home", parts, {"home/x": 1}.__getitem__)


@pytest.mark.parametrize(
    ("apex", "left", "entered"),
    [("shed", "", "shed"), ("home/x", "shed", "home"), ("home/x", "home", "home/x/y")],
)
def test_passages_lead_between_zones_around_their_topics(
    apex: str, left: str, entered: str
) -> None:
    """A session would go on in a journal that never has its topics."""

    def passage(apex: str, left: str, entered: str) -> EpochTransition:
        places = (LogPosition(JournalId(zone, 1), 1) for zone in (left, entered))
        return EpochTransition(apex=apex, left=next(places), entered=next(places))

    check_passages("home", [passage("home/x", "", "home"), passage("", "", "")], epoch_of)
    with pytest.raises(PeerError):
        check_passages("home", [passage(apex, left, entered)], epoch_of)
