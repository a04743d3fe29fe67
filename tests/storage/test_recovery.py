"""What a crash tore is cut off and said; what was damaged later is never served or cut silently."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.storage.test_log import batch, fill, last_segment, opened
from tests.support.crash import SECTOR, crash, snapshot
from txbroker.data.data_repair import repair_files
from txbroker.model.errors import StoreError
from txbroker.storage import newest_segment, segment
from txbroker.storage.log import Batch, CorruptLog, SegmentLog
from txbroker.storage.segment import BATCH_HEAD, FORMAT, SEGMENT_HEAD

Cut = tuple[str, int, int]


def reopened(log: SegmentLog) -> tuple[SegmentLog, list[Cut]]:
    """The log as a new process finds it, and what was cut off."""
    cut: list[Cut] = []
    again = SegmentLog(
        log.folder, on_trimmed=lambda file, last, size: cut.append((file.name, last, size))
    )
    return again, cut


def write_synced(log: SegmentLog, *bodies: bytes) -> list[Batch]:
    """Each batch is written and synced before the next."""
    made = []
    for body in bodies:
        made.append(batch(log.append(body, time=0), body))
        log.write()
        log.sync()
        log.note_newest()
    return made


def write_together(log: SegmentLog, *bodies: bytes) -> list[Batch]:
    """All batches are written at once, and not synced."""
    made = [batch(log.append(body, time=0), body) for body in bodies]
    log.write()
    return made


# -- torn tails


def test_a_last_batch_cut_anywhere_is_a_torn_tail(tmp_path: Path) -> None:
    """At every byte of it; the entries before stay, the number is given again."""
    log = opened(tmp_path)
    made = write_synced(log, b"one", b"two" * 10)
    good = log.size
    write_together(log, b"three" * 5)
    whole = last_segment(log).read_bytes()
    for end in range(good, log.size):
        for rest in (b"", bytes(1000)):
            last_segment(log).write_bytes(whole[:end] + rest)
            again, cut = reopened(log)
            torn = whole[good:end].rstrip(b"\0")
            assert ([(last_segment(log).name, 2, len(torn))] if torn else []) == cut
            assert (made, 3) == (list(again.batches()), again.next)
            assert not last_segment(log).read_bytes()[good:].strip(b"\0")


def test_what_no_sync_has_covered_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed sync the system takes its pages for clean, and a second sync saves nothing."""
    log = opened(tmp_path)
    write_synced(log, b"one")
    write_together(log, b"two", b"three")
    last = last_segment(log).read_bytes()[: log.size]
    done: list[tuple[str, bytes, int]] = []
    pwrite, fdatasync = os.pwrite, os.fdatasync

    def written(fd: int, data: bytes, position: int) -> int:
        done.append(("write", data, position))
        return pwrite(fd, data, position)

    def synced(fd: int) -> None:
        done.append(("sync", b"", 0))
        fdatasync(fd)

    monkeypatch.setattr(os, "pwrite", written)
    monkeypatch.setattr(os, "fdatasync", synced)
    reopened(log)

    kind, data, position = done[0]
    assert ("write", last[position:]) == (kind, data)
    assert b"two" in data and b"three" in data
    assert "sync" == done[1][0]


@pytest.mark.parametrize("size", [1, 10, 100, 5000])
def test_a_tail_of_garbage_is_cut_off(tmp_path: Path, size: int) -> None:
    """Whatever stands there; then the log goes on, and nothing of it ever comes back."""
    log = opened(tmp_path)
    made = write_synced(log, b"one", b"two")
    for seed in range(20):
        garbage = random.Random(seed).randbytes(size - 1) + b"\x01"
        whole = last_segment(log).read_bytes()[: log.size]
        last_segment(log).write_bytes(whole + garbage)
        log, cut = reopened(log)
        assert [(last_segment(log).name, made[-1].last, size)] == cut
        made += write_synced(log, b"more")
        log, cut = reopened(log)
        assert ([], made) == (cut, list(log.batches()))


def test_what_is_cut_off_is_cut_off_durably(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is appended; and what was found written is synced before it is used."""
    log = opened(tmp_path)
    write_together(log, b"one")
    with last_segment(log).open("r+b") as file:
        file.seek(log.size)
        file.write(b"garbage")
    calls: list[str] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(f"os.{name}", lambda fd, name=name: calls.append(name))
    reopened(log)

    assert ["fsync", "fsync", "fdatasync", "fsync"] == calls  # cut, folder; found, folder


def test_pages_of_an_unsynced_group_that_never_arrived_are_a_torn_tail(tmp_path: Path) -> None:
    """The pages behind them did arrive: no batch there says that these were synced."""
    log = opened(tmp_path)
    made = write_synced(log, b"one", b"two")
    good = log.size
    write_together(log, *(random.Random(i).randbytes(700) for i in range(20)))
    whole = bytearray(last_segment(log).read_bytes())
    sector = (good // SECTOR + 3) * SECTOR
    whole[sector : sector + SECTOR] = bytes(SECTOR)
    last_segment(log).write_bytes(whole)
    again, cut = reopened(log)

    assert len(cut) == 1
    found = list(again.batches())
    assert made == found[:2]
    assert len(found) == 3
    assert again.next == 4


def test_a_missing_page_of_a_synced_group_is_corruption(tmp_path: Path) -> None:
    """A later batch says that it was there."""
    log = opened(tmp_path)
    write_synced(log, b"one")
    write_together(log, *(random.Random(i).randbytes(700) for i in range(20)))
    log.sync()
    write_together(log, b"last")
    whole = bytearray(last_segment(log).read_bytes())
    whole[4 * SECTOR : 5 * SECTOR] = bytes(SECTOR)
    last_segment(log).write_bytes(whole)
    with pytest.raises(CorruptLog) as error:
        reopened(log)

    assert 1 < error.value.last_good < 20


def test_zeros_behind_the_last_batch_are_nothing(tmp_path: Path) -> None:
    """Space taken ahead; nothing is cut, or said."""
    log = opened(tmp_path)
    made = write_synced(log, b"one", b"")
    with last_segment(log).open("ab") as file:
        file.write(bytes(3_000_000))

    log, cut = reopened(log)
    assert ([], made) == (cut, list(log.batches()))


@pytest.mark.parametrize("size", range(SEGMENT_HEAD + 1))
def test_a_new_segment_without_its_header_is_taken_away(tmp_path: Path, size: int) -> None:
    """The process ended while the log went over to it: it goes on in the one before."""
    log = opened(tmp_path, segment_bytes=65536)
    made = write_synced(log, bytes(60_000))
    write_together(log, bytes(60_000))
    head = last_segment(log).read_bytes()[:size]
    last_segment(log).write_bytes(head + bytes(5000))
    log, cut = reopened(log)

    assert made == list(log.batches())
    assert log.next == 2
    assert bool(cut) == (0 < size <= 32)  # what follows is zeros anyway
    made += write_synced(log, b"two")
    log, cut = reopened(log)
    assert ([], made) == (cut, list(log.batches()))


def test_a_torn_tail_before_a_segment_that_nobody_synced(tmp_path: Path) -> None:
    """Both were in the same group: the later one goes too."""
    log = opened(tmp_path, segment_bytes=65536)
    made = write_synced(log, bytes(40_000))
    write_together(log, b"x" * 20_000, bytes(60_000), bytes(60_000))
    assert len(list(log.folder.glob("*.log"))) == 3
    first = min(log.folder.glob("*.log"))
    first.write_bytes(first.read_bytes()[:50_000])
    log, cut = reopened(log)

    assert [(first.name, 1)] == [(name, last) for name, last, _ in cut]
    assert [first] == list(log.folder.glob("*.log"))
    assert (made, 2) == (list(log.batches()), log.next)


def test_an_older_segment_cut_short_is_corruption(tmp_path: Path) -> None:
    """It was synced before the next one's batches: found when it is read, or by `verify`."""
    log = opened(tmp_path, segment_bytes=65536)
    write_synced(log, *(bytes(20_000) for _ in range(12)))
    second = sorted(log.folder.glob("*.log"))[1]
    second.write_bytes(second.read_bytes()[:-10])
    log, cut = reopened(log)

    assert cut == []
    read = []
    with pytest.raises(CorruptLog, match=second.name) as error:
        read.extend(log.batches())
    assert (5, [1, 2, 3, 4, 5]) == (error.value.last_good, [one.first for one in read])
    with pytest.raises(CorruptLog, match=second.name):
        list(log.verify())
    assert [7] == [one.first for one in log.batches(6)][:1]


# -- corruption


def test_a_flipped_byte_before_the_last_batch_is_corruption(tmp_path: Path) -> None:
    """Any byte of any batch but the last; the message is one line with what to do."""
    log = opened(tmp_path)
    write_synced(log, b"one", b"two" * 5)
    write_together(log, b"three" * 5, b"four")
    whole = last_segment(log).read_bytes()[: log.size]
    last = log.size - BATCH_HEAD - 4
    for place in range(8, last):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        last_segment(log).write_bytes(damaged)
        with pytest.raises(StoreError) as error:
            reopened(log)
        if place >= 16:
            assert isinstance(error.value, CorruptLog)
            assert f"(last good entry {error.value.last_good})" in str(error.value)
            assert f"txbroker repair {log.folder}" in str(error.value)
            assert "\n" not in str(error.value)
        assert damaged == last_segment(log).read_bytes()
    last_segment(log).write_bytes(whole)
    assert len(list(reopened(log)[0].batches())) == 4


def test_after_a_clean_end_even_the_last_batch_is_known(tmp_path: Path) -> None:
    """A damaged byte of it is no torn tail."""
    log = opened(tmp_path)
    write_synced(log, b"one", b"two" * 5)
    end = log.size
    log.close()
    whole = last_segment(log).read_bytes()
    for place in range(end - 15, end):
        damaged = bytearray(whole)
        damaged[place] ^= 4
        last_segment(log).write_bytes(damaged)
        with pytest.raises(CorruptLog, match="last good entry 1"):
            reopened(log)


def test_a_missing_segment_is_corruption(tmp_path: Path) -> None:
    """In the middle: the first ones may have been trimmed."""
    log = opened(tmp_path, segment_bytes=65536)
    write_synced(log, *(bytes(20_000) for _ in range(12)))
    paths = sorted(log.folder.glob("*.log"))
    paths[1].rename(tmp_path / "away")
    with pytest.raises(CorruptLog, match="segment before it is missing") as error:
        reopened(log)

    assert (3, paths[2]) == (error.value.last_good, error.value.file)
    paths[0].unlink()
    log, _ = reopened(log)
    assert 7 == log.first == next(log.batches()).first


@pytest.mark.parametrize("segments", [1, 4])
@pytest.mark.parametrize("is_closed", [True, False])
def test_a_missing_last_segment_is_corruption(
    tmp_path: Path, segments: int, is_closed: bool
) -> None:
    """Whether others stand before it or not; a log that was never synced misses nothing."""
    log = opened(tmp_path, segment_bytes=65536)
    write_synced(log, *(bytes(20_000) for _ in range(3 * segments)))
    if is_closed:
        log.close()
    paths = sorted(log.folder.glob("*.log"))
    assert segments == len(paths)
    paths[-1].unlink()
    good = 3 * segments - 3
    with pytest.raises(CorruptLog, match="this segment is missing") as error:
        reopened(log)
    assert (good, paths[-1]) == (error.value.last_good, error.value.file)
    (tmp_path / "unsynced").mkdir()
    other = opened(tmp_path / "unsynced", segment_bytes=65536)
    write_together(other, b"one")
    last_segment(other).unlink()
    assert 1 == reopened(other)[0].next


def test_a_damaged_header_of_a_synced_segment_is_corruption(tmp_path: Path) -> None:
    """A crash cannot have torn what a sync has covered."""
    log = opened(tmp_path, segment_bytes=65536)
    write_synced(log, *(bytes(20_000) for _ in range(4)))
    last = last_segment(log)
    damaged = bytearray(last.read_bytes())
    damaged[20] ^= 1
    last.write_bytes(damaged)
    with pytest.raises(CorruptLog, match="last good entry 3"):
        reopened(log)
    assert damaged == last.read_bytes()


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_synced_segment_of_zeros_is_corruption(tmp_path: Path, is_empty: bool) -> None:
    """It looks as if it had never been written, but the line of the newest segment names it."""
    log = opened(tmp_path, segment_bytes=65536)
    write_synced(log, *(bytes(20_000) for _ in range(4)))
    last = last_segment(log)
    last.write_bytes(b"" if is_empty else bytes(last.stat().st_size))

    with pytest.raises(CorruptLog, match="last good entry 3"):
        reopened(log)


@pytest.mark.parametrize("line", [b"", b"00000000000000000007 0badc0de\n", b"\0" * 30, b"?"])
def test_a_torn_line_of_the_newest_segment_tells_nothing(tmp_path: Path, line: bytes) -> None:
    """A crash may leave any of these; the log is whole."""
    log = opened(tmp_path)
    made = write_synced(log, b"one", b"two")
    (log.folder / newest_segment.NAME).write_bytes(line)
    again, _ = reopened(log)
    assert made == list(again.batches())
    write_synced(again, b"three")
    assert 1 == newest_segment.read(log.folder)


def test_a_segment_under_another_name_is_refused(tmp_path: Path) -> None:
    """Its header says where it belongs."""
    log = opened(tmp_path)
    write_synced(log, b"one", b"two")
    last_segment(log).rename(log.folder / f"{5:020}.log")
    with pytest.raises(StoreError, match="was 00000000000000000001.log when"):
        reopened(log)


def test_a_newer_format_is_refused_in_one_line(tmp_path: Path) -> None:
    """Whatever the rest of the file looks like then."""
    log = opened(tmp_path)
    write_synced(log, b"one")
    whole = bytearray(last_segment(log).read_bytes())
    whole[8] = FORMAT + 1
    last_segment(log).write_bytes(whole)
    said = f"format {FORMAT + 1} is newer than this version's {FORMAT}"
    with pytest.raises(StoreError, match=said) as error:
        reopened(log)

    assert not isinstance(error.value, CorruptLog)
    assert "\n" not in str(error.value)


def test_an_older_format_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not read as if it were this one."""
    log = opened(tmp_path)
    write_synced(log, b"one")
    monkeypatch.setattr(segment, "FORMAT", FORMAT + 1)
    said = f"format {FORMAT} is older than this version's {FORMAT + 1}; start the older"
    with pytest.raises(StoreError, match=said) as error:
        reopened(log)

    assert not isinstance(error.value, CorruptLog)
    assert "\n" not in str(error.value)


def test_a_published_log_file_is_not_taken_for_a_log(tmp_path: Path) -> None:
    """A torn batch holds the bytes of whole ones, at another place than they were written."""
    log = opened(tmp_path)
    write_synced(log, b"one", b"two", b"three")
    payload = last_segment(log).read_bytes()[: log.size]
    good = log.size
    write_together(log, payload * 3)
    whole = bytearray(last_segment(log).read_bytes()[: log.size])
    whole[-1] ^= 1
    last_segment(log).write_bytes(whole)
    log, cut = reopened(log)

    assert [(last_segment(log).name, 3, len(payload) * 3 + BATCH_HEAD)] == cut
    assert good == log.size


def test_a_payload_full_of_marks_costs_no_time(tmp_path: Path) -> None:
    """Each looks like the beginning of a batch, and is told from one by its head alone."""
    log = opened(tmp_path)
    write_synced(log, b"one")
    head = last_segment(log).read_bytes()[SEGMENT_HEAD : SEGMENT_HEAD + 4]
    write_together(log, head * 250_000)
    last_segment(log).write_bytes(last_segment(log).read_bytes()[: log.size - 1])

    assert [1] == [last for _, last, _ in reopened(log)[1]]


def test_a_file_that_cannot_be_read_is_no_corruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says so, at the start and later."""
    log = opened(tmp_path)
    write_synced(log, b"one")

    def broken(fd: int, length: int, position: int) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.pread", broken)
    with pytest.raises(StoreError, match="cannot be read: Input/output error"):
        list(log.batches())
    with pytest.raises(StoreError, match="cannot be read: Input/output error"):
        log.offset_at(5)
    with pytest.raises(StoreError, match="cannot be opened: Input/output error"):
        reopened(log)


# -- trims


@pytest.mark.parametrize("seed", range(20))
def test_a_trim_keeps_what_a_loss_of_power_goes_back_to(tmp_path: Path, seed: int) -> None:
    """Of a segment that no sync has covered nothing may be left: no number is given again."""
    log = opened(tmp_path, segment_bytes=65536)
    write_synced(log, bytes(40_000))
    synced = snapshot(log.folder)
    write_together(log, bytes(40_000))
    log.trim(1)
    crash(log.folder, synced, random.Random(seed))

    for _ in range(2):
        assert reopened(log)[0].next >= 2


def test_a_sync_lets_a_trim_go_on(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=65536)
    write_together(log, bytes(40_000), bytes(40_000))
    kept = log.trim(1)
    log.sync()

    assert (0, 2) == (kept, log.trim(1) and log.first)


# -- verify


def test_verify_goes_in_small_steps(tmp_path: Path) -> None:
    """And does not mind what is appended and trimmed meanwhile."""
    log = opened(tmp_path, segment_bytes=1_000_000)
    fill(log, 3000, 2000)
    log.sync()
    steps = log.verify()
    next(steps)
    log.trim(1000)
    fill(log, 100)
    count = sum(1 for _ in steps)

    assert count >= log.size // 400_000


def test_verify_finds_what_nobody_reads(tmp_path: Path) -> None:
    """A flipped bit in an old segment."""
    log = opened(tmp_path, segment_bytes=65536)
    write_synced(log, *(bytes(20_000) for _ in range(12)))
    first = min(log.folder.glob("*.log"))
    damaged = bytearray(first.read_bytes())
    damaged[30_000] ^= 1
    first.write_bytes(damaged)
    with pytest.raises(CorruptLog, match="last good entry 1"):
        list(reopened(log)[0].verify())


# -- repair


def test_repair_cuts_at_the_last_good_entry_and_keeps_the_rest(tmp_path: Path) -> None:
    """Numbers that were cut off are not given again."""
    log = opened(tmp_path, segment_bytes=65536)
    made = write_synced(log, *(bytes([i]) * 20_000 for i in range(12)))
    paths = sorted(log.folder.glob("*.log"))
    before = snapshot(log.folder)
    damaged = bytearray(before[paths[1].name])
    damaged[30_000] ^= 1
    paths[1].write_bytes(damaged)
    lines = repair_files(tmp_path)

    assert f"{paths[1]}: cut off after entry 4" == lines[0]
    assert len(lines) == 4
    log, cut = reopened(log)
    assert ([], made[:4], 13) == (cut, list(log.batches()), log.next)
    kept = {path.name: path.read_bytes() for path in log.folder.glob("*.cut")}
    good = len(before[paths[1].name]) - len(kept[f"{paths[1].stem}.1.cut"])
    assert bytes(damaged[good:]) == kept[f"{paths[1].stem}.1.cut"]
    assert before[paths[2].name] == kept[f"{paths[2].stem}.1.cut"]
    assert before[paths[3].name] == kept[f"{paths[3].stem}.1.cut"]
    assert [] == repair_files(tmp_path)
    log.append(b"on", time=0)
    log.write()
    assert [*made[:4], batch(13, b"on")] == list(reopened(log)[0].batches())


@pytest.mark.parametrize("damage", ["last missing", "all missing"])
def test_repair_of_a_missing_last_segment(tmp_path: Path, damage: str) -> None:
    """No number that the segment may have held is given again."""
    log = opened(tmp_path, segment_bytes=65536)
    made = write_synced(log, *(bytes(20_000) for _ in range(12)))
    paths = sorted(log.folder.glob("*.log"))
    for path in paths if damage == "all missing" else paths[-1:]:
        path.unlink()
    lines = repair_files(tmp_path)

    following = 10 + (1 << 32)
    assert [f"{paths[-1]}: is missing; the log goes on with entry {following}"] == lines
    log, cut = reopened(log)
    kept = made[:9] if damage == "last missing" else []
    assert ([], kept, following) == (cut, list(log.batches()), log.next)
    assert [] == repair_files(tmp_path)
    write_synced(log, b"on")
    assert [*kept, batch(following, b"on")] == list(reopened(log)[0].batches())


@pytest.mark.parametrize("damage", ["header", "missing", "first header", "sealed end"])
def test_repair_of_whole_segments(tmp_path: Path, damage: str) -> None:
    """A segment without its header, or that is not there, ends the log before it."""
    log = opened(tmp_path, segment_bytes=65536)
    made = write_synced(log, *(bytes(20_000) for _ in range(12)))
    paths = sorted(log.folder.glob("*.log"))
    if damage == "missing":
        paths[1].unlink()
    elif damage == "sealed end":
        paths[0].write_bytes(paths[0].read_bytes()[: SEGMENT_HEAD + 2 * (BATCH_HEAD + 20_000)])
    else:
        path = paths[0] if damage == "first header" else paths[1]
        path.write_bytes(b"?" * SEGMENT_HEAD + path.read_bytes()[SEGMENT_HEAD:])
    assert len(repair_files(tmp_path)) > 1
    log, cut = reopened(log)

    kept = {"first header": 0, "sealed end": 2}.get(damage, 3)
    assert ([], made[:kept], 13) == (cut, list(log.batches()), log.next)


def test_repair_leaves_whole_logs_alone(tmp_path: Path) -> None:
    """And folders that hold none."""
    log = opened(tmp_path)
    write_synced(log, b"one")
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "some.log").write_text("text")
    before = snapshot(log.folder)

    assert [] == repair_files(tmp_path)
    assert before == snapshot(log.folder)


# -- anything that may happen


class Crashes:
    """
    A log against a list, with power failures.

    Whatever a failure leaves: the log opens, has all that was synced, and of the rest a beginning.
    """

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder = folder
        self.chance = chance
        self.segment = chance.choice((65536, 1_000_000))
        self.made: list[Batch] = []
        self.durable = self.written = 0
        self.open()

    def open(self) -> None:
        """As a process that starts."""
        self.log = SegmentLog(self.folder, segment_bytes=self.segment, on_trimmed=lambda *_: None)
        self.synced = snapshot(self.folder)

    def append(self) -> None:
        """Some batches, perhaps of zeros, perhaps behind a hole."""
        chance = self.chance
        for _ in range(chance.randint(1, 6)):
            size = chance.choice((0, 1, 100, 467, 468, 469, 3000, 30_000))
            body = chance.choice((chance.randbytes(size), bytes(size), b"\xab" * size))
            first = self.log.next + chance.choice((0, 0, 0, 5))
            count, time = chance.randint(1, 3), len(self.made)
            self.log.append(body, count, time=time, first=first)
            self.made.append(Batch(first=first, count=count, time=time, body=body))
        if chance.random() < 0.7:
            self.write()

    def write(self) -> None:
        """All that is staged."""
        self.log.write()
        self.written = len(self.made)

    def sync(self) -> None:
        """What is written."""
        self.log.sync()
        self.synced = snapshot(self.folder)
        self.durable = self.written

    def power_failure(self) -> None:
        """The next process finds a beginning of what was written."""
        crash(self.folder, self.synced, self.chance)
        self.open()
        self.check_found()

    def kill(self) -> None:
        """The next process finds all that was written."""
        self.durable = self.written
        self.open()
        self.check_found()

    def restart(self) -> None:
        """The same, after a clean end."""
        self.write()
        self.log.sync()
        self.log.close()
        self.durable = self.written
        self.open()
        self.check_found()

    def check_found(self) -> None:
        """At least what was synced, and nothing else than what was written."""
        found = list(self.log.batches())
        assert self.made[: len(found)] == found
        assert self.durable <= len(found) <= self.written
        self.made = found
        self.durable = self.written = len(found)

    def step(self) -> None:
        """Anything, the usual things more often."""
        steps = (self.append, self.write, self.sync, self.power_failure, self.kill, self.restart)
        self.chance.choices(steps, (10, 2, 3, 2, 1, 1))[0]()
        after = self.chance.randint(0, self.log.next)
        kept = [one for one in self.made[: self.written] if one.last > after]
        assert kept == list(self.log.batches(after))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_a_log_survives_power_failures(seed: int) -> None:
    """A hundred things happen to it."""
    with TemporaryDirectory() as folder:
        crashes = Crashes(Path(folder), random.Random(seed))
        for _ in range(100):
            crashes.step()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(place=st.floats(0, 1), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found(tmp_path: Path, place: float, bit: int) -> None:
    """By opening, reading or verifying: entries never change silently, nor vanish."""
    folder = tmp_path / "log"
    if not folder.exists():
        log = opened(tmp_path, segment_bytes=65536)
        write_synced(log, *(random.Random(i).randbytes(5000) for i in range(40)))
        log.close()
        shutil.copytree(folder, tmp_path / "kept")
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "kept", folder)
    paths = sorted(folder.glob("*.log"))
    files = [path.read_bytes() for path in paths]
    at = int(place * (sum(map(len, files)) - BATCH_HEAD - 1))  # the last one only says: synced
    for path, whole in zip(paths, files, strict=True):
        if at < len(whole):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            path.write_bytes(damaged)
            break
        at -= len(whole)
    with pytest.raises(StoreError):
        log = SegmentLog(folder, on_trimmed=lambda *_: None)
        list(log.verify())
        list(log.batches())
