"""
Draws the plots of the report as SVG with text alternatives.

Colours are the page's variables (`--series-1` and so on), so a plot fits light and dark pages.
Every mark has a title, which browsers show on hovering and read aloud.

Weighed against matplotlib and Vega, by size and not by time: docs/decisions/charts.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import attrs

from txbroker.pipeline.report_page.markup import Html, element, joined, visible
from txbroker.pipeline.report_page.scales import clock, ticks, time_ticks
from txbroker.pipeline.report_page.treemap import Box, squarify

WIDTH = 1000.0
SERIES = 8
"""Number of colours; groups after the last colour share it."""
LETTER = 7.5
"""Approximate width of a letter in plots."""


@attrs.frozen(slots=True, kw_only=True)
class Tile:
    """
    A part of the tree map: its name and its size.

    `details` are further texts about it, from the longest to the shortest.
    """

    label: str
    value: float
    details: Sequence[str]


@attrs.frozen(slots=True, kw_only=True)
class Group:
    """Tiles under one label."""

    label: str
    tiles: Sequence[Tile]

    @property
    def value(self) -> float:
        """Sum of the values of all tiles."""
        return sum(tile.value for tile in self.tiles)


@attrs.frozen(slots=True, kw_only=True)
class Line:
    """A row of values over time; None for a missing value."""

    label: str
    values: Sequence[float | None]


@attrs.frozen(slots=True, kw_only=True)
class Bar:
    """A bar of a histogram: its label, its height, and the text of its title."""

    label: str
    value: float
    title: str


@attrs.frozen(slots=True, kw_only=True)
class Track:
    """A range of numbers with holes: `holes` are (first, last) within `first` to `last`."""

    label: str
    first: int
    last: int
    holes: Sequence[tuple[int, int]]


# -- tree map


def tree_map(title: str, groups: Sequence[Group], height: float = 440.0) -> Html:
    """Draw a rectangle for each group, and in it one for each of its tiles."""
    ordered = sorted(groups, key=lambda group: -group.value)
    boxes = squarify([group.value for group in ordered], Box(0, 0, WIDTH, height))
    parts = [
        _group(group, box, min(number, SERIES))
        for number, (group, box) in enumerate(zip(ordered, boxes, strict=True), 1)
    ]
    return _svg(title, height, parts)


def _group(group: Group, box: Box, series: int) -> Html:
    has_header = box.width > 60 and box.height > 50 and len(group.tiles) > 1
    margin = 2 if min(box.width, box.height) > 8 else 0
    inner = box.inset(margin, top=20 if has_header else 0)
    tiles = sorted(group.tiles, key=lambda tile: -tile.value)
    prefix = f"{group.label}/" if has_header else ""
    parts = [
        _tile(tile, tile.label.removeprefix(prefix), part, series)
        for tile, part in zip(tiles, squarify([tile.value for tile in tiles], inner), strict=True)
    ]
    if has_header:
        parts.insert(0, _fitted(group.label, box.x + 6, box.y + 16, box.width - 12, "strong"))
    return element("g", *parts)


def _tile(tile: Tile, label: str, box: Box, series: int) -> Html:
    title = element("title", f"{visible(tile.label)}: {tile.details[0]}")
    rectangle = element(
        "rect",
        title,
        x=box.x,
        y=box.y,
        width=box.width,
        height=box.height,
        rx=3,
        class_=f"tile s{series}",
    )
    if box.width < 44 or box.height < 18:
        return rectangle
    room = box.width - 10
    lines = [_fitted(label, box.x + 6, box.y + 16, room)]
    fitting = (detail for detail in tile.details if len(detail) * LETTER <= room)
    if box.height > 38 and (detail := next(fitting, None)) is not None:
        lines.append(_fitted(detail, box.x + 6, box.y + 33, room, "faint"))
    return joined(rectangle, *lines)


def _fitted(text: str, x: float, y: float, width: float, class_: str | None = None) -> Html:
    """Draw text cut to about `width`, at its start: the end of a topic is more significant."""
    shown = visible(text)
    room = int(width / LETTER)
    if len(shown) > room:
        shown = f"\N{HORIZONTAL ELLIPSIS}{shown[len(shown) - room + 1 :]}" if room > 3 else ""
    return element("text", shown, x=x, y=y, class_=class_)


# -- over time


def time_lines(
    title: str,
    starts: Sequence[datetime],
    lines: Sequence[Line],
    spell: Callable[[float], str],
    height: float = 260.0,
) -> Html:
    """
    Draw lines over time windows that begin at `starts`; `spell` formats a value with its unit.
    """
    most = max((value for line in lines for value in line.values if value is not None), default=0.0)
    area = Box(78, 12, WIDTH - 98, height - 46)
    levels = ticks(most)
    end = starts[-1] if len(starts) > 1 else starts[0]
    span = (end - starts[0]).total_seconds() or 1.0

    def x_of(time: datetime) -> float:
        return area.x + area.width * ((time - starts[0]).total_seconds() / span)

    def y_of(value: float) -> float:
        return area.y + area.height * (1 - value / levels[-1])

    parts = [_grid(level, y_of(level), area, spell) for level in levels]
    shown = time_ticks(starts[0], end)
    parts += [
        element("text", clock(time, shown), x=x_of(time), y=height - 12, class_="axis middle")
        for time in shown
    ]
    for number, line in enumerate(lines, 1):
        points = [
            (x_of(start), y_of(value))
            for start, value in zip(starts, line.values, strict=True)
            if value is not None
        ]
        parts.append(_polyline(points, number))
    width = area.width / max(len(starts) - 1, 1)
    parts += [
        _hover(
            start, [line.values[place] for line in lines], lines, x_of(start), width, area, spell
        )
        for place, start in enumerate(starts)
    ]
    return _svg(title, height, parts)


def _polyline(points: Sequence[tuple[float, float]], series: int) -> Html:
    if len(points) == 1:
        (x, y), *_ = points
        return element("circle", cx=x, cy=y, r=4, class_=f"dot s{series}")
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return element("polyline", points=path, class_=f"line s{series}")


def _hover(
    start: datetime,
    values: Sequence[float | None],
    lines: Sequence[Line],
    x: float,
    width: float,
    area: Box,
    spell: Callable[[float], str],
) -> Html:
    """Draw a transparent strip with the values of one window as its title."""
    said = ", ".join(
        f"{line.label} {spell(value)}"
        for line, value in zip(lines, values, strict=True)
        if value is not None
    )
    title = element("title", f"{start:%Y-%m-%d %H:%M:%S} UTC: {said}")
    return element(
        "rect", title, x=x - width / 2, y=area.y, width=width, height=area.height, class_="hover"
    )


# -- bars


def bars(title: str, values: Sequence[Bar], spell: Callable[[float], str]) -> Html:
    """Draw a histogram; the label of a bar is its lower bound, if it has room."""
    height = 240.0
    area = Box(78, 12, WIDTH - 98, height - 46)
    levels = ticks(max((bar.value for bar in values), default=0.0))
    parts = [
        _grid(level, area.y + area.height * (1 - level / levels[-1]), area, spell)
        for level in levels
    ]
    width = area.width / max(len(values), 1)
    every = max(1, -(-int(9 * LETTER) // max(int(width), 1)))
    for place, bar in enumerate(values):
        tall = area.height * bar.value / levels[-1]
        x = area.x + place * width
        parts.append(
            element(
                "rect",
                element("title", bar.title),
                x=x + 1,
                y=area.y + area.height - tall,
                width=max(width - 2, 1.0),
                height=tall,
                rx=2,
                class_="bar s1",
            )
        )
        if place % every == 0:
            parts.append(element("text", bar.label, x=x, y=height - 12, class_="axis middle"))
    return _svg(title, height, parts)


def tracks(title: str, rows: Sequence[Track]) -> Html:
    """Draw a bar of the full width for each range of numbers, with its holes."""
    parts = []
    left, wide, tall = 240.0, WIDTH - 250, 26.0
    for place, row in enumerate(rows):
        y = 6 + place * tall
        whole = row.last - row.first + 1
        parts.append(_fitted(row.label, 0, y + 14, left - 10))
        said = element("title", f"{visible(row.label)}: offsets {row.first} to {row.last}")
        parts.append(
            element("rect", said, x=left, y=y, width=wide, height=18, rx=3, class_="bar s1")
        )
        for first, last in row.holes:
            hole = element("title", f"missing: offsets {first} to {last}")
            parts.append(
                element(
                    "rect",
                    hole,
                    x=left + wide * (first - row.first) / whole,
                    y=y,
                    width=max(wide * (last - first + 1) / whole, 2.0),
                    height=18,
                    class_="hole",
                )
            )
    return _svg(title, 12 + len(rows) * tall, parts)


# -- shared


def _grid(level: float, y: float, area: Box, spell: Callable[[float], str]) -> Html:
    line = element("line", x1=area.x, x2=area.x + area.width, y1=y, y2=y, class_="grid")
    return joined(line, element("text", spell(level), x=area.x - 8, y=y + 4, class_="axis end"))


def _svg(title: str, height: float, parts: Sequence[Html]) -> Html:
    return element(
        "svg",
        element("title", title),
        *parts,
        viewBox=f"0 0 {WIDTH:.0f} {height:.0f}",
        role="img",
        aria_label=title,
    )
