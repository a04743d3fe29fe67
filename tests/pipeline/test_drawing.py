"""Tree maps, scales and markup, by themselves."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.workload import BEGIN
from txbroker.pipeline.report_page.charts import Bar, Group, Line, Tile, bars, time_lines, tree_map
from txbroker.pipeline.report_page.markup import Html, element, joined, visible
from txbroker.pipeline.report_page.scales import (
    clock,
    duration,
    number,
    size,
    step_of_time,
    ticks,
    time_ticks,
)
from txbroker.pipeline.report_page.treemap import Box, squarify


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=30), st.floats(10, 2000))
def test_boxes_fill_and_do_not_overlap(values: list[int], width: float) -> None:
    """Areas in proportion, all inside, and no two share more than an edge."""
    parts = squarify(sorted(values, reverse=True), Box(10.0, 20.0, width, 300.0))
    whole = sum(values)

    for value, part in zip(sorted(values, reverse=True), parts, strict=True):
        assert part.width * part.height == pytest.approx(value / whole * width * 300, rel=1e-3)
        assert part.x >= 10 - 1e-3 and part.x + part.width <= 10 + width + 1e-3
        assert part.y >= 20 - 1e-3 and part.y + part.height <= 320 + 1e-3
    for place, one in enumerate(parts):
        for other in parts[place + 1 :]:
            wide = min(one.x + one.width, other.x + other.width) - max(one.x, other.x)
            high = min(one.y + one.height, other.y + other.height) - max(one.y, other.y)
            assert wide <= 1e-3 or high <= 1e-3


def test_boxes_of_equal_values_are_nearly_square() -> None:
    """What the method is for."""
    parts = squarify([1.0] * 12, Box(0, 0, 400, 300))

    assert all(2 / 3 <= part.width / part.height <= 1.5 for part in parts)
    assert [Box(0, 0, 0, 0)] * 2 == squarify([1, 2], Box(0, 0, 0, 9))


@pytest.mark.parametrize(
    ("most", "expected"),
    [(0, [0, 1]), (1, [0, 0.25, 0.5, 0.75, 1]), (7, [0, 2, 4, 6, 8]), (1000, None)],
)
def test_ticks_are_round_and_reach_the_top(most: float, expected: list[float] | None) -> None:
    """From 0 on."""
    found = ticks(most)

    assert found[-1] >= most and len(found) <= 6
    assert expected is None or expected == found


@given(st.floats(1e-9, 1e15))
def test_ticks_of_anything(most: float) -> None:
    """Few, rising, and never short of what is drawn."""
    found = ticks(most)

    assert 2 <= len(found) <= 7
    assert found[0] == 0 and found[-1] >= most * 0.999


def test_numbers_as_people_read_them() -> None:
    """Three digits that matter, units that suit."""
    assert ["0", "12,346", "12.3", "0.0123", "5"] == [
        number(value) for value in (0, 12345.6, 12.345, 0.01234, 5.0)
    ]
    assert ["999 B", "1.5 KiB", "2,048 TiB"] == [size(n) for n in (999, 1536, 2**51)]
    assert ["250 µs", "12.5 ms", "90 s", "3 min", "5 h", "3 d"] == [
        duration(value) for value in (0.00025, 0.0125, 90, 180, 18000, 259200)
    ]


def test_times_as_people_read_them() -> None:
    """With the day where an axis has more than one."""
    hours = time_ticks(BEGIN, BEGIN + timedelta(hours=5), 6)
    days = time_ticks(BEGIN, BEGIN + timedelta(days=5), 6)
    half_days = time_ticks(BEGIN, BEGIN + timedelta(days=2), 6)

    assert ["12:00", "13:00"] == [clock(time, hours) for time in hours[:2]]
    assert ["Mar 02", "Mar 03"] == [clock(time, days) for time in days[:2]]
    assert "Mar 01 12:00" == clock(half_days[0], half_days)
    assert "12:00:01" == clock(BEGIN + timedelta(seconds=1), [BEGIN + timedelta(seconds=1)])
    assert [1, 30, 86400 * 9] == [step_of_time(s, 120) for s in (5, 3600, 86400 * 1000)]


def test_text_is_escaped_where_it_becomes_markup() -> None:
    """In attributes as well; only elements stand as they are."""
    made = element("p", "a < b", element("br"), class_='"x"', aria_label="<", hidden=None)

    assert '<p class="&quot;x&quot;" aria-label="&lt;">a &lt; b<br></p>' == made
    assert "&lt;b&gt;<b></b>" == joined("<b>", element("b"))
    assert isinstance(joined("x"), Html) and not isinstance(visible("x"), Html)
    assert "a\\n\\x00\\u202eb" == visible("a\n\x00\u202eb")
    assert "aaa\N{HORIZONTAL ELLIPSIS}" == visible("a" * 9, 4)


def test_one_value_and_none_can_be_drawn() -> None:
    """A single point is a dot; no value, no line."""
    assert "<circle" in time_lines("t", [BEGIN], [Line(label="x", values=[1.0])], number)
    starts = [BEGIN, BEGIN + timedelta(seconds=1)]
    drawn = time_lines("t", starts, [Line(label="x", values=[None, None])], number)
    assert 'points=""' in drawn and "nan" not in drawn
    assert "<svg" in bars("t", [], number)
    assert "5 to 6" in bars("t", [Bar(label="5", value=0, title="5 to 6")], number)


def test_tiles_too_small_for_text_have_titles() -> None:
    """Nobody is left without a name."""
    tiles = [Tile(label=f"a/{n}", value=1.0 / (n + 1) ** 3, details=("d",)) for n in range(200)]
    drawn = tree_map("t", [Group(label="a", tiles=tiles)])

    assert 201 == drawn.count("<title>")
    assert drawn.count("<text") < 60
