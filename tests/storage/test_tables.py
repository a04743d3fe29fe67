"""Tables: the last value wins, a turn is all or nothing, the log does not grow for ever."""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.storage.test_committer import Bench
from tests.storage.test_log import Disk
from tests.support.crash import crash, snapshot
from txbroker.model.errors import CallerError, StoreError
from txbroker.storage import tables
from txbroker.storage.committer import Durability
from txbroker.storage.log import SegmentLog
from txbroker.storage.tables import LogTables

Model = dict[tuple[str, bytes], bytes]


class Store:
    """Tables over a log in a folder; a process that can be killed."""

    def __init__(self, folder: Path, durability: Durability = Durability.SYNC) -> None:
        self.folder = folder
        self.durability = durability
        self.start()

    def start(self) -> None:
        """A process begins."""
        self.bench = Bench(self.folder / "others", self.durability)
        self.log = SegmentLog(self.folder / "log", segment_bytes=65536, on_trimmed=lambda *_: None)
        self.tables = LogTables(self.log, self.bench.committer, lambda: 7)

    def end_turn(self) -> None:
        """A turn ends and what the thread has to do is done."""
        self.bench.end_turn()
        while self.bench.work:
            self.bench.sync()

    def contents(self, *names: str) -> Model:
        """All that the named tables hold."""
        return {
            (name, key): value for name in names for key, value in self.tables.table(name).items()
        }


@pytest.mark.parametrize("durability", list(Durability))
def test_tables_are_safe_when_all_is_synced(tmp_path: Path, durability: Durability) -> None:
    """Whatever others wait for; without a sync nothing is."""
    store = Store(tmp_path, durability)
    assert store.tables.are_safe("a")
    store.tables.table("a").put(b"key", b"value")
    store.bench.committer.when_durable(lambda: None)
    assert not store.tables.are_safe("a")
    store.bench.end_turn()
    assert not store.tables.are_safe("a")
    store.end_turn()
    assert store.tables.are_safe("a") is (durability is Durability.SYNC)


def test_some_tables_are_safe_while_others_change(tmp_path: Path) -> None:
    """Those whose names begin so."""
    store = Store(tmp_path)
    one, other = store.tables.table("a.one"), store.tables.table("b.other")
    one.put(b"key", b"value")
    store.bench.wait("durable")
    store.end_turn()
    other.put(b"key", b"value")
    assert store.tables.are_safe("a.") and not store.tables.are_safe("b.")
    store.bench.wait("durable")
    store.bench.end_turn()
    assert store.tables.are_safe("a.") and not store.tables.are_safe("a.", "b.")
    one.delete(b"key")
    store.bench.sync()
    assert store.tables.are_safe("b.") and not store.tables.are_safe("a.")


def test_tables_are_safe_with_all_that_is_written_at_once(tmp_path: Path) -> None:
    """What others gather before the write is in the same batch: a crash leaves both or neither."""
    store = Store(tmp_path)
    entries, sessions = store.tables.table("entries"), store.tables.table("sessions")
    entries.put(b"key", b"value")
    store.bench.committer.before_write(lambda: sessions.put(b"key", b"value"))
    store.bench.wait("durable")
    store.bench.end_turn()
    assert [(1, 2)] == [(one.first, one.count) for one in store.log.batches()]
    assert not store.tables.are_safe("entries")
    store.bench.sync()
    assert store.tables.are_safe("entries")


def test_what_comes_while_the_disk_is_full_is_not_safe_before_it_is_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt to write again writes what was staged before."""
    store = Store(tmp_path)
    disk = Disk(monkeypatch)
    table = store.tables.table("a")
    table.put(b"1", b"value")
    store.bench.end_turn()
    assert store.bench.committer.is_full
    table.put(b"2", b"value")
    disk.room = 1_000_000
    store.log.write()
    store.log.sync()
    assert not store.tables.are_safe("a")


def test_what_was_put_is_there_after_a_start(tmp_path: Path) -> None:
    """In the table in which it was put; what was deleted is not."""
    store = Store(tmp_path)
    a, b = store.tables.table("a"), store.tables.table("b")
    a.put(b"key", b"old")
    a.put(b"gone", b"x")
    store.end_turn()
    a.put(b"key", b"new")
    a.delete(b"gone")
    a.delete(b"never was")
    b.put(b"", b"")
    store.end_turn()
    for _ in range(2):
        assert {("a", b"key"): b"new", ("b", b""): b""} == store.contents("a", "b")
        a = store.tables.table("a")
        assert (b"new", None, 1) == (a.get(b"key"), a.get(b"gone"), len(a))
        assert b"key" in a and b"gone" not in a
        store.start()


def test_a_turn_is_one_batch(tmp_path: Path) -> None:
    """Over all tables, with the last change of each key."""
    store = Store(tmp_path)
    for name in ("a", "b"):
        for value in (b"1", b"2"):
            store.tables.table(name).put(b"key", value)
    store.tables.table("a").delete(b"key")
    store.end_turn()

    assert [(1, 2, 7)] == [(one.first, one.count, one.time) for one in store.log.batches()]
    store.start()
    assert {("b", b"key"): b"2"} == store.contents("a", "b")


def test_an_action_waits_for_what_was_put(tmp_path: Path) -> None:
    """Tables stage at the end of the turn, before it is written."""
    store = Store(tmp_path)
    store.bench.look()
    store.tables.table("a").put(b"key", b"value")
    store.bench.wait("durable")
    assert [] == store.bench.end_turn()
    assert ["durable"] == store.bench.sync()
    assert store.log.synced == 1


def test_items_may_be_changed_while_they_are_read(tmp_path: Path) -> None:
    """As when all are deleted."""
    store = Store(tmp_path)
    table = store.tables.table("a")
    for i in range(10):
        table.put(bytes([i]), b"x")
    for key, _ in table.items():
        table.delete(key)

    assert len(table) == 0


def test_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    """255 bytes are fine."""
    store = Store(tmp_path)
    store.tables.table("ü" * 127).put(b"k", b"v")
    store.end_turn()
    store.start()
    assert store.tables.table("ü" * 127).get(b"k") == b"v"
    with pytest.raises(CallerError):
        store.tables.table("ü" * 128)


@pytest.mark.parametrize("body", [b"x", bytes([2]) + bytes(9), b"\1\1\0\0\0\0\0\0\0\0\xff"])
def test_an_unknown_change_is_refused(tmp_path: Path, body: bytes) -> None:
    """As from a newer version; in one line."""
    store = Store(tmp_path)
    store.log.append(body, time=0)
    store.log.write()
    with pytest.raises(StoreError, match="entry 1 cannot be read as a change of a table"):
        store.start()


@pytest.mark.parametrize("durability", Durability)
def test_the_log_is_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: Durability
) -> None:
    """However often values change, it stays near what is live; nothing is lost by it."""
    monkeypatch.setattr(tables, "SLACK", 300_000)
    store = Store(tmp_path, durability)
    table, chance = store.tables.table("a"), random.Random(0)
    model: Model = {}
    for i in range(100):
        table.put(b"kept %d" % i, bytes(1000))
        model["a", b"kept %d" % i] = bytes(1000)
    largest = 0
    for i in range(1500):
        key, value = b"key %d" % chance.randint(0, 20), chance.randbytes(2000)
        table.put(key, value)
        model["a", key] = value
        if not i % 5:
            store.tables.clean(10)
        store.end_turn()
        store.bench.later(0.1)
        largest = max(largest, store.log.size)
    live = sum(len(value) for value in model.values())

    # In memory mode a segment is synced when the next has begun, and dropped after that.
    segments = 6 if durability is Durability.MEMORY else 3
    assert largest < 3 * live + 300_000 + segments * 65536
    assert store.log.first > 1
    assert model == store.contents("a")
    store.bench.committer.close()
    store.start()
    assert model == store.contents("a")


def test_cleaning_takes_small_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bounded number of keys, and of bytes, in one turn."""
    monkeypatch.setattr(tables, "SLACK", 0)
    store = Store(tmp_path)
    table = store.tables.table("a")
    for _ in range(4):
        for i in range(100):
            table.put(b"%d" % i, bytes(10_000))
        store.end_turn()
    before = store.log.next
    store.tables.clean(20)
    store.end_turn()
    assert store.log.next == before + 20
    store.tables.clean()
    store.end_turn()
    assert before + 20 + 26 <= store.log.next <= before + 20 + 28


def test_nothing_is_dropped_before_what_replaces_it_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a put in between has replaced it already."""
    monkeypatch.setattr(tables, "SLACK", 0)
    store = Store(tmp_path)
    table = store.tables.table("a")
    for _ in range(4):
        for i in range(100):
            table.put(b"%d" % i, bytes(1000))
        store.end_turn()
    for _ in range(10):
        store.tables.clean()
        store.bench.end_turn()  # but the thread is slow
    assert store.log.first == 1
    store.bench.later(0.1)
    store.bench.sync()
    store.tables.clean()
    assert store.log.first > 1


def test_on_a_full_disk_cleaning_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would only stage more."""
    monkeypatch.setattr(tables, "SLACK", 0)
    store = Store(tmp_path)
    for i in range(9):
        store.tables.table("a").put(b"k", b"%d" % i)
        store.end_turn()
    store.bench.committer.is_full = True
    store.tables.clean()
    assert store.log.next == 10
    store.bench.committer.is_full = False
    store.tables.clean()
    store.end_turn()
    assert store.log.next == 11


class Crashes:
    """Tables against a dict, with power failures: the state is that of a turn, none is halved."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.chance = chance
        self.store = Store(folder)
        self.now: Model = {}
        self.turns: list[Model] = [{}]  # those that may be found; the first is synced
        self.synced = snapshot(self.store.log.folder)

    def change(self) -> None:
        """Put and delete."""
        chance = self.chance
        for _ in range(chance.randint(1, 5)):
            name, key = chance.choice("ab"), chance.choice((b"", b"1", b"2", b"3"))
            table = self.store.tables.table(name)
            if chance.random() < 0.2:
                table.delete(key)
                self.now.pop((name, key), None)
            else:
                value = chance.randbytes(chance.choice((0, 1, 600, 20_000)))
                table.put(key, value)
                self.now[name, key] = value

    def clean(self) -> None:
        """A step of cleaning."""
        names = set(snapshot(self.store.log.folder))
        self.store.tables.clean(self.chance.randint(1, 5))
        for name in names - set(snapshot(self.store.log.folder)):
            self.synced.pop(name, None)  # trimmed

    def end_turn(self) -> None:
        """Write, not synced yet."""
        self.store.bench.end_turn()
        self.turns.append(dict(self.now))

    def sync(self) -> None:
        """End the turn; all is synced."""
        self.store.end_turn()
        self.turns = [dict(self.now)]
        self.synced = snapshot(self.store.log.folder)

    def power_failure(self) -> None:
        """One of the states since the last sync is there."""
        crash(self.store.log.folder, self.synced, self.chance)
        self.store.start()
        found = self.store.contents("a", "b")
        assert found in self.turns
        self.now, self.turns = dict(found), [found]
        self.synced = snapshot(self.store.log.folder)

    def step(self) -> None:
        """Anything."""
        steps = (self.change, self.clean, self.end_turn, self.sync, self.power_failure)
        self.chance.choices(steps, (6, 6, 6, 2, 1))[0]()
        assert self.now == self.store.contents("a", "b")


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 1 << 32))
def test_tables_survive_power_failures(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """While they are changed and cleaned."""
    monkeypatch.setattr(tables, "SLACK", 0)
    with TemporaryDirectory() as folder:
        crashes = Crashes(Path(folder), random.Random(seed))
        for _ in range(150):
            crashes.step()
