"""
Formats numbers and times for readers: ticks of axes, units, steps of time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
"""Seconds between ticks of time, and lengths of windows; above a day, whole days are used."""


def ticks(most: float, count: int = 4) -> list[float]:
    """Return about `count` round numbers from 0 to at least `most`."""
    if most <= 0:
        return [0.0, 1.0]
    rough = most / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    return [step * number for number in range(math.ceil(most / step - 1e-9) + 1)]


def step_of_time(seconds: float, count: int) -> int:
    """Return the smallest step, in seconds, that divides a span into at most `count` parts."""
    for step in STEPS:
        if seconds / step <= count:
            return step
    return 86400 * math.ceil(seconds / 86400 / count)


def time_ticks(start: datetime, end: datetime, count: int = 6) -> list[datetime]:
    """Return round times from `start` to `end`, about `count` at most."""
    step = step_of_time((end - start).total_seconds(), count)
    first = math.ceil(start.timestamp() / step) * step
    found = []
    at = datetime.fromtimestamp(first, UTC)
    while at <= end:
        found.append(at)
        at += timedelta(seconds=step)
    return found


def clock(time: datetime, others: Sequence[datetime]) -> str:
    """Format a time on an axis with these ticks; the day is added if the ticks have several."""
    days = {other.date() for other in others}
    if all(other.hour == other.minute == other.second == 0 for other in others):
        return f"{time:%b %d}"
    is_short = all(other.second == 0 for other in others)
    text = f"{time:%H:%M}" if is_short else f"{time:%H:%M:%S}"
    return f"{time:%b %d} {text}" if len(days) > 1 else text


def number(value: float) -> str:
    """Format about three significant digits, with thousands separators."""
    if value == 0:
        return "0"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(digits, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def size(count: float) -> str:
    """Format a number of bytes in a suitable unit."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{number(count)} {unit}"
        count /= 1024
    raise AssertionError("the last unit takes all")


def duration(seconds: float) -> str:
    """Format a duration in a suitable unit."""
    for limit, factor, unit in (
        (0.001, 1e6, "µs"),
        (1, 1e3, "ms"),
        (120, 1, "s"),
        (7200, 1 / 60, "min"),
        (172800, 1 / 3600, "h"),
    ):
        if abs(seconds) < limit:
            return f"{number(seconds * factor)} {unit}"
    return f"{number(seconds / 86400)} d"


def share(part: float) -> str:
    """Format a part of a whole as a percentage."""
    return f"{part * 100:.1f} %"
