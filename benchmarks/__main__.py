"""
txbroker beside Mosquitto and nats-server: `make bench`, `make bench-quick`, `python -m benchmarks`.

Each scenario is run several times, the brokers in turn, each time fresh. A run in which a message
is lost, doubled, reordered or damaged does not count. The command tells it, and its exit status is
1 then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks import generator
from benchmarks.brokers import contestants
from benchmarks.generator import ROOT, Figures, RunFailed
from benchmarks.kept import Kept, facts
from benchmarks.measure import measure
from benchmarks.processes import BrokerFailed, come_first, find_program
from benchmarks.scenarios import SCENARIOS, Scenario
from benchmarks.table import between_markers, figures_table, targets_table

PAGE = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "img"
LATEST = ROOT / "benchmarks" / "results" / "latest.json"

RUNS_BESIDE = 3
"""Runs at the most of a scenario in which nothing is to be reached."""


def main() -> None:
    """See the module's text."""
    given = arguments()
    try:
        find_program("mosquitto", "mosquitto")
        find_program("nats-server", "nats-server")
        if given.realtime:
            come_first()
        generator.build()
        chosen = choose(given)
        kept, failures = run(chosen, given)
    except (BrokerFailed, ValueError) as error:
        raise SystemExit(f"benchmarks: {error}") from None
    text = report(chosen, kept)
    print(f"\n{text}")
    if given.json is not None:
        given.json.write_text(kept.as_json())
    if given.write:
        write(chosen, kept, text)
    for failure in failures:
        print(f"benchmarks: {failure}", file=sys.stderr)
    raise SystemExit(1 if failures else 0)


def arguments() -> argparse.Namespace:
    """The values of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", help="names of scenarios, with commas between them")
    parser.add_argument(
        "--brokers",
        help="with commas between them: txbroker, say, is each way in which it is run, and "
        "'txbroker memory' one of them",
    )
    parser.add_argument("--quick", action="store_true", help="the scenarios of make bench-quick")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, help="of publishing in each run")
    parser.add_argument(
        "--realtime", action="store_true", help="brokers and load come before all else; as root"
    )
    parser.add_argument("--core", default="compiled", help="the one that nodes have to run")
    parser.add_argument("--json", type=Path, help="a file for the figures of all runs")
    parser.add_argument("--write", action="store_true", help="to docs/ and benchmarks/results/")
    parser.add_argument("--from-json", type=Path, help="runs nothing; takes these figures")
    return parser.parse_args()


def choose(given: argparse.Namespace) -> list[Scenario]:
    """The scenarios that are asked for; `ValueError` for a name that none has."""
    names = [scenario.name for scenario in SCENARIOS]
    wanted = names if given.only is None else given.only.split(",")
    unknown = set(wanted) - set(names)
    if unknown:
        raise ValueError(f"no scenario {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    return [
        scenario
        for scenario in SCENARIOS
        if scenario.name in wanted and (scenario.is_quick or not given.quick)
    ]


def called(brokers: str, names: Sequence[str]) -> tuple[str, ...]:
    """The contestants that one of the brokers asked for is: their names have all of its words."""
    wanted = [set(name.split()) for name in brokers.split(",")]
    return tuple(name for name in names if any(words <= _words(name) for words in wanted))


def check_called(brokers: str, names: Iterable[str]) -> None:
    """Raises `ValueError` where a broker that is asked for is none."""
    names = tuple(names)
    unknown = [name for name in brokers.split(",") if not called(name, names)]
    if unknown:
        raise ValueError(f"no broker {', '.join(unknown)}; there are {'; '.join(names)}")


def _words(name: str) -> set[str]:
    return set(name.replace(",", "").split())


def run(chosen: Sequence[Scenario], given: argparse.Namespace) -> tuple[Kept, list[str]]:
    """The figures of all runs, and a line for each run that does not count."""
    if given.from_json is not None:
        return Kept.from_json(given.from_json.read_text()), []
    brokers = contestants(given.core)
    if given.brokers is not None:
        check_called(given.brokers, brokers)
    with brokers["txbroker"]("single"):
        pass  # only to hear at once which core runs
    more = {} if given.seconds is None else {"seconds": given.seconds}
    results: dict[str, dict[str, list[Figures]]] = {}
    failures: list[str] = []
    for scenario in chosen:
        names = scenario.contestants
        if given.brokers is not None:
            names = called(given.brokers, names)
        runs: dict[str, list[Figures]] = {name: [] for name in names}
        for _ in range(given.runs if scenario.targets else min(given.runs, RUNS_BESIDE)):
            for name in names:
                try:
                    runs[name].append(measure(scenario, brokers[name], more))
                except (RunFailed, BrokerFailed) as error:
                    failures.append(f"{scenario.name}, {name}: {error}")
                    print(failures[-1], file=sys.stderr, flush=True)
        results[scenario.name] = runs
        print("\n".join(list(figures_table([scenario], results))[2:]), flush=True)
    return Kept(facts=facts(given.core, given.runs, given.realtime), results=results), failures


def report(chosen: Sequence[Scenario], kept: Kept) -> str:
    """The machine, the versions, and both tables."""
    tables = (targets_table(chosen, kept.results), figures_table(chosen, kept.results))
    return "\n\n".join([kept.facts, *("\n".join(table) for table in tables)])


def write(chosen: Sequence[Scenario], kept: Kept, text: str) -> None:
    """The tables and pictures of docs/, and the figures of all runs."""
    # Takes a second, and is only needed here.
    from benchmarks.plots import draw

    draw(IMAGES, chosen, kept.results)
    PAGE.write_text(between_markers(PAGE.read_text(), text))
    LATEST.write_text(kept.as_json())


if __name__ == "__main__":
    main()
