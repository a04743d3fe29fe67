"""
The pictures of docs/performance.md, in docs/img/.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib import pyplot
from matplotlib.figure import Figure

from benchmarks.brokers import ZONES, of_zones
from benchmarks.figures import Results, Verdict, spread, verdict
from benchmarks.scenarios import FAST, SCALING, Scenario

matplotlib.use("Agg")
# The same figures make the same picture, so that git sees changes only where something changed.
matplotlib.rcParams["svg.hashsalt"] = "txbroker"

COLOURS = {"stretch": "#2a7f3f", "must": "#4c78a8", "no": "#c0504d"}
LATENCY = ("latency", "hop1-latency", "hop2-latency")


def draw(folder: Path, scenarios: Sequence[Scenario], results: Results) -> list[Path]:
    """Draw what the results are enough for; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [
        _ratios(folder / "ratios.svg", scenarios, results),
        _latency(folder / "latency.svg", scenarios, results),
        _scaling(folder / "scaling.svg", results),
    ]
    return [file for file in drawn if file is not None]


def _ratios(file: Path, scenarios: Sequence[Scenario], results: Results) -> Path | None:
    titles: list[str] = []
    found: list[Verdict] = []
    for scenario in scenarios:
        for target in scenario.targets:
            one = verdict(results, scenario.name, target)
            if one is not None and one.theirs is not None and target.is_floor:
                against = "" if target.against == "mosquitto" else f" / {one.their_name}"
                titles.append(f"{scenario.title} ({target.contestant}{against})")
                found.append(one)
    if not found:
        return None
    figure, axes = pyplot.subplots(figsize=(9, 0.36 * len(found) + 1.2))
    places = range(len(found))
    axes.barh(places, [one.ratio for one in found], color=[COLOURS[one.reached] for one in found])
    for name, mark in (("must", "|"), ("stretch", "D")):
        bounds = [getattr(one.target, name) for one in found]
        axes.scatter(bounds, places, marker=mark, color="black", s=30, label=name, zorder=3)
    axes.set_xscale("log")
    axes.set_yticks(places, titles, fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("times as many as the better Mosquitto (or who is named)")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return _save(figure, file)


def _latency(file: Path, scenarios: Sequence[Scenario], results: Results) -> Path | None:
    by_name = {scenario.name: scenario for scenario in scenarios}
    rows: list[tuple[str, float, float]] = []
    for name in LATENCY:
        for contestant in results.get(name, {}):
            p50 = spread(results[name][contestant], "p50_us")
            p99 = spread(results[name][contestant], "p99_us")
            if p50 is not None and p99 is not None and name in by_name:
                title = f"{by_name[name].title}: {contestant}"
                rows.append((title, p50.median, p99.median))
    if not rows:
        return None
    figure, axes = pyplot.subplots(figsize=(9, 0.36 * len(rows) + 1.2))
    places = range(len(rows))
    axes.barh(places, [p99 for _, _, p99 in rows], color="#c6d4e3", label="p99")
    axes.barh(places, [p50 for _, p50, _ in rows], color="#4c78a8", label="p50")
    axes.set_xscale("log")
    axes.set_yticks(places, [title for title, _, _ in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("µs from publish to delivery")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return _save(figure, file)


def _scaling(file: Path, results: Results) -> Path | None:
    points = []
    runs = results.get(SCALING.name, {})
    for count in ZONES:
        found = spread(runs.get(of_zones(FAST, count), ()), "per_cpu_second")
        if found is not None:
            points.append((count, found))
    if not points:
        return None
    figure, axes = pyplot.subplots(figsize=(5, 3))
    counts = [str(count) for count, _ in points]
    axes.bar(counts, [value.median for _, value in points], color="#4c78a8")
    axes.set_xlabel("zones, with a node each")
    axes.set_ylabel("messages per CPU second of all nodes")
    return _save(figure, file)


def _save(figure: Figure, file: Path) -> Path:
    figure.savefig(file, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
    return file
