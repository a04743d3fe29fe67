"""
The targets: a figure of txbroker against one of somebody else in the same run.
"""

from __future__ import annotations

import attrs

HIGHER = frozenset({"rate", "per_cpu_second"})
"""Figures of which more is better; of all others less is."""

UNITS = {
    "rate": "/s",
    "per_cpu_second": "/CPU s",
    "cpu_us": "µs CPU",
    "p50_us": "µs p50",
    "p99_us": "µs p99",
    "idle_bytes": "B each",
    "base_mb": "MB",
}
"""How a figure is written beside its number."""


@attrs.frozen
class Target:
    """
    A bound for `figure` of `contestant`, divided by that of `against`.

    `against` is "mosquitto" (the better of both ways to run it), another contestant, or None: the
    figure itself is bounded. `stretch` None: no more than `must` is to be reached.
    """

    figure: str
    contestant: str
    must: float
    stretch: float | None
    against: str | None = "mosquitto"

    @property
    def is_floor(self) -> bool:
        """True if the bounds are the least that is good; otherwise the most."""
        return self.figure in HIGHER

    def reached(self, ratio: float) -> str:
        """`stretch`, `must` or `no`."""
        for name, bound in (("stretch", self.stretch), ("must", self.must)):
            if bound is None:
                continue
            if ratio >= bound if self.is_floor else ratio <= bound:
                return name
        return "no"

    def text(self, bound: float | None) -> str:
        """A bound as the table has it."""
        if bound is None:
            return ""
        sign = "≥" if self.is_floor else "≤"
        number = f"{bound:,.0f}" if bound >= 1000 else f"{bound:g}"
        unit = f" {UNITS[self.figure]}" if self.against is None else "×"
        return f"{sign} {number}{unit}"
