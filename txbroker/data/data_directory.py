"""
SHELL: all durable data of a node except its node grant: opened together, committed together.

- `data/tables`: one log for all small state.
- `data/journal`: the parts of journals.
- `data/outbox`: publishes that wait for unreachable owners.
- `data/arriving`: the journal of a zone that a hand-back is returning.
- `data/ledger`: the delivery ledger, if the node has one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import attrs

from txbroker.delegation.state.node_state import STATE
from txbroker.delegation.state.staged_journal import StagedJournals
from txbroker.edge.store.outbox_store import OutboxFiles
from txbroker.journal.store.journal_parts import JournalPart, Journals
from txbroker.journal.store.ledger_log import (
    FOLDER,
    LedgerClocks,
    LedgerFiles,
    LedgerLog,
    forget,
    pause,
)
from txbroker.journal.zone_journal import JournalChunk
from txbroker.model.counters import Counters
from txbroker.model.errors import StoreError
from txbroker.model.timers import Timers
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.runtime.structured_log import get_logger
from txbroker.storage import checked_file
from txbroker.storage.commit_ports import CommitEvents, CommitPorts
from txbroker.storage.committer import Committer, Durability
from txbroker.storage.files import make_folder
from txbroker.storage.lived_time import LONGEST_DOWN, LivedTime, wall
from txbroker.storage.log import SegmentLog
from txbroker.storage.tables import SEGMENT_BYTES, LogTables
from txbroker.storage.value_file import RETAINED, ValueFile
from txbroker.storage.work_thread import WorkThread

log = get_logger()

SCAN_STEPS = 32
"""Steps of a quarter of a MiB that the scan for damage does in a second."""

JOURNAL = "journal"
TABLES = "tables"
"""The folders of the journal's parts, and of the log of small state: sessions and marks."""

_END = object()


def missing_folders(data: Path, *, owns_zone: bool) -> list[Path]:
    """Return the folders without which the data of a node is not whole."""
    names = (TABLES, JOURNAL) if owns_zone else (TABLES,)
    return [data / name for name in names if not (data / name).is_dir()]


def is_of_node(data: Path) -> bool:
    """True if the folder has some of a node's data, damaged or not."""
    has_log = any((data / name).exists() for name in (TABLES, JOURNAL))
    return has_log or checked_file.exists(data / STATE)


def has_lost_state(data: Path) -> bool:
    """True if a data folder without a state has logs, which a node writes after its first state."""
    return any(any((data / name).glob("*")) for name in (TABLES, JOURNAL))


def require_folders(data: Path, *, is_new: bool, owns_zone: bool) -> None:
    """
    Make the folders of a new node; raises `StoreError` if one of another node's is missing.

    The folders are durable before the first state. Otherwise a start without them would pass for
    one of a node that never had a session or a record. A start without the state would forget the
    node's grant and its delegations without a word.
    """
    if is_new and has_lost_state(data):
        raise StoreError(
            f"{data / STATE}: missing, beside the logs of a node; restore the file from a"
            " backup, or use another `data` folder"
        )
    try:
        if is_new:
            for name in (TABLES, JOURNAL):
                make_folder(data / name)
    except OSError as error:
        raise StoreError(f"{data}: cannot be written: {error.strerror}") from error
    for folder in missing_folders(data, owns_zone=owns_zone):
        raise StoreError(
            f"{folder}: this folder is missing; restore it from a backup, or use another `data`"
            " folder"
        )


@attrs.frozen(kw_only=True)
class StoreSettings:
    """
    The keys of the topology file that say how the data of a node is stored.

    `durability` and `sync_interval` are of the committer; `segment_bytes` of journals and ledger.
    """

    durability: str
    sync_interval: float
    segment_bytes: int


class DataDirectory:
    """The store of one node, in its `data` folder; raises `StoreError` if it cannot be opened."""

    def __init__(
        self,
        data: Path,
        settings: StoreSettings,
        *,
        flush_queue: FlushQueue,
        timers: Timers,
        events: CommitEvents,
    ) -> None:
        loop = asyncio.get_event_loop()
        self._thread = WorkThread(loop)
        self.committer = Committer(
            durability=Durability(settings.durability),
            sync_interval=settings.sync_interval,
            ports=CommitPorts(
                mark_dirty=flush_queue.mark_dirty,
                in_thread=self._thread.run,
                timers=timers,
                end_turn=flush_queue.end,
                soon=partial(loop.call_later, 0.0),
            ),
            events=events,
        )
        self._tables_log = SegmentLog(
            data / TABLES, segment_bytes=SEGMENT_BYTES, on_trimmed=_on_trimmed, data=data
        )
        self._on_failed = events.on_failed
        self._scan = self._verify()
        self.attic = ValueFile(data, events.on_failed)
        self.tables = LogTables(
            self._tables_log, self.committer, wall, keeps={RETAINED: self.attic.store}
        )
        self.lived = LivedTime(
            self.tables.table("lived"), now=timers.now, wall=wall, last=self._tables_log.time
        )
        self.message_clock = LivedTime(
            self.tables.table("lived"),
            now=timers.now,
            wall=wall,
            last=self._tables_log.time,
            key=b"messages",
            longest_gap=LONGEST_DOWN,
        )
        self.journals = Journals(
            data / JOURNAL,
            self.committer,
            _on_trimmed,
            segment_bytes=settings.segment_bytes,
            data=data,
            clock=self.message_clock,
        )
        self.arrivals = StagedJournals(
            data / "arriving", self.committer, _on_trimmed, segment_bytes=settings.segment_bytes
        )
        self._data = data
        self._segment_bytes = settings.segment_bytes
        self.ledger: LedgerLog | None = None
        self.outboxes = OutboxFiles(
            data, self.committer, self.tables, _on_trimmed, now=wall, clock=self.message_clock
        )

    def read(
        self, part: JournalPart, after: int, through: int, limit: int = 512, *, bound: int = 0
    ) -> JournalChunk:
        """
        Read the next records of QoS 1 and 2 of a part above `after` and up to `through`.

        The scan covers the first `limit` records of any QoS, and skips a hole up to `bound`.
        Corrupt records end the node: a node never serves silently truncated data.
        """
        if part.log.written < max(through, bound):
            # Without this write, the read below would skip unwritten records as a hole.
            self.committer.write()
            through = min(through, part.log.written)
        try:
            found = part.read(after, limit, through=through, bound=bound, least=1)
        except StoreError as error:
            self._on_failed(error)
            raise
        return JournalChunk(
            records=found.records,
            through=found.through,
            first=found.earliest,
            last=part.log.written,
            rest=part.log.size_above(found.through),
        )

    def open_ledger(
        self, *, is_copy: bool, is_full: Callable[[], bool], counters: Counters
    ) -> None:
        """
        Open the delivery ledger of the node; raises `StoreError`.

        `is_copy`: the data was copied from a node that may have continued, so its ledger gets
        another identity.
        """
        table = self.tables.table(FOLDER)
        if is_copy:
            forget(table)
        self.ledger = LedgerLog(
            LedgerFiles(data=self._data, segment_bytes=self._segment_bytes, on_trimmed=_on_trimmed),
            committer=self.committer,
            table=table,
            clocks=LedgerClocks(now=wall, lived=self.lived),
            is_full=is_full,
            counters=counters,
        )

    def disable_ledger(self) -> None:
        """Note that the node runs without a ledger now."""
        pause(self.tables.table(FOLDER))

    def scan(self) -> None:
        """Verify some more of the data that was stored before this start; called once a second."""
        try:
            for _ in range(SCAN_STEPS):
                if next(self._scan, _END) is _END:
                    return
        except StoreError as error:
            self._on_failed(error)

    def sync_tables(self, action: Callable[[], None]) -> bool:
        """
        Run `action` when a sync has covered the present tables, with any `durability`.

        Return False if the disk accepts no writes now: `action` then never runs.
        """
        return self.committer.sync_soon((self._tables_log,), action)

    def fail(self, error: StoreError) -> None:
        """End the node, as its data on the disk must not be used further."""
        self._on_failed(error)

    @property
    def room(self) -> int:
        """Return the free bytes for this process."""
        found = os.statvfs(self._data)
        return found.f_bavail * found.f_frsize

    @property
    def size(self) -> int:
        """Return the bytes of all logs, without preallocated space."""
        return sum(log.size for log in self._logs())

    def extents(self) -> dict[Path, int]:
        """
        Return the written length of each file that logs append to, without preallocated space.
        """
        return dict(log.extent for log in self._logs() if log.extent is not None)

    def close(self) -> None:
        """Write and sync all data; raises `StoreError`."""
        self.lived.store()
        self.message_clock.store()
        try:
            self.committer.close()
        finally:
            self._thread.close()
            self._tables_log.close()
            self.attic.close()
            self.journals.close()
            self.outboxes.close()
            if self.ledger is not None:
                self.ledger.log.close()

    def _verify(self) -> Iterator[None]:
        yield from self._tables_log.verify()
        for part in list(self.journals.parts.values()):
            yield from part.log.verify()
        for log in self.outboxes.logs():
            yield from log.verify()
        if self.ledger is not None:
            yield from self.ledger.log.verify()

    def _logs(self) -> list[SegmentLog]:
        parts = [part.log for part in self.journals.parts.values()]
        ledger = [] if self.ledger is None else [self.ledger.log]
        return [self._tables_log, *parts, *self.outboxes.logs(), *ledger]


def _on_trimmed(file: Path, last: int, size: int) -> None:
    log.warning("journal.tail_trimmed", file=str(file), last_entry=last, bytes=size)
