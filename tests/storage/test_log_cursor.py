"""A log read in pieces gives what it holds, whatever happens to it between two of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.storage.test_log import fill, opened
from txbroker.storage.log import Batch, CorruptLog, SegmentLog
from txbroker.storage.log_cursor import EntryTrimmed, LogCursor
from txbroker.storage.segment import Whole

SEGMENT = 64 * 1024


def pieces(cursor: LogCursor, size: int) -> list[list[Batch]]:
    """All that there is."""
    found = []
    while cursor.poll():
        found.append([plain(whole) for whole in cursor.read(size)])
    return found


def plain(whole: Whole) -> Batch:
    head, body = whole
    return Batch(first=head.first, count=head.entries, time=head.time, body=body)


def flat(found: list[list[Batch]]) -> list[Batch]:
    return [batch for piece in found for batch in piece]


@pytest.mark.parametrize("size", [1, 1000, 100_000, 10**9])
@pytest.mark.parametrize("is_reopened", [False, True])
def test_all_from_any_entry_on(tmp_path: Path, size: int, is_reopened: bool) -> None:
    log = opened(tmp_path, segment_bytes=SEGMENT)
    made = fill(log, 1000, 1000)
    if is_reopened:
        log.sync()
        log.close()
        log = opened(tmp_path, segment_bytes=SEGMENT)

    for entry in (1, 2, 700, made[-1].first, made[-1].last):
        found = pieces(LogCursor(log, entry), size)
        assert [one for one in made if one.last >= entry] == flat(found)
        assert all(sum(len(one.body) for one in piece[:-1]) < size for piece in found if piece)
    assert [] == flat(pieces(LogCursor(log, made[-1].last + 1), size))
    assert [] == flat(pieces(LogCursor(log, 10**9), size))


def test_an_empty_log(tmp_path: Path) -> None:
    log = opened(tmp_path)
    cursor = LogCursor(log, 1)
    assert 1 == log.first_kept

    assert not cursor.poll()
    made = fill(log, 3)
    assert made == flat(pieces(cursor, 10))


def test_what_is_appended_meanwhile_comes(tmp_path: Path) -> None:
    """In the same file, and in the next ones."""
    log = opened(tmp_path, segment_bytes=SEGMENT)
    made = fill(log, 10)
    cursor = LogCursor(log, 1)
    found: list[Batch] = []

    for _ in range(30):
        found += flat(pieces(cursor, 5000))
        assert made == found
        made += fill(log, 10, 2000)
    assert len(list(log.folder.glob("*.log"))) > 2


def test_holes_are_passed(tmp_path: Path) -> None:
    """In a file, and between two; also by who begins in one."""
    log = opened(tmp_path, segment_bytes=SEGMENT)
    made = []
    for number in range(20):
        first = log.append(bytes(9000), time=0, first=log.next + 1000 * number)
        log.write()
        made.append(Batch(first=first, count=1, time=0, body=bytes(9000)))

    for entry in range(1, made[-1].first, 500):
        left = [one for one in made if one.first >= entry]
        assert left == flat(pieces(LogCursor(log, entry), 20_000))


def test_a_hole_at_the_beginning_is_no_loss(tmp_path: Path) -> None:
    """A node that was killed before its first sync begins above what it may have given away."""
    log = opened(tmp_path)
    log.append(b"x", 2, time=7, first=4097)
    log.write()

    assert [4097] == [batch.first for batch in flat(pieces(LogCursor(log, 1), 10))]
    assert (1, 4097) == (log.first_kept, log.first)


def trimmed(log: SegmentLog) -> int:
    """Let the first half go."""
    log.sync()
    log.trim(log.next // 2)
    assert log.first > 1
    return log.first


def test_who_begins_before_the_first_is_told(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=SEGMENT)
    made = fill(log, 1000, 1000)
    first = trimmed(log)

    with pytest.raises(EntryTrimmed):
        LogCursor(log, first - 1).poll()
    assert [one for one in made if one.first >= first] == flat(pieces(LogCursor(log, first), 1000))


def test_who_is_overtaken_is_told_and_has_missed_nothing_before(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=SEGMENT)
    made = fill(log, 1000, 1000)
    cursor = LogCursor(log, 1)
    assert cursor.poll()
    found = [plain(whole) for whole in cursor.read(100)]
    trimmed(log)

    with pytest.raises(EntryTrimmed):
        while cursor.poll():
            found += [plain(whole) for whole in cursor.read(1000)]
    assert made[: len(found)] == found


@pytest.mark.parametrize("which", [0, 1, -1])
def test_damage_is_an_error_and_nothing_behind_it_comes(tmp_path: Path, which: int) -> None:
    """In the first file, one between, and the present one."""
    log = opened(tmp_path, segment_bytes=SEGMENT)
    made = fill(log, 300, 1000)
    file = sorted(log.folder.glob("*.log"))[which]
    raw = bytearray(file.read_bytes())
    raw[20_000] ^= 1
    file.write_bytes(raw)
    cursor, found = LogCursor(log, 1), []

    with pytest.raises(CorruptLog, match=file.name):
        while cursor.poll():
            found += [plain(whole) for whole in cursor.read(1000)]
    assert made[: len(found)] == found


def test_who_reads_a_log_that_is_deleted_is_told(tmp_path: Path) -> None:
    """A part that moved to its parent is no damage: its reader, and the scan, end in order."""
    log = opened(tmp_path, segment_bytes=SEGMENT)
    fill(log, 1000, 1000)
    cursor, scan, batches = LogCursor(log, 1), log.verify(), log.batches()
    assert cursor.poll() and cursor.read(1)
    next(scan), next(batches)

    log.discard()
    shutil.rmtree(log.folder)

    with pytest.raises(EntryTrimmed):
        while cursor.poll():
            cursor.read(10**9)
    assert [] == list(scan)
    assert 0 < len(list(batches))  # of the file that is open
    assert [] == list(log.verify()) == list(log.batches())
