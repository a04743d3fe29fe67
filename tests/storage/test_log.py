"""A log takes entries, keeps their order, gives them back from any place, lets old ones go."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from txbroker.model.errors import CallerError, StoreError
from txbroker.storage.log import Batch, DiskFull, SegmentLog


def opened(folder: Path, **options: Any) -> SegmentLog:
    """A log of which nothing may be cut."""

    def fail(*what: object) -> None:
        raise AssertionError(f"cut off: {what}")

    return SegmentLog(folder / "log", on_trimmed=fail, **options)


def batch(first: int, body: bytes, count: int = 1, time: int = 0) -> Batch:
    """The value of a batch."""
    return Batch(first=first, count=count, time=time, body=body)


def fill(log: SegmentLog, number: int, size: int = 100, *, together: int = 1) -> list[Batch]:
    """Write batches of different sizes, some with several entries; the time counts them."""
    chance = random.Random(number)
    made = []
    for time in range(number):
        body, count = chance.randbytes(chance.randint(0, size)), chance.randint(1, 3)
        made.append(batch(log.append(body, count, time=time), body, count, time))
        if not time % together:
            log.write()
    log.write()
    return made


def last_segment(log: SegmentLog) -> Path:
    """The file that is appended to."""
    return max(log.folder.glob("*.log"))


# -- appending and reading


def test_entries_are_numbered_from_one(tmp_path: Path) -> None:
    """A batch takes as many numbers as it has entries."""
    log = opened(tmp_path)

    assert (log.first, log.next, log.written, log.size) == (1, 1, 0, 0)
    assert [log.append(b"a", 3, time=5), log.append(b"b", time=6)] == [1, 4]
    assert (log.next, log.written, log.staged > 0) == (5, 0, True)


def test_what_is_staged_cannot_be_read_yet(tmp_path: Path) -> None:
    """Written batches come back as they were appended."""
    log = opened(tmp_path)
    log.append(b"a", 3, time=5)

    assert [] == list(log.batches())
    log.write()
    assert [batch(1, b"a", 3, 5)] == list(log.batches())
    assert (log.staged, log.written) == (0, 3)


def test_a_log_opens_as_it_was_closed(tmp_path: Path) -> None:
    """Also twice, and with nothing appended in between."""
    log = opened(tmp_path)
    made = fill(log, 300)
    log.sync()
    log.close()
    for _ in range(2):
        log = opened(tmp_path)
        assert (made, made[-1].last + 1) == (list(log.batches()), log.next)
        log.close()
    log = opened(tmp_path)
    assert made[-1].last + 1 == log.append(b"more", time=1)
    log.write()
    assert [*made, batch(made[-1].last + 1, b"more", 1, 1)] == list(log.batches())


def test_a_log_opens_as_a_killed_process_left_it(tmp_path: Path) -> None:
    """Without close: what was written is there, synced or not."""
    made = fill(opened(tmp_path, segment_bytes=65536), 3000)

    assert made == list(opened(tmp_path).batches())


@pytest.mark.parametrize("reopen", [False, True])
def test_reading_begins_anywhere(tmp_path: Path, reopen: bool) -> None:
    """In any segment, in the middle of a batch, behind the end; while it was indexed or not."""
    log = opened(tmp_path, segment_bytes=300_000)
    made = fill(log, 3000, 400)
    if reopen:
        log.sync()
        log.close()
        log = opened(tmp_path)
    chance = random.Random(1)
    for after in [0, 1, made[-1].last - 1, *(chance.randint(0, made[-1].last) for _ in range(300))]:
        wanted = [one for one in made if one.last > after]
        found = log.batches(after)
        assert wanted[:3] == [next(found) for _ in wanted[:3]]
    assert [] == list(log.batches(made[-1].last))


@pytest.mark.parametrize("size", [400, 20_000])
def test_reading_in_the_middle_reads_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """A place in an old segment is found without reading all that is before it."""
    log = opened(tmp_path, segment_bytes=16 * 1024 * 1024)
    made = fill(log, 24_000_000 // size, size, together=50)
    log.append(bytes(16_000_000), time=0)  # begins the next segment
    log.write()
    log.sync()
    log.close()
    assert len(list(log.folder.glob("*.log"))) == 2
    log = opened(tmp_path)
    read = 0

    def counting(fd: int, length: int, position: int) -> bytes:
        nonlocal read
        data = pread(fd, length, position)
        read += len(data)
        return data

    pread = os.pread
    monkeypatch.setattr(os, "pread", counting)
    wanted = made[len(made) // 2]

    assert wanted == next(log.batches(wanted.first - 1))
    assert read < 2_000_000
    read = 0
    assert wanted == next(log.batches(wanted.first - 1))
    assert read < 600_000


def test_a_hole_is_for_ever(tmp_path: Path) -> None:
    """Numbers that were skipped are not given; reading goes over them."""
    log = opened(tmp_path)
    log.append(b"a", time=0)
    assert log.append(b"b", 2, time=0, first=100) == 100
    log.write()
    log.sync()
    log.close()
    log = opened(tmp_path)

    assert [batch(1, b"a"), batch(100, b"b", 2)] == list(log.batches())
    assert [batch(100, b"b", 2)] == list(log.batches(50))
    assert log.next == 102
    with pytest.raises(CallerError):
        log.append(b"c", time=0, first=101)


def test_a_log_may_begin_with_a_hole(tmp_path: Path) -> None:
    """Its first entry is then the first kept."""
    log = opened(tmp_path)
    log.append(b"a", time=0, first=50)
    log.write()

    assert (50, [batch(50, b"a")]) == (log.first, list(opened(tmp_path).batches(10)))


def test_a_reader_sees_what_is_written_meanwhile(tmp_path: Path) -> None:
    """Appending, new segments and trimming do not disturb it."""
    log = opened(tmp_path, segment_bytes=65536)
    made = fill(log, 100, 1000)
    reader = log.batches()
    found = [next(reader)]
    made += [
        batch(one.first + made[-1].last, one.body, one.count, one.time)
        for one in fill_more(log, 500)
    ]
    found += [next(reader) for _ in range(150)]
    log.sync()
    log.trim(made[140].last)
    found += reader

    assert made[: len(found)] == found
    assert len(found) >= 150


def fill_more(log: SegmentLog, number: int) -> list[Batch]:
    """As `fill`, numbered from 1 on."""
    before = log.next - 1
    return [
        batch(one.first - before, one.body, one.count, one.time) for one in fill(log, number, 1000)
    ]


def test_many_and_large_batches_are_written_at_once(tmp_path: Path) -> None:
    """More than one system call takes; more than a segment holds."""
    log = opened(tmp_path, segment_bytes=1_000_000)
    bodies = [b"x"] * 3000 + [os.urandom(3_000_000), b"y", os.urandom(2_000_000)]
    made = [batch(log.append(body, time=0), body) for body in bodies]
    log.write()

    assert made == list(log.batches())
    assert made == list(opened(tmp_path).batches())


def sizes_of_writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each call for the system, from now on."""
    sizes: list[int] = []
    plain = os.pwritev

    def pwritev(fd: int, buffers: Sequence[bytes], position: int, flags: int = 0) -> int:
        sizes.append(plain(fd, buffers, position, flags))
        return sizes[-1]

    monkeypatch.setattr(os, "pwritev", pwritev)
    return sizes


def test_a_large_batch_is_written_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system copies 16 MB for 30 ms: nobody else was served meanwhile."""
    log = opened(tmp_path)
    bodies = [b"before", bytes(range(256)) * (3 << 12), b"after"]
    for time, body in enumerate(bodies):
        log.append(body, time=time)
    sizes = sizes_of_writes(monkeypatch)
    written = []
    while not log.write(most=1 << 20):
        written.append(log.written)

    assert [1, 1, 1] == written
    assert 3 == log.written and not log.staged
    assert max(sizes) <= 1 << 20
    assert bodies == [batch.body for batch in opened(tmp_path).batches()]


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_pieces_without_a_head_are_nothing(tmp_path: Path, calls: int) -> None:
    """A process that is killed amid a large batch leaves what it had before."""
    killed = opened(tmp_path)
    killed.append(b"before", time=0)
    killed.append(os.urandom(3 << 20), time=0)
    for _ in range(calls):
        assert not killed.write(most=1 << 20)
    log = SegmentLog(tmp_path / "log", on_trimmed=lambda *_: None)
    log.append(b"after", time=0)
    log.write()

    assert [b"before", b"after"] == [batch.body for batch in log.batches()]
    log.close()
    assert [b"before", b"after"] == [batch.body for batch in opened(tmp_path).batches()]


def test_pieces_wait_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that gets full amid a large batch loses nothing of it, and writes nothing twice."""
    disk = Disk(monkeypatch)
    disk.room = 1 << 20
    log = opened(tmp_path)
    bodies = [os.urandom(3 << 20), b"after"]
    for body in bodies:
        log.append(body, time=0)
    with pytest.raises(DiskFull):
        while not log.write(most=1 << 19):
            pass
    assert (0, 2) == (log.written, log.staged_entries)
    disk.room = 8 << 20
    while not log.write(most=1 << 19):
        pass

    assert bodies == [batch.body for batch in log.batches()]


def test_pieces_that_are_left_out_are_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes next begins where they began."""
    disk = Disk(monkeypatch)
    disk.room = 3 << 20
    log = opened(tmp_path)
    log.append(os.urandom(3 << 20), time=0)
    assert not log.write(most=1 << 20)
    assert 1 == log.drop_staged()
    disk.room = 8 << 20
    large = os.urandom(2 << 20)
    log.append(large, time=0)
    while not log.write(most=1 << 20):
        pass

    assert [large] == [batch.body for batch in opened(tmp_path).batches()]


def test_small_batches_are_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one turn has staged goes to the system with one `pwritev`."""
    log = opened(tmp_path)
    fill(log, 1)
    calls = recording(monkeypatch, "pwritev", "pwrite")
    fill(log, 500, together=1000)
    log.append(bytes(90_000), time=0)  # takes space ahead, for the others too
    log.write()
    calls.clear()
    for time in range(500):
        log.append(b"x", time=time)
    log.write()

    assert ["pwritev"] == calls


def recording(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """A list that names the calls of these functions of `os`."""
    calls: list[str] = []

    def record(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            calls.append(name)
            return real(*args)

        return call

    for name in names:
        monkeypatch.setattr(os, name, record(name, getattr(os, name)))
    return calls


# -- segments


def test_segments_are_limited_in_size_and_number_of_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a start, which scans one of them, takes a moment."""
    monkeypatch.setattr("txbroker.storage.log._MAX_BATCHES", 1000)
    log = opened(tmp_path, segment_bytes=200_000)
    made = fill(log, 5000)
    log.sync()

    sizes = [path.stat().st_size for path in sorted(log.folder.glob("*.log"))]
    assert len(sizes) >= 5
    assert all(size <= 200_000 for size in sizes[:-1])
    assert made == list(log.batches())


def test_space_is_taken_ahead_and_given_back(tmp_path: Path) -> None:
    """In steps that grow with the log; a finished segment has none left, nor has a closed one."""
    log = opened(tmp_path, segment_bytes=500_000)
    log.append(b"x", time=0)
    log.write()
    assert last_segment(log).stat().st_size == 65536
    fill(log, 20, 30_000)
    assert log.size < last_segment(log).stat().st_size <= 500_000
    before = log.size
    log.append(bytes(450_000), time=0)
    log.write()
    assert before == min(log.folder.glob("*.log")).stat().st_size
    log.sync()
    log.close()
    total = sum(path.stat().st_size for path in log.folder.glob("*.log"))
    assert 0 <= total - log.size < 100  # a last batch says that all is synced


def test_on_a_small_file_system_all_is_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments up to a sixteenth of 64 MiB, and much less taken ahead."""
    stat = SimpleNamespace(f_frsize=4096, f_blocks=64 * 1024 * 1024 // 4096)
    monkeypatch.setattr(os, "statvfs", lambda path: stat)
    log = opened(tmp_path)
    for _ in range(100):
        log.append(bytes(100_000), time=0)
        log.write()
        used = last_segment(log).stat().st_size
        assert used <= 4 * 1024 * 1024
        total = sum(path.stat().st_size for path in log.folder.glob("*.log"))
        assert total - log.size <= 512 * 1024


def test_a_file_system_that_cannot_take_space_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It works without."""

    def unsupported(*args: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    log = opened(tmp_path)
    made = fill(log, 50)

    assert last_segment(log).stat().st_size == log.size
    assert made == list(opened(tmp_path).batches())


def test_a_start_reads_the_last_segment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the headers of the others: how long it takes does not depend on how much is kept."""
    log = opened(tmp_path, segment_bytes=65536)
    for _ in range(50):
        fill(log, 100, 2000)
        log.sync()
    read = 0

    def counting(fd: int, length: int, position: int) -> bytes:
        nonlocal read
        data = pread(fd, length, position)
        read += len(data)
        return data

    pread = os.pread
    monkeypatch.setattr(os, "pread", counting)
    log = opened(tmp_path)

    assert log.size > 4_000_000
    assert read < 300_000  # what no sync is known to have covered is read twice, to write it anew


def test_trimming_drops_whole_segments(tmp_path: Path) -> None:
    """Those of entries up to the one named; the last one stays in any case."""
    log = opened(tmp_path, segment_bytes=65536)
    made = fill(log, 1000, 1000)
    log.sync()
    size, names = log.size, sorted(log.folder.glob("*.log"))
    third = int(names[2].stem)

    assert log.trim(third - 2) == int(size - log.size) > 0
    assert log.first == int(names[1].stem)
    assert log.trim(third - 2) == 0
    log.trim(third - 1)
    assert log.first == third
    assert [one for one in made if one.first >= third] == list(log.batches())
    log.trim(10_000_000)
    assert names[-1:] == sorted(log.folder.glob("*.log"))
    assert (log.first, log.size) == (int(names[-1].stem), opened(tmp_path).size)


# -- by time


@pytest.mark.parametrize("reopen", [False, True])
def test_an_offset_by_time(tmp_path: Path, reopen: bool) -> None:
    """The first entry that is not older; what comes next, where all are."""
    log = opened(tmp_path, segment_bytes=400_000)
    made = fill(log, 5000, 400)
    if reopen:
        log.sync()
        log.close()
        log = opened(tmp_path)
    for time in [0, 1, *range(7, 5000, 61), 4999]:
        assert made[time].first == log.offset_at(time)
    assert log.offset_at(-5) == 1
    assert log.offset_at(5000) == made[-1].last + 1


# -- a full disk, and a broken one


class Disk:
    """Lets `os.pwritev` fail when `room` bytes have been written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: int = errno.ENOSPC) -> None:
        self.room = 0
        self._error = error
        self._pwritev, self._pwrite = os.pwritev, os.pwrite
        monkeypatch.setattr(os, "pwritev", self.pwritev)
        monkeypatch.setattr(os, "pwrite", self.pwrite)
        monkeypatch.setattr(os, "posix_fallocate", self.fallocate)

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int, flags: int = 0) -> int:
        """Write as much as there is room for."""
        return self.pwrite(fd, b"".join(buffers), position)

    def pwrite(self, fd: int, data: bytes, position: int) -> int:
        """Write as much as there is room for."""
        if not self.room:
            raise OSError(self._error, os.strerror(self._error))
        done = self._pwrite(fd, data[: self.room], position)
        self.room -= done
        return done

    def fallocate(self, fd: int, position: int, length: int) -> None:
        """There is never room for that."""
        raise OSError(self._error, os.strerror(self._error))


def test_a_batch_that_was_left_out_halfway_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole batch of the write that failed would stand behind a shorter one."""
    disk = Disk(monkeypatch, errno.ENOSPC)
    disk.room = 1 << 20
    log = opened(tmp_path)
    fill(log, 1, 10)
    for _ in range(3):
        log.append(bytes(3000), time=1)
    disk.room = 2 * (44 + 3000) + 100
    with pytest.raises(DiskFull):
        log.write()
    assert 3 == log.drop_staged()
    disk.room = 1 << 20
    log.append(b"short", time=2)
    log.write()
    log.sync()

    assert [b"short"] == [each.body for each in opened(tmp_path).batches(1)]


def test_a_segment_that_cannot_be_made_now_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node without free descriptors has no broken disk: the batch stays staged."""
    log = opened(tmp_path, segment_bytes=65536)
    fill(log, 5, 3000)
    last = log.append(bytes(64_000), time=1)
    real = os.open

    def refuse(path: Path, flags: int, mode: int = 0o777) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DiskFull, match="Too many open files"):
        log.write()
    monkeypatch.setattr(os, "open", real)
    log.write()

    assert last == log.written and not log.staged


def once_full(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The next such call finds no room."""
    real = getattr(os, name)

    def refuse(*args: Any) -> None:
        monkeypatch.setattr(os, name, real)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, name, refuse)


def test_a_segment_that_cannot_give_room_back_now_does_so_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the next one, made before that, would be in its own way."""
    log = opened(tmp_path, segment_bytes=65536)
    made = fill(log, 5, 3000)
    made.append(batch(log.append(bytes(64_000), time=1), bytes(64_000), time=1))
    once_full(monkeypatch, "ftruncate")
    with pytest.raises(DiskFull):
        log.write()
    log.write()

    assert made == list(opened(tmp_path).batches())


def test_what_cannot_be_left_out_now_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that copies what it changes wants room even to cut a file off."""
    log = opened(tmp_path)
    fill(log, 1, 10)
    log.append(b"x", time=1)
    once_full(monkeypatch, "ftruncate")
    with pytest.raises(DiskFull):
        log.drop_staged()
    log.write()
    log.sync()

    assert [b"x"] == [each.body for each in opened(tmp_path).batches(1)]


def test_a_write_that_failed_is_done_again_byte_for_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Also where a sync came between: a loss of power may leave sectors of both, and a head that is
    made of two, with a whole batch behind it, reads as damage.
    """
    log = opened(tmp_path)
    fill(log, 3)
    for _ in range(3):
        log.append(bytes(700), time=1)
    disk = Disk(monkeypatch, errno.ENOSPC)
    disk.room = 1500
    with pytest.raises(DiskFull):
        log.write()
    tried = last_segment(log).read_bytes()[log.size : log.size + 1400]
    place = log.size
    disk.room = 1 << 20
    log.sync()
    log.append(b"more", time=1)
    log.write()

    assert tried == last_segment(log).read_bytes()[place : place + 1400] != bytes(1400)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.ENOMEM])
def test_a_full_disk_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """However far a write came: it is staged still, and written when there is room."""
    disk = Disk(monkeypatch, error)
    log = opened(tmp_path, segment_bytes=65536)
    made = [
        batch(log.append(bytes([i]) * 3000, 2, time=i), bytes([i]) * 3000, 2, i) for i in range(50)
    ]
    staged = log.staged
    with pytest.raises(DiskFull, match=str(log.folder)):
        log.write()
    assert (staged, 0, []) == (log.staged, log.written, list(log.batches()))
    assert [] == list(log.folder.glob("*.log"))
    for room in range(0, 100_000, 5000):
        disk.room = room
        try:
            log.write()
        except DiskFull:
            assert log.staged == staged - sum(44 + 3000 for _ in log.batches()) > 0
            assert made[: log.written // 2] == list(log.batches())
    assert made == list(log.batches())
    assert made == list(opened(tmp_path).batches())


def test_what_a_full_disk_cut_short_is_a_torn_tail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed while the disk is full leaves half a batch; nobody was told."""
    disk = Disk(monkeypatch)
    disk.room = 10_000
    log = opened(tmp_path)
    for _ in range(5):
        log.append(os.urandom(3000), time=0)
    with pytest.raises(DiskFull):
        log.write()
    cut: list[tuple[int, int]] = []
    log = SegmentLog(log.folder, on_trimmed=lambda file, last, size: cut.append((last, size)))

    assert [(log.next - 1, 10_000 - log.size)] == cut


def test_a_broken_disk_is_no_full_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the folder; after it nothing is synced, nor said to be."""
    log = opened(tmp_path)
    fill(log, 3)
    Disk(monkeypatch, errno.EIO)
    log.append(b"x", time=0)
    with pytest.raises(StoreError, match="cannot be written: Input/output error") as error:
        log.write()

    assert not isinstance(error.value, DiskFull)
    with pytest.raises(StoreError, match="cannot be written"):
        log.sync()
    assert log.synced == 0


def test_a_failed_sync_is_never_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second would succeed, and nothing would be on the disk."""
    log = opened(tmp_path)
    fill(log, 3)
    fdatasync = os.fdatasync

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(StoreError, match="cannot be synced"):
        log.sync()
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    fill(log, 3)
    with pytest.raises(StoreError, match="cannot be synced"):
        log.sync()
    assert log.synced == 0


# -- syncing


def test_a_sync_covers_what_was_written_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All segments, and the folder for new ones; what comes while it runs is for the next."""
    log = opened(tmp_path, segment_bytes=65536)
    made = fill(log, 200, 1000)
    last = made[-1].last
    synced: list[str] = []

    def slow(fd: int) -> None:
        if not synced:
            fill(log, 1)  # meanwhile
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))

    monkeypatch.setattr(os, "fdatasync", slow)
    monkeypatch.setattr(os, "fsync", slow)
    worker = threading.Thread(target=log.sync)
    worker.start()
    worker.join()

    assert [*map(str, sorted(log.folder.glob("*.log"))), str(log.folder)] == synced
    assert (last, log.written > last) == (log.synced, True)
    log.sync()
    assert str(last_segment(log)) == synced[-1]
    assert log.synced == log.written
    log.sync()
    assert len(synced) == len(list(log.folder.glob("*.log"))) + 2


def test_trimming_and_closing_while_a_sync_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that the sync works on stay open for it."""
    log = opened(tmp_path, segment_bytes=65536)
    fill(log, 200, 1000)
    log.sync()
    fill(log, 200, 1000)
    fdatasync = os.fdatasync

    def slow(fd: int) -> None:
        log.trim(10_000)
        log.close()
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", slow)
    log.sync()

    assert log.synced == log.written


def test_what_is_staged_is_counted_down_as_it_is_written(tmp_path: Path) -> None:
    """Piece by piece; `staged_entries` bounds what waits for the disk."""
    log = opened(tmp_path)
    for count in (1, 5, 3):
        log.append(b"x" * 1000, count, time=1)
    assert 9 == log.staged_entries

    while not log.write(most=1000):
        log.check()

    log.check()
    assert (0, 0) == (log.staged, log.staged_entries)
