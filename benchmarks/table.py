"""
Results as Markdown, and the place of docs/performance.md where they stand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from benchmarks.figures import Results, Runs, Spread, Verdict, best, spread, verdict
from benchmarks.scenarios import Scenario
from benchmarks.targets import UNITS

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
"""Lines between which `make bench` writes."""

MARKS = {"stretch": "**stretch**", "must": "must", "no": "no"}


def number(value: float) -> str:
    """Three digits that count, or all of them before the point."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def spread_text(value: Spread | None) -> str:
    """The median, with the spread if there is one."""
    if value is None:
        return ""
    if value.least == value.most:
        return number(value.median)
    return f"{number(value.median)} ({number(value.least)}–{number(value.most)})"


def targets_table(scenarios: Iterable[Scenario], results: Results) -> Iterator[str]:
    """Each target: both figures, their ratio, and whether it is reached."""
    yield "| scenario | txbroker | against | ratio | must | stretch | reached |"
    yield "|---|---|---|---|---|---|---|"
    for scenario in scenarios:
        for target in scenario.targets:
            found = verdict(results, scenario.name, target)
            row = _missing(scenario) if found is None else _row(scenario, found)
            bounds = [target.text(target.must), target.text(target.stretch)]
            reached = "" if found is None else MARKS[found.reached]
            yield f"| {' | '.join([*row, *bounds, reached])} |"


def _missing(scenario: Scenario) -> list[str]:
    return [scenario.title, "not measured, or a run failed", "", ""]


def _row(scenario: Scenario, found: Verdict) -> list[str]:
    target = found.target
    unit = UNITS[target.figure]
    keys = target.contestant.removeprefix("txbroker").strip()
    ours = f"{spread_text(found.ours)} {unit}" + (f", {keys}" if keys else "")
    if found.theirs is None:
        return [scenario.title, ours, "", ""]
    theirs = f"{found.their_name}: {spread_text(found.theirs)}"
    return [scenario.title, ours, theirs, f"{number(found.ratio)}×"]


def figures_table(scenarios: Iterable[Scenario], results: Results) -> Iterator[str]:
    """Everybody's figures, with the ratio of each rate to the better Mosquitto's."""
    yield "| scenario | broker | per second | × | CPU µs | p50 µs | p99 µs | generator |"
    yield "|---|---|---|---|---|---|---|---|"
    for scenario in scenarios:
        runs = results.get(scenario.name, {})
        for place, name in enumerate(name for name in scenario.contestants if runs.get(name)):
            title = "" if place else scenario.title
            yield f"| {title} | {name} | {' | '.join(_figures(runs, name))} |"


def _figures(runs: Runs, name: str) -> Sequence[str]:
    rate, base = spread(runs[name], "rate"), best(runs, "mosquitto", "rate")
    is_paced = spread(runs[name], "late_us") is not None
    ratio = "" if rate is None or base is None or is_paced else number(rate.median / base[1].median)
    shown = [
        spread_text(spread(runs[name], figure)) if figure == "cpu_us" or is_paced else ""
        for figure in ("cpu_us", "p50_us", "p99_us")
    ]
    share = spread(runs[name], "load_share")
    return [spread_text(rate), ratio, *shown, "" if share is None else f"{share.median:.0%}"]


def between_markers(page: str, text: str) -> str:
    """The page with this text in the place of what stands between its markers."""
    before, found, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"no lines {BEGIN} and {END} in the page")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"
