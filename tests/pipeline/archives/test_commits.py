"""The manifests of an archive: whatever happens in whatever order, a reader sees whole commits."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from txbroker.model.errors import PipelineError
from txbroker.pipeline.archives import manifest
from txbroker.pipeline.archives.commits import Commits
from txbroker.pipeline.archives.manifest import ArchiveChange, ArchiveState, ChangeVerdict, DataFile

HOUR = 3600.0
DAY = 86_400.0


def data_file(name: str, zone: str = "home", offset: int = 1, rows: int = 1) -> DataFile:
    return DataFile(
        path=f"{manifest.zone_folder(zone)}/day=2026-03-01/{name}.parquet",
        zone=zone,
        day="2026-03-01",
        rows=rows,
        bytes=100,
        first=(1, offset),
        last=(1, offset + rows - 1),
        earliest=offset,
        latest=offset + rows - 1,
    )


class Clock:
    """Seconds since 1970, of the test's choosing."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Disk:
    """Writes files as a worker does, each with its numbers, at the clock's time."""

    def __init__(self, archive: Path, clock: Clock) -> None:
        self.archive = archive
        self._clock = clock
        self._count = 0

    def write(self, numbers: list[int]) -> DataFile:
        self._count += 1
        file = data_file(f"f{self._count}", offset=min(numbers), rows=1)
        path = self.archive / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(" ".join(map(str, numbers)))
        os.utime(path, (self._clock(), self._clock()))
        return file

    def numbers(self, files: list[DataFile]) -> list[int]:
        """What is in some files; FileNotFoundError when one was deleted."""
        return sorted(
            int(number)
            for file in files
            for number in (self.archive / file.path).read_text().split()
        )


@attrs.define
class Reader:
    """It has taken a version and reads its files later."""

    files: list[DataFile]
    expected: list[int]
    since: float


@attrs.define
class Writer:
    """A process: its own view of the archive, and what it is about to commit."""

    commits: Commits
    change: ArchiveChange | None = None
    numbers: list[int] = attrs.field(factory=list)


class Interleavings(RuleBasedStateMachine):
    """
    Two writers, a vacuum and readers. A number is in the archive once iff its batch was committed,
    merged or not; readers find theirs for as long as the grace time.
    """

    writers = st.integers(0, 1)
    sizes = st.lists(st.integers(1, 3), max_size=3)
    at_once = st.booleans()

    @initialize(wholes=st.sampled_from([2, 3, 32]))
    def begin(self, wholes: int) -> None:
        self._tmp = self._folder()
        self.clock = Clock()
        self.disk = Disk(next(self._tmp), self.clock)
        manifest.WHOLE_EVERY = wholes
        self.all = [Writer(self._commits()), Writer(self._commits())]
        self.expected: list[int] = []
        self.committed: set[int] = set()
        self.readers: list[Reader] = []

    def teardown(self) -> None:
        manifest.WHOLE_EVERY = 32
        for _ in getattr(self, "_tmp", ()):
            pass

    def _folder(self) -> Iterator[Path]:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)

    def _commits(self) -> Commits:
        return Commits(self.disk.archive, self.clock)

    @rule(n=writers, again=st.integers(0, 3), sizes=sizes, at_once=at_once)
    def write_a_batch(self, n: int, again: int, sizes: list[int], at_once: bool) -> None:
        """Its numbers are its own, so that one that comes twice shows."""
        batch = max(self.committed) + (again > 0) if self.committed else 0
        numbers = [batch * 100 + k for k in range(sum(sizes))]
        files, rest = [], numbers
        for size in sizes:
            files.append(self.disk.write(rest[:size]))
            rest = rest[size:]
        change = self.all[n].commits.change(added=tuple(files), query="q", batch=batch)
        self.all[n].change, self.all[n].numbers = change, numbers
        if at_once:
            self.commit(n)

    @rule(n=writers, data=st.data(), at_once=at_once)
    def merge(self, n: int, data: st.DataObject, at_once: bool) -> None:
        files = list(self.all[n].commits.load().files.values())
        if files:
            chosen = data.draw(st.lists(st.sampled_from(files), min_size=1, unique=True))
            merged = self.disk.write(self.disk.numbers(chosen))
            removed = tuple(file.path for file in chosen)
            self.all[n].change = self.all[n].commits.change(added=(merged,), removed=removed)
            if at_once:
                self.commit(n)

    @rule(n=writers)
    def commit(self, n: int) -> None:
        writer = self.all[n]
        if writer.change is None:
            return
        verdict = writer.commits.commit(writer.change, "messages")
        if writer.change.query and verdict is ChangeVerdict.FITS:
            assert all(batch < writer.change.batch for batch in self.committed)
            self.committed.add(writer.change.batch)
            self.expected = sorted(self.expected + writer.numbers)
        if verdict is ChangeVerdict.DONE:
            assert max(self.committed) >= writer.change.batch
        writer.change = None

    @rule(n=writers)
    def die(self, n: int) -> None:
        """What it wrote stays where it is."""
        self.all[n] = Writer(self._commits())

    @rule(n=writers)
    def vacuum(self, n: int) -> None:
        self.all[n].commits.vacuum("messages", grace=HOUR, attempt=DAY)

    @rule(seconds=st.sampled_from([60.0, HOUR + 1, DAY + 1]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def begin_to_read(self) -> None:
        files = list(self._commits().load().files.values())
        self.readers.append(Reader(files, list(self.expected), self.clock.now))

    @invariant()
    def readers_find_their_files(self) -> None:
        for reader in getattr(self, "readers", ()):
            if self.clock.now - reader.since < HOUR:
                assert reader.expected == self.disk.numbers(reader.files)

    @invariant()
    def the_archive_is_what_was_committed(self) -> None:
        if hasattr(self, "disk"):
            state = self._commits().load()
            assert self.expected == self.disk.numbers(list(state.files.values()))


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


# -- single cases


def added(commits: Commits, name: str, **fields: object) -> ChangeVerdict:
    """Commit a file that is on disk."""
    file = data_file(name, **fields)  # type: ignore[arg-type]
    path = commits.archive / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("1")
    return commits.commit(commits.change(added=(file,)), "messages")


def names(state: ArchiveState) -> set[str]:
    return {Path(path).stem for path in state.files}


def test_of_many_writers_none_is_lost(tmp_path: Path) -> None:
    """Threads that commit at once all get in, each in a version of its own."""
    start = threading.Barrier(4)

    def write(n: int) -> None:
        commits = Commits(tmp_path)
        start.wait()
        for k in range(25):
            assert added(commits, f"{n}-{k}") is ChangeVerdict.FITS

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = Commits(tmp_path).load()

    assert 100 == state.version
    assert {f"{n}-{k}" for n in range(4) for k in range(25)} == names(state)
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_condemned_file_is_not_named(tmp_path: Path) -> None:
    """A writer that slept for a day is told, and nothing names a file that is going."""
    clock = Clock()
    commits = Commits(tmp_path, clock)
    added(commits, "first")
    slow = Disk(tmp_path, clock).write([1])
    clock.now += DAY + 1
    assert 1 == commits.vacuum("messages").condemned

    assert (
        Commits(tmp_path).commit(ArchiveChange(time=0, added=(slow,)), "messages")
        is ChangeVerdict.LOST
    )
    clock.now += HOUR + 1
    assert 1 == commits.vacuum("messages").deleted
    commits.vacuum("messages")
    assert not commits.load().removed
    assert (
        Commits(tmp_path).commit(ArchiveChange(time=0, added=(slow,)), "messages")
        is ChangeVerdict.LOST
    )


def test_old_manifests_go_and_the_state_stays(tmp_path: Path) -> None:
    """Those behind a whole that is older than the grace time."""
    clock = Clock()
    commits = Commits(tmp_path, clock)
    for k in range(70):
        added(commits, str(k), offset=k + 1)
    commits.vacuum("messages")
    assert 70 == len(list((tmp_path / "_manifest").iterdir()))
    clock.now += HOUR + 1
    commits.vacuum("messages")

    assert [64, 65, 66, 67, 68, 69, 70] == sorted(
        int(path.stem) for path in (tmp_path / "_manifest").iterdir()
    )
    state = Commits(tmp_path).load()
    assert {str(k) for k in range(70)} == names(state)
    assert {"home": (1, 71)} == state.positions
    assert {"home": 70} == state.times


def test_whole_and_changes_say_the_same(tmp_path: Path) -> None:
    """What a whole holds is what its changes lead to."""
    commits = Commits(tmp_path)
    state = ArchiveState()
    for k in range(31):
        added(commits, str(k))
    commits.commit(
        commits.change(removed=tuple(commits.load().files)[:5], query="q", batch=7), "messages"
    )
    for version in range(1, 33):
        path = tmp_path / "_manifest" / f"{version:020}.json"
        change, whole = manifest.decode(path.read_bytes(), version)
        state = state.apply(change)

    assert whole == state
    assert 26 == len(state.files)
    assert state.has_batch("q", 7)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda data: data[: len(data) // 2], "its checksum differs; restore it"),
        (lambda data: b"", "its first line is none of a manifest; restore it"),
        (lambda data: data.replace(b"home", b"hom2"), "its checksum differs; restore it"),
        (lambda data: data.replace(b'"format": 1', b'"format": 2'), "format 2 of a newer txbroker"),
    ],
)
def test_a_bad_manifest_is_told_in_a_line(tmp_path: Path, spoil: object, said: str) -> None:
    """With its file and what to do."""
    commits = Commits(tmp_path)
    added(commits, "a")
    added(commits, "b")
    path = tmp_path / "_manifest" / f"{1:020}.json"
    path.write_bytes(spoil(path.read_bytes()))  # type: ignore[operator]

    with pytest.raises(PipelineError) as told:
        Commits(tmp_path).load()
    assert str(told.value).startswith(f"{path}: ")
    assert said in str(told.value)


def test_a_manifest_that_is_missing_is_told(tmp_path: Path) -> None:
    """It is not taken for an archive with less in it."""
    commits = Commits(tmp_path)
    added(commits, "a")
    added(commits, "b")
    (tmp_path / "_manifest" / f"{1:020}.json").unlink()

    with pytest.raises(PipelineError, match="0001.json: a manifest of the archive is missing"):
        Commits(tmp_path).load()


def test_one_kind_of_rows_in_a_folder(tmp_path: Path) -> None:
    """A job that would mix them is told."""
    commits = Commits(tmp_path)
    added(commits, "a")

    with pytest.raises(PipelineError, match="holds messages, not rollup; give another folder"):
        commits.load_existing("rollup")


def test_rows_that_outlived_their_age_go_by_zone() -> None:
    """A file goes when its last row is too old."""
    files = [data_file("a", "home", 100, 50), data_file("b", "", 100), data_file("c", "x", 150)]

    assert [files[1].path] == manifest.outlived(files, {"home": 60, "x": 100}, 99, 200)
    assert [files[0].path, files[1].path] == manifest.outlived(files, {"home": 50}, 99, 200)


def test_of_two_merges_of_a_file_one_counts(tmp_path: Path) -> None:
    """The other one's result is never named, and goes with those of failed attempts."""
    clock = Clock()
    commits, disk = Commits(tmp_path, clock), Disk(tmp_path, clock)
    one = disk.write([1])
    commits.commit(commits.change(added=(one,)), "messages")
    merges = [commits.change(added=(disk.write([1]),), removed=(one.path,)) for _ in range(2)]

    assert ChangeVerdict.FITS is commits.commit(merges[0], "messages")
    assert ChangeVerdict.LOST is Commits(tmp_path).commit(merges[1], "messages")
    for _ in range(3):
        clock.now += DAY + 1
        commits.vacuum("messages")
    assert [tmp_path / merges[0].added[0].path] == list(tmp_path.rglob("*.parquet"))
