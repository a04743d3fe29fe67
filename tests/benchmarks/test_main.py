"""The command line of the benchmarks, and what it writes."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks.__main__ import called, choose, report, run
from benchmarks.kept import Kept
from benchmarks.plots import draw
from benchmarks.processes import BrokerFailed, find_program
from benchmarks.scenarios import SCENARIOS

KEPT = Kept(
    facts="Made up.",
    results={
        "1-1": {"mosquitto": [{"rate": 1e5}], "txbroker qos12": [{"rate": 5e6}]},
        "latency": {"txbroker qos12": [{"rate": 1e3, "p50_us": 30.0, "p99_us": 90.0}]},
        "zones": {
            "txbroker qos12, 1 zone": [{"per_cpu_second": 1e6}],
            "txbroker qos12, 2 zones": [{"per_cpu_second": 9e5}],
        },
    },
)


def given(**values: object) -> argparse.Namespace:
    """What the command line says."""
    unsaid = {"only": None, "quick": False, "from_json": None, "core": "compiled", "brokers": None}
    return argparse.Namespace(**{**unsaid, **values})


def _relays(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.startswith("relay")}


def test_all_scenarios_are_measured_if_none_is_named() -> None:
    """In the order of the table."""
    assert list(SCENARIOS) == choose(given())


def test_scenarios_are_chosen_by_name() -> None:
    """In the order of the table, too."""
    assert ["1-1", "qos1"] == [one.name for one in choose(given(only="qos1,1-1"))]


def test_the_quick_ones_are_some() -> None:
    """Of each kind that changes often."""
    names = {one.name for one in choose(given(quick=True))}

    assert {"1-1", "qos1", "latency", "connect", "hop1"} <= names
    assert len(names) < len(SCENARIOS) / 2


def test_a_name_that_no_scenario_has_is_an_error() -> None:
    """Which tells the names that there are."""
    with pytest.raises(ValueError, match=r"no scenario qos3; there are 1-1, .*qos2"):
        choose(given(only="qos1,qos3"))


def test_a_broker_is_each_way_in_which_it_is_run() -> None:
    """Whoever asks for txbroker and Mosquitto has every target against Mosquitto measured."""
    for one in SCENARIOS:
        names = called("txbroker,mosquitto", one.contestants)

        assert set(one.contestants) - set(names) <= {"nats-server", *_relays(one.contestants)}
        assert {target.contestant for target in one.targets} <= set(names)


def test_one_way_to_run_a_broker_is_chosen_by_all_its_words() -> None:
    """The others are left out."""
    names = ("mosquitto", "tuned mosquitto", "txbroker", "txbroker memory", "relay, 1 zone")

    assert ("txbroker memory",) == called("txbroker memory", names)
    assert ("tuned mosquitto", "relay, 1 zone") == called("tuned mosquitto,relay", names)


def test_a_broker_that_there_is_not_is_an_error() -> None:
    """Which tells those that there are."""
    with pytest.raises(ValueError, match=r"no broker mosquito; there are mosquitto; .*txbroker"):
        run((), given(brokers="txbroker,mosquito"))


def test_kept_figures_are_reported_without_a_run(tmp_path: Path) -> None:
    """As they were when they were kept."""
    file = tmp_path / "kept.json"
    file.write_text(KEPT.as_json())

    kept, failures = run(SCENARIOS, given(from_json=file))

    assert (KEPT, []) == (kept, failures)
    assert "Made up." == report(SCENARIOS, kept).splitlines()[0]


def test_the_same_figures_make_the_same_pictures(tmp_path: Path) -> None:
    """So that a commit of them shows what changed."""
    first, second = (
        {file.name: file.read_bytes() for file in draw(tmp_path / name, SCENARIOS, KEPT.results)}
        for name in ("first", "second")
    )

    assert {"ratios.svg", "latency.svg", "scaling.svg"} == set(first)
    assert first == second


def test_pictures_of_nothing_are_not_drawn(tmp_path: Path) -> None:
    """As after a run of other scenarios."""
    assert [] == draw(tmp_path, SCENARIOS, {})


def test_a_program_that_is_missing_is_told_with_its_package() -> None:
    """In one line."""
    with pytest.raises(BrokerFailed, match="^nobody-has-it is not installed; apt-get install it$"):
        find_program("nobody-has-it", "it")
