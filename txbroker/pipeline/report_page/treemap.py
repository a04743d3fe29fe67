"""
CORE: divides a rectangle into rectangles with areas in proportion to given numbers.

The method is that of M. Bruls, K. Huizing, J. J. van Wijk, "Squarified treemaps", Data
Visualization 2000. Rows are laid along the shorter side; a row grows as long as its rectangles
become more like squares.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs


@attrs.frozen(slots=True)
class Box:
    """A rectangle: the upper left corner, width and height."""

    x: float
    y: float
    width: float
    height: float

    def inset(self, by: float, top: float = 0.0) -> Box:
        """Return the box within a margin and a header of height `top`; sizes are never negative."""
        width = max(self.width - 2 * by, 0.0)
        return Box(self.x + by, self.y + by + top, width, max(self.height - 2 * by - top, 0.0))


def squarify(values: Sequence[float], box: Box) -> list[Box]:
    """
    Divide `box` in proportion to `values`, which must exceed 0 and should fall.

    The parts fill the box and do not overlap.
    """
    whole = box.width * box.height
    if not whole:
        return [Box(box.x, box.y, 0.0, 0.0) for _ in values]
    scale = whole / sum(values) if values else 0.0
    areas = [value * scale for value in values]
    boxes: list[Box] = []
    left = box
    while len(boxes) < len(areas):
        rest = areas[len(boxes) :]
        row = rest[: _row_length(rest, min(left.width, left.height))]
        placed, left = _lay(row, left)
        boxes += placed
    return boxes


def _row_length(areas: Sequence[float], side: float) -> int:
    """Return how many of the areas make the best row along a side."""
    length, worst = 1, _worst(areas[0], areas[0], areas[0], side)
    least = most = whole = areas[0]
    for area in areas[1:]:
        least, most, whole = min(least, area), max(most, area), whole + area
        next_worst = _worst(least, most, whole, side)
        if next_worst > worst:
            break
        length, worst = length + 1, next_worst
    return length


def _worst(least: float, most: float, whole: float, side: float) -> float:
    """Return the largest ratio of sides in a row with these areas."""
    if not side or not least:
        return float("inf")
    return max(side**2 * most / whole**2, whole**2 / (side**2 * least))


def _lay(row: Sequence[float], box: Box) -> tuple[list[Box], Box]:
    """Place a row at the left or upper end of the box; return its boxes and the rest."""
    whole = sum(row)
    is_wide = box.width >= box.height
    side = box.height if is_wide else box.width
    depth = whole / side if side else 0.0
    placed, at = [], 0.0
    for area in row:
        length = side * area / whole
        placed.append(
            Box(box.x, box.y + at, depth, length)
            if is_wide
            else Box(box.x + at, box.y, length, depth)
        )
        at += length
    if is_wide:
        return placed, Box(box.x + depth, box.y, max(box.width - depth, 0.0), box.height)
    return placed, Box(box.x, box.y + depth, box.width, max(box.height - depth, 0.0))
