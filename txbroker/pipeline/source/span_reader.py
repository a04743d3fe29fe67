"""
SHELL: reads a span of a part as Arrow batches, on Spark's workers.

The reader asks the node that keeps the span. If that node is away, or keeps the span no longer, the
reader finds the present keeper. Reading resumes behind the last record. The reader gives up after
`PATIENCE` without progress.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import grpc

from txbroker.core import Columns
from txbroker.model.errors import PeerError, PipelineError
from txbroker.model.log_position import JournalId
from txbroker.pipeline.source.arrow_batches import to_arrow
from txbroker.pipeline.source.nodes import NodeWalk, Stubs
from txbroker.pipeline.source.pushdown import ReadFilter
from txbroker.pipeline.source.ranges import HistoryGap, JournalRange, ReadSpan
from txbroker.rpc.channels import why
from txbroker.storage.segment import FORMAT
from txbroker.v1.journal_pb2 import RecordsReply, RecordsRequest

if TYPE_CHECKING:
    import pyarrow as pa

PATIENCE = 60.0
"""Seconds that a node may be away within a batch: a restart, or a short network partition."""

PAUSE = 0.2
"""Seconds between two searches for a node that keeps the span."""

_AGAIN = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,
}
"""Codes after which a retry, perhaps at another node, may succeed."""


def print_line(line: str) -> None:
    """Print one line for the operator of the query on stderr."""
    print(f"txbroker: {line}", file=sys.stderr, flush=True)


def on_gap(gap: HistoryGap, *, fails: bool) -> None:
    """Report missing records: raise `PipelineError` if `fails`, or print a line."""
    if fails:
        raise PipelineError(
            f"{gap}; retention took them before they were read: start a new query, or go on without"
            " them with failOnDataLoss=false"
        )
    count = "an unknown number of" if gap.end is None else str(gap.end - gap.start)
    print_line(f"gap: {gap}; {count} records skipped (failOnDataLoss=false)")


class SpanReader:
    """Reads one span; `batches` returns its records once."""

    def __init__(
        self, root: str, span: ReadSpan, wanted: ReadFilter, *, fail_on_loss: bool
    ) -> None:
        self._root = root
        self._span = span
        self._wanted = wanted
        self._fails = fail_on_loss
        self._next = span.start
        self._address = span.address

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return all records; raises `PipelineError` if they cannot be read."""
        with Stubs() as stubs:
            since, trouble = time.monotonic(), ""
            while self._next < self._span.end:
                before = self._next
                try:
                    yield from self._ask(stubs)
                    trouble = f"{self._address} ended the records early"
                except grpc.RpcError as error:
                    trouble = why(self._address, error)
                    if error.code() not in _AGAIN:
                        raise PipelineError(self._failed(trouble)) from None
                except PeerError as error:
                    raise PipelineError(self._failed(f"{self._address}: {error}")) from None
                if self._next >= self._span.end:
                    return
                if self._next > before:
                    since = time.monotonic()
                elif time.monotonic() - since > PATIENCE:
                    raise PipelineError(self._failed(trouble))
                time.sleep(PAUSE)
                self._find_node()

    # internal

    def _ask(self, stubs: Stubs) -> Iterator[pa.RecordBatch]:
        span, times = self._span, self._wanted.times
        request = RecordsRequest(
            zone=span.zone,
            epoch=span.epoch,
            start=self._next,
            end=span.end,
            filter=self._wanted.filter,
            since=max(times.low, 0),
            until=times.high if times.is_bounded else 0,
        )
        columns = Columns(self._next, span.end)
        for reply in stubs.journal(self._address).Records(request):
            self._check(reply)
            for one in reply.batches:
                columns.add(one.first, one.time, one.body, one.count, one.places)
            # Set before the yield: a caller that stops there never resumes this generator.
            self._next = reply.through
            if columns.count:
                yield to_arrow(columns.finish(), span.zone, span.epoch)

    def _check(self, reply: RecordsReply) -> None:
        """Check a reply from the network, which is untrusted; raises `PeerError`."""
        if reply.format != FORMAT and reply.batches:
            raise PeerError(f"stored batches have format {reply.format}, not {FORMAT}")
        if not self._next <= reply.through <= self._span.end:
            raise PeerError(f"the offset {reply.through} is not within what was asked for")

    def _find_node(self) -> None:
        """Find the node that keeps the span now."""
        try:
            with NodeWalk(self._root) as nodes:
                found = nodes.discover()
        except PipelineError:
            return
        key = JournalId(self._span.zone, self._span.epoch)
        log = found.logs().get(key.zone)
        part = None if log is None else log.get(key.epoch)
        if part is not None:
            self._address = part.address
            self._skip_lost(part)

    def _skip_lost(self, part: JournalRange) -> None:
        """Report records that retention has deleted since, and skip them."""
        if part.first <= self._next:
            return
        end = min(part.first, self._span.end)
        gap = HistoryGap(zone=part.zone, epoch=part.epoch, start=self._next, end=end)
        on_gap(gap, fails=self._fails)
        self._next = end

    def _failed(self, trouble: str) -> str:
        span = self._span
        return (
            f"zone {span.zone!r}, epoch {span.epoch}: the offsets {self._next} to {span.end - 1}"
            f" cannot be read: {trouble}"
        )
