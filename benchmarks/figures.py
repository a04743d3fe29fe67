"""
From the figures of runs to medians, spreads and ratios. Values only.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import attrs

from benchmarks.generator import Figures
from benchmarks.targets import HIGHER, Target

Runs = Mapping[str, Sequence[Figures]]
"""Of one scenario: the runs of each contestant that have not failed."""

Results = Mapping[str, Runs]
"""Of each scenario."""


@attrs.frozen
class Spread:
    """The median of several runs and the two ends."""

    median: float
    least: float
    most: float


@attrs.frozen(kw_only=True)
class Verdict:
    """A target, and its outcome; `theirs` is None if the target is a bound by itself."""

    scenario: str
    target: Target
    ours: Spread
    theirs: Spread | None
    their_name: str
    ratio: float

    @property
    def reached(self) -> str:
        """`stretch`, `must` or `no`."""
        return self.target.reached(self.ratio)


def spread(runs: Sequence[Figures], figure: str) -> Spread | None:
    """Of one figure; None if the runs do not have it."""
    values = [run[figure] for run in runs if figure in run]
    if not values:
        return None
    return Spread(statistics.median(values), min(values), max(values))


def best(runs: Runs, prefix: str, figure: str) -> tuple[str, Spread] | None:
    """The contestant with the better median of those whose name begins so, figure by figure."""
    found = [
        (name, value)
        for name in runs
        if name.startswith(prefix) and (value := spread(runs[name], figure)) is not None
    ]
    if not found:
        return None
    choose = max if figure in HIGHER else min
    return choose(found, key=lambda one: one[1].median)


def verdict(results: Results, scenario: str, target: Target) -> Verdict | None:
    """The outcome of a target; None: it was not measured, or a run of it failed."""
    ours = spread(results.get(scenario, {}).get(target.contestant, ()), target.figure)
    if ours is None:
        return None
    if target.against is None:
        return Verdict(
            scenario=scenario,
            target=target,
            ours=ours,
            theirs=None,
            their_name="",
            ratio=ours.median,
        )
    theirs = best(results[scenario], target.against, target.figure)
    if theirs is None:
        return None
    name, value = theirs
    return Verdict(
        scenario=scenario,
        target=target,
        ours=ours,
        theirs=value,
        their_name=name,
        ratio=ours.median / value.median,
    )
