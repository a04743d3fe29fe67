"""
CORE: decides what a reader at a position can read next, from the parts that nodes keep.

The parts of a zone follow one another by epoch. The module answers three questions:

- `advance`: where may a batch that begins at a position end?
- `spans`: which offsets of which parts lie between two positions?
- `split`: how are these spans cut into pieces for parallel reading?

The spans between two positions must never change, because Spark asks again after a crash. So a
batch leaves a part only when the part is closed and read to its end. The batch ends in the next
part at the latest. The parts of a batch's two ends then suffice to detect missing records.

No record is skipped silently: records that retention deleted are a `HistoryGap`. The caller decides
whether a gap is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import attrs

from txbroker.model.log_position import JournalId
from txbroker.model.topics import is_within
from txbroker.pipeline.source.positions import FIRST, ZonePosition

MOST_OFFSETS = 1_000_000
"""Offsets of one piece at most: a few seconds of work, which a failed worker repeats."""


@attrs.frozen(kw_only=True)
class JournalRange:
    """
    The offsets `first` to `end` (exclusive) that a node keeps of one zone at one epoch.

    `is_closed`: True if the part will get no more records. `is_cut_off`: True if the zone was
    reclaimed from this node. Such a part does not belong to the zone until an operator replays it.
    `node` is the node's name, `address` its gRPC address.
    """

    zone: str
    epoch: int
    first: int
    end: int
    is_closed: bool = False
    is_cut_off: bool = False
    node: str = ""
    address: str = ""

    @property
    def key(self) -> JournalId:
        """Zone and epoch of the part."""
        return JournalId(self.zone, self.epoch)

    def span(self, start: int, end: int) -> ReadSpan:
        """Return the span of some offsets of the part."""
        return ReadSpan(
            zone=self.zone,
            epoch=self.epoch,
            start=start,
            end=end,
            node=self.node,
            address=self.address,
        )


@attrs.frozen(kw_only=True)
class HistoryGap:
    """Offsets `start` to `end` (exclusive; None: unknown) of a part that no node keeps."""

    zone: str
    epoch: int
    start: int
    end: int | None

    def __str__(self) -> str:
        offsets = (
            f"the offsets from {self.start} on"
            if self.end is None
            else f"the offsets {self.start} to {self.end - 1}"
        )
        return f"zone {self.zone!r}, epoch {self.epoch}: {offsets} are kept by no node any more"


@attrs.frozen(kw_only=True)
class ReadSpan:
    """Offsets `start` to `end` (exclusive) of one part, and the node that keeps them."""

    zone: str
    epoch: int
    start: int
    end: int
    node: str = ""
    address: str = ""

    @property
    def count(self) -> int:
        """Number of offsets, and maximum number of records."""
        return self.end - self.start


@attrs.frozen(kw_only=True)
class ZoneHistory:
    """
    The known parts of one zone, by epoch.

    `is_whole`: True if every node that may keep other parts has answered. `cut_off` has the epochs
    of nodes from which the zone was reclaimed, kept by a node or not. A batch that began in such an
    epoch can be read again; a new batch leaves it out.
    """

    zone: str
    parts: tuple[JournalRange, ...] = ()
    is_whole: bool = True
    cut_off: frozenset[int] = frozenset()

    def get(self, epoch: int) -> JournalRange | None:
        """Return the part of this epoch, or None."""
        return next((part for part in self.parts if part.epoch == epoch), None)

    def after(self, epoch: int) -> JournalRange | None:
        """Return the next part of the zone above this epoch, or None."""
        return next((part for part in self.counted if part.epoch > epoch), None)

    @property
    def counted(self) -> tuple[JournalRange, ...]:
        """The parts that are not cut off."""
        return tuple(part for part in self.parts if part.epoch not in self.cut_off)

    @property
    def tail(self) -> ZonePosition | None:
        """Position of the oldest record; None if no part is kept, or an older one may exist."""
        counted = self.counted
        if not counted or not self.is_whole:
            return None
        return ZonePosition(counted[0].epoch, counted[0].first)

    @property
    def head(self) -> ZonePosition | None:
        """Position behind the newest record; None without any part."""
        counted = self.counted
        if not counted:
            return None
        last = counted[-1]
        return (
            ZonePosition(last.epoch + 1, FIRST)
            if last.is_closed
            else ZonePosition(last.epoch, last.end)
        )


@attrs.frozen(kw_only=True)
class BatchEnd:
    """The `position` where a batch may end, its maximum `count` of records, and a `gap` if any."""

    position: ZonePosition
    count: int = 0
    gap: HistoryGap | None = None


def logs_of(
    parts: Iterable[JournalRange], missing: Collection[str], cut_off: Collection[JournalId] = ()
) -> dict[str, ZoneHistory]:
    """
    Group the parts by zone.

    `missing` has the zones of nodes that did not answer. Such a node may keep parts of its own zone
    and of any zone below. `cut_off` has parts known to be cut off. If several nodes keep a part,
    the most complete one is used.
    """
    found: dict[JournalId, JournalRange] = {}
    for part in parts:
        known = found.get(part.key)
        if known is None or _worth(part) > _worth(known):
            found[part.key] = part
    zones = {key.zone for key in found} | {key.zone for key in cut_off}
    return {
        zone: ZoneHistory(
            zone=zone,
            parts=tuple(found[key] for key in sorted(found) if key.zone == zone),
            is_whole=not any(is_within(zone, apex) for apex in missing),
            cut_off=frozenset(key.epoch for key in cut_off if key.zone == zone),
        )
        for zone in sorted(zones)
    }


def advance(log: ZoneHistory, at: ZonePosition, most: int | None = None) -> BatchEnd:
    """
    Return the end of a batch from `at` with at most `most` records; `at` if nothing is readable.
    """
    part = log.get(at.epoch)
    if part is None or at.epoch in log.cut_off:
        return _leave(log, at, most)
    past = ZonePosition(part.epoch + 1, FIRST)
    if part.is_closed and at.offset >= part.end:
        return BatchEnd(position=past)
    gap = None
    start = max(at.offset, part.first)
    if start > at.offset:
        gap = HistoryGap(zone=log.zone, epoch=part.epoch, start=at.offset, end=start)
    end = part.end if most is None else min(part.end, start + most)
    if end <= start:
        # A gap counts only once records follow it: before that, there is no batch to report it.
        return BatchEnd(position=at, gap=gap if part.end > start else None)
    position = past if end == part.end and part.is_closed else ZonePosition(part.epoch, end)
    return BatchEnd(position=position, count=end - start, gap=gap)


def _leave(log: ZoneHistory, at: ZonePosition, most: int | None) -> BatchEnd:
    """Return the end of a batch at a part that no known node keeps, or that is cut off."""
    following = log.after(at.epoch)
    if at.offset > FIRST and at.epoch not in log.cut_off:
        gap = HistoryGap(zone=log.zone, epoch=at.epoch, start=at.offset, end=None)
        if not log.is_whole:
            return BatchEnd(position=at)
        if following is None:
            return BatchEnd(position=at, gap=gap)
        return BatchEnd(position=ZonePosition(at.epoch + 1, FIRST), gap=gap)
    if following is None or not log.is_whole:
        return BatchEnd(position=at)
    return advance(log, ZonePosition(following.epoch, FIRST), most)


def spans(
    log: ZoneHistory, start: ZonePosition, end: ZonePosition
) -> tuple[list[ReadSpan], list[HistoryGap]]:
    """
    Return the spans between two positions, in order, and the gaps that no node keeps.

    A part that is not closed is read to its known end. The caller must ensure that `end` does not
    lie beyond that.
    """
    found: list[ReadSpan] = []
    gaps: list[HistoryGap] = []
    epochs = {part.epoch for part in log.counted if start.epoch <= part.epoch <= end.epoch}
    if start.offset > FIRST and start.epoch not in log.cut_off:
        epochs.add(start.epoch)
    if end.offset > FIRST:
        epochs.add(end.epoch)
    for epoch in sorted(epochs):
        low = start.offset if epoch == start.epoch else FIRST
        high = end.offset if epoch == end.epoch else None
        _add(log, epoch, low, high, found, gaps)
    return found, gaps


def _add(
    log: ZoneHistory,
    epoch: int,
    low: int,
    high: int | None,
    found: list[ReadSpan],
    gaps: list[HistoryGap],
) -> None:
    """Add the offsets `low` to `high` (None: to the part's end) of one part."""
    part = log.get(epoch)
    if high is not None and high <= low:
        return
    if part is None:
        gaps.append(HistoryGap(zone=log.zone, epoch=epoch, start=low, end=high))
        return
    high = part.end if high is None else high
    begin = min(max(low, part.first), high)
    end = max(min(high, part.end), begin)
    if low < begin:
        gaps.append(HistoryGap(zone=log.zone, epoch=epoch, start=low, end=begin))
    if begin < end:
        found.append(part.span(begin, end))
    if end < high:
        gaps.append(HistoryGap(zone=log.zone, epoch=epoch, start=end, end=high))


def is_known(log: ZoneHistory | None, start: ZonePosition, end: ZonePosition) -> bool:
    """True if no later information could change the result of `spans`, apart from gaps."""
    if log is None:
        return False
    first, last = log.get(start.epoch), log.get(end.epoch)
    if first is None and start.offset > FIRST and start.epoch not in log.cut_off:
        return False
    if first is not None and end.epoch > start.epoch and not first.is_closed:
        return False
    return end.offset == FIRST or (last is not None and last.end >= end.offset)


def share(waiting: Mapping[str, int], most: int) -> dict[str, int]:
    """
    Return how many waiting records of each zone a batch of at most `most` records takes.

    Zones with few records are taken whole; the other zones get equal shares. Each zone gets at
    least one record while there is room, so that no zone waits behind another.
    """
    result: dict[str, int] = {}
    left = most
    for place, zone in enumerate(sorted(waiting, key=lambda zone: (waiting[zone], zone))):
        rest = len(waiting) - place
        result[zone] = min(waiting[zone], -(-left // rest))
        left -= result[zone]
    return result


def split(whole: Sequence[ReadSpan], *, pieces: int = 16, least: int = 50_000) -> list[ReadSpan]:
    """
    Cut spans into pieces of about equal size, and about `pieces` in all.

    A piece has at least `least` and at most `MOST_OFFSETS` offsets, where this is possible.
    """
    total = sum(span.count for span in whole)
    size = min(max(least, -(-total // pieces)), MOST_OFFSETS)
    result = []
    for span in whole:
        count = -(-span.count // size)
        edges = [span.start + span.count * piece // count for piece in range(count + 1)]
        result += [
            attrs.evolve(span, start=low, end=high)
            for low, high in zip(edges, edges[1:], strict=False)
        ]
    return result


def _worth(part: JournalRange) -> tuple[bool, bool, int, int]:
    return (not part.is_cut_off, part.is_closed, part.end, -part.first)
