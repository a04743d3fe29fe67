"""
What can be read next, and what lies between two positions.

The property: whoever reads from step to step, over parts that grow, close, follow one another and
are trimmed behind the reader, gets every record once; and each step, asked again at any later time,
gives the same.
"""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txbroker.model.log_position import JournalId
from txbroker.pipeline.source.positions import ZonePosition
from txbroker.pipeline.source.ranges import (
    MOST_OFFSETS,
    HistoryGap,
    JournalRange,
    ReadSpan,
    ZoneHistory,
    advance,
    is_known,
    logs_of,
    share,
    spans,
    split,
)


def part(epoch: int, first: int, end: int, *, closed: bool = False, **more: object) -> JournalRange:
    fields = {"zone": "z", "epoch": epoch, "first": first, "end": end, "is_closed": closed}
    return JournalRange(**{**fields, **more})


def log(
    *parts: JournalRange, whole: bool = True, cut_off: frozenset[int] = frozenset()
) -> ZoneHistory:
    return ZoneHistory(zone="z", parts=parts, is_whole=whole, cut_off=cut_off)


def offsets(found: list[ReadSpan]) -> list[tuple[int, int]]:
    return [(span.epoch, offset) for span in found for offset in range(span.start, span.end)]


# -- the next step


def test_an_open_part_is_read_to_its_end() -> None:
    step = advance(log(part(1, 1, 11)), ZonePosition(1, 4))

    assert (ZonePosition(1, 11), 7, None) == (step.position, step.count, step.gap)


def test_a_limit_holds() -> None:
    assert ZonePosition(1, 6) == advance(log(part(1, 1, 11)), ZonePosition(1, 4), 2).position


def test_a_closed_part_that_was_read_is_left_though_nothing_follows() -> None:
    assert (
        ZonePosition(4, 1) == advance(log(part(3, 1, 11, closed=True)), ZonePosition(3, 4)).position
    )
    assert (
        ZonePosition(4, 1)
        == advance(log(part(3, 1, 11, closed=True)), ZonePosition(3, 11)).position
    )


def test_an_open_part_is_not_left() -> None:
    step = advance(log(part(3, 1, 11), part(5, 1, 9)), ZonePosition(3, 11))

    assert ZonePosition(3, 11) == step.position


def test_the_next_part_may_have_any_higher_epoch() -> None:
    known = log(part(3, 1, 11, closed=True), part(7, 1, 9))

    assert ZonePosition(7, 9) == advance(known, ZonePosition(4, 1)).position


def test_nobody_goes_on_while_a_node_that_may_keep_more_is_away() -> None:
    known = log(part(7, 1, 9), whole=False)

    assert ZonePosition(4, 1) == advance(known, ZonePosition(4, 1)).position
    assert ZonePosition(3, 5) == advance(known, ZonePosition(3, 5)).position
    assert known.tail is None


def test_a_part_that_is_here_is_read_whoever_is_away() -> None:
    assert (
        ZonePosition(3, 11)
        == advance(log(part(3, 1, 11), whole=False), ZonePosition(3, 5)).position
    )


def test_what_retention_took_is_a_gap() -> None:
    step = advance(log(part(1, 6, 11)), ZonePosition(1, 2), 3)

    assert HistoryGap(zone="z", epoch=1, start=2, end=6) == step.gap
    assert ZonePosition(1, 9) == step.position
    assert "zone 'z', epoch 1: the offsets 2 to 5" in str(step.gap)


@pytest.mark.parametrize("parts", [(), (part(5, 1, 3),)])
def test_a_part_that_nobody_keeps_is_a_gap(parts: tuple[JournalRange, ...]) -> None:
    step = advance(log(*parts), ZonePosition(3, 5))

    assert HistoryGap(zone="z", epoch=3, start=5, end=None) == step.gap


def test_a_part_that_was_read_may_vanish() -> None:
    assert None is advance(log(part(5, 1, 3)), ZonePosition(4, 1)).gap
    assert None is advance(log(), ZonePosition(4, 1)).gap


def test_what_is_cut_off_is_held_until_the_zone_goes_on() -> None:
    cut_off = frozenset({3})
    branch = part(3, 1, 11)

    assert ZonePosition(3, 5) == advance(log(branch, cut_off=cut_off), ZonePosition(3, 5)).position
    step = advance(log(branch, part(5, 1, 3), cut_off=cut_off), ZonePosition(3, 5))
    assert (ZonePosition(5, 3), None) == (step.position, step.gap)
    assert (
        ZonePosition(5, 3)
        == advance(log(part(5, 1, 3), cut_off=cut_off), ZonePosition(3, 5)).position
    )


def test_a_branch_that_is_replayed_is_read_on() -> None:
    known = log(part(3, 1, 11, closed=True), part(5, 1, 3))

    assert ZonePosition(4, 1) == advance(known, ZonePosition(3, 5)).position


# -- between two positions


def test_a_batch_of_one_part() -> None:
    found, gaps = spans(log(part(1, 1, 20)), ZonePosition(1, 3), ZonePosition(1, 5))

    assert [(1, 3), (1, 4)] == offsets(found)
    assert [] == gaps


def test_over_epochs() -> None:
    known = log(part(1, 1, 4, closed=True), part(3, 1, 3, closed=True), part(6, 1, 9))

    found, gaps = spans(known, ZonePosition(1, 2), ZonePosition(6, 2))

    assert [(1, 2), (1, 3), (3, 1), (3, 2), (6, 1)] == offsets(found)
    assert [] == gaps


def test_what_is_missing_is_told() -> None:
    known = log(part(1, 3, 4, closed=True), part(6, 1, 9))

    assert [HistoryGap(zone="z", epoch=1, start=2, end=3)] == spans(
        known, ZonePosition(1, 2), ZonePosition(2, 1)
    )[1]
    gone = log(part(6, 1, 9))
    assert [HistoryGap(zone="z", epoch=1, start=2, end=None)] == spans(
        gone, ZonePosition(1, 2), ZonePosition(2, 1)
    )[1]
    assert [HistoryGap(zone="z", epoch=1, start=2, end=9)] == spans(
        gone, ZonePosition(1, 2), ZonePosition(1, 9)
    )[1]
    assert [HistoryGap(zone="z", epoch=6, start=9, end=12)] == spans(
        gone, ZonePosition(6, 8), ZonePosition(6, 12)
    )[1]


def test_a_batch_that_began_before_the_reclaim_can_be_read_again() -> None:
    known = log(part(3, 1, 11), cut_off=frozenset({3}))

    assert [(3, 5)] == offsets(spans(known, ZonePosition(3, 5), ZonePosition(3, 6))[0])


def test_when_a_batch_is_known() -> None:
    assert not is_known(None, ZonePosition(1, 1), ZonePosition(1, 2))
    assert not is_known(log(part(1, 1, 5)), ZonePosition(1, 2), ZonePosition(1, 9))
    assert not is_known(log(part(1, 1, 5)), ZonePosition(1, 2), ZonePosition(2, 1))
    assert not is_known(log(part(2, 1, 5)), ZonePosition(1, 2), ZonePosition(2, 1))
    assert is_known(log(part(1, 1, 5, closed=True)), ZonePosition(1, 2), ZonePosition(2, 1))
    assert is_known(log(part(3, 1, 5)), ZonePosition(2, 1), ZonePosition(3, 5))


# -- the reader's whole life


@attrs.define
class World:
    """Parts of a zone as they change; `records` is all that was ever in them."""

    parts: list[JournalRange] = attrs.field(factory=lambda: [part(1, 1, 1)])
    records: list[tuple[int, int]] = attrs.field(factory=list)

    def grow(self, count: int) -> None:
        last = self.parts[-1]
        if not last.is_closed:
            self.records += [(last.epoch, last.end + n) for n in range(count)]
            self.parts[-1] = attrs.evolve(last, end=last.end + count)

    def close(self) -> None:
        self.parts[-1] = attrs.evolve(self.parts[-1], is_closed=True)

    def begin(self, skip: int) -> None:
        if self.parts[-1].is_closed:
            self.parts.append(part(self.parts[-1].epoch + skip, 1, 1))

    def trim(self, at: ZonePosition) -> None:
        """Retention takes what was read, whole parts too."""
        kept = [p for p in self.parts if p.epoch >= at.epoch or not p.is_closed]
        self.parts = [
            attrs.evolve(p, first=max(p.first, min(at.offset, p.end))) if p.epoch == at.epoch else p
            for p in kept
        ] or self.parts[-1:]


ACTIONS = st.one_of(
    st.tuples(st.just("grow"), st.integers(1, 9)),
    st.tuples(st.just("close"), st.none()),
    st.tuples(st.just("begin"), st.integers(1, 3)),
    st.tuples(st.just("trim"), st.none()),
    st.tuples(st.just("read"), st.integers(1, 12)),
    st.tuples(st.just("read"), st.none()),
)


@settings(max_examples=300)
@given(st.lists(ACTIONS, max_size=40))
def test_every_record_once_and_the_same_again(actions: list[tuple[str, int | None]]) -> None:
    world, at = World(), ZonePosition(1, 1)
    got: list[tuple[int, int]] = []
    for action, number in [*actions, *[("read", None)] * 40]:
        if action == "read":
            step = advance(log(*world.parts), at, number)
            assert step.gap is None
            found, gaps = spans(log(*world.parts), at, step.position)
            assert [] == gaps
            assert step.position >= at
            assert is_known(log(*world.parts), at, step.position)
            world.grow(3)
            world.close()
            world.begin(2)
            assert found == spans(log(*world.parts), at, step.position)[0]
            assert number is None or len(offsets(found)) <= number
            got += offsets(found)
            at = step.position
        elif action == "trim":
            world.trim(at)
        elif action == "close":
            world.close()
        else:
            getattr(world, action)(number)
    read = [record for record in world.records if ZonePosition(*record) < at]

    assert read == got


# -- several zones


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 1000), max_size=8), st.integers(1, 2000))
def test_a_batch_is_shared_fairly(waiting: dict[str, int], most: int) -> None:
    shares = share(waiting, most)

    assert shares.keys() == waiting.keys()
    assert all(0 <= shares[zone] <= waiting[zone] for zone in waiting)
    assert sum(shares.values()) == min(most, sum(waiting.values()))
    cut = [shares[zone] for zone in waiting if shares[zone] < waiting[zone]]
    assert not cut or max(shares.values()) <= max(cut) + 1


@given(st.lists(st.integers(1, 3_000_000), max_size=6), st.integers(1, 40))
def test_pieces_cover_all_and_are_not_too_large(counts: list[int], pieces: int) -> None:
    whole = [
        ReadSpan(zone=str(n), epoch=1, start=7, end=7 + count) for n, count in enumerate(counts)
    ]

    cut = split(whole, pieces=pieces, least=1000)

    assert sum(counts) == sum(piece.count for piece in cut)
    assert all(0 < piece.count <= MOST_OFFSETS for piece in cut)
    for before, after in zip(cut, cut[1:], strict=False):
        assert before.zone != after.zone or before.end == after.start
    assert len(cut) <= max(pieces, -(-sum(counts) // MOST_OFFSETS)) + len(counts)


def test_logs_by_zone() -> None:
    parts = [
        part(2, 1, 5, zone="a/b", address="x"),
        part(2, 1, 9, zone="a/b", address="y"),
        part(1, 1, 3, zone="a/b", closed=True, address="z"),
        part(1, 1, 3, zone="c"),
    ]

    logs = logs_of(parts, {"a"}, [JournalId("c", 4)])

    assert ["a/b", "c"] == list(logs)
    assert [(1, "z"), (2, "y")] == [(p.epoch, p.address) for p in logs["a/b"].parts]
    assert not logs["a/b"].is_whole
    assert logs["c"].is_whole
    assert {4} == logs["c"].cut_off
