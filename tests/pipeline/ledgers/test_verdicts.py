"""What is made of a message that nothing about its part explains."""

from __future__ import annotations

from typing import Any

import pytest

from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.pipeline.ledgers.verdicts import SLACK, has_passed, verdict

ROOT, CHILD = JournalId("", 1), JournalId("a", 2)
BACK = EpochTransition(apex="a", left=LogPosition(CHILD, 9), entered=LogPosition(ROOT, 40))


@pytest.mark.parametrize(
    ("reaches", "transitions", "expected"),
    [
        ({CHILD: 5}, (), True),
        ({JournalId("a", 3): 0}, (), True),
        ({JournalId("a", 1): 7}, (), False),
        ({ROOT: 50}, (), False),
        ({ROOT: 40}, (BACK,), True),
        ({ROOT: 39}, (BACK,), False),
        ({JournalId("", 2): 1}, (BACK,), True),
        ({}, (BACK,), False),
    ],
)
def test_a_part_is_passed_or_ahead(
    reaches: dict[JournalId, int], transitions: tuple[EpochTransition, ...], expected: bool
) -> None:
    """By the part itself, by the zone's epoch, or by where its topics went on."""
    assert expected is has_passed(CHILD, reaches, transitions)


def row(**values: Any) -> dict[str, Any]:
    """A message of a session that is beyond it, at a node that keeps a ledger."""
    parts = [{"zone": "a", "epoch": 2, "come": 10}]
    common = {"zone": "a", "epoch": 2, "offset": 3, "created": 1000, "said": 500}
    return {**common, "parts": parts, "kept": True, "gap": None, **values}


def test_lost_is_what_is_beyond_all_doubt() -> None:
    """The session is beyond it, or is nowhere though every node was asked."""
    assert "lost" == verdict(row(), (), is_whole=True)
    assert "lost" == verdict(row(parts=None, kept=None), (), is_whole=True)
    assert "unknown" == verdict(row(parts=None, kept=None), (), is_whole=False)
    assert "unknown" == verdict(row(kept=False), (), is_whole=True)
    assert "pending" == verdict(row(epoch=3), (), is_whole=True)
    nowhere = [{"zone": None, "epoch": None, "come": None}]
    assert "pending" == verdict(row(parts=nowhere), (), is_whole=True)


def test_a_gap_in_a_ledger_may_hide_the_row() -> None:
    """Unless the message and the word of its subscription are both later."""
    late = 1000 + SLACK
    assert "unknown" == verdict(row(gap=1000), (), is_whole=True)
    assert "unknown" == verdict(row(gap=1000, created=late + 1), (), is_whole=True)
    assert "unknown" == verdict(row(gap=1000, created=late, said=1001), (), is_whole=True)
    assert "lost" == verdict(row(gap=1000, created=late + 1, said=1001), (), is_whole=True)
