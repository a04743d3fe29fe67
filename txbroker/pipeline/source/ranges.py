"""
CORE: from the parts that nodes keep and the position of a reader to what can be read next.

The parts of a zone follow one another by epoch. Three questions are answered here: where may a
batch that begins at a position end (`advance`); which offsets of which parts lie between two
positions (`spans`); how are these cut into pieces that are read side by side (`split`).

What lies between two positions must be the same whenever it is asked, because Spark asks again
after a crash. So a batch leaves a part only when that is closed and read to its end, and ends in
the next one at the latest: all that it takes to see that something is missing are the parts of its
two ends.

Nothing is skipped silently: what retention took is a `HistoryGap`, and whether that is an error
decides the caller.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import attrs

from txbroker.model.log_position import JournalId
from txbroker.model.topics import is_within
from txbroker.pipeline.source.positions import FIRST, ZonePosition

MOST_OFFSETS = 1_000_000
"""Of one piece: what a worker has to read again if it fails, and a few seconds of work."""


@attrs.frozen(kw_only=True)
class JournalRange:
    """
    What a node keeps of one zone at one epoch: the offsets `first` to `end`, `end` exclusive.

    `is_closed`: nothing will be added. `is_cut_off`: the zone was reclaimed from this node, and the
    part is no part of the zone until an operator has it replayed. `node` is the node's name,
    `address` that of its gRPC.
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
        """Which part it is."""
        return JournalId(self.zone, self.epoch)

    def span(self, start: int, end: int) -> ReadSpan:
        """Some of it."""
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
    """Offsets `start` to `end` (exclusive; None: not known) of a part that nobody keeps."""

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
    """Offsets `start` to `end` (exclusive) of one part, and who keeps it."""

    zone: str
    epoch: int
    start: int
    end: int
    node: str = ""
    address: str = ""

    @property
    def count(self) -> int:
        """How many offsets; so many records at the most."""
        return self.end - self.start


@attrs.frozen(kw_only=True)
class ZoneHistory:
    """
    The parts of one zone that are known, by epoch.

    `is_whole`: every node that may keep others was asked. `cut_off` are the epochs that went with a
    node from which the zone was reclaimed, kept by somebody or not: a batch that began there before
    can be read again, a new one leaves them out.
    """

    zone: str
    parts: tuple[JournalRange, ...] = ()
    is_whole: bool = True
    cut_off: frozenset[int] = frozenset()

    def get(self, epoch: int) -> JournalRange | None:
        """The part of this epoch."""
        return next((part for part in self.parts if part.epoch == epoch), None)

    def after(self, epoch: int) -> JournalRange | None:
        """The next part of the zone above this epoch."""
        return next((part for part in self.counted if part.epoch > epoch), None)

    @property
    def counted(self) -> tuple[JournalRange, ...]:
        """The parts that are not cut off."""
        return tuple(part for part in self.parts if part.epoch not in self.cut_off)

    @property
    def tail(self) -> ZonePosition | None:
        """Where the oldest record lies; None: nothing is kept, or something may lie before it."""
        counted = self.counted
        if not counted or not self.is_whole:
            return None
        return ZonePosition(counted[0].epoch, counted[0].first)

    @property
    def head(self) -> ZonePosition | None:
        """Behind the newest record; None without any part."""
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
    """A batch may end at `position`; it holds `count` records at most. `gap` is what is missing."""

    position: ZonePosition
    count: int = 0
    gap: HistoryGap | None = None


def logs_of(
    parts: Iterable[JournalRange], missing: Collection[str], cut_off: Collection[JournalId] = ()
) -> dict[str, ZoneHistory]:
    """
    The logs by zone.

    `missing` are the zones of nodes that did not answer; these may keep parts of their own zone and
    of any below it. `cut_off` are parts known to be cut off. Where several nodes keep a part, it is
    the one that has most of it.
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
    How far a batch from `at` may go, over at most `most` records; `at`: nothing is to be had.
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
        # Nothing to read: what is missing, if something is, counts when there is.
        return BatchEnd(position=at, gap=gap if part.end > start else None)
    position = past if end == part.end and part.is_closed else ZonePosition(part.epoch, end)
    return BatchEnd(position=position, count=end - start, gap=gap)


def _leave(log: ZoneHistory, at: ZonePosition, most: int | None) -> BatchEnd:
    """The same where nobody is known to keep the part of `at`, or it is cut off."""
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
    What lies between two positions, in order, and what of it nobody keeps.

    A part whose end is not known yet, since it is not closed, is read to the end that is known;
    the caller takes care that `end` lies in it then, or before.
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
    """The offsets `low` to `high` (None: to the part's end) of one part."""
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
    """Whether nothing that comes to be known could change what `spans` gives, gaps apart."""
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
    How many of the records that wait in each zone a batch of at most `most` takes.

    Zones with little are taken whole; the others get the same each, at least one record as long as
    there is room, so that none waits behind another.
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
    The same in pieces of about the same size: not smaller than `least` offsets, not larger than
    `MOST_OFFSETS`, and about `pieces` in all where these two allow it.
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
