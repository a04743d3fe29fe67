"""
SHELL: everything durable of a node but its standing: opened together, committed together.

`data/tables` is one log for all small state; `data/journal` holds the parts of journals.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from txbroker.errors import StoreError
from txbroker.store.committer import Committer, Durability
from txbroker.store.journals import Journals
from txbroker.store.log import Log
from txbroker.store.tables import SEGMENT_BYTES, Tables
from txbroker.store.threads import WorkThread
from txbroker.telemetry import get_logger
from txbroker.timers import Timers
from txbroker.turn import Turn

log = get_logger()


def wall() -> int:
    """The time for records: microseconds UTC."""
    return time.time_ns() // 1000


class Disk:
    """The store of one node, in its `data` folder; raises `StoreError` when it can't be opened."""

    def __init__(
        self,
        data: Path,
        *,
        durability: str,
        sync_interval: float,
        segment_bytes: int,
        turn: Turn,
        timers: Timers,
        on_full: Callable[[bool, str], None],
        on_failed: Callable[[StoreError], None],
    ) -> None:
        self._thread = WorkThread(asyncio.get_event_loop())
        self.committer = Committer(
            durability=Durability(durability),
            sync_interval=sync_interval,
            mark_dirty=turn.mark_dirty,
            in_thread=self._thread.run,
            timers=timers,
            end_turn=turn.end,
            on_full=on_full,
            on_failed=on_failed,
        )
        self._tables_log = Log(
            data / "tables", segment_bytes=SEGMENT_BYTES, on_trimmed=_on_trimmed, data=data
        )
        self.tables = Tables(self._tables_log, self.committer, wall)
        self.journals = Journals(
            data / "journal",
            self.committer,
            _on_trimmed,
            segment_bytes=segment_bytes,
            data=data,
        )

    def close(self) -> None:
        """Write and sync everything; raises `StoreError`."""
        self.committer.close()
        self._thread.close()
        self._tables_log.close()
        self.journals.close()


def _on_trimmed(file: Path, last: int, size: int) -> None:
    log.warning("journal.tail_trimmed", file=str(file), last_entry=last, bytes=size)
