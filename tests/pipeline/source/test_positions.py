"""Positions as JSON, and every way in which they can be wrong."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txbroker.model.errors import PipelineError
from txbroker.pipeline.source.positions import (
    ZonePosition,
    parse_positions,
    positions_from,
    positions_to,
)

NUMBERS = st.integers(1, 2**63 - 1)
ZONES = st.sampled_from(["", "home", "home/kitchen", "küche/süd", "a b/c"])


@given(st.dictionaries(ZONES, st.builds(ZonePosition, NUMBERS, NUMBERS)))
def test_what_is_written_is_read(positions: dict[str, ZonePosition]) -> None:
    text = json.dumps(positions_to(positions))

    assert positions == parse_positions(text, "x")


def test_the_form_of_the_contract() -> None:
    positions = parse_positions('{"": {"epoch": 1, "offset": 5}}', "x")

    assert {"": ZonePosition(1, 5)} == positions
    assert {"": {"epoch": 1, "offset": 5}} == positions_to(positions)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON"),
        ("[]", "positions are"),
        ('{"a": 5}', "position of zone 'a'"),
        ('{"a": {"epoch": 1}}', "position of zone 'a'"),
        ('{"a": {"epoch": 0, "offset": 1}}', "epoch of zone 'a'"),
        ('{"a": {"epoch": 1, "offset": "1"}}', "offset of zone 'a'"),
        ('{"a": {"epoch": 1, "offset": true}}', "offset of zone 'a'"),
        ('{"a/#": {"epoch": 1, "offset": 1}}', "is no zone"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, problem: str) -> None:
    with pytest.raises(PipelineError, match=problem) as caught:
        parse_positions(text, "option startingOffsets")

    assert str(caught.value).startswith("option startingOffsets: ")
    assert "\n" not in str(caught.value)


def test_a_checkpoint_holds_values() -> None:
    assert {"a": ZonePosition(2, 3)} == positions_from({"a": {"epoch": 2, "offset": 3}}, "x")
