"""
SHELL: the delivery ledger of a node, a log under `data/ledger`.

Rows are gathered for one or more turns and written with the turn's other records, ahead of them. So
after a kill the ledger has a row for each delivery that the session's own state has forgotten. The
ledger has no row for a delivery that did not happen. No client waits for rows, and rows stop no
client. A short disk leaves rows out: they are counted, and a later row records the gap
(`LedgerKind.GAP`).

A table stores the ledger's next row number, in one batch with the state of the sessions. So the
ledger detects a loss of power that took rows but not the changes of sessions. Lost row numbers are
not reused.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from pathlib import Path

import attrs

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
"""The folder below `data`."""

MOST_GATHERED = 100_000
"""The most rows that wait while the disk accepts no bytes; beyond that rows are left out."""

STATED_EVERY = 86_400 * SECOND
"""
Age at which the present subscriptions are written again, as retention trims their rows (`is_due`).
"""

_ID, _NEXT, _PAUSED, _STATED, _AGES = b"id", b"next", b"paused", b"stated", b"ages"
_KEYS = (_ID, _NEXT, _PAUSED, _STATED)


@attrs.frozen(kw_only=True)
class LedgerFiles:
    """The files of a ledger: those of `SegmentLog`, below the folder `data`."""

    data: Path
    segment_bytes: int
    on_trimmed: OnTrimmed


@attrs.frozen(kw_only=True)
class LedgerClocks:
    """The clocks of a ledger in microseconds: `now` of rows, in UTC; `lived` of their ages."""

    now: Callable[[], int]
    lived: Callable[[], int]


class LedgerLog:
    """
    The ledger of one node (a `LedgerRecorder`).

    `identity` names the ledger: another `data` folder has another one. Times of rows are UTC
    microseconds, ages are microseconds of lived time.
    """

    def __init__(
        self,
        files: LedgerFiles,
        *,
        committer: Committer,
        table: LogTable,
        clocks: LedgerClocks,
        is_full: Callable[[], bool],
        counters: Counters,
    ) -> None:
        """
        Open or create the ledger; raises `StoreError`.

        `is_full`: True if the disk must accept no more bytes.
        """
        self.now = clocks.now
        self._lived = clocks.lived
        self._ages = EntryAges(table, clocks.lived)
        self.log = _Lenient(
            files.data / FOLDER,
            segment_bytes=files.segment_bytes,
            on_trimmed=files.on_trimmed,
            data=files.data,
        )
        self.log.on_left_out = self._drop_rows
        self._committer = committer
        self._table = table
        self._is_full = is_full
        self._counters = counters
        self._rows: list[LedgerRow] = []
        self._missing: int | None = None
        self.identity = self._open()
        committer.add(self.log, is_first=True)

    # from the ledger writer

    def add(self, row: LedgerRow) -> None:
        """Gather a row."""
        if not self._rows:
            self._committer.before_later_write(self._stage)
        elif len(self._rows) >= MOST_GATHERED:
            self._drop_rows(1)
            return
        self._rows.append(row)

    @property
    def is_due(self) -> bool:
        """True if all present subscriptions must be written again."""
        stated = self._table.get(_STATED)
        return stated is None or self._lived() - int.from_bytes(stated) > STATED_EVERY

    def state(self) -> None:
        """Note that they are written now."""
        self._table.put(_STATED, self._lived().to_bytes(8))

    # from readers

    @property
    def first(self) -> int:
        """Return the first row that the ledger still has."""
        return self.log.first

    @property
    def end(self) -> int:
        """Return the row number behind the last synced row."""
        return self.log.synced + 1

    # from the node

    def trim(self, policy: RetentionPolicy) -> None:
        """Trim rows that exceed the age or size of `policy`."""
        self._ages.mark(_AGES, self.log.written, policy.age)
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
        """Note a gap before the next row, of `count` rows if known (more than 0)."""
        self._missing = (self._missing or 0) + count
        self._table.delete(_STATED)

    def _drop_rows(self, count: int) -> None:
        if self._missing is None:
            log.warning("ledger.rows_dropped", folder=str(self.log.folder))
        self._counters.add("ledger.left_out", count)
        self._miss(count)

    def _stage(self) -> None:
        """Append all gathered rows to the log, or leave them out."""
        rows, self._rows = self._rows, []
        if self._is_full():
            self._drop_rows(len(rows))
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
    """Forget the ledger's identity: existing rows continue under another one."""
    for key in _KEYS:
        table.delete(key)


def pause(table: LogTable) -> None:
    """Note that a node with a ledger now runs without: a later start then knows of missing rows."""
    if table.get(_ID) is not None and table.get(_PAUSED) is None:
        table.put(_PAUSED, b"1")


class _Lenient(SegmentLog):
    """A log that leaves out records on a full disk, where other logs keep them staged."""

    on_left_out: Callable[[int], None]

    def write(self, *, is_unread: bool = False, most: int = sys.maxsize) -> bool:
        """Write as `SegmentLog` does, but leave out records on `DiskFull`."""
        try:
            return super().write(is_unread=is_unread, most=most)
        except DiskFull:
            self.on_left_out(self.drop_staged())
            return True
