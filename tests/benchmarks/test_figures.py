"""Medians, spreads, who is the better one, ratios."""

from __future__ import annotations

import pytest

from benchmarks.figures import Spread, best, spread, verdict
from benchmarks.targets import Target

RESULTS = {
    "1-1": {
        "mosquitto": [{"rate": 90.0, "p99_us": 10_000.0}, {"rate": 110.0, "p99_us": 16_000.0}],
        "mosquitto nodelay": [{"rate": 50.0, "p99_us": 200.0}],
        "txbroker": [{"rate": rate, "p99_us": 300.0, "base_mb": 50.0} for rate in (1.0, 9.0, 5.0)],
        "nats-server": [{"rate": 20.0}],
    },
    "failed": {"mosquitto": [], "txbroker": [{"rate": 1.0}]},
}


def test_a_spread_is_the_median_with_both_ends() -> None:
    """Of an odd and of an even number of runs."""
    assert Spread(5, 1, 9) == spread(RESULTS["1-1"]["txbroker"], "rate")
    assert Spread(100, 90, 110) == spread(RESULTS["1-1"]["mosquitto"], "rate")


def test_a_figure_that_no_run_has_has_no_spread() -> None:
    """As when all runs failed."""
    assert spread([], "rate") is None
    assert spread([{"rate": 1.0}], "p50_us") is None


@pytest.mark.parametrize(
    ("figure", "name"), [("rate", "mosquitto"), ("p99_us", "mosquitto nodelay")]
)
def test_the_better_mosquitto_is_another_one_for_each_figure(figure: str, name: str) -> None:
    """More is better for a rate, less for a delay."""
    found = best(RESULTS["1-1"], "mosquitto", figure)

    assert found is not None and name == found[0]


def test_a_ratio_is_that_of_the_medians() -> None:
    """Against the better Mosquitto."""
    found = verdict(RESULTS, "1-1", Target("rate", "txbroker", 0.04, 0.06))

    assert found is not None
    assert ("mosquitto", 0.05, "must") == (found.their_name, found.ratio, found.reached)


def test_a_target_may_be_against_somebody_else() -> None:
    """By name."""
    found = verdict(RESULTS, "1-1", Target("rate", "txbroker", 3, 10, "nats-server"))

    assert found is not None
    assert ("nats-server", 0.25, "no") == (found.their_name, found.ratio, found.reached)


def test_a_target_may_be_a_bound_by_itself() -> None:
    """Then the figure is the ratio."""
    found = verdict(RESULTS, "1-1", Target("base_mb", "txbroker", 60, 45, None))

    assert found is not None
    assert (None, 50, "must") == (found.theirs, found.ratio, found.reached)


@pytest.mark.parametrize("scenario", ["failed", "not measured"])
def test_without_both_figures_there_is_no_verdict(scenario: str) -> None:
    """A run that failed has none."""
    assert verdict(RESULTS, scenario, Target("rate", "txbroker", 1, 2)) is None


@pytest.mark.parametrize(
    ("figure", "ratio", "reached"),
    [
        *[("rate", 0.9, "no"), ("rate", 1, "must"), ("rate", 2, "stretch")],
        *[("cpu_us", 2.1, "no"), ("cpu_us", 2, "must"), ("cpu_us", 1, "stretch")],
    ],
)
def test_a_bound_that_is_met_exactly_is_reached(figure: str, ratio: float, reached: str) -> None:
    """A floor for a rate, a ceiling for what is better when it is less."""
    must, stretch = (1, 2) if figure == "rate" else (2, 1)

    assert reached == Target(figure, "txbroker", must, stretch).reached(ratio)
