"""A node's delivery ledger on its disk: what is written when, what may be missing, and is said."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.clock import Clock
from txbroker.data.data_directory import FOLDER
from txbroker.journal.delivery_ledger import LedgerKind, LedgerRow
from txbroker.journal.store.ledger_log import (
    MOST_GATHERED,
    STATED_EVERY,
    LedgerClocks,
    LedgerFiles,
    LedgerLog,
    forget,
    pause,
)
from txbroker.journal.store.retention import RetentionPolicy
from txbroker.model.counters import Counters
from txbroker.model.log_position import JournalId
from txbroker.pipeline.ledgers.ledger_batches import ledger_to_arrow
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.storage.commit_ports import CommitEvents, CommitPorts
from txbroker.storage.committer import Committer, Durability
from txbroker.storage.log import SegmentLog
from txbroker.storage.tables import LogTables

ROOT = JournalId("", 1)


class Bench:
    """
    A ledger beside tables, over a folder.

    `now` is lived time; the wall clock has `stepped` away from it.
    """

    def __init__(self, folder: Path, *, durability: Durability = Durability.SYNC) -> None:
        self.now = 1_000_000
        self.stepped = 0
        self.is_full = False
        self.counters = Counters()
        self.clock = Clock()
        self.turn = FlushQueue(lambda action: None)
        self.told: list[bool] = []
        self.committer = Committer(
            durability=durability,
            sync_interval=0.1,
            ports=CommitPorts(
                mark_dirty=self.turn.mark_dirty,
                in_thread=self._in_thread,
                timers=self.clock,
                end_turn=self.turn.end,
            ),
            events=CommitEvents(
                on_full=lambda is_full, _: self.told.append(is_full),
                on_failed=lambda error: None,
            ),
        )
        self._tables_log = SegmentLog(folder / "tables", on_trimmed=lambda *_: None)
        self.tables = LogTables(self._tables_log, self.committer, lambda: self.now)
        self.table = self.tables.table(FOLDER)
        self._folder = folder

    def open(self) -> LedgerLog:
        self.ledger = LedgerLog(
            LedgerFiles(data=self._folder, segment_bytes=64 * 1024, on_trimmed=lambda *_: None),
            committer=self.committer,
            table=self.table,
            clocks=LedgerClocks(now=lambda: self.now + self.stepped, lived=lambda: self.now),
            is_full=lambda: self.is_full,
            counters=self.counters,
        )
        return self.ledger

    def deliver(self, *offsets: int, name: str = "c") -> None:
        for offset in offsets:
            self.ledger.add(
                LedgerRow(LedgerKind.DELIVERY, self.now, name, part=ROOT, offset=offset)
            )

    def end_turn(self) -> None:
        """With what is put off for a while, as nobody waits for it."""
        self.clock.advance(0.1)
        self.turn.end()

    def close(self) -> None:
        self.committer.close()
        self.ledger.log.close()
        self._tables_log.close()

    def rows(self) -> list[tuple[int, str, int]]:
        """(number, kind, offset) of what is written."""
        found = []
        for batch in self.ledger.log.batches():
            end = batch.first + batch.count
            rows = ledger_to_arrow(
                batch.body, node="n", ledger="l", first=batch.first, start=batch.first, end=end
            )
            found += [(row["number"], row["kind"], row["offset"]) for row in rows.to_pylist()]
        return found

    def _in_thread(
        self, work: Callable[[], object], done: Callable[[BaseException | None], None]
    ) -> None:
        work()
        done(None)


def opened(folder: Path) -> Bench:
    bench = Bench(folder)
    bench.open()
    return bench


def test_rows_are_gathered_and_written_together(tmp_path: Path) -> None:
    """One batch for those of several turns; nobody waits for them."""
    bench = opened(tmp_path)
    bench.turn.end()
    bench.deliver(1, 2)
    bench.turn.end()
    bench.deliver(3)
    before = bench.rows()
    bench.end_turn()

    assert [] == before
    assert [(1, "delivery", 1), (2, "delivery", 2), (3, "delivery", 3)] == bench.rows()
    assert [1] == [batch.first for batch in bench.ledger.log.batches()]
    assert 4 == bench.ledger.end


def test_rows_are_written_before_what_they_tell_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the next write of anything, and first: a kill in between leaves the row."""
    bench = opened(tmp_path)
    bench.turn.end()
    written: list[str] = []
    write = SegmentLog.write

    def note(log: SegmentLog, **options: Any) -> bool:
        written.append(log.folder.name)
        return write(log, **options)

    monkeypatch.setattr(SegmentLog, "write", note)
    bench.tables.table("windows").put(b"c", b"has forgotten it")
    bench.deliver(1)
    bench.turn.end()

    assert ["ledger", "tables"] == written


def test_a_ledger_goes_on_where_it_ended(tmp_path: Path) -> None:
    """With its identity; another folder has another one, and so has a copy."""
    bench = opened(tmp_path / "a")
    bench.deliver(1)
    identity = bench.ledger.identity
    bench.close()
    again = opened(tmp_path / "a")
    again.deliver(2)
    again.end_turn()
    copy = Bench(tmp_path / "a")
    forget(copy.table)

    assert [(1, "delivery", 1), (2, "delivery", 2)] == again.rows()
    assert identity == again.ledger.identity
    assert identity not in (opened(tmp_path / "b").ledger.identity, copy.open().identity)


def test_a_full_disk_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are left out and counted, the others are written; then the ledger says so."""
    bench = opened(tmp_path)
    bench.turn.end()
    is_full = True
    pwritev = os.pwritev

    def refuse(fd: int, buffers: list[bytes], offset: int, *flags: int) -> int:
        if is_full and "ledger" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwritev(fd, buffers, offset, *flags)

    monkeypatch.setattr(os, "pwritev", refuse)
    bench.deliver(1, 2)
    done: list[str] = []
    bench.tables.table("windows").put(b"c", b"saved")
    bench.committer.when_durable(lambda: done.append("delivered"))
    bench.end_turn()
    is_full = False
    bench.deliver(3)
    bench.end_turn()

    assert (["delivered"], []) == (done, bench.told)
    assert 2 == bench.counters.get("ledger.left_out")
    assert [(3, "gap", 2), (4, "delivery", 3)] == bench.rows()


def test_a_disk_that_is_full_gets_no_rows(tmp_path: Path) -> None:
    """What room there is left is for what cannot be left out."""
    bench = opened(tmp_path)
    bench.is_full = True
    bench.deliver(1, 2, 3)
    bench.end_turn()
    size = bench.ledger.log.size
    bench.is_full = False
    bench.deliver(4)
    bench.end_turn()

    assert (0, 3) == (size, bench.counters.get("ledger.left_out"))
    assert [(4, "gap", 3), (5, "delivery", 4)] == bench.rows()


def test_rows_that_wait_are_bounded(tmp_path: Path) -> None:
    """While the disk takes nothing of anybody."""
    bench = opened(tmp_path)
    bench.deliver(*range(1, MOST_GATHERED + 11))

    assert 10 == bench.counters.get("ledger.left_out")
    bench.end_turn()
    assert MOST_GATHERED + 1 == len(bench.rows())


def test_rows_that_a_loss_of_power_took_are_missed(tmp_path: Path) -> None:
    """By what the tables know; their numbers are not given again."""
    bench = opened(tmp_path)
    bench.deliver(1, 2)
    bench.end_turn()
    bench.deliver(3, 4, 5)
    bench.end_turn()
    last = max((tmp_path / "ledger").glob("*.log"))
    batches = list(bench.ledger.log.batches())
    with last.open("r+b") as file:  # as if the last batch had not reached the disk
        content = file.read()
        file.seek(content.index(batches[1].body) - 44)
        file.write(bytes(len(content)))
    again = opened(tmp_path)
    again.deliver(6)
    again.end_turn()

    assert [(1, "delivery", 1), (2, "delivery", 2), (6, "gap", 3), (7, "delivery", 6)] == (
        again.rows()
    )


def test_a_ledger_that_was_not_kept_for_a_while_has_a_gap(tmp_path: Path) -> None:
    """Of nobody knows how many rows; a node that never kept one has nothing to remember."""
    bench = opened(tmp_path)
    bench.deliver(1)
    bench.ledger.state()
    bench.close()
    off = Bench(tmp_path)
    pause(off.table)
    off.committer.close()
    again = opened(tmp_path)
    is_due = again.ledger.is_due
    again.deliver(2)
    again.end_turn()
    never = Bench(tmp_path / "never")
    pause(never.table)

    assert [(1, "delivery", 1), (2, "gap", 0), (3, "delivery", 2)] == again.rows()
    assert is_due
    assert 0 == len(never.table)


def test_what_holds_is_due_when_it_was_never_or_long_ago(tmp_path: Path) -> None:
    """Not at each start."""
    bench = opened(tmp_path)
    first = bench.ledger.is_due
    bench.ledger.state()
    bench.close()
    again = opened(tmp_path)
    second = again.ledger.is_due
    again.now += STATED_EVERY + 1

    assert (True, False, True) == (first, second, again.ledger.is_due)


@pytest.mark.parametrize("step", [-2 * STATED_EVERY, 2 * STATED_EVERY])
def test_what_holds_is_due_by_lived_time(tmp_path: Path, step: int) -> None:
    """A clock that went back a year would leave the ledger without subscriptions for a year."""
    bench = opened(tmp_path)
    bench.ledger.state()
    bench.stepped = step
    before = bench.ledger.is_due
    bench.ledger.state()
    bench.stepped = 0
    bench.now += STATED_EVERY
    early = bench.ledger.is_due
    bench.now += 1

    assert (False, False, True) == (before, early, bench.ledger.is_due)


def test_retention_takes_whole_segments(tmp_path: Path) -> None:
    """By size and by age, as of journals; never the last one."""
    bench = opened(tmp_path)
    unlimited = RetentionPolicy(age=40.0, size=1 << 40, session_age=1, session_size=1)
    for _ in range(40):
        for number in range(100):
            bench.deliver(1, name=f"{number:060}")
        bench.end_turn()
        bench.ledger.trim(unlimited)
        bench.now += 1_000_000
    before = bench.ledger.log.size
    policy = RetentionPolicy(age=10**6, size=128 * 1024, session_age=1, session_size=1)
    bench.ledger.trim(policy)
    by_size = bench.ledger.first
    bench.ledger.trim(RetentionPolicy(age=2.0, size=1 << 40, session_age=1, session_size=1))

    assert before > 4 * 64 * 1024
    assert 1 < by_size < bench.ledger.first <= 4000
    assert bench.ledger.log.size <= 128 * 1024
    assert bench.ledger.first - 1 == bench.counters.get("ledger.trimmed")
