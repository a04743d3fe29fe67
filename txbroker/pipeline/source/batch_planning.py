"""SHELL: plans what a batch query reads: all records between two bounds, of every zone."""

from __future__ import annotations

from collections.abc import Iterable

from txbroker.model.errors import PipelineError
from txbroker.model.topics import is_within
from txbroker.model.zone_cut import ZoneCut
from txbroker.pipeline.source.nodes import NodeWalk
from txbroker.pipeline.source.positions import ZonePosition
from txbroker.pipeline.source.pushdown import ReadFilter
from txbroker.pipeline.source.ranges import ReadSpan, ZoneHistory, spans, split
from txbroker.pipeline.source.source_options import OffsetBound, SourceOptions
from txbroker.pipeline.source.span_reader import on_gap, print_line


def plan_batch(options: SourceOptions, wanted: ReadFilter) -> list[ReadSpan]:
    """
    Return the spans that a batch query reads.

    Raises `PipelineError`, also if a node that may keep some of the records cannot be reached.
    Otherwise the query would lose records that no user notices.
    """
    with NodeWalk(options.root, wanted.filter) as nodes:
        found = nodes.discover(fresh=True)
        refuse_missing(found.missing, wanted.zones)
        logs = found.logs()
        check_zones(options, logs.keys())
        whole = [
            piece
            for zone, log in logs.items()
            if wanted.zones is None or zone in wanted.zones
            for span in _spans_of(nodes, log, options)
            if (piece := wanted.clip(span)) is not None
        ]
    return split(whole)


def place(nodes: NodeWalk, log: ZoneHistory, bound: OffsetBound) -> ZonePosition | None:
    """
    Return the position of a bound in a zone, or None if unknown.

    A bound by `positions` has none for a zone that it does not name.
    """
    if bound.is_earliest:
        return log.tail
    if bound.positions is not None:
        return bound.positions.get(log.zone)
    if bound.time is not None:
        for part in log.counted:
            offset = nodes.seek(part, bound.time) if part.first < part.end else part.end
            if offset < part.end:
                return ZonePosition(part.epoch, max(offset, part.first))
    return log.head


def refuse_missing(missing: Iterable[ZoneCut], zones: frozenset[str] | None) -> None:
    """Raise `PipelineError` if a missing node may keep records of `zones` (None: of any)."""
    for cut in missing:
        if zones is None or any(is_within(zone, cut.apex) for zone in zones):
            raise PipelineError(
                f"zone {cut.apex!r} cannot be read: its node {cut.node} at {cut.grpc} cannot be"
                " reached; start it, or choose others with the option filter"
            )


def check_zones(options: SourceOptions, known: Iterable[str]) -> None:
    """Raise `PipelineError` if positions name a zone that no node keeps."""
    bounds = (("startingOffsets", options.start), ("endingOffsets", options.end))
    for name, bound in bounds:
        for zone in (bound and bound.positions) or ():
            if zone not in known:
                raise PipelineError(
                    f"option {name}: zone {zone!r}: no node keeps anything of it; the zones are"
                    f" {', '.join(map(repr, known)) or 'none'}"
                )


def _spans_of(nodes: NodeWalk, log: ZoneHistory, options: SourceOptions) -> list[ReadSpan]:
    for epoch in sorted(log.cut_off):
        print_line(
            f"zone {log.zone!r}, epoch {epoch}: left out, since the zone was reclaimed there"
        )
    start = options.start and place(nodes, log, options.start)
    end = options.end and place(nodes, log, options.end)
    start, end = start or log.tail, end or log.head
    if start is None or end is None or end <= start:
        return []
    found, gaps = spans(log, start, end)
    for gap in gaps:
        on_gap(gap, fails=options.fail_on_loss)
    return found
