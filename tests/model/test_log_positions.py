"""Sets of places in journals."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.log_positions import PlaceSet

PARTS = (JournalId("", 1), JournalId("a", 1))
PLACES = st.lists(st.builds(LogPosition, st.sampled_from(PARTS), st.integers(1, 9)))


@given(given=PLACES, more=PLACES, part=st.sampled_from(PARTS), offsets=st.lists(st.integers(1, 9)))
def test_it_is_a_set(
    given: list[LogPosition], more: list[LogPosition], part: JournalId, offsets: list[int]
) -> None:
    found, expected = PlaceSet(given), set(given)
    other = PlaceSet(more)
    assert found.has_common(other) == bool(expected & set(more))
    assert found.has_any(part, offsets) == any(place in expected for place in at(part, offsets))
    found.merge(other)
    expected |= set(more)
    assert (len(found), bool(found)) == (len(expected), bool(expected))
    assert sorted(expected) == sorted(found)
    assert all(
        (LogPosition(part, n) in found) == (LogPosition(part, n) in expected) for n in offsets
    )

    taken = found.take(part, offsets)
    assert at(part, taken) == expected & at(part, offsets)
    expected -= at(part, offsets)
    assert found == PlaceSet(expected) and sorted(expected) == sorted(found)
    found.update(part, offsets)
    expected |= at(part, offsets)
    for one, ordered in found.parts():
        assert list(ordered) == sorted(place.offset for place in expected if place.part == one)
    assert all(found.discard(place) for place in expected) and not found


def at(part: JournalId, offsets: object) -> set[LogPosition]:
    return {LogPosition(part, offset) for offset in offsets}  # type: ignore[attr-defined]
