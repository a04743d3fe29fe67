"""
SHELL: copies the delivery ledgers of all nodes to an archive beside that of the messages.

    ARCHIVE/_ledger/ledger=<identity>/day=<UTC date>/<name>.parquet

Only the archive's manifests record how far each ledger was copied (`ArchiveState.positions`). One
commit adds rows and advances the position. So each row is copied once, even if the job is killed. A
task reads one span of one ledger, and returns the rows that it got before any failure. Rows come in
order, so these are always all rows up to some row.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa

from txbroker.model.errors import PipelineError
from txbroker.pipeline.archives.archives import LEDGER_FOLDER
from txbroker.pipeline.archives.commits import Commits
from txbroker.pipeline.archives.manifest import ArchiveState, ChangeVerdict, DataFile
from txbroker.pipeline.archives.upkeep import ArchiveUpkeep, KeepRules
from txbroker.pipeline.archives.writer import LEDGER, write_rows
from txbroker.pipeline.ledgers.ledgers import LedgerSpan, holders, ledgers_of, plan_spans, read_span
from txbroker.pipeline.spark.journal_jobs import Report, no_report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT = timedelta(days=30)
"""Default retention of ledger rows."""

EVERY = 10.0
"""Seconds between two polls of the ledgers in a continuous job."""

ROWS_AT_ONCE = 4_000_000
"""Approximate rows of one commit; at most `ledgers.SPAN_ROWS` of them are of one ledger."""

QUERY = "ledgers"
"""The name of the copy job in the manifests; its batches are numbered."""


class LedgerCopy:
    """
    Copies ledgers to the archive of a job; the caller holds the folder's lock.

    A ledger that cannot be read now is copied later. Failures of nodes raise nothing, and are
    reported as `upkeep`: `ledger_rows` copied, and the lines `ledger_gaps` and `ledger_away`.
    `ledger_away` is reported once, until it changes.
    """

    def __init__(
        self,
        spark: SparkSession,
        root: str,
        archive: Path,
        *,
        age: timedelta = KEPT,
        report: Report = no_report,
    ) -> None:
        self._spark = spark
        self._root = root
        self._commits = Commits(archive / LEDGER_FOLDER)
        self._upkeep = ArchiveUpkeep(spark, self._commits, LEDGER, KeepRules(age=age))
        self._report = report
        self._away: frozenset[str] = frozenset()
        self._next = 0.0

    def between(self) -> None:
        """
        Run one commit if the next poll is due.

        Raises `PipelineError` for failures of the archive.
        """
        if time.monotonic() < self._next:
            return
        state = self._commits.load()
        spans, away = self._discover_spans(state)
        if spans:
            away += self._copy(next_spans(spans, state.times), state).values()
            self._upkeep.after_batch()
        self._report_away(away)
        self._next = time.monotonic() + EVERY

    def all(self) -> None:
        """Copy all present rows, commit by commit, then maintain the archive."""
        state = self._commits.load()
        spans, away = self._discover_spans(state)
        while spans:
            chosen = next_spans(spans, state.times)
            failed = self._copy(chosen, state)
            done = {*chosen, *(span for span in spans if span.ledger in failed)}
            spans = [span for span in spans if span not in done]
            away += failed.values()
            state = self._commits.load()
        self._upkeep.all()
        self._report_away(away)

    # internal

    def _discover_spans(self, state: ArchiveState) -> tuple[list[LedgerSpan], list[str]]:
        """Return the spans beyond the archive, and a line for each node that does not answer."""
        reached = {ledger: number for ledger, (_, number) in state.positions.items()}
        try:
            found, missing = holders(self._root)
        except PipelineError as error:
            return [], [str(error)]
        known = ledgers_of(found, reached)
        # A copy of a node's data has the same ledger: without this check its rows come twice.
        nodes: dict[str, str] = {}
        spans = [
            span for span in known.spans if nodes.setdefault(span.ledger, span.node) == span.node
        ]
        return spans, [
            f"node {one.node}: cannot be asked at {one.grpc}" for one in (*missing, *known.missing)
        ]

    def _copy(self, spans: Sequence[LedgerSpan], state: ArchiveState) -> dict[str, str]:
        """Run one commit on top of `state`; return a line for each ledger not read to its end."""
        copied = self._write(spans)
        files = tuple(DataFile.from_json(file) for one in copied for file in one["files"])
        if files:
            batch = state.batches.get(QUERY, -1) + 1
            change = self._commits.change(added=files, query=QUERY, batch=batch)
            if self._commits.commit(change, LEDGER.kind) is not ChangeVerdict.FITS:
                raise PipelineError(
                    f"{self._commits.archive}: something else writes there; stop it, and run the"
                    " job again"
                )
            gaps = [
                f"node {one['node']}: {one['missing']} rows of its ledger were not kept until they"
                " were copied; set `retention` longer there, or run the job more often"
                for one in copied
                if one["missing"]
            ]
            told = {"ledger_rows": sum(file.rows for file in files), "ledger_gaps": gaps}
            self._report("upkeep", {name: value for name, value in told.items() if value})
        return {
            one["ledger"]: f"node {one['node']}: {one['error']}" for one in copied if one["error"]
        }

    def _write(self, spans: Sequence[LedgerSpan]) -> list[dict[str, Any]]:
        folder = str(self._commits.archive.resolve())
        work = plan_spans(self._spark, spans).mapInArrow(
            functools.partial(_copy_planned, folder), "copied string"
        )
        return [json.loads(row.copied) for row in work.collect()]

    def _report_away(self, away: Iterable[str]) -> None:
        now = frozenset(away)
        if now and now != self._away:
            self._report("upkeep", {"ledger_away": sorted(now)})
        self._away = now


def next_spans(spans: Iterable[LedgerSpan], times: Mapping[str, int]) -> list[LedgerSpan]:
    """
    Return the spans for one commit: the first of each ledger, most outdated ledgers first.

    A ledger's age in the archive is the time of its last archived row.
    """
    firsts: dict[str, LedgerSpan] = {}
    for span in spans:
        firsts.setdefault(span.ledger, span)
    chosen: list[LedgerSpan] = []
    rows = 0
    for span in sorted(firsts.values(), key=lambda span: times.get(span.ledger, 0)):
        if rows >= ROWS_AT_ONCE:
            break
        chosen.append(span)
        rows += span.end - span.start
    return chosen


# internal


@attrs.define
class _Copied:
    """Result of a task for one span, as returned to the driver."""

    node: str
    ledger: str
    files: list[dict[str, Any]] = attrs.field(factory=list)
    missing: int = 0
    error: str = ""

    def rows(self, span: LedgerSpan) -> Iterator[pa.RecordBatch]:
        """Return the rows that can be read; store an error."""
        try:
            yield from read_span(span, self._miss)
        except PipelineError as error:
            self.error = str(error)

    def _miss(self, count: int) -> None:
        self.missing = count


def _copy_planned(folder: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write spans to files on a worker; only a commit makes the files part of the archive."""
    for batch in batches:
        for row in batch.to_pylist():
            span = LedgerSpan(**row)
            copied = _Copied(span.node, span.ledger)
            files = write_rows(folder, LEDGER, copied.rows(span))
            copied.files = [file.to_json() for file in files]
            line = json.dumps(attrs.asdict(copied))
            yield pa.RecordBatch.from_pydict({"copied": pa.array([line], pa.string())})
