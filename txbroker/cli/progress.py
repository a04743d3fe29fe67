"""Shows the progress of a pipeline job: a changing line on a terminal, log lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from txbroker.runtime.structured_log import configure, get_logger

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LOG_EVERY = 10.0
"""Seconds between two log lines about messages."""
_SHOW_EVERY = 0.1

log = get_logger()


class ProgressReporter:
    """A `txbroker.pipeline.spark.journal_jobs.Report`; `rows` is the total of all batches."""

    def __init__(self, job: str) -> None:
        self.rows = 0
        self._job = job
        self._next = 0.0
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if not sys.stderr.isatty():
            configure(f"pipeline {self._job}")
            return self
        # A pipe does not need rich, whose import is slow.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} {task.fields[what]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self._progress.start()
        self._task = self._progress.add_task(self._job, total=None, what="rows")
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, event: str, fields: Mapping[str, Any]) -> None:
        """Show the event."""
        self.rows += fields.get("rows", 0)
        if self._progress is not None:
            self._show(event, fields)
        elif event == "batch":
            log.info("pipeline.batch", **fields)
        elif event == "upkeep":
            log.info("pipeline.upkeep", **fields)
        elif event != "published" or self._is_time(LOG_EVERY):
            log.info("pipeline.messages", state=event, **fields)

    # internal

    def _show(self, event: str, fields: Mapping[str, Any]) -> None:
        assert self._progress is not None and self._task is not None
        if event == "begin":
            self._progress.update(self._task, total=fields["messages"], what="messages")
        elif event == "acknowledged" or (event == "published" and self._is_time(_SHOW_EVERY)):
            self._progress.update(self._task, completed=fields["messages"])
        elif event == "batch":
            self._progress.update(self._task, completed=self.rows)

    def _is_time(self, every: float) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + every
        return True
