"""Maintains an archive: merges files, expires old rows, deletes files that no reader needs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import attrs

from txbroker.pipeline.archives.commits import ATTEMPT, GRACE, Commits, VacuumResult
from txbroker.pipeline.archives.compaction import compact
from txbroker.pipeline.archives.manifest import outlived
from txbroker.pipeline.archives.writer import FileLayout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERY = 600.0
"""Seconds between two full maintenance runs of a continuous job."""


@attrs.frozen(kw_only=True)
class KeepRules:
    """
    The retention of rows: `age`, or for the zones in `zones` the age given there.

    A zone's entry does not cover the zones below it.
    """

    age: timedelta = timedelta(days=365)
    zones: Mapping[str, timedelta] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class UpkeepResult:
    """Result of maintenance: files saved by merging, expired by age, and deleted from the disk."""

    merged: int = 0
    expired: int = 0
    deleted: int = 0


class ArchiveUpkeep:
    """Maintains one archive between the batches of a job."""

    def __init__(
        self,
        spark: SparkSession,
        commits: Commits,
        layout: FileLayout,
        keep: KeepRules,
        *,
        grace: float = GRACE,
        attempt: float = ATTEMPT,
    ) -> None:
        self._spark = spark
        self._commits = commits
        self._layout = layout
        self._keep = keep
        self._grace = grace
        self._attempt = attempt
        self._next = time.monotonic() + EVERY

    def after_batch(self) -> UpkeepResult:
        """Merge small files; every `EVERY` seconds run all maintenance instead."""
        if time.monotonic() >= self._next:
            return self.all()
        return UpkeepResult(merged=compact(self._spark, self._commits, self._layout))

    def all(self) -> UpkeepResult:
        """Merge the files of past days into few, expire old files, and delete unneeded ones."""
        self._next = time.monotonic() + EVERY
        expired = self._expire()
        today = datetime.fromtimestamp(self._commits.now() / 1_000_000, UTC).date().isoformat()
        merged = compact(self._spark, self._commits, self._layout, before=today)
        swept: VacuumResult = self._commits.vacuum(self._layout.kind, self._grace, self._attempt)
        return UpkeepResult(merged=merged, expired=expired, deleted=swept.deleted)

    def _expire(self) -> int:
        ages = {zone: _microseconds(age) for zone, age in self._keep.zones.items()}
        old = outlived(
            self._commits.load().files.values(),
            ages,
            _microseconds(self._keep.age),
            self._commits.now(),
        )
        if old:
            self._commits.commit(self._commits.change(removed=tuple(old)), self._layout.kind)
        return len(old)


def _microseconds(age: timedelta) -> int:
    return age // timedelta(microseconds=1)
