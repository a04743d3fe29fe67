"""The scenarios fit together."""

from __future__ import annotations

import pytest

from benchmarks.__main__ import PAGE
from benchmarks.brokers import BrokerFailed, contestants
from benchmarks.scenarios import SCENARIOS, Scenario
from benchmarks.table import between_markers


def test_names_are_unique() -> None:
    """They choose a scenario on the command line."""
    names = [scenario.name for scenario in SCENARIOS]

    assert len(set(names)) == len(names)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_a_scenario_measures_those_whom_its_targets_are_about(scenario: Scenario) -> None:
    """And everybody in it is known."""
    known = contestants("compiled")

    assert set(scenario.contestants) <= set(known)
    for target in scenario.targets:
        assert target.contestant in scenario.contestants
        assert (target.against or target.contestant) in scenario.contestants


def test_a_node_with_another_core_is_not_measured() -> None:
    """Nobody takes the figures of one core for those of the other."""
    site = contestants("none")["txbroker"]("single")

    with pytest.raises(BrokerFailed, match="to be measured is 'none'"), site:
        pass


def test_the_page_has_a_place_for_the_tables() -> None:
    """Where `make bench` writes."""
    assert "figures" in between_markers(PAGE.read_text(), "figures")
