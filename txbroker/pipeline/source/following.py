"""
SHELL: plans what a streaming query reads next, in the process that plans the query.

A node that is away stops the positions of the zones that it keeps, and of no other zone. The query
reads a new zone from its oldest record. The query's whole state is its positions: after a restart
the same start and end give the same records.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from txbroker.model.errors import PipelineError
from txbroker.model.topics import is_within, may_match_within
from txbroker.pipeline.source.batch_planning import check_zones, place, refuse_missing
from txbroker.pipeline.source.nodes import FoundNode, NodeWalk
from txbroker.pipeline.source.positions import (
    FIRST,
    Positions,
    ZonePosition,
    positions_from,
    positions_to,
)
from txbroker.pipeline.source.ranges import (
    BatchEnd,
    HistoryGap,
    ReadSpan,
    ZoneHistory,
    advance,
    is_known,
    share,
    spans,
    split,
)
from txbroker.pipeline.source.source_options import OffsetBound, SourceOptions
from txbroker.pipeline.source.span_reader import PATIENCE, PAUSE, on_gap, print_line

POLL = 0.1
"""Minimum seconds between two polls: an idle Spark asks without a pause."""

LOST_AFTER = 10.0
"""Seconds until a part that no node keeps counts as lost: it may be moving between nodes."""


class StreamPlanner:
    """The positions of one streaming query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._nodes = NodeWalk(options.root, options.filter)
        self._found = FoundNode()
        self._looked = float("-inf")
        self._target: Positions | None = None
        self._lost: dict[str, float] = {}
        self._told = ""

    def close(self) -> None:
        """Close the connections to nodes."""
        self._nodes.close()

    def start_positions(self) -> dict[str, Any]:
        """
        Return the start positions of a new query; raises `PipelineError`.

        For `latest` and for a time, only the node knows the position. So a node that is away is an
        error. The query reads zones that are unknown now from their beginning.
        """
        bound = self._options.start or OffsetBound(is_latest=True)
        found = self._nodes.discover(fresh=True)
        logs = found.logs()
        if bound.is_latest or bound.time is not None:
            refuse_missing(found.missing, None)
        elif not found.missing:
            check_zones(self._options, logs.keys())
        result = dict(bound.positions or {})
        for zone, log in logs.items():
            start = place(self._nodes, log, bound) or log.tail
            if start is not None:
                result.setdefault(zone, start)
        return positions_to(result)

    def stop_here(self) -> None:
        """Make the present heads the end of the query; raises `PipelineError`."""
        self._found = self._nodes.discover(fresh=True)
        self._target = self._heads()
        self._report(self._found)

    def heads(self) -> dict[str, Any] | None:
        """Return the position behind the newest record of each zone at the last poll."""
        return positions_to(self._heads()) or None

    def latest(self, start: Mapping[str, Any], most: int | None) -> dict[str, Any]:
        """
        Return the positions at which a batch from `start` ends, with at most `most` records.

        Raises `PipelineError` if records were lost.
        """
        positions = _saved(start)
        if not self._poll_nodes():
            return positions_to(positions)
        logs = self._found.logs()
        steps: dict[str, BatchEnd] = {}
        for zone, at in positions.items():
            if not may_match_within(self._options.filter or "#", zone):
                continue
            log = logs.get(zone) or ZoneHistory(zone=zone, is_whole=self._is_whole(zone))
            step = self._step(log, at, None)
            if step.position > at:
                steps[zone] = step
                _report_cut_off(log, at)
        shares = share({z: s.count for z, s in steps.items()}, most) if most is not None else {}
        result = dict(positions)
        for zone, step in steps.items():
            room = shares.get(zone, step.count)
            if room < step.count:
                step = self._step(logs[zone], positions[zone], room)
            result[zone] = step.position
        for zone, log in logs.items():
            if zone not in positions and log.tail is not None and self._is_due(zone):
                # Without this step, a batch would begin elsewhere than the checkpoint says.
                result[zone] = log.tail
        return positions_to(result)

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[ReadSpan]:
        """
        Return the spans between two positions; raises `PipelineError`.

        The call waits for nodes that keep some records: after a restart the batch must be the same.
        """
        starts = _saved(start)
        ends = _saved(end)
        due = {z: (starts[z], ends[z]) for z in ends if z in starts and starts[z] < ends[z]}
        whole: list[ReadSpan] = []
        for log in self._known_logs(due):
            found, gaps = spans(log, *due[log.zone])
            for gap in gaps:
                on_gap(gap, fails=self._options.fail_on_loss and gap.epoch not in log.cut_off)
            whole += found
        return split(whole)

    # internal

    def _poll_nodes(self) -> bool:
        """Poll the nodes, at most once per `POLL`; return False if no node answers."""
        wait = self._looked + POLL - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        try:
            self._found = self._nodes.discover()
        except PipelineError as error:
            self._print_once(f"waiting: {error}")
            return False
        finally:
            self._looked = time.monotonic()
        self._report(self._found)
        return True

    def _report(self, found: FoundNode) -> None:
        names = sorted({f"{cut.apex!r} ({cut.node} at {cut.grpc})" for cut in found.missing})
        self._print_once(f"waiting for the nodes of zones {', '.join(names)}" if names else "")

    def _print_once(self, line: str) -> None:
        """Print a line once, until another line is due."""
        if line and line != self._told:
            print_line(line)
        self._told = line

    def _heads(self) -> Positions:
        heads = {zone: log.head for zone, log in self._found.logs().items()}
        return {zone: head for zone, head in heads.items() if head is not None}

    def _is_due(self, zone: str) -> bool:
        return self._target is None or zone in self._target

    def _is_whole(self, zone: str) -> bool:
        return not any(is_within(zone, cut.apex) for cut in self._found.missing)

    def _step(self, log: ZoneHistory, at: ZonePosition, most: int | None) -> BatchEnd:
        """Return the end of a zone's part of the batch, within the limits of the query."""
        step = advance(log, at, most)
        if step.gap is None:
            self._lost.pop(log.zone, None)
        if step.gap is not None and self._is_lost(step.gap):
            if self._options.fail_on_loss:
                on_gap(step.gap, fails=True)
        elif step.gap is not None:
            return BatchEnd(position=at)
        if self._target is not None:
            limit = self._target.get(log.zone, at)
            if step.position > limit:
                return BatchEnd(position=max(at, limit), count=step.count)
        return step

    def _is_lost(self, gap: HistoryGap) -> bool:
        """True if records are certainly lost; a part that no node keeps may be moving."""
        if gap.end is not None:
            return True
        since = self._lost.setdefault(gap.zone, time.monotonic())
        return time.monotonic() - since > LOST_AFTER

    def _known_logs(
        self, due: Mapping[str, tuple[ZonePosition, ZonePosition]]
    ) -> Iterator[ZoneHistory]:
        """Return the zones' histories once all records between their positions are known."""
        since = time.monotonic()
        while True:
            logs = self._found.logs()
            unknown = [zone for zone in due if not is_known(logs.get(zone), *due[zone])]
            if not unknown:
                break
            is_away = not all(self._is_whole(zone) for zone in unknown)
            if time.monotonic() - since > (PATIENCE if is_away else LOST_AFTER):
                self._give_up(unknown)
                break
            self._poll_nodes()
            time.sleep(PAUSE)
        for zone in due:
            yield logs.get(zone) or ZoneHistory(zone=zone)

    def _give_up(self, zones: list[str]) -> None:
        """Raise `PipelineError` after a long wait unless the records are certainly lost."""
        for zone in zones:
            if not self._is_whole(zone):
                raise PipelineError(
                    f"zone {zone!r} cannot be read: its node cannot be reached; start it, and start"
                    " the query again"
                )


def _saved(value: Mapping[str, Any]) -> Positions:
    """Parse positions of the query's checkpoint; raises `PipelineError`."""
    try:
        return positions_from(value, "the query's checkpoint")
    except PipelineError as error:
        raise PipelineError(
            f"{error}; it is damaged, or of another query: name another checkpointLocation, or of a"
            " job move _checkpoint away"
        ) from None


def _report_cut_off(log: ZoneHistory, at: ZonePosition) -> None:
    if at.epoch in log.cut_off and at.offset > FIRST:
        print_line(
            f"zone {log.zone!r}, epoch {at.epoch}: cut off by a reclaim from the offset {at.offset}"
            " on; the zone goes on with its next epoch"
        )
