"""
SHELL: the delivery ledger of a node, a log under `data/ledger`.

Rows are gathered for a turn or more and written with what else is written then, before it: after a
kill the ledger has the row of each delivery that the session's own state has forgotten, and of no
other one that did not happen. Nobody waits for rows, and they stop nobody. Where the disk is short
they are left out and counted, and the ledger has a row that says so (`LedgerKind.GAP`).

How far the ledger has come is in a table, in one batch with the state of the sessions. So it shows
where a loss of power took rows and not what they tell of; their numbers are not given again.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from pathlib import Path

from txbroker.journal.delivery_ledger import LedgerKind, LedgerRow, batches, encode_rows
from txbroker.journal.store.retention import RetentionPolicy
from txbroker.model.counters import Counters
from txbroker.runtime.structured_log import get_logger
from txbroker.storage.committer import Committer
from txbroker.storage.files import DiskFull
from txbroker.storage.lived_time import SECOND, EntryAges
from txbroker.storage.log import SegmentLog
from txbroker.storage.recovery import OnTrimmed
from txbroker.storage.tables import LogTable

log = get_logger()

FOLDER = "ledger"
"""Below `data`."""

MOST_GATHERED = 100_000
"""Rows that wait while the disk takes nothing at all; beyond that they are left out."""

STATED_EVERY = 86_400 * SECOND
"""What holds is written anew so often, as retention takes what was written of it (`is_due`)."""

_ID, _NEXT, _PAUSED, _STATED, _AGES = b"id", b"next", b"paused", b"stated", b"ages"
_KEYS = (_ID, _NEXT, _PAUSED, _STATED)


class LedgerLog:
    """
    The ledger of one node (a `LedgerRecorder`). `identity` names it: with another `data` it is
    another one. Times of rows are microseconds UTC, ages what the node has lived.
    """

    def __init__(
        self,
        data: Path,
        *,
        committer: Committer,
        table: LogTable,
        segment_bytes: int,
        is_full: Callable[[], bool],
        counters: Counters,
        now: Callable[[], int],
        lived: Callable[[], int],
        on_trimmed: OnTrimmed,
    ) -> None:
        """Open or begin it; raises `StoreError`. `is_full`: the disk is to take nothing more."""
        self.now = now
        self._lived = lived
        self._ages = EntryAges(table, lived)
        self.log = _Lenient(
            data / FOLDER, segment_bytes=segment_bytes, on_trimmed=on_trimmed, data=data
        )
        self.log.on_left_out = self._leave_out
        self._committer = committer
        self._table = table
        self._is_full = is_full
        self._counters = counters
        self._rows: list[LedgerRow] = []
        self._missing: int | None = None
        self.identity = self._open()
        committer.add(self.log, is_first=True)

    # from the recording

    def add(self, row: LedgerRow) -> None:
        """Gather a row."""
        if not self._rows:
            self._committer.before_later_write(self._stage)
        elif len(self._rows) >= MOST_GATHERED:
            self._leave_out(1)
            return
        self._rows.append(row)

    @property
    def is_due(self) -> bool:
        """Whether all that holds now is to be written once more."""
        stated = self._table.get(_STATED)
        return stated is None or self._lived() - int.from_bytes(stated) > STATED_EVERY

    def state(self) -> None:
        """It is written now."""
        self._table.put(_STATED, self._lived().to_bytes(8))

    # from readers

    @property
    def first(self) -> int:
        """The first row that is kept."""
        return self.log.first

    @property
    def end(self) -> int:
        """Behind the last row that is synced."""
        return self.log.synced + 1

    # from the node

    def trim(self, policy: RetentionPolicy) -> None:
        """Let go of what is older or more than journals keep."""
        self._ages.note(_AGES, self.log.written, policy.age)
        through = max(self._ages.through(_AGES, policy.age), self.log.excess(policy.size))
        before = self.log.first
        if self.log.trim(through):
            self._counters.add("ledger.trimmed", self.log.first - before)

    # internal

    def _open(self) -> str:
        known = self._table.get(_ID)
        if known is None:
            known = secrets.token_hex(8).encode()
            self._table.put(_ID, known)
        elif self._table.get(_PAUSED) is not None:
            self._table.delete(_PAUSED)
            self._miss(0)
        reached = int.from_bytes(self._table.get(_NEXT) or b"")
        if reached > self.log.next:
            self._miss(reached - self.log.next)
            self.log.next = reached
        return known.decode()

    def _miss(self, count: int) -> None:
        """Rows are missing from here on back, so many if that is known (more than 0)."""
        self._missing = (self._missing or 0) + count
        self._table.delete(_STATED)

    def _leave_out(self, count: int) -> None:
        if self._missing is None:
            log.warning("ledger.short", folder=str(self.log.folder))
        self._counters.add("ledger.left_out", count)
        self._miss(count)

    def _stage(self) -> None:
        """Everything gathered goes into the log, or is left out."""
        rows, self._rows = self._rows, []
        if self._is_full():
            self._leave_out(len(rows))
            self.log.next += len(rows)
            return
        if self._missing is not None:
            rows.insert(0, LedgerRow(LedgerKind.GAP, rows[0].time, offset=self._missing))
            self._missing = None
        for some in batches(rows):
            self.log.append(encode_rows(some), len(some), time=some[-1].time)
        self._table.put(_NEXT, self.log.next.to_bytes(8))
        self._committer.touch(self.log)


def forget(table: LogTable) -> None:
    """What is there goes on under another identity."""
    for key in _KEYS:
        table.delete(key)


def pause(table: LogTable) -> None:
    """A node that kept a ledger does not now: should it again, it knows that rows are missing."""
    if table.get(_ID) is not None and table.get(_PAUSED) is None:
        table.put(_PAUSED, b"1")


class _Lenient(SegmentLog):
    """A log that leaves out what the disk has no room for, where others keep it staged."""

    on_left_out: Callable[[int], None]

    def write(self, *, is_unread: bool = False, most: int = sys.maxsize) -> bool:
        """As any log, but for `DiskFull`."""
        try:
            return super().write(is_unread=is_unread, most=most)
        except DiskFull:
            self.on_left_out(self.leave_out())
            return True
