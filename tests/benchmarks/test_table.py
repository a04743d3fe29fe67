"""The tables of docs/performance.md."""

from __future__ import annotations

import pytest

from benchmarks.figures import Spread
from benchmarks.scenarios import Scenario
from benchmarks.table import (
    BEGIN,
    END,
    between_markers,
    figures_table,
    number,
    spread_text,
    targets_table,
)
from benchmarks.targets import Target

SCENARIO = Scenario(
    name="1-1",
    title="QoS 0, 1→1",
    arguments={},
    contestants=("mosquitto", "mosquitto nodelay", "txbroker qos12"),
    targets=(
        Target("rate", "txbroker qos12", 40, 120),
        Target("base_mb", "txbroker qos12", 60, 45, None),
    ),
)
RESULTS = {
    "1-1": {
        "mosquitto": [{"rate": 100_000.0, "cpu_us": 10.0}],
        "mosquitto nodelay": [],
        "txbroker qos12": [
            {"rate": 4_000_000.0, "cpu_us": 0.25, "base_mb": 44.0, "load_share": 0.9},
            {"rate": 6_000_000.0, "cpu_us": 0.2, "base_mb": 44.0, "load_share": 0.9},
        ],
    }
}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123, "0.0123"), (1.5, "1.5"), (99.94, "99.9"), (100, "100"), (1234567.8, "1,234,568")],
)
def test_numbers_have_the_digits_that_count(value: float, text: str) -> None:
    """Three, or all before the point."""
    assert text == number(value)


def test_a_spread_stands_behind_its_median() -> None:
    """Unless there is none."""
    assert "2 (1–3)" == spread_text(Spread(2, 1, 3))
    assert "2" == spread_text(Spread(2, 2, 2))
    assert "" == spread_text(None)


def test_targets_stand_beside_what_was_reached() -> None:
    """A ratio, and a bound by itself."""
    _, _, rate, base = targets_table([SCENARIO], RESULTS)

    assert (
        "| QoS 0, 1→1 | 5,000,000 (4,000,000–6,000,000) /s, qos12 | mosquitto: 100,000 "
        "| 50× | ≥ 40× | ≥ 120× | must |"
    ) == rate
    assert "| QoS 0, 1→1 | 44 MB, qos12 |  |  | ≤ 60 MB | ≤ 45 MB | **stretch** |" == base


def test_a_bound_may_be_all_that_is_to_be_reached() -> None:
    """It has no stretch, and numbers that long have commas."""
    target = Target("rate", "txbroker qos12", 1_000_000, None, None)

    assert ("≥ 1,000,000 /s", "") == (target.text(target.must), target.text(target.stretch))
    assert ("must", "no") == (target.reached(2_000_000), target.reached(999_999))


def test_what_was_not_measured_is_said() -> None:
    """With the bounds, and without a verdict."""
    _, _, rate, _ = targets_table([SCENARIO], {})

    assert ("| QoS 0, 1→1 | not measured, or a run failed |  |  | ≥ 40× | ≥ 120× |  |") == rate


def test_everybody_who_was_measured_has_a_row() -> None:
    """With the ratio to the better Mosquitto; delays only where a rate is given."""
    _, _, theirs, ours = figures_table([SCENARIO], RESULTS)

    assert "| QoS 0, 1→1 | mosquitto | 100,000 | 1 | 10 |  |  |  |" == theirs
    assert (
        "|  | txbroker qos12 | 5,000,000 (4,000,000–6,000,000) | 50 | 0.225 (0.2–0.25) "
        "|  |  | 90% |"
    ) == ours


def test_only_what_is_between_the_markers_is_written() -> None:
    """However long it was."""
    page = f"before\n{BEGIN}\n\nold\n\nolder\n\n{END}\nafter\n"

    assert f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n" == between_markers(page, "new")


@pytest.mark.parametrize("page", ["", BEGIN, f"{END}\n{BEGIN}"])
def test_a_page_without_markers_is_an_error(page: str) -> None:
    """Also one with only half of them."""
    with pytest.raises(ValueError, match="no lines"):
        between_markers(page, "new")
