"""
Each call of a store on its files fails, or is the last one before a kill or a loss of power.

What happens is always the same: all that a store does in two lives (`tests/storage/lives.py`). With
EVERY_CALL=1 in the environment no call is left out, which takes half an hour; else one in some.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import pytest

from tests.storage.lives import ZONE, Ended, InlineThread, Life, Promises, check
from tests.storage.test_committer import Bench
from tests.support.apart import run_apart
from tests.support.calls import ALL, SYNCS, WRITES, Calls, Fault, Image
from txbroker.data.backups import Copied
from txbroker.data.data_repair import repair_files
from txbroker.delegation.state.staged_journal import StagedJournals
from txbroker.journal.store import part_folders
from txbroker.journal.store.journal_parts import Journals, zone_folder
from txbroker.journal.store.part_renumber import renumber_parts
from txbroker.model.log_position import JournalId
from txbroker.runtime import hooks
from txbroker.storage.committer import Durability
from txbroker.storage.log import CorruptLog, SegmentLog

EVERY_CALL = bool(os.environ.get("EVERY_CALL"))
pytestmark = [pytest.mark.timeout(0)] if EVERY_CALL else []
SEED = int(os.environ.get("SEED", "0"))
LIVES = 2
AFTER = 2
"""Calls after a fault before each of which the process is killed, too."""

GROWS = ALL - SYNCS - {"unlink", "rmdir"}

FAULTS = {
    "broken": Fault(at=0, error=errno.EIO),
    "broken for good": Fault(at=0, error=errno.EIO, is_lasting=True),
    "full": Fault(at=0, error=errno.ENOSPC, names=GROWS),
    "full for good": Fault(at=0, error=errno.ENOSPC, names=GROWS, is_lasting=True),
    "files": Fault(at=0, error=errno.ENFILE, names=frozenset({"open"})),
    "files for good": Fault(at=0, error=errno.ENFILE, names=frozenset({"open"}), is_lasting=True),
    "half": Fault(at=0, error=errno.ENOSPC, names=WRITES, is_short=True),
    "half for good": Fault(at=0, error=errno.ENOSPC, names=WRITES, is_short=True, is_lasting=True),
    "short": Fault(at=0, error=0, names=WRITES, is_short=True),
}


async def at_once(work: Callable[[threading.Event], Copied]) -> Copied:
    """What a backup does in a thread."""
    return work(threading.Event())


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory, where the machine has that: nothing here waits for a disk."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def calls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """On a disk of which nothing is used, by a store that rotates and cleans early."""
    monkeypatch.setattr("txbroker.data.data_directory.WorkThread", InlineThread)
    monkeypatch.setattr("txbroker.data.data_directory.SEGMENT_BYTES", 64 * 1024)
    monkeypatch.setattr("txbroker.storage.tables.SLACK", 0)
    monkeypatch.setattr("txbroker.data.backups._in_thread", at_once)
    monkeypatch.setattr(hooks, "_ends", [])
    (folder / "disk").mkdir()
    return Calls(folder / "disk", monkeypatch)


class Player:
    """Plays lives, and looks at what is left."""

    def __init__(self, calls: Calls, image: Path) -> None:
        self.calls = calls
        self.told = Promises()
        self._image = image
        self._checked: set[int] = set()

    def live(self, durability: str = "sync") -> bool:
        """True if all came about; raises `Ended`."""

        async def lives() -> bool:
            for _ in range(LIVES):
                life = Life(self.calls.root / "data", self.told, durability)
                try:
                    if not await life.all_of_it():
                        return False
                    life.close()
                finally:
                    life.folder.close()
            return True

        return run_apart(lives())

    def lay(self, image: Image) -> Path:
        """Put it where nothing is counted."""
        if self._image.exists():
            shutil.rmtree(self._image)
        self._image.mkdir()
        for path, content in image.items():
            at = self._image / path.relative_to(self.calls.root)
            if content is None:
                at.mkdir()
            else:
                with at.open("wb") as file:
                    file.write(content.rstrip(b"\0"))
                    file.truncate(len(content))
        return self._image

    def check(self, image: Image, what: str) -> None:
        """All that was promised is in it, once the node has been started at all."""
        if self.told.state and self._is_news(image):
            with pausing(self.calls), naming(f"{what}, behind {self.calls.count} calls"):
                check(self.lay(image) / "data", self.told)

    def _is_news(self, image: Image) -> bool:
        """True if it was not checked yet, for the same promises: many calls change nothing."""
        told = hash((repr(attrs.evolve(self.told, records={}, entries={})), *self.told.records))
        key = hash((told, len(self.told.entries), *sorted(image.items())))
        is_news = key not in self._checked
        self._checked.add(key)
        return is_news


@contextmanager
def pausing(calls: Calls) -> Iterator[None]:
    before, calls.before = calls.before, lambda name: None
    try:
        yield
    finally:
        calls.before = before


@contextmanager
def naming(what: str) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from error


@pytest.fixture
def player(calls: Calls, folder: Path) -> Player:
    return Player(calls, folder / "image")


def step(wanted: int) -> int:
    """How many calls to go on."""
    return 1 if EVERY_CALL else wanted


@pytest.mark.parametrize(
    ("durability", "kinds"), [("sync", ["killed", "synced", "torn"]), ("interval", ["killed"])]
)
def test_a_crash_before_each_call(player: Player, durability: str, kinds: list[str]) -> None:
    """Whatever of it was synced, and any part of the rest: the node starts and has all."""
    calls, chance = player.calls, random.Random(SEED)

    def look(kind: str, name: str) -> None:
        image = (
            calls.written()
            if kind == "killed"
            else calls.after_power(chance if kind == "torn" else None)
        )
        player.check(image, f"{kind} at {name}")

    def before(name: str) -> None:
        for kind in kinds if EVERY_CALL else [kinds[calls.count // 3 % len(kinds)]]:
            if calls.count % step(3) == 0:
                look(kind, name)

    calls.before = before
    assert player.live(durability)
    assert player.told.adopted and player.told.backups == LIVES
    for kind in kinds:
        look(kind, "the end")


def test_a_crash_before_each_call_of_a_start_after_a_crash(player: Player) -> None:
    """What a start cuts off, writes anew and syncs may be done again."""
    calls, chance = player.calls, random.Random(SEED)
    images: list[tuple[Image, Promises]] = []

    def keep(name: str) -> None:
        if player.told.state and chance.random() < (0.2 if EVERY_CALL else 0.01):
            images.append((calls.after_power(chance), player.told.now()))

    calls.before = keep
    assert player.live()
    for image, told in images:
        calls.before = lambda name: None
        calls.lay(image)
        player.told = told

        def before(name: str) -> None:
            if calls.count % step(5) == 0:
                player.check(calls.after_power(chance), f"a start at {name}")

        calls.before = before
        run_apart(start(calls.root / "data", told))


async def start(data: Path, told: Promises) -> None:
    """And a kill."""
    Life(data, told).folder.close()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_each_call(calls: Calls, folder: Path, name: str) -> None:
    """
    The node works on where that passes, or has ended with a line; killed at once or later, or
    without power, it has all that it told.
    """
    fault = FAULTS[name]
    at = 1 + SEED % step(53) + list(FAULTS).index(name)
    while play(calls, folder / "image", fault, at):
        at += step(71)


def play(calls: Calls, image: Path, fault: Fault, at: int) -> bool:
    """Two lives with the fault at this place; False where there are not so many calls."""
    calls.before = lambda name: None
    calls.fail(None)
    calls.lay({})
    player = Player(calls, image)
    what = f"errno {fault.error} at {at}"
    hit = [""]

    def before(name: str) -> None:
        behind = calls.failing - at
        if behind == -1 and name in fault.names:
            hit[0] = name
        if 0 <= behind < AFTER:
            player.check(calls.written(), f"{what} ({hit[0]}), then a kill at {name}")

    calls.before = before
    calls.fail(attrs.evolve(fault, at=at))
    with naming(f"{what} ({hit[0]})"):
        try:
            assert player.live() or fault.is_lasting, "gave up"
        except Ended as error:
            assert error.stage != "run" or fault.error == errno.EIO, str(error)
    is_hit = calls.failing >= at
    calls.fail(None)
    for left in (calls.written(), calls.after_power(None)):
        player.check(left, f"{what} ({hit[0]})")
    return is_hit


# -- parts that come twice


class Twice:
    """A folder of a node that has a part of a zone, and gets the same one once more."""

    def __init__(self, folder: Path) -> None:
        self.committer = Bench(folder / "others", Durability.SYNC).committer
        self.folder = folder
        self.journals = self.open(folder / "journal")
        self.arrivals = StagedJournals(
            folder / "arriving", self.committer, lambda *_: None, segment_bytes=64 * 1024
        )

    def open(self, folder: Path) -> Journals:
        return Journals(folder, self.committer, lambda *_: None, segment_bytes=64 * 1024)

    def lay(self) -> None:
        """Both copies, in three segments each."""
        for folder in (self.folder / "journal", self.folder / "arriving" / zone_folder(ZONE.zone)):
            log = self.open(folder).create(ZONE, None).log
            for number in range(6):
                log.append(bytes([number]) * 30_000, time=0)
                log.write()
                log.sync()
                log.note_newest()

    def finish(self) -> int:
        """What a start does when the zone has arrived; how many records there are."""
        self.arrivals.adopt(ZONE.zone, self.journals)
        return self.journals.parts[ZONE].log.next - 1


def image_of(folder: Path, root: Path) -> Image:
    """What is below the folder, as if it were below the root."""
    return {
        root / path.relative_to(folder): None if path.is_dir() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
    }


def test_a_crash_while_a_part_that_came_twice_goes(player: Player, tmp_path: Path) -> None:
    """No start takes the half that is left for a damaged one."""
    calls, chance = player.calls, random.Random(SEED)
    Twice(tmp_path).lay()
    calls.lay(image_of(tmp_path, calls.root))
    twice = Twice(calls.root)

    def before(call: str) -> None:
        with pausing(calls), naming(f"behind {calls.count} calls, at {call}"):
            for image in (calls.written(), *(calls.after_power(chance) for _ in range(3))):
                assert 6 == Twice(player.lay(image)).finish()

    calls.before = before
    assert 6 == twice.finish()
    before("the end")
    left = {path for path in calls.written() if path.name.endswith(".log")}
    assert left and all("journal" in path.parts for path in left)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_part_that_is_half_deleted_stops_nobody(tmp_path: Path, is_restarted: bool) -> None:
    """Neither a root that takes another epoch, nor a repair, nor the next deletion."""
    twice = Twice(tmp_path)
    twice.lay()
    folder = twice.open(tmp_path / "journal").parts[ZONE].log.folder
    gone = folder.with_name(f"{folder.name}.dropped")
    shutil.copytree(folder, gone)
    (gone / "part.json").unlink()
    next(gone.glob("*.log")).unlink()

    renumber_parts(tmp_path / "journal", ZONE, JournalId(ZONE.zone, 9), data=tmp_path)
    assert [] == repair_files(tmp_path)
    if is_restarted:
        journals = twice.open(tmp_path / "journal")
        assert [JournalId(ZONE.zone, 9)] == list(journals.parts) and not gone.exists()
    else:
        part_folders.delete(folder.with_name("9"))
        part_folders.delete(make_again(folder))
        assert not folder.exists() and not gone.exists()


def make_again(folder: Path) -> Path:
    """A part of the same name."""
    folder.mkdir()
    (folder / "part.json").write_text("{}")
    return folder


# -- repair


def flip(path: Path, place: int) -> None:
    """A bit at this place."""
    whole = bytearray(path.read_bytes())
    whole[place] ^= 1
    path.write_bytes(whole)


DAMAGES: dict[str, Callable[[list[Path]], object]] = {
    "header": lambda paths: flip(paths[1], 20),
    "first header": lambda paths: flip(paths[0], 20),
    "last header": lambda paths: flip(paths[3], 20),
    "batch": lambda paths: flip(paths[1], 30_000),
    "batch of the last": lambda paths: flip(paths[3], 30_000),
    "missing": lambda paths: paths[1].unlink(),
    "last missing": lambda paths: paths[-1].unlink(),
    "all missing": lambda paths: [path.unlink() for path in paths],
}


def opened(folder: Path) -> SegmentLog:
    return SegmentLog(folder, segment_bytes=65536, on_trimmed=lambda *_: None)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_repair_that_breaks_off(player: Player, name: str) -> None:
    """It may be called again. A start finds the damage, or gives no number a second time."""
    calls, chance = player.calls, random.Random(SEED)
    log = opened(calls.root)
    for number in range(12):
        log.append(bytes([number]) * 20_000, time=0)
        log.write()
        log.sync()
        log.note_newest()
    DAMAGES[name](sorted(calls.root.glob("*.log")))
    calls.lay(calls.written())

    def before(call: str) -> None:
        with pausing(calls), naming(f"behind {calls.count} calls, at {call}"):
            for image in (calls.written(), *(calls.after_power(chance) for _ in range(3))):
                try:
                    assert opened(player.lay(image)).next >= 13, "a start"
                except CorruptLog:
                    pass
                folder = player.lay(image)
                repair_files(folder)
                assert opened(folder).next >= 13, "a second repair"

    calls.before = before
    repair_files(calls.root)
    before("the end")
